"""The grammar of a chat stream: what every stream must hold, whatever happened."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.e2e.client import Answer

FINISH_REASONS = {"stop", "length", "tool_calls", "function_call", "content_filter", "error"}


@dataclass(frozen=True)
class Ending:
    """What a stream said of one choice: its text by channel, and how it ended."""

    content: str
    reasoning: str
    calls: list[dict[str, str]]
    finish_reason: str
    error: dict[str, Any] | None
    usage: dict[str, Any] | None


def check_chat_stream(answer: Answer) -> Ending:
    """Check a whole stream; returns what it said.

    Raises: AssertionError: the stream breaks the grammar.
    """
    (ending,) = check_choices(answer, 1)
    return ending


def check_choices(answer: Answer, count: int, *, repeated_role: bool = False) -> list[Ending]:
    """The same for a stream of several choices. `repeated_role`: the upstream says the role with every delta.

    Raises: AssertionError: the stream breaks the grammar.
    """
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.terminated, "the body was cut"
    events = answer.events
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    events.pop()
    errors = [event for event in events if "choices" not in event]
    chunks = [event for event in events if event.get("choices")]
    usage = [event for event in events if event.get("choices") == [] and event.get("usage")]
    others = [event for event in events if event.get("choices") == [] and not event.get("usage")]
    assert len(errors) + len(chunks) + len(usage) + len(others) == len(events)
    _check_heads([*chunks, *usage])
    failed = [_check_choice(chunks, index, repeated_role) for index in range(count)]
    if any(failed):
        _check_failure(events, errors)
    else:
        assert errors == []
    assert len(usage) <= 1
    if usage:
        assert events[-1] is usage[0], "the counts come last"
    counted = usage[0]["usage"] if usage else chunks[-1].get("usage")
    error = errors[0]["error"] if errors else None
    return [_ending(_said(chunks, index), error, counted) for index in range(count)]


def _said(chunks: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    """The entries of one choice."""
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def _check_heads(chunks: list[dict[str, Any]]) -> None:
    assert chunks, "no chunk with a finish_reason"
    heads = {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks}
    assert len(heads) == 1
    assert all(heads.pop())
    times = [chunk["created"] for chunk in chunks]  # llama.cpp says the time of each chunk
    assert times == sorted(times)


def _check_choice(chunks: list[dict[str, Any]], index: int, repeated_role: bool) -> bool:
    """Whether the choice failed."""
    said = _said(chunks, index)
    assert said, f"choice {index} has no closing chunk"
    for choice in said:
        assert isinstance(choice["delta"], dict)
        assert "finish_reason" in choice
        role: object = choice["delta"].get("role")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] - JSON
        assert role is None or (role == "assistant" and (choice is said[0] or repeated_role))
    reasons = [choice["finish_reason"] for choice in said]
    assert reasons[:-1] == [None] * (len(reasons) - 1), "a choice is closed once, and last"
    assert reasons[-1] in FINISH_REASONS
    if reasons[-1] == "error":
        return True
    assert said[0]["delta"]["role"] == "assistant"
    return False


def _check_failure(events: list[dict[str, Any]], errors: list[dict[str, Any]]) -> None:
    """The error object, and after it a closing chunk with the same error for each choice that was open."""
    (error,) = errors
    assert set(error["error"]) == {"message", "type", "param", "code"}
    assert error["error"]["message"]
    rest = [event for event in events[events.index(error) + 1 :] if event["choices"]]
    assert rest
    for closing in rest:
        (choice,) = closing["choices"]
        assert (choice["delta"], choice["finish_reason"]) == ({}, "error")
        assert closing["error"] == error["error"]
    indexes = [closing["choices"][0]["index"] for closing in rest]
    assert len(set(indexes)) == len(indexes)


def _ending(said: list[dict[str, Any]], error: dict[str, Any] | None, usage: dict[str, Any] | None) -> Ending:
    deltas = [choice["delta"] for choice in said]
    finish = said[-1]["finish_reason"]
    calls: list[dict[str, str]] = []
    for delta in deltas:
        entries: list[dict[str, Any]] = delta.get("tool_calls") or []
        for call in entries:
            if call["index"] == len(calls):
                assert call["type"] == "function"
                assert call["id"] not in ("", *[one["id"] for one in calls])
                calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            else:
                assert 0 <= call["index"] < len(calls)
                assert not call.get("id")
                assert not call["function"].get("name")
            calls[call["index"]]["arguments"] += call["function"].get("arguments") or ""
    if finish == "tool_calls":
        assert calls
    if finish in ("stop", "tool_calls"):
        assert all(isinstance(json.loads(call["arguments"]), dict) for call in calls)
    return Ending(
        content="".join(delta.get("content") or "" for delta in deltas),
        reasoning="".join(delta.get("reasoning_content") or "" for delta in deltas),
        calls=calls,
        finish_reason=finish,
        error=error if finish == "error" else None,
        usage=usage,
    )
