"""The pipe engine: answers that are interrupted and go on, over a real process."""

from __future__ import annotations

from contextlib import closing
from typing import Any, cast

import pytest

from engine.api import Cancel, TokenRequest
from engine.events import Cancelled, FailKind, Finished, Token, Usage
from tests.unit.engine.pipe.conftest import MakeRig
from tests.unit.engine.pipe.interrupting import After
from tests.unit.engine.pipe.rig import Outcome, Rig, Steps, Stream, read_tokens, script
from tests.unit.engine.supervisor.recorder import wait_until

PUT_IN = list(b"</>")
ENDLESS: Steps = [{"text": "x", "repeat": 100_000, "pace_s": 0.001}]
ANSWER: Steps = [{"text": "So."}, {"done": "stop"}]


def thinker(*steps: dict[str, Any], answer: Steps = ANSWER, **options: Any) -> dict[str, Any]:
    """Goes on for ever, until the prompt has what is put in."""
    rules = [{"match": "</>", "steps": answer}, {"match": "?", "steps": [*steps, *ENDLESS]}]
    return script(*cast("list[Any]", rules), **options)


def open_(rig: Rig, after: After, cancel: Cancel | None = None, max_tokens: int = 50) -> Stream:
    request = TokenRequest(list(b"?"), max_tokens, interruption=after)
    return cast("Stream", rig.engine.stream(request, cancel or Cancel()))


def run(rig: Rig, after: After, max_tokens: int = 50) -> Outcome:
    with closing(open_(rig, after, max_tokens=max_tokens)) as stream:
        return Outcome(list(stream))


@pytest.mark.parametrize("slots", [0, 2])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_engine_goes_on_from_what_was_put_in(make: MakeRig, slots: int, count: int) -> None:
    rig = make(thinker(batch_slots=slots))
    outcome = run(rig, After(count, PUT_IN))
    assert bytes(outcome.tokens) == b"x" * count + b"</>So."
    assert outcome.terminal == Finished("stop", Usage(1, count + 6))
    commands = rig.fake.commands("BGEN" if slots else "GEN")
    assert len(commands) == 2
    assert commands[0].slot == commands[1].slot
    assert len(rig.fake.commands("STOP")) + len(rig.fake.commands("BSTOP")) <= 2
    assert rig.tokens() == list(b"Hello")


def test_the_limit_is_that_of_both_parts(make: MakeRig) -> None:
    rig = make(thinker(answer=ENDLESS))
    outcome = run(rig, After(4, PUT_IN), max_tokens=10)
    assert bytes(outcome.tokens) == b"xxxx</>xxx"
    assert outcome.terminal == Finished("length", Usage(1, 10))


def test_an_engine_that_cannot_stop_does_not_make_what_nobody_gets(make: MakeRig) -> None:
    rig = make(thinker(can_stop=False))
    outcome = run(rig, After(4, PUT_IN), max_tokens=2_000)
    assert bytes(outcome.tokens) == b"xxxx</>So."
    assert [command.raw.split()[1] for command in rig.fake.commands("GEN")] == ["4", "1993"]
    assert rig.fake.commands("STOP") == []


def test_no_other_request_gets_in_between(make: MakeRig) -> None:
    rig = make(thinker({"text": "x"}, {"cue": "on"}))
    stream = open_(rig, After(3, PUT_IN))
    read_tokens(stream, 1)
    waiting = rig.open([66])
    next(waiting)  # it stands in the engine's queue
    rig.fake.cue("on")
    rest = [event.id for event in stream if isinstance(event, Token)]
    assert bytes(rest) == b"xx</>So."
    assert [event.id for event in waiting if isinstance(event, Token)] == list(b"Hello")
    assert [command.raw.split(",")[0].split()[-1] for command in rig.fake.commands("GEN")] == ["63", "63", "66"]


@pytest.mark.parametrize("where", ["at the cut", "in the second part"])
@pytest.mark.parametrize(
    ("steps", "kind", "says"),
    [
        ([{"exit": 3}], FailKind.DIED, "exit code 3"),
        ([{"line": "T x"}], FailKind.PROTOCOL, "damaged"),
        ([{"err": "verify: timed out at layer 18"}], FailKind.DIED, "layer 18"),
        ([{"stall": True}], FailKind.SILENT, "0.5 s"),
    ],
    ids=["exit", "damaged", "fatal", "silent"],
)
def test_an_engine_that_fails_in_either_part_fails_the_answer(
    make: MakeRig, where: str, steps: Steps, kind: FailKind, says: str
) -> None:
    if where == "at the cut":
        values = script(
            cast("Steps", {"match": "?", "steps": [{"text": "xxx", "burst": True}, *steps]}), ignore=["STOP"]
        )
    else:
        values = thinker(answer=[{"text": "S"}, *steps])
    rig = make(values, silence_s=0.5)
    outcome = run(rig, After(3, PUT_IN))
    assert outcome.failed.kind is kind
    assert says in outcome.failed.message
    made = b"xxx</>" if where == "at the cut" else b"xxx</>S"
    assert bytes(outcome.tokens) == made
    assert outcome.failed.usage == Usage(1, len(made))
    assert rig.tokens() == list(b"Hello")


@pytest.mark.parametrize("how", ["cancel", "leave"])
@pytest.mark.parametrize("slots", [0, 2])
def test_who_leaves_after_the_cut_holds_up_nobody(make: MakeRig, how: str, slots: int) -> None:
    rig = make(thinker(answer=[{"text": "S"}, {"stall": True}], batch_slots=slots))
    cancel = Cancel()
    stream = open_(rig, After(2, PUT_IN), cancel)
    assert bytes(read_tokens(stream, 6)) == b"xx</>S"
    if how == "cancel":
        cancel.cancel("operator")
        rest = list(stream)
        assert rest[-1] == Cancelled("operator", Usage(1, 6))
    else:
        stream.close()
    wait_until(lambda: rig.engine.status().finishing == rig.engine.status().active == 0, "the engine is free")
    assert rig.tokens() == list(b"Hello")
    assert len(rig.fake.pids()) == 1
