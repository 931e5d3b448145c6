"""A run as one picture: streams, waiting times, and each series that was watched, with the faults across all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tools.plots import BLACK, BLUE, GREEN, GREY, PURPLE, RED, YELLOW, Panel, Picture
from tools.soak.judge import WARM_UP, Judgement, unit_of
from tools.soak.record import UNTRUE, Ending, Fault, FaultKind, Sample, Seen, SeriesName
from tools.soak.slope import Slope

SERIES: tuple[tuple[SeriesName, ...], ...] = (
    ("server memory",),
    ("engine memory",),
    ("GPU memory of the tree", "GPU memory in use"),
    ("server threads", "engine threads"),
    ("server descriptors", "engine descriptors"),
    ("processes",),
    ("running", "waiting"),
)
_FROM_ZERO = ("processes", "running")
_COLOURS: dict[FaultKind, str] = {"kill": RED, "stall": YELLOW}
_GROUPS = (
    ("whole", GREEN, frozenset({Ending.WHOLE})),
    ("failed or refused, and said so", BLUE, frozenset({Ending.FAILED, Ending.REFUSED})),
    ("we left", GREY, frozenset({Ending.LEFT, Ending.UNFINISHED})),
    ("not reached", BLACK, frozenset({Ending.UNREACHABLE})),
    ("untrue", RED, UNTRUE),
)


def chart(streams: Sequence[Seen], samples: Sequence[Sample], faults: Sequence[Fault], judgement: Judgement) -> bytes:
    """PNG bytes. Raises: ImportError: matplotlib is not there."""
    shown = [names for names in SERIES if any(name in sample.values for name in names for sample in samples)]
    drawers: list[Callable[[Panel], None]] = [
        partial(_draw_streams, streams),
        partial(_draw_first_tokens, streams),
        *(partial(_draw_series, names, samples, judgement) for names in shown),
    ]
    picture = Picture(len(drawers))
    end_s = max([sample.at_s for sample in samples] + [seen.ended_s for seen in streams], default=1.0)
    for draw, panel in zip(drawers, picture.panels, strict=True):
        draw(panel)
        for fault in faults:
            if fault.error is None:
                panel.mark(fault.at_s, _COLOURS[fault.kind])
        panel.across(0, end_s)
    for panel in picture.panels[-2:]:
        panel.below("seconds (red lines: kills; yellow lines: stalls)")
    return picture.png()


def _draw_streams(streams: Sequence[Seen], panel: Panel) -> None:
    panel.title("streams that have ended")
    for name, colour, endings in _GROUPS:
        times = sorted(seen.ended_s for seen in streams if seen.ending in endings)
        if times:
            points = [(at_s, float(count)) for count, at_s in enumerate(times, 1)]
            panel.line(points, colour, name, style="steps")


def _draw_first_tokens(streams: Sequence[Seen], panel: Panel) -> None:
    panel.title("time to the first token, s")
    panel.line(
        [(seen.begun_s, seen.first_token_s) for seen in streams if seen.first_token_s is not None], BLUE, style="."
    )
    panel.from_zero()


def _draw_series(names: Sequence[SeriesName], samples: Sequence[Sample], judgement: Judgement, panel: Panel) -> None:
    unit, scale = unit_of(names[0])
    panel.title(", ".join(names) + (f", {unit}" if unit else ""))
    for name, colour in zip(names, (BLUE, PURPLE), strict=False):
        points = [(sample.at_s, sample.values[name] / scale) for sample in samples if name in sample.values]
        if not points:
            continue
        panel.line(points, colour, name)
        for line in judgement.lines:
            if line.name == name and line.growth.leak and line.growth.slope is not None:
                panel.line(_fitted(line.growth.slope, samples, scale), RED, "leak", style="--")
    if names[0] in _FROM_ZERO:
        panel.from_zero()


def _fitted(slope: Slope, samples: Sequence[Sample], scale: float) -> list[tuple[float, float]]:
    """The line of a leak over the time: it runs along the streams."""
    warm = [sample for sample in samples if sample.share >= WARM_UP]
    return [
        (sample.at_s, (slope.level + slope.per_stream * (sample.streams - slope.middle)) / scale) for sample in warm
    ]
