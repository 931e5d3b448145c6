"""What a script may hold, and that every mistake is told with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.fake.script import ANSWER_STEPS, PLAIN_STEPS, ScriptError, Scripts, Step, answer, load

if TYPE_CHECKING:
    from engine.fake.fastjson import Json


WRONG_SCRIPTS: list[tuple[Json, str]] = [
    ([], "script: [] is not an object"),
    ({"contxt": 5}, "contxt: unknown key; known: after_ready, batch_slots, "),
    ({"context": 0}, "context: 0 is not a whole number >= 1"),
    ({"context": True}, "context: True is not a whole number >= 1"),
    ({"context": "many"}, "context: 'many' is not a whole number"),
    ({"can_stop": 1}, "can_stop: 1 is not true or false"),
    ({"batch_slots": 1}, "batch_slots: 1 is not 0 or a whole number >= 2"),
    ({"batch_slots": -2}, "batch_slots: -2 is not 0 or a whole number >= 2"),
    ({"info": []}, "info: [] is not an object"),
    ({"info": {"a": "b c"}}, "info.a: 'b c' is not a value without spaces"),
    ({"info": {"a=b": 1}}, "info.a=b: 1 is not a value without spaces"),
    ({"info": {"a": None}}, "info.a: None is not a value without spaces"),
    ({"title": "a\nb"}, "title: 'a\\nb' is not a text without line ends"),
    ({"title": 5}, "title: 5 is not a text"),
    ({"ignore": ["SIGKILL"]}, "ignore[0]: 'SIGKILL' is not one of STOP, BYIELD, QUIT, EOF, SIGTERM"),
    ({"ignore": "STOP"}, "ignore: 'STOP' is not a list"),
    ({"then": "stop"}, "then: 'stop' is not one of repeat, cycle, ok"),
    ({"requests": {}}, "requests: {} is not a list"),
    ({"requests": ["x"]}, "requests[0]: 'x' is not a list"),
    ({"requests": [["x"]]}, "requests[0][0]: 'x' is not an object"),
    ({"requests": [[], {"match": "x"}]}, "requests[1]: has the keys match; write a list of steps, or match and"),
    ({"requests": [{"match": 1, "steps": []}]}, "requests[0].match: 1 is not a text"),
    ({"requests": [{"match": "x", "steps": [{}]}]}, "requests[0].steps[0]: has no known step in {}; write exactly"),
    ({"start": [{"text": "x"}]}, "start[0]: has no known step in text; write exactly one of bytes, close_stdout"),
    ({"after_ready": [{"done": "stop"}]}, "after_ready[0]: has no known step in done"),
    ({"lives": {}}, "lives: {} is not a list"),
    ({"lives": [{}, 5]}, "lives[1]: 5 is not an object"),
    ({"lives": [{"lives": []}]}, "lives[0].lives: unknown key"),
    ({"lives": [{"requests": [[{"exit": "x"}]]}]}, "lives[0].requests[0][0].exit: 'x' is not an exit code"),
]


WRONG_STEPS: list[tuple[Json, str]] = [
    ({}, ": has no known step in {}; write exactly one of bytes, "),
    ({"txt": "x"}, ": has no known step in txt; write exactly one of bytes, "),
    ({"text": "x", "exit": 1}, ": has the steps text, exit; write exactly one of "),
    ({"text": "x", "speed": 1}, ": 'speed' is no option of text; its options: burst, pace_s, repeat"),
    ({"stall": True, "burst": True}, ": 'burst' is no option of stall; its options: none"),
    ({"text": 5}, ".text: 5 is not a text"),
    ({"text": "\ud800"}, ".text: '\\ud800' is not a text that UTF-8 can hold"),
    ({"text": "x", "pace_s": -1}, ".pace_s: -1 is not a number >= 0"),
    ({"text": "x", "pace_s": "1"}, ".pace_s: '1' is not a number >= 0"),
    ({"text": "x", "burst": 1}, ".burst: 1 is not true or false"),
    ({"text": "x", "repeat": 0}, ".repeat: 0 is not a whole number >= 1"),
    ({"tokens": [1, -1]}, ".tokens[1]: -1 is not a whole number >= 0"),
    ({"tokens": [1.5]}, ".tokens[0]: 1.5 is not a whole number >= 0"),
    ({"tokens": "ab"}, ".tokens: 'ab' is not a list"),
    ({"end_token": False}, ".end_token: False is not true"),
    ({"progress": [1]}, ".progress: [1] is not true or a pair [done, total]"),
    ({"reused": 1, "word": "KEPT"}, ".word: 'KEPT' is not one of RESUME, REUSED"),
    ({"done": 1}, ".done: 1 is not a text"),
    ({"done": "stop", "generated": -1}, ".generated: -1 is not a whole number >= 0"),
    ({"done": "stop", "fields": [1]}, ".fields[0]: 1 is not a text"),
    ({"err": "a\nb"}, ".err: 'a\\nb' is not a text without line ends"),
    ({"delay_s": True}, ".delay_s: True is not a number >= 0"),
    ({"cue": "../x"}, ".cue: '../x' is not a name of letters, digits, - and _"),
    ({"reached": ""}, ".reached: '' is not a name of letters, digits, - and _"),
    ({"exit": 2**32}, ".exit: 4294967296 is not an exit code"),
    ({"signal": "SIGHUP"}, ".signal: 'SIGHUP' is not one of SIGKILL, SIGSEGV, SIGABRT, SIGTERM, SIGSTOP"),
    ({"grandchild": 61}, ".grandchild: 61 is not a number of seconds <= 60"),
    ({"grandchild": -1}, ".grandchild: -1 is not a number >= 0"),
    ({"bytes": "0g"}, ".bytes: '0g' is not bytes in hexadecimal"),
    ({"bytes": 0}, ".bytes: 0 is not bytes in hexadecimal"),
    ({"line": "x\r"}, ".line: 'x\\r' is not a text without line ends"),
    ({"stderr": "x", "repeat": True}, ".repeat: True is not a whole number >= 1"),
]


ENDINGS: list[tuple[Json, bool]] = [
    ({"done": "length"}, True),
    ({"err": "no"}, True),
    ({"no_end": True}, True),
    ({"exit": 0}, True),
    ({"stall": True}, True),
    ({"signal": "SIGKILL"}, True),
    ({"signal": "SIGSTOP"}, False),
    ({"text": "x"}, False),
    ({"close_stdout": True}, False),
    ({"half_line": "x"}, False),
    ({"cue": "x"}, False),
]


NEEDS_STATE: list[tuple[Json, bool]] = [
    ({"requests": [[{"cue": "a"}]]}, True),
    ({"start": [{"reached": "a"}]}, True),
    ({"lives": [{}]}, True),
    ({"requests": [[{"text": "a"}]]}, False),
]


def fault_of(script: Json, tmp_path: Path) -> str:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script), encoding="utf-8")
    with pytest.raises(ScriptError) as caught:
        load(str(path))
    message = str(caught.value)
    assert message.startswith("script.json: ")
    return message.removeprefix("script.json: ")


def step_fault(step: Json, tmp_path: Path) -> str:
    return fault_of({"requests": [[{"text": "x"}, step]]}, tmp_path)


@pytest.mark.parametrize(
    ("script", "fault"),
    WRONG_SCRIPTS,
)
def test_a_wrong_key_or_value_is_told_with_its_place(script: Json, fault: str, tmp_path: Path) -> None:
    assert fault_of(script, tmp_path).startswith(fault)


@pytest.mark.parametrize(
    ("step", "fault"),
    WRONG_STEPS,
)
def test_a_wrong_step_is_told_with_its_place(step: Json, fault: str, tmp_path: Path) -> None:
    assert step_fault(step, tmp_path).startswith(f"requests[0][1]{fault}")


def test_not_a_number_and_infinity_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    for word in ("NaN", "Infinity", "-Infinity"):
        path.write_text('{"start": [{"delay_s": ' + word + "}]}", encoding="utf-8")
        with pytest.raises(ScriptError, match=r"start\[0\]\.delay_s: .* is not a number >= 0"):
            load(str(path))


def test_a_long_wrong_value_is_cut_in_the_message(tmp_path: Path) -> None:
    assert len(fault_of({"context": "x" * 1000}, tmp_path)) < 150


@pytest.mark.parametrize(
    ("text", "fault"),
    [("{", "not JSON: Expecting property name"), ("", "not JSON: Expecting value"), ("{} {}", "not JSON: Extra data")],
)
def test_a_file_that_is_not_json_is_told(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScriptError, match=rf"^s\.json: {fault}.*line 1 column"):
        load(str(path))


def test_a_file_that_is_not_utf_8_or_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(b'{"title": "\xff"}')
    with pytest.raises(ScriptError, match=r"^s\.json: not JSON: .*utf-8"):
        load(str(path))
    with pytest.raises(ScriptError, match=r"^none\.json: cannot be read"):
        load(str(tmp_path / "none.json"))


# --- what the checked values say -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "ends"),
    ENDINGS,
)
def test_only_a_list_without_an_ending_gets_done_stop(step: Json, ends: bool) -> None:
    kinds = [found.kind for found in answer([step, {"text": "a"}], "here")]
    assert kinds[2:] == ([] if ends else ["done"])


def test_every_life_has_its_overrides_and_the_last_one_stays() -> None:
    scripts = Scripts({"context": 5, "title": "t", "lives": [{"context": 6}, {"batch_slots": 2}]})
    assert [scripts.life(number).context for number in (1, 2, 3, 9)] == [6, 5, 5, 5]
    assert [scripts.life(number).batch_slots for number in (1, 2, 3)] == [0, 2, 2]
    assert scripts.life(2).title == "t"


@pytest.mark.parametrize(
    ("script", "needs"),
    NEEDS_STATE,
)
def test_cues_and_lives_need_a_state_folder(script: Json, needs: bool) -> None:
    assert Scripts(script).needs_state() is needs


def test_ignore_is_the_first_start_step() -> None:
    start = Scripts({"ignore": ["EOF"], "start": [{"delay_s": 1}]}).first.start
    assert [step.kind for step in start] == ["ignore", "delay_s"]
    assert start[0].words() == ["EOF"]


def test_a_step_gives_its_value_and_options_by_type() -> None:
    step = Step("x", "v", {"n": 2, "f": 0.5, "yes": True, "words": ["a"]})
    assert (step.text(), step.count("n"), step.number("f"), step.flag("yes")) == ("v", 2, 0.5, True)
    assert step.words("words") == ["a"]
    assert (step.text("no", "d"), step.count("no", 3), step.number("no", 0.1), step.flag("no")) == ("d", 3, 0.1, False)
    assert step.words("no", ["d"]) == ["d"]
    assert (step.ids(), step.data()) == ([], b"")
    assert (Step("x", [1, 2], {}).ids(), Step("x", b"z", {}).data()) == ([1, 2], b"z")


def test_no_option_is_also_the_name_of_a_step() -> None:
    tables = {**ANSWER_STEPS, **PLAIN_STEPS}
    options = {option for _, checks in tables.values() for option in checks}
    assert not options & set(tables)
