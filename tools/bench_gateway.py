"""Measures what a gateway costs: ours, nginx as a plain pass-through and LiteLLM's proxy before one scripted upstream.

    python -m tools.bench_gateway [--only ours,nginx] [--streams 1,32,128,256] [--seconds 3] [--json FILE]

The same streams go through each, in turns: as fast as they are taken, at 50 chunks a second each, and many that are
open at once. Upstream and load are processes of their own; every stream's end is checked. What is not installed is left
out and says so. No model, no GPU. Prints figures; it asserts nothing about this machine's speed. Exit status: 0
measured, 2 could not run. Loopback only, bounded, stops by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import psutil
from rich.console import Console
from rich.progress import track

from tools.gateway_load import START_EVERY_S, Load, Mark, Result
from tools.gateway_report import Case, Figures, Machine, goals, show
from tools.gateway_servers import NAMES, CannotStart, Choice, Name, NotThere, Server, Use, start, upstream
from tools.gateway_wire import BLOCK_CHUNKS, Wanted

RATE = 50.0
OPEN_RATE = 1.0
FAST_STREAMS = (1, 32)
PACED_STREAMS = (1, 32, 128, 256)
FIRST_CHUNKS = 2_000
MAX_CHUNKS = 20_000_000
QUIET_S = 0.5
QUIET_CORES = 0.15
TABLE_WIDTH = 130
SPARE_S = 15.0
"""How long a server that fell behind may still send after the upstream has sent everything, in seconds."""


def cases_of(streams: tuple[int, ...], open_streams: int) -> list[Case]:
    fast = [count for count in streams if count in FAST_STREAMS]
    single = [Case("single", count, 0.0) for count in fast]
    burst = [Case("burst", count, 0.0) for count in fast]
    paced = [Case("paced", count, RATE) for count in streams]
    return [*single, *burst, *paced, *([Case("open", open_streams, OPEN_RATE)] if open_streams else [])]


def measure(server: Server, up: Server, case: Case, seconds: float) -> Figures:
    """One server in one case.

    Raises: CannotStart: the load did not run.
    """
    if case.rate:
        ramp_s = case.streams * START_EVERY_S  # so that all are open for `seconds`
        wanted = Wanted(max(2, round((seconds + ramp_s) * case.rate)), case.rate)
        load = Load(server.port, case.streams, wanted, round(seconds + 2 * ramp_s + SPARE_S, 1))
        return _run(server, up, case, load)
    chunks = FIRST_CHUNKS
    while True:
        wanted = Wanted(max(1, chunks // case.streams), 0.0, BLOCK_CHUNKS if case.kind == "burst" else 1)
        load = Load(server.port, case.streams, wanted, 10 * seconds + SPARE_S, together=True)
        figures = _run(server, up, case, load)
        took_s = figures.result.took_s
        if took_s >= 0.6 * seconds or chunks >= MAX_CHUNKS or not figures.result.chunks:
            return figures
        # a short run says little about a long one: in steps
        chunks = min(MAX_CHUNKS, round(chunks * min(10.0, seconds / took_s)))


def _run(server: Server, up: Server, case: Case, load: Load) -> Figures:
    busy_s, upstream_s, before = _busy_s(), up.use().cpu_s, server.use()
    begun = time.monotonic()
    marks: list[tuple[Mark, Use]] = []
    result: Result | None = None
    command = [sys.executable, "-m", "tools.gateway_load", msgspec.json.encode(load).decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            value = msgspec.json.decode(line)
            if "mark" in value:
                ending = value["mark"] == "ending"
                marks.append((msgspec.convert(value, Mark), server.use(memory=ending and case.rate > 0)))
            else:
                result = msgspec.convert(value, Result)
    if process.returncode or result is None:
        raise CannotStart(f"the load ended with status {process.returncode}")
    after, took_s = server.use(), time.monotonic() - begun
    known_s = result.cpu_s + up.use().cpu_s - upstream_s + (after.cpu_s - before.cpu_s if up is not server else 0.0)
    others_cores = max(0.0, (_busy_s() - busy_s - known_s) / took_s)
    whole = Window(result.chunks, result.took_s, after.cpu_s - before.cpu_s)
    return _figures(server, case, result, _window(marks, whole), marks[-1][1] if marks else after, others_cores)


@dataclass(frozen=True, slots=True)
class Window:
    """What happened in a part of a run."""

    chunks: int
    seconds: float
    cpu_s: float


def _window(marks: list[tuple[Mark, Use]], whole: Window) -> Window:
    """The time in which all streams were open, or the whole run where that was hardly any."""
    if not marks:
        return whole
    (first, used_first), (last, used_last) = marks[0], marks[-1]
    full = Window(last.chunks - first.chunks, last.at_s - first.at_s, used_last.cpu_s - used_first.cpu_s)
    return full if full.chunks > whole.chunks / 4 else whole


def _figures(server: Server, case: Case, result: Result, window: Window, end: Use, others_cores: float) -> Figures:
    return Figures(
        server.name,
        case,
        result,
        window.chunks / window.seconds if window.seconds > 0 else 0.0,
        window.cpu_s * 10_000 / window.chunks if window.chunks else 0.0,
        end.rss_bytes,
        end.pss_bytes,
        end.processes,
        others_cores,
    )


def _busy_s() -> float:
    """Seconds that the machine's processors have worked, all together."""
    times = psutil.cpu_times()._asdict()
    return sum(times[name] for name in ("user", "system", "irq", "softirq", "nice") if name in times)


def wait_for_quiet(limit_s: float) -> None:
    """Wait until the machine does hardly anything, so long at most."""
    until = time.monotonic() + limit_s
    while (now := time.monotonic()) < until:
        busy_s = _busy_s()
        time.sleep(QUIET_S)
        if _busy_s() - busy_s < QUIET_CORES * (time.monotonic() - now):
            return


def run(args: argparse.Namespace, say: Callable[[str], None], console: Console) -> tuple[list[Figures], Machine]:
    """Start everything, measure, end everything.

    Raises: CannotStart, OSError.
    """
    choice = Choice(args.nginx, args.nginx_workers, args.litellm, args.ours, args.ours_options)
    load_before = psutil.getloadavg()[0]
    made: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        up = stack.enter_context(upstream(Path(folder)))
        servers: list[Server] = []
        for name in args.only:
            try:
                servers.append(start(name, up, choice, Path(folder), stack))
            except NotThere as missing:
                say(f"{name} is left out: {missing}")
        for server in servers:  # the first answers of a process are slow
            first = _run(server, up, Case("paced", 4, RATE), Load(server.port, 4, Wanted(20, RATE))).result
            if first.verdicts["whole"] < first.streams:
                raise CannotStart(f"{server.name} does not carry streams: {', '.join(first.reasons)}")
        cases = cases_of(args.streams, args.open)
        steps = [(case, turn, server) for case in cases for turn in range(args.repeats) for server in servers]
        for case, turn, server in track(steps, "cases", console=console):
            wait_for_quiet(args.wait)
            if turn == 0:
                made.append(measure(server, up, case, args.seconds))
            else:
                at = next(at for at, old in enumerate(made) if (old.name, old.case) == (server.name, case))
                made[at] = min(made[at], measure(server, up, case, args.seconds), key=lambda one: one.others_cores)
        about: dict[Name, str] = {server.name: server.about for server in servers}
    return made, Machine(os.cpu_count() or 1, load_before, psutil.getloadavg()[0], about)


# --- the command line --------------------------------------------------------------------------------


def _names(text: str) -> tuple[Name, ...]:
    asked = {"direct", *text.split(",")}  # what is added is added to the upstream's own
    if unknown := sorted(asked - set(NAMES)):
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(NAMES)}")
    return tuple(name for name in NAMES if name in asked)


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(_count(part) for part in text.split(","))
    return tuple(sorted(set(counts)))


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 4_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 4000")
    return int(text)


def parser() -> argparse.ArgumentParser:
    default = Choice()
    made = argparse.ArgumentParser(prog="python -m tools.bench_gateway", description=(__doc__ or "").splitlines()[0])
    add = made.add_argument
    add("--only", type=_names, default=NAMES, help=f"servers, of {','.join(NAMES)} (default: all that are there)")
    streams = ",".join(map(str, PACED_STREAMS))
    add("--streams", type=_counts, default=PACED_STREAMS, help=f"numbers of streams at once (default: {streams})")
    many = "streams that are open at once in the last case (default: 1000; 0: leave it out)"
    add("--open", type=lambda text: 0 if text == "0" else _count(text), default=1_000, help=many)
    add("--seconds", type=float, default=3.0, help="how long a case lasts, about (default: 3; 0.2 to 60)")
    repeats = "measure a case so often, and keep the run in which the rest of the machine did least (default: 1)"
    add("--repeats", type=_count, default=1, help=repeats)
    add("--wait", type=float, default=0.0, help="wait so many seconds at most for a quiet machine before each run")
    add("--nginx", help="the nginx program (default: the one on PATH)")
    add("--nginx-workers", type=_count, default=default.nginx_workers, help="its worker processes (default: 1)")
    add("--litellm", help="the litellm program (default: the one on PATH)")
    add("--ours", default=default.ours, help="command that starts our server (default: this Python's -m serve)")
    add("--ours-options", default=default.ours_options, help=f"more options for ours (default: {default.ours_options})")
    add("--json", type=Path, help="write the figures to this file")
    return made


def main(argv: list[str] | None = None) -> int:
    if callable(reconfigure := getattr(sys.stdout, "reconfigure", None)):
        reconfigure(errors="replace")  # not every code page has all that a table says
    args = parser().parse_args(argv)
    args.seconds, args.wait = max(0.2, min(args.seconds, 60.0)), min(args.wait, 600.0)
    errors = Console(stderr=True)
    try:
        made, machine = run(args, lambda line: errors.print(line, markup=False), errors)
    except (CannotStart, OSError) as error:
        errors.print(f"could not measure: {error}", markup=False)
        return 2
    console = Console()
    show(made, machine, console if console.is_terminal else Console(width=TABLE_WIDTH))
    if args.json:
        whole = {"machine": asdict(machine), "figures": [asdict(one) for one in made]}
        whole["goals"] = [asdict(goal) for goal in goals(made)]
        args.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
