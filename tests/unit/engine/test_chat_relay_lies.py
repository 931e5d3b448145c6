"""Streams that lie about their end: what came before stays readable, no success word is said that is not true."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.events import (
    Event,
    Failed,
    FailKind,
    Finished,
    Passed,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    UpstreamError,
    Usage,
)
from tests.scripted_upstream import DONE, delta, event
from tests.unit.engine.passing_shapes import IDENTITY, Shape, chunk, on_the_wire, passed, pieces_of, read, relay
from tests.unit.engine.wire_shapes import BROKEN, ERRORS, HELLO, WHOLE, chunks, tool

HEAD: dict[str, Any] = {"id": "c9", "object": "chat.completion.chunk", "created": 1, "model": "m"}
SAID = chunks(*HELLO)
STOP = chunks(delta("stop"))


def words_of(events: list[Event], index: int = 0) -> list[str]:
    """The finish words that went out for a choice."""
    found: list[str] = []
    for event_ in events:
        if isinstance(event_, Passed):
            for block in event_.raw.decode().split("\n\n")[:-1]:
                choices = json.loads(block.removeprefix("data: "))["choices"]
                found += [one["finish_reason"] for one in choices if one["index"] == index and one["finish_reason"]]
    return found


def failure(events: list[Event]) -> Failed:
    assert isinstance(events[-1], Failed), events[-1]
    return events[-1]


# --- like the reader ----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("after", ["done", "nothing", "finish and done"])
@pytest.mark.parametrize("form", ERRORS)
def test_an_error_is_a_failure_with_its_message_and_what_came_before_it_is_out(
    form: str, before: int, after: str
) -> None:
    data, type_, code = ERRORS[form]
    data = chunks(*HELLO[:before]) + data
    if after != "nothing":
        data += (b"\n" if not data.endswith(b"\n") else b"") + (STOP if "finish" in after else b"") + DONE
    for size in (1, 1 << 20):
        events = passed([data[i : i + size] for i in range(0, len(data), size)], relay(pieces=True))
        assert pieces_of(events) == [Text("Hel"), Text("lo")][: max(before - 1, 0)]
        assert b"".join(e.raw for e in events if isinstance(e, Passed)).startswith(chunks(*HELLO[:before]))
        assert words_of(events) == []
        assert events[-1] == Failed(
            FailKind.DIED,
            "the upstream failed: out of memory",
            Usage(0, max(before - 1, 0)),
            UpstreamError(200, type_, code),
        )


@pytest.mark.parametrize("marker", [b"", DONE])
@pytest.mark.parametrize("form", ERRORS)
def test_an_error_after_the_finish_word_or_the_end_marker_is_a_failure_and_the_word_was_not_said(
    form: str, marker: bytes
) -> None:
    for one_read in (True, False):
        data = [SAID + STOP + marker, ERRORS[form][0]]
        events = passed([b"".join(data)] if one_read else data, relay())
        assert failure(events).message == "the upstream failed: out of memory"
        assert words_of(events) == []


def test_an_odd_line_is_told_at_once() -> None:
    for form in ("raw json line", "error field with text", "event named error"):
        through = relay()
        assert isinstance(through.feed(SAID + ERRORS[form][0])[0][-1], Failed), form


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("form", ["stream", "whole"])
def test_a_broken_stream_fails_as_it_does_for_a_reader(name: str, form: str) -> None:
    data, kind, message = BROKEN[name]
    for size in (1, 1 << 20):
        events = passed([data[i : i + size] for i in range(0, len(data), size)], relay(pieces=True, form=form))
        failed = failure(events)
        assert failed == read(data)[-1]
        assert failed.kind is kind
        assert message in failed.message
        assert words_of(events) == []
        assert pieces_of(events) == [item for item in read(data)[:-1] if type(item).__name__ != "Progress"]


@pytest.mark.parametrize("ending", [b"", DONE])
@pytest.mark.parametrize("name", ["stop", "tool call", "reasoning", "length"])
def test_a_clean_end_at_any_event_is_finished_only_after_the_finish_word(name: str, ending: bytes) -> None:
    data = WHOLE[name][0]
    finish_at = data.index(b"\n\n", data.index(b'"finish_reason": "')) + 2
    at = 0
    while (at := data.find(b"\n\n", at) + 2) < finish_at:
        failed = failure(passed([data[:at] + ending], relay()))
        assert failed.kind is FailKind.DIED
        assert "without a finish_reason" in failed.message
    assert isinstance(passed([data[:finish_at] + ending], relay())[-1], Finished)


def test_a_page_is_no_answer_and_its_words_are_told() -> None:
    for page in (b"<html><body>502 Bad Gateway</body></html>", b"\xef\xbb\xbf<html>\n502 Bad Gateway\n</html>\n\n"):
        failed = failure(passed([page], relay()))
        assert failed.message == ("the upstream ended the stream without a finish_reason; it wrote: '502 Bad Gateway'")


# --- what is held -------------------------------------------------------------------------------------

WORDED = chunk({"content": "lo"}, "stop", head=HEAD, usage={"prompt_tokens": 1, "completion_tokens": 2})


def test_text_in_the_last_chunk_is_not_lost_where_the_ending_is_not_true() -> None:
    events = passed([SAID + WORDED, event({"error": "late"})], relay(pieces=True))
    held = b"".join(item.held for item in events if isinstance(item, Passed))
    value = json.loads(held.removeprefix(b"data: "))
    assert value == {
        **HEAD,
        "id": "chatcmpl-1",
        "choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": None}],
    }
    assert pieces_of(events)[-1] == Text("lo")
    assert isinstance(events[-1], Failed)


def test_the_last_chunk_goes_out_as_it_came_where_it_is_true() -> None:
    first = chunk({"role": "assistant"}, head=HEAD)
    events = passed([first + WORDED + DONE], relay())
    assert [item.raw for item in events if isinstance(item, Passed | Finished)] == [first, WORDED + DONE]


@pytest.mark.parametrize("word", ["abort", "error"])
def test_text_beside_a_word_that_nobody_knows_goes_out_without_it(word: str) -> None:
    events = passed([chunk({"role": "assistant", "content": "x"}, word, head=HEAD) + DONE], relay())
    assert words_of(events) == []
    assert b'"content": "x"' in events[0].raw  # type: ignore[union-attr] - it passed
    assert isinstance(events[-1], Failed)


def test_text_beside_an_error_goes_out_without_it() -> None:
    for value in (
        delta("error", content="x") | {"error": "bad"},
        {"choices": [{"error": "bad", "delta": {"content": "x"}}]},
    ):
        events = passed([SAID + event(value) + DONE], relay(pieces=True))
        assert pieces_of(events)[-1] == Text("x")
        assert b'"x"' in b"".join(e.raw for e in events if isinstance(e, Passed))
        assert b"bad" not in b"".join(e.raw for e in events if isinstance(e, Passed))
        assert words_of(events) == []
        assert failure(events).message == "the upstream failed: bad"


def test_text_in_a_chunk_that_is_damaged_besides_is_not_lost() -> None:
    data = SAID + event({"choices": [{"delta": {"content": "x"}, "finish_reason": 7}]})
    events = passed([data], relay())
    assert events[-2] == Text("x"), "to be written anew"
    assert failure(events).kind is FailKind.PROTOCOL


@pytest.mark.parametrize("second", ["stop", "tool_calls"])
def test_a_finish_that_is_said_twice_goes_out_once(second: str) -> None:
    calls = second == "tool_calls"
    said = chunks(delta(role="assistant", tool_calls=[tool("{}", "f")])) if calls else SAID
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    data = said + chunks(delta("stop")) + chunks(delta(second, content="") | {"usage": usage}, delta(second)) + DONE
    terminal = passed([data], relay())[-1]
    assert isinstance(terminal, Finished)
    blocks = [json.loads(one.removeprefix("data: ")) for one in terminal.raw.decode().split("\n\n")[:-2]]
    assert [choice["finish_reason"] for one in blocks for choice in one["choices"]] == [second]
    assert [one["usage"] for one in blocks if one["choices"] == []] == [usage]
    assert terminal.reason == second


def test_a_second_finish_that_contradicts_is_a_failure() -> None:
    events = passed([SAID + chunks(delta("length"), delta("stop")) + DONE], relay())
    assert "finish_reason 'length' and then 'stop'" in failure(events).message
    assert words_of(events) == []


# --- several choices ----------------------------------------------------------------------------------

ONE, TWO = Shape(b""), Shape(b"", choices=2)
BOTH = b"".join(chunk({"role": "assistant", "content": "ab"[i]}, head=HEAD, index=i) for i in (0, 1))


def last(word: str | None, index: int, **fields: object) -> bytes:
    return chunk(fields, word, head=HEAD, index=index)


def closed_in(events: list[Event]) -> list[int]:
    return [index for item in events if isinstance(item, Passed) for index in item.finished]


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("ending", [b"", DONE])
def test_a_choice_without_an_end_fails_and_the_other_keeps_its_own(missing: int, ending: bytes) -> None:
    other = 1 - missing
    events = passed([BOTH + last("stop", other) + ending], relay(TWO))
    assert words_of(events, other) == ["stop"]
    assert words_of(events, missing) == []
    assert closed_in(events) == [other]
    name = "the upstream" + (" (choice 1)" if missing else "")
    assert failure(events) == Failed(FailKind.DIED, f"{name} ended the stream without a finish_reason", Usage(0, 2))


def test_a_server_that_makes_one_choice_whatever_is_asked_for_lies_about_nothing() -> None:
    data = chunks(*HELLO, delta("stop")) + DONE
    events = passed([data], relay(TWO))
    assert on_the_wire(events) == data
    failed = passed([chunks(*HELLO, delta("stop"))], relay(TWO))[-1]
    assert isinstance(failed, Failed), "it did not say that this is all"
    assert isinstance(passed([data, event({"error": "late"})], relay(TWO))[-1], Failed)
    other = b"".join(last(word, 1) for word in (None, "stop")) + DONE
    assert isinstance(passed([other], relay(TWO))[-1], Failed), "the first one is missing"
    for form in ("stream", "whole"):
        assert isinstance(whole(COMPLETION, TWO, form=form)[-1], Finished)
    raw = json.dumps(COMPLETION).encode()
    assert whole(raw, TWO, form="whole")[-1].raw == raw  # type: ignore[union-attr] - finished


def test_the_end_of_the_last_choice_is_held_until_the_end() -> None:
    through = relay(TWO)
    assert closed_in(through.feed(BOTH + last("stop", 0))[0]) == [0]
    assert not through.finish_seen
    assert through.feed(last("length", 1)) == ([], True)
    assert through.finish_seen
    assert through.feed(DONE) == ([], True)
    (end,) = through.end()
    assert isinstance(end, Finished)
    assert (end.raw, end.usage) == (last("length", 1) + DONE, Usage(0, 2))


def test_an_error_after_all_choices_ended_leaves_one_to_tell_it() -> None:
    events = passed([BOTH + last("stop", 1) + last("stop", 0) + DONE + event({"error": "late"})], relay(TWO))
    assert (closed_in(events), words_of(events, 0)) == ([1], [])
    assert failure(events).message == "the upstream failed: late"


@pytest.mark.parametrize("first", [0, 1])
def test_a_choice_with_cut_arguments_is_never_closed_with_a_success(first: int) -> None:
    call = tool('{"a": ', "f")
    data = BOTH + last(None, first, tool_calls=[call]) + last("tool_calls", first) + last("stop", 1 - first) + DONE
    events = passed([data], relay(TWO))
    assert (words_of(events, first), closed_in(events)) == ([], [1 - first])
    assert failure(events).kind is FailKind.TOOL_CALL
    assert "not JSON" in failure(events).message


def test_a_choice_with_an_unknown_word_and_its_text() -> None:
    events = passed([BOTH + last("abort", 1, content="x") + last("stop", 0) + DONE], relay(TWO))
    assert b'"content": "x"' in b"".join(e.raw for e in events if isinstance(e, Passed))
    assert (words_of(events, 1), words_of(events, 0)) == ([], ["stop"])
    assert failure(events).message == "unknown finish word 'abort'"


def test_both_ends_in_one_chunk() -> None:
    ends: list[Any] = [{"index": i, "delta": {}, "finish_reason": "stop"} for i in (0, 1)]
    value = {**HEAD, "choices": ends}
    terminal = passed([BOTH + event(value) + DONE], relay(TWO))[-1]
    assert isinstance(terminal, Finished)
    assert terminal.raw == event(value) + DONE


def test_two_deltas_of_one_choice_in_a_chunk_are_both_told() -> None:
    value = {**HEAD, "choices": [{"index": 0, "delta": {"content": c}, "finish_reason": None} for c in "xy"]}
    events = passed([BOTH + event(value) + last("stop", 0) + last("stop", 1) + DONE], relay(TWO, pieces=True))
    assert pieces_of(events) == [Text("a"), Text("x"), Text("y")]
    assert isinstance(events[-1], Finished)


def test_choices_that_nobody_asked_for_do_not_go_out() -> None:
    data = SAID + last(None, 1, content="no") + chunks(delta("stop")) + DONE
    events = passed([data], relay())
    assert isinstance(events[-1], Finished)
    assert b'"no"' not in b"".join(e.raw for e in events if isinstance(e, Passed))


def test_the_usage_of_several_choices_is_all_of_it() -> None:
    for end in (last("stop", 0) + last("stop", 1), b""):
        terminal = passed([BOTH + last(None, 1, content="c") + end], relay(TWO))[-1]
        assert terminal.usage == Usage(0, 3)  # type: ignore[union-attr] - a terminal
    told = chunk(None, head=HEAD, usage={"prompt_tokens": 4, "completion_tokens": 9})
    terminal = passed([BOTH + last("stop", 0) + last("stop", 1) + told], relay(TWO))[-1]
    assert terminal.usage == Usage(4, 9)  # type: ignore[union-attr] - a terminal


def test_two_choices_that_are_cut_fail_with_how() -> None:
    events = passed([BOTH + last("stop", 0)], relay(TWO), cut=True)
    assert failure(events).message == "cut"
    events = passed([BOTH + last("stop", 0) + last("length", 1)], relay(TWO), cut=True)
    assert isinstance(events[-1], Finished)


# --- whole bodies from servers that ignore `stream` ---------------------------------------------------

COMPLETION: dict[str, Any] = {
    "id": "c9",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "x", "odd": 1},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    "odd": [1],
}


def whole(value: Any, shape: Shape = ONE, **options: Any) -> list[Event]:
    body = value if isinstance(value, bytes) else json.dumps(value, indent=1).encode()
    return relay(shape, **options).whole(body)


def changed(**changes: Any) -> dict[str, Any]:
    return {**COMPLETION, "choices": [{**COMPLETION["choices"][0], **changes}]}


def test_a_whole_body_is_passed_as_it_is_to_who_wants_one() -> None:
    body = json.dumps(COMPLETION, indent=3).encode()
    for given in (body, b"\xef\xbb\xbf" + body):
        assert whole(given, form="whole") == [Text("x"), Finished("stop", Usage(3, 2), raw=body)]


def test_a_whole_body_becomes_a_stream_for_who_wants_one() -> None:
    told, terminal = whole(COMPLETION, pieces=True)
    assert isinstance(told, Passed)
    assert (told.raw, told.pieces) == (b"", (Text("x"),))
    assert isinstance(terminal, Finished)
    first, done = terminal.raw.decode().split("\n\n")[:-1]
    assert done == "data: [DONE]"
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": "x", "odd": 1},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert json.loads(first[6:]) == {**COMPLETION, "object": "chat.completion.chunk", "choices": [choice]}


def test_the_counts_of_a_whole_body_have_a_chunk_of_their_own_where_a_stream_asks_for_them() -> None:
    terminal = whole(COMPLETION, usage=True)[-1]
    assert isinstance(terminal, Finished)
    first, usage = [json.loads(one[6:]) for one in terminal.raw.decode().split("\n\n")[:-2]]
    assert (first["usage"], usage["usage"], usage["choices"]) == (None, COMPLETION["usage"], [])


MENDED: dict[str, tuple[Any, dict[str, Any]]] = {
    "no id": ({**COMPLETION, "id": None}, {"id": IDENTITY.id}),
    "no usage": ({**COMPLETION, "usage": None}, {}),
    "no role": (changed(message={"content": "x", "odd": 1}), {}),
    "no index": (changed(index=None), {}),
    "wrong object": ({**COMPLETION, "object": "text_completion"}, {}),
    "no created": ({**COMPLETION, "created": "now"}, {"created": IDENTITY.created}),
}


@pytest.mark.parametrize("name", MENDED)
def test_a_whole_body_is_put_right_and_keeps_its_other_members(name: str) -> None:
    given, changes = MENDED[name]
    terminal = whole(given, form="whole")[-1]
    assert isinstance(terminal, Finished)
    body = json.loads(terminal.raw)
    if name == "no usage":
        assert body.pop("usage")["completion_tokens"] == 1
        body["usage"] = COMPLETION["usage"]
    body["choices"][0]["message"].pop("refusal")
    assert body == COMPLETION | changes


def test_what_strict_readers_refuse_in_a_whole_body_is_put_right() -> None:
    raw = json.dumps(changed(message={"role": "assistant", "content": "|"})).encode()
    for given, expected in ((b"a\xff", "a\ufffd"), (b"a\\ud83d", "a\ufffd"), (b"a\x1b", "a\x1b")):
        terminal = whole(raw.replace(b"|", given), form="whole")[-1]
        assert isinstance(terminal, Finished)
        assert json.loads(terminal.raw)["choices"][0]["message"]["content"] == expected


CALL = {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def calling(*calls: Any, word: str = "tool_calls") -> dict[str, Any]:
    return changed(message={"role": "assistant", "content": None, "tool_calls": list(calls)}, finish_reason=word)


def test_calls_of_a_whole_body_pass_and_get_what_they_lack() -> None:
    raw = json.dumps(calling(CALL)).encode()
    assert whole(raw, form="whole")[-1].raw == raw  # type: ignore[union-attr] - finished
    same = {**CALL, "function": {"name": "f", "arguments": {"a": 1}}}
    terminal = whole(calling(CALL, same, {"function": {"name": "g", "arguments": "{}"}}, word="stop"), form="whole")[-1]
    assert isinstance(terminal, Finished)
    (choice,) = json.loads(terminal.raw)["choices"]
    assert choice["finish_reason"] == terminal.reason == "tool_calls"
    assert choice["message"]["tool_calls"] == [
        CALL,
        {"id": "call_new0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "call_new1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


CUT_CALL = {**CALL, "function": {"name": "f", "arguments": "{"}}
WHOLE_LIES: dict[str, tuple[Any, FailKind, str]] = {
    "no json": (b"<html>", FailKind.PROTOCOL, "not JSON"),
    "cut": (json.dumps(COMPLETION).encode()[:-9], FailKind.PROTOCOL, "not JSON"),
    "a list": ([COMPLETION], FailKind.PROTOCOL, "not a JSON object"),
    "nested without end": (b'{"a":' * 100_000, FailKind.PROTOCOL, "not JSON"),
    "empty": (b"", FailKind.PROTOCOL, "not JSON"),
    "an error": ({"error": {"message": "bad"}}, FailKind.DIED, "the upstream failed: bad"),
    "an error beside the choices": ({**COMPLETION, "error": "bad"}, FailKind.DIED, "the upstream failed: bad"),
    "no choices": ({**COMPLETION, "choices": []}, FailKind.DIED, "without a finish_reason"),
    "no finish": (changed(finish_reason=None), FailKind.DIED, "without a finish_reason"),
    "unknown word": (changed(finish_reason="abort"), FailKind.PROTOCOL, "unknown finish word 'abort'"),
    "error as word": (changed(finish_reason="error"), FailKind.DIED, "finish_reason 'error'"),
    "cut arguments": (
        calling(CUT_CALL), FailKind.TOOL_CALL, "are not JSON"),
    "stop over cut arguments": (
        calling(CUT_CALL, word="stop"), FailKind.TOOL_CALL, "are not JSON"),
    "no call": (calling(), FailKind.PROTOCOL, "without a tool call"),
}  # fmt: skip


@pytest.mark.parametrize("form", ["stream", "whole"])
@pytest.mark.parametrize("name", WHOLE_LIES)
def test_a_whole_body_that_lies_is_a_failure(name: str, form: str) -> None:
    given, kind, message = WHOLE_LIES[name]
    events = whole(given, form=form, pieces=True)
    failed = failure(events)
    assert failed.kind is kind
    assert message in failed.message
    assert words_of(events) == []
    if name in ("no finish", "unknown word", "error as word", "an error beside the choices"):
        assert pieces_of(events) == [Text("x")]


def test_one_of_two_choices_of_a_whole_body_that_has_no_end() -> None:
    second = {**COMPLETION["choices"][0], "index": 1, "finish_reason": None}
    for form in ("stream", "whole"):
        given = {**COMPLETION, "choices": [*COMPLETION["choices"], second]}
        events = whole(given, TWO, form=form)
        assert failure(events).message == "the upstream (choice 1) ended the stream without a finish_reason"
        if form == "stream":
            assert (words_of(events, 0), closed_in(events)) == (["stop"], [0])
    given = {**COMPLETION, "choices": [*COMPLETION["choices"], {**second, "finish_reason": "length"}]}
    raw = json.dumps(given).encode()
    assert whole(raw, TWO, form="whole")[-1].raw == raw  # type: ignore[union-attr] - finished


def test_arguments_are_not_lost_in_a_failure() -> None:
    events = passed([chunks(delta(role="assistant", tool_calls=[tool('{"a', "f")]))], relay())
    assert ToolCallArgs(0, '{"a') in pieces_of(events)
    assert failure(events).kind is FailKind.DIED


BEGUN = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "f"}}
BARE = chunks(delta(role="assistant"), delta(tool_calls=[BEGUN]))


@pytest.mark.parametrize("more", [b"", chunks(delta(tool_calls=[tool('{"a')]))], ids=["nothing", "cut arguments"])
@pytest.mark.parametrize("word", ["", "stop", "tool_calls", "length"])
def test_a_call_that_began_without_arguments_passes_at_once_and_is_never_called_whole(word: str, more: bytes) -> None:
    shape = Shape(b"", tools=("f",))
    through = relay(shape)
    assert through.feed(BARE)[0] == [Passed(BARE)]
    for form in ("stream", "whole"):
        said = [BARE, more, chunks(delta(word)) + DONE if word else DONE]
        events = passed(said, relay(shape, form=form))
        if word == "length":
            assert isinstance(events[-1], Finished)
            assert events[-1].reason == "length"
            assert not any(isinstance(piece, ToolCallEnd) for piece in pieces_of(events))
            if form == "whole":
                (call,) = json.loads(events[-1].raw)["choices"][0]["message"]["tool_calls"]
                assert call["function"] == {"name": "f", "arguments": '{"a' if more else ""}
        else:
            assert failure(events).kind is (FailKind.TOOL_CALL if word else FailKind.DIED)
            assert words_of(events) == []
