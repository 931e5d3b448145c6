"""Reads the raw stream of a long generation and says how it ended, how long it was silent, and what of it is not true.

    python -m tools.check_stream http://127.0.0.1:8095/v1
    python -m tools.check_stream https://api.example.com/v1/responses --model NAME --minutes 120 --repeat 0
    python -m tools.check_stream --from-file stream.txt

Works on any server of the OpenAI or Anthropic APIs. A recording is made by `curl -sSNi URL -d … > FILE 2>&1`. It
changes nothing at the server; it asks for one long answer at a time. Its memory does not grow with time: of many
streams it keeps the first 500 untrue ones and the last 500 others, and counts all. Ctrl-C ends it with what was seen.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import threading
import time
from collections import Counter, deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress, TaskID
from rich.text import Text

from tools.outputs import check_outputs
from tools.probe.asking import LONG_PROMPT, TOOL_PROMPT, adapted, asking, first_model
from tools.probe.connection import SILENCE_S
from tools.probe.exits import COULD_NOT_RUN, LIE, TRUTHFUL, CouldNotRun
from tools.probe.live import Refused, watch
from tools.probe.options import add_reports, add_server, parser, target_of
from tools.probe.recorder import Recorder
from tools.probe.recording import guess_api, read_recording, replay
from tools.probe.report import JUnitCase, Reporter, run_checker, table
from tools.probe.stopping import pause, stopping
from tools.probe.stream_report import StreamReport, stream_case, stream_report, stream_table
from tools.probe.target import Api, Target
from tools.probe.values import Json
from tools.probe.witness import Verdict, Witness

MAX_TOKENS = 2048
"""What is asked for by default is longer than this."""
TOOL_TOKENS = 1000
"""And so is the call."""
MINUTES = 30.0
MAX_REFUSALS = 10
"""In a row; then the server is taken for gone."""
REFUSED_PAUSE_S = 1.0
"""Doubled with each refusal in a row: a model that is loaded again takes its time."""
LONGEST_PAUSE_S = 30.0
KEPT = 500
"""Of each kind."""
STATUSES_TO_ADAPT = (400, 422)


@dataclass(slots=True)
class Plan:
    """What is asked for, and how patiently. `body` loses what the server refuses."""

    target: Target
    api: Api
    body: Json
    limit: int
    endless: bool
    silence_s: float
    until_s: float
    verify: bool
    save: Path | None


@dataclass(slots=True)
class Kept:
    """What is kept of many streams: counts of all, the first untrue ones and the last others, each with its number."""

    counts: Counter[Verdict] = field(default_factory=Counter[Verdict])
    longest_silence_s: float = 0.0
    refused: int = 0
    refusals: list[str] = field(default_factory=list[str])
    _untrue: dict[int, StreamReport] = field(default_factory=dict[int, StreamReport])
    _last: deque[tuple[int, StreamReport]] = field(default_factory=lambda: deque[tuple[int, StreamReport]](maxlen=KEPT))

    def add(self, report: StreamReport) -> None:
        self.counts[report.verdict] += 1
        self.longest_silence_s = max(self.longest_silence_s, report.longest_silence_s or 0.0)
        if report.untrue and len(self._untrue) < KEPT:
            self._untrue[self.count] = report
        else:
            self._last.append((self.count, report))

    def refuse(self, text: str) -> None:
        self.refused += 1
        if len(self.refusals) < KEPT:
            self.refusals.append(text)

    @property
    def count(self) -> int:
        return self.counts.total()

    @property
    def reports(self) -> list[tuple[int, StreamReport]]:
        return sorted([*self._untrue.items(), *self._last], key=lambda one: one[0])

    def as_json(self) -> Json:
        """`left_out`: streams that are counted only."""
        streams = [{"number": number, **dataclasses.asdict(report)} for number, report in self.reports]
        return {
            "streams": streams,
            "left_out": self.count - len(streams),
            "verdicts": {str(verdict): count for verdict, count in self.counts.items()},
            "longest_silence_s": self.longest_silence_s,
            "refused": self.refused,
            "refusals": self.refusals,
        }


class Watching:
    """Streams one after another, each shown when it has ended. Ends when `stop` is set, with the stream that runs."""

    def __init__(self, plan: Plan, reporter: Reporter, stop: threading.Event, *, alone: bool) -> None:
        self._plan = plan
        self._reporter = reporter
        self._stop = stop
        self._alone = alone
        self.kept = Kept()
        self.gone = False
        """The server refused too often, and watching ended before its time."""

    def run(self, count: int) -> None:
        """So many streams; 0: until the time is up.

        Raises: CouldNotRun: there was not one. KeyboardInterrupt: it was stopped before one had begun.
        """
        in_a_row = 0
        while (not count or self.kept.count + self.kept.refused < count) and self._left_s() > 0:
            try:
                report = self._one()
                in_a_row = 0
                self._take(report)
            except CouldNotRun as error:
                if not self.kept.count and not self._stop.is_set():
                    raise
                if not self._stop.is_set():
                    in_a_row += 1
                    self._refused(str(error), in_a_row)
            if self._stop.is_set():
                if not self.kept.count:
                    raise KeyboardInterrupt
                self._reporter.complain("stopped")
                return
            if in_a_row == MAX_REFUSALS:
                self.gone = True
                return

    def _refused(self, text: str, in_a_row: int) -> None:
        self.kept.refuse(text)
        self._reporter.complain(text)
        if in_a_row < MAX_REFUSALS:
            wait_s = min(REFUSED_PAUSE_S * 2 ** (in_a_row - 1), LONGEST_PAUSE_S, max(0.0, self._left_s()))
            pause(wait_s, self._stop)

    def _left_s(self) -> float:
        return self._plan.until_s - time.perf_counter()

    def _take(self, report: StreamReport) -> None:
        self.kept.add(report)
        if self._alone:
            self._reporter.show(stream_table(report, self._reporter))
            return
        took = f"{report.took_s or 0.0:.1f} s, longest silence {report.longest_silence_s or 0.0:.1f} s"
        self._reporter.say(
            f"{self.kept.count}: {report.verdict}, {report.finish or 'no finish'}, {report.pieces} pieces, {took}",
            style="red" if report.untrue else None,
        )
        if report.untrue:
            self._reporter.show(stream_table(report, self._reporter))

    def _one(self) -> StreamReport:
        plan = self._plan
        while True:
            try:
                return self._watch()
            except Refused as refused:
                body = adapted(plan.body, refused.told) if refused.status in STATUSES_TO_ADAPT else None
                if body is None:
                    raise
                plan.body = body

    def _watch(self) -> StreamReport:
        plan = self._plan
        recorder: Recorder | None = None
        with ExitStack() as stack:
            if plan.save is not None:
                recorder = stack.enter_context(Recorder(plan.save, self._reporter.secret))
            progress = stack.enter_context(self._reporter.progress())
            task = progress.add_task("waiting for the first byte", total=plan.limit, heard_s=time.perf_counter())
            seen = watch(
                plan.target,
                plan.api,
                plan.body,
                limit=plan.limit,
                endless=plan.endless,
                silence_s=plan.silence_s,
                until_s=self._left_s(),
                verify=plan.verify,
                heard=None if recorder is None else recorder.heard,
                each=lambda witness: _advance(progress, task, witness),
                stop=self._stop,
            )
        if recorder is not None and recorder.leaked:
            self._reporter.complain(
                f"{plan.save} was not kept: the server sends the key back in a way in which it can't be taken out"
            )
        return stream_report(plan.target.shown, seen.witness, seen.reader, connect_s=seen.connect_s)


def _advance(progress: Progress, task: TaskID, witness: Witness) -> None:
    telling = witness.telling
    about = f"{telling.token_count} pieces, longest silence {witness.silence.longest_s:.1f} s"
    if telling.heartbeats.count:
        about += f", {telling.heartbeats.count} heartbeats"
    progress.update(task, completed=telling.token_count, description=about, heard_s=time.perf_counter())


def _live(args: argparse.Namespace, reporter: Reporter, stop: threading.Event) -> Watching:
    begun_s = time.perf_counter()
    target, api = target_of(args.url, args.api, reporter.secret)
    model: str = args.model or first_model(target, verify=not args.insecure, stop=stop)
    prompt: str = args.prompt or (TOOL_PROMPT if args.tool_call else LONG_PROMPT)
    tool = "named" if args.tool_call else None
    limit: int = MAX_TOKENS if args.max_tokens is None else args.max_tokens
    body = asking(api, model, prompt, max_tokens=limit, stream=True, tool=tool)
    plan = Plan(
        target=target,
        api=api,
        body=body,
        limit=limit,
        endless=args.prompt is None and limit <= (TOOL_TOKENS if args.tool_call else MAX_TOKENS),
        silence_s=args.silence_s,
        until_s=begun_s + 60 * args.minutes,
        verify=not args.insecure,
        save=args.save,
    )
    watching = Watching(plan, reporter, stop, alone=args.repeat == 1)
    watching.run(args.repeat)
    return watching


def _recorded(path: Path, api: Api | None, limit: int | None, reporter: Reporter) -> StreamReport:
    try:
        recording = read_recording(path.read_bytes())
    except OSError as error:
        raise CouldNotRun(f"{path} cannot be read: {error.strerror}") from None
    witness = Witness(api or guess_api(recording), limit, timed=False)
    reader = replay(recording, witness)
    report = stream_report(path.name, witness, reader)
    reporter.show(stream_table(report, reporter))
    return report


def _summary(kept: Kept, reporter: Reporter) -> None:
    made = table("all streams", "verdict", "streams")
    for verdict, count in kept.counts.most_common():
        made.add_row(Text(str(verdict), style="red" if verdict.untrue else "green"), str(count))
    if kept.refused:
        made.add_row("refused", str(kept.refused))
    reporter.show(made)
    reporter.say(f"longest silence of all: {kept.longest_silence_s:.1f} s")


def _check(args: argparse.Namespace, reporter: Reporter) -> int:
    check_outputs(args.json, args.junit)
    gone = False
    if args.from_file is not None:
        kept = Kept()
        kept.add(_recorded(args.from_file, args.api, args.max_tokens, reporter))
    else:
        with stopping() as stop:
            watching = _live(args, reporter, stop)
        kept, gone = watching.kept, watching.gone
        if args.repeat != 1:
            _summary(kept, reporter)
    if args.json is not None:
        reporter.write_json(args.json, kept.as_json())
    if args.junit is not None:
        cases = [stream_case(report, f"stream {number}") for number, report in kept.reports]
        cases += [
            JUnitCase("stream", f"refusal {number}", "error", text) for number, text in enumerate(kept.refusals, 1)
        ]
        reporter.write_junit(args.junit, "check_stream", cases)
    if any(verdict.untrue for verdict in kept.counts):
        return LIE
    return COULD_NOT_RUN if gone or set(kept.counts) == {Verdict.UNSEEN} else TRUTHFUL


def main(argv: list[str] | None = None) -> int:
    made = parser("check_stream", __doc__)
    made.add_argument("url", nargs="?", help="http://HOST:PORT, a base URL (…/v1), or the full one of a route")
    made.add_argument(
        "--from-file", type=Path, metavar="FILE", help="check a saved raw stream (curl -sSNi … > FILE 2>&1) instead"
    )
    add_server(made)
    made.add_argument("--prompt", help="what is asked (default: something long)")
    made.add_argument("--tool-call", action="store_true", help="ask for a long tool call instead of a long text")
    most = f"of each answer (default: {MAX_TOKENS}); with --from-file: what had been asked for"
    made.add_argument("--max-tokens", type=int, help=most)
    repeat = "streams, one after another (default: 1; 0: until the time is up)"
    made.add_argument("--repeat", type=int, default=1, help=repeat)
    made.add_argument("--minutes", type=float, default=MINUTES, help=f"time for all of it (default: {MINUTES:g})")
    silence = f"give a stream up after so long without a byte (default: {SILENCE_S:g})"
    made.add_argument("--silence-s", type=float, default=SILENCE_S, help=silence)
    made.add_argument("--save", type=Path, metavar="FILE", help="keep the last stream's bytes, for --from-file")
    add_reports(made)
    args = made.parse(argv)
    if (args.url is None) == (args.from_file is None):
        made.error("give either a URL or --from-file FILE")
    if (
        (args.max_tokens is not None and args.max_tokens < 1)
        or args.repeat < 0
        or args.minutes <= 0
        or args.silence_s <= 0
    ):
        made.error("--max-tokens, --minutes and --silence-s must be above 0, --repeat at least 0")
    messages = args.api == "messages" or str(args.url).rstrip("/").endswith("/messages")
    return run_checker(lambda reporter: _check(args, reporter), args.api_key, messages=messages)


if __name__ == "__main__":
    sys.exit(main())
