"""The checker of chat streams finds what it is there for: each rule is broken once, in a stream that is whole."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.e2e.frames import read_frames
from tests.e2e.grammar import ChatWalk, Ending, check_chat_stream, check_choices
from tests.unit.chat_streams import DONE, ERROR, USAGE, Change, Events, Json, answer, append, drop, insert, put

HEAD: Json = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "m"}


def chunk(delta: Json, word: str | None = None, index: int = 0, **more: Any) -> Json:
    return {**HEAD, "choices": [{"index": index, "delta": delta, "finish_reason": word}], **more}


def call(index: int, arguments: str, id_: str | None = None, name: str | None = None) -> Json:
    made: Json = {"index": index, "function": {"arguments": arguments}}
    if id_ is not None:
        made |= {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [made]}


FIRST = chunk({"role": "assistant", "content": ""})
CLOSING = chunk({}, "error", error=ERROR)
COUNTS: Json = {**HEAD, "choices": [], "usage": USAGE}
TEXT: Events = [FIRST, chunk({"reasoning_content": "hm"}), chunk({"content": "Hi"}), chunk({}, "stop"), DONE]
CALLS: Events = [
    FIRST,
    chunk(call(0, "", "a", "f")),
    chunk(call(0, '{"a":')),
    chunk(call(0, "1}")),
    chunk(call(1, "", "b", "f")),
    chunk(call(1, "{}")),
    chunk({}, "tool_calls"),
    DONE,
]
FAILED: Events = [FIRST, chunk({"content": "Hi"}), {"error": ERROR}, {**CLOSING, "usage": USAGE}, DONE]
COUNTED: Events = [*({**one, "usage": None} for one in TEXT[:-1]), COUNTS, DONE]
FAILED_COUNTED: Events = [
    *({**one, "usage": None} for one in FAILED[:2]), {"error": ERROR}, {**CLOSING, "usage": None}, COUNTS, DONE,
]  # fmt: skip
TWO: Events = [
    *(chunk({"role": "assistant", "content": ""}, index=i) for i in (0, 1)),
    chunk({"content": "a"}, index=1),
    chunk({}, "length", index=1),
    {"error": ERROR},
    CLOSING,
    DONE,
]
STREAMS: dict[str, Events] = {
    "text": TEXT, "calls": CALLS, "failed": FAILED, "counted": COUNTED, "failed counted": FAILED_COUNTED, "two": TWO,
}  # fmt: skip
COUNTS_ASKED = {"counted", "failed counted"}


def read(events: Events, count: int = 1, *, counted: bool | None = False, ours: bool = True) -> list[Ending]:
    """As a stream that is made here."""
    walk = ChatWalk(count, ours=ours, counted=counted)
    for event in read_frames(answer(events).body):
        walk.feed(event)
    return walk.end()


def test_whole_streams_say_what_they_said() -> None:
    text = check_chat_stream(answer(TEXT))
    assert (text.content, text.reasoning, text.finish_reason, text.error, text.usage) == (
        "Hi",
        "hm",
        "stop",
        None,
        None,
    )
    calls = check_chat_stream(answer(CALLS)).calls
    assert calls == [{"id": "a", "name": "f", "arguments": '{"a":1}'}, {"id": "b", "name": "f", "arguments": "{}"}]
    failed = check_chat_stream(answer(FAILED))
    assert (failed.content, failed.finish_reason, failed.error, failed.usage) == ("Hi", "error", ERROR, USAGE)
    assert check_chat_stream(answer(COUNTED)).usage == USAGE
    assert [(one.finish_reason, one.error) for one in check_choices(answer(TWO), 2)] == [
        ("error", ERROR),
        ("length", None),
    ]


@pytest.mark.parametrize("name", STREAMS)
def test_whole_streams_and_all_their_beginnings_pass(name: str) -> None:
    events, counted = STREAMS[name], name in COUNTS_ASKED
    endings = read(events, 2 if name == "two" else 1, counted=counted)
    body = answer(events).body
    for cut in range(len(body)):
        walk = ChatWalk(len(endings), ours=True, counted=counted)
        for event in read_frames(body[:cut], whole=False):
            walk.feed(event)
        assert walk.closed == (cut == len(body))
        with pytest.raises(AssertionError):
            walk.end()


BREAKS: list[tuple[str, str, Change]] = [
    # the end
    ("text", "no .DONE. at the end", drop(-1)),
    ("text", "after .DONE.", append(DONE)),
    ("text", "after .DONE.", append(TEXT[2])),
    ("text", "choices .0. are closed", drop(-2)),
    ("text", "after its finish_reason", insert(-1, TEXT[2])),
    ("text", "after its finish_reason", insert(-1, TEXT[3])),
    ("text", "home-made", put(-2, "choices", 0, "finish_reason", to="eos")),
    ("text", "no integer", put(-2, "choices", 0, "index", to="0")),
    ("text", "nobody asked for", put(-2, "choices", 0, "index", to=1)),
    # heads
    *[("text", "lacks", drop(1, key)) for key in (*HEAD, "choices") if key != "choices"],
    *[("text", "lacks", drop(1, "choices", 0, key)) for key in ("index", "delta", "finish_reason")],
    ("text", "different streams", put(2, "id", to="chatcmpl-2")),
    ("text", "different streams", put(2, "model", to="n")),
    ("text", "another object", put(0, "object", to="chat.completion")),
    ("text", "says nothing", put(0, "id", to="")),
    ("text", "says nothing", put(0, "model", to=None)),
    ("text", "created that is no integer", put(0, "created", to=5.5)),
    ("text", "in the past", put(2, "created", to=4)),
    ("text", "created that changes", put(2, "created", to=6)),
    ("text", "neither a chunk nor an error", drop(1, "choices")),
    ("text", "no list", put(1, "choices", to={})),
    ("text", "with more", put(1, "odd", to=1)),
    ("text", "with more", put(1, "choices", 0, "odd", to=1)),
    ("text", "with more", put(1, "choices", 0, "delta", "odd", to=1)),
    ("text", "several choices", put(1, "choices", to=[TEXT[1]["choices"][0]] * 2)),
    # deltas
    ("text", "without the role", drop(0)),
    ("text", "without the role", put(0, "choices", 0, "delta", "role", to="user")),
    ("text", "the role again", put(2, "choices", 0, "delta", "role", to="assistant")),
    ("text", "content that is no string", put(2, "choices", 0, "delta", "content", to=["Hi"])),
    ("text", "delta that is no object", put(2, "choices", 0, "delta", to=None)),
    ("text", "closing chunk that says more", put(-2, "choices", 0, "delta", "content", to="!")),
    ("text", "half of a surrogate", put(2, "choices", 0, "delta", "content", to="\ud83d")),
    ("text", "NaN", put(2, "choices", 0, "logprobs", to={"content": [float("nan")]})),
    # calls
    ("calls", "tool_calls without a call", lambda events: events.__delitem__(slice(1, 6))),
    ("calls", "after 0 calls", put(1, "choices", 0, "delta", "tool_calls", 0, "index", to=1)),
    ("calls", "after 1 calls", put(4, "choices", 0, "delta", "tool_calls", 0, "index", to=2)),
    ("calls", "index that is no integer", put(1, "choices", 0, "delta", "tool_calls", 0, "index", to="0")),
    *[("calls", "lacks", drop(1, "choices", 0, "delta", "tool_calls", 0, key)) for key in ("id", "type", "function")],
    ("calls", "lacks", drop(1, "choices", 0, "delta", "tool_calls", 0, "function", "arguments")),
    ("calls", "empty, or another", put(4, "choices", 0, "delta", "tool_calls", 0, "id", to="a")),
    ("calls", "empty, or another", put(4, "choices", 0, "delta", "tool_calls", 0, "id", to="")),
    ("calls", "another type", put(1, "choices", 0, "delta", "tool_calls", 0, "type", to="custom")),
    ("calls", "without a name", put(1, "choices", 0, "delta", "tool_calls", 0, "function", "name", to="")),
    ("calls", "id again", put(2, "choices", 0, "delta", "tool_calls", 0, "id", to="a")),
    ("calls", "type again", put(2, "choices", 0, "delta", "tool_calls", 0, "type", to="function")),
    ("calls", "name again", put(2, "choices", 0, "delta", "tool_calls", 0, "function", "name", to="f")),
    ("calls", "arguments that are no string", put(2, "choices", 0, "delta", "tool_calls", 0, "function", to={
        "arguments": {}})),
    ("calls", "tool_calls that are no list", put(2, "choices", 0, "delta", "tool_calls", to={})),
    ("calls", "not JSON", drop(3)),
    ("calls", "not JSON", drop(5)),
    ("calls", "arguments that are no object", put(5, "choices", 0, "delta", "tool_calls", 0, "function", to={
        "arguments": "[]"})),
    ("calls", "NaN is not JSON", put(3, "choices", 0, "delta", "tool_calls", 0, "function", to={"arguments": "NaN}"})),
    # failures
    ("failed", "without an error before it", drop(2)),
    ("failed", "a second error", insert(2, {"error": ERROR})),
    ("failed", "closed", drop(3)),
    ("failed", "another error, or none", drop(3, "error")),
    ("failed", "another error, or none", put(3, "error", to={**ERROR, "message": "other"})),
    ("failed counted", "after its error", put(3, "choices", 0, "finish_reason", to="stop")),
    ("failed", "after its error", insert(3, FAILED[1])),
    ("failed", "a delta in the closing chunk|says more", put(3, "choices", 0, "delta", "content", to="")),
    *[("failed", "lacks", drop(2, "error", key)) for key in ERROR],
    ("failed", "with more", put(2, "error", "odd", to=1)),
    ("failed", "without a message", put(2, "error", "message", to=" ")),
    ("failed", "no string", put(2, "error", "message", to=None)),
    ("failed", "no string", put(2, "error", "code", to=500)),
    ("failed", "neither a chunk nor", put(2, "odd", to=1)),
    ("failed", "an error beside", put(1, "error", to=ERROR)),
    ("text", "an error after all", insert(-1, {"error": ERROR})),
    ("two", "choices .0. are closed", drop(5)),
    ("two", "after its finish_reason", insert(-1, {**chunk({}, "error", index=1), "error": ERROR})),
    # counts
    ("text", "nobody asked for", insert(-1, COUNTS)),
    ("text", "nobody asked for", put(2, "usage", to=USAGE)),
    ("text", "nobody asked for", put(2, "usage", to=None)),
    ("counted", "counts, which were asked for", drop(-2)),
    ("counted", "counts come last", insert(-1, COUNTED[2])),
    ("counted", "counts come last", insert(-1, COUNTS)),
    ("counted", "before the choices", insert(2, COUNTS)),
    ("counted", "without the usage member", drop(1, "usage")),
    ("counted", "come apart", put(1, "usage", to=USAGE)),
    ("counted", "says nothing", put(-2, "usage", to=None)),
    ("counted", "add up", put(-2, "usage", "total_tokens", to=8)),
    ("counted", "more cached_tokens", put(-2, "usage", "prompt_tokens_details", "cached_tokens", to=5)),
    ("counted", "more reasoning_tokens", put(-2, "usage", "completion_tokens_details", "reasoning_tokens", to=4)),
    ("counted", "no count", put(-2, "usage", "prompt_tokens", to=-4)),
    *[("counted", "lacks", drop(-2, "usage", key)) for key in ("prompt_tokens", "completion_tokens", "total_tokens")],
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "message", "change"), BREAKS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_broken_rule_is_found(name: str, message: str, change: Change) -> None:
    events = copy.deepcopy(STREAMS[name])
    change(events)
    assert events != STREAMS[name], "nothing was broken"
    with pytest.raises(AssertionError, match=message):
        read(events, 2 if name == "two" else 1, counted=name in COUNTS_ASKED)


PASSES: dict[str, Events] = {
    "the time of each chunk": [FIRST, {**TEXT[2], "created": 6}, {**TEXT[3], "created": 8}, DONE],
    "more members": [{**FIRST, "odd": 1}, {**TEXT[3], "prompt_token_ids": [1]}, DONE],
    "the role again": [FIRST, chunk({"role": "assistant", "content": "Hi"}), TEXT[3], DONE],
    "text with the word": [FIRST, chunk({"content": "Hi"}, "stop"), DONE],
    "a call without arguments at first": [
        FIRST,
        chunk({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f"}}]}),
        chunk(call(0, "{}")),
        chunk({}, "tool_calls"),
        DONE,
    ],
    "counts as they grow": [FIRST, {**TEXT[2], "usage": USAGE}, COUNTS, TEXT[3], COUNTS, DONE],
    "what is no text at first": [{**HEAD, "choices": [], "prompt_filter_results": []}, *TEXT],
}


@pytest.mark.parametrize("name", PASSES)
def test_what_upstreams_may_say_besides_passes_there_and_is_no_form_of_ours(name: str) -> None:
    read(PASSES[name], counted=None, ours=False)
    with pytest.raises(AssertionError):
        read(PASSES[name], counted=True)
    with pytest.raises(AssertionError):
        read(PASSES[name], counted=False)


def test_a_choice_that_an_upstream_leaves_out_is_missed_only_where_it_is_ours() -> None:
    assert len(read(TEXT, 2, ours=False)) == 1
    with pytest.raises(AssertionError, match="are closed"):
        read(TEXT, 2)
    with pytest.raises(AssertionError, match="1 choices"):
        check_choices(answer(TEXT), 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": 500}, "no stream"),
        ({"headers": {"content-type": "application/json"}}, "not an event stream"),
        ({"terminated": False}, "was cut"),
    ],
)
def test_an_answer_that_is_no_whole_stream_is_found(changes: Json, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_chat_stream(answer(TEXT, **changes))
