"""One relayed response: an upstream's own events → those that the client gets, and the ending that is true.

What is right goes on as it came. Events that end an item are held until it is known that the item was not the one that
was cut: llama.cpp and vLLM close it as `completed` whatever happened. What is missing in a stream is added where it
follows from what was said. `serve.outcomes` says what an ending is called. Pure: time is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from typing import cast

from engine.events import (
    Cancelled,
    Event,
    Failed,
    FailKind,
    Finished,
    Passed,
    Piece,
    Relayed,
    RelayedEvent,
    Terminal,
    Text,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from serve import outcomes, sse
from serve.entries import Beat
from serve.relay.ending import Ending
from serve.relay.items import CALL, Json
from serve.relay.objects import RelayHead
from serve.relay.track import Broken, Track

_NUMBER = re.compile(rb'("sequence_number"\s*:\s*)-?\d+')


class ResponseRelay:
    """Not thread-safe. `judged` reads what the upstream says, `frames` or `run` tells it on, in turns: the second reads
    what the first one yields, with whatever checks in between."""

    def __init__(self, head: RelayHead) -> None:
        self._head = head
        self._track = Track(head)
        self._number = 0
        self.response: Json | None = None
        """The response, once it ended."""

    # --- read ----------------------------------------------------------------------------------------

    def judged(self, source: Generator[Event, None, None]) -> Generator[Event, None, None]:
        """The events of an upstream's answer in the right form, and a terminal that is true. Closes the source."""
        with closing(source):
            for event in source:
                if isinstance(event, Relayed):
                    try:
                        self._track.take(event.events)
                    except Broken as error:
                        message = f"{self._head.who} broke the protocol: {error}"
                        yield self._ready()
                        yield Failed(FailKind.PROTOCOL, message, self._track.usage)
                        return
                    yield self._ready()
                elif isinstance(event, Finished):
                    yield from self._judge(event)
                else:
                    if isinstance(event, Failed | Cancelled) and self._track.ended:
                        with suppress(Broken):  # what the last event alone tells of is not lost
                            self._track.take_rest()
                        yield self._ready()
                    yield event

    def _ready(self) -> Relayed:
        return Relayed(self._track.ready())

    def _judge(self, finished: Finished) -> Iterator[Event]:
        track = self._track
        try:
            track.take_rest()
        except Broken as error:
            yield Failed(FailKind.PROTOCOL, f"{self._head.who} broke the protocol: {error}", finished.usage)
            return
        yield self._ready()
        yield Passed(b"", self._pieces())
        usage = finished.usage or Usage()
        broken = [item for item in track.items if item.is_broken_call]
        cut = next((item for item in track.items if item.says_incomplete), None)
        if finished.reason in ("content_filter", "length"):
            yield finished
        elif broken:
            why = f"{self._head.who} said that it was done, but the arguments of {broken[0].name[:80]!r} are not JSON"
            yield Failed(FailKind.TOOL_CALL, why, usage)
        elif cut is not None:
            why = f"it said that it was done, but item {cut.index} is incomplete"
            yield Failed(FailKind.PROTOCOL, f"{self._head.who} broke the protocol: {why}", usage)
        else:
            yield Finished("tool_calls" if any(item.kind == CALL for item in track.items) else "stop", usage)

    def _pieces(self) -> tuple[Piece, ...]:
        """The answer itself, for the checks of what was asked for: the last message, and the calls."""
        pieces: list[Piece] = []
        messages = [item for item in self._track.items if item.kind == "message"]
        if messages:
            pieces.append(Text(messages[-1].text))
        for index, item in enumerate(item for item in self._track.items if item.kind == CALL):
            pieces.append(ToolCallStart(index, item.id, item.name))
            if not item.is_broken_call:
                pieces.append(ToolCallEnd(index))
        return tuple(pieces)

    # --- told ----------------------------------------------------------------------------------------

    def frames(self, events: Iterable[Event | Beat], now: Callable[[], float]) -> Iterator[sse.Frame]:
        """What goes out for each event; the last frame holds the whole ending. `now` gives Unix seconds."""
        for event in events:
            if isinstance(event, Relayed):
                yield sse.Frame(self._bytes(event.events))
            elif isinstance(event, Beat):
                yield sse.Frame(self._beat())
            elif isinstance(event, Finished | Failed | Cancelled):
                yield sse.Frame(self._bytes(self._end(event, now())), last=True)
                return
            else:
                yield sse.Frame(b"")

    def run(self, events: Iterable[Event], now: Callable[[], float]) -> Terminal:
        """Read all, for the body of an answer that is not streamed: then `response` is there."""
        for event in events:
            if isinstance(event, Finished | Failed | Cancelled):
                self._end(event, now())
                return event
        raise RuntimeError("an answer ended without a terminal")

    @property
    def text(self) -> str:
        """What the messages say so far."""
        return "".join(item.text for item in self._track.items if item.kind == "message")

    def _end(self, terminal: Terminal, at: float) -> list[RelayedEvent]:
        ending = Ending(self._track, terminal, at)
        self.response = ending.response
        return ending.events

    def _beat(self) -> bytes:
        """A heartbeat: the response runs. Before the upstream named it there is no event that could say so; after the
        upstream's last word there is none."""
        if self._track.ended:
            return b""
        running = self._track.running
        if running is None:
            return sse.KEEP_ALIVE
        queued = running.get("status") == outcomes.RESPONSE_QUEUED
        name = outcomes.QUEUED_EVENT if queued else outcomes.RUNNING_EVENT
        return self._bytes([RelayedEvent({"type": name, "response": running})])

    def _bytes(self, events: Iterable[RelayedEvent]) -> bytes:
        return b"".join(self._numbered(event) for event in events)

    def _numbered(self, event: RelayedEvent) -> bytes:
        """The event with the next number, which is most often the one that it has."""
        number, given = self._number, event.value.get("sequence_number")
        self._number += 1
        if event.raw and isinstance(given, int) and not isinstance(given, bool):
            if given == number:
                return event.raw
            raw, places = _NUMBER.subn(b"\\g<1>%d" % number, event.raw)
            if places == 1:
                return raw
        return sse.event(cast("str", event.value["type"]), {**event.value, "sequence_number": number})
