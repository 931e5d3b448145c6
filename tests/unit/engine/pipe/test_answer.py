"""Answers that are interrupted, as dialogues without a process: what is asked, what comes out, what is counted."""

from __future__ import annotations

import threading

import pytest

from engine.api import Cancel
from engine.events import Cancelled, Failed, FailKind, Finished, Terminal, Timings, Token, Usage
from engine.pipe.answer import Answer
from engine.pipe.conversation import Conversation
from engine.pipe_codec import Prompt, parse_line
from tests.unit.engine.pipe.interrupting import After


def talk_of(*lines: str) -> Conversation:
    talk = Conversation(1, None)
    say(talk, *(lines or ("READY 4096 stop",)))
    return talk


def batch() -> Conversation:
    return talk_of("INFO batch_slots=2", "READY 4096 stop")


def say(talk: Conversation, *lines: str) -> None:
    for line in lines:
        talk.feed(parse_line(line.encode()))


def asked(after: After | None, max_new: int = 8, ids: int = 3) -> Answer:
    return Answer(Prompt([1] * ids, max_new, {"seed": 4}), Cancel(), threading.Condition(), after)


def begin(talk: Conversation, answer: Answer) -> str:
    return talk.begin(answer).decode().rstrip("\n")


def again(talk: Conversation) -> str:
    """The command of the answer that goes on."""
    talk.settling = False
    assert talk.open()
    return begin(talk, talk.again.popleft())


def taken(answer: Answer) -> tuple[list[int], Terminal | None]:
    with answer.changed:
        events, ending = answer.take(0.0)
    return [event.id for event in events if isinstance(event, Token)], ending


def test_an_interrupted_answer_goes_on_from_all_that_came_and_what_was_put_in() -> None:
    talk, answer = talk_of(), asked(After(2))
    assert begin(talk, answer) == "GEN 8 seed=4 1,1,1"
    say(talk, "T 5")
    assert (answer.cut, talk.cut) == (False, None)
    say(talk, "T 6")
    assert talk.cut is answer
    say(talk, "T 7", "T 7", "DONE 4 3 1 2 cancel")
    assert (taken(answer), talk.front, list(talk.again)) == (([5, 6, 9, 9], None), None, [answer])
    assert again(talk) == "GEN 4 seed=4 1,1,1,5,6,9,9"
    say(talk, "T 8", "DONE 1 7 1 2 stop")
    assert taken(answer) == ([8], Finished("stop", Usage(3, 5)))


def test_its_second_part_is_before_all_others_and_in_the_same_slot() -> None:
    talk, answer = batch(), asked(After(3))
    assert begin(talk, answer) == "BGEN 0 8 seed=4 1,1,1"
    say(talk, "T 5", "DONE 1 3 1 0 length", "BADM 0 1", "BT 0 5", "BT 0 5")
    assert talk.cut is answer
    begin(talk, asked(None))  # its admission is going on in the other slot
    say(talk, "BT 0 5", "BDONE 0 4 cancel 6")
    assert not talk.open()
    say(talk, "T 8", "DONE 1 3 1 0 stop", "BADM 1 0")
    assert (talk.open(), talk.free()) == (True, False)
    assert again(talk) == "BGEN 0 3 seed=4 1,1,1,5,5,5,9,9"
    assert not talk.free()
    say(talk, "T 7", "DONE 1 8 1 1 stop", "BADM 0 0")
    assert taken(answer) == ([5, 5, 5, 9, 9, 7], Finished("stop", Usage(3, 6)))
    assert talk.free()


@pytest.mark.parametrize("finish", ["cancel", "stop", "length"])
def test_however_the_engine_ends_the_part_that_was_cut_the_answer_goes_on(finish: str) -> None:
    talk, answer = talk_of(), asked(After(1), max_new=6)
    begin(talk, answer)
    say(talk, "T 5", "T 6", f"DONE 2 3 0 0 {finish}")
    assert again(talk) == "GEN 3 seed=4 1,1,1,5,9,9"


def test_an_answer_that_ends_before_it_is_interrupted_is_whole() -> None:
    talk, answer = talk_of(), asked(After(5))
    begin(talk, answer)
    say(talk, "T 5", "DONE 1 3 0 0 stop")
    assert taken(answer) == ([5], Finished("stop", Usage(3, 1)))
    assert not talk.again


@pytest.mark.parametrize(
    ("max_new", "context", "goes_in"), [(5, 4096, True), (4, 4096, False), (9, 8, True), (9, 7, False)]
)
def test_what_leaves_no_room_for_one_token_more_does_not_go_in(max_new: int, context: int, goes_in: bool) -> None:
    talk, answer = talk_of(f"READY {context} stop"), asked(After(2), max_new)
    begin(talk, answer)
    say(talk, "T 5", "T 6", "T 7")
    assert (answer.cut, talk.cut is answer) == (goes_in, goes_in)
    assert taken(answer)[0] == ([5, 6, 9, 9] if goes_in else [5, 6, 7])
    say(talk, "DONE 3 3 0 0 length")
    assert bool(talk.again) is goes_in
    if not goes_in:
        assert taken(answer)[1] == Finished("length", Usage(3, 3))


# --- an engine that cannot be stopped ----------------------------------------------------------------


def test_an_engine_that_cannot_stop_is_asked_for_no_more_than_may_be_kept() -> None:
    talk, answer = talk_of("READY 4096"), asked(After(2, within=3), max_new=100)
    assert begin(talk, answer) == "GEN 3 seed=4 1,1,1"
    say(talk, "T 5", "T 6", "T 7", "DONE 3 3 0 0 length")
    assert again(talk) == "GEN 96 seed=4 1,1,1,5,6,9,9"
    assert begin(talk_of("READY 4096"), asked(None, max_new=100)) == "GEN 100 seed=4 1,1,1"


def test_what_it_was_asked_for_too_little_is_asked_for_where_nothing_went_in() -> None:
    talk, answer = talk_of("READY 4096"), asked(After(9, within=2), max_new=4)
    assert begin(talk, answer) == "GEN 2 seed=4 1,1,1"
    say(talk, "T 5", "T 6", "DONE 2 3 0 0 length")
    assert taken(answer) == ([5, 6], None)
    assert again(talk) == "GEN 2 seed=4 1,1,1,5,6"
    say(talk, "T 7", "T 8", "DONE 2 5 0 0 length")
    assert taken(answer) == ([7, 8], Finished("length", Usage(3, 4)))


def test_an_answer_that_ends_by_itself_within_that_is_whole() -> None:
    talk, answer = talk_of("READY 4096"), asked(After(9, within=2), max_new=4)
    begin(talk, answer)
    say(talk, "T 5", "DONE 1 3 0 0 stop")
    assert taken(answer) == ([5], Finished("stop", Usage(3, 1)))


# --- how it ends badly -------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["while it is stopped", "while it waits", "in its second part"])
def test_a_life_that_ends_takes_an_interrupted_answer_with_it(when: str) -> None:
    talk, answer = talk_of(), asked(After(1))
    begin(talk, answer)
    say(talk, "T 5")
    if when != "while it is stopped":
        say(talk, "DONE 1 3 0 0 cancel")
    if when == "in its second part":
        again(talk)
        say(talk, "T 6")
    assert list(talk.running()) == talk.drop_all() == [answer]
    assert not list(talk.running())
    answer.fail(FailKind.DIED, "gone")
    assert taken(answer)[1] == Failed(FailKind.DIED, "gone", Usage(3, 4 if when == "in its second part" else 3))


@pytest.mark.parametrize("how", ["left", "cancelled"])
def test_an_answer_that_nobody_wants_any_more_does_not_go_on(how: str) -> None:
    talk, answer = batch(), asked(After(1))
    begin(talk, answer)
    say(talk, "T 5")
    if how == "left":
        answer.leave()
    else:
        answer.cancel.cancel("operator")
    say(talk, "DONE 1 3 0 0 cancel", "BADM 0 0")
    assert not talk.again
    assert isinstance(answer.ending, Cancelled)
    assert len({talk.begin(asked(None)).split()[1] for _ in range(2)}) == 2  # both slots are free


def test_one_that_is_forgotten_while_it_waits_gives_its_slot_back() -> None:
    talk, answer = batch(), asked(After(1))
    begin(talk, answer)
    say(talk, "T 5", "DONE 1 3 0 0 cancel", "BADM 0 0")
    assert talk.forget(answer)
    assert not talk.forget(answer)
    assert talk.free()
    assert {talk.begin(asked(None)).split()[1] for _ in range(2)} == {b"0", b"1"}


def test_a_refused_second_part_is_an_error_in_mid_answer() -> None:
    talk, answer = talk_of(), asked(After(1))
    begin(talk, answer)
    say(talk, "T 5", "DONE 1 3 0 0 cancel")
    again(talk)
    say(talk, "ERR prompt exceeds context")
    talk.settle_err()
    ending = taken(answer)[1]
    assert isinstance(ending, Failed)
    assert (ending.kind, ending.usage) == (FailKind.ERR, Usage(3, 3))


# --- counts and the clock ----------------------------------------------------------------------------


def timings(answer: Answer) -> Timings:
    ending = taken(answer)[1]
    assert isinstance(ending, Finished)
    assert ending.usage is not None
    assert ending.usage.timings is not None
    return ending.usage.timings


def test_the_clock_of_an_answer_in_one_piece() -> None:
    talk, answer = talk_of(), asked(None)
    begin(talk, answer)
    say(talk, "REUSED 2", "T 5", "T 6", "DONE 2 3 10.5 20 stop 1 4 2 0 0 0 0 0.0 1")
    assert timings(answer) == Timings(1, 10.5, 2, 20.0, cached_tokens=2, drafted=4, drafts_accepted=1)


def test_cached_tokens_that_only_done_tells_count() -> None:
    talk, answer = talk_of(), asked(None)
    begin(talk, answer)
    say(talk, "T 5", "DONE 1 3 1 2 stop 0 0 2")
    ending = taken(answer)[1]
    assert isinstance(ending, Finished)
    assert ending.usage == Usage(3, 1, cached_tokens=2)


def test_the_clock_in_a_slot_is_the_admissions_and_the_slots() -> None:
    talk, answer = batch(), asked(None)
    begin(talk, answer)
    say(talk, "T 5", "DONE 1 3 10 1 length", "BADM 0 1", "BT 0 6", "BDONE 0 2 stop 20")
    assert timings(answer) == Timings(3, 10.0, 2, 20.0)


def test_the_second_parts_prompt_is_neither_the_clients_nor_cached_but_takes_time() -> None:
    talk, answer = talk_of(), asked(After(1))
    begin(talk, answer)
    say(talk, "REUSED 1", "T 5", "DONE 1 3 10 2 cancel 0 0 1")
    again(talk)
    say(talk, "REUSED 4", "T 6", "DONE 1 6 3 4 stop 0 0 4")
    ending = answer.ending
    assert isinstance(ending, Finished)
    assert ending.usage == Usage(3, 4, cached_tokens=1)
    assert timings(answer) == Timings(2, 10.0, 4, 9.0, cached_tokens=1)
