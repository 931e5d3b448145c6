"""The command line: usage, strict script errors before READY, the list of ready scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.fake.builders import text
from engine.fake.harness import FakeEngine
from engine.fake.launch import SCRIPTS_DIR, args, argv, exe, script_names, script_path
from engine.pipe import StrataEngine

ROOT = Path(__file__).resolve().parents[4]
AS_MODULE = [sys.executable, "-m", "engine.fake"]


def run(command: list[str], cwd: Path = ROOT) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, input=b"GEN 3 1,2\n", capture_output=True, timeout=20, check=False, cwd=cwd)


@pytest.mark.parametrize("program", [AS_MODULE, exe()], ids=["module", "path"])
@pytest.mark.parametrize(
    "words", [["ok", "--serve"], ["--serve", "ok"], ["ok"], [str(SCRIPTS_DIR / "ok.json")]], ids=str
)
def test_serve_may_stand_anywhere_or_nowhere(program: list[str], words: list[str]) -> None:
    done = run([*program, *words])
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith(b"DONE 3 2 ")
    assert done.stderr == b""


def test_the_fast_command_line_works_in_any_folder(tmp_path: Path) -> None:
    assert run(argv(script_path("ok")), tmp_path).stdout.splitlines()[1] == b"READY 4096 stop"


def test_the_program_imports_little() -> None:
    code = (
        "import sys, os; sys.argv = sys.argv[1:]; os._exit = lambda code: sys.exit(code); path = sys.argv[0]\n"
        "scope = {'__name__': '__main__', '__file__': path, '__package__': None}\n"
        "try: exec(compile(open(path, encoding='utf-8').read(), path, 'exec'), scope)\n"
        "finally: print(sorted({'json', 're', 'enum', 'typing', 'threading', 'pathlib', 'dataclasses', 'subprocess',"
        " 'argparse', 'engine'} & set(sys.modules)))"
    )
    done = run([sys.executable, "-I", "-S", "-c", code, exe()[-1], str(SCRIPTS_DIR / "ok.json")])
    assert done.stdout.splitlines()[-1] == b"[]", done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "0 scripts given, 1 wanted; see --help"),
        (["ok", "exit-1"], "2 scripts given, 1 wanted; see --help"),
        (["ok", "--sate", "x"], "unknown option '--sate'; see --help"),
        (["ok", "--state"], "--state needs a folder"),
        (["no-such"], "no script 'no-such'; ready scripts: abort, "),
        (["recovers"], "recovers.json: it has cues or lives, which need --state DIR"),
        (["ok", "--state", str(SCRIPTS_DIR / "ok.json")], "File exists"),
    ],
)
def test_wrong_usage_is_exit_2_and_one_line(words: list[str], message: str) -> None:
    done = run([*exe(), *words])
    assert done.returncode == 2
    assert done.stdout == b""
    assert message in done.stderr.decode()
    assert done.stderr.startswith(b"fake engine: ")
    assert done.stderr.count(b"\n") == 1


def test_a_wrong_script_is_exit_2_before_ready(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text('{"requests": [[{"text": "a"}, {"txt": "b"}]]}', encoding="utf-8")
    done = run(argv(path, tmp_path / "state"))
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"fake engine: wrong.json: requests[0][1]: has no known step in txt; ")
    assert not (tmp_path / "state").exists(), "a script that cannot be played is no life"


def test_help_and_list_are_exit_0() -> None:
    done = run([*AS_MODULE, "--help"])
    assert done.returncode == 0
    assert done.stdout.startswith(b"usage: python -m engine.fake")
    done = run([*AS_MODULE, "--list"])
    assert done.returncode == 0
    rows = [row.split("  ", 1) for row in done.stdout.decode().splitlines()]
    assert [row[0].strip() for row in rows] == script_names()
    assert all(row[1].strip() for row in rows)


def test_launch_finds_scripts_by_name_and_by_path(tmp_path: Path) -> None:
    assert script_path("exit-1") == SCRIPTS_DIR / "exit-1.json"
    mine = tmp_path / "exit-1"
    mine.write_text("{}", encoding="utf-8")
    assert script_path(mine) == mine
    with pytest.raises(FileNotFoundError):
        script_path("../scripts/ok")
    assert args(mine) == [str(mine)]
    assert args(mine, tmp_path) == [str(mine), "--state", str(tmp_path)]


def test_one_file_starts_it_for_servers_that_take_a_path(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode("it's 한글 & (x86)".encode())  # the system's encoding may be ASCII
    folder.mkdir()
    done = run([*AS_MODULE, "--executable", str(folder)])
    assert (done.returncode, done.stderr) == (0, b"")
    (program,) = [path for path in folder.iterdir() if not path.name.endswith(".launch.py")]
    assert os.fsdecode(done.stdout).splitlines() == [str(program)]
    assert program == FakeEngine("ok", folder).executable()
    answered = run([str(program), "--serve", "ok"], folder)
    assert answered.returncode == 0
    assert answered.stdout.splitlines()[-1].startswith(b"DONE 3 2 ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "0 folders given, 1 wanted; see --help"),
        (["a", "b"], "2 folders given"),
        (["no-such-folder"], "No such file"),
    ],
)
def test_wrong_folder_for_the_one_file_is_exit_2(words: list[str], message: str) -> None:
    done = run([*AS_MODULE, "--executable", *words])
    assert (done.returncode, done.stdout) == (2, b"")
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_an_engine_is_driven_through_the_one_file(tmp_path: Path) -> None:
    fake = FakeEngine({"requests": [[text("hi")]]}, tmp_path)
    engine = StrataEngine(str(fake.executable()), fake.args)
    try:
        assert list(engine.generate([1], 8)) == [104, 105]
        if os.name != "nt":  # there it is below cmd
            assert fake.pids() == [engine.status().pid], "it is the process that the server started"
    finally:
        engine.close()
