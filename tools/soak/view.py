"""What a run shows while it goes on: a live table on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from tools.probe.report import Reporter, table
from tools.soak.judge import unit_of
from tools.soak.record import UNTRUE, Ending, Record

LINE_S = 10.0
LONGEST_LINE_S = 300.0
LAST_FAULTS = 3
BAR_WIDTH = 40


class View:
    """Use as a context manager, and call `tick` some times a second."""

    def __init__(self, reporter: Reporter, record: Record) -> None:
        self._reporter = reporter
        self._record = record
        terminal = reporter.out.is_terminal
        self._live = Live(console=reporter.out, auto_refresh=False, transient=True) if terminal else None
        self._line_s = min(LONGEST_LINE_S, max(LINE_S, record.minutes * 60 / 60))
        self._next_s = time.monotonic() + self._line_s

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tick(self) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + self._line_s
            self._reporter.say(self._line())

    def _line(self) -> str:
        record = self._record
        counts = record.counts
        untrue = sum(counts[ending] for ending in UNTRUE)
        parts = [
            _clock(record.now_s()),
            f"{record.share():.0%}",
            f"{len(record.streams)} streams ({counts[Ending.WHOLE]} whole, {counts[Ending.FAILED]} failed and said so, "
            f"{untrue} untrue), {record.open_streams} open",
            f"{len(record.faults)} faults",
        ]
        if record.orphans:
            parts.append(f"{len(record.orphans)} orphans")
        if record.samples and "server memory" in (values := record.samples[-1].values):
            parts.append(f"server {values['server memory'] / (1 << 20):.0f} MiB")
        return "  ".join(parts)

    def _table(self) -> Table:
        record, reporter = self._record, self._reporter
        made = table(f"soak, {_clock(record.now_s())} of {_clock(record.minutes * 60)}", "", "now")
        done = Table.grid(padding=(0, 1))
        done.add_row(
            ProgressBar(total=1.0, completed=min(1.0, record.share()), width=BAR_WIDTH), f"{record.share():.0%}"
        )
        made.add_row("done", done)
        made.add_row("streams open", f"{record.open_streams}, {record.mid_answer} in mid-answer")
        for ending in Ending:
            if count := record.counts[ending]:
                made.add_row(ending.value, str(count), style="red" if ending in UNTRUE else None)
        for fault in record.faults[-LAST_FAULTS:]:
            told = fault.error or fault.how
            made.add_row(f"{fault.kind} at {_clock(fault.at_s)}", reporter.cell(told))
        if record.samples:
            for name, value in record.samples[-1].values.items():
                unit, scale = unit_of(name)
                made.add_row(name, f"{value / scale:,.0f} {unit}".rstrip())
        if record.orphans:
            made.add_row("orphans", str(len(record.orphans)), style="red")
        return made


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
