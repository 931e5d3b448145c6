"""The checking tools, as tests: one command runs them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gate.contracts import write_contracts

ROOT = Path(__file__).resolve().parents[2]


def passes(*command: str) -> None:
    """Run a tool at the project's root; fail with what it said."""
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)} -> {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)


def test_ruff_finds_nothing() -> None:
    passes("-m", "ruff", "check", "--quiet", ".")


def test_ruff_would_format_nothing() -> None:
    passes("-m", "ruff", "format", "--check", "--quiet", ".")


@pytest.mark.timeout(300)  # all files at once, on a slow machine
def test_pyright_finds_nothing() -> None:
    passes("-m", "pyright", "--pythonpath", sys.executable)


def test_imports_keep_the_contracts(tmp_path: Path) -> None:
    contracts = tmp_path / "contracts.ini"
    write_contracts(ROOT, contracts)
    passes(*LINT_IMPORTS, str(contracts), "--no-cache")


def test_a_broken_contract_is_found(tmp_path: Path) -> None:
    """The contracts bite: a pure module that reads the clock fails them."""
    for package in ("engine", "serve", "tools"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "engine" / "events.py").write_text("import time\n", encoding="utf-8")
    (tmp_path / "engine" / "api.py").write_text("import threading\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    contracts = tmp_path / "contracts.ini"
    write_contracts(tmp_path, contracts)
    done = subprocess.run(
        [sys.executable, *LINT_IMPORTS, str(contracts), "--no-cache"],
        cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "engine.events is not allowed to import time" in done.stdout


# import-linter has no `python -m`; a script's path differs between systems
LINT_IMPORTS = ("-c", "from importlinter.cli import lint_imports_command as run; run()")
