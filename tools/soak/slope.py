"""A line through what was watched, and how sure its slope is: least squares, with an error that is not too small.

It runs along the streams that had ended, not along the time: what a server leaks it leaks by its work, and a run may
stand still. What is watched moves slowly, so that one sample says much of the next; the error is widened by that. A
series may have several lives (an engine that was restarted): each has its own level, all share the slope. Pure: no
clock, no chance.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_POINTS = 12
CLEAR = 4.0
"""A slope is clear when it is so many times its error."""
STILL = 2.0
"""The same for the last half alone, which has less to tell by."""
LEAST_LIFE = 6
"""A life with fewer points says nothing."""


@dataclass(frozen=True, slots=True)
class Point:
    """`streams` is how many had ended by then."""

    streams: float
    value: float
    life: int = 0


@dataclass(frozen=True, slots=True)
class Slope:
    """`per_stream` with its standard error; `span`: the streams that it was watched for, all lives together. The line
    goes through `level` at `middle` streams."""

    per_stream: float
    error: float
    count: int
    span: float
    level: float
    middle: float

    @property
    def growth(self) -> float:
        """By how much it grew while it was watched, as the line says."""
        return self.per_stream * self.span

    def clear(self, times: float = CLEAR) -> bool:
        """Whether it rises, and chance does not explain it."""
        return self.per_stream > times * self.error and self.per_stream > 0


def merged(points: Sequence[Point]) -> list[Point]:
    """One point, the mean, for those that follow one another at the same place: they say one thing, not many."""
    made: list[Point] = []
    for (streams, life), group in itertools.groupby(points, key=lambda point: (point.streams, point.life)):
        values = [point.value for point in group]
        made.append(Point(streams, math.fsum(values) / len(values), life))
    return made


def fit(points: Sequence[Point]) -> Slope | None:
    """The line; None: too few points to say anything."""
    by_life: defaultdict[int, list[Point]] = defaultdict(list)
    for point in points:
        by_life[point.life].append(point)
    lives = [life for life in by_life.values() if len(life) >= LEAST_LIFE]
    count = sum(map(len, lives))
    if count < LEAST_POINTS:
        return None
    centred: list[list[tuple[float, float]]] = []
    for life in lives:
        middle = math.fsum(point.streams for point in life) / len(life)
        level = math.fsum(point.value for point in life) / len(life)
        centred.append([(point.streams - middle, point.value - level) for point in life])
    square = math.fsum(at * at for life in centred for at, _ in life)
    if square <= 0:
        return None
    per_stream = math.fsum(at * value for life in centred for at, value in life) / square
    left = [[value - per_stream * at for at, value in life] for life in centred]
    everything = [point for life in lives for point in life]
    level = math.fsum(point.value for point in everything) / count
    middle = math.fsum(point.streams for point in everything) / count
    span = sum(life[-1].streams - life[0].streams for life in lives)
    return Slope(per_stream, _error(left, square, count), count, span, level, middle)


def _error(left: list[list[float]], square: float, count: int) -> float:
    """The slope's standard error from what the line leaves over. Source: Bartlett 1935, for a first-order process the
    variance of a mean grows by (1 + r) / (1 - r), and so does that of a slope over a long series."""
    whole = math.fsum(rest * rest for life in left for rest in life)
    if whole <= 0:
        return 0.0
    follow = math.fsum(a * b for life in left for a, b in itertools.pairwise(life)) / whole
    # each life's mean and the slope were taken out of the points, which makes r look smaller than it is
    follow = min(0.99, max(0.0, follow + (1 + 4 * follow) / count * len(left)))
    widened = (1 + follow) / (1 - follow)
    freedom = max(1.0, count / widened - len(left) - 1)
    return math.sqrt(whole / freedom / square)


@dataclass(frozen=True, slots=True)
class Growth:
    """A series' slope, that of its last half, and what was made of them."""

    slope: Slope | None
    last_half: Slope | None
    leak: bool
    why: str


def judge_growth(points: Sequence[Point], *, floor: float, share: float = 0.05) -> Growth:
    """Whether it is a leak: it rises clearly, still does in the last half, and by more than `floor` and by more than
    this share of its level while it was watched. What fills up and then stays (a cache) is none."""
    points = merged(points)
    slope = fit(points)
    if slope is None:
        return Growth(None, None, False, "too short to say")
    last = fit(points[len(points) // 2 :])
    if not slope.clear():
        falls = slope.per_stream < -CLEAR * slope.error
        return Growth(slope, last, False, "falls" if falls else "no clear rise")
    if slope.growth <= floor or slope.growth <= share * slope.level:
        return Growth(slope, last, False, "rises, too little to matter")
    if last is None:
        return Growth(slope, last, False, "rises; too short to say whether it goes on")
    if not last.clear(STILL) or last.growth <= floor / 4:
        return Growth(slope, last, False, "rose, and then stayed")
    return Growth(slope, last, True, "rises, and goes on")
