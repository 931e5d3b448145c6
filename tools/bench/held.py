"""How many streams are held at once to their true ends, what each takes, and how late their tokens come: through us and
at the scripted upstream alone, in turns.
"""

from __future__ import annotations

import shlex
import statistics
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tools.bench.figures import CannotMeasure, Figure, Part, Untrue, median_figure
from tools.bench_gateway import measure as measure_gateway
from tools.gateway_report import Case, Figures
from tools.gateway_servers import CannotStart, Choice, start, upstream

RATE = 1.0
FEW = 8
TURNS = 3
AGAINST = "the upstream alone"


def measure(streams: int, seconds: float, command: tuple[str, ...], track: Callable[[range], Iterable[int]]) -> Part:
    """So many streams, all open for so long, some times. Raises: CannotMeasure, Untrue, OSError."""
    case, few = Case("open", streams, RATE), Case("open", FEW, RATE)
    ours: list[Figures] = []
    direct: list[Figures] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        try:
            up = stack.enter_context(upstream(Path(folder)))
            choice = Choice(ours=shlex.join(command), ours_options=f"--parallel {streams}")
            server = start("ours", up, choice, Path(folder), stack)
            idle = measure_gateway(server, up, few, 1.0)  # the first answers of a process are slow, and take memory
            for number in track(range(TURNS)):
                for which, made in ((up, direct), (server, ours))[:: 1 if number % 2 else -1]:
                    made.append(_true(measure_gateway(which, up, case, seconds)))
        except CannotStart as error:
            raise CannotMeasure(str(error)) from None
    more_bytes = max(0.0, ours[-1].memory_bytes - idle.memory_bytes) / (streams - FEW)
    whole, beside = (min(one.result.verdicts["whole"] for one in made) for made in (ours, direct))
    figures = [
        Figure(
            f"streams held to their ends, of {streams}",
            whole,
            "",
            beside,
            AGAINST,
            whole / beside if beside else None,
            TURNS,
        ),
        Figure("memory for one more of them", more_bytes / 1024, "KiB"),
    ]
    raw = {
        f"{name}_{rank}_ms": [getattr(one.result.delay, rank) for one in made if one.result.delay is not None]
        for name, made in (("ours", ours), ("direct", direct))
        for rank in ("p50", "p99")
    }
    for rank in ("p50", "p99"):
        late, direct_late = raw[f"ours_{rank}_ms"], raw[f"direct_{rank}_ms"]
        if len(late) == len(direct_late) == TURNS:
            figure = median_figure(f"a token's way to its client, {rank}", "ms", late, direct_late, AGAINST)
            # that of two extremes is chance
            figures.append(figure if rank == "p50" else replace(figure, ratio=None))
            added = statistics.median(a - b for a, b in zip(late, direct_late, strict=True))
            figures.append(Figure(f"a token's way to its client, added by us, {rank}", added, "ms", count=TURNS))
    return Part("held", tuple(figures), (), raw)


def _true(figures: Figures) -> Figures:
    if untrue := figures.result.verdicts["untrue"]:
        raise Untrue(f"{untrue} streams: {next(iter(figures.result.reasons), '')}")
    return figures
