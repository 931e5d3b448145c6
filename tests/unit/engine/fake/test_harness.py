"""What a test can see and do through `FakeEngine`, with the real program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.fake.builders import cue, exit_, grandchild, reached, text
from engine.fake.harness import FakeEngine
from tests.unit.engine.fake.dialogue import DEADLINE_S, Dialogue, ids_of


def test_the_command_line_is_exe_serve_and_args(tmp_path: Path) -> None:
    fake = FakeEngine({"title": "x"}, tmp_path / "new" / "folder")
    assert fake.argv == [*fake.exe, "--serve", *fake.args]
    assert fake.args == [str(tmp_path / "new" / "folder" / "script.json"), "--state", str(fake.state_dir)]
    assert json.loads(fake.script.read_text(encoding="utf-8")) == {"title": "x"}


def test_a_script_can_be_a_file_or_a_ready_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{}", encoding="utf-8")
    assert FakeEngine(path, tmp_path).script == path
    assert FakeEngine("exit-1", tmp_path).script.name == "exit-1.json"
    with pytest.raises(FileNotFoundError, match=r"no script 'exit-9'; ready scripts: abort, .*exit-1"):
        FakeEngine("exit-9", tmp_path)


def test_before_the_first_start_there_is_nothing_to_see(tmp_path: Path) -> None:
    fake = FakeEngine({}, tmp_path)
    assert (fake.commands(), fake.pids(), fake.grandchildren()) == ([], [], [])


def test_commands_are_seen_with_their_parts_by_name_and_life(tmp_path: Path) -> None:
    with Dialogue({"batch_slots": 2}, tmp_path) as engine:
        engine.ready()
        engine.gen(5, "né")
        engine.send(f"BGEN 1 6 {ids_of('b')}", "STOP now")
        engine.end_input()
        engine.exit_code()
    with Dialogue({}, tmp_path) as engine:
        engine.send("QUIT")
        engine.exit_code()
        fake = engine.fake
    assert [(item.name, item.life) for item in fake.commands() if item.name != "EOF"] == [
        ("GEN", 1),
        ("BGEN", 1),
        ("STOP", 1),
        ("QUIT", 2),
    ]
    gen, bgen = fake.commands("GEN")[0], fake.commands("BGEN")[0]
    assert (gen.max_new, gen.slot, gen.prompt, gen.ids) == (5, None, "né", tuple("né".encode()))
    assert (bgen.max_new, bgen.slot, bgen.prompt) == (6, 1, "b")
    assert fake.commands("STOP")[0].raw == "STOP now"
    assert [item.name for item in fake.commands(life=1)][-1] == "EOF"
    times = [item.time_s for item in fake.commands()]
    assert times == sorted(times)
    assert fake.commands("GEN", life=2) == []


def test_waits_end_when_it_happens(tmp_path: Path) -> None:
    with Dialogue({"requests": [[reached("here"), cue("go"), text("a")]]}, tmp_path) as engine:
        assert engine.fake.wait_life(1, DEADLINE_S) == engine.process.pid
        engine.gen()
        engine.gen()
        assert engine.fake.wait_command("GEN", 2, DEADLINE_S).life == 1
        engine.fake.wait_reached("here", DEADLINE_S)
        engine.fake.cue("go")
        engine.answer()


def test_waits_that_come_to_nothing_say_what_was_seen(tmp_path: Path) -> None:
    with Dialogue({}, tmp_path) as engine:
        engine.send("STOP")
        engine.fake.wait_command("STOP", timeout_s=DEADLINE_S)
        with pytest.raises(TimeoutError, match=r"no 2 x STOP within 0.01 s; it read: STOP \(life 1\)"):
            engine.fake.wait_command("STOP", 2, 0.01)
        with pytest.raises(TimeoutError, match="no step reached 'x'"):
            engine.fake.wait_reached("x", 0.01)
        with pytest.raises(TimeoutError, match="no life 2"):
            engine.fake.wait_life(2, 0.01)
        with pytest.raises(TimeoutError, match="no 1 x STOP"):
            engine.fake.wait_command("STOP", 1, 0.01, life=2)


def test_a_half_written_record_is_not_read(tmp_path: Path) -> None:
    fake = FakeEngine({}, tmp_path)
    (tmp_path / "lives.jsonl").write_text('{"life": 1, "pid": 7, "time": 0.5}\n{"life": 2, "p', encoding="ascii")
    assert fake.pids() == [7]


def test_grandchildren_are_known_by_pid(tmp_path: Path) -> None:
    with Dialogue({"requests": [[grandchild(0.01), grandchild(0.01), exit_(0)]]}, tmp_path) as engine:
        engine.gen()
        engine.rest()
        pids = engine.fake.grandchildren()
        assert len(set(pids)) == 2
        assert engine.process.pid not in pids
