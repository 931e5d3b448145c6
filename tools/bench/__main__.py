"""What our server costs, and how fast it says what happened: each figure beside what it is compared with.

    python -m tools.bench
    python -m tools.bench --only deaths,tokens --deaths 500 --json figures.json --plot figures.png

Starts the server over its fake engine and over a scripted upstream, so it measures the server alone: no model, no GPU.
Figures that belong together are measured in turns, so that a machine that does other things disturbs both alike: look
at the ratios. It asserts nothing about this machine's speed. Loopback only, bounded, stops by itself.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import psutil

from tools import plots
from tools.bench import deaths, first_token, held, tokens
from tools.bench.figures import CannotMeasure, Diagram, Group, Part, Untrue
from tools.bench.server import command_of
from tools.outputs import check_outputs
from tools.plots import BLUE, GREEN, PURPLE, YELLOW, Panel, Picture
from tools.probe.exits import LIE, TRUTHFUL, CouldNotRun
from tools.probe.report import Parser, Reporter, run_checker, table
from tools.probe.target import APIS
from tools.probe.values import Json

STATUS_HELP = "exit status: 0 measured; 1 a stream was cut, or hid how it ended; 2 could not run"
GROUPS: tuple[Group, ...] = get_args(Group)
COLOURS = (BLUE, YELLOW, GREEN, PURPLE)


def _count(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r:.80} is not a whole number from {low} to {high}")
        return int(text)

    return read


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.2 <= value <= 600:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a number from 0.2 to 600")
    return value


def _groups(text: str) -> tuple[Group, ...]:
    asked = text.split(",")
    if unknown := [name for name in asked if name not in GROUPS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r:.80} is none of {', '.join(GROUPS)}")
    return tuple(group for group in GROUPS if group in asked)


def parser() -> Parser:
    about = (__doc__ or "").splitlines()[0]
    made = Parser(prog="python -m tools.bench", description=about, epilog=STATUS_HELP)
    add = made.add_argument
    add("--only", type=_groups, default=GROUPS, metavar="GROUPS", help=f"of {','.join(GROUPS)} (default: all)")
    add("--deaths", type=_count(1, 10_000), default=100, help="engine deaths (default: 100)")
    add("--pairs", type=_count(1, 10_000), default=40, help="pairs of requests, of responses (default: 40)")
    longest = f"of the longest answers (default: 20000; from {tokens.SHORTEST} to {tokens.LONGEST})"
    add("--tokens", type=_count(tokens.SHORTEST, tokens.LONGEST), default=20_000, help=longest)
    add("--rounds", type=_count(1, 1_000), default=5, help="of answers of all lengths (default: 5)")
    add("--streams", type=_count(held.FEW + 1, 4_000), default=500, help="streams held at once (default: 500)")
    held_s = f"for so long, {held.TURNS} times (default: 3; 0.2 to 600)"
    add("--held-s", type=_seconds, default=3.0, metavar="S", help=held_s)
    add("--ours", metavar="COMMAND", help="command that starts our server (default: this Python's -m serve)")
    add("--json", type=Path, metavar="FILE", help="write the figures and all measurements as JSON")
    add("--plot", type=Path, metavar="FILE", help="draw them into a PNG file; needs matplotlib")
    return made


def _measure(args: argparse.Namespace, group: Group, reporter: Reporter) -> Part:
    command = command_of(args.ours)

    def tracked(numbers: range) -> Iterable[int]:
        with reporter.progress() as progress:
            yield from progress.track(numbers, description=group)

    match group:
        case "deaths":
            return deaths.measure(args.deaths, command, tracked)
        case "first-token":
            return first_token.measure(args.pairs, command, tracked)
        case "tokens":
            return tokens.measure(args.tokens, args.rounds, APIS, command, tracked)
        case "kept":
            return tokens.measure_kept(args.pairs, args.tokens, command, tracked)
        case "held":
            return held.measure(args.streams, args.held_s, command, tracked)


def _bench(args: argparse.Namespace, reporter: Reporter) -> int:
    if args.plot is not None and not plots.can_plot():
        raise CouldNotRun(f"{plots.HOW_TO_GET}; or leave --plot out")
    check_outputs(args.json, args.plot)
    parts: list[Part] = []
    load_before = psutil.getloadavg()[0]
    try:
        for group in args.only:
            parts.append(_measured(args, group, reporter))
            _show(parts[-1], reporter)
    except Untrue as untrue:
        reporter.complain(f"untrue: {untrue}")
        return LIE
    finally:  # what was measured before an error or Ctrl-C is kept
        if parts:
            _write(args, parts, load_before, reporter)
    return TRUTHFUL


def _measured(args: argparse.Namespace, group: Group, reporter: Reporter) -> Part:
    try:
        return _measure(args, group, reporter)
    except Untrue as untrue:
        raise Untrue(f"{group}: {untrue}") from None
    except (CannotMeasure, OSError, psutil.Error) as error:
        raise CouldNotRun(f"{group}: {error}") from None


def _write(args: argparse.Namespace, parts: Sequence[Part], load_before: float, reporter: Reporter) -> None:
    if args.json is not None:
        machine: Json = {
            "system": platform.platform(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load_before": load_before,
            "load_after": psutil.getloadavg()[0],
        }
        whole = [{"group": part.group, "figures": _figures_json(part), "measurements": part.raw} for part in parts]
        reporter.write_json(args.json, {"machine": machine, "parts": whole})
    if args.plot is not None:
        _draw(args.plot, parts)


def _figures_json(part: Part) -> list[Json]:
    return [asdict(figure) for figure in part.figures]


def _show(part: Part, reporter: Reporter) -> None:
    made = table(part.group, "figure", "ours", "beside it", "ratio", "measured")
    for figure in part.figures:
        beside = "" if figure.beside is None else f"{_quantity(figure.beside, figure.unit)} ({figure.against})"
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        value = _quantity(figure.value, figure.unit)
        made.add_row(figure.name, value, beside, ratio, f"{figure.count} times" if figure.count > 1 else "once")
    reporter.show(made)


def _quantity(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value == int(value) or abs(value) >= 1_000 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def _draw(path: Path, parts: Sequence[Part]) -> None:
    diagrams = [diagram for part in parts for diagram in part.diagrams]
    ratios = [
        (f"{figure.name}\nbeside {figure.against}", figure.ratio)
        for part in parts
        for figure in part.figures
        if figure.ratio is not None
    ]
    picture = Picture(len(diagrams) + 1, width=16.0, height=3.4)
    for diagram, panel in zip(diagrams, picture.panels, strict=False):
        _draw_diagram(diagram, panel)
    last = picture.panels[-1]
    last.title("ratios: ours to what it is compared with")
    last.bars(ratios, BLUE, origin=1.0)
    last.logarithmic()
    last.mark(1.0, YELLOW)
    try:
        path.write_bytes(picture.png())
    except OSError as error:
        raise CouldNotRun(f"{path} cannot be written: {error.strerror}") from None


def _draw_diagram(diagram: Diagram, panel: Panel) -> None:
    panel.title(diagram.title)
    panel.below(diagram.below)
    for curve, colour in zip(diagram.curves, COLOURS, strict=False):
        panel.line(curve.points, colour, curve.name, style=".-" if len(curve.points) < 12 else "-")
    if diagram.logarithmic:
        panel.logarithmic()
    else:
        panel.across(0.0, max(x for curve in diagram.curves for x, _ in curve.points))
    panel.from_zero()


def main(argv: list[str] | None = None) -> int:
    args = parser().parse(argv)
    return run_checker(lambda reporter: _bench(args, reporter))


if __name__ == "__main__":
    sys.exit(main())
