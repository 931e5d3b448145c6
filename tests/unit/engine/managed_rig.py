"""A managed upstream for tests: its command is `tests/managed_server.py`; what that noted can be read here."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeAlias, cast

import psutil

from engine.api import Cancel, ChatRequest
from engine.events import Cancelled, Event, Failed, Finished, Text, Tick
from engine.managed import ManagedUpstream

DEADLINE_S = 30.0
SERVER = Path(__file__).parents[2] / "managed_server.py"


class Rig:
    """An engine over the program, and the program's folder."""

    def __init__(self, folder: Path, *modes: str, port: str = "{port}", **options: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-S", str(SERVER), port, str(folder), *modes]
        self.engine = ManagedUpstream(command, **options)

    # --- what the program noted --------------------------------------------------------------------

    def notes(self, name: str) -> list[str]:
        try:
            whole, _, _ = (self.folder / name).read_text(encoding="utf-8").rpartition("\n")
        except FileNotFoundError:
            return []
        return whole.splitlines()

    def pids(self) -> list[int]:
        """The process ids of the lives so far."""
        return [int(line) for line in self.notes("lives")]

    def grandchildren(self) -> list[int]:
        return [int(line) for line in self.notes("grandchildren")]

    def variables(self) -> set[str]:
        """The names in the environment of the first life."""
        return set(json.loads(self.notes("environment")[0]))

    def cue(self, name: str) -> None:
        (self.folder / name).touch()

    # --- answers -----------------------------------------------------------------------------------

    def stream(self, text: str, cancel: Cancel | None = None) -> Generator[Event, None, None]:
        request = ChatRequest({"messages": [{"role": "user", "content": text}]})
        return cast("Generator[Event, None, None]", self.engine.stream(request, cancel or Cancel()))

    def ask(self, text: str) -> list[Event]:
        """All events but the ticks; exactly one terminal, at the end."""
        events: list[Event] = [event for event in self.stream(text) if not isinstance(event, Tick)]
        assert [isinstance(event, Finished | Failed | Cancelled) for event in events].index(True) == len(events) - 1
        return events

    def answer(self, text: str = "hi") -> str:
        """The text of an answer that ends well."""
        *events, end = self.ask(text)
        assert isinstance(end, Finished), end
        assert end.reason == "stop"
        return text_of(events)

    def failure(self, text: str) -> Failed:
        end = self.ask(text)[-1]
        assert isinstance(end, Failed), end
        return end


Make: TypeAlias = Callable[..., Rig]
"""`make(*modes, **options)`: a rig that is closed after the test."""


class Clock:
    """A monotonic clock that runs a hundred seconds ahead at every look once the test says so."""

    def __init__(self) -> None:
        self.fast = False
        self._ahead_s = 0.0

    def monotonic(self) -> float:
        self._ahead_s += 100.0 if self.fast else 0.0
        return time.monotonic() + self._ahead_s


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def until_text(events: Generator[Event, None, None]) -> None:
    """Read until some text came."""
    assert any(isinstance(event, Text) for event in events)


def wait_for(found: Callable[[], bool]) -> None:
    """Raises: AssertionError: it was not so within the deadline."""
    pause, end_s = threading.Event(), time.monotonic() + DEADLINE_S
    while not found():
        assert time.monotonic() < end_s, "it did not happen"
        pause.wait(0.01)


def gone(pid: int) -> bool:
    """Whether no such process runs (a zombie that its new parent has not collected yet does not)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def failed(events: list[Event]) -> Failed:
    assert isinstance(events[-1], Failed), events[-1]
    return events[-1]
