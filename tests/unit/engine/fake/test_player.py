"""Every step kind, played by the real program."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from engine.fake import player, script
from engine.fake.builders import (
    Step,
    close_stdout,
    cue,
    delay,
    done,
    echo,
    end_token,
    err,
    exit_,
    grandchild,
    half_line,
    ignore,
    line,
    no_end,
    progress,
    raw,
    reached,
    reused,
    stall,
    stderr,
    stop_reading_stdin,
    text,
    tokens,
    which,
)
from engine.fake.builders import signal as signal_
from tests.unit.engine.fake.dialogue import DEADLINE_S, Dialogue, field, ids_of, text_of


def talk(tmp_path: Path, *steps: Step) -> Dialogue:
    return Dialogue({"requests": [list(steps)]}, tmp_path)


def answer_of(tmp_path: Path, *steps: Step, max_new: int = 4000, prompt: str = "hi") -> list[str]:
    with talk(tmp_path, *steps) as engine:
        engine.ready()
        engine.gen(max_new, prompt)
        return engine.answer()


def test_every_step_of_the_tables_has_a_handler() -> None:
    assert set(player._HANDLERS) == set(script.ANSWER_STEPS) | set(script.PLAIN_STEPS)  # pyright: ignore[reportPrivateUsage] - the two tables must agree


# --- tokens --------------------------------------------------------------------------------------------


def test_text_is_a_token_per_byte_and_done_has_the_true_counts(tmp_path: Path) -> None:
    lines = answer_of(tmp_path, text("Aé😀"), prompt="hello")
    assert lines[:-1] == [f"T {byte}" for byte in "Aé😀".encode()]
    words = lines[-1].split()
    assert words[:3] == ["DONE", "7", "5"]
    assert float(words[3]) >= 0
    assert float(words[4]) >= 0
    assert words[5:] == ["stop", "0", "0", "0", "0", "0", "0", "0", "0.0", "5"]


def test_tokens_end_token_and_repeat_are_counted(tmp_path: Path) -> None:
    lines = answer_of(tmp_path, tokens([7, 300], repeat=2), end_token(), done("stop"))
    assert lines[:-1] == ["T 7", "T 300", "T 7", "T 300", "T 257"]
    assert field(lines[-1], 1) == "5"


def test_a_burst_is_one_write(tmp_path: Path) -> None:
    with talk(tmp_path, text("abc", burst=True, repeat=100), cue("go")) as engine:
        engine.ready()
        engine.gen()
        first = engine.chunks.get(timeout=DEADLINE_S)
        assert first == b"T 97\nT 98\nT 99\n" * 100


def test_pace_waits_before_each_token(tmp_path: Path) -> None:
    lines = answer_of(tmp_path, text("abc", pace_s=0.05))
    assert text_of(lines) == "abc"
    assert float(field(lines[-1], 3)) >= 50, "the first token waited too"
    assert float(field(lines[-1], 4)) >= 100


def test_echo_writes_the_prompts_text_or_its_first_match(tmp_path: Path) -> None:
    lines = answer_of(tmp_path, echo(), prompt="say né")
    assert text_of(lines) == "say né"
    lines = answer_of(tmp_path, echo("id-[0-9]+"), text("!"), prompt="the id-42, not id-43")
    assert text_of(lines) == "id-42!"
    lines = answer_of(tmp_path, echo("id-[0-9]+"), text("!"), prompt="none")
    assert text_of(lines) == "!"


def test_which_tells_the_requests_number(tmp_path: Path) -> None:
    with talk(tmp_path, which()) as engine:
        engine.ready()
        for number in ("1", "2", "3"):
            engine.gen()
            assert text_of(engine.answer()) == number


@pytest.mark.parametrize("burst", [True, False])
def test_max_new_cuts_the_text_and_done_says_length(tmp_path: Path, burst: bool) -> None:
    lines = answer_of(tmp_path, text("abcdef", burst=burst), text("g"), done("stop"), max_new=4)
    assert text_of(lines) == "abcd"
    assert lines[-1].split()[:2] == ["DONE", "4"]
    assert field(lines[-1], 5) == "length"


def test_a_disobedient_engine_goes_beyond_max_new(tmp_path: Path) -> None:
    with Dialogue({"obey_max_new": False, "requests": [[text("abcdef")]]}, tmp_path) as engine:
        engine.ready()
        engine.gen(2)
        lines = engine.answer()
        assert text_of(lines) == "abcdef"
        assert field(lines[-1], 5) == "stop"


def test_the_contexts_end_is_length_too(tmp_path: Path) -> None:
    with Dialogue({"context": 10, "requests": [[text("abcdefghij")]]}, tmp_path) as engine:
        engine.ready()
        engine.gen(100, "1234567")
        lines = engine.answer()
        assert text_of(lines) == "abc"
        assert field(lines[-1], 5) == "length"


# --- progress, endings ---------------------------------------------------------------------------------


def test_progress_and_reused_lines(tmp_path: Path) -> None:
    lines = answer_of(
        tmp_path, reused(2), reused(3, "RESUME"), progress(), progress(8, 16, ms=4), text("x"), prompt="12345"
    )
    assert lines[:2] == ["REUSED 2", "RESUME 3"]
    assert lines[2].startswith("PP 5 5 ")
    assert lines[3] == "PP 8 16 4 2000.0"
    assert lines[-1].split()[6:] == ["0", "0", "3", "0", "0", "0", "0", "0.0", "2"]


def test_done_says_what_the_script_wants(tmp_path: Path) -> None:
    wrong = done("paused", generated=9, prompt_tokens=8, fields=["1"])
    words = answer_of(tmp_path, text("ab"), wrong)[-1].split()
    assert words[:3] == ["DONE", "9", "8"]
    assert words[5:] == ["paused", "1"]
    assert answer_of(tmp_path, done("stop", fields=[]))[-1].split()[5:] == ["stop"]


def test_a_refusal_has_no_done_and_the_next_request_works(tmp_path: Path) -> None:
    with Dialogue({"requests": [[err("no such thing")], [text("ok")]]}, tmp_path) as engine:
        engine.ready()
        engine.gen()
        assert engine.answer() == ["ERR no such thing"]
        engine.gen()
        assert text_of(engine.answer()) == "ok"


def test_a_fatal_err_may_be_followed_by_done(tmp_path: Path) -> None:
    with talk(tmp_path, text("a"), err("verify: timed out"), done("error")) as engine:
        engine.ready()
        engine.gen()
        assert engine.answer() == ["T 97", "ERR verify: timed out"]
        assert field(engine.answer()[0], 5) == "error"


def test_tokens_after_done_are_written(tmp_path: Path) -> None:
    with Dialogue({"requests": [[text("a"), done("stop"), text("bc")], [text("d")]]}, tmp_path) as engine:
        engine.ready()
        engine.gen(1000)
        assert text_of(engine.answer()) == "a"
        engine.gen()
        lines = engine.answer()
        assert text_of(lines) == "bcd"
        assert field(lines[-1], 1) == "1"


def test_no_end_writes_neither_done_nor_err(tmp_path: Path) -> None:
    with Dialogue({"requests": [[text("a"), no_end()], [text("b")]]}, tmp_path) as engine:
        engine.ready()
        engine.gen()
        engine.gen()
        assert engine.answer()[:-1] == ["T 97", "T 98"]


# --- waits ---------------------------------------------------------------------------------------------


def test_a_delay_waits_and_a_stop_ends_it(tmp_path: Path) -> None:
    assert float(field(answer_of(tmp_path, delay(0.05), text("a"))[-1], 3)) >= 50
    with talk(tmp_path / "stop", text("a"), reached("delay"), delay(3600)) as engine:
        engine.ready()
        engine.gen()
        engine.fake.wait_reached("delay", DEADLINE_S)
        engine.send("STOP")
        assert field(engine.answer()[-1], 5) == "cancel"


def test_a_cue_holds_the_answer_until_it_is_given(tmp_path: Path) -> None:
    with talk(tmp_path, text("a"), reached("before"), cue("go"), reached("after"), text("b")) as engine:
        engine.ready()
        engine.gen()
        engine.fake.wait_reached("before", DEADLINE_S)
        assert engine.line() == "T 97\n"
        assert not (tmp_path / "reached-after").exists()
        engine.fake.cue("go")
        engine.fake.wait_reached("after", DEADLINE_S)
        assert text_of(engine.answer()) == "b"


@pytest.mark.parametrize("steps", [[stall()], [text("a"), stall()], [text("a"), cue("never")]], ids=str)
def test_a_stop_ends_a_stall_and_a_cue_and_the_next_request_works(tmp_path: Path, steps: list[Step]) -> None:
    with Dialogue({"requests": [steps, [text("next")]]}, tmp_path) as engine:
        engine.ready()
        engine.gen()
        engine.fake.wait_command("GEN", timeout_s=DEADLINE_S)
        engine.send("STOP")
        lines = engine.answer()
        assert field(lines[-1], 5) == "cancel"
        assert field(lines[-1], 1) == str(len(lines) - 1)
        engine.gen()
        assert text_of(engine.answer()) == "next"


def test_an_engine_that_cannot_stop_ignores_stop(tmp_path: Path) -> None:
    with Dialogue({"can_stop": False, "requests": [[text("a"), cue("go"), text("b")]]}, tmp_path) as engine:
        assert engine.ready()[-1] == "READY 4096"
        engine.gen()
        engine.send("STOP")
        engine.fake.wait_command("STOP", timeout_s=DEADLINE_S)
        engine.fake.cue("go")
        lines = engine.answer()
        assert text_of(lines) == "ab"
        assert field(lines[-1], 5) == "stop"


# --- the process ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 70])
def test_exit_codes_and_what_was_written_before(tmp_path: Path, code: int) -> None:
    with talk(tmp_path, text("ab"), exit_(code)) as engine:
        engine.ready()
        engine.gen()
        assert engine.rest() == "T 97\nT 98\n"
        assert engine.exit_code() == code


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM"])
def test_signals_end_it(tmp_path: Path, name: str) -> None:
    if sys.platform == "win32":
        pytest.skip("POSIX only")
    with talk(tmp_path, text("ab"), signal_(name)) as engine:
        engine.ready()
        engine.gen()
        assert engine.rest() == "T 97\nT 98\n"
        assert engine.exit_code() == -signal.Signals[name]


def test_sigstop_halts_it_until_it_is_continued(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("POSIX only")
    with talk(tmp_path, text("a"), signal_("SIGSTOP"), text("b")) as engine:
        engine.ready()
        engine.gen()
        assert os.waitpid(engine.process.pid, os.WUNTRACED)[0] == engine.process.pid
        assert psutil.Process(engine.process.pid).status() == psutil.STATUS_STOPPED
        assert engine.line() == "T 97\n"
        engine.process.send_signal(signal.SIGCONT)
        lines = engine.answer()
        assert text_of(lines) == "b"
        assert field(lines[-1], 1) == "2"


def test_a_closed_stdout_leaves_the_process_alive_and_logging(tmp_path: Path) -> None:
    with talk(tmp_path, text("a"), close_stdout(), text("unheard"), stall()) as engine:
        engine.ready()
        engine.gen()
        assert engine.rest() == "T 97\n"
        engine.send("STOP")
        engine.fake.wait_command("STOP", timeout_s=DEADLINE_S)
        assert engine.process.poll() is None
        engine.end_input()
        assert engine.exit_code() == 0


def test_lines_half_lines_and_bytes_leave_as_they_are(tmp_path: Path) -> None:
    with talk(tmp_path, line("NEW thing"), raw(b"\x00\xff\xfe"), half_line("T 1"), exit_(0)) as engine:
        engine.ready()
        engine.gen()
        assert engine.bytes_until(b"never") == b"NEW thing\n\x00\xff\xfeT 1"


def test_a_stderr_flood_arrives_whole(tmp_path: Path) -> None:
    with talk(tmp_path, stderr("x" * 99, repeat=10_000), text("a")) as engine:
        engine.ready()
        engine.gen()
        assert text_of(engine.answer()) == "a"
        engine.end_input()
        assert engine.exit_code() == 0
        assert engine.log() == ("x" * 99 + "\n") * 10_000


def test_sigterm_can_be_ignored(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("POSIX only")
    with talk(tmp_path, ignore("SIGTERM"), reached("deaf"), cue("go"), text("alive")) as engine:
        engine.ready()
        engine.gen()
        engine.fake.wait_reached("deaf", DEADLINE_S)
        engine.process.terminate()
        engine.fake.cue("go")
        assert text_of(engine.answer()) == "alive"


def test_stop_quit_and_the_end_of_input_can_be_ignored(tmp_path: Path) -> None:
    with talk(tmp_path, ignore("STOP", "QUIT", "EOF"), reached("deaf"), cue("go"), text("alive")) as engine:
        engine.ready()
        engine.gen()
        engine.fake.wait_reached("deaf", DEADLINE_S)
        engine.send("STOP", "QUIT")
        engine.end_input()
        engine.fake.wait_command("EOF", timeout_s=DEADLINE_S)
        engine.fake.cue("go")
        lines = engine.answer()
        assert text_of(lines) == "alive"
        assert field(lines[-1], 5) == "stop"


def test_ignoring_from_the_start_holds_for_the_whole_life(tmp_path: Path) -> None:
    with Dialogue({"ignore": ["STOP"], "requests": [[text("a"), cue("go")]]}, tmp_path) as engine:
        engine.ready()
        engine.gen()
        engine.send("STOP")
        engine.fake.wait_command("STOP", timeout_s=DEADLINE_S)
        engine.fake.cue("go")
        assert field(engine.answer()[-1], 5) == "stop"


def test_an_engine_that_reads_no_stdin_lets_the_pipe_fill(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("POSIX only")
    with Dialogue({"start": [stop_reading_stdin()]}, tmp_path) as engine:
        engine.ready()
        assert engine.process.stdin
        to = engine.process.stdin.fileno()
        os.set_blocking(to, False)
        with pytest.raises(BlockingIOError):
            for _ in range(1000):
                os.write(to, f"GEN 1 {ids_of('x' * 1000)}\n".encode())
        assert engine.fake.commands() == []


def test_reading_can_stop_in_mid_answer(tmp_path: Path) -> None:
    with talk(tmp_path, stop_reading_stdin(), reached("deaf"), cue("go"), text("a")) as engine:
        engine.ready()
        engine.gen()
        engine.fake.wait_reached("deaf", DEADLINE_S)
        engine.send("STOP")
        engine.fake.cue("go")
        lines = engine.answer()
        assert field(lines[-1], 5) == "stop"
        assert [command.name for command in engine.fake.commands()] == ["GEN"]


@pytest.mark.parametrize("new_session", [False, True])
def test_a_grandchild_holds_the_pipe_after_the_engine_is_gone(tmp_path: Path, new_session: bool) -> None:
    with talk(tmp_path, text("a"), grandchild(60, new_session=new_session), exit_(1)) as engine:
        engine.ready()
        engine.gen()
        assert engine.exit_code() == 1
        (pid,) = engine.fake.grandchildren()
        holder = psutil.Process(pid)
        try:
            assert engine.line() == "T 97\n"
            assert engine.chunks.empty(), "stdout is not at its end"
            assert holder.is_running()
            if sys.platform != "win32":
                assert (os.getsid(pid) == pid) is new_session
        finally:
            holder.kill()
        assert engine.rest() == ""


def test_a_grandchild_ends_by_itself(tmp_path: Path) -> None:
    with talk(tmp_path, grandchild(0.05), exit_(1)) as engine:
        engine.ready()
        engine.gen()
        assert engine.rest() == ""
