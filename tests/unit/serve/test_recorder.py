"""The thread that writes: what is on disk when, what fails, and what is tried again."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from engine.api import failed_of
from engine.events import Cancelled, Failed, FailKind, Finished, Text, Tick
from serve import database
from serve import recorder as recorder_module
from serve.entries import Ended, Entry
from serve.journal import Journal
from serve.lifecycle import StoreFailed
from serve.recorder import EVERY_S, Recorder
from serve.store import Record, Store, StoreError, Write
from tests.unit.serve.stored import (
    DEADLINE_S,
    END,
    YEAR_S,
    lost,
    opened,
    record,
    small_disk,
    stored,
    terminal,
    texts,
    wait_until,
    write,
)

NEVER_S = 3_600.0
"""A period that no test waits for: what is written then was not written by the clock."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Store:
    return Store(path, max_age_s=100 * YEAR_S, max_bytes=2**40)


@pytest.fixture
def reader(path: Path) -> Iterator[Store]:
    """What another process sees."""
    with opened(path) as made:
        yield made


@pytest.fixture
def cancelled() -> list[str]:
    return []


@pytest.fixture
def recorder(store: Store, cancelled: list[str]) -> Iterator[Recorder]:
    with closing(Recorder(store, every_s=0.01, on_cancel=cancelled.append)) as made:
        yield made


@pytest.fixture
def lazy(store: Store) -> Iterator[Recorder]:
    with closing(Recorder(store, every_s=NEVER_S, on_cancel=lambda id_: None)) as made:
        yield made


def fill(journal: Journal, entries: Sequence[Entry]) -> None:
    for entry in entries:
        assert not isinstance(entry, Ended)
        journal.append(entry)


def saved(store: Store, id_: str = "r1") -> list[Entry]:
    found = store.entries_from(id_, 0)
    assert found is not None
    return found[0]


def in_threads(count: int, job: Callable[[int], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=job, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


# --- what is on disk when ----------------------------------------------------------------------------


def test_a_begun_record_is_on_disk(lazy: Recorder, reader: Store) -> None:
    lazy.begin(record(), Journal())
    assert stored(reader).record == record()
    assert not stored(reader).ended


def test_what_was_made_is_soon_on_disk_while_it_runs(recorder: Recorder, reader: Store) -> None:
    journal = Journal()
    recorder.begin(record(), journal)
    for first in range(0, 30, 10):
        fill(journal, texts(10, first))
        wait_until(lambda: saved(reader) == journal.since(0), "what was made is on disk")
    assert journal.fault is None
    assert journal.ended is None


def test_by_default_that_takes_less_than_a_second() -> None:
    assert EVERY_S <= 0.9


def test_a_settled_answer_is_on_disk_as_a_whole(lazy: Recorder, reader: Store) -> None:
    journal = Journal()
    lazy.begin(record(), journal)
    fill(journal, texts(5))
    lazy.settle("r1", END)
    assert journal.since(0) == [*texts(5), END]
    assert (stored(reader).entries, stored(reader).ended) == ([*texts(5), END], True)


def test_no_reader_sees_an_end_that_is_not_on_disk(lazy: Recorder, reader: Store) -> None:
    on_disk: list[bool] = []

    def follow(journal: Journal) -> None:
        last = [item for item in journal.follow() if not isinstance(item, Tick)][-1]
        on_disk.append(isinstance(last, Ended) and stored(reader).ended)

    for number in range(20):
        journal = Journal()
        reader.delete("r1")
        lazy.begin(record(), journal)
        threads = in_threads(2, lambda _, journal=journal: follow(journal))
        fill(journal, texts(number))
        lazy.settle("r1", END)
        join(threads)
    assert on_disk == [True] * 40


def test_many_answers_at_once_do_not_mix(recorder: Recorder, reader: Store) -> None:
    def make(number: int) -> None:
        for turn in range(5):
            journal = Journal()
            recorder.begin(record(f"r{number}.{turn}"), journal)
            fill(journal, texts(40, number))
            recorder.settle(f"r{number}.{turn}", END)

    join(in_threads(8, make))
    for id_ in (f"r{number}.{turn}" for number in range(8) for turn in range(5)):
        assert stored(reader, id_).entries == [*texts(40, int(id_[1])), END]


class Gate(Store):
    """Counts its transactions; the first one waits until it is let through."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, max_age_s=100 * YEAR_S, max_bytes=2**40)
        self.calls: list[tuple[int, int]] = []
        self.entered = threading.Event()
        self.open = threading.Event()

    def write(self, begin: Sequence[Record], writes: Sequence[Write]) -> set[str]:
        self.calls.append((len(begin), len(writes)))
        self.entered.set()
        assert self.open.wait(DEADLINE_S)
        return super().write(begin, writes)


def test_who_comes_while_the_disk_is_busy_shares_the_next_transaction(path: Path, reader: Store) -> None:
    gate = Gate(path)
    with closing(Recorder(gate, every_s=NEVER_S, on_cancel=lambda id_: None)) as recorder:
        first = in_threads(1, lambda _: recorder.begin(record("first"), Journal()))
        assert gate.entered.wait(DEADLINE_S)
        others = in_threads(9, lambda number: recorder.begin(record(f"r{number}"), Journal()))
        jobs = recorder._jobs  # pyright: ignore[reportPrivateUsage]  # nothing else shows that all of them wait
        wait_until(lambda: len(jobs) == 9, "nine wait")
        gate.open.set()
        join([*first, *others])
        assert gate.calls == [(1, 0), (9, 0)]
        join(in_threads(9, lambda number: recorder.settle(f"r{number}", END)))
        assert sum(writes for _, writes in gate.calls) == 9
    assert all(stored(reader, f"r{number}").ended for number in range(9))


def test_an_answer_that_waits_for_more_text_writes_nothing(path: Path) -> None:
    gate = Gate(path)
    gate.open.set()
    with closing(Recorder(gate, every_s=0.001, on_cancel=lambda id_: None)) as recorder:
        quiet, busy = Journal(), Journal()
        recorder.begin(record("quiet"), quiet)
        recorder.begin(record("busy"), busy)
        for number in range(5):
            busy.append(Text(f" {number}"))
            wait_until(lambda number=number: len(saved(gate, "busy")) == number + 1, "it is on disk")
        assert gate.calls == [(1, 0)] * 2 + [(0, 1)] * 5


# --- what cannot be saved ----------------------------------------------------------------------------


def test_an_answer_that_cannot_be_begun_fails_and_is_not_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_disk(monkeypatch, 40)
    store = Store(path, max_age_s=100 * YEAR_S, max_bytes=2**40)
    with closing(Recorder(store, every_s=0.01, on_cancel=lambda id_: None)) as recorder:
        with pytest.raises(StoreFailed) as caught:
            recorder.begin(record(size=1_000_000), Journal())
        assert str(caught.value) == "the answer could not be saved: the disk is full (SQLITE_FULL)"
        assert failed_of(caught.value) == Failed(FailKind.STORE, str(caught.value))
        with pytest.raises(RuntimeError, match="'r1' is not kept"):
            recorder.settle("r1", END)
        recorder.begin(record("r2"), Journal())
        assert (store.load("r1"), stored(store, "r2").entries) == (None, [])


def test_a_full_disk_in_mid_answer_is_said_and_the_failure_is_saved_when_there_is_room(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder_module, "BACKOFF_S", 0.05)
    caplog.set_level(logging.INFO, "strata.store")
    room = small_disk(monkeypatch, 40)
    journal = Journal()
    store = Store(path, max_age_s=100 * YEAR_S, max_bytes=2**40)
    with closing(Recorder(store, every_s=0.01, on_cancel=lambda id_: None)) as recorder, opened(path) as reader:
        recorder.begin(record(), journal)
        fill(journal, [*texts(3), Text("x" * 1_000_000)])
        wait_until(lambda: journal.fault is not None, "the fault is said")
        assert journal.fault == "the answer could not be saved: the disk is full (SQLITE_FULL)"
        with pytest.raises(StoreFailed, match="the disk is full"):
            recorder.settle("r1", END)
        assert journal.ended is None
        failed = Ended(Failed(FailKind.STORE, "no room"), 6.0)
        recorder.give_up("r1", failed)
        assert (journal.ended, stored(reader).ended) == (failed, False)
        room(10_000)
        wait_until(lambda: stored(reader).ended, "the failure is saved")
        assert stored(reader).entries == journal.since(0)
        assert len(journal) == 5
        wait_until(lambda: not recorder.keeps("r1"), "nothing is left to be done")
    assert [text for text in caplog.messages if "saved" in text] == [
        "answers cannot be saved: the disk is full (SQLITE_FULL)",
        "answers can be saved again",
    ]


def test_a_fault_that_is_over_before_the_end_is_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "BACKOFF_S", 0.05)
    room = small_disk(monkeypatch, 40)
    journal = Journal()
    store = Store(path, max_age_s=100 * YEAR_S, max_bytes=2**40)
    with closing(Recorder(store, every_s=0.01, on_cancel=lambda id_: None)) as recorder:
        recorder.begin(record(), journal)
        journal.append(Text("x" * 1_000_000))
        wait_until(lambda: journal.fault is not None, "the fault is said")
        room(10_000)
        wait_until(lambda: journal.fault is None, "the fault is over")
        recorder.settle("r1", END)
        assert stored(store).entries == [Text("x" * 1_000_000), END]


def test_a_locked_file_fails_the_end_and_what_was_given_up_is_saved_with_the_next_answer(
    path: Path, monkeypatch: pytest.MonkeyPatch, reader: Store
) -> None:
    """Without waiting for the clock."""
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    store = Store(path, max_age_s=100 * YEAR_S, max_bytes=2**40)
    recorder = Recorder(store, every_s=NEVER_S, on_cancel=lambda id_: None)
    with closing(recorder), closing(sqlite3.connect(path, isolation_level=None)) as other:
        journal = Journal()
        recorder.begin(record(), journal)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreFailed, match="locked by another program"):
            recorder.settle("r1", END)
        for _ in range(2):
            with pytest.raises(StoreFailed, match="locked by another program"):
                recorder.begin(record("r2"), Journal())
        recorder.give_up("r1", END)
        other.execute("ROLLBACK")
        recorder.begin(record("r2"), Journal())
        wait_until(lambda: stored(reader).ended, "what was given up is saved")
    assert stored(reader).entries == [END]


def test_an_end_that_could_not_be_saved_can_be_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, reader: Store
) -> None:
    room = small_disk(monkeypatch, 40)
    store = Store(path, max_age_s=100 * YEAR_S, max_bytes=2**40)
    with closing(Recorder(store, every_s=NEVER_S, on_cancel=lambda id_: None)) as recorder:
        journal = Journal()
        recorder.begin(record(), journal)
        journal.append(Text("x" * 1_000_000))
        with pytest.raises(StoreFailed, match="the disk is full"):
            recorder.settle("r1", END)
        room(10_000)
        recorder.settle("r1", END)
    assert journal.fault is None
    assert stored(reader).entries == [Text("x" * 1_000_000), END]


def test_an_outage_of_any_length_is_survived(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Broken(path, max_age_s=100 * YEAR_S, max_bytes=2**40)
    with closing(Recorder(store, every_s=0.001, on_cancel=lambda id_: None)) as recorder:
        for _ in range(1_100):
            store.fault = StoreError("x.db", "no")
            with pytest.raises(StoreFailed, match="could not be saved: no"):
                recorder.begin(record(), Journal())
    assert caplog.messages == ["answers cannot be saved: no"]


def test_text_that_is_not_unicode_fails_its_answer_only_and_the_rest_of_it_is_kept(
    recorder: Recorder, reader: Store
) -> None:
    bad, good = Journal(), Journal()
    recorder.begin(record("bad"), bad)
    recorder.begin(record("good"), good)
    fill(bad, [Text("a"), Text("\ud83d"), Text("b")])
    fill(good, texts(3))
    wait_until(lambda: bad.fault is not None and saved(reader, "good") == texts(3), "one fails, one is kept")
    with pytest.raises(StoreFailed, match="surrogate"):
        recorder.settle("bad", END)
    failed = Ended(Failed(FailKind.STORE, "no text"), 6.0)
    recorder.give_up("bad", failed)
    wait_until(lambda: stored(reader, "bad").ended, "the failure is saved")
    assert stored(reader, "bad").entries == [Text("a"), Text("b"), failed]
    recorder.settle("good", END)
    assert good.fault is None


class Broken(Store):
    """Fails once as only a programming error does."""

    fault: Exception | None = None

    def write(self, begin: Sequence[Record], writes: Sequence[Write]) -> set[str]:
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault
        return super().write(begin, writes)


def test_an_internal_error_fails_who_waits_and_the_thread_goes_on(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Broken(path, max_age_s=100 * YEAR_S, max_bytes=2**40)
    with closing(Recorder(store, every_s=0.01, on_cancel=lambda id_: None)) as recorder:
        store.fault = TypeError("secret")
        with pytest.raises(StoreFailed, match="internal error") as caught:
            recorder.begin(record(), Journal())
        assert "secret" not in str(caught.value)
        assert "secret" in caplog.text
        recorder.begin(record("r2"), Journal())
        recorder.settle("r2", END)
        assert stored(store, "r2").ended


def test_an_answer_ends_once(lazy: Recorder) -> None:
    journal = Journal()
    lazy.begin(record(), journal)
    journal.end(END)
    with pytest.raises(RuntimeError, match="has ended"):
        lazy.settle("r1", END)
    with pytest.raises(RuntimeError, match="not kept"):
        lazy.give_up("r2", END)


# --- what others do ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["settle", "give_up"])
def test_a_record_deleted_in_mid_answer_is_written_no_more_and_the_answer_ends(
    recorder: Recorder, reader: Store, how: str
) -> None:
    journal = Journal()
    recorder.begin(record(), journal)
    reader.delete("r1")
    journal.append(Text("x"))
    wait_until(lambda: journal.dropped, "it is known")
    journal.append(Text("y"))
    if how == "settle":
        recorder.settle("r1", END)
    else:
        recorder.give_up("r1", END)
    assert journal.since(0) == [Text("x"), Text("y"), END]
    assert journal.fault is None
    assert reader.load("r1") is None
    with pytest.raises(RuntimeError, match="not kept"):
        recorder.settle("r1", END)


def test_a_record_deleted_just_before_its_end_does_not_come_back(lazy: Recorder, reader: Store) -> None:
    journal = Journal()
    lazy.begin(record(), journal)
    reader.delete("r1")
    lazy.settle("r1", END)
    assert (journal.ended, journal.dropped, reader.load("r1")) == (END, True, None)


def test_a_cancel_asked_elsewhere_is_passed_on_once(recorder: Recorder, reader: Store, cancelled: list[str]) -> None:
    one, other = Journal(), Journal()
    recorder.begin(record("r1"), one)
    recorder.begin(record("r2"), other)
    assert reader.ask_cancel("r2")
    wait_until(lambda: bool(cancelled), "the cancel is passed on")
    assert reader.ask_cancel("r1")
    wait_until(lambda: len(cancelled) > 1, "the next one, too")
    recorder.settle("r2", Ended(Cancelled("operator"), 5.0))
    assert terminal(stored(reader, "r2").entries) == Cancelled("operator")
    assert cancelled == ["r2", "r1"]


def running_on_disk(path: Path) -> int:
    """Looked at from outside: a store that reads would end them itself."""
    with closing(sqlite3.connect(path)) as db:
        count: int = db.execute("SELECT count(*) FROM records WHERE ended_at IS NULL").fetchone()[0]
        return count


def test_what_another_process_left_is_ended_while_this_one_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "TEND_S", 0.01)
    store = Store(path, max_age_s=100 * YEAR_S, max_bytes=2**40)
    with closing(Recorder(store, on_cancel=lambda id_: None)):
        with opened(path) as other:
            other.write([record()], [write("r1", texts(2))])
            assert running_on_disk(path) == 1
        wait_until(lambda: running_on_disk(path) == 0, "it is ended")
        assert lost(stored(store)) == 2


def test_old_records_go_while_it_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "TEND_S", 0.01)
    store = Store(path, max_age_s=YEAR_S, max_bytes=2**40)
    with closing(Recorder(store, every_s=0.01, on_cancel=lambda id_: None)) as recorder:
        for id_, at in (("old", time.time() - 2 * YEAR_S), ("young", time.time())):
            recorder.begin(record(id_), Journal())
            recorder.settle(id_, Ended(Finished("stop"), at))
        wait_until(lambda: store.load("old") is None, "the old one is gone")
        assert stored(store, "young").ended


# --- the end -----------------------------------------------------------------------------------------


def test_closing_saves_what_there_is_and_what_runs_is_lost_for_the_next(path: Path, store: Store) -> None:
    recorder = Recorder(store, every_s=NEVER_S, on_cancel=lambda id_: None)
    journal = Journal()
    recorder.begin(record(), journal)
    recorder.begin(record("given up"), Journal())
    recorder.give_up("given up", END)
    fill(journal, texts(3))
    recorder.close()
    recorder.close()
    for job in (lambda: recorder.settle("r1", END), lambda: recorder.begin(record("r2"), Journal())):
        with pytest.raises(StoreFailed, match="the server is shutting down"):
            job()
    with opened(path) as reader:
        assert lost(stored(reader)) == 3
        assert stored(reader, "given up").entries == [END]
        assert reader.load("r2") is None


def test_who_waits_when_it_is_closed_is_served(path: Path, reader: Store) -> None:
    gate = Gate(path)
    gate.open.set()
    recorder = Recorder(gate, every_s=NEVER_S, on_cancel=lambda id_: None)
    journal = Journal()
    recorder.begin(record("r9"), journal)
    fill(journal, texts(2))
    gate.open.clear()
    gate.entered.clear()
    first = in_threads(1, lambda _: recorder.begin(record("first"), Journal()))
    assert gate.entered.wait(DEADLINE_S)
    others = in_threads(3, lambda number: recorder.begin(record(f"r{number}"), Journal()))
    others += in_threads(1, lambda _: recorder.settle("r9", END))
    jobs = recorder._jobs  # pyright: ignore[reportPrivateUsage]  # nothing else shows that all of them wait
    wait_until(lambda: len(jobs) == 4, "four wait")
    closing_thread = in_threads(1, lambda _: recorder.close())
    wait_until(lambda: _refuses(recorder), "it closes")
    gate.open.set()
    join([*first, *others, *closing_thread])
    assert gate.calls == [(1, 0), (1, 0), (3, 1)]
    assert all(reader.load(f"r{number}") is not None for number in range(3))
    assert stored(reader, "r9").ended


def _refuses(recorder: Recorder) -> bool:
    return recorder._closing  # pyright: ignore[reportPrivateUsage]  # asking it otherwise would be one more job
