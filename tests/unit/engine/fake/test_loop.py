"""Commands, the choice of answers, lives, and batch slots, on the real program."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from engine.fake.builders import (
    Step,
    cue,
    delay,
    done,
    echo,
    end_token,
    err,
    exit_,
    line,
    progress,
    reached,
    stall,
    stderr,
    text,
    which,
)
from engine.fake.harness import FakeEngine
from tests.unit.engine.fake.dialogue import DEADLINE_S, Dialogue, field, ids_of, text_of

# --- start ---------------------------------------------------------------------------------------------


def test_info_and_ready_say_what_the_script_says(tmp_path: Path) -> None:
    script = {"context": 77, "batch_slots": 3, "info": {"token_mask": 1, "arena_mib": 2.5, "engine_name": "x"}}
    with Dialogue(script, tmp_path) as engine:
        assert engine.ready() == [
            "INFO context=77 engine=fake kv=f16 batch_slots=3 token_mask=1 arena_mib=2.5 engine_name=x",
            "READY 77 stop",
        ]


def test_ready_can_be_any_line_and_lines_can_end_with_crlf(tmp_path: Path) -> None:
    with Dialogue({"ready_line": "READY 9 stop more", "crlf": True, "requests": [[text("a")]]}, tmp_path) as engine:
        assert engine.ready()[-1] == "READY 9 stop more"
        engine.gen()
        assert engine.line() == "T 97\r\n"
        assert engine.line().endswith("\r\n")


def test_start_steps_come_before_ready_and_after_ready_steps_after_it(tmp_path: Path) -> None:
    script = {
        "start": [line("INFO new=1"), reached("loading"), cue("load")],
        "after_ready": [cue("die"), stderr("I am tired"), exit_(5)],
    }
    with Dialogue(script, tmp_path) as engine:
        engine.fake.wait_reached("loading", DEADLINE_S)
        assert engine.line() == "INFO new=1\n"
        assert engine.chunks.empty()
        engine.fake.cue("load")
        assert engine.ready()[-1] == "READY 4096 stop"
        engine.fake.cue("die")
        assert engine.rest() == ""
        assert engine.exit_code() == 5
        assert engine.log() == "I am tired\n"


def test_it_can_die_before_ready(tmp_path: Path) -> None:
    with Dialogue({"start": [stderr("no memory"), exit_(3)]}, tmp_path) as engine:
        assert engine.rest() == ""
        assert engine.exit_code() == 3
        assert engine.log() == "no memory\n"


# --- commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("idle", ["STOP", "BSTOP 0", "BYIELD 0", ""])
def test_commands_about_nothing_get_no_answer(tmp_path: Path, idle: str) -> None:
    with Dialogue({"batch_slots": 2, "requests": [[text("a")]]}, tmp_path) as engine:
        engine.ready()
        engine.send(idle)
        engine.gen()
        assert engine.answer()[0] == "T 97"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("HELLO you", "ERR unknown command: HELLO you"),
        ("GEN", "ERR GEN: wants a count"),
        ("GEN 5", "ERR GEN: wants a count"),
        ("GEN x 1,2", "ERR GEN: invalid literal"),
        ("GEN 0 1,2", "ERR GEN: the count is below 1"),
        ("GEN 5 greedy 1,2", "ERR GEN: wants a count"),
        ("GEN 5 1,,2", "ERR GEN: invalid literal"),
        ("GEN 5 1,99", "ERR a token id is outside the vocabulary"),
        ("GEN 5 1,-1", "ERR a token id is outside the vocabulary"),
        ("GEN 5 1,2,3,4,5", "ERR prompt exceeds context (5 tokens, 5 fit)"),
        ("BGEN 0 5 1,2", "ERR BGEN: no such free slot (batch_slots=0)"),
    ],
)
def test_a_wrong_command_is_refused_and_the_engine_goes_on(tmp_path: Path, command: str, answer: str) -> None:
    with Dialogue({"context": 5, "vocab": 99, "requests": [[text("a")]]}, tmp_path) as engine:
        engine.ready()
        engine.send(command, "GEN 5 1,2")
        assert engine.answer()[0].startswith(answer)
        assert engine.answer()[0] == "T 97"


def test_a_stop_that_comes_with_its_request_while_the_engine_loads_is_heard(tmp_path: Path) -> None:
    script = {"start": [reached("loading"), cue("load")], "after_ready": [cue("load")], "requests": [[stall()]]}
    with Dialogue(script, tmp_path) as engine:
        engine.fake.wait_reached("loading", DEADLINE_S)
        engine.gen()
        engine.send("STOP")
        engine.fake.wait_command("STOP", timeout_s=DEADLINE_S)
        engine.fake.cue("load")
        engine.ready()
        assert field(engine.answer()[-1], 5) == "cancel"


def test_a_refusal_never_falls_into_a_running_answer(tmp_path: Path) -> None:
    with Dialogue({"requests": [[text("a"), cue("go"), text("b")]]}, tmp_path) as engine:
        engine.ready()
        engine.gen()
        engine.send("HELLO")
        engine.fake.wait_command("HELLO", timeout_s=DEADLINE_S)
        engine.fake.cue("go")
        assert text_of(engine.answer()) == "ab"
        assert engine.answer() == ["ERR unknown command: HELLO"]


@pytest.mark.parametrize("how", ["QUIT", "EOF"])
@pytest.mark.parametrize("steps", [[stall()], [delay(3600)], [cue("never")], [text("a", pace_s=3600)]], ids=str)
def test_quit_and_the_end_of_input_end_every_wait(tmp_path: Path, how: str, steps: list[Step]) -> None:
    with Dialogue({"requests": [[text("x"), *steps]]}, tmp_path) as engine:
        engine.ready()
        engine.gen()
        assert engine.line() == "T 120\n"
        engine.send("QUIT") if how == "QUIT" else engine.end_input()
        assert engine.rest() == ""
        assert engine.exit_code() == 0


def test_what_was_read_before_the_end_of_input_is_answered(tmp_path: Path) -> None:
    with Dialogue({"requests": [[which(), text("abc")]]}, tmp_path) as engine:
        engine.gen()
        engine.send("HELLO")
        engine.gen()
        engine.end_input()
        engine.ready()
        assert text_of(engine.answer()) == "1abc"
        assert engine.answer() == ["ERR unknown command: HELLO"]
        assert text_of(engine.answer()) == "2abc"
        assert engine.exit_code() == 0


def test_a_stop_at_a_token_border_has_true_counts(tmp_path: Path) -> None:
    with Dialogue({"requests": [[text("abc", repeat=100_000)], [text("next")]], "context": 10**6}, tmp_path) as engine:
        engine.ready()
        engine.gen(10**6)
        assert engine.line() == "T 97\n"
        engine.send("STOP")
        lines = engine.answer()
        assert field(lines[-1], 5) == "cancel"
        assert int(field(lines[-1], 1)) == len(lines)
        assert len(lines) < 300_000
        engine.gen()
        assert text_of(engine.answer()) == "next"


def test_a_gone_reader_ends_the_engine(tmp_path: Path) -> None:
    fake = FakeEngine({"requests": [[text("abc"), stall()]], "ignore": ["EOF"]}, tmp_path)
    with subprocess.Popen(fake.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline().startswith(b"INFO")
        assert process.stdout.readline().startswith(b"READY")
        process.stdout.close()
        process.stdin.write(b"GEN 5 1,2\n")
        process.stdin.flush()
        assert process.wait(DEADLINE_S) == 0


# --- the choice of the answer --------------------------------------------------------------------------


def texts(tmp_path: Path, script: dict[str, object], prompts: list[str]) -> list[str]:
    found: list[str] = []
    with Dialogue(script, tmp_path) as engine:
        engine.ready()
        for prompt in prompts:
            engine.gen(prompt=prompt)
            found.append(text_of(engine.answer()))
    return found


@pytest.mark.parametrize(
    ("then", "wanted"),
    [("repeat", ["a", "b", "b", "b"]), ("cycle", ["a", "b", "a", "b"]), ("ok", ["a", "b", "ok", "ok"])],
)
def test_answers_come_in_order_and_then_as_the_script_says(tmp_path: Path, then: str, wanted: list[str]) -> None:
    found = texts(tmp_path, {"requests": [[text("a")], [text("b")]], "then": then}, ["x"] * 4)
    assert ["ok" if item.startswith("Let me see.</think>") else item for item in found] == wanted


def test_without_requests_every_answer_is_good(tmp_path: Path) -> None:
    assert texts(tmp_path, {}, ["x", "y"]) == ["Let me see.</think>Hello, world."] * 2


def test_a_match_picks_by_the_prompt_and_leaves_the_order_alone(tmp_path: Path) -> None:
    script: dict[str, object] = {
        "requests": [[text("1st")], {"match": "né", "steps": [text("né!"), echo("[0-9]+")]}, [text("2nd")]]
    }
    assert texts(tmp_path, script, ["né 5", "x", "né 6", "y"]) == ["né!5", "1st", "né!6", "2nd"]


def test_each_life_plays_its_own_script(tmp_path: Path) -> None:
    script = {
        "context": 50,
        "requests": [[text("base")]],
        "lives": [{"requests": [[text("one"), exit_(1)]]}, {"context": 60}, {"requests": [[text("three")]]}],
    }
    seen: list[tuple[str, str]] = []
    for life in range(1, 5):
        with Dialogue(script, tmp_path) as engine:
            ready = engine.ready()[-1]
            engine.gen()
            lines = engine.rest().splitlines() if life == 1 else engine.answer()
            seen.append((ready, text_of(lines)))
            assert len(engine.fake.pids()) == life
            assert engine.fake.pids()[-1] == engine.process.pid
    assert seen == [
        ("READY 50 stop", "one"),
        ("READY 60 stop", "base"),
        ("READY 50 stop", "three"),
        ("READY 50 stop", "three"),
    ]


# --- batch slots ---------------------------------------------------------------------------------------


def batch(tmp_path: Path, *requests: list[Step], slots: int = 2) -> Dialogue:
    return Dialogue({"batch_slots": slots, "requests": list(requests)}, tmp_path)


def bgen(engine: Dialogue, slot: int, max_new: int = 4000, prompt: str = "hi") -> None:
    engine.send(f"BGEN {slot} {max_new} temperature=0.5 {ids_of(prompt)}")


def test_an_admission_makes_one_token_and_the_slot_the_others(tmp_path: Path) -> None:
    with batch(tmp_path, [progress(), text("abc"), end_token(), done("stop")]) as engine:
        engine.ready()
        bgen(engine, 1, prompt="12345")
        lines = engine.until("BDONE")
        assert lines[0].startswith("PP 5 5 ")
        assert lines[1] == "T 97"
        assert lines[2].split()[:3] == ["DONE", "1", "5"]
        assert field(lines[2], 5) == "length"
        assert lines[3:7] == ["BADM 1 1", "BT 1 98", "BT 1 99", "BT 1 257"]
        assert lines[7].split()[:4] == ["BDONE", "1", "4", "stop"]
        assert float(field(lines[7], 4)) >= 0


@pytest.mark.parametrize(
    ("steps", "max_new", "generated", "finish"),
    [([text("abc")], 1, "1", "length"), ([done("stop")], 9, "0", "stop"), ([done("error")], 9, "0", "error")],
    ids=str,
)
def test_an_answer_can_end_in_its_admission(
    tmp_path: Path, steps: list[Step], max_new: int, generated: str, finish: str
) -> None:
    with batch(tmp_path, steps) as engine:
        engine.ready()
        bgen(engine, 0, max_new)
        lines = engine.until("BADM")
        assert (field(lines[-2], 1), field(lines[-2], 5)) == (generated, finish)
        assert lines[-1] == "BADM 0 0"


def test_an_err_in_the_admission_has_neither_done_nor_badm(tmp_path: Path) -> None:
    with batch(tmp_path, [err("no")], [text("ok")]) as engine:
        engine.ready()
        bgen(engine, 0)
        bgen(engine, 0)
        assert engine.until("BADM")[:2] == ["ERR no", "T 111"]


def test_slots_take_turns_token_by_token(tmp_path: Path) -> None:
    small, large = "abcdefghijklmno", "ABCDEFGHIJKLMNO"
    with batch(tmp_path, *([text(all_[0]), cue("go"), text(all_[1:])] for all_ in (small, large))) as engine:
        engine.ready()
        bgen(engine, 0)
        engine.until("BADM 0 1")
        bgen(engine, 1)
        engine.until("BADM 1 1")
        engine.fake.cue("go")
        lines = engine.until("BDONE")
        lines += engine.until("BDONE")
    order = "".join(chr(int(field(item, 2))) for item in lines if item.startswith("BT"))
    # One slot may see the cue a turn or two before the other; from then on no slot gets two turns in a row.
    both = order[min(order.index("b"), order.index("B")) + 3 : 20]
    assert all(one.islower() != other.islower() for one, other in pairwise(both)), order
    assert (text_of(lines, 0), text_of(lines, 1)) == (small[1:], large[1:])
    assert sorted(item.split()[:4] for item in lines if item.startswith("BDONE")) == [
        ["BDONE", "0", "15", "stop"],
        ["BDONE", "1", "15", "stop"],
    ]


def test_a_slots_length_is_cut_at_its_max_new(tmp_path: Path) -> None:
    with batch(tmp_path, [text("abcdef")]) as engine:
        engine.ready()
        bgen(engine, 0, 3)
        lines = engine.until("BDONE")
        assert text_of(lines, 0) == "bc"
        assert lines[-1].split()[:4] == ["BDONE", "0", "3", "length"]


def test_a_burst_crosses_from_the_admission_into_the_slot(tmp_path: Path) -> None:
    with batch(tmp_path, [text("abc", burst=True)]) as engine:
        engine.ready()
        bgen(engine, 0)
        lines = engine.until("BDONE")
        assert [lines[0], *lines[2:5]] == ["T 97", "BADM 0 1", "BT 0 98", "BT 0 99"]


def test_bstop_ends_its_slot_only_and_the_slot_is_free_again(tmp_path: Path) -> None:
    with batch(tmp_path, [text("a"), stall()], [text("b"), stall()], [text("c")]) as engine:
        engine.ready()
        bgen(engine, 0)
        bgen(engine, 1)
        engine.until("BADM 1")
        engine.send("BSTOP 0")
        assert engine.until("BDONE")[-1].split()[:4] == ["BDONE", "0", "1", "cancel"]
        bgen(engine, 0)
        lines = engine.until("BDONE")
        assert lines[0] == "T 99"
        assert lines[-1].split()[:4] == ["BDONE", "0", "1", "stop"]
        engine.send("BSTOP 1")
        assert engine.until("BDONE")[-1].split()[:4] == ["BDONE", "1", "1", "cancel"]


def test_a_stop_ends_the_admission(tmp_path: Path) -> None:
    with batch(tmp_path, [stall()]) as engine:
        engine.ready()
        bgen(engine, 0)
        engine.fake.wait_command("BGEN", timeout_s=DEADLINE_S)
        engine.send("STOP")
        lines = engine.until("BADM")
        assert field(lines[0], 5) == "cancel"
        assert lines[1] == "BADM 0 0"


def test_a_slot_is_free_after_its_bdone_whatever_steps_follow(tmp_path: Path) -> None:
    with batch(tmp_path, [text("ab"), done("stop"), text("c"), stall()], [text("de")]) as engine:
        engine.ready()
        bgen(engine, 0)
        engine.until("BT 0 99")
        bgen(engine, 0)
        assert text_of(engine.until("BDONE"), 0) == "e"


@pytest.mark.parametrize("slot", [0, 2])
def test_a_busy_or_unknown_slot_is_refused(tmp_path: Path, slot: int) -> None:
    with batch(tmp_path, [text("a"), stall()]) as engine:
        engine.ready()
        bgen(engine, 0)
        bgen(engine, slot)
        assert engine.until("ERR")[-1] == "ERR BGEN: no such free slot (batch_slots=2)"


def test_a_prompt_read_gives_way_and_starts_again_with_the_next_bgen(tmp_path: Path) -> None:
    with batch(tmp_path, [progress(3, 5), reached("reading"), cue("read"), text("ab")], [text("z")]) as engine:
        engine.ready()
        bgen(engine, 0)
        engine.fake.wait_reached("reading", DEADLINE_S)
        engine.send("BYIELD 0")
        assert engine.until("YIELDED")[-1] == "YIELDED 0 3"
        bgen(engine, 1)
        assert text_of(engine.until("BDONE 1")) == "z"
        engine.fake.cue("read")
        bgen(engine, 0)
        assert text_of(engine.until("BDONE 0"), 0) == "b"


def test_an_exit_ends_all_slots(tmp_path: Path) -> None:
    with batch(tmp_path, [text("a"), stall()], [text("b"), exit_(1)]) as engine:
        engine.ready()
        bgen(engine, 0)
        bgen(engine, 1)
        assert engine.rest().endswith("BADM 1 1\n")
        assert engine.exit_code() == 1


def test_a_solo_request_has_the_engine_to_itself(tmp_path: Path) -> None:
    with batch(tmp_path, [text("a"), cue("go"), text("b")], [text("solo"), cue("end")]) as engine:
        engine.ready()
        bgen(engine, 0)
        engine.until("BADM")
        engine.gen()
        engine.fake.wait_command("GEN", timeout_s=DEADLINE_S)
        assert [engine.line() for _ in "solo"] == [f"T {byte}\n" for byte in b"solo"]
        engine.fake.cue("go")
        engine.send("STOP")
        assert field(engine.answer()[-1], 5) == "cancel"
        assert text_of(engine.until("BDONE"), 0) == "b"
