"""A record -> a verdict: unterminated streams, lies, leaks, orphans, and what was left. Pure."""

from __future__ import annotations

import bisect
import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
MEMORY_SERIES: frozenset[SeriesName] = frozenset(name for name in FLOORS if "memory" in name)
IN_FLIGHT_S = 0.1
"""What the engine had made before it died may come so much later."""
AT_ONCE_S = 5.0
"""Who hides a death says so within this time: later, another engine may have made the rest."""
LEAST_HIDDEN = 3
SHOWN = 10
CACHE_HINT = (
    "a cache that is not full yet looks the same: a longer run tells them apart, and so does --cache-mib with what the "
    "server's caches may take"
)


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
    """What followed a fault. `endings` are those of the streams that it met in mid-answer, `others` of those that were
    open beside them. `last_ending_s` (of the former) and `recovered_s` count from the fault; the latter is when the
    next stream had its first token, whenever it had begun."""

    fault: Fault
    endings: Mapping[Ending, int]
    others: Mapping[Ending, int]
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
    *,
    cache_bytes: int = 0,
) -> Judgement:
    """`cache_bytes`: by so much memory may grow above the first sample before its growth is looked at."""
    lines = tuple(_lines(samples, cache_bytes))
    met = _met(faults, streams)
    counts: dict[Api, Counter[Ending]] = {}
    for seen in streams:
        counts.setdefault(seen.api, Counter())[seen.ending] += 1
    by_api: dict[Api, Mapping[Ending, int]] = {api: counts[api] for api in APIS if api in counts}
    items = (
        _streams_item("unterminated streams", UNTERMINATED, streams),
        _streams_item("lies", frozenset({Ending.LIE}), streams),
        _limits_item(streams),
        _hidden_item(met),
        _streams_item("broken format", frozenset({Ending.BROKEN}), streams),
        _leaks_item(lines),
        _orphans_item(orphans),
        _queue_item(end),
        _server_item(end),
    )
    return Judgement(items, lines, tuple(_fault_reports(met, streams)), by_api)


# --- items -------------------------------------------------------------------------------------------


def _streams_item(name: str, endings: frozenset[Ending], streams: Sequence[Seen]) -> Item:
    """What is wrong with many streams of an API in the same way is told once."""
    bad = [seen for seen in streams if seen.ending in endings]
    judged = sum(seen.ending in ANSWERED for seen in streams)
    alike: dict[tuple[Api, tuple[str, ...]], list[Seen]] = {}
    for seen in bad:
        alike.setdefault((seen.api, seen.why), []).append(seen)
    evidence: list[str] = []
    for (api, why), group in alike.items():
        first = group[0]
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        evidence.append(f"stream {first.number} ({api}, at {first.begun_s:.1f} s){more}: {'; '.join(why)}")
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


def _hidden_item(met: Sequence[_Met]) -> Item:
    """Streams that had tokens when the engine was killed and got none afterwards, and still said that they were
    finished. One may have been finished just then; most of those that were hit can't have been."""
    kills = [one for one in met if one.fault.kind == "kill" and one.fault.error is None]
    hit = sum(len(one.hit) for one in kills)
    hidden = [
        (seen, one.fault.at_s)
        for one in kills
        for seen in one.hit
        if seen.success and seen.ended_s <= one.fault.at_s + one.fault.took_s + AT_ONCE_S
    ]
    bad = len(hidden) >= LEAST_HIDDEN and len(hidden) > hit / 2
    evidence = [
        f"stream {seen.number} ({seen.api}): success {seen.ended_s - at_s:.2f} s after the kill"
        for seen, at_s in hidden
    ]
    text = f"{len(hidden)} of {hit} that a kill met in mid-answer" if kills else "no kills were made"
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
    evidence = [f"{line.name}: {growth_text(line)}" for line in leaks]
    if any(line.name in MEMORY_SERIES for line in leaks):
        evidence.append(CACHE_HINT)
    return Item("leaks", bool(leaks), text, tuple(evidence))


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


def _lines(samples: Sequence[Sample], cache_bytes: int) -> list[Line]:
    made: list[Line] = []
    for name, floor in FLOORS.items():
        points = [(one.share, Point(one.streams, one.values[name], one.life)) for one in samples if name in one.values]
        if not points:
            continue
        values = [point.value for _, point in points]
        room = values[0] + cache_bytes if cache_bytes and name in MEMORY_SERIES else -math.inf
        warm = [replace(point, value=max(point.value, room)) for share, point in points if share >= WARM_UP]
        judged = _settled(warm) if name in ENGINE_SERIES else [replace(point, life=0) for point in warm]
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
    # as many decimals as the error says something about
    digits = min(3, max(0, 1 - math.floor(math.log10(error)))) if error > 0 else 0
    value = f"{per_1000:+,.{digits}f} ± {error:,.{digits}f} {unit}".rstrip()
    return f"{value} for 1000 streams, over {slope.span:.0f}: {line.growth.why}"


def unit_of(name: SeriesName) -> tuple[str, float]:
    """What a series is shown in, and how much one of it is."""
    return ("MiB", MIB) if "memory" in name else ("", 1)


# --- faults ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Met:
    """A fault, and the streams that were open: those that it hit in mid-answer, and those that had no token yet or got
    more of another engine."""

    fault: Fault
    hit: Sequence[Seen]
    others: Sequence[Seen]


def _over_s(fault: Fault) -> float:
    """From when on a token was made after the fault had come."""
    return fault.at_s + (fault.took_s if fault.kind == "kill" else 0.0) + IN_FLIGHT_S


def _met(faults: Sequence[Fault], streams: Sequence[Seen]) -> list[_Met]:
    """In the faults' order. A run of days has many of both: each stream is looked at while it is open only."""
    made: dict[int, _Met] = {}
    order = sorted(range(len(faults)), key=lambda number: faults[number].at_s)
    for number, open_then in zip(order, _open_at([faults[number].at_s for number in order], streams), strict=True):
        fault = faults[number]
        hit = [seen for seen in open_then if _was_hit(seen, fault)]
        others = [seen for seen in open_then if not _was_hit(seen, fault)]
        made[number] = _Met(fault, hit, others)
    return [made[number] for number in range(len(faults))]


def _open_at(times_s: Sequence[float], streams: Sequence[Seen]) -> Iterator[list[Seen]]:
    """The streams that were open at each of these times, which rise; without those that we left."""
    coming = sorted((seen for seen in streams if seen.ending is not Ending.LEFT), key=lambda seen: seen.begun_s)
    next_one = 0
    now_open: list[tuple[float, int]] = []
    for at_s in times_s:
        while next_one < len(coming) and coming[next_one].begun_s <= at_s:
            heapq.heappush(now_open, (coming[next_one].ended_s, next_one))
            next_one += 1
        while now_open and now_open[0][0] <= at_s:
            heapq.heappop(now_open)
        yield [coming[place] for _, place in sorted(now_open)]


def _was_hit(seen: Seen, fault: Fault) -> bool:
    if seen.first_token_s is None or seen.last_token_s is None or seen.begun_s + seen.first_token_s >= fault.at_s:
        return False
    return fault.kind != "kill" or seen.begun_s + seen.last_token_s <= _over_s(fault)


def _fault_reports(met: Sequence[_Met], streams: Sequence[Seen]) -> list[FaultReport]:
    firsts = sorted(seen.begun_s + seen.first_token_s for seen in streams if seen.first_token_s is not None)
    made: list[FaultReport] = []
    for one in met:
        at_s = one.fault.at_s
        place = bisect.bisect_right(firsts, _over_s(one.fault))
        recovered_s = firsts[place] - at_s if place < len(firsts) else None
        last_s = max((seen.ended_s - at_s for seen in one.hit), default=None)
        endings, others = (Counter(seen.ending for seen in group) for group in (one.hit, one.others))
        made.append(FaultReport(one.fault, endings, others, last_s, recovered_s))
    return made
