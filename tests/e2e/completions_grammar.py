"""The grammar of a completions stream: what every stream must hold, whatever happened.

It shares no code with the server, so that it cannot share its mistakes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.e2e.client import Answer

Json = dict[str, Any]

FINISH_REASONS = {"stop", "length", "content_filter", "error"}
CHOICE_KEYS = {"text", "index", "logprobs", "finish_reason"}
USAGE_KEYS = {
    "prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details",
}  # fmt: skip


@dataclass(frozen=True)
class Completed:
    """What was said of the choices, and how they ended. `usage_apart`: the counts came in a chunk of their own."""

    texts: tuple[str, ...]
    finish_reasons: tuple[str, ...]
    error: Json | None
    usage: Json | None
    usage_apart: bool = False
    logprobs: list[Any] = field(default_factory=list[Any])


def check_completion_stream(answer: Answer, choices: int = 1) -> Completed:
    """Check a whole stream; returns what it said.

    Raises: AssertionError: the stream breaks the grammar.
    """
    assert answer.status == 200, f"no stream: {answer.body[:300]!r}"
    assert answer.headers["content-type"].startswith("text/event-stream"), "not an event stream"
    assert answer.terminated, "the body was cut"
    events = answer.events
    assert events[-1] == "[DONE]", "no end marker"
    assert events.count("[DONE]") == 1, "more than one end marker"
    events.pop()
    errors = [event for event in events if "choices" not in event]
    counts = [event for event in events if event.get("choices") == []]
    chunks = [event for event in events if event.get("choices")]
    _check_heads([*chunks, *counts])
    said = [choice for chunk in chunks for choice in chunk["choices"]]
    assert all(len(chunk["choices"]) == 1 for chunk in chunks), "a chunk of several choices"
    ends = [_check_choice([choice for choice in said if choice["index"] == index]) for index in range(choices)]
    assert all(0 <= choice["index"] < choices for choice in said), "a choice that nobody asked for"
    if "error" in ends:
        _check_failure(events, errors)
    else:
        assert errors == [], "an error in an answer that is whole"
    assert len(counts) <= 1, "counted twice"
    if counts:
        assert events[-1] is counts[0], "the counts do not come last"
    usage = counts[0]["usage"] if counts else chunks[-1].get("usage")
    if usage is not None:
        check_usage(usage)
    texts = ["".join(choice["text"] for choice in said if choice["index"] == index) for index in range(choices)]
    error = errors[0]["error"] if errors else None
    logprobs = [choice["logprobs"] for choice in said if choice["logprobs"] is not None]
    return Completed(tuple(texts), tuple(ends), error, usage, bool(counts), logprobs)


def check_completion(body: Json, choices: int = 1) -> Completed:
    """The same for a body."""
    _check_heads([body])
    assert "error" not in body, "an error in an answer that is whole"
    assert [choice["index"] for choice in body["choices"]] == list(range(choices)), "choices in another order"
    for choice in body["choices"]:
        assert set(choice) == CHOICE_KEYS, "a choice with other keys"
        assert choice["finish_reason"] in FINISH_REASONS - {"error"}, "an answer without a good end"
    check_usage(body["usage"])
    return Completed(
        tuple(choice["text"] for choice in body["choices"]),
        tuple(choice["finish_reason"] for choice in body["choices"]),
        None,
        body["usage"],
        logprobs=[choice["logprobs"] for choice in body["choices"] if choice["logprobs"] is not None],
    )


def check_usage(usage: Json) -> None:
    assert set(usage) == USAGE_KEYS, "counts of another form"
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], "counts that do not add up"
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"], "more cached than read"


def _check_heads(chunks: list[Json]) -> None:
    heads = {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks}
    assert len(heads) == 1, "chunks of different streams"
    id_, kind, created, model = heads.pop()
    assert id_.startswith("cmpl-"), "an id of another form"
    assert (kind, type(created)) == ("text_completion", int)
    assert model, "no model"


def _check_choice(said: list[Json]) -> str:
    """How the choice ended."""
    assert said, "a choice without a closing chunk"
    for choice in said:
        assert set(choice) == CHOICE_KEYS, "a choice with other keys"
        assert isinstance(choice["text"], str), "a text that is none"
    reasons = [choice["finish_reason"] for choice in said]
    assert reasons[:-1] == [None] * (len(reasons) - 1), "a choice is closed once, and last"
    assert reasons[-1] in FINISH_REASONS, f"a home-made finish reason {reasons[-1]!r}"
    assert said[-1]["text"] == "", "text in a closing chunk"
    return reasons[-1]


def _check_failure(events: list[Json], errors: list[Json]) -> None:
    """The error object, and after it a closing chunk with the same error for each choice that was open."""
    (error,) = errors
    assert set(error["error"]) == {"message", "type", "param", "code"}, "an error of another form"
    assert error["error"]["message"], "an error without a message"
    rest = [event for event in events[events.index(error) + 1 :] if event["choices"]]
    assert rest, "an error and no closing chunk"
    for closing in rest:
        assert closing["choices"][0]["finish_reason"] == "error", "more of the answer after its error"
        assert closing["error"] == error["error"], "two errors"
