"""CHECKS.md is what the code of the checks says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import conform

PAGE = Path(__file__).parents[2] / "CHECKS.md"


def test_page_of_the_checks_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform.main(["--list", "--markdown"]) == 0
    made = capsys.readouterr().out
    assert PAGE.read_text(encoding="utf-8") == made, "run: python -m tools.conform --list --markdown > CHECKS.md"
