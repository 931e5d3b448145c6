"""Figures of the gateway benchmark -> tables, and the goals beside what was reached.

A goal is information: nothing fails by it. It measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

from tools.gateway_load import Result, Spread
from tools.gateway_servers import Name

Kind = Literal["single", "burst", "paced", "open"]
FAST: Mapping[Kind, str] = {"single": "a chunk a write", "burst": "many chunks a write"}
"""What goes as fast as it is taken, by how the upstream writes it: servers write each chunk when it is made."""
Pick = Callable[["Figures"], float | None]
FULL_STREAMS = 256
LEAST_ADDED_MS = 0.01
"""Less than this is no difference that can be measured."""
BUSY_CORES = 0.25
"""If the rest of the machine used more than this, it was in the way."""
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """`rate`: chunks a second of each stream; 0: as fast as they are taken."""

    kind: Kind
    streams: int
    rate: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One server in one case. `rate` and `cpu_s` (for 10,000 chunks) are those of the time in which all streams were
    open; memory is that of its end. `others_cores`: what the rest of the machine used meanwhile."""

    name: Name
    case: Case
    result: Result
    rate: float
    cpu_s: float
    rss_bytes: int
    pss_bytes: int
    processes: int
    others_cores: float

    @property
    def memory_bytes(self) -> int:
        return self.pss_bytes or self.rss_bytes


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured: processors, the load average before and after, what each server is."""

    cores: int
    load_before: float
    load_after: float
    about: Mapping[Name, str]


@dataclass(frozen=True, slots=True)
class Goal:
    """`reached` is None where something that it takes was not measured, or too disturbed to say."""

    goal: str
    found: str
    reached: bool | None


class Findings:
    """The figures by server and case."""

    def __init__(self, figures: Sequence[Figures]) -> None:
        self._by_key = {(one.name, one.case.kind, one.case.streams): one for one in figures}

    def get(self, name: Name, kind: Kind, streams: int) -> Figures | None:
        return self._by_key.get((name, kind, streams))

    def value(self, name: Name, kind: Kind, streams: int, pick: Pick) -> float | None:
        one = self.get(name, kind, streams)
        return None if one is None else pick(one)

    def added(self, name: Name, kind: Kind, streams: int, pick: Pick) -> float | None:
        """What is more than without a server between."""
        through, direct = self.value(name, kind, streams, pick), self.value("direct", kind, streams, pick)
        return None if through is None or direct is None else through - direct

    def full_streams(self) -> int:
        """The most paced streams that were measured."""
        return max((streams for _, kind, streams in self._by_key if kind == "paced"), default=FULL_STREAMS)


def _first(pick: Callable[[Spread], float]) -> Pick:
    return lambda one: None if one.result.first is None else pick(one.result.first)


def _delay(pick: Callable[[Spread], float]) -> Pick:
    return lambda one: None if one.result.delay is None else pick(one.result.delay)


FIRST_P50, FIRST_P99 = _first(lambda times: times.p50), _first(lambda times: times.p99)
DELAY_P50, DELAY_P99 = _delay(lambda times: times.p50), _delay(lambda times: times.p99)


def STALL(one: Figures) -> float | None:
    return None if one.result.delay is None else one.result.longest_stall_ms


# --- goals -------------------------------------------------------------------------------------------


def goals(figures: Sequence[Figures]) -> list[Goal]:
    """The project's goals for its gateway, and what this run says to each."""
    found = Findings(figures)
    full = found.full_streams()
    fast: list[tuple[Kind, int]] = [(kind, streams) for kind in FAST for streams in (1, 32)]
    made = [_rate_goal(found, kind, streams, "nginx", 0.5) for kind, streams in fast]
    for word, pick in (("p50", DELAY_P50), ("p99", DELAY_P99)):
        ours, theirs = found.added("ours", "paced", full, pick), found.added("nginx", "paced", full, pick)
        made.append(_delay_goal(f"added delay, {word}, {full} streams: at most 3 times nginx's", ours, theirs))
    ours, theirs = found.value("ours", "paced", full, STALL), found.value("nginx", "paced", full, STALL)
    made.append(_delay_goal(f"longest stall, {full} streams: at most 3 times nginx's", ours, theirs))
    made.append(_below(f"CPU-s per 10,000 chunks, {full} streams: below 0.5", found.get("ours", "paced", full), 0.5))
    for kind, streams in fast:
        text = f"CPU-s per 10,000 chunks, {streams} unpaced, {FAST[kind]}: below 0.1"
        made.append(_below(text, found.get("ours", kind, streams), 0.1))
    made += [_rate_goal(found, kind, streams, "litellm", 30) for kind, streams in fast]
    memory = found.value("ours", "paced", full, lambda one: one.memory_bytes / MB)
    text = "not measured" if not memory else f"{memory:.0f} MB"
    made.append(Goal(f"memory, {full} streams: under 100 MB", text, memory < 100 if memory else None))
    made.append(_open_goal(figures))
    return made


def _rate_goal(found: Findings, kind: Kind, streams: int, name: Name, factor: float) -> Goal:
    text = f"chunks/s, {streams} unpaced, {FAST[kind]}: at least {factor:g} times {name}'s"
    ours, theirs = (found.value(one, kind, streams, lambda figures: figures.rate) for one in ("ours", name))
    if not ours or not theirs:
        return Goal(text, "not measured", None)
    return Goal(text, f"{ours:,.0f} / {theirs:,.0f} = {ours / theirs:.2f}", ours >= factor * theirs)


def _delay_goal(text: str, ours: float | None, theirs: float | None) -> Goal:
    if ours is None or theirs is None:
        return Goal(text, "not measured", None)
    if theirs < LEAST_ADDED_MS:  # something else disturbed the direct streams; or both add nothing
        return Goal(text, f"{ours:.2f} / {theirs:.2f} ms", True if ours <= 3 * LEAST_ADDED_MS else None)
    return Goal(text, f"{ours:.2f} / {theirs:.2f} ms = {ours / theirs:.1f}", ours <= 3 * theirs)


def _below(text: str, figures: Figures | None, limit: float) -> Goal:
    if figures is None or not figures.rate:
        return Goal(text, "not measured", None)
    return Goal(text, f"{figures.cpu_s:.3f}", figures.cpu_s < limit)


def _open_goal(figures: Sequence[Figures]) -> Goal:
    mine = [one for one in figures if one.name == "ours" and one.case.kind == "open"]
    if not mine:
        return Goal("1,000 open streams: none fails", "not measured", None)
    result = mine[0].result
    whole = result.verdicts["whole"]
    text = f"{whole:,} of {result.streams:,} whole"
    return Goal(f"{result.streams:,} open streams: none fails", text, whole == result.streams)


# --- tables ------------------------------------------------------------------------------------------


def show(figures: Sequence[Figures], machine: Machine, console: Console) -> None:
    found = Findings(figures)
    others = sum(one.others_cores for one in figures) / max(1, len(figures))
    for table in (_fast_table(figures, found), _paced_table(figures, found), _open_table(figures)):
        if table.row_count:
            console.print(table)
    for one in figures:
        for reason, count in sorted(one.result.reasons.items()):
            where = f"{one.name}, {one.case.kind}, {one.case.streams} streams"
            console.print(f"{where}: {count} × {reason}", markup=False, highlight=False)
    table = Table("goal", "found", "", title="goals")
    for goal in goals(figures):
        word = "–" if goal.reached is None else "reached" if goal.reached else "not reached"
        table.add_row(goal.goal, goal.found, word)
    console.print(table)
    if others > BUSY_CORES:
        console.print("the machine was busy with something else: delays say little, CPU-s more", highlight=False)
    for name, about in machine.about.items():
        console.print(f"{name}: {about}", markup=False, highlight=False)
    console.print(
        f"{machine.cores} processors; load average {machine.load_before:.1f} before, {machine.load_after:.1f} after; "
        f'other processes used {others:.2f} processors on average ("others")',
        highlight=False,
    )


def _fast_table(figures: Sequence[Figures], found: Findings) -> Table:
    titles = ("upstream", "streams", "server", "chunks/s", "of nginx's", "of LiteLLM's", "CPU-s", "whole", "others")
    table = Table(*titles, title="as fast as they are taken (CPU-s for 10,000 chunks)")
    for one in figures:
        kind, streams = one.case.kind, one.case.streams
        if kind not in FAST:
            continue
        ratios = [found.value(name, kind, streams, lambda figures: figures.rate) for name in _COMPARED]
        row = (FAST[kind], str(streams), one.name, f"{one.rate:,.0f}", *(_ratio(one.rate, other) for other in ratios))
        table.add_row(*row, f"{one.cpu_s:.3f}", _whole(one), f"{one.others_cores:.2f}")
    return table


_COMPARED: tuple[Name, ...] = ("nginx", "litellm")


def _paced_table(figures: Sequence[Figures], found: Findings) -> Table:
    titles = ("streams", "server", "first p50", "p99", "delay p50", "p99", "longest", "stall", "gap", "CPU-s", "MB")
    title = (
        "paced (ms; what a server adds to the direct ones, but for stall and gap, the longest; CPU-s for 10,000 chunks)"
    )
    table = Table(*titles, "whole", "others", title=title)
    for one in figures:
        if one.case.kind != "paced":
            continue
        picks: list[Pick] = [FIRST_P50, FIRST_P99, DELAY_P50, DELAY_P99, _delay(lambda times: times.longest)]
        value = found.value if one.name == "direct" else found.added
        times = [_ms(value(one.name, "paced", one.case.streams, pick)) for pick in picks]
        gaps = (_ms(STALL(one)), _ms(one.result.longest_gap_ms))
        use = (f"{one.cpu_s:.3f}", f"{one.memory_bytes / MB:.0f}")
        table.add_row(str(one.case.streams), one.name, *times, *gaps, *use, _whole(one), f"{one.others_cores:.2f}")
    return table


def _open_table(figures: Sequence[Figures]) -> Table:
    titles = ("server", "streams", "whole", "failed", "untrue", "first chunk p50 ms", "p99", "PSS MB", "RSS MB")
    table = Table(*titles, "processes", "CPU-s / 10,000", title="open at once, one chunk a second")
    for one in figures:
        if one.case.kind != "open":
            continue
        verdicts = one.result.verdicts
        counts = [f"{count:,}" for count in (verdicts["whole"], verdicts["failed"], verdicts["untrue"])]
        first = [_ms(FIRST_P50(one)), _ms(FIRST_P99(one))]
        memory = [f"{size / MB:.0f}" for size in (one.pss_bytes, one.rss_bytes)]
        row = (one.name, f"{one.case.streams:,}", *counts, *first, *memory, str(one.processes), f"{one.cpu_s:.2f}")
        table.add_row(*row)
    return table


def _ratio(value: float, other: float | None) -> str:
    return f"{value / other:.2f}" if other else "–"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _whole(one: Figures) -> str:
    return f"{one.result.verdicts['whole']}/{one.result.streams}"
