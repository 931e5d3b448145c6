"""How many streams are held at once to their true ends, what each takes, and how late their tokens come: through us and
at the scripted upstream alone, one after the other.
"""

from __future__ import annotations

import shlex
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tools.bench.figures import CannotMeasure, Figure, Part, Untrue
from tools.bench_gateway import measure as measure_gateway
from tools.gateway_report import Case
from tools.gateway_servers import CannotStart, Choice, start, upstream

RATE = 1.0
FEW = 8


def measure(streams: int, seconds: float, command: tuple[str, ...]) -> Part:
    """So many streams, all open for so long. Raises: CannotMeasure, OSError."""
    case, few = Case("open", streams, RATE), Case("open", FEW, RATE)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        try:
            up = stack.enter_context(upstream(Path(folder)))
            choice = Choice(ours=shlex.join(command), ours_options=f"--parallel {streams}")
            server = start("ours", up, choice, Path(folder), stack)
            idle = measure_gateway(server, up, few, 1.0)  # the first answers of a process are slow, and take memory
            direct, ours = measure_gateway(up, up, case, seconds), measure_gateway(server, up, case, seconds)
        except CannotStart as error:
            raise CannotMeasure(str(error)) from None
    if untrue := ours.result.verdicts["untrue"]:
        raise Untrue(f"{untrue} of {streams} streams: {next(iter(ours.result.reasons), '')}")
    whole, beside = ours.result.verdicts["whole"], direct.result.verdicts["whole"]
    more_bytes = max(0.0, ours.memory_bytes - idle.memory_bytes) / (streams - FEW)
    figures = [
        _beside(f"streams held to their ends, of {streams}", "", whole, beside),
        Figure("memory for one more of them", more_bytes / 1024, "KiB"),
    ]
    late, direct_late = ours.result.delay, direct.result.delay
    if late is not None and direct_late is not None:
        figures.append(_beside("a token's way to its client, p50", "ms", late.p50, direct_late.p50))
        figures.append(_beside("a token's way to its client, p99", "ms", late.p99, direct_late.p99))
    return Part("held", tuple(figures))


def _beside(name: str, unit: str, ours: float, direct: float) -> Figure:
    return Figure(name, ours, unit, direct, "the upstream alone", ours / direct if direct else None)
