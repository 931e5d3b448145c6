"""The grammar of a chat stream: what every stream must hold, whatever happened."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.e2e.client import Answer

FINISH_REASONS = {"stop", "length", "tool_calls", "content_filter", "error"}


@dataclass(frozen=True)
class Ending:
    """What a stream said: its text by channel, and how it ended."""

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
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.terminated, "the body was cut"
    events = answer.events
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    events.pop()
    errors = [event for event in events if "choices" not in event]
    chunks = [event for event in events if event.get("choices")]
    usage = [event for event in events if event.get("choices") == []]
    assert len(errors) + len(chunks) + len(usage) == len(events)
    _check_chunks(chunks)
    closing = chunks[-1]
    finish = closing["choices"][0]["finish_reason"]
    if finish == "error":
        assert len(errors) == 1
        assert events.index(errors[0]) + 1 == events.index(closing)
        assert closing["error"] == errors[0]["error"]
        assert set(errors[0]["error"]) == {"message", "type", "param", "code"}
        assert errors[0]["error"]["message"]
    else:
        assert errors == []
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    return _ending(chunks, finish, errors, usage)


def _check_chunks(chunks: list[dict[str, Any]]) -> None:
    assert chunks, "no chunk with a finish_reason"
    heads = {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks}
    assert len(heads) == 1
    times = [chunk["created"] for chunk in chunks]  # llama.cpp says the time of each chunk
    assert times == sorted(times)
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert choice["index"] == 0
        assert isinstance(choice["delta"], dict)
        assert "finish_reason" in choice
        assert "role" not in choice["delta"] or chunk is chunks[0]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert reasons[-1] in FINISH_REASONS


def _ending(
    chunks: list[dict[str, Any]], finish: str, errors: list[dict[str, Any]], usage: list[dict[str, Any]]
) -> Ending:
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls: list[dict[str, str]] = []
    for delta in deltas:
        for call in delta.get("tool_calls", []):
            if call["index"] == len(calls):
                assert call["type"] == "function"
                assert call["id"]
                calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            else:
                assert call["index"] == len(calls) - 1
                assert "id" not in call
                assert "name" not in call["function"]
            calls[-1]["arguments"] += call["function"]["arguments"]
    if finish == "tool_calls":
        assert calls
        assert all(isinstance(json.loads(call["arguments"]), dict) for call in calls)
    counted = usage[0]["usage"] if usage else chunks[-1].get("usage")
    return Ending(
        content="".join(delta.get("content") or "" for delta in deltas),
        reasoning="".join(delta.get("reasoning_content") or "" for delta in deltas),
        calls=calls,
        finish_reason=finish,
        error=errors[0]["error"] if errors else None,
        usage=counted,
    )
