"""Records, entries and processes for the tests of the store."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.events import Failed, FailKind, Finished, Terminal, Text
from serve.entries import Ended, Entry, encode
from serve.store import Record, Store, Stored, Write

ROOT = Path(__file__).parents[3]
DEADLINE_S = 30.0
YEAR_S = 365 * 86_400.0
END = Ended(Finished("stop"), 1_000.5)


def record(id_: str = "r1", size: int = 3) -> Record:
    return Record(id_, "response", 999.25, True, "r0", b"head\0\xff", b"i" * size)


def texts(count: int, first: int = 0) -> list[Entry]:
    return [Text(f" {number}") for number in range(first, first + count)]


def write(id_: str, entries: Sequence[Entry], first: int = 0) -> Write:
    """Those entries from index `first` on."""
    last = entries[-1]
    return Write(id_, first, len(entries), encode(entries), last.at if isinstance(last, Ended) else None)


@contextmanager
def opened(path: Path, max_age_s: float = YEAR_S, max_bytes: int = 2**40) -> Generator[Store]:
    """A store that ended records of the year 1970 are not too old for."""
    with closing(Store(path, max_age_s=max_age_s + time.time(), max_bytes=max_bytes)) as store:
        yield store


def stored(store: Store, id_: str = "r1") -> Stored:
    found = store.load(id_)
    assert found is not None
    return found


def terminal(entries: Sequence[Entry]) -> Terminal:
    """How it ended: the last entry and no other one says so."""
    ends = [entry for entry in entries if isinstance(entry, Ended)]
    assert len(ends) == 1
    assert entries[-1] is ends[0]
    return ends[0].terminal


def lost(found: Stored) -> int:
    """The number of entries that were kept of an answer that is marked as lost: the first texts, without a gap."""
    assert found.ended
    ending = terminal(found.entries)
    assert isinstance(ending, Failed)
    assert ending.kind is FailKind.LOST
    assert found.entries[:-1] == texts(len(found.entries) - 1)
    return len(found.entries) - 1


def wait_until(found: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not found():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {DEADLINE_S} s: {what}")
        pause.wait(0.005)


@contextmanager
def child(*words: str) -> Generator[subprocess.Popen[str]]:
    """`python -m tests.unit.serve.store_child WORDS`, killed at the end."""
    argv = [sys.executable, "-m", "tests.unit.serve.store_child", *words]
    process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
    with process:
        try:
            yield process
        finally:
            process.kill()


def small_disk(monkeypatch: pytest.MonkeyPatch, pages: int) -> Callable[[int], None]:
    """Stores that are opened from here on have a full disk at so many pages; the function gives them another one."""
    real = sqlite3.connect
    links: list[sqlite3.Connection] = []

    def limit(pages: int) -> None:
        for link in links:
            link.execute(f"PRAGMA max_page_count = {pages}")

    def connect(*words: Any, **options: Any) -> sqlite3.Connection:
        links.append(real(*words, **options))
        links[-1].execute(f"PRAGMA max_page_count = {pages}")
        return links[-1]

    monkeypatch.setattr(sqlite3, "connect", connect)
    return limit


def line(process: subprocess.Popen[str]) -> str:
    """The next line that it says. The time limit of the test is its limit."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")
