"""Every check fails on a server that tells its lie, and there is a liar for every check."""

from __future__ import annotations

import pytest

from tests.unit.tools.conform_checks.evidence import evidence, known_findings, wanted_findings
from tests.unit.tools.conform_checks.finer_lies import FINER_LIES
from tests.unit.tools.conform_checks.honest import Lie
from tests.unit.tools.conform_checks.lies import LIES
from tests.unit.tools.conform_checks.more_lies import MORE_LIES
from tests.unit.tools.conform_checks.rig import IMPATIENT, bench_of
from tools.conform_checks.check import Check, Scope
from tools.conform_checks.score import judge
from tools.conform_checks.table import CHECKS

ALL = (*LIES, *MORE_LIES, *FINER_LIES)
BY_ID = {check.id: check for check in CHECKS}


def _cells() -> list[tuple[Lie, Check, Scope]]:
    cells: list[tuple[Lie, Check, Scope]] = []
    for lie in ALL:
        check = BY_ID[lie.check]
        for scope in check.scopes:
            if (lie.apis is None or scope in lie.apis) and (check.id, scope) not in LEFT_OUT:
                cells.append((lie, check, scope))
    return cells


SLOW = ("left-stream", "left-reset", "left-body", "waiting-heard", "waiting-served", "beats", "recovers")
SLOWER = ("flows", "killed-body-no-success", "killed-body-told", "stalled-goes-on", "stalled-gives-up")
LEFT_OUT = {(name, scope) for name in SLOW for scope in ("completions", "messages")} | {
    (name, scope) for name in SLOWER for scope in ("completions", "responses", "messages")
}
"""Each of these liars takes a second, and what judges them is the same in every API."""
CELLS = _cells()


@pytest.mark.parametrize(("lie", "check", "scope"), CELLS, ids=[f"{check.id}/{scope}" for _, check, scope in CELLS])
def test_liar_is_seen(lie: Lie, check: Check, scope: Scope) -> None:
    with bench_of(lie, settings=IMPATIENT) as bench:
        cell = judge(bench, check, scope)
    assert cell.result == "failed", cell.text
    assert cell.text
    assert lie.says in cell.text


def test_there_is_a_liar_for_every_check_in_every_api() -> None:
    told = {(check.id, scope) for _, check, scope in CELLS}
    wanted = {(check.id, scope) for check in CHECKS for scope in check.scopes}
    assert wanted - told == LEFT_OUT
    assert {check.id for check in CHECKS} == {name for name, _ in told} == {lie.check for lie in ALL}
    assert [lie for lie in ALL if not any(lie is each for each, _, _ in CELLS)] == []


def test_there_is_a_liar_for_every_evidence() -> None:
    """A check that fails in a new way needs a lie whose `says` has its words."""
    said = [lie.says for lie in ALL]
    assert [words for words in evidence() if not any(words in each for each in said)] == []


def test_findings_that_checks_look_for_are_ones_that_a_witness_makes() -> None:
    """A name that is spelt wrong would never be found."""
    assert len(wanted_findings()) > 30
    assert wanted_findings() - known_findings() == set()
