"""An engine that is touched in mid-answer: what is an occasion, and what is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.tools.conform_checks.honest import Lie
from tests.unit.tools.conform_checks.rig import IMPATIENT, bench_of
from tools.conform_checks.check import NotSeen
from tools.conform_checks.faults import CHECKS
from tools.conform_checks.hand import Hand
from tools.conform_checks.scenes import killed_stream, stalled_stream
from tools.conform_checks.score import judge
from tools.conform_checks.talk import Talk

BY_ID = {check.id: check for check in CHECKS}
PATIENT = Lie("", engine={"silence_s": 60.0})


def test_stream_whose_engine_goes_on_is_whole() -> None:
    with bench_of(PATIENT, settings=IMPATIENT) as bench:
        assert judge(bench, BY_ID["stalled-goes-on"], "chat").result == "passed"
        talk = stalled_stream(bench, "chat").talk
    assert (talk.telling.finish, talk.telling.error) == ("length", None)
    assert talk.telling.heartbeats.count > 0


def test_without_a_hand_nothing_is_killed_or_halted() -> None:
    with bench_of(settings=IMPATIENT) as bench:
        bench.hand = Hand()
        results = {check.id: judge(bench, check, "chat") for check in CHECKS if "chat" in check.scopes}
    assert {cell.result for cell in results.values()} == {"not seen"}
    assert "--engine-pid" in results["killed-told"].text


def test_engine_that_is_the_server_cannot_tell_of_its_death() -> None:
    with bench_of(settings=IMPATIENT) as bench:
        bench.hand = replace(bench.hand, is_server=True)
        with pytest.raises(NotSeen, match="is the server itself"):
            killed_stream(bench, "chat")
        with pytest.raises(NotSeen, match="is the server itself"):
            stalled_stream(bench, "chat")


def test_kill_that_kills_nothing_is_no_occasion() -> None:
    """The answer is as long as one that nobody touches."""
    with bench_of(Lie("", engine={"pieces": 20, "pace_s": 0.001}), settings=IMPATIENT) as bench:
        bench.hand = Hand(kill=lambda: None)
        cells = [judge(bench, BY_ID[name], "chat") for name in ("killed-no-success", "killed-body-no-success")]
    assert [cell.result for cell in cells] == ["not seen", "not seen"]


@pytest.mark.parametrize("at_once", [True, False])
def test_engine_is_let_go_on_when_somebody_stops_us(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench_of(PATIENT, settings=IMPATIENT) as bench:
        stall, resume = bench.hand.stall, bench.hand.resume
        assert stall is not None
        assert resume is not None
        told: list[str] = []

        def halt() -> None:
            stall()
            told.append("halted")
            if at_once:
                raise KeyboardInterrupt
            monkeypatch.setattr(Talk, "wait", stopped)

        def go_on() -> None:
            resume()
            told.append("goes on")

        bench.hand = Hand(stall=halt, resume=go_on)
        with pytest.raises(KeyboardInterrupt):
            stalled_stream(bench, "chat")
        assert told == ["halted", "goes on"]


def stopped(*_: object) -> bool:
    raise KeyboardInterrupt


def test_halt_that_halts_nothing_is_no_occasion() -> None:
    with bench_of(Lie("", engine={"pieces": 400, "pace_s": 0.002}), settings=IMPATIENT) as bench:
        bench.hand = Hand(stall=lambda: None, resume=lambda: None)
        cell = judge(bench, BY_ID["stalled-goes-on"], "chat")
    assert cell.result == "not seen"
    assert "halted nothing" in cell.text
