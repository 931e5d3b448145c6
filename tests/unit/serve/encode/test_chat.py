"""Chat streams: their grammar for every terminal, and the body that is not streamed says the same."""

import json
from typing import Any

import pytest

from engine.events import (
    Accepted,
    Cancelled,
    Event,
    Failed,
    FailKind,
    Finished,
    Progress,
    Reasoning,
    Terminal,
    Text,
    Tick,
    Timings,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from serve import outcomes
from serve.encode import chat

USAGE = Usage(prompt_tokens=3, completion_tokens=4)
PIECES: list[Event] = [
    Accepted(),
    Progress(1, 2),
    Tick(),
    Reasoning("hm\u2028m"),
    Text("Hel"),
    Tick(),
    Text("lo \x00 \x85 😀"),
    ToolCallStart(0, "call_1", "add"),
    ToolCallArgs(0, '{"a": '),
    ToolCallArgs(0, "1}"),
    ToolCallEnd(0),
]
TERMINALS: list[Terminal] = [
    Finished("stop", USAGE),
    Finished("length", USAGE),
    Finished("tool_calls", USAGE),
    Finished("content_filter", USAGE),
    Cancelled("shutdown", USAGE),
    *(Failed(kind, "the cause", USAGE) for kind in FailKind),
]


def head(include_usage: bool = False) -> chat.Head:
    return chat.Head("chatcmpl-1", 1_700_000_000, "m", include_usage)


def sent(events: list[Event], include_usage: bool = False) -> tuple[bytes, list[dict[str, Any]]]:
    """The stream and its JSON events, after a check of the framing."""
    frames = list(chat.stream(iter(events), head(include_usage)))
    assert [frame.last for frame in frames] == [False] * (len(frames) - 1) + [True]
    wire = b"".join(frame.data for frame in frames)
    assert wire.isascii()
    assert wire.endswith(b"data: [DONE]\n\n")
    assert wire.count(b"[DONE]") == 1
    blocks = wire.decode().split("\n\n")[:-2]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return wire, [json.loads(block.removeprefix("data: ")) for block in blocks]


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("terminal", TERMINALS, ids=lambda terminal: repr(terminal)[:40])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 8, len(PIECES)])
def test_every_stream_ends_with_one_truthful_terminal(terminal: Terminal, include_usage: bool, count: int) -> None:
    _, events = sent([*PIECES[:count], terminal], include_usage)
    chunks = [event for event in events if event.get("choices")]
    assert all(chunk["id"] == "chatcmpl-1" and chunk["model"] == "m" for chunk in chunks)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[:-1] == [None] * (len(chunks) - 1)
    assert reasons[-1] == outcomes.chat_finish_reason(terminal)
    errors = [event for event in events if "error" in event and "choices" not in event]
    usages = [event for event in events if event.get("choices") == []]
    if isinstance(terminal, Finished):
        assert errors == []
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert "usage" not in chunks[-1] or chunks[-1]["usage"] is None
    else:
        assert len(errors) == 1
        assert events.index(errors[0]) == events.index(chunks[-1]) - 1
        assert chunks[-1]["error"] == errors[0]["error"]
        assert chunks[-1]["choices"][0]["delta"] == {}
        if not include_usage:
            assert chunks[-1]["usage"]["total_tokens"] == 7
    assert len(usages) == include_usage
    if include_usage:
        assert events[-1] == usages[0]
        assert all(chunk["usage"] is None for chunk in chunks)


def test_a_failure_ending_is_one_write() -> None:
    frames = list(chat.stream(iter([*PIECES, Failed(FailKind.DIED, "gone")]), head()))
    assert frames[-1].data.count(b"data: ") == 3
    assert b'"finish_reason": "error"' in frames[-1].data


def test_the_role_comes_first_and_once() -> None:
    for first in (Text("x"), Reasoning("x"), ToolCallStart(0, "call_1", "f")):
        _, events = sent([first, Finished("stop", USAGE)])
        assert [("role" in chunk["choices"][0]["delta"]) for chunk in events] == [True, False, False]


def test_tool_deltas_have_index_id_type_and_name_once() -> None:
    _, events = sent([*PIECES, ToolCallStart(1, "call_2", "sub"), Finished("tool_calls", USAGE)])
    deltas = [call for chunk in events for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert deltas == [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a": '}},
        {"index": 0, "function": {"arguments": "1}"}},
        {"index": 1, "id": "call_2", "type": "function", "function": {"name": "sub", "arguments": ""}},
    ]


def collected(events: list[Event]) -> chat.Collected:
    made = chat.Collected()
    for event in events:
        made.add(event)
    return made


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls"])
def test_stream_and_body_agree(reason: str) -> None:
    end = Finished(reason, USAGE)  # type: ignore[arg-type]  # the literal's values
    _, events = sent([*PIECES, end])
    deltas = [chunk["choices"][0]["delta"] for chunk in events]
    body = chat.completion(head(), collected(PIECES), end)
    message = body["choices"][0]["message"]
    assert message["content"] == "".join(delta.get("content", "") for delta in deltas)
    assert message.get("reasoning_content") == "".join(delta.get("reasoning_content", "") for delta in deltas)
    args = "".join(call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", []))
    assert message.get("tool_calls", [])[0]["function"] == {"name": "add", "arguments": args}
    assert body["choices"][0]["finish_reason"] == events[-1]["choices"][0]["finish_reason"] == reason
    assert body["usage"] is not None
    assert body["usage"] == outcomes.usage_object(USAGE)


def test_reasoning_that_ate_the_cap_leaves_content_empty() -> None:
    body = chat.completion(head(), collected([Reasoning("long")]), Finished("length", USAGE))
    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["finish_reason"] == "length"


def test_a_failed_body_keeps_what_was_made() -> None:
    failed = Failed(FailKind.DIED, "gone", USAGE)
    error = chat.failure_error(collected(PIECES), outcomes.http_failure(failed), failed)
    assert error.get("partial_output") == "Hello \x00 \x85 😀"
    assert error.get("usage") == outcomes.usage_object(USAGE)
    assert "partial_output" not in chat.failure_error(collected([]), outcomes.http_failure(failed), failed)


def test_logprobs_ride_on_their_pieces_and_are_joined_in_the_body() -> None:
    pieces: list[Event] = [Text("a", {"content": [{"token": "a"}]}), Text("b", {"content": [{"token": "b"}]})]
    _, events = sent([*pieces, Finished("stop", USAGE)])
    assert events[1]["choices"][0]["logprobs"] == {"content": [{"token": "a"}]}
    body = chat.completion(head(), collected(pieces), Finished("stop", USAGE))
    assert body["choices"][0]["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}], "refusal": None}


@pytest.mark.parametrize(
    ("terminal", "finish_reason", "code"),
    [
        (None, None, None),
        (Failed(FailKind.DIED, "gone", USAGE), "error", "engine_died"),
        (Cancelled("client", USAGE), "error", "request_cancelled"),
    ],
    ids=["running", "failed", "client-gone"],
)
def test_a_body_that_is_read_later_says_how_it_ended(
    terminal: Failed | Cancelled | None, finish_reason: str | None, code: str | None
) -> None:
    body = chat.completion(head(), collected(PIECES), terminal)
    assert body["choices"][0]["finish_reason"] == finish_reason
    assert body["choices"][0]["message"]["content"]
    error = body.get("error")
    assert (error and error["code"]) == code
    assert (body["usage"] is None) == (terminal is None)


def test_the_clock_is_on_the_last_chunk_of_a_stream_and_in_a_body_that_finished() -> None:
    usage = Usage(3, 2, timings=Timings(3, 6.0, 2, 8.0))
    for include_usage in (True, False):
        shared = chat.Head("chatcmpl-1", 1, "m", include_usage)
        data = b"".join(frame.data for frame in chat.stream([Text("a"), Finished("stop", usage)], shared))
        *before, last = [json.loads(line[6:]) for line in data.split(b"\n\n") if line.startswith(b"data: {")]
        assert last["timings"]["predicted_n"] == 2
        assert (last["choices"] == []) is include_usage
        assert not any("timings" in chunk for chunk in before)
        assert chat.completion(shared, chat.Collected(), Finished("stop", usage)).get("timings") == last["timings"]
        assert "timings" not in chat.completion(shared, chat.Collected(), Failed(FailKind.DIED, "gone", usage))
