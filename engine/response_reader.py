"""An upstream's own Responses stream, or a body of its API -> events and exactly one terminal.

It reads what the upstream says of the ending, and takes the worse reading where that contradicts itself. Whether what
was made is whole, and what a client is to be told, is not its business: every event goes on as it came. It owns no
socket and no clock.

Source: OpenAI API reference, Responses streaming events (2026-10); `max_tokens` as a reason stands in its example.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias, cast

from engine.chat_reader import DONE, ChunkBroken, is_idle, object_of
from engine.events import (
    Cancelled,
    Event,
    Failed,
    FailKind,
    Finished,
    FinishReason,
    Relayed,
    RelayedEvent,
    Terminal,
    UpstreamError,
    Usage,
)
from engine.odd_lines import OddLines
from engine.sse_codec import SseDecoder, SseEvent, SseItem, SseOdd
from engine.token_counts import count_of, fields_of
from engine.upstream_errors import Problem, problem_in, problem_of_body, without_odd_values

Json: TypeAlias = Mapping[str, object]

PREFIX = "response."
_WORSE = ("completed", "incomplete", "cancelled", "failed")
"""The statuses of an ending, each worse than the one before it."""
_BEATS = ("response.queued", "response.in_progress", "keepalive")
_OF_BEATS = {"type", "response", "sequence_number"}
_NAME = re.compile(r"[\x21-\x7e]{1,200}")
TERMINALS = frozenset(PREFIX + word for word in _WORSE)
_REASONS: Mapping[str, FinishReason] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}


class ResponseReader:
    """One answer. Feed it until `terminal` is set; the terminal is also the last event returned. `limit`: the tokens
    that the request allowed; `context`: those that prompt and answer have room for. Not thread-safe.

    The terminal event alone is no terminal: what the upstream says until the end of the body (`end`) counts. An answer
    that has all the tokens that it could have was cut, whatever it is called: llama.cpp and vLLM call it `completed`.
    """

    def __init__(self, who: str, limit: int | None = None, context: int | None = None) -> None:
        self.terminal: Terminal | None = None
        self._who = who
        self._limit = limit
        self._context = context
        self._decoder = SseDecoder()
        self._odd = OddLines()
        self._word: str | None = None  # the status that it ended with
        self._finish: FinishReason | None = None
        self._told: Usage | None = None
        self._deltas = 0
        self._reasoning_deltas = 0
        self._begun: set[str] = set()
        self._alive = False

    @property
    def finish_seen(self) -> bool:
        """Whether the upstream said how it ended."""
        return self._word is not None

    @property
    def done_seen(self) -> bool:
        """Whether nothing more is to come, and nothing is wrong so far: the terminal event is the last one."""
        return self.finish_seen and self.terminal is None

    @property
    def usage(self) -> Usage:
        """What was read and made so far; where the upstream gave no counts, one token for each delta."""
        return self._told or Usage(0, self._deltas, 0, self._reasoning_deltas)

    # --- bytes ---------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> tuple[list[Event], bool]:
        """Read the next bytes of a stream: its events, and whether something came that is a sign of life: more than
        what servers send to keep a connection open.

        Raises: SseTooLong.
        """
        self._alive = False
        return self._items(self._decoder.feed(data)), self._alive

    def whole(self, body: bytes) -> list[Event]:
        """Read a body that is one response object (a server that ignores `stream`)."""
        try:
            response, _ = object_of(body.decode("utf-8", "replace").removeprefix("\ufeff"))
        except (ChunkBroken, RecursionError) as error:
            return [self._broken(str(error))]
        status = response.get("status")
        problem = None if response.get("object") == "response" else problem_in(response)
        if problem is not None:
            return [self._failed_by(problem)]
        passed: list[RelayedEvent] = []
        last = self._terminal({"type": f"{PREFIX}{status}", "response": response}, "", (str(status),), passed)
        return _with(passed, last if last is not None else self._conclusion())

    def end(self) -> list[Event]:
        """The body ended cleanly."""
        events = self._items(self._decoder.end())
        if self.terminal is None:
            events.append(self._conclusion())
        return events

    def cut(self, kind: FailKind, how: str) -> list[Event]:
        """Nothing more will come, and not because the upstream was done. An answer whose terminal event came is whole
        all the same, unless what is left looks like an error."""
        problem, suspicious = self._odd.at_cut(self._decoder.end())
        if problem is not None:
            return [self._failed_by(problem)]
        if self.finish_seen and not suspicious:
            return [self._conclusion()]
        return [self._failed(kind, how + self._odd.note)]

    # --- one item ------------------------------------------------------------------------------------

    def _items(self, items: Iterable[SseItem]) -> list[Event]:
        passed: list[RelayedEvent] = []
        terminal: Terminal | None = None
        for item in items:
            try:
                terminal = self._item(item, passed)
            except ChunkBroken as error:
                terminal = self._broken(str(error))
            except RecursionError:
                terminal = self._broken("its data is nested too deeply")
            if terminal is not None:
                break
        return _with(passed, terminal)

    def _item(self, item: SseItem, passed: list[RelayedEvent]) -> Terminal | None:
        if isinstance(item, SseOdd):
            problem = self._odd.keep(item)
            return None if problem is None else self._failed_by(problem)
        if not isinstance(item, SseEvent) or is_idle(item.data):
            return None
        if item.data.strip() == DONE:  # the API has no such mark; with it the upstream is done all the same
            return None if self.finish_seen else self._conclusion()
        try:
            value, exact = object_of(item.data)
        except ChunkBroken:
            if item.name != "error":
                raise
            return self._failed_by(problem_of_body(item.data.encode(), "no reason given"))
        return self._value(value, exact, item, passed)

    def _value(self, value: Json, exact: bool, item: SseEvent, passed: list[RelayedEvent]) -> Terminal | None:
        given = value.get("type")
        name = given if isinstance(given, str) and given else item.name
        problem = _problem_of(value, name)
        if problem is not None and not (name in TERMINALS or item.name in TERMINALS):
            return self._failed_by(problem)
        self._alive = not self._is_beat(value, name) or self._alive
        if item.name == "error":
            return self._failed_by(problem_of_body(item.data.encode(), "no reason given"))
        if not name:
            raise ChunkBroken(f"an event without a type: {item.data[:80]!r}")
        if _NAME.fullmatch(name) is None:
            raise ChunkBroken(f"an event of type {name[:80]!r}")
        right = {**value, "type": name} if name != given else value
        if "\\ud" in item.data.lower():
            clear = cast("Json", without_odd_values(right))
            right = right if clear == right else clear
        raw = _plain(name, item.data) if right is value and exact else b""
        words = tuple(word.removeprefix(PREFIX) for word in (name, item.name) if word in TERMINALS)
        if words:
            return self._terminal(right, raw, words, passed)
        if self.finish_seen:
            if name.endswith((".delta", ".added")):
                raise ChunkBroken(f"more of the answer came after its end: {name[:80]!r}")
            return None
        if name.endswith(".delta"):
            self._deltas += 1
            self._reasoning_deltas += name.startswith("response.reasoning")
        passed.append(RelayedEvent(right, raw))
        return None

    def _is_beat(self, value: Json, name: str) -> bool:
        """Whether an event says nothing but that the connection is open. llama.cpp's have its progress."""
        if name not in _BEATS:
            return False
        again = name in self._begun or name == "keepalive"
        self._begun.add(name)
        return again and not value.keys() - _OF_BEATS

    # --- the ending ----------------------------------------------------------------------------------

    def _terminal(
        self, value: Json, raw: bytes | str, words: tuple[str, ...], passed: list[RelayedEvent]
    ) -> Terminal | None:
        """A terminal event. A failure ends the answer now, any other ending at the end of the body."""
        response = fields_of(value.get("response"))
        said = [*words, str(response.get("status") or words[0])]
        if response.get("incomplete_details"):
            said.append("incomplete")
        error = value.get("error") or response.get("error")
        if error:
            said.append("failed")
        self._told = _usage(response) or self._told
        limit = response.get("max_output_tokens")
        if self._limit is None and isinstance(limit, int) and not isinstance(limit, bool):
            self._limit = limit
        unknown = next((word for word in said if word not in _WORSE), None)
        if unknown is not None:
            return self._broken(f"it ended with status {unknown[:80]!r}")
        worst = max(said, key=_WORSE.index)
        if self._word is not None and _WORSE.index(worst) <= _WORSE.index(self._word):
            return None  # said again, or better than it was
        self._word = worst
        passed.append(RelayedEvent(value, raw if isinstance(raw, bytes) else b""))
        if worst == "failed":
            return self._failed_by(problem_in({"error": error}) or Problem("it gave no reason"))
        self._finish = None
        if worst == "completed":
            self._finish = "length" if self._at_cap else "stop"
        elif worst == "incomplete":
            return self._incomplete(fields_of(response.get("incomplete_details")).get("reason"))
        return None

    def _incomplete(self, reason: object) -> Terminal | None:
        self._finish = _REASONS.get(reason) if isinstance(reason, str) else None
        if reason is None and self._at_cap:
            self._finish = "length"
        if self._finish is None:
            why = "without a reason" if reason is None else f"for the unknown reason {str(reason)[:80]!r}"
            return self._broken(f"the answer is incomplete {why}")
        return None

    @property
    def _at_cap(self) -> bool:
        if self._told is None:
            return False
        made, limit, context = self._told.completion_tokens, self._limit, self._context
        return (limit is not None and 0 < limit <= made) or (
            context is not None and made > 0 and self._told.prompt_tokens + made >= context
        )

    def _conclusion(self) -> Terminal:
        """The stream is over: the upstream's word decides."""
        problem = self._odd.problem
        if problem is not None:
            return self._failed_by(problem)
        if self._word is None:
            return self._failed(FailKind.DIED, f"{self._who} ended the stream without a terminal event{self._odd.note}")
        return self._set(
            Cancelled("operator", self.usage) if self._finish is None else Finished(self._finish, self.usage)
        )

    def _failed_by(self, problem: Problem) -> Terminal:
        """The upstream's own error in an answer that began with 200."""
        upstream = UpstreamError(200, problem.type, problem.code, problem.param)
        return self._set(Failed(FailKind.DIED, f"{self._who} failed: {problem.message}", self.usage, upstream))

    def _broken(self, how: str) -> Terminal:
        return self._failed(FailKind.PROTOCOL, f"{self._who} broke the protocol: {how}")

    def _failed(self, kind: FailKind, message: str) -> Terminal:
        return self._set(Failed(kind, message, self.usage))

    def _set(self, terminal: Terminal) -> Terminal:
        self.terminal = terminal
        return terminal


class PageReader:
    """An answer that is one body, whatever it holds; it rides on the terminal as it came. Not thread-safe."""

    def __init__(self, who: str) -> None:
        self.terminal: Terminal | None = None
        self.usage = Usage()
        self.finish_seen = self.done_seen = False
        self._who = who
        self._body = bytearray()

    def feed(self, data: bytes) -> tuple[list[Event], bool]:
        """Read the next bytes."""
        self._body += data
        return [], True

    def whole(self, body: bytes) -> list[Event]:
        """The body, which is whole."""
        self.terminal = Finished("stop", raw=body)
        try:
            json.loads(body)
        except (ValueError, RecursionError):
            said = problem_of_body(body, "nothing").message
            self.terminal = Failed(FailKind.PROTOCOL, f"{self._who} answered no JSON: {said}")
        return [self.terminal]

    def end(self) -> list[Event]:
        """The body ended cleanly."""
        return self.whole(bytes(self._body))

    def cut(self, kind: FailKind, how: str) -> list[Event]:
        """Nothing more will come."""
        self.terminal = Failed(kind, how)
        return [self.terminal]


def _with(passed: list[RelayedEvent], terminal: Terminal | None) -> list[Event]:
    events: list[Event] = [Relayed(tuple(passed))] if passed else []
    return events if terminal is None else [*events, terminal]


def _problem_of(value: Json, name: str) -> Problem | None:
    """The error that an event tells. Events of kinds that nobody knows may have members of any name."""
    if name and name != "error":
        return problem_in({"error": value["error"]}) if value.get("error") else None
    return problem_in(value)


def _plain(name: str, data: str) -> bytes:
    """One event with this data, in the form that every reader takes; a line end in it is no more than a space to
    JSON."""
    return f"event: {name}\ndata: {data}\n\n".encode() if "\n" not in data else _plain(name, data.replace("\n", " "))


def _usage(response: Json) -> Usage | None:
    usage = fields_of(response.get("usage"))
    if not usage:
        return None
    return Usage(
        count_of(usage, "input_tokens"),
        count_of(usage, "output_tokens"),
        count_of(fields_of(usage.get("input_tokens_details")), "cached_tokens"),
        count_of(fields_of(usage.get("output_tokens_details")), "reasoning_tokens"),
    )
