"""The grammar of a completions stream: what every stream must hold, whatever happened, and what one that was left may
not break.

It shares no code with the server, so that it cannot share its mistakes. Source: OpenAI API reference, "completions"
(2026-10), and the contract of endings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.e2e.client import Answer
from tests.e2e.frames import DONE, Event, check_has, check_openai_error, check_openai_usage, read_frames, strict_object

Json = dict[str, Any]

FINISH_REASONS = {"stop", "length", "content_filter", "error"}
OBJECT_KEYS = {"id", "object", "created", "model", "choices"}
CHUNK_KEYS = {*OBJECT_KEYS, "usage", "error", "timings"}
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
    walk = CompletionWalk(choices)
    for event in read_frames(answer.body):
        walk.feed(event)
    return walk.end()


def check_completion(body: Json, choices: int = 1) -> Completed:
    """The same for a body."""
    _check_head(body)
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
    check_openai_usage(usage)


@dataclass
class _Choice:
    """What was said of one choice so far."""

    texts: list[str] = field(default_factory=list[str])
    finish_reason: str | None = None


class CompletionWalk:
    """One stream, event by event. `counted`: the request asks for the counts (None: it is not known)."""

    def __init__(self, choices: int = 1, *, counted: bool | None = None) -> None:
        self._choices = [_Choice() for _ in range(choices)]
        self._counted = counted
        self._head: tuple[str, str, int, str] | None = None
        self._logprobs: list[Any] = []
        self._error: Json | None = None
        self._counts: Json | None = None
        self._told_apart = False
        self._done = False

    def feed(self, event: Event) -> None:
        """Raises: AssertionError: this event may not come here."""
        assert event.name is None, f"a completion's event has no name, not {event.name!r}"
        assert not self._done, "something after [DONE]"
        if event.data == DONE:
            self._done = True
            self._check_closed("[DONE]")
            return
        assert not self._told_apart, "the counts come last"
        value = strict_object(event.data)
        if "choices" in value:
            self._chunk(value)
        else:
            self._failure(value)

    def end(self) -> Completed:
        """Raises: AssertionError: the stream may not end here."""
        assert self._done, "no [DONE] at the end"
        if self._counted and self._error is None:
            assert self._told_apart, "no counts, which were asked for"
        ends = tuple(choice.finish_reason or "" for choice in self._choices)
        texts = tuple("".join(choice.texts) for choice in self._choices)
        return Completed(texts, ends, self._error, self._counts, self._told_apart, self._logprobs)

    @property
    def closed(self) -> bool:
        """Whether the whole ending came."""
        return self._done

    def _check_closed(self, what: str) -> None:
        still = [index for index, choice in enumerate(self._choices) if choice.finish_reason is None]
        assert still == [], f"{what} before the choices {still} are closed"
        assert self._error is None or any(choice.finish_reason == "error" for choice in self._choices), (
            "an error and no closing chunk"
        )

    def _failure(self, value: Json) -> None:
        assert set(value) == {"error"}, f"neither a chunk nor an error: {sorted(value)}"
        check_openai_error(value["error"])
        assert self._error is None, "a second error"
        assert any(choice.finish_reason is None for choice in self._choices), "an error after all is closed"
        self._error = value["error"]

    def _chunk(self, chunk: Json) -> None:
        head = _check_head(chunk)
        assert self._head in (None, head), f"chunks of different streams: {self._head} and {head}"
        self._head = head
        assert chunk.keys() <= CHUNK_KEYS, f"a chunk with more: {sorted(chunk)}"
        choices: Any = chunk["choices"]
        assert isinstance(choices, list), "choices that are no list"
        assert len(choices) <= 1, "a chunk of several choices"  # pyright: ignore[reportUnknownArgumentType] - JSON
        usage = chunk.get("usage")
        if usage is not None:
            check_usage(usage)
            self._counts = usage
        if not choices:
            assert usage is not None, "a chunk that says nothing"
            assert self._counted is not False, "counts apart, which nobody asked for"
            self._check_closed("counts")
            self._told_apart = True
            return
        self._choice(choices[0], chunk.get("error"))  # pyright: ignore[reportUnknownArgumentType] - JSON
        if self._counted:
            assert "usage" in chunk, "a chunk without the usage member, although counts come"
            assert usage is None, "counts that do not come apart"
        assert usage is None or choices[0]["finish_reason"] == "error", "counts in the middle of an answer"

    def _choice(self, fields: Any, error: Any) -> None:
        check_has(fields, CHOICE_KEYS, "a choice")
        assert len(fields) == len(CHOICE_KEYS), f"a choice with more: {sorted(fields)}"
        index, word, text = fields["index"], fields["finish_reason"], fields["text"]
        assert type(index) is int, "an index that is no integer"
        assert 0 <= index < len(self._choices), f"choice {index}, which nobody asked for"
        choice = self._choices[index]
        assert choice.finish_reason is None, f"more of choice {index} after its finish_reason"
        assert word is None or word in FINISH_REASONS, f"a home-made finish_reason {word!r}"
        assert isinstance(text, str), "a text that is none"
        assert word is None or text == "", "text in a closing chunk"
        assert fields["logprobs"] is None or isinstance(fields["logprobs"], dict), "logprobs that are no object"
        if word == "error" or self._error is not None:
            assert self._error is not None, "finish_reason error without an error before it"
            assert word == "error", "more of the answer after its error"
            assert error == self._error, "the closing chunk has another error, or none"
        else:
            assert error is None, "an error beside an answer that goes on"
        choice.texts.append(text)
        choice.finish_reason = word
        if fields["logprobs"] is not None:
            self._logprobs.append(fields["logprobs"])


def _check_head(chunk: Json) -> tuple[str, str, int, str]:
    check_has(chunk, OBJECT_KEYS, "a completion")
    id_, kind, created, model = chunk["id"], chunk["object"], chunk["created"], chunk["model"]
    assert isinstance(id_, str), "an id that is no string"
    assert id_.startswith("cmpl-"), f"an id of another form: {id_!r}"
    assert kind == "text_completion", f"another object: {kind!r}"
    assert type(created) is int, "created that is no integer"
    assert isinstance(model, str), "a model that is no string"
    assert model, "no model"
    return id_, kind, created, model
