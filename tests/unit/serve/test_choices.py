"""Several prompts, one after the other: each begins when the one before it ended well, and all are counted."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from engine.events import (
    Accepted,
    Cancelled,
    Event,
    Failed,
    FailKind,
    Finished,
    OfChoice,
    Text,
    Tick,
    Timings,
    Usage,
)
from serve.choices import Answer, in_turn


class Engine:
    """Answers that note when they begin and when they are closed."""

    def __init__(self, *answers: list[Event]) -> None:
        self.log: list[str] = []
        self.answers: list[Answer] = [self._answer(i, events) for i, events in enumerate(answers)]

    def _answer(self, number: int, events: list[Event]) -> Answer:
        def answer() -> Generator[Event, None, None]:
            self.log.append(f"begin {number}")
            try:
                yield from events
            finally:
                self.log.append(f"close {number}")

        return answer


A: list[Event] = [Accepted(), Tick(), Text("a"), Finished("length", Usage(2, 3, 1))]
B: list[Event] = [Accepted((("x", "y"),)), Text("b"), Finished("stop", Usage(4, 5))]


def test_each_prompt_is_a_choice_and_the_counts_are_those_of_all() -> None:
    engine = Engine(A, B)
    assert list(in_turn(engine.answers, 1)) == [
        Accepted(),
        Tick(),
        OfChoice(0, Text("a")),
        OfChoice(0, Finished("length", Usage(2, 3, 1))),
        OfChoice(1, Text("b")),
        OfChoice(1, Finished("stop", Usage(4, 5))),
        Finished("stop", Usage(6, 8, 1)),
    ]
    assert engine.log == ["begin 0", "close 0", "begin 1", "close 1"]


def test_answers_of_several_choices_each_have_their_places() -> None:
    two: list[Event] = [OfChoice(1, Text("b")), OfChoice(0, Finished("stop")), OfChoice(1, Finished("length"))]
    engine = Engine([*two, Finished("stop", Usage(1, 2))], [*two, Finished("stop")])
    events = list(in_turn(engine.answers, 2))
    assert [event.index for event in events if isinstance(event, OfChoice)] == [1, 0, 1, 3, 2, 3]
    assert events[-1] == Finished("stop", Usage(1, 2))


@pytest.mark.parametrize("end", [Failed(FailKind.DIED, "x", Usage(4, 1)), Cancelled("client", Usage(4, 1))])
def test_one_that_fails_ends_the_answer_and_none_after_it_begins(end: Failed | Cancelled) -> None:
    engine = Engine(A, [Text("b"), end], B)
    events = list(in_turn(engine.answers, 1))
    assert events[-2:] == [OfChoice(1, Text("b")), type(end)(*_without_usage(end), Usage(6, 4, 1))]  # type: ignore[arg-type] - the fields before the counts
    assert engine.log == ["begin 0", "close 0", "begin 1", "close 1"]


def _without_usage(end: Failed | Cancelled) -> tuple[object, ...]:
    return (end.kind, end.message) if isinstance(end, Failed) else (end.by,)


def test_one_without_a_terminal_ends_it_without_one() -> None:
    assert list(in_turn(Engine(A, [Text("b")], B).answers, 1))[-1] == OfChoice(1, Text("b"))


def test_a_word_for_calls_is_no_ending_of_a_text() -> None:
    end = list(in_turn(Engine([Text("a"), Finished("tool_calls")], B).answers, 1))[-1]
    assert isinstance(end, Failed)
    assert end.kind is FailKind.PROTOCOL


def test_a_reader_that_leaves_closes_the_answer_that_runs() -> None:
    engine = Engine(A, B)
    events = in_turn(engine.answers, 1)
    next(events)
    events.close()
    assert engine.log == ["begin 0", "close 0"]


def test_the_clock_is_that_of_all_prompts_where_each_tells_it() -> None:
    a = Usage(2, 3, 1, timings=Timings(1, 1.0, 3, 30.0, 1, 4, 2))
    b = Usage(4, 5, timings=Timings(4, 2.0, 5, 50.0, 0, 6, 5))
    together = Timings(5, 3.0, 8, 80.0, 1, 10, 7)
    for counts, timings in (((a, b), together), ((a, Usage(4, 5)), None), ((Usage(2, 3), b), None), ((a,), a.timings)):
        answers: list[list[Event]] = [[Accepted(), Finished("stop", usage)] for usage in counts]
        *_, last = in_turn(Engine(*answers).answers, 1)
        assert isinstance(last, Finished)
        assert last.usage is not None
        assert last.usage.timings == timings
