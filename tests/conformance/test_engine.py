"""What holds for every engine, whatever its kind: one suite over all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias, cast

import pytest

from engine.api import Cancel, EngineDied
from engine.events import (
    Accepted,
    Cancelled,
    EngineEvent,
    Failed,
    Finished,
    Progress,
    Reasoning,
    Terminal,
    Text,
    Tick,
    Token,
)
from tests.conformance.chat_rigs import LLAMA, MANAGED, POOL, UPSTREAM
from tests.conformance.rigs import EXPECTED, RIGS, Rig, RigFactory, Situation

Make: TypeAlias = Callable[[Situation], Rig]

PIECES = (Token, Text, Reasoning)


@pytest.fixture(
    params=[*RIGS, UPSTREAM, POOL, MANAGED, pytest.param(LLAMA, marks=pytest.mark.llama)],
    ids=lambda factory: factory.name,
)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    factory = cast("RigFactory", request.param)
    with ExitStack() as stack:

        def build(situation: Situation) -> Rig:
            if situation not in factory.situations:
                pytest.skip(f"{factory.name} cannot be made: {situation}")
            return stack.enter_context(factory.make(situation, tmp_path))

        yield build


def opened(rig: Rig, cancel: Cancel | None = None) -> Generator[EngineEvent, None, None]:
    return cast("Generator[EngineEvent, None, None]", rig.engine.stream(rig.request(), cancel or Cancel()))


def checked(events: list[EngineEvent]) -> Terminal:
    """The terminal of a whole stream that has the form that every stream has."""
    terminals = [event for event in events if isinstance(event, Finished | Cancelled | Failed)]
    assert len(terminals) == 1, terminals
    assert isinstance(events[-1], Finished | Cancelled | Failed)
    assert events.count(Accepted()) <= 1
    said = [at for at, event in enumerate(events) if isinstance(event, (*PIECES, Progress))]
    assert not said or Accepted() in events[: said[0]]
    return terminals[0]


def answer(rig: Rig) -> Terminal:
    return checked(list(opened(rig)))


def read_piece(stream: Generator[EngineEvent, None, None]) -> list[EngineEvent]:
    """The events up to the first piece of the answer; the stream stays open."""
    events: list[EngineEvent] = []
    for event in iter(lambda: next(stream), None):
        events.append(event)
        if isinstance(event, PIECES):
            break
    return events


def test_a_good_answer_is_finished_with_usage(make: Make) -> None:
    rig = make("answers")
    events = list(opened(rig))
    terminal = checked(events)
    assert isinstance(terminal, Finished)
    assert terminal.reason == "stop"
    pieces = [event for event in events if isinstance(event, PIECES)]
    assert pieces
    assert terminal.usage is not None
    assert terminal.usage.completion_tokens >= 1
    assert terminal.usage.prompt_tokens >= 1
    assert rig.engine.alive()
    assert rig.engine.status().state == "ready"


def test_the_token_limit_is_length(make: Make) -> None:
    terminal = answer(make("limit"))
    assert isinstance(terminal, Finished)
    assert terminal.reason == "length"


@pytest.mark.parametrize("situation", EXPECTED)
def test_a_failure_is_told_truly_and_the_next_request_works(make: Make, situation: Situation) -> None:
    rig = make(situation)
    terminal = answer(rig)
    assert isinstance(terminal, Failed)
    assert terminal.kind in EXPECTED[situation]
    assert terminal.message
    assert "\n" not in terminal.message
    following = answer(rig)
    assert isinstance(following, Finished)
    assert following.reason == "stop"


def test_a_cancel_is_cancelled_by_who_asked_and_the_next_request_works(make: Make) -> None:
    rig = make("never ends")
    cancel = Cancel()
    stream = opened(rig, cancel)
    events = read_piece(stream)
    cancel.cancel("operator")
    terminal = checked([*events, *stream])
    assert isinstance(terminal, Cancelled)
    assert terminal.by == "operator"
    assert isinstance(answer(rig), Finished)


def test_a_cancel_before_the_first_event(make: Make) -> None:
    rig = make("answers")
    cancel = Cancel()
    cancel.cancel("deadline")
    events = list(opened(rig, cancel))
    assert isinstance(checked(events), Cancelled)
    assert not any(isinstance(event, PIECES) for event in events)


def test_leaving_early_does_not_raise_and_the_next_request_works(make: Make) -> None:
    rig = make("never ends")
    stream = opened(rig)
    read_piece(stream)
    stream.close()
    assert list(stream) == []
    assert isinstance(answer(rig), Finished)


def test_leaving_before_the_first_event_does_not_raise(make: Make) -> None:
    rig = make("answers")
    opened(rig).close()
    stream = opened(rig)
    next(stream)
    stream.close()


def test_quiet_ticks(make: Make) -> None:
    rig = make("silent")
    assert Tick() in list(opened(rig))


def test_requests_at_once_all_end(make: Make) -> None:
    rig = make("answers")
    terminals: list[Terminal] = []
    threads = [threading.Thread(target=lambda: terminals.append(answer(rig))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(terminal) for terminal in terminals] == [Finished] * 6
    status = rig.engine.status()
    assert (status.active, status.finishing) == (0, 0)


def test_start_makes_it_alive_and_a_second_start_does_nothing(make: Make) -> None:
    rig = make("answers")
    rig.engine.start()
    rig.engine.start()
    assert rig.engine.alive()
    assert rig.engine.facts.slots >= 1


def test_a_start_that_fails_raises(make: Make) -> None:
    rig = make("cannot start")
    with pytest.raises(EngineDied):
        rig.engine.start()
    assert not rig.engine.alive()


def test_a_closed_engine_fails_every_request_and_closing_again_does_nothing(make: Make) -> None:
    rig = make("answers")
    rig.engine.start()
    rig.engine.close()
    rig.engine.close()
    assert not rig.engine.alive()
    assert isinstance(answer(rig), Failed)


def test_closing_ends_the_answers_that_run(make: Make) -> None:
    rig = make("never ends")
    stream = opened(rig)
    events = read_piece(stream)
    rig.engine.close()
    assert isinstance(checked([*events, *stream]), Failed)
