"""The checking tools, as tests: one command runs them all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# import-linter has no `python -m`, and where its script lies differs between systems
LINT_IMPORTS = ("-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache")


def passes(*command: str) -> None:
    """Run a tool at the project's root; fail with what it said."""
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)} -> {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)


def test_ruff_finds_nothing() -> None:
    passes("-m", "ruff", "check", "--no-cache", "--quiet", ".")


def test_ruff_would_format_nothing() -> None:
    passes("-m", "ruff", "format", "--no-cache", "--check", "--quiet", ".")


@pytest.mark.timeout(900)  # all files at once, on a slow machine
def test_pyright_finds_nothing() -> None:
    passes("-m", "pyright", "--pythonpath", sys.executable)


def test_imports_keep_the_contracts() -> None:
    passes(*LINT_IMPORTS)


def test_a_broken_contract_is_found(tmp_path: Path) -> None:
    """The contracts bite: a copy in which a pure module reads the clock fails them."""
    for package in ("engine", "serve", "tools"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "engine" / "events.py").open("a", encoding="utf-8") as file:
        file.write("import time\n")
    done = subprocess.run(
        [sys.executable, *LINT_IMPORTS], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "engine.events is not allowed to import time" in done.stdout
