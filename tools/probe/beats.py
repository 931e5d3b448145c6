"""Heartbeats and silences of a stream: of which kind, how far apart, how long nothing came. It has no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

BeatKind = Literal["comment", "ping event", "empty chunk", "repeated in_progress"]


@dataclass(slots=True)
class Beats:
    """One kind of heartbeat. Intervals are between two beats that follow one another with nothing else between."""

    kind: BeatKind
    example: str
    count: int = 0
    intervals: int = 0
    sum_s: float = 0.0
    shortest_s: float | None = None
    longest_s: float | None = None

    @property
    def mean_s(self) -> float | None:
        return self.sum_s / self.intervals if self.intervals else None


@dataclass(slots=True)
class Heartbeats:
    kinds: dict[BeatKind, Beats] = field(default_factory=dict[BeatKind, Beats])
    _last: tuple[BeatKind, float] | None = None

    def beat(self, kind: BeatKind, example: str, at_s: float) -> None:
        beats = self.kinds.setdefault(kind, Beats(kind, example))
        beats.count += 1
        if self._last is not None and self._last[0] == kind:
            interval = at_s - self._last[1]
            beats.intervals += 1
            beats.sum_s += interval
            beats.shortest_s = interval if beats.shortest_s is None else min(beats.shortest_s, interval)
            beats.longest_s = interval if beats.longest_s is None else max(beats.longest_s, interval)
        self._last = (kind, at_s)

    def other(self) -> None:
        """Something that is no beat came."""
        self._last = None

    @property
    def count(self) -> int:
        return sum(beats.count for beats in self.kinds.values())


@dataclass(slots=True)
class Silence:
    """The longest time without anything of a kind. `since_s` is where it began."""

    longest_s: float = 0.0
    since_s: float = 0.0
    _last_s: float | None = None

    def heard(self, at_s: float) -> None:
        if self._last_s is not None and at_s - self._last_s > self.longest_s:
            self.longest_s, self.since_s = at_s - self._last_s, self._last_s
        self._last_s = at_s

    @property
    def last_s(self) -> float | None:
        return self._last_s
