"""A pipe engine over the scripted fake, and consumers of its streams."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest

from engine.api import Cancel, TokenRequest
from engine.events import Accepted, Cancelled, EngineEvent, Failed, Finished, Progress, Terminal, Token
from engine.fake.harness import FakeEngine
from engine.pipe import StrataEngine

DEADLINE_S = 20.0

Steps: TypeAlias = "list[dict[str, Any]]"
GOOD: Steps = [{"text": "Hello"}, {"done": "stop"}]
HELLO = list(b"Hello")
ENDLESS: Steps = [{"text": "x", "repeat": 100_000, "pace_s": 0.001}]
STALL: Steps = [{"text": "He"}, {"stall": True}]

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals")


def script(*requests: Steps, **options: Any) -> dict[str, Any]:
    """The answers in order, then good ones."""
    return {"requests": [*requests, GOOD], **options}


def lives(*scripts: dict[str, Any]) -> dict[str, Any]:
    """One script per life, then good ones."""
    return {"lives": [*scripts, script()]}


class Rig:
    """The engine under test and the fake behind it."""

    def __init__(self, values: dict[str, Any], folder: Path, **options: Any) -> None:
        self.fake = FakeEngine(values, folder)
        options.setdefault("stop_grace_s", 2.0)
        options.setdefault("lazy", True)
        self.engine = StrataEngine(self.fake.exe, self.fake.args, kind="fake", **options)

    def open(self, ids: list[int] | None = None, max_tokens: int = 100, cancel: Cancel | None = None) -> Stream:
        request = TokenRequest(ids or [65], max_tokens)
        return cast("Stream", self.engine.stream(request, cancel or Cancel()))

    def run(self, ids: list[int] | None = None, max_tokens: int = 100, cancel: Cancel | None = None) -> Outcome:
        with closing(self.open(ids, max_tokens, cancel)) as stream:
            return Outcome(list(stream))

    def tokens(self, ids: list[int] | None = None) -> list[int]:
        """The tokens of an answer that has to be whole."""
        outcome = self.run(ids)
        assert isinstance(outcome.terminal, Finished), outcome
        return outcome.tokens


Stream: TypeAlias = "Generator[EngineEvent, None, None]"


class Outcome:
    """All that one stream gave; the form that holds for every stream is checked."""

    def __init__(self, events: list[EngineEvent]) -> None:
        self.events = events
        terminals = [event for event in events if isinstance(event, Finished | Cancelled | Failed)]
        assert len(terminals) == 1, terminals
        assert events[-1] is terminals[0]
        self.terminal: Terminal = terminals[0]
        self.accepted = Accepted() in events
        assert events.count(Accepted()) <= 1
        first = next((at for at, event in enumerate(events) if isinstance(event, Token | Progress)), None)
        assert first is None or Accepted() in events[:first]
        self.tokens = [event.id for event in events if isinstance(event, Token)]

    @property
    def failed(self) -> Failed:
        assert isinstance(self.terminal, Failed), self.terminal
        return self.terminal

    def __repr__(self) -> str:
        return f"Outcome({[event for event in self.events if not isinstance(event, Token)]}, {len(self.tokens)} tokens)"


class Consumer:
    """A stream read on a thread of its own."""

    def __init__(self, rig: Rig, ids: list[int] | None = None, max_tokens: int = 100) -> None:
        self.cancel = Cancel()
        self._rig, self._ids, self._max_tokens = rig, ids, max_tokens
        self._changed = threading.Condition()
        self._events: list[EngineEvent] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for event in self._rig.open(self._ids, self._max_tokens, self.cancel):
            with self._changed:
                self._events.append(event)
                self._changed.notify_all()

    def wait_tokens(self, count: int) -> None:
        self.wait(lambda events: sum(isinstance(event, Token) for event in events) >= count)

    def wait(self, found: Callable[[list[EngineEvent]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: found(self._events), DEADLINE_S), self._events

    def outcome(self) -> Outcome:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), self._events
        return Outcome(self._events)


def read_tokens(stream: Stream, count: int) -> list[int]:
    """The next tokens; the stream stays open."""
    found: list[int] = []
    while len(found) < count:
        event = next(stream)
        if isinstance(event, Token):
            found.append(event.id)
    return found


def read_until(stream: Stream, kind: type[EngineEvent]) -> EngineEvent:
    """The next event of this class; the stream stays open."""
    return next(event for event in iter(lambda: next(stream), None) if isinstance(event, kind))
