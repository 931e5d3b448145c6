"""Hours of mixed load on a real engine: streams of all lengths, clients that leave, kills and stalls; then a verdict.

    python -m tools.soak --serve "--config strata.json" --minutes 240
    python -m tools.soak --url http://127.0.0.1:8000/v1 --server-pid 4711 --kill-command "docker kill vllm"

Works on any server of the OpenAI or Anthropic APIs. It kills and stalls the engine only where it is told which process
that is, or our own server says so.
"""

from __future__ import annotations

import argparse
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tools import plots
from tools.outputs import check_outputs
from tools.probe.asking import SHORT_PROMPT, asking, first_model
from tools.probe.connection import fetch
from tools.probe.exits import CouldNotRun
from tools.probe.live import Refused, watch
from tools.probe.report import Reporter, run_checker
from tools.probe.stopping import stopping
from tools.probe.target import Api, Target, parse_target
from tools.probe.values import as_int, at, parsed
from tools.soak.charts import chart
from tools.soak.command_line import (
    KILL_EVERY_MINUTES,
    STALL_EVERY_MINUTES,
    check,
    default_every_s,
    default_faults,
    parser,
)
from tools.soak.faults import ByCommand, ByPid, Means, OnePid
from tools.soak.gpu import Gpu, find_gpu
from tools.soak.judge import MIB, judge
from tools.soak.page import Outcome, as_json, evidence_text, junit_cases, page, show
from tools.soak.record import ANSWERED, FaultKind, Record, Watched
from tools.soak.run import Scene, soak
from tools.soak.serving import OurServer
from tools.soak.settings import Settings
from tools.soak.tree import Tree, listener_pid
from tools.soak.view import View
from tools.soak.watch import StatusPage, Watch, watched

LOOK_TOKENS = 4
LOOK_S = 300.0
"""The first answer may wait for the model to load."""
ROOM_TOKENS = 1024
"""Of the context that is left to prompts."""
NO_MEANS = (
    "nobody says which process the engine is; give --engine-pid or --{0}-command, or test a server of this machine "
    "with a /status like ours"
)


def _soak(args: argparse.Namespace, reporter: Reporter) -> int:
    check(args)
    _make_folder(args.report)
    check_outputs(args.json, args.junit)
    if not plots.can_plot():
        reporter.complain(f"{plots.HOW_TO_GET}; the report is made without them")
    with ExitStack() as stack:
        stop = stack.enter_context(stopping())
        ours: OurServer | None = None
        if args.serve is not None:
            ours = _start(args, reporter, stop)
            stack.callback(ours.end)
        target = parse_target(ours.url if ours else args.url, reporter.secret)
        model = args.model or first_model(target, verify=not args.insecure)
        apis = _look(target, args, model, reporter, stop)
        gpu = find_gpu()
        if isinstance(gpu, Gpu):
            stack.callback(gpu.close)
        tree = _tree(args, target, ours)
        settings = _settings(args, apis, _max_tokens(target, args, reporter))
        page_ = StatusPage(target, verify=not args.insecure)
        facts = watched(tree, page_, gpu, target)
        record = Record(minutes=settings.minutes, streams=settings.streams)
        watcher = Watch(settings, record, tree=tree, page=page_, gpu=None if isinstance(gpu, str) else gpu)
        scene = Scene(target, model, watcher, tree, ours, _means(args, watcher), _may_end(args))
        settings = replace(settings, **_fault_counts(args, scene))
        _announce(settings, facts, reporter)
        return _finish(args, reporter, _run(settings, scene, record, facts, reporter, stop))


def _settings(args: argparse.Namespace, apis: tuple[Api, ...], max_tokens: int) -> Settings:
    """All but the faults, which need to know what can be killed."""
    return Settings(
        seed=args.seed,
        apis=apis,
        minutes=args.minutes,
        streams=args.streams,
        clients=args.clients,
        max_tokens=max_tokens,
        prompt_words=args.prompt_words,
        leave_share=args.leave,
        stall_s=args.stall_s,
        silence_s=args.silence_s,
        stream_limit_s=args.stream_limit_s,
        every_s=args.every_s or default_every_s(args.minutes),
        grace_s=args.grace_s,
        cache_mib=args.cache_mib,
        verify=not args.insecure,
    )


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CouldNotRun(f"report: {path} cannot be made: {error.strerror}") from None
    check_outputs(path / "report.json")


def _start(args: argparse.Namespace, reporter: Reporter, stop: threading.Event) -> OurServer:
    with reporter.progress() as progress:
        progress.add_task("starting the server", total=None)
        return OurServer(args.serve, args.report / "server.log", stop=stop)


# --- who takes part ----------------------------------------------------------------------------------


def _look(
    target: Target, args: argparse.Namespace, model: str, reporter: Reporter, stop: threading.Event
) -> tuple[Api, ...]:
    """The APIs that the server has: each is asked once.

    Raises: CouldNotRun: none of them answers. KeyboardInterrupt: `stop` was set.
    """
    there: list[Api] = []
    last = ""
    for api in args.apis:
        body = asking(api, model, SHORT_PROMPT, max_tokens=LOOK_TOKENS, stream=True)
        try:
            watch(target, api, body, silence_s=LOOK_S, until_s=LOOK_S, verify=not args.insecure, stop=stop)
        except Refused as refused:
            last = str(refused)
            if 400 <= refused.status < 500 and refused.status not in (408, 429):
                reporter.say(f"{api} is left out: {refused}")
                continue
        if stop.is_set():
            raise KeyboardInterrupt
        there.append(api)
    if not there:
        raise CouldNotRun(f"no API answers: {last}")
    return tuple(there)


def _max_tokens(target: Target, args: argparse.Namespace, reporter: Reporter) -> int:
    """As many as were asked for, if the model's context has room for them."""
    try:
        answer = fetch(target, target.get("/models"), silence_s=30.0, until_s=30.0, verify=not args.insecure)
        context = as_int(at(parsed(answer.body), "data", 0, "max_model_len"))
    except (CouldNotRun, ValueError):
        context = None
    if context is None or args.max_tokens + ROOM_TOKENS <= context:
        return args.max_tokens
    most = max(1, context - ROOM_TOKENS, context // 2)
    if most >= args.max_tokens:
        return args.max_tokens
    reporter.say(f"max-tokens: {args.max_tokens} and a prompt do not fit into {context} tokens; {most} are asked for")
    return most


def _tree(args: argparse.Namespace, target: Target, ours: OurServer | None) -> Tree | None:
    """The server's process: the one that was named, or the one that listens. What a launcher started is below it."""
    pid = args.server_pid or listener_pid(target) or (ours.process.pid if ours else None)
    return Tree(pid) if pid is not None else None


def _means(args: argparse.Namespace, watcher: Watch) -> dict[FaultKind, Means]:
    made: dict[FaultKind, Means] = {}
    by_pid: Means | None = None
    if args.engine_pid is not None:
        by_pid = OnePid(args.engine_pid)
    elif watcher.engine_pid() is not None:
        by_pid = ByPid(watcher.engine_pid)
    commands: tuple[tuple[FaultKind, str | None], ...] = (("kill", args.kill_command), ("stall", args.stall_command))
    for kind, command in commands:
        means = ByCommand(command) if command else by_pid
        if means is not None:
            made[kind] = means
    return made


def _may_end(args: argparse.Namespace) -> bool:
    """Whether what the user lets us kill may be the server itself."""
    return args.kill_command is not None or args.engine_pid is not None


def _fault_counts(args: argparse.Namespace, scene: Scene) -> dict[str, int]:
    """How many of each are made. Raises: CouldNotRun: some were asked for, and there are no means."""
    counts: dict[str, int] = {}
    kinds: tuple[tuple[FaultKind, int | None, float], ...] = (
        ("kill", args.kills, KILL_EVERY_MINUTES),
        ("stall", args.stalls, STALL_EVERY_MINUTES),
    )
    for kind, asked, every_minutes in kinds:
        if asked and kind not in scene.means:
            raise CouldNotRun(f"{kind}s: " + NO_MEANS.format(kind))
        default = default_faults(args, every_minutes) if kind in scene.means else 0
        counts[f"{kind}s"] = default if asked is None else asked
    return counts


def _announce(settings: Settings, facts: Watched, reporter: Reporter) -> None:
    until = f"{settings.streams} streams, or {settings.minutes:g} minutes" if settings.streams else ""
    reporter.say(f"soak of {facts.server} for {until or f'{settings.minutes:g} minutes'}, seed {settings.seed}")
    reporter.say(
        f"{settings.clients} clients: {', '.join(settings.apis)}; {settings.kills} kills, {settings.stalls} stalls"
    )
    for fact in facts.facts:
        reporter.say(f"watched: {fact}")
    for text in facts.missing:
        reporter.say(f"not watched: {text}")


# --- the run and its report --------------------------------------------------------------------------


def _run(
    settings: Settings, scene: Scene, record: Record, facts: Watched, reporter: Reporter, stop: threading.Event
) -> Outcome:
    with View(reporter, record) as view:
        end = soak(settings, scene, record, view.tick, stop)
        took_s = record.now_s()
        stopped = stop.is_set()
    if not any(seen.ending in ANSWERED for seen in record.streams):
        why = record.streams[-1].why if record.streams else ()
        raise CouldNotRun("no stream was answered" + "".join(f": {text}" for text in why))
    notes = [*end.notes, *(("stopped before its time",) if stopped else ())]
    not_made = sum(fault.error is not None for fault in record.faults)
    if not_made:
        notes.append(f"{not_made} of {len(record.faults)} faults could not be made")
    orphans = list(record.orphans.values())
    judgement = judge(record.streams, record.samples, record.faults, orphans, end, cache_bytes=settings.cache_mib * MIB)
    return Outcome(settings, facts, scene.model, record, judgement, took_s, tuple(notes))


def _finish(args: argparse.Namespace, reporter: Reporter, outcome: Outcome) -> int:
    """Show and write everything; the exit status."""
    folder: Path = args.report
    record, judgement = outcome.record, outcome.judgement
    for old in (folder / "soak.png", *folder.glob("untrue-*.txt")):  # of an earlier run
        old.unlink(missing_ok=True)
    picture: bytes | None = None
    if plots.can_plot():
        picture = chart(record.streams, record.samples, record.faults, judgement)
        _write_bytes(folder / "soak.png", picture)
    reporter.write_text(folder / "report.html", page(outcome, picture, reporter))
    reporter.write_json(folder / "report.json", as_json(outcome))
    for evidence in record.evidence:
        reporter.write_text(folder / f"untrue-{evidence.seen.number}.txt", evidence_text(evidence))
    if args.json is not None:
        reporter.write_json(args.json, as_json(outcome))
    if args.junit is not None:
        reporter.write_junit(args.junit, "soak", junit_cases(outcome))
    show(outcome, reporter)
    reporter.say(f"report: {folder / 'report.html'}")
    return judgement.status


def _write_bytes(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise CouldNotRun(f"{path} cannot be written: {error.strerror}") from None


def main(argv: list[str] | None = None) -> int:
    args = parser(__doc__).parse(argv)
    return run_checker(lambda reporter: _soak(args, reporter), args.api_key, messages=args.apis == ("messages",))


if __name__ == "__main__":
    sys.exit(main())
