"""The state folder: lives are counted once each, marks and logs are whole."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from engine.fake.launch import argv, script_path
from engine.fake.state import State


def test_lives_count_up_in_one_folder(tmp_path: Path) -> None:
    assert [State(str(tmp_path / "s")).life for _ in range(3)] == [1, 2, 3]
    assert State(str(tmp_path / "other")).life == 1
    assert State(None).life == 1


def test_processes_that_start_together_get_different_lives(tmp_path: Path) -> None:
    command = argv(script_path("ok"), tmp_path)
    started = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for _ in range(6)]
    assert [process.wait(20) for process in started] == [0] * 6
    lives = [json.loads(line) for line in (tmp_path / "lives.jsonl").read_text(encoding="ascii").splitlines()]
    assert sorted(life["life"] for life in lives) == [1, 2, 3, 4, 5, 6]
    assert {life["pid"] for life in lives} == {process.pid for process in started}


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    command = argv(script_path("ok"))
    run = subprocess.run(command, input=b"GEN 9 1,2\n", capture_output=True, cwd=tmp_path, check=True)
    assert run.stdout.splitlines()[-1].startswith(b"DONE 9 ")
    assert list(tmp_path.iterdir()) == []


def test_marks_and_cues_are_files(tmp_path: Path) -> None:
    state = State(str(tmp_path))
    state.reached("there")
    assert (tmp_path / "reached-there").exists()
    assert not state.cued("go")
    (tmp_path / "cue-go").touch()
    assert state.cued("go")


def test_records_are_appended_one_a_line(tmp_path: Path) -> None:
    state = State(str(tmp_path))
    state.command("GEN", 'GEN "1"')
    state.command("STOP", "STOP")
    lines = (tmp_path / "commands.jsonl").read_text(encoding="ascii").splitlines()
    assert [json.loads(line)["raw"] for line in lines] == ['GEN "1"', "STOP"]
