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
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
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
    Timings,
    UpstreamError,
    Usage,
)
from engine.odd_lines import OddLines
from engine.sse_codec import SseDecoder, SseEvent, SseItem, SseOdd
from engine.token_counts import TokenCounts, count_of, fields_of
from engine.tool_deltas import DeltaBroken, ToolCalls
from engine.upstream_errors import Problem, clean, problem_in, problem_of_body, without_odd_values

FINISH_WORDS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
"""The public enum. Any other word is no ending that we could pass on."""

STOPPED_BY = ("stop_reason", "matched_stop")
"""Where a choice says which stop string ended it. Source: vLLM entrypoints/openai/chat_completion/protocol.py, SGLang
srt/entrypoints/openai/protocol.py (2026-11); the value may also be a token's id."""

VALUE_DEPTH = 8
"""Deepest nesting of the log probabilities that are passed on: in the public form there are four levels."""

UNLIKELY = -9999.0
"""Source: OpenAI API reference, `logprob`: the value of a token that is very unlikely."""

DONE = "[DONE]"


class ChunkBroken(ValueError):
    """The upstream broke the protocol. The message says how."""


class ChatReader:
    """One answer. Feed it until `terminal` is set; the terminal is also the last event returned. `counts` may be shared
    by the readers of several choices; `stops` are the request's stop strings. Not thread-safe.

    The end marker alone is no terminal: what the upstream says until the end of the body (`end`) counts, and some say
    only then that they failed.
    """

    def __init__(
        self,
        new_call_id: Callable[[], str],
        who: str = "the upstream",
        counts: TokenCounts | None = None,
        stops: Collection[str] = (),
    ) -> None:
        self.terminal: Terminal | None = None
        self.done_seen = False
        """Whether the end marker came and nothing is wrong so far."""
        self.calls = ToolCalls(new_call_id)
        self._timings: object = None
        self._who = who
        self._finish: str | None = None
        self._said = False
        self._stops = stops
        self._stop: str | None = None
        self._verdict: FinishReason | tuple[FailKind, str] | None = None
        self._counts = counts or TokenCounts()
        self._odd = OddLines()
        self._decoder = SseDecoder()

    @property
    def finish_seen(self) -> bool:
        """Whether the upstream said how it ended: only usage and the end marker can still come."""
        return self._finish is not None

    @property
    def reason(self) -> FinishReason | None:
        """How the answer ends if nothing more comes; None where that is a failure."""
        verdict = self._judged()
        return verdict if isinstance(verdict, str) and self._odd.problem is None else None

    @property
    def usage(self) -> Usage:
        """What was read and made so far."""
        return replace(self._counts.usage(final=self.finish_seen), timings=timings_of(self._timings))

    def feed(self, data: bytes) -> tuple[list[Event], bool]:
        """Read the next bytes of a stream: its events, and whether something came that is a sign of life: more than
        comments, also those that somebody wrapped as data.

        Raises: SseTooLong.
        """
        items = self._decoder.feed(data)
        return self.items(items), any(isinstance(item, SseEvent) and not is_idle(item.data) for item in items)

    def items(self, items: Iterable[SseItem]) -> list[Event]:
        """Read what came of a stream. Nothing after the terminal is read."""
        events: list[Event] = []
        for item in items:
            if self.terminal is not None:
                break
            try:
                self._item(item, events)
            except (ChunkBroken, DeltaBroken) as error:
                self._fail(events, FailKind.PROTOCOL, f"{self._who} broke the protocol: {error}")
        return events

    def chunk(self, chunk: Mapping[str, object]) -> list[Event]:
        """Read one chunk that is JSON already and tells no error."""
        events: list[Event] = []
        try:
            self._sound_chunk(chunk, _first_choice(chunk.get("choices")), events)
        except (ChunkBroken, DeltaBroken) as error:
            self._fail(events, FailKind.PROTOCOL, f"{self._who} broke the protocol: {error}")
        return events

    def fail_by(self, problem: Problem) -> list[Event]:
        """The upstream said that it failed."""
        events: list[Event] = []
        self._fail_by(events, problem)
        return events

    def broken(self, how: str) -> list[Event]:
        """The upstream wrote something that is no chunk."""
        events: list[Event] = []
        self._fail(events, FailKind.PROTOCOL, f"{self._who} broke the protocol: {how}")
        return events

    def whole(self, body: bytes) -> list[Event]:
        """Read a body that is one JSON chat completion (a server that ignores `stream`)."""
        events: list[Event] = []
        try:
            self._chunk(object_of(body.decode("utf-8", "replace").removeprefix("\ufeff"))[0], events)
        except (ChunkBroken, DeltaBroken) as error:
            self._fail(events, FailKind.PROTOCOL, f"{self._who} broke the protocol: {error}")
        if self.terminal is None:
            self._conclude(events)
        return events

    def end(self) -> list[Event]:
        """The body ended cleanly."""
        events = self.items(self._decoder.end())
        if self.terminal is None:
            self._conclude(events)
        return events

    def cut(self, kind: FailKind, how: str, pending: Iterable[SseItem] | None = None) -> list[Event]:
        """Nothing more will come, and not because the upstream was done. An answer whose finish word came is whole all
        the same: only usage and the end marker are missing, unless what is left looks like an error. `pending`: what
        is left in somebody else's decoder (None: in this one's)."""
        events: list[Event] = []
        problem, suspicious = self._odd.at_cut(self._decoder.end() if pending is None else pending)
        if problem is not None:
            self._fail_by(events, problem)
        elif self.finish_seen and not suspicious:
            self._conclude(events)
        else:
            self._fail(events, kind, how + self._odd.note)
        return events

    # --- one item ----------------------------------------------------------------------------------

    def _item(self, item: SseItem, events: list[Event]) -> None:
        if isinstance(item, SseOdd):
            problem = self._odd.keep(item)
            if problem is not None:
                self._fail_by(events, problem)
        elif isinstance(item, SseEvent):
            if item.name == "error":
                self._fail_by(events, problem_of_body(item.data.encode(), "no reason given"))
            elif item.data.strip() == DONE:
                self._done(events)
            elif not is_idle(item.data):
                self._chunk(object_of(item.data)[0], events)

    def _chunk(self, chunk: Mapping[str, object], events: list[Event]) -> None:
        problem = problem_in(chunk)
        choice = _first_choice(chunk.get("choices"))
        if problem is not None:
            self._counts.read(chunk)
            if choice is not None:
                # what was made before the error stays readable; the error counts
                with suppress(ChunkBroken, DeltaBroken):
                    self._delta(choice, events)
            self._fail_by(events, problem)
        else:
            self._sound_chunk(chunk, choice, events)

    def _sound_chunk(
        self, chunk: Mapping[str, object], choice: Mapping[str, object] | None, events: list[Event]
    ) -> None:
        self._counts.read(chunk)
        self._timings = chunk.get("timings") or self._timings
        progress = _progress(chunk.get("prompt_progress"))
        if progress is not None:
            self._counts.progress(progress)
            events.append(progress)
        if choice is not None:
            self._delta(choice, events)
            word = choice.get("finish_reason")
            if word:  # null until the end; some servers write ""
                self._finished(word)
                self._stop = next((stop for stop in self._stops if stop in map(choice.get, STOPPED_BY)), self._stop)

    def _delta(self, choice: Mapping[str, object], events: list[Event]) -> None:
        delta = choice.get("delta")
        if delta is None and not self._said:
            delta = _numbered(choice.get("message"))  # one whole answer
        if delta is None:
            return
        if not isinstance(delta, dict):
            raise ChunkBroken("a delta is not an object")
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
        made += self.calls.delta(fields.get("tool_calls"))
        made += self.calls.legacy(fields.get("function_call"))
        if self.finish_seen and (made or fields.get("tool_calls")):
            raise ChunkBroken(f"more of the answer came after finish_reason {self._finish!r}")
        if made:
            self._said = True
            self._counts.add(made)
            events += made

    def _finished(self, word: object) -> None:
        if not isinstance(word, str):
            raise ChunkBroken("finish_reason is not a string")
        known, former = FINISH_WORDS.get(word), self._finish
        self._verdict = None
        if former is None or former == word:
            self._finish = word
        elif {FINISH_WORDS.get(former), known} == {"stop", "tool_calls"}:
            self._finish = "tool_calls"  # servers that end the calls and then the answer
        else:
            raise ChunkBroken(f"finish_reason {former!r} and then {word[:80]!r}")

    # --- the end -----------------------------------------------------------------------------------

    def _done(self, events: list[Event]) -> None:
        """The end marker: a failure now, or a success at the end of the body."""
        if self.reason is not None:
            self.done_seen = True
        else:
            self._conclude(events)

    def _conclude(self, events: list[Event]) -> None:
        """The stream is over: the upstream's finish word decides."""
        problem = self._odd.problem
        if problem is not None:
            self._fail_by(events, problem)
            return
        verdict = self._judged()
        if isinstance(verdict, str):
            events += self.calls.close()[0]
            self._end_with(events, Finished(verdict, self.usage, self._stop if verdict == "stop" else None))
            return
        kind, message = verdict
        if kind is FailKind.TOOL_CALL:
            events += self.calls.close()[0]  # those that are whole, and the names of the others
        self._fail(events, kind, message)

    def _judged(self) -> FinishReason | tuple[FailKind, str]:
        """How the answer ends if nothing more comes."""
        if self._finish is None:
            return self._judge()
        if self._verdict is None:  # arguments can be long, and nothing is added to them after the word
            self._verdict = self._judge()
        return self._verdict

    def _judge(self) -> FinishReason | tuple[FailKind, str]:
        word = self._finish
        if word is None:
            return FailKind.DIED, f"{self._who} ended the stream without a finish_reason{self._odd.note}"
        if word == "error":
            return FailKind.DIED, f"{self._who} ended the answer with finish_reason 'error'"
        reason = FINISH_WORDS.get(word)
        if reason is None:
            return FailKind.PROTOCOL, f"unknown finish word {word[:80]!r}"
        if reason == "tool_calls" and not self.calls:
            return FailKind.PROTOCOL, f"finish_reason {word!r} without a tool call"
        if reason in ("stop", "tool_calls") and (wrong := self.calls.problem()) is not None:
            return FailKind.TOOL_CALL, f"{self._who} said {word!r}, but {wrong}"
        return reason

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


def is_idle(data: str) -> bool:
    """Whether an event's data says nothing: empty, or a comment that somebody wrapped as data."""
    text = data.strip()
    return not text or text.startswith(":")


def object_of(text: str) -> tuple[Mapping[str, object], bool]:
    """The JSON object in an event's data, and whether the text is what every JSON reader takes. Control characters in
    strings and numbers that are none are not, but they are understood.

    Raises: ChunkBroken.
    """
    exact = True
    try:
        value: object = _STRICT.decode(text)
    except (ValueError, RecursionError):
        try:
            value, exact = without_odd_values(json.loads(text, strict=False)), False
        except (ValueError, RecursionError):
            raise ChunkBroken(f"its data is not JSON: {text[:80]!r}") from None
    if not isinstance(value, dict):
        raise ChunkBroken(f"its data is not a JSON object: {text[:80]!r}")
    return cast("Mapping[str, object]", value), exact


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_STRICT = json.JSONDecoder(parse_constant=_refuse)


def index_of(value: object, place: int = 0) -> int:
    """The index that a choice gives, as servers write it; its `place` where it gives none."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
        return int(value)
    if isinstance(value, str) and value.isdecimal():
        return int(value[:9])
    return place


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


def _first_choice(choices: object) -> Mapping[str, object] | None:
    """The choice with index 0: one answer is asked for, and only one is read."""
    if choices is None:
        return None
    if not isinstance(choices, list):
        raise ChunkBroken("choices is not a list")
    for choice in cast("list[object]", choices):
        if not isinstance(choice, dict):
            raise ChunkBroken("a choice is not an object")
        fields = cast("Mapping[str, object]", choice)
        if index_of(fields.get("index")) == 0:
            return fields
    return None


def _numbered(message: object) -> object:
    """A whole message whose calls have an index each: there every entry is a call of its own."""
    if not isinstance(message, dict):
        return message
    fields = cast("Mapping[str, object]", message)
    calls = fields.get("tool_calls")
    if not isinstance(calls, list):
        return fields
    entries = enumerate(cast("list[object]", calls))
    return {**fields, "tool_calls": [{**call, "index": i} if isinstance(call, dict) else call for i, call in entries]}  # pyright: ignore[reportUnknownVariableType] - JSON


def timings_of(value: object) -> Timings | None:
    """The clock of a server that tells it in llama.cpp's names; None for anything else."""
    fields = fields_of(value)
    prompt_ms, answer_ms = _time(fields.get("prompt_ms")), _time(fields.get("predicted_ms"))
    if prompt_ms is None or answer_ms is None:
        return None
    return Timings(
        count_of(fields, "prompt_n"),
        prompt_ms,
        count_of(fields, "predicted_n"),
        answer_ms,
        count_of(fields, "cache_n"),
        count_of(fields, "draft_n"),
        count_of(fields, "draft_n_accepted"),
    )


def _time(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        return None
    return float(value)


def _progress(value: object) -> Progress | None:
    fields = fields_of(value)
    return Progress(count_of(fields, "processed"), count_of(fields, "total")) if fields else None


def _texts(content: object) -> tuple[str, str]:
    """Text and thinking of a delta's content; Mistral's servers write it as a list of parts."""
    if not isinstance(content, list):
        return _text(content, "content"), ""
    text = thought = ""
    for part in cast("list[object]", content):
        fields = fields_of(part)
        if fields.get("type") == "thinking":
            thought += "".join(_texts(fields.get("thinking")))
        else:
            text += _text(fields.get("text"), "content")
    return text, thought


def _text(value: object, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ChunkBroken(f"{what} is not a string")
    return clean(value)
