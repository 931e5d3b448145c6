"""tools/soak/view.py: a live table on a terminal, plain lines elsewhere, and what either of them says."""

from __future__ import annotations

import io
import sys

import pytest

from tools.probe.report import Reporter
from tools.soak import view
from tools.soak.record import Ending, Fault, Orphan, Record, Sample, Seen
from tools.soak.view import View

MIB = 1 << 20


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record() -> Record:
    """A run in which much has happened."""
    made = Record(minutes=5, streams=8)
    for ending in (Ending.WHOLE, Ending.WHOLE, Ending.FAILED, Ending.LIE):
        number = made.begin()
        made.ended(Seen(number, "chat", 9, 0.0, 1.0, ending))
    made.first_token(made.begin())
    made.fault(Fault("kill", 61.0, "killed process 5"))
    made.fault(Fault("stall", 62.0, "", error="no engine was there"))
    made.sample(Sample(1.0, 0.5, 4, 0, {"server memory": 47.0 * MIB, "server threads": 11.0}))
    made.orphan(Orphan(7, "llama", 30.0))
    return made


def shown(monkeypatch: pytest.MonkeyPatch, out: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(view, "LINE_S", 0.0)
    monkeypatch.setattr(view, "LONGEST_LINE_S", 0.0)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with View(Reporter(), record()) as live:
        live.tick()
    return out.getvalue()


def test_terminal_has_a_table_that_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, Terminal())
    for part in ("50%", "1, 1 in mid-answer", "whole", "kill at 0:01:01", "killed process 5", "no engine was there"):
        assert part in text
    assert "47 MiB" in text and "orphans" in text
    assert "━" * 10 in text
    assert "[red]" not in text, "styles are not spelled out"
    assert "\x1b[31m" in text, "the lie is red"
    assert "\x1b[2K" in text, "the table is wiped out"


def test_elsewhere_it_is_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = shown(monkeypatch, io.StringIO()).splitlines()
    assert "\x1b" not in line
    assert line.startswith("0:00:00  50%  4 streams (2 whole, 1 failed and said so, 1 untrue), 1 open  2 faults")
    assert line.endswith("1 orphans  server 47 MiB")
