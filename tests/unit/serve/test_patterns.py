"""Which patterns of a schema may run."""

from __future__ import annotations

import re

import pytest

from serve.patterns import MAX_PATTERN_CHARACTERS, pattern_fault

FINE = [
    "", "a", "^abc$", r"^\d{4}-\d{2}-\d{2}$", "[a-z]+", "^[^@]+@[^@]+\\.[a-z]{2,}$", r"^[a-z0-9]+(?:-[a-z0-9]+)*$",
    "^(foo|bar)*$", r"(\d+\.)*\d+", r"^(\d+(,\d+)*)?$", "([a-z]+-)*", "([^,]*,)*", r"(\w+\s)*", "(abc)+", r"(\d{3})*",
    r"(,\d{3})*", "(a|b|c)+", r"^\[([^\]]*)\]$", "(?P<year>[0-9]+)", "(?i)x+", "[]a]+", r"\(\(+", "[(+]+", "a{2,5}",
    "(a+){3}", "(?:[a-z]+/)+[a-z]*", "^(?!x).*$",
]  # fmt: skip
REFUSED = [
    "(a+)+$", "(a*)*", "((a+))+", "(a+|b)+", "(a|a)*", "(a|ab)*", "(.*,)*x", r"(\w+\s?)*", "(x+x+)+y", "(a{2,})*",
    "(a?b?)*", r"^(([a-z])+.)+[A-Z]([a-z])+$", "(.*)+", r"(\d{1,3})*", "(?:(a+)b?)+", "((a|b)*)*", "(a+){2,}", "(é+é)+",
    "(a+){1,50}", r"(\d|[0-9a-f])*", "(|a)+",
]  # fmt: skip
WRONG = ["(", "[", "a**", "(?P<1>a)", "\\", "a{99999999999999}"]


@pytest.mark.parametrize("pattern", FINE)
def test_harmless_pattern_may_run(pattern: str) -> None:
    assert pattern_fault(pattern) is None


@pytest.mark.parametrize("pattern", REFUSED)
def test_pattern_that_may_take_exponential_time_is_refused(pattern: str) -> None:
    re.compile(pattern)
    fault = pattern_fault(pattern)
    assert fault is not None and "exponential" in fault


@pytest.mark.parametrize("pattern", WRONG)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    fault = pattern_fault(pattern)
    assert fault is not None and "not a regular expression" in fault


def test_long_pattern_is_refused_unread() -> None:
    assert pattern_fault("a" * MAX_PATTERN_CHARACTERS) is None
    fault = pattern_fault("a" * (MAX_PATTERN_CHARACTERS + 1))
    assert fault is not None and str(MAX_PATTERN_CHARACTERS) in fault
