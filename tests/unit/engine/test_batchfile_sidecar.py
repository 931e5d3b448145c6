"""The sidecar, run by a real Python on any system: what it starts gets exactly what was given."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.batchfile import render_launcher

DEADLINE_S = 30.0
WINDOWS = os.name == "nt"
HOSTILE = [
    "", " ", 'say "hi"', "it's", "%PATH%", "%PATH:~0,3%", "100%", "!x!", "^", "a&b", "a|b<c>d", '"&echo PWNED',
    "C:\\dir\\", "\\\\", '\\"', "line\nfeed", "car\r\n", "\t", "\x1a", "한글", "日本語", "é", "😀", "\ud800", "\udcff",
    "*", "-c", "--", "a" * 9000,
]  # fmt: skip
REPORT = (
    "import os, sys\n"
    "print(ascii((sys.argv, sys.path[0], os.getcwd(), {n: v for n, v in os.environ.items() if n[:3] == 'ST_'},"
    " __name__, __file__)))\n"
    "sys.exit(5)\n"
)
SHOW = 'for word in "$@"; do printf "[%s]\\n" "$word"; done; printf "%s\\n" "$ST_ADDED" "$PWD"; exit 9\n'


class Place:
    """A folder in which Windows paths are files: elsewhere they are plain names, seen from that folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = f"{folder.resolve()}\\" if WINDOWS else "C:\\x\\"

    def path(self, name: str) -> str:
        return self.root + name

    def file(self, name: str) -> Path:
        """Where this process, which may run as if all was ASCII, has it."""
        path = self.path(name)
        return self.folder / (path if WINDOWS else os.fsdecode(path.encode("utf-8")))

    def write(self, name: str, text: str) -> str:
        file = self.file(name)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
        return self.path(name)

    def sidecar(self, script: str, args: list[str], **options: Any) -> Path:
        made = render_launcher(self.path("b.bat"), script, args, python="C:\\py\\python.exe", environ={}, **options)
        path = self.folder / made.sidecar_name
        path.write_bytes(made.sidecar)
        return path

    def run(
        self, sidecar: Path, *more: str, options: tuple[str, ...] = (), env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, *options, str(sidecar), *more], cwd=self.folder, capture_output=True, timeout=DEADLINE_S,
            check=False, env={**self.env, **(env or {})},
        )  # fmt: skip

    @property
    def env(self) -> dict[str, str]:
        """In which a program of the folder is found by its name, and names are UTF-8."""
        return {**os.environ, "PYTHONUTF8": "1", "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def reported(done: subprocess.CompletedProcess[bytes]) -> tuple[list[str], str, str, dict[str, str], str, str]:
    assert done.stderr == b""
    assert done.returncode == 5
    return ast.literal_eval(done.stdout.decode("ascii"))


def test_python_file_gets_every_argument_as_it_was_and_the_callers_after_them(place: Place) -> None:
    script = place.write("실행 😀 & (x86) ^ !.py", REPORT)
    argv, path, folder, _, name, file = reported(place.run(place.sidecar(script, HOSTILE), "more", "a b"))
    assert argv == [script, *HOSTILE, "more", "a b"]
    assert path == place.root.rstrip("\\")
    assert folder == str(place.folder.resolve())
    assert (name, file) == ("__main__", script)


def test_callers_arguments_are_left_out_if_unwanted(place: Place) -> None:
    script = place.write("run.py", REPORT)
    argv, *_ = reported(place.run(place.sidecar(script, ["a"], forward_args=False), "more"))
    assert argv == [script, "a"]


@pytest.mark.parametrize("options", [("-I",), ("-I", "-S"), ("-P",)])
def test_isolated_python_stays_isolated(place: Place, options: tuple[str, ...]) -> None:
    script = place.write("run.py", REPORT)
    _, path, *_ = reported(place.run(place.sidecar(script, []), options=options))
    assert path != place.root.rstrip("\\")
    assert Path(path).parent.exists(), "its own library is still the first entry"


def test_folder_and_environment_are_set_before(place: Place) -> None:
    script = place.write("run.py", REPORT)
    folder = place.path("작업 폴더")
    place.file("작업 폴더").mkdir()
    if not WINDOWS:  # the script's name is seen from there now
        (place.file("작업 폴더") / script).write_text(REPORT, encoding="utf-8")
    env = {"ST_ADDED": "값 é😀%PATH%\n", "ST_TAKEN": None, "ST_NONE": None}
    sidecar = place.sidecar(script, [], cwd=folder, env=env)
    _, _, where, found, *_ = reported(place.run(sidecar, env={"ST_TAKEN": "x", "ST_KEPT": "y"}))
    assert Path(where).name == Path(folder).name
    assert found == {"ST_ADDED": "값 é😀%PATH%\n", "ST_KEPT": "y"}


def test_exception_of_the_script_is_its_end(place: Place) -> None:
    done = place.run(place.sidecar(place.write("run.py", "raise ValueError('broken')\n"), []))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == b"ValueError: broken"


@pytest.mark.skipif(WINDOWS, reason="the stand-in for a program is a shell script; tests/wine starts a real .exe")
def test_program_gets_arguments_environment_folder_and_its_exit_code_counts(place: Place) -> None:
    program = place.write("연산 (x86).exe", "#!/bin/sh\n" + SHOW)
    words = [word for word in HOSTILE if not any("\ud800" <= char <= "\udfff" for char in word)]
    done = place.run(place.sidecar(program, words, env={"ST_ADDED": "값"}), "more")
    assert done.stderr == b""
    assert done.returncode == 9
    shown = "".join(f"[{word}]\n" for word in [*words, "more"])
    assert done.stdout.decode("utf-8") == f"{shown}값\n{place.folder.resolve()}\n"


@pytest.mark.skipif(WINDOWS, reason="sends a signal")
def test_ctrl_c_is_the_programs_and_its_exit_code_counts(place: Place) -> None:
    program = place.write("wait.exe", "#!/bin/sh\ntrap 'exit 7' INT\necho up\nread line\n")
    with subprocess.Popen(
        [sys.executable, str(place.sidecar(program, []))], cwd=place.folder, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, start_new_session=True, env=place.env,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(DEADLINE_S) == 7
        finally:
            process.kill()


@pytest.mark.parametrize(("code", "told"), [(0xC0000005, 0xC0000005 - (1 << 32)), (1 << 31, -(1 << 31)), (255, 255)])
def test_code_of_an_exception_is_one_that_exit_takes(code: int, told: int) -> None:
    """As Windows counts them; here only the sum, `tests/wine` has the real thing."""
    made = render_launcher("C:\\b.bat", "C:\\p.exe", python="C:\\python.exe")
    (last,) = [line for line in made.sidecar.decode("ascii").splitlines() if line.startswith("sys.exit(")]
    told_by_sidecar: list[int] = []
    exec(last, {"code": code, "sys": type("sys", (), {"exit": told_by_sidecar.append})})
    assert told_by_sidecar == [told]
