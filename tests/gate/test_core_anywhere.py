"""The suite's core where the locale's encoding is ASCII, UTF-8 mode is off, and the folder has a name that shells,
batch files and configs trip over.

The core is what a user's first minutes touch: the recovery test, a server from a run config with its engine, tokenizer,
log and store, every promise of the ending contract, the options, the fake engine's program, the patch of a checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gate.test_house_rules import PACKAGES, sources

ROOT = Path(__file__).resolve().parents[2]
# on Windows a name is text, elsewhere bytes; the parent's own locale may be ASCII, too
FOLDER = os.fsdecode("한글 폴더 100% %PATH% (a & b) it's ^ here!".encode())
CORE = (
    "serve/test_fatal_recovery.py",
    "tests/e2e/test_promises.py",
    "tests/unit/serve/test_config.py",
    "tests/unit/engine/fake/test_cli.py",
    "tests/unit/tools/strata_patch/test_checkout.py",
    "tests/unit/tools/strata_patch/test_command.py::test_check_shows_the_change_apply_makes_it_once_and_revert_undoes_it",
)
NO_HELP = {
    "engine.fake",  # it ends its process itself; it is asked last
    "engine.llama_child",
    "engine.supervisor.launcher",
    "serve.test_fatal_recovery",
    "tools.gateway_load",
    "tools.gateway_upstream",
}
"""Programs that only another program starts, and a test."""

HELP = """
import io, runpy, sys
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        assert ended.code in (0, None), (name, ended.code)
    print("helped", name, flush=True)
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in the folder."""
    made = tmp_path_factory.mktemp("core") / FOLDER
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", made)
    return made


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A Python in the folder, in the C locale."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHON"))}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**plain, "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONDONTWRITEBYTECODE": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=570,
        check=False,
    )


@pytest.mark.timeout(600)
def test_the_core_of_the_suite_passes_in_the_c_locale_from_a_korean_folder(elsewhere: Path) -> None:
    where = run(
        elsewhere, "-c", "import locale, os, serve; print(locale.getpreferredencoding(), ascii(serve.__file__))"
    )
    encoding, _, place = where.stdout.decode().partition(" ")
    assert os.name == "nt" or encoding == "ANSI_X3.4-1968"
    assert "100% %PATH% (a & b)" in place, "another copy was imported"
    done = run(
        elsewhere, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--basetemp={elsewhere / 'tmp'}", *CORE
    )
    if done.returncode:
        pytest.fail(done.stdout.decode("utf-8", "replace")[-6_000:], pytrace=False)


def programs() -> list[str]:
    """The modules that people start."""
    mains = [
        path for path in sources(*PACKAGES) if '\nif __name__ == "__main__":\n' in path.read_text(encoding="utf-8")
    ]
    named = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") for path in mains}
    return sorted(named - NO_HELP)


@pytest.mark.timeout(600)
def test_every_program_says_its_help_on_a_console_of_any_code_page(elsewhere: Path) -> None:
    names = programs()
    assert {"serve", "engine.model", "tools.dev", "tools.soak"} <= set(names)
    for code in ("ascii", "cp949"):
        done = run(elsewhere, "-c", HELP, *names, "engine.fake", PYTHONIOENCODING=code)
        said = done.stdout.decode(code, "replace")
        assert done.returncode == 0, said[-3_000:]
        assert [line.removeprefix("helped ") for line in said.splitlines() if line.startswith("helped ")] == names
        assert "python -m engine.fake [--serve]" in said
