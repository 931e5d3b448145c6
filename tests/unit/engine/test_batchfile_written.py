"""Batch files on the disk: written by a program and by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.batchfile import LauncherError, main, render_launcher, short_path_of, write_launcher

ROOT = Path(__file__).resolve().parents[3]
WINDOWS = os.name == "nt"
PYTHON = "C:\\py\\python.exe"
BAT, SCRIPT = "C:\\도구\\시작.bat", "C:\\도구\\실행 é.py"
MADE = render_launcher(BAT, SCRIPT, ["--a", "😀"], python=PYTHON, environ={})


def by_hand(*words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    given = words if WINDOWS else [os.fsencode(word) if word.isascii() else word.encode("utf-8") for word in words]
    return subprocess.run(
        [sys.executable, "-m", "engine.batchfile", *given], cwd=ROOT, capture_output=True, timeout=30, check=False,
        env={**os.environ, **env},
    )  # fmt: skip


def local(name: str) -> str:
    """As this process, which may run as if all was ASCII, has the name of a file."""
    return name if WINDOWS else os.fsdecode(name.encode("utf-8"))


def test_both_files_are_written_byte_for_byte(tmp_path: Path) -> None:
    made = write_launcher(BAT, SCRIPT, ["--a", "😀"], into=tmp_path, python=PYTHON)
    assert made == MADE
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        local("시작.bat"): MADE.bat,
        MADE.sidecar_name: MADE.sidecar,
    }


def test_sidecar_is_first_so_that_no_batch_file_lacks_it(tmp_path: Path) -> None:
    (tmp_path / MADE.sidecar_name).mkdir()  # cannot be written
    with pytest.raises(OSError, match=r"launch\.py"):
        write_launcher(BAT, SCRIPT, into=tmp_path, python=PYTHON)
    assert [path.name for path in tmp_path.iterdir()] == [MADE.sidecar_name]


def test_nothing_of_this_machine_counts_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPDATA", local("C:\\폴더"))
    with pytest.raises(LauncherError) as error:
        write_launcher(BAT, SCRIPT, into=tmp_path, python="C:\\폴더\\python.exe")
    assert error.value.reason == "no-ascii-route"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(WINDOWS, reason="this is the system whose path it is")
def test_without_windows_a_folder_to_write_into_is_needed() -> None:
    assert short_path_of(PYTHON) is None
    with pytest.raises(LauncherError, match=r"'C:.*' is no path of this system; name a folder to write into") as error:
        write_launcher(BAT, SCRIPT, python=PYTHON)
    assert error.value.reason == "not-windows"


def test_by_hand_with_every_option(tmp_path: Path) -> None:
    done = by_hand(
        "--into", str(tmp_path), "--python", PYTHON, "--python-arg=-I", "--python-env", "MY_PY", "--cwd", "D:\\작업",
        "--env", "A=b=c", "--env", "GONE", "--no-forward", "--allow-chcp", BAT, SCRIPT, "--a", "-h", "--into", "x",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    expected = render_launcher(
        BAT, SCRIPT, ["--a", "-h", "--into", "x"], python=PYTHON, python_args=["-I"], python_env="MY_PY",
        cwd="D:\\작업", env={"A": "b=c", "GONE": None}, forward_args=False,
    )  # fmt: skip
    assert (tmp_path / local("시작.bat")).read_bytes() == expected.bat
    assert (tmp_path / expected.sidecar_name).read_bytes() == expected.sidecar
    assert len(done.stdout.splitlines()) == 2
    assert os.fsencode(tmp_path / expected.sidecar_name) in done.stdout


def test_by_hand_what_is_there_is_replaced_only_if_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--into", str(tmp_path), "--python", PYTHON, "C:\\a&b\\start.bat", SCRIPT]
    mine = tmp_path / "start.bat"
    mine.write_text("@rem mine", encoding="ascii")
    assert main(words) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "is there already; --force replaces it" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["start.bat"]
    assert mine.read_text(encoding="ascii") == "@rem mine"
    assert main(["--force", *words]) == 0
    assert mine.read_bytes().startswith(b"@setlocal ")
    assert capsys.readouterr().err.startswith("warning: bat: 'C:\\\\a&b\\\\start.bat' has & and no space")


@pytest.mark.parametrize("other", ["start.cmd", "start.launch.py"])
def test_by_hand_the_second_file_of_another_batch_file_is_not_replaced(
    other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`start.bat` and `start.cmd` would have one between them, and the older one start what the newer one does."""
    words = ["--into", str(tmp_path), "--python", PYTHON]
    if other.endswith(".cmd"):
        assert main([*words, f"C:\\a\\{other}", SCRIPT]) == 0
    else:
        (tmp_path / other).write_text("# mine\n", encoding="ascii")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    assert main([*words, "C:\\a\\start.bat", "C:\\a\\other.py"]) == 1
    assert "start.launch.py' is there already; --force replaces it" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert main(["--force", *words, "C:\\a\\start.bat", "C:\\a\\other.py"]) == 0


def test_by_hand_for_another_machine_its_python_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--into", str(tmp_path), BAT, SCRIPT]) == 1
    assert capsys.readouterr().err == (
        "error: python: this one is not on the machine that the files are for; give --python\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(WINDOWS, reason="this is the system whose path it is")
def test_by_hand_without_windows_the_options_that_are_needed_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["start.bat", "run.py"], ["--python", PYTHON, BAT, SCRIPT]):
        assert main(words) == 1
        assert "this is no Windows; for another machine give --into FOLDER and --python" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "the following arguments are required: BAT, SCRIPT"),
        ([BAT], 2, "the following arguments are required: SCRIPT"),
        (["start.bat", SCRIPT], 1, "error: bat: 'start.bat' is not an absolute Windows path"),
        ([BAT, "run.py"], 1, "error: script: 'run.py' is not an absolute Windows path"),
        (["--python", "C:\\파이썬\\python.exe", "D:\\b.bat", SCRIPT], 1, "(U+D30C), which a batch file cannot hold"),
        (["--env", "=x", BAT, SCRIPT], 1, "error: env: '' is no variable's name"),
    ],
)
def test_by_hand_an_error_is_one_line_and_nothing_is_written(
    words: list[str], code: int, text: str, tmp_path: Path
) -> None:
    done = by_hand("--into", str(tmp_path), "--python", PYTHON, *words, PYTHONIOENCODING="utf-8")
    assert (done.returncode, done.stdout) == (code, b"")
    last = done.stderr.decode("utf-8").splitlines()[-1]
    assert text in last
    assert b"Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("console", ["ascii", "cp1252", "cp949"])
def test_by_hand_a_console_without_the_characters_is_no_error(console: str, tmp_path: Path) -> None:
    options = ["--into", str(tmp_path), "--python", PYTHON]
    done = by_hand(*options, "C:\\é한я😀.bat", SCRIPT, PYTHONIOENCODING=console)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\U0001f600.bat" in done.stdout
    failed = by_hand(*options, "C:\\é한я😀.bat", SCRIPT, PYTHONIOENCODING=console)
    assert failed.returncode == 1
    assert b"is there already" in failed.stderr
    assert b"\\U0001f600.bat" in failed.stderr


def test_by_hand_a_folder_that_is_missing_is_one_line(tmp_path: Path) -> None:
    done = by_hand("--into", str(tmp_path / "none"), "--python", PYTHON, BAT, SCRIPT)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.count(b"\n") == 1
