"""The soak's options, their bounds and defaults. It starts nothing."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path

from tools.probe.exits import CouldNotRun
from tools.probe.options import add_reports, add_server
from tools.probe.options import parser as checker_parser
from tools.probe.report import Parser
from tools.probe.target import APIS, Api

MAX_MINUTES = 7 * 24 * 60.0
MAX_CLIENTS = 256
KILL_EVERY_MINUTES = 1.0
STALL_EVERY_MINUTES = 2.0
FAULT_EVERY_STREAMS = 50
LOOKS = 30_000
"""So many looks at memory are enough for a run of any length."""


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r:.80} is not a number from {low:g} to {high:g}")
        return value

    return read


def _count(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r:.80} is not a whole number from {low} to {high}")
        return int(text)

    return read


def _apis(text: str) -> tuple[Api, ...]:
    asked = text.split(",")
    if unknown := [name for name in asked if name not in APIS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r:.80} is none of {', '.join(APIS)}")
    return tuple(api for api in APIS if api in asked)


def parser(about: str | None) -> Parser:
    made = checker_parser("soak", about)
    made.epilog = (
        "exit status: 0 truthful; 1 an untrue stream, a leak, an orphan or a server that ended; 2 could not run"
    )
    server = made.add_argument_group("server")
    server.add_argument("--url", help="a running server, http://HOST:PORT/v1")
    server.add_argument("--serve", metavar="OPTIONS", help='start our own server with these options; "" for none')
    add_server(server, with_api=False)  # pyright: ignore[reportArgumentType] - a group adds options as a parser does
    _add_load(made.add_argument_group("load"))
    _add_faults(made.add_argument_group("faults"))
    _add_watch(made.add_argument_group("watch"))
    report = made.add_argument_group("report")
    folder = "folder of the report: report.html, soak.png, report.json (default: soak-report)"
    report.add_argument("--report", type=Path, default=Path("soak-report"), metavar="DIR", help=folder)
    add_reports(report)  # pyright: ignore[reportArgumentType] - as above
    return made


def _add_load(load: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage] - argparse has no other name for it
    add = load.add_argument
    add("--minutes", type=_number(0.05, MAX_MINUTES), default=10.0, help="how long (default: 10; a week at most)")
    add(
        "--streams",
        type=_count(1, 10_000_000),
        metavar="N",
        help="end when so many streams have ended, if that is sooner",
    )
    add("--clients", type=_count(1, MAX_CLIENTS), default=4, metavar="N", help="streams at once (default: 4)")
    add("--apis", type=_apis, default=APIS, help=f"of {','.join(APIS)} (default: all that the server has)")
    add(
        "--max-tokens",
        type=_count(1, 1_000_000),
        default=512,
        metavar="N",
        help="of the longest answers (default: 512)",
    )
    add(
        "--prompt-words",
        type=_count(0, 1_000_000),
        default=600,
        metavar="N",
        help="of the longest prompts (default: 600)",
    )
    add("--leave", type=_number(0, 1), default=0.2, metavar="SHARE", help="streams that we leave early (default: 0.2)")
    silence = "a stream without a byte for so long counts as unterminated (default: 120)"
    add("--silence-s", type=_number(0.1, 3_600), default=120.0, metavar="S", help=silence)
    limit = "so does one that has not ended after so long (default: 900)"
    add("--stream-limit-s", type=_number(0.1, 86_400), default=900.0, metavar="S", help=limit)
    add("--seed", type=_count(0, 1 << 62), metavar="N", help="of all chance (default: by chance; it is printed)")


def _add_faults(faults: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage] - as above
    add = faults.add_argument
    add("--kills", type=_count(0, 100_000), metavar="N", help="of the engine, in the run (default: one a minute)")
    add("--stalls", type=_count(0, 100_000), metavar="N", help="likewise (default: one every two minutes)")
    add("--stall-s", type=_number(0.01, 3_600), default=30.0, metavar="S", help="the longest stall (default: 30)")
    engine = "the engine's process (default: what our /status says)"
    add("--engine-pid", type=_count(1, 1 << 31), metavar="PID", help=engine)
    add("--kill-command", metavar="COMMAND", help="kills the engine")
    stall = "lets the engine hang and go on again: docker pause X; sleep 20; docker unpause X"
    add("--stall-command", metavar="COMMAND", help=stall)


def _add_watch(watch: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage] - as above
    add = watch.add_argument
    server = "watch this process and those below it (default: the one that listens at a loopback URL)"
    add("--server-pid", type=_count(1, 1 << 31), metavar="PID", help=server)
    every = "between two looks (default: 1; more in a run of more than eight hours)"
    add("--every-s", type=_number(0.05, 600), metavar="S", help=every)
    grace = "how long orphans and what the queue has may stay (default: 20)"
    add("--grace-s", type=_number(0.1, 600), default=20.0, metavar="S", help=grace)
    cache = (
        "memory that caches may fill after the start before growth counts as a leak: llama.cpp's --cache-ram, 8192 "
        "unless it is told (default: 0)"
    )
    add("--cache-mib", type=_count(0, 1 << 30), default=0, metavar="N", help=cache)


def check(args: argparse.Namespace) -> None:
    """Raises: CouldNotRun: options contradict each other."""
    if (args.url is None) == (args.serve is None):
        raise CouldNotRun("server: give --url of a running server, or --serve with options for ours")
    if args.serve is not None and args.server_pid is not None:
        raise CouldNotRun("server-pid: the server that --serve starts is known; leave it out")
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1_000_000_000)


def default_every_s(minutes: float) -> float:
    """Seconds between two looks, where nobody said."""
    return max(1.0, minutes * 60 / LOOKS)


def default_faults(args: argparse.Namespace, every_minutes: float) -> int:
    """How many of a kind, where nobody said."""
    if args.streams is not None:
        return max(1, args.streams // FAULT_EVERY_STREAMS)
    return max(1, round(args.minutes / every_minutes))
