"""Answers that are kept: what is read of them, live and later, here and from another process's store."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from engine.api import Cancel
from engine.events import (
    Accepted,
    Cancelled,
    Event,
    Failed,
    FailKind,
    Finished,
    Passed,
    Progress,
    Text,
    Tick,
    ToolCallStart,
    Usage,
)
from engine.terminal import sealed
from serve.entries import Beat, Ended, Entry
from serve.runs import Forgotten, Run, Runs, new_id
from serve.store import Record, Store

DEADLINE_S = 20.0
OK: tuple[Event, ...] = (Accepted(), Text("a"), Tick(), Text("b"), Finished("stop", Usage(1, 2)))


@contextmanager
def opened(path: Path) -> Generator[Runs, None, None]:
    runs = Runs(Store(path, max_age_s=1e6, max_bytes=2**30))
    try:
        yield runs
    finally:
        runs.close()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with opened(tmp_path / "store.db") as made:
        yield made


def record(background: bool = False) -> Record:
    return Record(new_id("resp_"), "response", 1.0, background, None, b"head", b"input")


def answer(run: Run, *events: Event) -> Generator[Event, None, None]:
    return sealed(iter(events), run.cancel, run.settle)


def waiting(run: Run, *events: Event) -> Generator[Event, None, None]:
    """The events, then ticks until the answer is cancelled."""

    def source() -> Iterator[Event]:
        yield from events
        while not run.cancel.wait(0.01):
            yield Tick()
        yield Cancelled(run.cancel.by, Usage(1, len(events)))

    return sealed(source(), run.cancel, run.settle)


def make(run: Run, events: Generator[Event, None, None], beat_s: float | None = None) -> list[Entry | Tick]:
    with closing(events):
        return list(run.entries(next(events), events, beat_s))


@contextmanager
def running(runs: Runs, background: bool = True) -> Generator[tuple[Run, threading.Event], None, None]:
    """An answer that is being made on a thread of its own until somebody cancels it; and the event of its end."""
    run = runs.new(record(background), Cancel())
    run.begin()
    events, over = waiting(run, Accepted(), Text("a")), threading.Event()

    def drive() -> None:
        make(run, events)
        over.set()

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield run, over
    finally:
        run.cancel.cancel("shutdown")
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def ended(entries: list[Entry]) -> Ended:
    last = entries[-1]
    assert isinstance(last, Ended)
    return last


def in_time(condition: Callable[[], bool]) -> bool:
    pause = threading.Event()
    return any(condition() or pause.wait(0.01) for _ in range(int(DEADLINE_S * 100)))


def test_an_answer_is_read_the_same_while_it_is_made_and_later(runs: Runs) -> None:
    run = runs.new(record(), Cancel())
    run.begin()
    events = answer(run, *OK)
    seen: list[Entry | Tick] = []
    with closing(events):
        for entry in run.entries(next(events), events):
            seen.append(entry)
            if not isinstance(entry, Ended):
                kept = runs.load(run.record.id)
                assert kept is not None
                assert not kept.ended
                assert kept.entries == [given for given in seen if not isinstance(given, Tick)]
    made = [entry for entry in seen if not isinstance(entry, Tick)]
    assert made[:-1] == [Accepted(), Text("a"), Text("b")]
    kept = runs.load(run.record.id)
    assert kept is not None
    assert kept.ended
    assert (kept.record, kept.entries) == (run.record, made)
    assert [entry for entry in runs.follow(run.record.id) if not isinstance(entry, Tick)] == made


def test_what_passes_is_kept_as_what_it_says_and_goes_on_as_it_came(runs: Runs) -> None:
    call = ToolCallStart(0, "call_1", "add")
    given: list[Event] = [
        Accepted((("x-request-id", "7"),)),
        Progress(1, 2),
        Passed(b"1", (Text("a"), Text("b"))),
        Passed(b"2"),
        Tick(),
        Passed(b"", (call,), held=b"3"),
        Finished("stop", Usage(1, 2), raw=b"theirs"),
    ]
    run = runs.new(record(), Cancel())
    run.begin()
    events = answer(run, *given)
    with closing(events):
        assert list(run.watched(next(events), events)) == given
    kept = runs.load(run.record.id)
    assert kept is not None
    assert kept.entries[:-1] == [Accepted(), Text("a"), Text("b"), call]
    assert ended(kept.entries).terminal == Finished("stop", Usage(1, 2))


def test_what_passes_is_watched_without_being_kept(runs: Runs) -> None:
    run = Runs().new(record(), Cancel())
    events = answer(run, Accepted(), Passed(b"1", (Text("a"),)), Finished("stop", raw=b"theirs"))
    with closing(events):
        assert len(list(run.watched(next(events), events))) == 3
    assert runs.load(run.record.id) is None


def test_without_begin_or_without_a_store_nothing_is_kept(runs: Runs) -> None:
    for owner in (runs, Runs()):
        run = owner.new(record(), Cancel())
        if owner is not runs:
            run.begin()
        made = make(run, answer(run, *OK))
        assert isinstance(made[-1], Ended)
        assert owner.load(run.record.id) is None
        assert not owner.delete(run.record.id)
    assert runs.keeps
    assert not Runs().keeps


def test_beats_are_entries_where_they_are_asked_for(runs: Runs) -> None:
    for beat_s, expected in ((0.0, Beat()), (None, Tick())):
        run = runs.new(record(), Cancel())
        run.begin()
        assert make(run, answer(run, *OK), beat_s)[2] == expected


def test_an_ending_that_cannot_be_saved_is_a_failure_for_everybody(runs: Runs, tmp_path: Path) -> None:
    run = runs.new(record(), Cancel())
    run.begin()
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
        other.execute("CREATE TRIGGER no BEFORE INSERT ON segments BEGIN SELECT RAISE(FAIL, 'no room'); END")
        made = make(run, answer(run, *OK))
        other.execute("DROP TRIGGER no")
    failed = ended([entry for entry in made if not isinstance(entry, Tick)]).terminal
    assert isinstance(failed, Failed)
    assert failed.kind is FailKind.STORE
    assert failed.usage == Usage(1, 2)
    kept = runs.load(run.record.id)
    assert kept is not None
    assert ended(kept.entries).terminal == failed
    with opened(tmp_path / "store.db") as other_process:

        def is_saved() -> bool:
            found = other_process.load(run.record.id)
            return found is not None and found.ended

        assert in_time(is_saved)
        found = other_process.load(run.record.id)
        assert found is not None
        assert ended(found.entries).terminal == failed


def test_an_answer_that_cannot_be_saved_any_more_is_ended_and_has_its_counts(runs: Runs) -> None:
    run = runs.new(record(), Cancel())
    run.begin()
    events = waiting(run, Accepted(), Text("a"))
    with closing(events):
        entries = run.entries(next(events), events)
        assert next(entries) == Accepted()
        run.journal.fault = "the answer could not be saved: disk full"
        *_, last = entries
    assert isinstance(last, Ended)
    failed = Failed(FailKind.STORE, "the answer could not be saved: disk full", Usage(1, 2))
    assert last.terminal == failed
    kept = runs.load(run.record.id)
    assert kept is not None
    assert kept.entries == [Accepted(), Text("a"), last], "the store works again by then"


def test_cancel_waits_for_the_true_end_and_twice_is_the_same(runs: Runs) -> None:
    with running(runs) as (run, over):
        kept = runs.cancel(run.record.id)
        assert kept is not None
        assert ended(kept.entries).terminal == Cancelled("operator", Usage(1, 2))
        assert over.wait(DEADLINE_S)
        assert runs.cancel(run.record.id) == kept
    assert runs.cancel("resp_unknown") is None


def test_deleting_ends_a_background_answer_and_leaves_a_clients_own_alone(runs: Runs) -> None:
    with running(runs, background=True) as (run, over):
        assert runs.delete(run.record.id)
        assert over.wait(DEADLINE_S)
        assert runs.load(run.record.id) is None
    with running(runs, background=False) as (run, over):
        assert runs.delete(run.record.id)
        assert runs.load(run.record.id) is None
        assert not run.cancel.is_set()
    assert runs.load(run.record.id) is None


def test_closing_waits_for_readers_but_not_for_answers_of_another_process(runs: Runs, tmp_path: Path) -> None:
    with opened(tmp_path / "store.db") as other, running(runs) as (run, _):
        entries = other.follow(run.record.id)
        assert next(entry for entry in entries if isinstance(entry, Text)) == Text("a")
        closing_ = threading.Thread(target=other.close)
        closing_.start()
        with pytest.raises(Forgotten):
            list(entries)
        closing_.join(DEADLINE_S)
        assert not closing_.is_alive()
    with opened(tmp_path / "store.db") as other, closing(other.follow(run.record.id)) as reader:
        assert next(reader) == Accepted()
        closed = threading.Event()

        def close() -> None:
            other.close()
            closed.set()

        threading.Thread(target=close).start()
        assert not closed.wait(0.2), "it does not wait for who reads what has ended"
        assert isinstance(list(reader)[-1], Ended)
        assert closed.wait(DEADLINE_S)


def test_another_process_follows_cancels_and_deletes(runs: Runs, tmp_path: Path) -> None:
    with opened(tmp_path / "store.db") as other:
        with running(runs) as (run, over):
            entries = other.follow(run.record.id)
            assert next(entry for entry in entries if isinstance(entry, Text)) == Text("a")
            kept = other.cancel(run.record.id)
            assert kept is not None
            assert ended(kept.entries).terminal == Cancelled("operator", Usage(1, 2))
            assert [entry for entry in entries if not isinstance(entry, Tick)] == [kept.entries[-1]]
        with running(runs) as (run, over):
            entries = other.follow(run.record.id)
            assert next(entry for entry in entries if isinstance(entry, Text)) == Text("a")
            assert other.delete(run.record.id)
            with pytest.raises(Forgotten):  # how it ended is not known here; whoever reads it is not left hanging
                list(entries)
            assert over.wait(DEADLINE_S)


def test_closing_waits_for_answers_that_are_being_settled(tmp_path: Path) -> None:
    with opened(tmp_path / "store.db") as runs, running(runs) as (run, _):
        threading.Timer(0.05, run.cancel.cancel, ("shutdown",)).start()
        runs.close()
    with opened(tmp_path / "store.db") as later:
        kept = later.load(run.record.id)
        assert kept is not None
        assert ended(kept.entries).terminal == Cancelled("shutdown", Usage(1, 2))


def test_ids_are_long_and_never_alike() -> None:
    ids = {new_id("resp_") for _ in range(1_000)}
    assert len(ids) == 1_000
    assert {len(id_) for id_ in ids} == {5 + 48}
