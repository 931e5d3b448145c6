"""Scores and checks as tables: for a terminal, and as Markdown. It judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from tools.conform_checks.check import GROUPS, SCOPES, Cell, Check, Group, Scope
from tools.conform_checks.score import Pair, Score
from tools.probe.report import Reporter, table

TITLES: dict[Scope, str] = {
    "chat": "chat",
    "completions": "completions",
    "responses": "Responses",
    "messages": "Messages",
    "server": "server",
}
STYLES = {"passed": "green", "failed": "red", "not seen": "dim", "not there": "dim"}
MARKS = {"passed": "yes", "failed": "NO", "not seen": "not seen", "not there": "not there"}
_MOST_REASONS = 12


def tally(cells: Iterable[Cell]) -> str:
    """`passed/judged`; a word where nothing was judged."""
    results = [cell.result for cell in cells]
    if not results:
        return ""
    judged = sum(result in ("passed", "failed") for result in results)
    if not judged:
        return "not seen" if "not seen" in results else "not there"
    return f"{results.count('passed')}/{judged}"


def _of(score: Score, group: Group | None, scope: Scope) -> list[Cell]:
    return [cell for cell in score.cells if cell.scope == scope and group in (None, cell.check.group)]


def group_rows(score: Score) -> list[list[str]]:
    groups: list[Group] = [group for group in GROUPS if any(cell.check.group == group for cell in score.cells)]
    rows = [[str(group), *(tally(_of(score, group, scope)) for scope in SCOPES)] for group in groups]
    return [*rows, ["all", *(tally(_of(score, None, scope)) for scope in SCOPES)]]


def group_table(score: Score, reporter: Reporter) -> Table:
    made = table(
        f"{reporter.cell(score.server)}, {reporter.cell(score.model)}", "", *(TITLES[scope] for scope in SCOPES)
    )
    for row in group_rows(score):
        made.add_row(row[0], *(_tallied(text) for text in row[1:]))
    return made


def _tallied(text: str) -> Text:
    passed, slash, judged = text.partition("/")
    return Text(text, "dim" if not slash else "green" if passed == judged else "red")


def failed_table(score: Score, reporter: Reporter) -> Table:
    made = table("what is not true", "check", "API", "", "truth", "seen")
    for cell in by_weight(score.failed()):
        style = "red" if cell.untrue else "yellow"
        words = (cell.check.id, TITLES[cell.scope], cell.check.severity, cell.check.truth, cell.text)
        made.add_row(*(Text(reporter.cell(word), style if at < 3 else "") for at, word in enumerate(words)))
    return made


def by_weight(cells: Iterable[Cell]) -> list[Cell]:
    return sorted(cells, key=lambda cell: ("lie", "breach", "risk").index(cell.check.severity))


def full_table(score: Score, reporter: Reporter) -> Table:
    made = table("all checks", "check", *(TITLES[scope] for scope in SCOPES))
    results = {(cell.check.id, cell.scope): cell for cell in score.cells}
    for id_ in dict.fromkeys(cell.check.id for cell in score.cells):
        cells = [results.get((id_, scope)) for scope in SCOPES]
        made.add_row(id_, *(Text(MARKS[cell.result], STYLES[cell.result]) if cell else Text() for cell in cells))
    return made


def reasons(score: Score) -> list[str]:
    """Why checks were not judged, the most frequent first."""
    counts = Counter(cell.text for cell in score.cells if cell.result == "not seen")
    lines = [f"{count} not seen: {text}" for text, count in counts.most_common(_MOST_REASONS)]
    rest = sum(counts.values()) - sum(count for _, count in counts.most_common(_MOST_REASONS))
    return lines + ([f"{rest} not seen for other reasons: --json has them"] if rest else [])


def summary(score: Score) -> str:
    counts = score.counts()
    lies = sum(cell.untrue for cell in score.cells)
    text = f"{counts['passed']} passed, {lies} not true, {counts['failed'] - lies} risks"
    text += f", {counts['not seen']} not seen, {counts['not there']} not there"
    return f"{text}; stopped before {score.left} more" if score.left else text


# --- Markdown ---------------------------------------------------------------------------------------


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("*", "\\*")


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return lines + ["| " + " | ".join(_cell(text) for text in row) + " |" for row in rows]


def score_markdown(score: Score) -> str:
    lines = [f"# {_cell(score.server)}, {_cell(score.model)}", "", summary(score) + ".", ""]
    lines += _rows(["", *(TITLES[scope] for scope in SCOPES)], group_rows(score))
    if failed := by_weight(score.failed()):
        rows = [(f"`{c.check.id}`", TITLES[c.scope], c.check.severity, c.check.truth, c.text) for c in failed]
        lines += ["", "## What is not true", "", *_rows(("check", "API", "", "truth", "seen"), rows)]
    if told := reasons(score):
        lines += ["", "## Not seen", "", *(f"- {_cell(line)}" for line in told)]
    return "\n".join(lines) + "\n"


def checks_markdown(checks: Sequence[Check]) -> str:
    """CHECKS.md."""
    lines = [
        "# Checks",
        "",
        f"The {len(checks)} checks of `python -m tools.conform URL`; this page is made from its code.",
        "A failed *lie* is a wrong or partial answer that clients take for a good one; a *breach* is against the",
        "standard, or loses the answer; a *risk* is allowed, and known to break clients.",
    ]
    for group in GROUPS:
        rows = [
            (f"`{c.id}`", c.severity, ", ".join(TITLES[scope] for scope in c.scopes), c.truth, c.source)
            for c in checks
            if c.group == group
        ]
        if rows:
            lines += ["", f"## {group.capitalize()}", "", *_rows(("check", "", "in", "truth", "from"), rows)]
    return "\n".join(lines) + "\n"


def checks_table(checks: Sequence[Check]) -> Table:
    made = table(f"{len(checks)} checks", "check", "group", "", "in", "truth", "from")
    for c in checks:
        made.add_row(c.id, c.group, c.severity, ", ".join(TITLES[scope] for scope in c.scopes), c.truth, c.source)
    return made


# --- two servers ------------------------------------------------------------------------------------


def compared_rows(first: Score, second: Score) -> list[list[str]]:
    groups: list[Group] = [
        group for group in GROUPS if any(cell.check.group == group for cell in (*first.cells, *second.cells))
    ]
    rows = [[str(group), *_both(first, second, group)] for group in groups]
    return [*rows, ["all", *_both(first, second, None)]]


def _both(first: Score, second: Score, group: Group | None) -> list[str]:
    made: list[str] = []
    for scope in SCOPES:
        texts = tally(_of(first, group, scope)), tally(_of(second, group, scope))
        made.append("" if texts == ("", "") else " : ".join(text or "-" for text in texts))
    return made


def compared_table(first: Score, second: Score, reporter: Reporter) -> Table:
    title = f"{reporter.cell(first.server)} : {reporter.cell(second.server)}"
    made = table(title, "", *(TITLES[scope] for scope in SCOPES))
    for row in compared_rows(first, second):
        made.add_row(*row)
    return made


def differences_table(differing: Iterable[Pair], reporter: Reporter) -> Table:
    made = table("where they differ", "check", "API", "", "first", "second", "seen")
    for pair in differing:
        texts = [cell.text for cell in (pair.first, pair.second) if cell is not None and cell.result == "failed"]
        words = (pair.check.id, TITLES[pair.scope], pair.check.severity)
        made.add_row(*words, *(_mark(cell) for cell in (pair.first, pair.second)), reporter.cell("; ".join(texts)))
    return made


def _mark(cell: Cell | None) -> Text:
    return Text(MARKS[cell.result], STYLES[cell.result]) if cell else Text("not judged", "dim")


def compared_markdown(first: Score, second: Score, differing: Iterable[Pair]) -> str:
    lines = [f"# {_cell(first.server)} : {_cell(second.server)}", ""]
    lines += _rows(["passed/judged", *(TITLES[scope] for scope in SCOPES)], compared_rows(first, second))
    rows = [
        (
            f"`{pair.check.id}`",
            TITLES[pair.scope],
            pair.check.severity,
            *(MARKS[cell.result] if cell else "not judged" for cell in (pair.first, pair.second)),
            pair.check.truth,
        )
        for pair in differing
    ]
    if rows:
        lines += ["", *_rows(("check", "API", "", "first", "second", "truth"), rows)]
    return "\n".join(lines) + "\n"
