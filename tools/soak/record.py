"""What a run sees, as it comes from many threads: streams, faults, samples. It judges nothing and asks nobody.

All times are seconds since the run began.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tools.probe.target import Api

MAX_EVIDENCE = 50
"""Of so many untrue streams the bytes are kept."""


class Ending(enum.StrEnum):
    """How a stream ended for its client."""

    WHOLE = "whole"
    """All that it said is true, a limit included."""
    FAILED = "failed, and said so"
    REFUSED = "refused with a status"
    LEFT = "we left"
    UNFINISHED = "still open at the end of the run"
    UNREACHABLE = "server not reached"
    CUT = "cut"
    SILENT = "silent"
    """Nothing came for as long as we wait."""
    ENDLESS = "without an end"
    BROKEN = "broken format"
    LIE = "lie"


UNTERMINATED = frozenset({Ending.CUT, Ending.SILENT, Ending.ENDLESS})
UNTRUE = UNTERMINATED | {Ending.BROKEN, Ending.LIE}
ANSWERED = frozenset({Ending.WHOLE, Ending.FAILED, Ending.LEFT}) | UNTRUE


@dataclass(frozen=True, slots=True)
class Seen:
    """One stream. `first_token_s`, `last_token_s` (both from its beginning) and `silence_s` (the longest) are lengths;
    `success`: it said that the answer was finished; `used_up`: by its own count it had all tokens that were allowed;
    `why`: what of it is untrue, or why it was refused."""

    number: int
    api: Api
    limit_tokens: int
    begun_s: float
    ended_s: float
    ending: Ending
    status: int = 0
    tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    silence_s: float = 0.0
    success: bool = False
    used_up: bool = False
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """The bytes of an untrue stream: the beginning and the end of them, `left_out` bytes between."""

    seen: Seen
    request: bytes
    begin: bytes
    end: bytes
    left_out: int


FaultKind = Literal["kill", "stall"]


@dataclass(frozen=True, slots=True)
class Fault:
    """`for_s`: how long a stall was to last; `took_s`: how long it took to make; `mid_answer`: so many streams were in
    mid-answer. `error`: why it could not be made."""

    kind: FaultKind
    at_s: float
    how: str
    for_s: float = 0.0
    took_s: float = 0.0
    mid_answer: int = 0
    error: str | None = None


SeriesName = Literal[
    "server memory",
    "server threads",
    "server descriptors",
    "engine memory",
    "engine threads",
    "engine descriptors",
    "processes",
    "GPU memory of the tree",
    "GPU memory in use",
    "running",
    "waiting",
]


@dataclass(frozen=True, slots=True)
class Sample:
    """What was read at one moment. `share` is how far the run was, `streams` how many had ended; `life` numbers the
    engine's lives."""

    at_s: float
    share: float
    streams: int
    life: int
    values: Mapping[SeriesName, float]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A process of the server's tree that lived on outside of it for `alive_s` seconds at least."""

    pid: int
    name: str
    alive_s: float


class Record:
    """Safe to use from any thread. `share` of the run: 1 at its end."""

    def __init__(self, *, minutes: float, streams: int | None) -> None:
        self.minutes = minutes
        self.wanted = streams
        self.streams: list[Seen] = []
        self.faults: list[Fault] = []
        self.samples: list[Sample] = []
        self.evidence: list[Evidence] = []
        self.orphans: dict[int, Orphan] = {}
        self.counts: Counter[Ending] = Counter()
        self._begun = time.monotonic()
        self._changed = threading.Condition()
        self._numbers = 0
        self._mid_answer: set[int] = set()
        self._open: set[int] = set()

    # --- how far ------------------------------------------------------------------------------------

    def now_s(self) -> float:
        return time.monotonic() - self._begun

    @property
    def time_is_up(self) -> bool:
        return self.now_s() >= 60 * self.minutes

    def share(self) -> float:
        """How much of the run is over: by the time, or by the streams where so many are wanted."""
        by_time = self.now_s() / (60 * self.minutes) if self.minutes > 0 else 1.0
        by_streams = len(self.streams) / self.wanted if self.wanted else 0.0
        return min(1.0, max(by_streams, by_time if self.wanted is None or by_time >= 1.0 else 0.0))

    # --- streams ------------------------------------------------------------------------------------

    def begin(self) -> int:
        """A stream is asked for; its number."""
        with self._changed:
            self._numbers += 1
            self._open.add(self._numbers)
            return self._numbers

    def first_token(self, number: int) -> None:
        with self._changed:
            self._mid_answer.add(number)
            self._changed.notify_all()

    def ended(self, seen: Seen, evidence: Evidence | None = None) -> None:
        with self._changed:
            self._open.discard(seen.number)
            self._mid_answer.discard(seen.number)
            self.streams.append(seen)
            self.counts[seen.ending] += 1
            if evidence is not None and len(self.evidence) < MAX_EVIDENCE:
                self.evidence.append(evidence)
            self._changed.notify_all()

    @property
    def open_streams(self) -> int:
        return len(self._open)

    @property
    def mid_answer(self) -> int:
        return len(self._mid_answer)

    def wait_mid_answer(self, timeout_s: float) -> int:
        """Wait until a stream is in mid-answer, so long at most; how many are."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._mid_answer), timeout_s)
            return len(self._mid_answer)

    def wait_streams(self, count: int, timeout_s: float) -> bool:
        """Wait until so many streams have ended, so long at most; whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.streams) >= count, timeout_s)

    # --- the rest -----------------------------------------------------------------------------------

    def fault(self, fault: Fault) -> None:
        with self._changed:
            self.faults.append(fault)

    def sample(self, sample: Sample) -> None:
        with self._changed:
            self.samples.append(sample)

    def orphan(self, orphan: Orphan) -> None:
        """Seen again: it is only older."""
        with self._changed:
            self.orphans[orphan.pid] = orphan

    @property
    def kills(self) -> int:
        """How many were made."""
        return sum(fault.kind == "kill" and fault.error is None for fault in self.faults)


@dataclass(frozen=True, slots=True)
class Watched:
    """What was watched, in words for the report; `missing`: what was not, and why."""

    server: str
    facts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class AtTheEnd:
    """What was found when all clients had left. `running` and `waiting`: what the server's queue still said."""

    running: int = 0
    waiting: int = 0
    server_ended: str | None = None
    """The server ended by itself, and how."""
    not_stopped: bool = False
    """It did not end when it was told to."""
    notes: list[str] = field(default_factory=list[str])
