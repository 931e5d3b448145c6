"""How far a checker is: a bar on a terminal, and a plain line every few seconds where nobody could see a bar.

It judges nothing, and writes through the console that it is given.
"""

from __future__ import annotations

import threading
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

PLAIN_EVERY_S = 10.0
"""Between two plain lines. What ends sooner than this writes none."""
QUIET_S = 2.0
"""From so long a silence on it is told."""


def _quiet(task: Task) -> str:
    """Of a task whose silence matters: its field `heard_s` is when something came last, by `time.perf_counter`."""
    heard_s: float | None = task.fields.get("heard_s")
    quiet_s = 0.0 if heard_s is None else time.perf_counter() - heard_s
    return f"nothing for {quiet_s:.0f} s" if quiet_s >= QUIET_S else ""


class _QuietColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_quiet(task))


def bar(console: Console) -> Progress:
    """It is gone afterwards. Use as a context manager, as `PlainProgress`."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), _QuietColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


class PlainProgress(Progress):
    """Lines on a console that is no terminal, from a thread of its own: also while nothing comes."""

    def __init__(self, console: Console, every_s: float | None = None) -> None:
        super().__init__(console=console, disable=True)
        self._every_s = PLAIN_EVERY_S if every_s is None else every_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        super().start()
        if self._thread is None:
            self._thread = threading.Thread(target=self._tell, name="progress", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        super().stop()

    def _tell(self) -> None:
        while not self._over.wait(self._every_s):
            for task in self.tasks:
                self.console.print(plain_line(task), soft_wrap=True)


def plain_line(task: Task) -> str:
    total = "" if task.total is None else f"{task.completed:g} of {task.total:g}"
    words = [task.description, total, _quiet(task)]
    return f"{task.elapsed or 0.0:.0f} s: " + ", ".join(word for word in words if word)
