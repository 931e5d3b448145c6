"""An OpenAI chat completion, streamed or whole, -> events and exactly one terminal.

It is given decoded stream items, or a body; it owns no socket and no clock. It never invents an ending: success needs
the upstream's own finish word, and whole tool calls.

Source: OpenAI API reference, "chat completion chunk" (2026-10); for `prompt_progress` and `timings` llama.cpp build
11549 as seen on 2026-11-30: `{"total", "cache", "processed", "time_ms"}` while the prompt is read (with
`return_progress`), `{"cache_n", "prompt_n", "predicted_n", …}` on each chunk (with `timings_per_token`), where the
prompt has cache_n + prompt_n tokens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import cast

from engine.events import (
    Event,
    Failed,
    FailKind,
    Finished,
    FinishReason,
    Progress,
    Reasoning,
    Terminal,
    Text,
    ToolCallArgs,
    UpstreamError,
    Usage,
)
from engine.sse_codec import SseEvent, SseItem, SseOdd
from engine.tool_deltas import DeltaBroken, ToolCalls
from engine.upstream_errors import Problem, clean, problem_in, problem_of_body

FINISH_WORDS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
"""The public enum. Any other word is no ending that we could pass on."""

VALUE_DEPTH = 8
"""Deepest nesting of the log probabilities that are passed on: in the public form there are four levels."""

UNLIKELY = -9999.0
"""Source: OpenAI API reference, `logprob`: the value of a token that is very unlikely."""

MAX_ODD_CHARS = 8192
"""How much of what is no event is kept, in case it is the cause."""

DONE = "[DONE]"


class _Broken(ValueError):
    """The upstream broke the protocol. The message says how."""


class ChatReader:
    """One answer. Feed it until `terminal` is set; the terminal is also the last event returned. Not thread-safe."""

    def __init__(self, new_call_id: Callable[[], str], who: str = "the upstream") -> None:
        self.terminal: Terminal | None = None
        self._who = who
        self._finish: str | None = None
        self._calls = ToolCalls(new_call_id)
        self._counts = _Counts()
        self._odd = ""

    @property
    def finish_seen(self) -> bool:
        """Whether the upstream said how it ended: only usage and the end marker can still come."""
        return self._finish is not None

    @property
    def usage(self) -> Usage:
        """What was read and made so far."""
        return self._counts.usage(final=self.finish_seen)

    def items(self, items: Iterable[SseItem]) -> list[Event]:
        """Read what came of a stream. Nothing after the terminal is read."""
        events: list[Event] = []
        for item in items:
            if self.terminal is not None:
                break
            try:
                self._item(item, events)
            except (_Broken, DeltaBroken) as error:
                self._fail(events, FailKind.PROTOCOL, f"{self._who} broke the protocol: {error}")
        return events

    def whole(self, body: bytes) -> list[Event]:
        """Read a body that is one JSON chat completion (a server that ignores `stream`)."""
        events: list[Event] = []
        try:
            chunk = _object(body.decode("utf-8", "replace").removeprefix("\ufeff"))
            self._chunk(chunk, events)
        except (_Broken, DeltaBroken) as error:
            self._fail(events, FailKind.PROTOCOL, f"{self._who} broke the protocol: {error}")
        if self.terminal is None:
            self._conclude(events)
        return events

    def end(self, pending: Iterable[SseItem] = ()) -> list[Event]:
        """The body ended cleanly; `pending` is what the decoder's `end` gave."""
        events = self.items(pending)
        if self.terminal is None:
            self._conclude(events)
        return events

    def cut(self, kind: FailKind, how: str, pending: Iterable[SseItem] = ()) -> list[Event]:
        """Nothing more will come, and not because the upstream was done. An answer whose finish word came is whole all
        the same: only usage and the end marker are missing, unless what is left looks like an error."""
        events: list[Event] = []
        problem: Problem | None = None
        fragments = ""
        for item in pending:
            if isinstance(item, SseEvent) and item.name == "error":
                problem = problem or problem_of_body(item.data.encode(), "no reason given")
            elif isinstance(item, SseEvent):
                fragments += f"{item.data}\n"
            elif isinstance(item, SseOdd):
                fragments += f"{_line(item)}\n"
        problem = problem or _problem_in_text(fragments) or _problem_in_text(self._odd + fragments)
        if problem is not None:
            self._fail_by(events, problem)
        elif self.finish_seen and "err" not in (fragments + self._odd).lower():
            self._conclude(events)
        else:
            self._fail(events, kind, how + self._odd_note())
        return events

    # --- one item ----------------------------------------------------------------------------------

    def _item(self, item: SseItem, events: list[Event]) -> None:
        if isinstance(item, SseOdd):
            self._keep_odd(item)
            problem = (
                problem_of_body(item.value.encode(), "") if item.field == "error" else _problem_in_text(item.value)
            )
            if problem is not None:
                self._fail_by(events, problem)
        elif isinstance(item, SseEvent):
            if item.name == "error":
                self._fail_by(events, problem_of_body(item.data.encode(), "no reason given"))
            elif item.data.strip() == DONE:
                self._conclude(events)
            elif item.data.strip():
                self._chunk(_object(item.data), events)

    def _chunk(self, chunk: Mapping[str, object], events: list[Event]) -> None:
        self._counts.read(chunk)
        problem = problem_in(chunk)
        choice = _first_choice(chunk.get("choices"))
        if problem is not None:
            if choice is not None:
                with suppress(_Broken, DeltaBroken):  # what was made before the error stays readable; the error counts
                    self._delta(choice, events)
            self._fail_by(events, problem)
            return
        progress = _progress(chunk.get("prompt_progress"))
        if progress is not None:
            self._counts.progress(progress)
            events.append(progress)
        if choice is not None:
            self._delta(choice, events)
            word = choice.get("finish_reason")
            if word:  # null until the end; some servers write ""
                self._finished(word)

    def _delta(self, choice: Mapping[str, object], events: list[Event]) -> None:
        delta = choice.get("delta")
        if delta is None and not self._counts.made:
            delta = choice.get("message")  # one whole answer
        if delta is None:
            return
        if not isinstance(delta, Mapping):
            raise _Broken("a delta is not an object")
        fields = cast("Mapping[str, object]", delta)
        made: list[Event] = []
        reasoning = fields.get("reasoning_content") or fields.get("reasoning")
        text, thought = _texts(fields.get("content"))
        thought = _text(reasoning, "reasoning") + thought
        text += _text(fields.get("refusal"), "refusal")
        if thought:
            made.append(Reasoning(thought))
        logprobs = _kept_value(choice.get("logprobs"))
        if text or (fields.get("content") == "" and logprobs):
            made.append(Text(text, logprobs))
        made += self._calls.delta(fields.get("tool_calls"))
        made += self._calls.legacy(fields.get("function_call"))
        if self.finish_seen and (made or fields.get("tool_calls")):
            raise _Broken(f"more of the answer came after finish_reason {self._finish!r}")
        if made:
            self._counts.add(made)
            events += made

    def _finished(self, word: object) -> None:
        if not isinstance(word, str):
            raise _Broken("finish_reason is not a string")
        known, former = FINISH_WORDS.get(word), self._finish
        if former is None or former == word:
            self._finish = word
        elif {FINISH_WORDS.get(former), known} == {"stop", "tool_calls"}:
            self._finish = "tool_calls"  # servers that end the calls and then the answer
        else:
            raise _Broken(f"finish_reason {former!r} and then {word[:80]!r}")

    # --- the end -----------------------------------------------------------------------------------

    def _conclude(self, events: list[Event]) -> None:
        """The stream is over: the upstream's finish word decides."""
        problem = self._odd_problem()
        if problem is not None:
            self._fail_by(events, problem)
            return
        word = self._finish
        if word is None:
            why = f"{self._who} ended the stream without a finish_reason{self._odd_note()}"
            self._fail(events, FailKind.DIED, why)
            return
        if word == "error":
            self._fail(events, FailKind.DIED, f"{self._who} ended the answer with finish_reason 'error'")
            return
        reason = FINISH_WORDS.get(word)
        if reason is None:
            self._fail(events, FailKind.PROTOCOL, f"unknown finish word {word[:80]!r}")
            return
        if reason == "tool_calls" and not self._calls:
            self._fail(events, FailKind.PROTOCOL, f"finish_reason {word!r} without a tool call")
            return
        ends, wrong = self._calls.close()
        events += ends
        if wrong is not None and reason in ("stop", "tool_calls"):
            self._fail(events, FailKind.TOOL_CALL, f"{self._who} said {word!r}, but {wrong}")
            return
        self._end_with(events, Finished(reason, self.usage))

    def _fail_by(self, events: list[Event], problem: Problem) -> None:
        """The upstream's own error in an answer that began with 200."""
        upstream = UpstreamError(200, problem.type, problem.code, problem.param)
        message = f"{self._who} failed: {problem.message}"
        self._end_with(events, Failed(FailKind.DIED, message, self.usage, upstream))

    def _fail(self, events: list[Event], kind: FailKind, message: str) -> None:
        self._end_with(events, Failed(kind, message, self.usage))

    def _end_with(self, events: list[Event], terminal: Terminal) -> None:
        self.terminal = terminal
        events.append(terminal)

    # --- what is no event --------------------------------------------------------------------------

    def _keep_odd(self, item: SseOdd) -> None:
        self._odd = f"{self._odd}{_line(item)}\n"[:MAX_ODD_CHARS]

    def _odd_problem(self) -> Problem | None:
        return _problem_in_text(self._odd) if self._odd else None

    def _odd_note(self) -> str:
        return f"; it wrote: {problem_of_body(self._odd.encode(), '').message!r}" if self._odd.strip() else ""


class _Counts:
    """Tokens: the upstream's own numbers where it gives them, else one for each delta that held something."""

    def __init__(self) -> None:
        self.made = 0
        self._made_reasoning = 0
        self._told: Usage | None = None
        self._timed: Usage | None = None
        self._prompt_tokens = 0

    def add(self, events: list[Event]) -> None:
        self.made += 1
        if not any(isinstance(event, Text | ToolCallArgs) for event in events):
            self._made_reasoning += any(isinstance(event, Reasoning) for event in events)

    def progress(self, progress: Progress) -> None:
        self._prompt_tokens = progress.total

    def read(self, chunk: Mapping[str, object]) -> None:
        usage, timings = _fields(chunk.get("usage")), _fields(chunk.get("timings"))
        if usage:
            self._told = Usage(
                _count(usage, "prompt_tokens"),
                _count(usage, "completion_tokens"),
                _count(_fields(usage.get("prompt_tokens_details")), "cached_tokens"),
                _count(_fields(usage.get("completion_tokens_details")), "reasoning_tokens"),
            )
        if timings:
            cached = _count(timings, "cache_n")
            self._timed = Usage(cached + _count(timings, "prompt_n"), _count(timings, "predicted_n"), cached)

    def usage(self, *, final: bool) -> Usage:
        told, timed = self._told, self._timed
        base = told or timed or Usage(self._prompt_tokens)
        exact = timed is not None or (told is not None and final)
        completion = base.completion_tokens if exact else max(base.completion_tokens, self.made)
        return Usage(
            base.prompt_tokens or self._prompt_tokens,
            completion,
            base.cached_tokens or (timed.cached_tokens if timed else 0),
            min(base.reasoning_tokens or self._made_reasoning, completion),
        )


def _object(text: str) -> Mapping[str, object]:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        raise _Broken(f"its data is not JSON: {text[:80]!r}") from None
    if not isinstance(value, Mapping):
        raise _Broken(f"its data is not a JSON object: {text[:80]!r}")
    return cast("Mapping[str, object]", value)


def _kept_value(value: object, depth: int = VALUE_DEPTH) -> object:
    """A JSON value of the upstream, passed on as it is, except for what Python's reader takes and JSON or UTF-8 cannot
    hold: half surrogates, numbers that are none, and what is too large or too deep."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        return {clean(key): _kept_value(item, depth - 1) for key, item in pairs} if depth else None
    if isinstance(value, list):
        return [_kept_value(item, depth - 1) for item in cast("list[object]", value)] if depth else None
    if isinstance(value, float) and not math.isfinite(value):
        return UNLIKELY if value == -math.inf else None
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return None
    return value


def _line(item: SseOdd) -> str:
    return f"{item.field}: {item.value}" if item.field else item.value


def _problem_in_text(text: str) -> Problem | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        return problem_in(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _first_choice(choices: object) -> Mapping[str, object] | None:
    """The choice with index 0: one answer is asked for, and only one is read."""
    if choices is None:
        return None
    if not isinstance(choices, list):
        raise _Broken("choices is not a list")
    for choice in cast("list[object]", choices):
        if not isinstance(choice, Mapping):
            raise _Broken("a choice is not an object")
        fields = cast("Mapping[str, object]", choice)
        if not fields.get("index"):
            return fields
    return None


def _progress(value: object) -> Progress | None:
    fields = _fields(value)
    return Progress(_count(fields, "processed"), _count(fields, "total")) if fields else None


def _texts(content: object) -> tuple[str, str]:
    """Text and thinking of a delta's content; Mistral's servers write it as a list of parts."""
    if not isinstance(content, list):
        return _text(content, "content"), ""
    text = thought = ""
    for part in cast("list[object]", content):
        fields = _fields(part)
        if fields.get("type") == "thinking":
            thought += "".join(_texts(fields.get("thinking")))
        else:
            text += _text(fields.get("text"), "content")
    return text, thought


def _text(value: object, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _Broken(f"{what} is not a string")
    return clean(value)


def _fields(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _count(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0
