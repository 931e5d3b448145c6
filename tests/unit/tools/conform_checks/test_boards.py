"""Scores as tables: what is counted, what foreign text cannot break, what is left out and said to be."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from tools.conform_checks import boards
from tools.conform_checks.check import Cell, Check, Result, Scope
from tools.conform_checks.score import Score, pairs
from tools.conform_checks.table import CHECKS
from tools.probe.report import Reporter

FOREIGN = "a | b\nc <script> *d* \\ [red]e[/red]"


def cell(name: str, scope: Scope, result: Result, text: str = "") -> Cell:
    return Cell(named(name), scope, result, text)


def named(name: str) -> Check:
    return next(check for check in CHECKS if check.id == name)


def drawn(what: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=200, markup=False, highlight=False, emoji=False)
    console.print(what)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


SCORE = Score(
    "s",
    "m",
    (
        cell("ends", "chat", "passed"),
        cell("limit-stream", "chat", "failed", FOREIGN),
        cell("limit-body", "chat", "not seen", "no model"),
        cell("ends", "messages", "not there", "404"),
        cell("first-role", "chat", "failed", "no role"),
        cell("http10", "server", "not seen", "no model"),
    ),
)


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ([], ""),
        (["passed", "failed", "not seen"], "1/2"),
        (["not there", "not seen"], "not seen"),
        (["not there"], "not there"),
    ],
)
def test_tally_counts_what_was_judged(results: list[Result], text: str) -> None:
    assert boards.tally(cell("ends", "chat", result) for result in results) == text


def test_rows_are_groups_in_their_order_and_their_sum() -> None:
    assert boards.group_rows(SCORE) == [
        ["endings", "1/2", "", "", "not there", ""],
        ["grammar", "0/1", "", "", "", ""],
        ["framing", "", "", "", "", "not seen"],
        ["all", "1/3", "", "", "not there", "not seen"],
    ]


def test_summary_tells_lies_from_risks() -> None:
    assert boards.summary(SCORE) == "1 passed, 1 not true, 1 risks, 2 not seen, 1 not there"


def test_lies_come_before_risks() -> None:
    assert [each.check.severity for each in boards.by_weight(reversed(SCORE.failed()))] == ["lie", "risk"]


def test_tables_show_foreign_text_as_it_is() -> None:
    reporter = Reporter()
    shown = drawn(boards.failed_table(SCORE, reporter))
    assert "[red]e[/red]" in shown
    assert shown.index("limit-stream") < shown.index("first-role")
    assert "NO" in drawn(boards.full_table(SCORE, reporter))
    assert "1/2" in drawn(boards.group_table(SCORE, reporter))


def test_markdown_keeps_foreign_text_in_its_cell() -> None:
    page = boards.score_markdown(SCORE)
    (row,) = [line for line in page.splitlines() if line.startswith("| `limit-stream`")]
    assert row.endswith(r"| a \| b c &lt;script> \*d\* \\ [red]e[/red] |")
    assert "- 2 not seen: no model" in page


def test_reasons_are_counted_and_the_rest_is_told() -> None:
    many = [cell("ends", "chat", "not seen", f"reason {number}") for number in range(14)]
    score = Score("s", "m", (*many, cell("ends", "chat", "not seen", "reason 3")))
    lines = boards.reasons(score)
    assert lines[0] == "2 not seen: reason 3"
    assert lines[-1] == "2 not seen for other reasons: --json has them"
    assert len(lines) == 13


def test_two_scores_stand_beside_each_other() -> None:
    other = Score("t", "n", (cell("ends", "chat", "failed", "no end"), cell("sequence-gapless", "responses", "passed")))
    rows = {row[0]: row for row in boards.compared_rows(SCORE, other)}
    assert rows["endings"][1] == "1/2 : 0/1"
    assert rows["sequence"][3] == "- : 1/1"
    differing = [pair for pair in pairs(SCORE, other) if pair.differs]
    page = boards.compared_markdown(SCORE, other, differing)
    assert "| `ends` | chat | lie | yes | NO |" in page
    assert "| `limit-stream` | chat | lie | NO | not judged |" in page
    shown = drawn(boards.differences_table(differing, Reporter()))
    assert "no end" in shown
    assert "s : t" in drawn(boards.compared_table(SCORE, other, Reporter()))


def test_checks_are_a_page_and_a_table() -> None:
    checks = [named("ends"), named("http10")]
    page = boards.checks_markdown(checks)
    assert page.startswith("# Checks\n\nThe 2 checks")
    assert "## Framing" in page
    assert "## Queue" not in page
    assert "http10" in drawn(boards.checks_table(checks))
