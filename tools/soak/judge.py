"""A record -> a verdict: unterminated streams, lies, leaks, orphans, and what was left. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tools.probe.exits import LIE, TRUTHFUL
from tools.probe.target import APIS, Api
from tools.soak.record import (
    ANSWERED,
    UNTERMINATED,
    AtTheEnd,
    Ending,
    Fault,
    Orphan,
    Sample,
    Seen,
    SeriesName,
)
from tools.soak.slope import Growth, Point, judge_growth

WARM_UP = 0.25
"""This share of a run is not looked at for leaks: caches fill, pools grow."""
LIFE_WARM_UP = 0.5
"""The same of each life of an engine that was restarted: a model is loaded at its beginning."""
MIB = 1 << 20
FLOORS: Mapping[SeriesName, float] = {
    "server memory": 16 * MIB,
    "server threads": 4,
    "server descriptors": 8,
    "engine memory": 64 * MIB,
    "engine threads": 4,
    "engine descriptors": 8,
    "processes": 2,
    "GPU memory of the tree": 64 * MIB,
    "GPU memory in use": 128 * MIB,
}
"""A growth below this does not matter, however sure it is."""
ENGINE_SERIES: frozenset[SeriesName] = frozenset(
    {"engine memory", "engine threads", "engine descriptors", "GPU memory of the tree"}
)
IN_FLIGHT_S = 0.1
"""What the engine had made before it died may come so much later."""
AT_ONCE_S = 5.0
"""Who hides a death says so within this time: later, another engine may have made the rest."""
LEAST_HIDDEN = 3
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a run is judged by. `evidence`: what was seen, at most some lines of it."""

    name: str
    bad: bool
    text: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """A series, and what was made of it."""

    name: SeriesName
    growth: Growth
    first: float
    last: float
    highest: float


@dataclass(frozen=True, slots=True)
class FaultReport:
    """What followed a fault. `endings` are those of the streams that were open; `last_ending_s` and `recovered_s` count
    from the fault: when the last of them had ended, and when a stream that began later had its first token."""

    fault: Fault
    endings: Mapping[Ending, int]
    last_ending_s: float | None
    recovered_s: float | None


@dataclass(frozen=True, slots=True)
class Judgement:
    items: tuple[Item, ...]
    lines: tuple[Line, ...] = ()
    faults: tuple[FaultReport, ...] = ()
    by_api: Mapping[Api, Mapping[Ending, int]] = field(default_factory=dict[Api, Mapping[Ending, int]])

    @property
    def truthful(self) -> bool:
        return not any(item.bad for item in self.items)

    @property
    def status(self) -> int:
        return TRUTHFUL if self.truthful else LIE


def judge(
    streams: Sequence[Seen],
    samples: Sequence[Sample],
    faults: Sequence[Fault],
    orphans: Sequence[Orphan],
    end: AtTheEnd,
) -> Judgement:
    lines = tuple(_lines(samples))
    counts: dict[Api, Counter[Ending]] = {}
    for seen in streams:
        counts.setdefault(seen.api, Counter())[seen.ending] += 1
    by_api: dict[Api, Mapping[Ending, int]] = {api: counts[api] for api in APIS if api in counts}
    items = (
        _streams_item("unterminated streams", UNTERMINATED, streams),
        _streams_item("lies", frozenset({Ending.LIE}), streams),
        _limits_item(streams),
        _hidden_item(faults, streams),
        _streams_item("broken format", frozenset({Ending.BROKEN}), streams),
        _leaks_item(lines),
        _orphans_item(orphans),
        _queue_item(end),
        _server_item(end),
    )
    return Judgement(items, lines, tuple(_fault_reports(faults, streams)), by_api)


# --- items -------------------------------------------------------------------------------------------


def _streams_item(name: str, endings: frozenset[Ending], streams: Sequence[Seen]) -> Item:
    bad = [seen for seen in streams if seen.ending in endings]
    judged = sum(seen.ending in ANSWERED for seen in streams)
    evidence = [f"stream {seen.number} ({seen.api}, at {seen.begun_s:.1f} s): {'; '.join(seen.why)}" for seen in bad]
    return Item(name, bool(bad), f"{len(bad)} of {judged}", tuple(_cut(evidence)))


def _limits_item(streams: Sequence[Seen]) -> Item:
    """Streams that had all the tokens that were allowed and said that they were finished. One may have ended with just
    its last token; most of an API's can't have."""
    bad: list[str] = []
    count = 0
    used_up = [seen for seen in streams if seen.used_up and seen.ending is not Ending.LEFT]
    for api in APIS:
        whole = [seen for seen in used_up if seen.api == api]
        said = [seen for seen in whole if seen.success]
        count += len(said)
        if len(said) >= LEAST_HIDDEN and len(said) > len(whole) / 2:
            example = f"stream {said[0].number} with {said[0].limit_tokens} tokens"
            bad.append(f"{api}: {len(said)} of {len(whole)}, as {example}")
    text = f"{count} of {len(used_up)} that had all the tokens that were allowed"
    return Item("limits told as success", bool(bad), text, tuple(bad))


def _hidden_item(faults: Sequence[Fault], streams: Sequence[Seen]) -> Item:
    """Streams that had tokens when the engine was killed and got none afterwards, and still said that they were
    finished. One may have been finished just then; most of those that were hit can't have been."""
    kills = [fault for fault in faults if fault.kind == "kill" and fault.error is None]
    hit: list[Seen] = []
    hidden: list[tuple[Seen, Fault]] = []
    for kill in kills:
        for seen in streams:
            first_s, last_s = seen.first_token_s, seen.last_token_s
            if first_s is None or last_s is None or seen.ending is Ending.LEFT:
                continue
            if not seen.begun_s + first_s < kill.at_s < seen.ended_s:
                continue
            dead_s = kill.at_s + kill.took_s
            if seen.begun_s + last_s > dead_s + IN_FLIGHT_S:
                continue  # it was another engine's
            hit.append(seen)
            if seen.success and seen.ended_s <= dead_s + AT_ONCE_S:
                hidden.append((seen, kill))
    bad = len(hidden) >= LEAST_HIDDEN and len(hidden) > len(hit) / 2
    evidence = [
        f"stream {seen.number} ({seen.api}): success {seen.ended_s - kill.at_s:.2f} s after the kill"
        for seen, kill in hidden
    ]
    text = f"{len(hidden)} of {len(hit)} that a kill met in mid-answer" if kills else "no kills were made"
    return Item("deaths told as success", bad, text, tuple(_cut(evidence)) if bad else ())


def _leaks_item(lines: Sequence[Line]) -> Item:
    leaks = [line for line in lines if line.growth.leak]
    judged = [line for line in lines if line.growth.slope is not None]
    if leaks:
        text = ", ".join(line.name for line in leaks)
    elif judged:
        text = f"none in {len(judged)} series"
    else:
        text = "nothing was watched for long enough to say" if lines else "nothing was watched"
    return Item("leaks", bool(leaks), text, tuple(f"{line.name}: {growth_text(line)}" for line in leaks))


def _orphans_item(orphans: Sequence[Orphan]) -> Item:
    evidence = [
        f"process {orphan.pid} ({orphan.name}), {orphan.alive_s:.0f} s outside of the tree" for orphan in orphans
    ]
    return Item("orphans", bool(orphans), str(len(orphans) or "none"), tuple(_cut(evidence)))


def _queue_item(end: AtTheEnd) -> Item:
    left = end.running or end.waiting
    text = f"{end.running} running, {end.waiting} waiting after all clients had left" if left else "nothing"
    return Item("left in the queue", bool(left), text)


def _server_item(end: AtTheEnd) -> Item:
    if end.server_ended is not None:
        return Item("server", True, "ended by itself", (end.server_ended,))
    if end.not_stopped:
        return Item("server", True, "did not stop when it was told to")
    return Item("server", False, "served to the end")


def _cut(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - SHOWN
    return [*lines[:SHOWN], *([f"and {rest} more"] if rest > 0 else [])]


# --- series ------------------------------------------------------------------------------------------


def _lines(samples: Sequence[Sample]) -> list[Line]:
    made: list[Line] = []
    for name, floor in FLOORS.items():
        points = [Point(one.streams, one.values[name], one.life) for one in samples if name in one.values]
        if not points:
            continue
        warm = [
            Point(one.streams, one.values[name], one.life)
            for one in samples
            if name in one.values and one.share >= WARM_UP
        ]
        judged = _settled(warm) if name in ENGINE_SERIES else [Point(point.streams, point.value) for point in warm]
        values = [point.value for point in points]
        made.append(Line(name, judge_growth(judged, floor=floor), values[0], values[-1], max(values)))
    return made


def _settled(points: Sequence[Point]) -> list[Point]:
    """Each life without its beginning; all of it where there was only one."""
    lives: dict[int, list[Point]] = {}
    for point in points:
        lives.setdefault(point.life, []).append(point)
    if len(lives) == 1:
        return list(points)
    return [point for life in lives.values() for point in life[round(LIFE_WARM_UP * len(life)) :]]


def growth_text(line: Line) -> str:
    """The slope with its error, for 1000 streams, in the series' unit."""
    slope = line.growth.slope
    if slope is None:
        return line.growth.why
    unit, scale = unit_of(line.name)
    per_1000, error = 1_000 * slope.per_stream / scale, 1_000 * slope.error / scale
    value = f"{per_1000:+.3g} ± {error:.2g} {unit}".rstrip()
    return f"{value} for 1000 streams, over {slope.span:.0f}: {line.growth.why}"


def unit_of(name: SeriesName) -> tuple[str, float]:
    """What a series is shown in, and how much one of it is."""
    return ("MiB", MIB) if "memory" in name else ("", 1)


# --- faults ------------------------------------------------------------------------------------------


def _fault_reports(faults: Sequence[Fault], streams: Sequence[Seen]) -> list[FaultReport]:
    made: list[FaultReport] = []
    for fault in faults:
        at_s = fault.at_s
        hit = [seen for seen in streams if seen.begun_s <= at_s < seen.ended_s and seen.ending is not Ending.LEFT]
        later = [
            seen.begun_s + seen.first_token_s - at_s
            for seen in streams
            if seen.begun_s > at_s and seen.first_token_s is not None
        ]
        last_s = max((seen.ended_s - at_s for seen in hit), default=None)
        made.append(FaultReport(fault, Counter(seen.ending for seen in hit), last_s, min(later, default=None)))
    return made


def median_recovery_s(reports: Sequence[FaultReport]) -> float | None:
    times = [one.recovered_s for one in reports if one.fault.kind == "kill" and one.recovered_s is not None]
    return statistics.median(times) if times else None
