"""A line through what was watched, and how sure its slope is: least squares, with an error that is not too small.

What is watched moves slowly, so that one sample says much of the next; the error is widened by that. A series may have
several lives (an engine that was restarted): each has its own level, all share the slope. Pure: no clock, no chance.
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
    at_s: float
    value: float
    life: int = 0


@dataclass(frozen=True, slots=True)
class Slope:
    """`per_s` with its standard error; `span_s`: the time that it was watched for, all lives together."""

    per_s: float
    error_per_s: float
    count: int
    span_s: float
    level: float

    @property
    def growth(self) -> float:
        """By how much it grew while it was watched, as the line says."""
        return self.per_s * self.span_s

    @property
    def growth_error(self) -> float:
        return self.error_per_s * self.span_s

    def clear(self, times: float = CLEAR) -> bool:
        """Whether it rises, and chance does not explain it."""
        return self.per_s > times * self.error_per_s and self.per_s > 0


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
    span_s = 0.0
    for life in lives:
        mean_s = math.fsum(point.at_s for point in life) / len(life)
        mean = math.fsum(point.value for point in life) / len(life)
        centred.append([(point.at_s - mean_s, point.value - mean) for point in life])
        span_s += life[-1].at_s - life[0].at_s
    square = math.fsum(at * at for life in centred for at, _ in life)
    if square <= 0:
        return None
    per_s = math.fsum(at * value for life in centred for at, value in life) / square
    left = [[value - per_s * at for at, value in life] for life in centred]
    level = math.fsum(point.value for life in lives for point in life) / count
    return Slope(per_s, _error(left, square, count), count, span_s, level)


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
    slope = fit(points)
    if slope is None:
        return Growth(None, None, False, "too short to say")
    last = fit(points[len(points) // 2 :])
    if not slope.clear():
        return Growth(slope, last, False, "flat within its error" if slope.per_s >= 0 else "falls")
    if slope.growth <= floor or slope.growth <= share * slope.level:
        return Growth(slope, last, False, "rises, too little to matter")
    if last is None:
        return Growth(slope, last, False, "rises; too short to say whether it goes on")
    if not last.clear(STILL) or last.growth <= floor / 4:
        return Growth(slope, last, False, "rose, and then stayed")
    return Growth(slope, last, True, "rises, and goes on")
