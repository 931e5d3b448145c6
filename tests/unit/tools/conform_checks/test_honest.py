"""The honest server passes every check, and none is left unseen: each liar differs from it in its lie alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.tools.conform_checks.rig import bench_of
from tools.conform_checks.bench import Bench
from tools.conform_checks.check import Check, Scope
from tools.conform_checks.score import judge
from tools.conform_checks.table import CHECKS

CELLS = [(check, scope) for check in CHECKS for scope in check.scopes]


@pytest.fixture(scope="module")
def honest() -> Iterator[Bench]:
    with bench_of() as bench:
        yield bench


@pytest.mark.parametrize(("check", "scope"), CELLS, ids=[f"{check.id}/{scope}" for check, scope in CELLS])
def test_honest_server_passes(honest: Bench, check: Check, scope: Scope) -> None:
    cell = judge(honest, check, scope)
    assert (cell.result, cell.text) == ("passed", "")
