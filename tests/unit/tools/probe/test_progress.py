"""tools/probe/progress.py: how far it is, with and without a terminal, also while nothing comes."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from tools.probe import progress
from tools.probe.progress import PlainProgress, bar


class _Lines(io.StringIO):
    """Says when a line was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        made = super().write(text)
        self.written.set()
        return made


def test_without_a_terminal_a_line_is_written_while_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    out = _Lines()
    with PlainProgress(Console(file=out), 0.01) as shown:
        shown.add_task("waiting for the first byte", total=2048, heard_s=0.0)
        assert out.written.wait(20)
    line = out.getvalue().splitlines()[0]
    assert line.startswith("0 s: waiting for the first byte, 0 of 2048, nothing for ")
    assert "\x1b" not in out.getvalue()
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_what_is_over_soon_writes_nothing() -> None:
    out = io.StringIO()
    with PlainProgress(Console(file=out)) as shown:
        shown.update(shown.add_task("quick", total=None), description="done", heard_s=0.0)
    assert out.getvalue() == ""


def test_on_a_terminal_a_silence_stands_beside_the_bar() -> None:
    out = io.StringIO()
    with bar(Console(file=out, force_terminal=True, width=100)) as shown:
        shown.add_task("3 pieces", total=7, completed=3, heard_s=0.0)
        shown.add_task("no silence told", total=7)
        shown.refresh()
    assert "3 pieces" in out.getvalue()
    assert out.getvalue().count("nothing for ") >= 1
