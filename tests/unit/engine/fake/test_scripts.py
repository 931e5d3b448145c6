"""Every ready script does what its title says, and has the form that client authors rely on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from engine.fake.launch import script_names, script_path
from engine.fake.script import load
from tests.unit.engine.fake.dialogue import DEADLINE_S, Dialogue, field, text_of

HALF = "Let me see.</think>Hello, wor"
FULL = "Let me see.</think>Hello, world."
XML_CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
JSON_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>'


@dataclass(frozen=True)
class Answer:
    """What the first request gets: the text, then DONE with these words, an ERR, or the end of the process."""

    text: str
    finish: str = ""
    generated: int | None = None
    """What DONE counts; None: what was sent."""
    err: str = ""
    exit_code: int | None = None
    log: str = ""


ANSWERS = {
    "ok": Answer(FULL, "stop"),
    "length": Answer("Let me see.</think>" + "and so on " * 8 + "a", "length"),
    "reasoning": Answer(
        "First the question. Then the facts. Then the sum: 6 times 7 is 42. " * 3 + "</think>42", "stop"
    ),
    "tool-call": Answer("I need the weather.</think>" + XML_CALL, "stop"),
    "tool-call-json": Answer("I need the weather.</think>" + JSON_CALL, "stop"),
    "tool-call-cut": Answer("I need the weather.</think>" + XML_CALL[: XML_CALL.index("is\n")], "stop"),
    "tool-call-json-cut": Answer("I need the weather.</think>" + JSON_CALL[: JSON_CALL.index('is"')], "stop"),
    "exit-1": Answer(HALF, exit_code=1, log="CUDA error 700"),
    "own-watchdog": Answer(HALF, exit_code=70, log="watchdog: no progress in layer 18"),
    "half-line": Answer(HALF, exit_code=1),
    "recovers": Answer(HALF, exit_code=1, log="CUDA error 700"),
    "abort": Answer(HALF, exit_code=-6, log="GGML_ASSERT"),
    "segfault": Answer(HALF, exit_code=-11),
    "oom-killed": Answer(HALF, exit_code=-9),
    "fatal-err": Answer(HALF, err="verify: timed out at layer 18"),
    "refused": Answer("", err="a token id is outside the vocabulary"),
    "err-mid-answer": Answer(HALF, err="sampler: no candidate is left"),
    "wrong-count": Answer(FULL, "stop", generated=50),
    "unknown-finish": Answer(FULL, "paused"),
    "tokens-after-done": Answer(FULL, "stop"),
    "log-flood": Answer(FULL, "stop"),
}
"""The scripts that are over at once; the tests below have the others."""

OTHERS = {
    "slow", "slow-start", "exit-before-ready", "silent", "silent-before-first-token", "fatal-err-batch",
    "stop-never-answered", "stdout-closed", "garbage", "grandchild", "batch",
}  # fmt: skip


def test_every_ready_script_is_tested_here() -> None:
    assert set(script_names()) == set(ANSWERS) | OTHERS


@pytest.mark.parametrize("name", script_names())
def test_a_ready_script_says_what_it_does_and_what_a_client_must_see(name: str) -> None:
    script = load(str(script_path(name))).first
    assert 10 < len(script.title) < 100
    assert len(script.expect) > 10
    assert name == name.lower()


@pytest.mark.skipif(sys.platform == "win32", reason="the exit codes of signals are POSIX")
@pytest.mark.parametrize(("name", "answer"), ANSWERS.items(), ids=ANSWERS)
def test_a_ready_script_does_what_it_says(name: str, answer: Answer, tmp_path: Path) -> None:
    with Dialogue(name, tmp_path) as engine:
        engine.ready()
        engine.gen(100 if name == "length" else 1000)
        if answer.exit_code is not None:
            lines = engine.rest().splitlines()
            assert engine.exit_code() == answer.exit_code
            assert answer.log in engine.log()
            if name == "half-line":
                assert lines.pop() == "T 10"
        else:
            lines = engine.answer()
            last = lines.pop()
            sent = len([line for line in lines if line.startswith("T ")])
            if answer.err:
                assert last.startswith(f"ERR {answer.err}")
            else:
                assert field(last, 5) == answer.finish
                assert int(field(last, 1)) == (answer.generated or sent)
            assert engine.process.poll() is None
        assert text_of(lines) == answer.text


@pytest.mark.parametrize("name", ["recovers", "fatal-err", "stop-never-answered"])
def test_the_second_life_is_good(name: str, tmp_path: Path) -> None:
    with Dialogue(name, tmp_path) as engine:
        engine.ready()
    with Dialogue(name, tmp_path) as engine:
        engine.ready()
        engine.gen()
        lines = engine.answer()
        assert text_of(lines) == FULL
        assert field(lines[-1], 5) == "stop"


@pytest.mark.parametrize("name", ["refused", "err-mid-answer"])
def test_the_same_engine_answers_the_next_request(name: str, tmp_path: Path) -> None:
    with Dialogue(name, tmp_path) as engine:
        engine.ready()
        engine.gen()
        assert engine.answer()[-1].startswith("ERR ")
        engine.gen()
        assert text_of(engine.answer()) == FULL


def test_stray_tokens_come_after_done(tmp_path: Path) -> None:
    with Dialogue("tokens-after-done", tmp_path) as engine:
        engine.ready()
        engine.gen()
        engine.answer()
        engine.end_input()
        assert text_of(engine.rest().splitlines()) == " Stray tokens."


@pytest.mark.parametrize(
    ("name", "before"),
    [("silent", HALF), ("silent-before-first-token", ""), ("stop-never-answered", "Let me see.</think>Hello")],
)
def test_a_silent_engine_lives_and_hears_no_stop(name: str, before: str, tmp_path: Path) -> None:
    with Dialogue(name, tmp_path) as engine:
        engine.ready()
        engine.gen()
        heard = "".join(engine.line() for _ in before).splitlines()
        assert text_of(heard) == before
        engine.send("STOP")
        engine.fake.wait_command("STOP", timeout_s=DEADLINE_S)
        assert engine.process.poll() is None
        engine.end_input()
        assert engine.rest() == ""


def test_exit_before_ready(tmp_path: Path) -> None:
    with Dialogue("exit-before-ready", tmp_path) as engine:
        assert engine.rest() == ""
        assert engine.exit_code() == 3
        assert engine.log().startswith("CUDA error: out of memory")


def test_slow_start_can_be_ended_before_ready(tmp_path: Path) -> None:
    with Dialogue("slow-start", tmp_path) as engine:
        engine.fake.wait_life(1, DEADLINE_S)
        engine.end_input()
        assert engine.rest() == ""
        assert engine.exit_code() == 0
        assert engine.log() == "loading the model\n"


def test_slow_sends_token_by_token_and_can_be_stopped(tmp_path: Path) -> None:
    with Dialogue("slow", tmp_path) as engine:
        engine.ready()
        engine.gen()
        assert engine.until("T ")[-1] == f"T {ord('H')}"
        engine.send("STOP")
        lines = engine.answer()
        assert field(lines[-1], 5) == "cancel"
        assert int(field(lines[-1], 1)) == len(lines)


def test_stdout_closed_leaves_the_process(tmp_path: Path) -> None:
    with Dialogue("stdout-closed", tmp_path) as engine:
        engine.ready()
        engine.gen()
        assert text_of(engine.rest().splitlines()) == HALF
        assert engine.process.poll() is None


def test_garbage_between_good_lines(tmp_path: Path) -> None:
    with Dialogue("garbage", tmp_path) as engine:
        engine.ready()
        engine.gen()
        data = engine.bytes_until(b"DONE")
        assert b"\n\x00\xff\xfe" in data
        assert b"\nT twelve\n" in data


def test_grandchild_holds_the_pipe(tmp_path: Path) -> None:
    with Dialogue("grandchild", tmp_path) as engine:
        engine.ready()
        engine.gen()
        assert engine.exit_code() == 1
        (pid,) = engine.fake.grandchildren()
        assert text_of([engine.line() for _ in HALF]) == HALF
        assert engine.chunks.empty()
        psutil.Process(pid).kill()
        assert engine.rest() == ""


def test_batch_serves_two_at_once(tmp_path: Path) -> None:
    with Dialogue("batch", tmp_path) as engine:
        assert "batch_slots=4" in engine.ready()[0]
        engine.send("BGEN 0 1000 1,2", "BGEN 3 1000 3,4")
        lines = engine.until("BDONE 3")
        assert text_of(lines, 0) == text_of(lines, 3) == FULL[1:]


def test_fatal_err_batch(tmp_path: Path) -> None:
    with Dialogue("fatal-err-batch", tmp_path) as engine:
        engine.ready()
        engine.send("BGEN 0 1000 1,2")
        lines = engine.until("ERR verify batch: timed out")
        assert text_of(lines, 0) == HALF[1:]
        assert engine.process.poll() is None
