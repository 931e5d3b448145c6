"""stdin and stdout of the real program: lines however they are cut, of any size, with any line end."""

from __future__ import annotations

from pathlib import Path

from engine.fake.builders import echo, text
from tests.unit.engine.fake.dialogue import DEADLINE_S, Dialogue, field, ids_of, text_of


def test_a_command_may_come_in_pieces(tmp_path: Path) -> None:
    with Dialogue({"requests": [[echo()]]}, tmp_path) as engine:
        engine.ready()
        assert engine.process.stdin
        for byte in f"GEN 9 {ids_of('piecemeal')}\n".encode():
            engine.process.stdin.write(bytes([byte]))
            engine.process.stdin.flush()
        assert text_of(engine.answer()) == "piecemeal"


def test_many_commands_may_come_at_once_with_either_line_end(tmp_path: Path) -> None:
    with Dialogue({"requests": [[echo()]]}, tmp_path) as engine:
        engine.ready()
        engine.send(f"GEN 9 {ids_of('a')}\r\nGEN 9 {ids_of('b')}\nGEN 9 {ids_of('c')}\r")
        assert [text_of(engine.answer()) for _ in "abc"] == ["a", "b", "c"]
        assert engine.fake.commands()[0].raw == f"GEN 9 {ids_of('a')}"


def test_a_large_prompt_and_a_large_answer_pass_whole(tmp_path: Path) -> None:
    script = {"context": 10**6, "requests": [[echo()], [text("xyz", burst=True, repeat=50_000)]]}
    with Dialogue(script, tmp_path) as engine:
        engine.ready()
        prompt = "a long prompt. " * 10_000
        engine.gen(10**6, prompt)
        assert text_of(engine.answer()) == prompt
        engine.gen(10**6)
        lines = engine.answer()
        assert text_of(lines) == "xyz" * 50_000
        assert field(lines[-1], 1) == "150000"


def test_a_last_line_without_an_end_is_no_command(tmp_path: Path) -> None:
    with Dialogue({}, tmp_path) as engine:
        assert engine.process.stdin
        engine.process.stdin.write(b"GEN 9 1,2")
        engine.end_input()
        assert engine.process.wait(DEADLINE_S) == 0
        assert engine.rest().splitlines()[-1] == "READY 4096 stop"
        assert [item.name for item in engine.fake.commands()] == ["EOF"]


def test_bytes_that_are_not_utf_8_are_an_unknown_command(tmp_path: Path) -> None:
    with Dialogue({}, tmp_path) as engine:
        engine.ready()
        assert engine.process.stdin
        engine.process.stdin.write(b"\xff\xfe\n")
        engine.process.stdin.flush()
        assert engine.answer() == ["ERR unknown command: \ufffd\ufffd"]
