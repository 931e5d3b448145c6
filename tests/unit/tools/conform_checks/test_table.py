"""The table of checks: what its rows have, and how some of them are chosen."""

from __future__ import annotations

import pytest

from tools.conform_checks.check import GROUPS, Check
from tools.conform_checks.table import CHECKS, chosen
from tools.probe.exits import CouldNotRun


def ids(only: list[str], skip: list[str]) -> set[str]:
    return {f"{check.id}/{scope}" for check, scope in chosen(only, skip)}


@pytest.mark.parametrize("check", CHECKS, ids=[check.id for check in CHECKS])
def test_check_says_a_truth_and_where_it_comes_from(check: Check) -> None:
    assert check.truth.endswith(".")
    assert check.truth[0].isupper()
    assert check.source
    assert check.scopes


def test_ids_are_unique_and_groups_come_in_their_order() -> None:
    names = [check.id for check in CHECKS]
    assert len(set(names)) == len(names) >= 80
    groups = [check.group for check in CHECKS]
    assert groups == sorted(groups, key=GROUPS.index)
    assert set(groups) == set(GROUPS)


def test_without_words_all_are_judged() -> None:
    assert len(ids([], [])) == sum(len(check.scopes) for check in CHECKS)


def test_words_are_ids_groups_apis_severities_and_patterns() -> None:
    assert ids(["ends"], []) == {"ends/chat", "ends/completions", "ends/responses", "ends/messages"}
    assert ids(["ends/chat"], []) == {"ends/chat"}
    assert "sequence-gapless/responses" in ids(["sequence"], [])
    assert {name.rpartition("/")[2] for name in ids(["chat"], [])} == {"chat"}
    assert ids(["killed-*"], ["responses", "killed-body-*"]) >= {"killed-told/chat", "killed-call/messages"}
    assert not any("responses" in name or "body" in name for name in ids(["killed-*"], ["responses", "killed-body-*"]))
    assert {check.severity for check, _ in chosen(["lie"], [])} == {"lie"}


def test_word_that_names_nothing_is_refused_and_so_is_an_empty_choice() -> None:
    with pytest.raises(CouldNotRun, match="'endigns' is no check"):
        chosen(["endigns"], [])
    with pytest.raises(CouldNotRun, match="leave no check"):
        chosen(["ends"], ["endings"])
