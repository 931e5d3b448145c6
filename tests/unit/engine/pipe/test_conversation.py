"""Who a line belongs to, as dialogues without a process: lines in, tokens and endings out."""

from __future__ import annotations

import threading

import pytest

from engine.api import Cancel
from engine.events import Accepted, Cancelled, EngineEvent, Failed, FailKind, Finished, Progress, Terminal, Token, Usage
from engine.pipe.answer import Answer
from engine.pipe.conversation import OVERRUN_TOKENS, Broken, Conversation
from engine.pipe_codec import Prompt, parse_line


def conversation(*lines: str, parallel: int | None = None) -> Conversation:
    talk = Conversation(1, parallel)
    say(talk, *(lines or ("READY 4096 stop",)))
    return talk


def batch(slots: int = 2) -> Conversation:
    return conversation(f"INFO batch_slots={slots}", "READY 4096 stop")


def say(talk: Conversation, *lines: str) -> None:
    for line in lines:
        talk.feed(parse_line(line.encode()))


def begin(talk: Conversation, ids: int = 3, max_new: int = 8) -> Answer:
    answer = Answer(Prompt([1] * ids, max_new), Cancel(), threading.Condition())
    talk.begin(answer)
    return answer


def taken(answer: Answer) -> tuple[list[EngineEvent], Terminal | None]:
    with answer.changed:
        return answer.take(0.0)


def breaks(talk: Conversation, *lines: str) -> Broken:
    with pytest.raises(Broken) as caught:
        say(talk, *lines)
    return caught.value


# --- ready -------------------------------------------------------------------------------------------


def test_facts_before_and_after_ready_are_kept() -> None:
    talk = Conversation(1, None)
    say(talk, "INFO kv=f16 arena_mib=512")
    assert not talk.ready
    assert talk.feed(parse_line(b"READY 2048"))
    say(talk, "INFO engine=0.1.3")
    assert talk.info == {"kv": "f16", "arena_mib": "512", "engine": "0.1.3"}
    assert (talk.max_context, talk.can_stop, talk.slots) == (2048, False, 1)


@pytest.mark.parametrize(
    ("offered", "parallel", "slots", "in_batch"),
    [
        ("4", None, 4, True),
        ("4", 2, 2, True),
        ("4", 1, 1, False),
        ("4", 9, 4, True),
        ("1", None, 1, False),
        ("0", None, 1, False),
        ("many", 4, 1, False),
        ("9999999", None, 1, False),
    ],
)
def test_batch_slots_are_what_both_sides_can(offered: str, parallel: int | None, slots: int, in_batch: bool) -> None:
    talk = conversation(f"INFO batch_slots={offered}", "READY 4096", parallel=parallel)
    assert (talk.slots, talk.batch) == (slots, in_batch)


def test_batch_slots_said_after_ready_count_when_nothing_runs() -> None:
    talk = conversation("READY 4096")
    say(talk, "INFO batch_slots=3")
    assert talk.slots == 3
    begin(talk)
    say(talk, "INFO batch_slots=5")
    assert talk.slots == 3


def test_a_second_ready_in_the_middle_of_a_request_breaks() -> None:
    talk = conversation()
    say(talk, "READY 4096 stop")
    begin(talk)
    assert breaks(talk, "READY 4096 stop").kind is FailKind.PROTOCOL


# --- solo --------------------------------------------------------------------------------------------


def test_a_whole_answer() -> None:
    talk = conversation()
    assert talk.free()
    answer = begin(talk)
    assert not talk.free()
    say(talk, "REUSED 2", "PP 2 3 1 1", "PP 3 3 1 1", "T 7", "FUTURE line", "T 8", "DONE 2 3 1.5 2 stop 4 5 2")
    events, ending = taken(answer)
    assert events == [Progress(2, 3), Progress(3, 3), Token(7), Token(8)]
    assert ending == Finished("stop", Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=2))
    assert talk.last == {
        "generated": 2, "prompt_tokens": 3, "prompt_ms": 1.5, "decode_ms": 2.0, "finish": "stop",
        "drafts_accepted": 4, "drafts_offered": 5, "reused": 2,
    }  # fmt: skip
    assert not talk.free()  # for a moment: whatever should not come now is still this life's fault
    talk.settling = False
    assert talk.free()


def test_the_token_limit_is_length() -> None:
    talk = conversation()
    answer = begin(talk)
    say(talk, "T 1", "DONE 1 3 0 0 length")
    assert taken(answer)[1] == Finished("length", Usage(3, 1))


def test_more_cached_tokens_than_the_prompt_has_are_not_told() -> None:
    talk = conversation()
    answer = begin(talk)
    say(talk, "REUSED 99", "DONE 0 3 0 0 stop")
    assert taken(answer)[1] == Finished("stop", Usage(3, 0, cached_tokens=3))


def test_a_cancel_that_was_asked_for_is_cancelled_and_one_that_was_not_is_no_success() -> None:
    talk = conversation()
    asked = begin(talk)
    asked.cancel.cancel("deadline")
    say(talk, "T 1", "DONE 1 3 0 0 cancel")
    assert taken(asked)[1] == Cancelled("deadline", Usage(3, 1))
    talk.settling = False
    unasked = begin(talk)
    say(talk, "T 1", "DONE 1 3 0 0 cancel")
    ending = taken(unasked)[1]
    assert isinstance(ending, Failed)
    assert ending.kind is FailKind.CUT


def test_after_its_reader_left_tokens_are_counted_and_dropped() -> None:
    talk = conversation()
    answer = begin(talk)
    say(talk, "T 1")
    answer.leave()
    say(talk, "T 2", "T 3", "DONE 3 3 0 0 cancel")
    events, ending = taken(answer)
    assert events == []
    assert isinstance(ending, Cancelled)
    assert talk.front is None


BROKEN = {
    "count too high": ("T 1", "DONE 2 3 0 0 stop"),
    "count too low": ("T 1", "T 2", "DONE 1 3 0 0 stop"),
    "count in length": ("T 1", "DONE 5 3 0 0 length"),
    "count in cancel": ("T 1", "DONE 5 3 0 0 cancel"),
    "unknown finish": ("T 1", "DONE 1 3 0 0 abort"),
    "damaged token": ("T 1", "T x"),
    "damaged done": ("T 1", "DONE x"),
    "damaged progress": ("PP 1 2 invalid 3",),
    "garbage": ("T 1", "\x00\x01"),
    "slot token": ("BT 0 1",),
    "slot done": ("BDONE 0 1 stop 1",),
    "admission": ("BADM 0 1",),
    "token after done": ("T 1", "DONE 1 3 0 0 stop", "T 2"),
    "done after done": ("T 1", "DONE 1 3 0 0 stop", "DONE 1 3 0 0 stop"),
    "damaged after done": ("T 1", "DONE 1 3 0 0 stop", "T x"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_protocol_ends_the_life(case: str) -> None:
    talk = conversation()
    begin(talk)
    broken = breaks(talk, *BROKEN[case])
    assert broken.kind is FailKind.PROTOCOL
    assert str(broken).startswith("the engine broke its protocol: ")


def test_an_engine_that_does_not_stop_at_the_limit_is_broken_after_a_while() -> None:
    talk = conversation()
    begin(talk, max_new=2)
    say(talk, *["T 1"] * (2 + OVERRUN_TOKENS))
    assert "goes on after the 2 tokens" in str(breaks(talk, "T 1"))


def test_garbage_hurts_nobody_while_nothing_runs() -> None:
    talk = Conversation(1, None)
    for line in (b"\xff\xfe banner", b"T x", b"DONE x", b"INFO a=\xff"):
        talk.feed(parse_line(line))
    assert talk.feed(parse_line(b"READY 4096"))
    talk.feed(parse_line(b"\xff\xfe"))


def test_a_damaged_ready_is_no_start() -> None:
    assert breaks(Conversation(1, None), "READY soon").kind is FailKind.PROTOCOL


@pytest.mark.parametrize("line", ["T 1", "DONE 0 0 0 0 stop", "BT 0 1"])
def test_an_answer_that_nobody_asked_for_ends_the_life(line: str) -> None:
    assert breaks(conversation(), line).kind is FailKind.PROTOCOL


# --- ERR ---------------------------------------------------------------------------------------------


def test_a_refusal_waits_for_no_done_and_leaves_the_engine_usable() -> None:
    talk = conversation()
    answer = begin(talk)
    say(talk, "ERR a token id is outside the vocabulary")
    assert taken(answer) == ([], None)  # a DONE in the next moment would make it fatal
    assert not talk.free()
    talk.settle_err()
    talk.settling = False
    assert taken(answer)[1] == Failed(
        FailKind.REFUSED, "the engine said: a token id is outside the vocabulary", Usage(3, 0)
    )
    assert talk.free()


@pytest.mark.parametrize(
    ("text", "kind"),
    [("prompt exceeds context", FailKind.CONTEXT), ("no", FailKind.REFUSED), ("", FailKind.REFUSED)],
)
def test_the_kind_of_a_refusal(text: str, kind: FailKind) -> None:
    talk = conversation()
    answer = begin(talk)
    say(talk, f"ERR {text}")
    talk.settle_err()
    ending = taken(answer)[1]
    assert isinstance(ending, Failed)
    assert ending.kind is kind
    assert ending.message


@pytest.mark.parametrize("text", ["sampler: no candidate is left", "prompt exceeds context"])
def test_an_err_in_mid_answer_is_an_engine_error(text: str) -> None:
    talk = conversation()
    answer = begin(talk)
    say(talk, "T 1", f"ERR {text}")
    talk.settle_err()
    events, ending = taken(answer)
    assert events == [Token(1)]
    assert isinstance(ending, Failed)
    assert (ending.kind, ending.usage) == (FailKind.ERR, Usage(3, 1))


@pytest.mark.parametrize(
    "lines",
    [
        ("ERR verify: timed out at layer 18; its GPU waits were released",),
        ("T 1", "ERR verify batch: timed out at layer 18"),
        ("ERR something new", "DONE 0 3 0 0 error"),
        ("T 1", "ERR something new", "DONE 1 3 0 0 error"),
        ("ERR something new", "INFO x=1", "LATER", "DONE 0 3 0 0 stop"),
        ("T 1", "DONE 1 3 0 0 error"),
    ],
    ids=repr,
)
def test_a_fatal_err_ends_the_life(lines: tuple[str, ...]) -> None:
    talk = conversation()
    begin(talk)
    broken = breaks(talk, *lines)
    assert broken.kind is FailKind.DIED
    for line in lines:
        if line.startswith("ERR"):
            assert line[4:] in str(broken)


def test_a_fatal_err_while_nothing_runs_ends_the_life_and_another_does_not() -> None:
    talk = conversation()
    say(talk, "ERR unknown command")
    assert breaks(talk, "ERR CUDA error 700").kind is FailKind.DIED


def test_a_token_after_a_refusal_breaks_and_the_refusal_stands() -> None:
    talk = conversation()
    answer = begin(talk)
    assert breaks(talk, "ERR no", "T 1").kind is FailKind.PROTOCOL
    ending = taken(answer)[1]
    assert isinstance(ending, Failed)
    assert ending.kind is FailKind.REFUSED


# --- batch slots -------------------------------------------------------------------------------------


def test_two_requests_side_by_side() -> None:
    talk = batch()
    first = begin(talk)
    assert first.slot == 0
    assert not talk.free()
    say(talk, "PP 3 3 1 1", "T 10", "DONE 1 3 1 1 length", "BADM 0 1")
    assert talk.free()
    second = begin(talk)
    assert second.slot == 1
    say(talk, "BT 0 11", "T 20", "BT 0 12", "DONE 1 3 1 1 length", "BADM 1 1", "BT 1 21")
    assert not talk.free()
    say(talk, "BDONE 0 3 stop 5")
    assert talk.free()
    say(talk, "BT 1 22", "BDONE 1 3 length 5")
    assert taken(first) == ([Progress(3, 3), Token(10), Token(11), Token(12)], Finished("stop", Usage(3, 3)))
    assert taken(second) == ([Token(20), Token(21), Token(22)], Finished("length", Usage(3, 3)))


def test_an_answer_that_ends_in_its_admission() -> None:
    talk = batch()
    answer = begin(talk)
    say(talk, "T 10", "DONE 1 3 1 1 stop")
    assert taken(answer)[1] is None
    say(talk, "BADM 0 0")
    assert taken(answer)[1] == Finished("stop", Usage(3, 1))
    assert begin(talk).slot == 1  # the one that is free for longest


def test_an_admission_that_is_refused_frees_its_slot() -> None:
    talk = batch()
    answer = begin(talk)
    say(talk, "ERR prompt exceeds context")
    talk.settle_err()
    talk.settling = False
    ending = taken(answer)[1]
    assert isinstance(ending, Failed)
    assert ending.kind is FailKind.CONTEXT
    assert [begin(talk).slot] == [1]
    say(talk, "T 1", "DONE 1 3 0 0 length", "BADM 1 1")
    assert begin(talk).slot == 0


def test_a_slots_token_between_an_err_and_its_moment_changes_nothing() -> None:
    talk = batch()
    first = begin(talk)
    say(talk, "T 1", "DONE 1 3 0 0 length", "BADM 0 1")
    second = begin(talk)
    say(talk, "ERR no", "BT 0 2")
    assert taken(second)[1] is None
    talk.settle_err()
    assert taken(second)[1] is not None
    assert taken(first) == ([Token(1), Token(2)], None)


def test_an_err_that_belongs_to_the_only_slot_ends_that() -> None:
    talk = batch()
    answer = begin(talk)
    say(talk, "T 1", "DONE 1 3 0 0 length", "BADM 0 1", "ERR sampler")
    ending = taken(answer)[1]
    assert isinstance(ending, Failed)
    assert ending.kind is FailKind.ERR
    assert not list(talk.running())


def test_an_err_that_may_belong_to_two_slots_ends_the_life() -> None:
    talk = batch()
    for slot in range(2):
        begin(talk)
        say(talk, "T 1", "DONE 1 3 0 0 length", f"BADM {slot} 1")
    assert breaks(talk, "ERR sampler").kind is FailKind.DIED
    assert len(talk.drop_all()) == 2
    assert not talk.free()


BROKEN_BATCH = {
    "token of a free slot": ("BT 1 5",),
    "end of a free slot": ("BDONE 1 1 stop 1",),
    "another slot admitted": ("T 1", "DONE 1 3 0 0 length", "BADM 1 1"),
    "admitted before DONE": ("T 1", "BADM 0 1"),
    "token between DONE and BADM": ("T 1", "DONE 1 3 0 0 length", "T 2"),
    "slot's count": ("T 1", "DONE 1 3 0 0 length", "BADM 0 1", "BT 0 2", "BDONE 0 1 stop 1"),
    "slot's finish": ("T 1", "DONE 1 3 0 0 length", "BADM 0 1", "BDONE 0 1 abort 1"),
    "a token after its end": ("T 1", "DONE 1 3 0 0 length", "BADM 0 1", "BDONE 0 1 stop 1", "BT 0 2"),
}


@pytest.mark.parametrize("case", BROKEN_BATCH)
def test_a_broken_batch_protocol_ends_the_life(case: str) -> None:
    talk = batch()
    begin(talk)
    assert breaks(talk, *BROKEN_BATCH[case]).kind is FailKind.PROTOCOL


def test_an_error_end_of_a_slot_ends_the_life() -> None:
    talk = batch()
    begin(talk)
    assert breaks(talk, "T 1", "DONE 1 3 0 0 length", "BADM 0 1", "BDONE 0 1 error 1").kind is FailKind.DIED


# --- STOP --------------------------------------------------------------------------------------------


def test_stop_is_possible_only_while_it_would_reach_this_request() -> None:
    talk = conversation()
    answer = begin(talk)
    assert talk.stoppable(answer)
    say(talk, "ERR no")
    assert not talk.stoppable(answer)
    talk.settle_err()
    assert not talk.stoppable(answer)
    assert not conversation("READY 4096").stoppable(answer)


def test_a_slot_is_stopped_in_its_slot() -> None:
    talk = batch()
    answer = begin(talk)
    assert talk.stoppable(answer)
    assert not talk.decodes_in_slot(answer)
    say(talk, "T 1", "DONE 1 3 0 0 length")
    assert not talk.stoppable(answer)
    say(talk, "BADM 0 1")
    assert talk.decodes_in_slot(answer)
    talk.drop_all()
    assert not talk.decodes_in_slot(answer)


# --- the mailbox -------------------------------------------------------------------------------------


def test_the_first_ending_counts_and_nothing_comes_after_it() -> None:
    answer = begin(conversation())
    answer.end(Finished("stop"))
    answer.fail(FailKind.DIED, "late")
    with answer.changed:
        answer.push(Accepted())
    assert taken(answer) == ([], Finished("stop"))


def test_taking_waits_for_what_comes() -> None:
    answer = begin(conversation())

    def later() -> None:
        with answer.changed:
            answer.token(5)

    thread = threading.Timer(0.05, later)
    thread.start()
    with answer.changed:
        assert answer.take(20.0) == ([Token(5)], None)
    thread.join()
