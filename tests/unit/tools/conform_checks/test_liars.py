"""Every check fails on a server that tells its lie, and there is a liar for every check."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.tools.conform_checks.honest import Lie
from tests.unit.tools.conform_checks.lies import LIES
from tests.unit.tools.conform_checks.more_lies import MORE_LIES
from tests.unit.tools.conform_checks.rig import SETTINGS, bench_of
from tools.conform_checks.check import Check, Scope
from tools.conform_checks.score import judge
from tools.conform_checks.table import CHECKS

ALL = (*LIES, *MORE_LIES)
BY_ID = {check.id: check for check in CHECKS}
IMPATIENT = replace(SETTINGS, free_s=0.4, quiet_s=0.3, continue_s=0.3)
"""A liar lies however long one waits."""


def _cells() -> list[tuple[Lie, Check, Scope]]:
    cells: list[tuple[Lie, Check, Scope]] = []
    for lie in ALL:
        check = BY_ID[lie.check]
        scopes: list[Scope] = [scope for scope in check.scopes if lie.apis is None or scope in lie.apis]
        cells += [(lie, check, scope) for scope in scopes]
    return cells


CELLS = _cells()


@pytest.mark.parametrize(("lie", "check", "scope"), CELLS, ids=[f"{check.id}/{scope}" for _, check, scope in CELLS])
def test_liar_is_seen(lie: Lie, check: Check, scope: Scope) -> None:
    with bench_of(lie, settings=IMPATIENT) as bench:
        cell = judge(bench, check, scope)
    assert cell.result == "failed", cell.text
    assert cell.text


def test_there_is_a_liar_for_every_check_in_every_api() -> None:
    told = {(check.id, scope) for _, check, scope in CELLS}
    wanted = {(check.id, scope) for check in CHECKS for scope in check.scopes}
    assert {cell for cell in wanted - told if cell[0] not in COSTLY} == set()
    assert {check.id for check in CHECKS} == {lie.check for lie in ALL}


COSTLY = {"flows"}
"""Each of their liars takes seconds: one API is enough."""
