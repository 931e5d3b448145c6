"""The grammar of a chat stream: what every stream must hold, whatever happened, and what one that was left may not
break.

It shares no code with the server, so that it cannot share its mistakes. Source: OpenAI API reference, "chat completion
chunk" (2026-10), and the contract of endings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.e2e.client import Answer
from tests.e2e.frames import (
    DONE,
    Event,
    check_arguments,
    check_has,
    check_openai_error,
    check_openai_usage,
    read_frames,
    strict_object,
)

Json = dict[str, Any]

FINISH_REASONS = {"stop", "length", "tool_calls", "function_call", "content_filter", "error"}
CHUNK_KEYS = {"id", "object", "created", "model", "choices"}
OUR_CHUNK_KEYS = {*CHUNK_KEYS, "usage", "error", "timings"}
OUR_CHOICE_KEYS = {"index", "delta", "finish_reason", "logprobs"}
OUR_DELTA_KEYS = {"role", "content", "reasoning_content", "tool_calls"}


@dataclass(frozen=True)
class Ending:
    """What a stream said of one choice: its text by channel, and how it ended."""

    content: str
    reasoning: str
    calls: list[dict[str, str]]
    finish_reason: str
    error: Json | None
    usage: Json | None


def check_chat_stream(answer: Answer) -> Ending:
    """Check a whole stream; returns what it said.

    Raises: AssertionError: the stream breaks the grammar.
    """
    (ending,) = check_choices(answer, 1)
    return ending


def check_choices(answer: Answer, count: int) -> list[Ending]:
    """The same for a stream of several choices.

    Raises: AssertionError: the stream breaks the grammar.
    """
    assert answer.status == 200, f"no stream: {answer.body[:300]!r}"
    assert answer.headers["content-type"].startswith("text/event-stream"), "not an event stream"
    assert answer.terminated, "the body was cut"
    walk = ChatWalk(count)
    for event in read_frames(answer.body):
        walk.feed(event)
    endings = walk.end()
    assert len(endings) == count, f"{len(endings)} choices"
    return endings


@dataclass
class _Choice:
    """What was said of one choice so far."""

    content: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    begun: bool = False
    finish_reason: str | None = None


class ChatWalk:
    """One stream, event by event. `ours`: the chunks are made here, not by an upstream, which may say more and other
    things in them, and may leave out choices; `counted`: the request asks for the counts (None: it is not known)."""

    def __init__(self, choices: int = 1, *, ours: bool = False, counted: bool | None = None) -> None:
        self._choices = [_Choice() for _ in range(choices)]
        self._ours = ours
        self._counted = counted
        self._head: tuple[str, str, str] | None = None
        self._created = 0
        self._error: Json | None = None
        self._counts: Json | None = None
        self._told_apart = False
        self._done = False

    def feed(self, event: Event) -> None:
        """Raises: AssertionError: this event may not come here."""
        assert event.name is None, f"a chat event has no name, not {event.name!r}"
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

    def end(self) -> list[Ending]:
        """Raises: AssertionError: the stream may not end here."""
        assert self._done, "no [DONE] at the end"
        if self._counted and self._error is None:
            assert self._told_apart, "no counts, which were asked for"
        return [self._ending(choice) for choice in self._choices if choice.finish_reason is not None]

    @property
    def closed(self) -> bool:
        """Whether the whole ending came."""
        return self._done

    def _check_closed(self, what: str) -> None:
        still = [
            index
            for index, choice in enumerate(self._choices)
            if choice.finish_reason is None and (choice.begun or self._ours or index == 0)
        ]
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

    # --- chunks --------------------------------------------------------------------------------------

    def _chunk(self, chunk: Json) -> None:
        check_has(chunk, CHUNK_KEYS, "a chunk")
        self._same_head(chunk)
        choices: Any = chunk["choices"]
        assert isinstance(choices, list), "choices that are no list"
        usage = chunk.get("usage")
        if usage is not None:
            check_openai_usage(usage, ours=self._ours)
        if self._ours:
            self._check_ours(chunk)
        if not choices:
            self._apart(usage)
            return
        for choice in choices:  # pyright: ignore[reportUnknownVariableType] - JSON
            self._choice(choice, chunk.get("error"))
        if usage is not None and all(choice.finish_reason for choice in self._choices):
            self._counts = usage

    def _same_head(self, chunk: Json) -> None:
        head = (chunk["id"], chunk["object"], chunk["model"])
        assert all(isinstance(member, str) and member for member in head), f"a head that says nothing: {head}"
        assert head[1] == "chat.completion.chunk", f"another object: {head[1]!r}"
        assert self._head in (None, head), f"chunks of different streams: {self._head} and {head}"
        created = chunk["created"]
        assert type(created) is int, "created that is no integer"
        if self._head is not None:
            assert created >= self._created, "created in the past"  # llama.cpp says the time of each chunk
            assert created == self._created or not self._ours, "created that changes"
        self._head, self._created = head, created

    def _check_ours(self, chunk: Json) -> None:
        assert chunk.keys() <= OUR_CHUNK_KEYS, f"a chunk of ours with more: {sorted(chunk)}"
        assert len(chunk["choices"]) <= 1, "a chunk of several choices"
        apart, closes = not chunk["choices"], any(one.get("finish_reason") == "error" for one in chunk["choices"])
        if self._counted is True and not apart:
            assert "usage" in chunk, "a chunk without the usage member, although counts come"
            assert chunk["usage"] is None, "counts that do not come apart"
        elif self._counted is False:
            assert not apart, "counts apart, which nobody asked for"
            assert "usage" not in chunk or closes, "counts that nobody asked for"

    def _apart(self, usage: Json | None) -> None:
        """A chunk without choices: counts; of an upstream perhaps something else that it wants to say."""
        if usage is None:
            assert not self._ours, "a chunk that says nothing"
            return
        if not self._ours and any(choice.begun and choice.finish_reason is None for choice in self._choices):
            return  # counts as they grow
        self._check_closed("counts")
        self._told_apart, self._counts = True, usage

    def _choice(self, fields: Any, error: Any) -> None:
        check_has(fields, {"index", "delta", "finish_reason"}, "a choice")
        index = fields["index"]
        assert type(index) is int, "an index that is no integer"
        assert 0 <= index < len(self._choices), f"choice {index}, which nobody asked for"
        choice = self._choices[index]
        assert choice.finish_reason is None, f"more of choice {index} after its finish_reason"
        word, delta = fields["finish_reason"], fields["delta"]
        assert word is None or word in FINISH_REASONS, f"a home-made finish_reason {word!r}"
        assert isinstance(delta, dict), "a delta that is no object"
        if self._ours:
            assert fields.keys() <= OUR_CHOICE_KEYS, f"a choice of ours with more: {sorted(fields)}"
            assert delta.keys() <= OUR_DELTA_KEYS, f"a delta of ours with more: {sorted(delta)}"  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] - JSON
            assert word is None or delta == {}, "a closing chunk that says more"
        if word == "error" or self._error is not None:
            self._closes_failed(fields, error)
        else:
            assert error is None, "an error beside an answer that goes on"
            self._delta(choice, delta)  # pyright: ignore[reportUnknownArgumentType] - JSON
        choice.finish_reason = word
        if word in ("stop", "tool_calls"):
            _check_calls(choice, word)

    def _closes_failed(self, fields: Json, error: Any) -> None:
        assert self._error is not None, "finish_reason error without an error before it"
        assert fields["finish_reason"] == "error", "more of the answer after its error"
        assert fields["delta"] == {}, "a delta in the closing chunk of a failure"
        assert error == self._error, "the closing chunk has another error, or none"

    # --- deltas --------------------------------------------------------------------------------------

    def _delta(self, choice: _Choice, delta: Json) -> None:
        role = delta.get("role")
        if not choice.begun:
            assert role == "assistant", "a first delta without the role"
        else:
            assert role is None or (role == "assistant" and not self._ours), "the role again"
        choice.begun = True
        for name, told in (("content", choice.content), ("reasoning_content", choice.reasoning)):
            text = delta.get(name)
            assert text is None or isinstance(text, str), f"{name} that is no string"
            told.append(text or "")
        entries: Any = delta.get("tool_calls")
        assert entries is None or isinstance(entries, list), "tool_calls that are no list"
        for entry in entries or []:  # pyright: ignore[reportUnknownVariableType] - JSON
            _call(choice.calls, entry, self._ours)

    def _ending(self, choice: _Choice) -> Ending:
        assert choice.finish_reason is not None, "a choice that was not closed"
        return Ending(
            content="".join(choice.content),
            reasoning="".join(choice.reasoning),
            calls=choice.calls,
            finish_reason=choice.finish_reason,
            error=self._error if choice.finish_reason == "error" else None,
            usage=self._counts,
        )


def _call(calls: list[dict[str, str]], entry: Any, ours: bool) -> None:
    """One entry of `tool_calls`: id, type and name once, then arguments alone."""
    check_has(entry, {"index", "function"}, "a call")
    index, function = entry["index"], entry["function"]
    assert type(index) is int, "a call's index that is no integer"
    assert 0 <= index <= len(calls), f"call {index} after {len(calls)} calls"
    assert isinstance(function, dict), "a function that is no object"
    arguments = function.get("arguments")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] - JSON
    assert arguments is None or isinstance(arguments, str), "arguments that are no string"
    if index == len(calls):
        check_has(entry, {"id", "type"}, "the begin of a call")
        check_has(function, {"name", "arguments"} if ours else {"name"}, "the begin of a call")
        assert isinstance(entry["id"], str), "a call's id that is no string"
        assert entry["id"] not in ("", *[one["id"] for one in calls]), "a call's id that is empty, or another call's"
        assert entry["type"] == "function", "a call of another type"
        assert isinstance(function["name"], str), "a call's name that is no string"
        assert function["name"], "a call without a name"
        calls.append({"id": entry["id"], "name": function["name"], "arguments": ""})
    else:
        assert not entry.get("id"), "a call's id again"
        assert not entry.get("type"), "a call's type again"
        assert not function.get("name"), "a call's name again"  # pyright: ignore[reportUnknownMemberType] - JSON
    calls[index]["arguments"] += arguments or ""


def _check_calls(choice: _Choice, word: str) -> None:
    assert choice.calls or word != "tool_calls", "tool_calls without a call"
    for call in choice.calls:
        check_arguments(call["arguments"])
