"""What the honest server's engine makes of a request, piece by piece: it can be killed, halted, left and waited for."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tools.probe.target import Api
from tools.probe.values import as_list

Json = dict[str, Any]
WORDS = ("one ", "two ", "three ", "four ", "five ", "six ", "seven ")
PACED_FROM = 64
QUICK_S = 0.002
"""The time of each piece of an answer that is not so long."""
BEGUN = 2
"""Long answers are paced from here on."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `limit`: tokens at most."""

    method: str
    path: str
    query: dict[str, str]
    version: str
    headers: dict[str, str]
    value: Json
    api: Api = "chat"

    @property
    def stream(self) -> bool:
        return self.value.get("stream") is True or self.query.get("stream") == "true"

    @property
    def limit(self) -> int:
        told = self.value.get("max_output_tokens" if self.api == "responses" else "max_tokens")
        return told if isinstance(told, int) else 512

    @property
    def prompt(self) -> str:
        return str(self.value.get("prompt") or self.value.get("input") or self.value.get("messages"))

    @property
    def stops(self) -> list[str]:
        told = self.value.get("stop") or self.value.get("stop_sequences")
        return [told] if isinstance(told, str) else [str(each) for each in as_list(told)]


@dataclass(frozen=True, slots=True)
class Piece:
    """`kind`: what it is of; `beat`: nothing, time passed."""

    kind: Literal["text", "call", "arguments", "beat"]
    text: str = ""


Outcome = Literal["finished", "limit", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class End:
    """`stop`: the stop string that ended it."""

    outcome: Outcome
    made: int
    stop: str | None = None
    error: str = ""


Event = Piece | End


@dataclass(slots=True)
class Run:
    """One request's place in the engine. `gone`: whether its client has left."""

    gone: Callable[[], bool] = lambda: False
    cancelled: threading.Event = field(default_factory=threading.Event)


class Full(Exception):
    """The queue is full."""


@dataclass(slots=True)
class Engine:
    """`pieces`, `pace_s`: how many pieces a long answer has at most, and the time of each."""

    slots: int = 2
    queue_max: int = 3
    beat_s: float = 0.02
    pieces: int = 100_000
    pace_s: float = 0.01
    silence_s: float = 0.5
    # what a liar's engine does otherwise
    obeys_stops: bool = True
    calls: bool = True
    haunted: bool = False
    """Fails after a long answer was begun."""
    serves_waiting: bool = True
    death: Outcome = "failed"
    """What its end is called when it is killed."""
    running: int = 0
    waiting: int = 0
    life: int = 0
    stalled: bool = False
    hurries: bool = False
    long_before: bool = False
    """After it stood still, until the next answer."""
    news: threading.Condition = field(default_factory=threading.Condition)

    def kill(self) -> None:
        with self.news:
            self.life += 1
            self.stalled = False
            self.news.notify_all()

    def stall(self) -> None:
        with self.news:
            self.stalled = True

    def resume(self) -> None:
        with self.news:
            self.stalled, self.hurries = False, True
            self.news.notify_all()

    # --- one answer -------------------------------------------------------------------------------

    def answer(self, ask: Ask, run: Run) -> Iterator[Event]:
        """Blocks as it is read. Raises, before the first event: Full."""
        with self.news:
            if self.running >= self.slots and self.waiting >= self.queue_max:
                raise Full
            self.waiting += 1
        return self._answer(ask, run)

    def _answer(self, ask: Ask, run: Run) -> Iterator[Event]:
        waits, waited = True, False
        try:
            while True:
                with self.news:
                    if self.running < self.slots:
                        self.running += 1
                        self.waiting -= 1
                        waits = False
                        break
                    self.news.wait(self.beat_s)
                if run.gone() or run.cancelled.is_set():
                    yield End("cancelled", 0)
                    return
                waited = True
                yield Piece("beat")
            if waited and not self.serves_waiting:
                yield End("failed", 0, error="it waited")
                return
            yield from self._run(ask, run)
        finally:
            with self.news:
                if waits:
                    self.waiting -= 1
                else:
                    self.running -= 1
                self.news.notify_all()

    def _run(self, ask: Ask, run: Run) -> Iterator[Event]:
        life, made, text = self.life, 0, ""
        self.hurries = False
        if self.haunted and self.long_before:
            yield End("failed", 0, error="a ghost")
            return
        self.long_before = ask.limit > 1000
        for piece in plan(ask, self.pieces, calls=self.calls):
            if made >= min(ask.limit, self.pieces):
                yield End("limit" if made >= ask.limit else "finished", made)
                return
            if ask.limit >= PACED_FROM and made >= BEGUN and piece.kind != "call":
                for _ in self._pace(run, QUICK_S if ask.limit < 1000 else self.pace_s):
                    yield Piece("beat")
            if self.life != life or run.gone() or run.cancelled.is_set():
                yield self._ended(life, made)
                return
            made += piece.kind != "call"
            text += piece.text if piece.kind == "text" else ""
            stop = next((stop for stop in ask.stops if stop in text and self.obeys_stops), None)
            if stop is not None:
                yield Piece("text", piece.text.partition(stop)[0])
                yield End("finished", made, stop)
                return
            yield piece
        yield End("finished", made)

    def _ended(self, life: int, made: int) -> End:
        if self.life == life:
            return End("cancelled", made)
        return End(self.death, made, error="the engine was killed by signal 9")

    def _pace(self, run: Run, pace_s: float) -> Iterator[None]:
        """Wait for the next piece; one item for each heartbeat that is due meanwhile."""
        until = time.monotonic() + pace_s
        life, since = self.life, time.monotonic()
        while not run.gone() and not run.cancelled.is_set() and self.life == life:
            with self.news:
                now = time.monotonic()
                if not self.stalled and (self.hurries or now >= until):
                    return
                if self.stalled and now - since >= self.silence_s:
                    self.life += 1  # an engine that is silent for so long has failed
                    return
                self.news.wait(self.beat_s if self.stalled else max(0.0, until - now))
                beat = self.stalled
            if beat:
                yield


def plan(ask: Ask, pieces: int, *, calls: bool) -> Iterator[Piece]:
    """What the model says to that."""
    endless = itertools.islice(itertools.cycle(WORDS), pieces + 1)
    if calls and ask.value.get("tools") and "file is saved" not in ask.prompt:
        yield Piece("call", "write_file")
        if "lighthouse" in ask.prompt:
            yield Piece("arguments", '{"path": "story.txt", ')
            yield Piece("arguments", '"content": "')
            yield from (Piece("arguments", word) for word in endless)
        yield from (Piece("arguments", part) for part in ('{"path": ', '"a.txt", ', '"content": ', '"hello"', "}"))
    elif "Write a JSON object" in ask.prompt:
        yield Piece("text", '{"numbers": [')
        yield from (Piece("text", f'"{word.strip()}", ') for word in endless)
    elif "from 1 to 2000" in ask.prompt:
        yield from (Piece("text", word) for word in endless)
    else:
        yield from (Piece("text", part) for part in ("Hello", "."))


def prompt_tokens(ask: Ask) -> int:
    return 4 + len(ask.prompt.split())
