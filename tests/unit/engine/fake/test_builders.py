"""Every step of the tables has a builder, and what it builds is a step that the program takes."""

from __future__ import annotations

import inspect
import json

import pytest

from engine.fake import builders
from engine.fake.builders import Step
from engine.fake.fastjson import loads
from engine.fake.script import ANSWER_STEPS, PLAIN_STEPS, answer

BUILT: list[tuple[Step, dict[str, object]]] = [
    (builders.text("a", pace_s=0.1, burst=True, repeat=2), {"text": "a", "pace_s": 0.1, "burst": True, "repeat": 2}),
    (builders.text("a"), {"text": "a"}),
    (builders.tokens([1], burst=False), {"tokens": [1], "burst": False}),
    (builders.end_token(), {"end_token": True}),
    (builders.echo(), {"echo": True}),
    (builders.echo("x"), {"echo": True, "find": "x"}),
    (builders.which(), {"which": True}),
    (builders.progress(), {"progress": True}),
    (builders.progress(5), {"progress": [5, 5]}),
    (builders.progress(0, 5, ms=2), {"progress": [0, 5], "ms": 2}),
    (builders.reused(0, "RESUME"), {"reused": 0, "word": "RESUME"}),
    (builders.err("e"), {"err": "e"}),
    (builders.done(), {"done": "stop"}),
    (
        builders.done("x", generated=0, prompt_tokens=1, fields=[]),
        {"done": "x", "generated": 0, "prompt_tokens": 1, "fields": []},
    ),
    (builders.no_end(), {"no_end": True}),
    (builders.delay(0.5), {"delay_s": 0.5}),
    (builders.cue("a"), {"cue": "a"}),
    (builders.reached("a"), {"reached": "a"}),
    (builders.stall(), {"stall": True}),
    (builders.exit_(3), {"exit": 3}),
    (builders.signal("SIGKILL"), {"signal": "SIGKILL"}),
    (builders.close_stdout(), {"close_stdout": True}),
    (builders.stop_reading_stdin(), {"stop_reading_stdin": True}),
    (builders.ignore("STOP", "EOF"), {"ignore": ["STOP", "EOF"]}),
    (builders.line("x"), {"line": "x"}),
    (builders.half_line("x"), {"half_line": "x"}),
    (builders.raw(b"\xff"), {"bytes": "ff"}),
    (builders.stderr("x", repeat=2), {"stderr": "x", "repeat": 2}),
    (builders.grandchild(1, new_session=True), {"grandchild": 1, "new_session": True}),
]


@pytest.mark.parametrize(("built", "wanted"), BUILT, ids=str)
def test_a_builder_makes_a_step_that_the_program_takes(built: Step, wanted: dict[str, object]) -> None:
    assert built == wanted
    assert answer(loads(json.dumps([built])), "here")[0].kind == next(iter(wanted))


def test_every_step_has_a_builder_and_every_builder_is_here() -> None:
    kinds = {next(iter(wanted)) for _, wanted in BUILT}
    assert kinds == set(ANSWER_STEPS) | set(PLAIN_STEPS)
    functions = [name for name, _ in inspect.getmembers(builders, inspect.isfunction) if not name.startswith("_")]
    assert len(functions) == len(kinds)
