"""The figures of a run, and how they are drawn from many measurements. It measures nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Group = Literal["deaths", "first-token", "tokens", "kept", "held"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. `beside` is what it is compared with, measured in turns with it (None: it stands alone), `against`
    what that is; `ratio` is the median of the ratios of what belonged together, which is not that of the medians.
    `count`: of so many measurements."""

    name: str
    value: float
    unit: str
    beside: float | None = None
    against: str = ""
    ratio: float | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Diagram:
    title: str
    below: str
    curves: tuple[Curve, ...]
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """What one group of figures found. `raw` has the single measurements by their name."""

    group: Group
    figures: tuple[Figure, ...]
    diagrams: tuple[Diagram, ...] = ()
    raw: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


class CannotMeasure(Exception):
    """A figure could not be measured; the text says why."""


class Untrue(CannotMeasure):
    """What was to be measured is not true: a stream that was cut, or that hides how it ended."""


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def ratio_of(values: Sequence[float], beside: Sequence[float]) -> float | None:
    """The median of the ratios of those that belong together; None: one of what it is compared with is nothing."""
    if not values or min(beside) <= 0:
        return None
    return statistics.median(value / other for value, other in zip(values, beside, strict=True))


def median_figure(
    name: str, unit: str, values: Sequence[float], beside: Sequence[float] = (), against: str = ""
) -> Figure:
    """The median of many, beside that of what was measured in turns with them."""
    other = statistics.median(beside) if beside else None
    ratio = ratio_of(values, beside) if beside else None
    return Figure(name, statistics.median(values), unit, other, against, ratio, len(values))


def ranked(name: str, values: Sequence[float]) -> Curve:
    """All measurements in their order of size: the share that took no longer, over what it took."""
    ordered = sorted(values)
    return Curve(name, tuple((value, (number + 1) / len(ordered)) for number, value in enumerate(ordered)))
