"""Strata's own names: the raising generator, the facts, the constructor that blocks."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from engine.api import Cancel, EngineDied, EngineFault, EngineProtocol, EngineRefused, EngineSilent, EngineStarting
from engine.events import FailKind
from engine.fake.harness import FakeEngine
from engine.pipe import StrataEngine, strata
from tests.unit.engine.pipe.conftest import MakeRig
from tests.unit.engine.pipe.rig import GOOD, HELLO, Steps, lives, script


def test_generate_gives_the_ids_and_ends(make: MakeRig) -> None:
    engine = make(script()).engine
    assert list(engine.generate([1], 8, {"temperature": 0.5}, threading.Event())) == HELLO
    assert list(engine.generate([1], 8)) == HELLO
    assert engine.last["generated"] == 5
    assert engine.last["finish"] == "stop"


def test_sampling_goes_to_the_engine_in_its_own_words(make: MakeRig) -> None:
    rig = make(script())
    list(rig.engine.generate([7, 8], 9, {"temperature": 0.5, "top_k": 3}))
    assert rig.fake.wait_command("GEN").raw == "GEN 9 temperature=0.5 top_k=3 7,8"


RAISES: dict[str, tuple[Steps, type[Exception], FailKind]] = {
    "exit": ([{"exit": 7}], EngineDied, FailKind.DIED),
    "fatal": ([{"err": "CUDA error 700"}], EngineDied, FailKind.DIED),
    "refusal": ([{"err": "no"}], EngineRefused, FailKind.REFUSED),
    "context": ([{"err": "prompt exceeds context"}], EngineRefused, FailKind.CONTEXT),
    "err": ([{"text": "H"}, {"err": "no"}], EngineFault, FailKind.ERR),
    "protocol": ([{"line": "T x"}], EngineProtocol, FailKind.PROTOCOL),
    "silent": ([{"stall": True}], EngineSilent, FailKind.SILENT),
}


@pytest.mark.parametrize("case", RAISES)
def test_a_failure_raises_with_stratas_classes(make: MakeRig, case: str) -> None:
    steps, error_class, kind = RAISES[case]
    engine = make(lives(script(steps)), silence_s=0.3 if case == "silent" else 300.0).engine
    with pytest.raises(error_class) as caught:
        list(engine.generate([1], 8, {}, threading.Event()))
    assert getattr(caught.value, "kind") is kind  # noqa: B009 - a parametrized class
    assert isinstance(caught.value, EngineDied | ValueError)
    assert list(engine.generate([1], 8, {}, threading.Event())) == HELLO


def test_what_came_before_the_failure_is_given_first(make: MakeRig) -> None:
    engine = make(script([{"text": "He"}, {"exit": 7}])).engine
    found: list[int | None] = []
    with pytest.raises(EngineDied, match="exit code 7"):
        for token in engine.generate([1], 8):
            found.append(token)
    assert found == list(b"He")
    assert engine.exit_code() == 7
    assert "exit code 7" in engine.death_note()


def test_a_set_event_ends_it_and_stops_the_engine(make: MakeRig) -> None:
    rig = make(script([{"text": "He"}, {"stall": True}]))
    for cancel in (threading.Event(), Cancel()):
        tokens = rig.engine.generate([1], 8, {}, cancel)
        assert [next(tokens), next(tokens)] == list(b"He")
        cancel.set()
        assert list(tokens) == []
        break
    assert list(rig.engine.generate([1], 8)) == HELLO
    assert len(rig.fake.commands("STOP")) == 1


def test_closing_the_generator_stops_the_engine(make: MakeRig) -> None:
    rig = make(script([{"text": "He"}, {"stall": True}]))
    tokens = rig.engine.generate([1], 8)
    next(tokens)
    tokens.close()  # type: ignore[attr-defined]  # a generator behind its Iterator type
    assert list(rig.engine.generate([1], 8)) == HELLO
    assert len(rig.fake.commands("STOP")) == 1


def test_quiet_gives_a_heartbeat(make: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strata, "HEARTBEAT_S", 0.15)
    rig = make(script([{"text": "H"}, {"cue": "go"}, {"text": "i"}]))
    tokens = rig.engine.generate([1], 8)
    assert next(token for token in tokens if token is not None) == ord("H")  # a slow start beats, too
    assert [next(tokens), next(tokens)] == [None, None]
    rig.fake.cue("go")
    assert [token for token in tokens if token is not None] == [ord("i")]


def test_the_facts_have_stratas_names(make: MakeRig) -> None:
    engine = make(script(GOOD, info={"arena_mib": 512}, context=2048)).engine
    assert engine.info == {}
    assert engine.max_context is None
    assert engine.last == {}
    assert (engine.death_note(), engine.exit_code()) == ("", None)
    engine.start()
    assert engine.info["arena_mib"] == "512"
    assert engine.info.get("nothing") is None
    assert (engine.max_context, engine.can_stop, engine.progress) == (2048, True, None)
    assert engine.facts.max_context == 2048


def test_the_facts_of_a_life_hold_until_the_next_one_is_ready(make: MakeRig) -> None:
    first = script(context=2048, info={"arena_mib": 1}, batch_slots=2)
    second = script(start=[{"line": "INFO arena_mib=2"}, {"cue": "load"}], info={"arena_mib": 3}, context=1024)
    rig = make({"lives": [first, second]})
    engine = rig.engine
    assert list(engine.generate([1], 8)) == HELLO
    engine.unload()
    stream = rig.open()
    next(stream)
    rig.fake.wait_life(2)
    next(stream)
    assert (engine.facts.slots, engine.max_context, engine.info["arena_mib"]) == (2, 2048, "1")
    assert (engine.last["finish"], engine.last["generated"]) == ("stop", 5)
    rig.fake.cue("load")
    list(stream)
    assert (engine.facts.slots, engine.max_context, engine.info["arena_mib"]) == (1, 1024, "3")
    assert engine.last["prompt_tokens"] == 1


def test_without_lazy_the_constructor_blocks_until_ready(tmp_path: Path) -> None:
    fake = FakeEngine(script(), tmp_path)
    engine = StrataEngine(fake.exe, fake.args)
    try:
        assert engine.alive()
        assert engine.facts.kind == "strata"
    finally:
        engine.close()
    assert not engine.alive()
    assert engine.exit_code() == 0


def test_without_lazy_a_failed_start_raises_and_leaves_nothing(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    fake = FakeEngine({"start": [{"stderr": "no GPU"}, {"exit": 3}]}, tmp_path)
    with pytest.raises(EngineStarting, match=r"exit code 3.*no GPU"):
        StrataEngine(fake.exe, fake.args)
    with pytest.raises(EngineDied, match="no-such-engine"):
        StrataEngine("/no-such-engine", [])
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert set(threading.enumerate()) <= before


def test_folder_log_and_environment_reach_the_engine(tmp_path: Path) -> None:
    code = (
        "import os, sys\nprint(os.getcwd(), os.environ['WORD'], sys.argv[1:], file=sys.stderr, flush=True)\n"
        "print('READY 4096', flush=True)\nsys.stdin.readline()\n"
    )
    log = tmp_path / "engine.log"
    exe = [sys.executable, "-S", "-c", code]
    engine = StrataEngine(exe, ["--x", "y"], str(tmp_path), str(log), {"WORD": "grün", "PYTHONUTF8": "1"})
    engine.close()
    assert log.read_text(encoding="utf-8").split("\n")[0] == f"{tmp_path} grün ['--serve', '--x', 'y']"


def test_a_closed_engine_raises_until_it_is_restarted(make: MakeRig) -> None:
    rig = make(script())
    rig.engine.start()
    rig.engine.close()
    with pytest.raises(EngineDied, match="closed"):
        list(rig.engine.generate([1], 8))
    assert rig.fake.commands("GEN") == []
    rig.engine.restart()
    assert list(rig.engine.generate([1], 8)) == HELLO
