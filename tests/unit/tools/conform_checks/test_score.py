"""Scores: what makes one untruthful, what is no occasion, and what is kept of it in files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.tools.conform_checks.edits import instead
from tests.unit.tools.conform_checks.honest import Lie
from tests.unit.tools.conform_checks.rig import bench_of
from tools.conform_checks.check import Cell, Check, Result, Scope, Severity
from tools.conform_checks.score import Score, judge, judge_all, junit, pairs, read_score
from tools.conform_checks.table import CHECKS, chosen
from tools.probe.exits import COULD_NOT_RUN, LIE, TRUTHFUL, CouldNotRun


def of(severity: Severity) -> Check:
    return next(check for check in CHECKS if check.severity == severity)


def score(*results: tuple[Severity, Result]) -> Score:
    return Score(
        "s", "m", tuple(Cell(of(severity), of(severity).scopes[0], result, "t") for severity, result in results)
    )


def test_one_lie_or_breach_makes_it_untruthful_and_a_risk_does_not() -> None:
    assert score(("lie", "failed"), ("lie", "passed")).status == LIE
    assert score(("breach", "failed"), ("lie", "passed")).status == LIE
    assert score(("risk", "failed"), ("lie", "passed")).status == TRUTHFUL
    assert score(("lie", "passed"), ("lie", "not seen")).status == TRUTHFUL


def test_what_was_never_seen_is_no_truth() -> None:
    assert score(("lie", "not seen"), ("lie", "not there")).status == COULD_NOT_RUN


def test_api_that_is_not_there_is_no_pass() -> None:
    with bench_of(Lie("", traits={"lacks": "messages"})) as bench:
        results = {scope: judge(bench, check, scope).result for check, scope in chosen(["bad-json", "ends"], [])}
    assert results == {
        "chat": "passed",
        "completions": "passed",
        "responses": "passed",
        "messages": "not there",
    }


def refusing(ask: object, reply: object) -> bool:
    return getattr(ask, "method", "") == "POST"


def test_server_that_gave_no_occasion_could_not_be_checked() -> None:
    assert score(("lie", "not seen"), ("breach", "not there")).status == COULD_NOT_RUN
    assert Score("s", "m", ()).status == COULD_NOT_RUN


def test_score_that_was_stopped_is_not_truthful() -> None:
    assert replace(score(("lie", "passed")), left=3).status == COULD_NOT_RUN
    assert replace(score(("lie", "failed")), left=3).status == LIE


def test_server_without_any_api_could_not_be_checked() -> None:
    strange = Lie("", engine={"slots": 0, "queue_max": 0}, reply=instead(refusing, 404, {"error": {"message": "no"}}))
    with bench_of(strange) as bench, pytest.raises(CouldNotRun, match="is this the base URL"):
        judge_all(bench, chosen([], []), lambda check, scope: None, "strange")


def test_score_is_the_same_when_read_again(tmp_path: Path) -> None:
    made = score(("lie", "failed"), ("breach", "passed"), ("risk", "not seen"))
    path = tmp_path / "a.json"
    path.write_text(json.dumps(made.as_json()), encoding="utf-8")
    again = read_score(path)
    assert [(cell.check.id, cell.scope, cell.result, cell.text) for cell in again.cells] == [
        (cell.check.id, cell.scope, cell.result, cell.text) for cell in made.cells
    ]
    assert (again.server, again.model, again.status) == ("s", "m", LIE)


def test_file_that_is_no_score_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(CouldNotRun, match="cannot be read"):
        read_score(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(CouldNotRun, match="is not JSON"):
        read_score(path)
    path.write_text('{"format": 99}', encoding="utf-8")
    with pytest.raises(CouldNotRun, match="format 99"):
        read_score(path)


def cell(name: str, scope: Scope, result: Result) -> Cell:
    return Cell(next(check for check in CHECKS if check.id == name), scope, result, "")


def test_second_server_is_worse_where_it_is_untrue_and_the_first_is_true() -> None:
    first = Score("a", "m", (cell("ends", "chat", "passed"), cell("first-role", "chat", "passed")))
    second = Score("b", "m", (cell("ends", "chat", "failed"), cell("first-role", "chat", "failed")))
    assert [(pair.check.id, pair.differs, pair.worse) for pair in pairs(first, second)] == [
        ("ends", True, True),
        ("first-role", True, False),
    ]
    assert not any(pair.worse for pair in pairs(second, first))


def test_what_only_one_server_was_judged_on_is_no_difference() -> None:
    first = Score("a", "m", (cell("ends", "chat", "passed"), cell("first-role", "chat", "passed")))
    second = Score("b", "m", (cell("ends", "chat", "not seen"),))
    found = pairs(first, second)
    assert [(pair.differs, pair.one_sided) for pair in found] == [(False, True), (False, True)]
    assert found[1].second is None
    failing = Score("b", "m", (cell("ends", "chat", "failed"),))
    assert [pair.differs for pair in pairs(first, failing)] == [True, False]


def test_junit_fails_on_lies_and_breaches_and_skips_what_was_not_seen() -> None:
    cases = junit(score(("lie", "failed"), ("risk", "failed"), ("lie", "passed"), ("breach", "not seen")))
    assert [case.result for case in cases] == ["failure", "passed", "passed", "skipped"]
    assert "risk: " in cases[1].detail
