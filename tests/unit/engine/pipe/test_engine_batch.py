"""The pipe engine: batch slots side by side, and many requests at once; a real process."""

from __future__ import annotations

from typing import Any

import pytest

from engine.events import Accepted, FailKind, Finished, Usage
from tests.unit.engine.pipe.conftest import MakeRig
from tests.unit.engine.pipe.rig import (
    GOOD,
    HELLO,
    Consumer,
    Steps,
    lives,
    read_tokens,
    read_until,
    script,
)
from tests.unit.engine.supervisor.recorder import wait_until

# --- batch slots -------------------------------------------------------------------------------------


def test_requests_run_side_by_side_in_slots(make: MakeRig) -> None:
    rig = make({"batch_slots": 4, "requests": [[{"echo": True, "pace_s": 0.002}]]})
    rig.engine.start()
    assert rig.engine.facts.slots == 4
    prompts = [[65 + n] * (20 + n) for n in range(10)]
    consumers = [Consumer(rig, prompt) for prompt in prompts]
    for prompt, consumer in zip(prompts, consumers, strict=True):
        outcome = consumer.outcome()
        assert outcome.tokens == prompt
        assert outcome.terminal == Finished("stop", Usage(len(prompt), len(prompt)))
    assert {command.slot for command in rig.fake.commands("BGEN")} == {0, 1, 2, 3}
    assert rig.fake.commands("GEN") == []


def test_two_requests_are_truly_at_work_at_the_same_time(make: MakeRig) -> None:
    rig = make({"batch_slots": 2, "requests": [[{"text": "a"}, {"text": "b"}, {"cue": "both"}, {"text": "c"}]]})
    consumers = [Consumer(rig) for _ in range(2)]
    for consumer in consumers:
        consumer.wait_tokens(2)
    assert rig.engine.status().active == 2
    rig.fake.cue("both")
    assert [consumer.outcome().tokens for consumer in consumers] == [list(b"abc")] * 2


def test_parallel_limits_the_slots_and_one_means_solo(make: MakeRig) -> None:
    two, solo = make(script(batch_slots=4), parallel=2), make(script(batch_slots=4), parallel=1)
    assert two.tokens() == solo.tokens() == HELLO
    assert (two.engine.facts.slots, solo.engine.facts.slots) == (2, 1)
    assert two.fake.commands("BGEN")
    assert solo.fake.commands("GEN")


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_the_token_limit_in_a_slot(make: MakeRig, max_tokens: int) -> None:
    rig = make(script(batch_slots=2))
    outcome = rig.run(max_tokens=max_tokens)
    assert outcome.tokens == HELLO[:max_tokens]
    assert outcome.terminal == Finished("length", Usage(1, max_tokens))


@pytest.mark.parametrize("when", ["admission", "slot"])
def test_leaving_one_slot_leaves_the_others_alone(make: MakeRig, when: str) -> None:
    first: Steps = [{"text": "a"}, {"text": "b"}, {"cue": "end"}, {"text": "c"}]
    left: Steps = [{"stall": True}] if when == "admission" else [{"text": "xy"}, {"stall": True}]
    rig = make(script(first, left, batch_slots=2))
    keeps = Consumer(rig, [1])
    keeps.wait_tokens(2)
    leaves = rig.open([2])
    read_until(leaves, Accepted)
    read_tokens(leaves, 0 if when == "admission" else 2)
    leaves.close()
    wait_until(lambda: rig.engine.status().finishing == 0, "the slot is free")
    assert rig.tokens([3]) == HELLO
    rig.fake.cue("end")
    assert keeps.outcome().tokens == list(b"abc")
    assert len(rig.fake.pids()) == 1
    stops = [command.raw for command in rig.fake.commands() if command.name in ("STOP", "BSTOP")]
    assert stops == (["STOP"] if when == "admission" else ["BSTOP 1"])


def test_a_refused_admission_leaves_the_others_alone(make: MakeRig) -> None:
    rig = make(script([{"text": "a"}, {"text": "b"}, {"cue": "end"}, {"text": "c"}], [{"err": "no"}], batch_slots=2))
    keeps = Consumer(rig)
    keeps.wait_tokens(2)
    assert rig.run().failed.kind is FailKind.REFUSED
    rig.fake.cue("end")
    assert keeps.outcome().tokens == list(b"abc")
    assert len(rig.fake.pids()) == 1


BATCH_DEATHS: dict[str, tuple[Steps, FailKind]] = {
    "exit": ([{"exit": 7}], FailKind.DIED),
    "fatal": ([{"err": "verify batch: timed out at layer 18"}], FailKind.DIED),
    "damaged": ([{"line": "BT x"}], FailKind.PROTOCOL),
    "silent": ([{"stall": True}], FailKind.SILENT),
}


@pytest.mark.parametrize("case", BATCH_DEATHS)
def test_a_death_ends_every_slot_each_with_its_own_failure(make: MakeRig, case: str) -> None:
    steps, kind = BATCH_DEATHS[case]
    waits: Steps = [{"text": "ab"}, {"stall": True}]
    dies: Steps = [{"text": "xyz"}, {"cue": "die"}, *steps]
    rig = make(lives(script(waits, dies, batch_slots=2)), silence_s=1.0 if case == "silent" else 300.0)
    consumers = [Consumer(rig, [1])]
    consumers[0].wait_tokens(2)
    consumers.append(Consumer(rig, [1, 2]))
    consumers[1].wait_tokens(3)
    rig.fake.cue("die")
    outcomes = [consumer.outcome() for consumer in consumers]
    assert [outcome.failed.kind for outcome in outcomes] == [kind] * 2
    assert [outcome.failed.usage for outcome in outcomes] == [Usage(1, 2), Usage(2, 3)]
    assert rig.tokens() == HELLO


# --- many at once ------------------------------------------------------------------------------------


def test_random_ends_of_many_requests_are_all_told_and_leave_nothing(make: MakeRig) -> None:
    faults: list[Steps] = [
        [{"text": "He"}, {"exit": 1}],
        [{"text": "He"}, {"err": "CUDA error 700"}, {"done": "error"}],
        [{"text": "He"}, {"line": "T x"}],
        [{"text": "He"}, {"err": "no"}],
        [{"exit": 2}],
        [{"text": "He"}, {"done": "stop", "generated": 7}],
    ]
    rules: list[Any] = [{"match": chr(65 + n), "steps": steps} for n, steps in enumerate(faults)]
    rig = make({"requests": [*rules, {"match": "z", "steps": GOOD}]})
    kinds = [FailKind.DIED, FailKind.DIED, FailKind.PROTOCOL, FailKind.ERR, FailKind.DIED, FailKind.PROTOCOL]
    for round_ in range(4):
        consumers = [Consumer(rig, [65 + (n + round_) % 7 if (n + round_) % 7 < 6 else ord("z")]) for n in range(7)]
        for n, consumer in enumerate(consumers):
            case = (n + round_) % 7
            outcome = consumer.outcome()
            if case == 6:
                assert outcome.tokens == HELLO
            else:
                assert outcome.failed.kind is kinds[case], (case, outcome)
    assert rig.tokens([ord("z")]) == HELLO
