"""The command as people run it: a process of its own, on a checkout in a folder with an awkward name."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.tools.strata_patch.shapes import DIED, SHAPES, Shape, excepts
from tests.unit.tools.strata_patch.test_recovery_test import HEAD, LINE, ONE_LINE, TAIL
from tools.strata_patch.command import main

ROOT = Path(__file__).resolve().parents[4]
FOUR = SHAPES[1]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / os.fsdecode("스트라타 100% (a & b)'!".encode())  # the system's encoding may be ASCII
    (folder / "serve").mkdir(parents=True)
    (folder / "serve" / "server.py").write_bytes(FOUR.source.encode())
    (folder / "serve" / "test_fatal_recovery.py").write_bytes((HEAD + ONE_LINE + TAIL).encode())
    return folder


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "tools.strata_patch", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, **environment},
        timeout=100,
        check=False,
    )


def files(tree: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (tree / "serve").iterdir()}


def test_check_shows_the_change_apply_makes_it_once_and_revert_undoes_it(tree: Path) -> None:
    before = files(tree)
    checked = run(tree)
    assert (checked.returncode, checked.stderr) == (1, b"")
    lines = checked.stdout.decode().splitlines()
    assert "--- a/serve/server.py" in lines
    assert "+                self._sse_error(err, req)   # and over" in lines
    assert "+" + LINE.rstrip("\n") in lines
    assert run(tree, "--check").stdout == checked.stdout
    assert files(tree) == before

    applied = run(tree, "--apply")
    assert (applied.returncode, applied.stderr) == (0, b"")
    assert files(tree) == {
        "server.py": FOUR.patched.encode(),
        "test_fatal_recovery.py": (HEAD + ONE_LINE + LINE + TAIL).encode(),
    }
    assert run(tree, "--apply").stdout.strip() == b"nothing to do"
    assert (run(tree, "--check").returncode, files(tree)["server.py"]) == (0, FOUR.patched.encode())

    assert run(tree, "--revert").returncode == 0
    assert files(tree) == before
    assert run(tree, "--revert").returncode == 3


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n"])
@pytest.mark.parametrize("code", ["utf-8", "cp949"])
def test_what_check_prints_is_a_diff_that_git_applies(tree: Path, ending: str, last: str, code: str) -> None:
    head = "# coding: cp949\n# 서버\f\n" if code == "cp949" else "# 서버 €\f\n"
    server, test = tree / "serve" / "server.py", tree / "serve" / "test_fatal_recovery.py"
    server.write_bytes((head + FOUR.source).replace("\n", ending).encode(code))
    test.write_bytes((HEAD + ONE_LINE.rstrip("\n") + last).replace("\n", ending).encode())
    checked = run(tree, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert checked.stderr == b""
    (tree / "made.diff").write_bytes(checked.stdout)
    before = files(tree)
    applied = subprocess.run(["git", "apply", "-p1", "made.diff"], cwd=tree, capture_output=True, timeout=60)
    assert (applied.returncode, applied.stderr) == (0, b"")
    made = files(tree)
    for name, data in before.items():
        (tree / "serve" / name).write_bytes(data)
    assert run(tree, "--apply").returncode == 0
    assert files(tree) == made


@pytest.mark.parametrize("code", ["ascii", "cp949", "cp1252"])
def test_a_console_gets_the_diff_as_text_that_it_can_have(
    code: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = tree / "serve" / "server.py"
    server.write_bytes(server.read_bytes().replace(b"# in mid-stream", "# 서버 €😀".encode()).replace(b"\n", b"\r\n"))
    console = io.TextIOWrapper(io.BytesIO(), encoding=code, newline="\n")
    console.isatty = lambda: True  # type: ignore[method-assign]  # a console
    monkeypatch.setattr(sys, "stdout", console)
    assert main([str(tree)]) == 1
    console.flush()
    said = console.buffer.getvalue().decode(code)  # type: ignore[attr-defined]  # the bytes above
    assert "+                self._sse_error(err, req)   # and over\n" in said
    assert "\r" not in said


def test_a_file_that_is_not_understood_is_left_alone(tree: Path) -> None:
    odd = Shape("", excepts(DIED, "except ValueError as e:\n    send({'error': {}})"), "").source.encode()
    (tree / "serve" / "server.py").write_bytes(odd)
    before = files(tree)
    for option in ("--check", "--apply"):
        done = run(tree, option)
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(b"error: serve/server.py:")
        assert b"looked for" in done.stderr
        assert b"nothing was changed" in done.stderr
        assert files(tree) == before


def test_changes_that_are_not_committed_need_force(tree: Path) -> None:
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", str(tree), *command], check=True, capture_output=True, timeout=60)
    before = files(tree)
    done = run(tree, "--apply")
    assert done.returncode == 3
    assert b"serve/server.py" in done.stderr
    assert files(tree) == before
    assert run(tree, "--apply", "--force").returncode == 0
    assert files(tree)["server.py"] == FOUR.patched.encode()
    status = subprocess.run(["git", "-C", str(tree), "status", "--porcelain"], capture_output=True, timeout=60)
    assert b".strata-patch" not in status.stdout


def test_a_folder_without_a_server_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--apply")
    assert done.returncode == 3
    assert b"no serve/server.py in it" in done.stderr


@pytest.mark.parametrize("code", ["ascii", "cp949", "cp1252"])
def test_a_console_that_cannot_say_it_all_is_told_what_it_can(tree: Path, code: str) -> None:
    server = tree / "serve" / "server.py"
    server.write_bytes(server.read_bytes().replace(b"# in mid-stream", "# 서버 €😀".encode()))
    done = run(tree, PYTHONIOENCODING=code, PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"self._sse_error(err, req)" in done.stdout


def test_help_says_the_exit_statuses() -> None:
    done = run("--help")
    assert done.returncode == 0
    for word in (b"Exit status: 0", b"1 --check", b"2 a file", b"3 refused"):
        assert word in done.stdout


def test_our_own_server_has_it() -> None:
    assert (run(ROOT).returncode, run(ROOT).stdout.strip()) == (0, b"nothing to do")
