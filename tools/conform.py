"""Holds any OpenAI- or Anthropic-compatible server to a published list of truths about its answers.

    python -m tools.conform http://127.0.0.1:8095/v1
    python -m tools.conform http://127.0.0.1:8095/v1 --engine-pid 1234     # also kills and halts the engine
    python -m tools.conform --list
    python -m tools.conform compare OURS.json THEIRS.json

It asks for short answers, some dozens of each API, and sends bad requests. It changes nothing at the server, but with
`--engine-pid` or the commands it kills and halts its engine, and `--flood` fills its queue.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.conform_checks import boards
from tools.conform_checks.bench import Bench, Settings
from tools.conform_checks.hand import EngineProcess, Hand, commanded
from tools.conform_checks.score import Score, judge_all, junit, pairs, read_score
from tools.conform_checks.table import CHECKS, chosen
from tools.outputs import check_outputs
from tools.probe.asking import first_model
from tools.probe.exits import LIE, TRUTHFUL
from tools.probe.options import add_reports, add_server, parser, target_of
from tools.probe.report import Parser, Reporter, run_checker
from tools.probe.secret import Secret

_DEFAULTS = Settings()


def _words(given: Sequence[str]) -> list[str]:
    return [word for each in given for word in each.replace(",", " ").split()]


def _hand(args: argparse.Namespace, port: int) -> Hand:
    by_command = commanded(args.kill_command, args.stall_command, args.resume_command)
    if args.engine_pid is None:
        return by_command
    by_pid = EngineProcess(args.engine_pid).hand(port)
    return Hand(
        by_command.kill or by_pid.kill,
        by_command.stall or by_pid.stall,
        by_command.resume or by_pid.resume,
        by_pid.is_server,
    )


def _bench(args: argparse.Namespace, secret: Secret) -> Bench:
    target, _ = target_of(args.url, None, secret)
    settings = Settings(
        quiet_s=args.quiet_s,
        free_s=args.free_s,
        patience_s=args.patience_s,
        recover_s=args.recover_s,
        give_up_s=args.give_up_s,
        parallel=args.parallel,
        context=args.context,
        flood=args.flood,
        verify=not args.insecure,
    )
    hand = _hand(args, target.port)
    return Bench(target, args.model or first_model(target, verify=settings.verify), settings, hand)


def _check(args: argparse.Namespace, reporter: Reporter) -> int:
    cells = chosen(_words(args.only), _words(args.skip))
    check_outputs(args.json, args.junit)
    bench = _bench(args, reporter.secret)
    with reporter.progress() as progress:
        task, begun = progress.add_task("looking", total=len(cells)), itertools.count()
        score = judge_all(
            bench,
            cells,
            lambda check, scope: progress.update(task, completed=next(begun), description=f"{check.id}/{scope}"),
            args.name or bench.target.shown,
        )
    _show(score, reporter, markdown=args.markdown, everything=args.all)
    if args.json is not None:
        reporter.write_json(args.json, score.as_json())
    if args.junit is not None:
        reporter.write_junit(args.junit, "conform", junit(score))
    return score.status


def _show(score: Score, reporter: Reporter, *, markdown: bool, everything: bool) -> None:
    if markdown:
        reporter.say(boards.score_markdown(score))
        return
    reporter.show(boards.group_table(score, reporter))
    if everything:
        reporter.show(boards.full_table(score, reporter))
    if score.failed():
        reporter.show(boards.failed_table(score, reporter))
    for line in boards.reasons(score):
        reporter.say(line, style="dim")
    reporter.say(boards.summary(score), style="green" if score.status == TRUTHFUL else "red")


def _list(args: argparse.Namespace, reporter: Reporter) -> int:
    ids = {check.id for check, _ in chosen(_words(args.only), _words(args.skip))}
    checks = [check for check in CHECKS if check.id in ids]
    if args.markdown:
        reporter.say(boards.checks_markdown(checks).rstrip("\n"))
    else:
        reporter.show(boards.checks_table(checks))
    return TRUTHFUL


def _compare(args: argparse.Namespace, reporter: Reporter) -> int:
    first, second = read_score(args.first), read_score(args.second)
    found = pairs(first, second)
    differing = [pair for pair in found if pair.differs]
    alone = f"{sum(pair.one_sided for pair in found)} were judged at one of them alone"
    stopped = [f"{each.server} was stopped before {each.left} more" for each in (first, second) if each.left]
    if args.markdown:
        reporter.say(boards.compared_markdown(first, second, differing))
        reporter.say(f"{alone}.")
        for line in stopped:
            reporter.say(f"\n{line}.")
    else:
        reporter.show(boards.compared_table(first, second, reporter))
        if differing:
            reporter.show(boards.differences_table(differing, reporter))
        else:
            reporter.say("they differ in nothing that both were judged on")
        reporter.say(alone)
        for line in stopped:
            reporter.say(line, style="red")
    return LIE if any(pair.worse for pair in found) else TRUTHFUL


def _add_choice(made: Parser) -> None:
    words = "ids, groups, APIs, severities, id/api or group/api, separated by commas; * stands for anything"
    made.add_argument("--only", action="append", default=[], metavar="WORDS", help=f"judge these: {words}")
    made.add_argument("--skip", action="append", default=[], metavar="WORDS", help="leave these out")


def _add_engine(made: Parser) -> None:
    made.add_argument("--engine-pid", type=int, metavar="PID", help="the engine's process: it is killed and halted")
    made.add_argument("--kill-command", metavar="CMD", help="kills the engine; run by the shell")
    made.add_argument("--stall-command", metavar="CMD", help="halts the engine, and returns at once")
    made.add_argument("--resume-command", metavar="CMD", help="lets the halted engine go on")
    give_up = "the time after which the server gives up an engine that stands still (default: not checked)"
    made.add_argument("--give-up-s", type=float, metavar="N", help=give_up)
    recover = f"how long the server may take to answer again (default: {_DEFAULTS.recover_s:g})"
    made.add_argument("--recover-s", type=float, metavar="N", default=_DEFAULTS.recover_s, help=recover)


def _add_limits(made: Parser) -> None:
    def seconds(name: str, default: float, about: str) -> None:
        made.add_argument(name, type=float, metavar="N", default=default, help=f"{about} (default: {default:g})")

    seconds("--quiet-s", _DEFAULTS.quiet_s, "the longest silence that a stream may have")
    seconds("--free-s", _DEFAULTS.free_s, "how soon a request whose client left must be let go")
    seconds("--patience-s", _DEFAULTS.patience_s, "give an answer up after so long without a byte")
    made.add_argument("--parallel", type=int, metavar="N", help="requests that run at once (default: asked)")
    made.add_argument("--context", type=int, metavar="N", help="the model's room in tokens (default: asked)")
    made.add_argument("--flood", type=int, metavar="N", default=0, help="so many requests at once fill the queue")


def _parser() -> Parser:
    made = parser("conform", __doc__)
    made.add_argument("url", nargs="?", help="http://HOST:PORT, or a base URL (…/v1); `compare` compares two scores")
    made.add_argument("--list", action="store_true", help="show the checks, and ask nothing")
    add_server(made, with_api=False)
    _add_choice(made)
    _add_engine(made)
    _add_limits(made)
    made.add_argument("--name", help="the server's name in reports (default: its URL)")
    made.add_argument("--all", action="store_true", help="show every check's result")
    made.add_argument("--markdown", action="store_true", help="show it as Markdown")
    add_reports(made)
    return made


def _main_compare(argv: Sequence[str]) -> int:
    made = parser("conform compare", "Shows two scores of --json beside each other.")
    made.epilog = "exit status: 0; 1 the second server is untrue where the first is true; 2 could not compare"
    made.add_argument("first", type=Path)
    made.add_argument("second", type=Path)
    made.add_argument("--markdown", action="store_true", help="show it as Markdown")
    args = made.parse(argv)
    return run_checker(lambda reporter: _compare(args, reporter), None, messages=False)


def main(argv: list[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    if given[:1] == ["compare"]:
        return _main_compare(given[1:])
    made = _parser()
    args = made.parse(given)
    if args.list:
        return run_checker(lambda reporter: _list(args, reporter), None, messages=False)
    if args.url is None:
        made.error("give a URL, or --list")
    if (args.stall_command is None) != (args.resume_command is None):
        made.error("give --stall-command and --resume-command together")
    times = (args.quiet_s, args.free_s, args.patience_s, args.recover_s, args.give_up_s or 1.0)
    counts = [count for count in (args.parallel, args.context, args.engine_pid) if count is not None]
    if min(times) <= 0 or min(counts, default=1) < 1 or args.flood < 0:
        made.error("times and counts must be above 0, --flood at least 0")
    return run_checker(lambda reporter: _check(args, reporter), args.api_key, messages=False)


if __name__ == "__main__":
    sys.exit(main())
