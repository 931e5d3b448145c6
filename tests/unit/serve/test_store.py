"""Records on disk: written in steps, read at one moment, deleted, cancelled, pruned."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from engine.events import Cancelled, Failed, FailKind, Finished, Text
from serve import database
from serve import store as store_module
from serve.entries import Beat, Ended, Entry
from serve.store import Record, Store, Stored, StoreError
from tests.unit.serve.stored import (
    END,
    YEAR_S,
    lost,
    opened,
    record,
    small_disk,
    stored,
    terminal,
    texts,
    write,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with opened(path) as made:
        yield made


def ended_record(store: Store, id_: str, at: float, size: int = 3) -> None:
    assert store.write([record(id_, size)], [write(id_, [Text("x"), Ended(Finished("stop"), at)])]) == set()


# --- writing and reading -----------------------------------------------------------------------------


def test_an_unknown_record_is_not_there(store: Store) -> None:
    assert store.load("r1") is None
    assert store.entries_from("r1", 0) is None
    assert (store.delete("r1"), store.ask_cancel("r1"), store.write([], [])) == (False, False, set())


def test_a_record_grows_and_ends(store: Store) -> None:
    store.write([record()], [])
    assert store.load("r1") == Stored(record(), [], ended=False, mine=True)
    entries: list[Entry] = [*texts(3), Beat()]
    store.write([], [write("r1", entries)])
    assert store.load("r1") == Stored(record(), entries, ended=False, mine=True)
    store.write([], [write("r1", [*texts(2, 3), END], first=4)])
    assert store.load("r1") == Stored(record(), [*entries, *texts(2, 3), END], ended=True, mine=True)


@pytest.mark.parametrize(
    "kept",
    [
        Record("r1", "chat.completion", 0.1, False, None, b"", b""),
        Record("grün/'\"; --", "response", 1e9 + 1 / 3, True, "", bytes(range(256)), b"x" * 3_000_000),
    ],
    ids=["least", "most"],
)
def test_every_field_comes_back_in_the_next_life(path: Path, kept: Record) -> None:
    with opened(path) as store:
        store.write([kept], [write(kept.id, [END])])
    with opened(path) as store:
        assert store.load(kept.id) == Stored(kept, [END], ended=True, mine=False)


def test_many_records_of_one_transaction_do_not_mix(store: Store) -> None:
    ids = [f"r{number}" for number in range(20)]
    store.write([record(id_) for id_ in ids], [write(id_, texts(3, number)) for number, id_ in enumerate(ids)])
    assert [stored(store, id_).entries for id_ in ids] == [texts(3, number) for number in range(20)]


def test_entries_are_read_from_any_index_whatever_the_steps_were(store: Store) -> None:
    store.write([record()], [write("r1", texts(3))])
    store.write([], [write("r1", texts(1, 3), first=3), write("r1", texts(4, 4), first=4)])
    assert [store.entries_from("r1", first) for first in range(11)] == [
        (texts(8 - first, first) if first < 8 else [], False) for first in range(11)
    ]
    store.write([], [write("r1", [END], first=8)])
    assert [store.entries_from("r1", first) for first in (7, 8, 9, 100)] == [
        ([*texts(1, 7), END], True),
        ([END], True),
        ([], True),
        ([], True),
    ]


def test_entries_of_a_record_that_has_none_yet(store: Store) -> None:
    store.write([record()], [])
    assert [store.entries_from("r1", first) for first in (0, 5)] == [([], False), ([], False)]


def test_a_repeated_write_changes_nothing(store: Store) -> None:
    """As after a commit of which nobody knows whether it was done."""
    for _ in range(2):
        store.write([record()], [write("r1", texts(3))])
    for _ in range(2):
        assert store.write([], [write("r1", [*texts(1, 3), END], first=3)]) == set()
    assert store.load("r1") == Stored(record(), [*texts(4), END], ended=True, mine=True)


def test_a_repeated_write_may_have_grown_but_never_shrinks(store: Store) -> None:
    store.write([record()], [write("r1", texts(3))])
    store.write([], [write("r1", texts(5))])
    store.write([], [write("r1", texts(2))])
    assert stored(store).entries == texts(5)


def test_nothing_follows_the_end(store: Store) -> None:
    """It ended otherwise: somebody took this process for dead. Whoever writes on is told."""
    store.write([record()], [write("r1", [*texts(1), END])])
    late = Ended(Cancelled("client"), 2.0)
    assert store.write([], [write("r1", [late], first=2)]) == {"r1"}
    assert store.write([], [write("r1", [Text("other"), END])]) == {"r1"}
    assert stored(store).entries == [*texts(1), END]


def test_an_id_of_another_process_is_not_taken_over_and_nothing_else_is_written(path: Path, store: Store) -> None:
    store.write([record()], [])
    with opened(path) as other:
        with pytest.raises(StoreError, match="there already"):
            other.write([record("r2"), record()], [])
        assert other.load("r2") is None


def test_a_gap_in_the_entries_is_an_error_and_no_shorter_answer(store: Store) -> None:
    store.write([record()], [write("r1", texts(3)), write("r1", texts(1, 4), first=4)])
    with pytest.raises(StoreError, match="damaged: entries of a record are missing"):
        store.load("r1")


def test_entries_that_cannot_be_read_are_an_error(store: Store) -> None:
    store.write([record()], [dataclasses.replace(write("r1", texts(3)), data=b'["never"')])
    with pytest.raises(StoreError, match="damaged"):
        store.entries_from("r1", 0)
    store.write([], [write("r1", texts(2, 3), first=3)])
    assert store.entries_from("r1", 4) == (texts(1, 4), False)  # what came before is not read again


def test_a_closed_store_says_so_and_closes_again(path: Path) -> None:
    store = Store(path, max_age_s=1.0, max_bytes=1)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="it is closed"):
        store.load("r1")
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_opening_a_file_that_is_not_ours_leaves_nothing_beside_it(path: Path) -> None:
    path.write_text("not ours", encoding="utf-8")
    with pytest.raises(StoreError):
        Store(path, max_age_s=1.0, max_bytes=1)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_full_disk_fails_the_write_and_keeps_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = small_disk(monkeypatch, 60)
    with opened(path) as store:
        store.write([record()], [write("r1", texts(3))])
        with pytest.raises(StoreError, match="the disk is full"):
            store.write([record("r2", size=1_000_000)], [write("r1", [END], first=3)])
        assert store.load("r1") == Stored(record(), texts(3), ended=False, mine=True)
        assert store.load("r2") is None
        more(10_000)
        store.write([record("r2", size=1_000_000)], [write("r1", [END], first=3)])
        assert (stored(store).ended, len(stored(store, "r2").record.input)) == (True, 1_000_000)


# --- deleted and cancelled ---------------------------------------------------------------------------


def test_a_deleted_record_leaves_nothing_and_is_not_brought_back(path: Path, store: Store) -> None:
    store.write([record(), record("r2")], [write("r1", texts(3)), write("r2", texts(1))])
    assert (store.delete("r1"), store.delete("r1")) == (True, False)
    assert store.write([], [write("r1", [END], first=3), write("r2", [END], first=1)]) == {"r1"}
    assert store.load("r1") is None
    assert stored(store, "r2").entries == [*texts(1), END]
    store.delete("r2")
    with closing(sqlite3.connect(path)) as db:
        counts = [db.execute(f"SELECT count(*) FROM {name}").fetchone() for name in ("records", "bodies", "segments")]
    assert counts == [(0,), (0,), (0,)]


def test_a_new_record_has_nothing_of_a_deleted_one(store: Store) -> None:
    store.write([record()], [write("r1", texts(3))])
    store.delete("r1")
    store.write([record("r2")], [])
    assert stored(store, "r2").entries == []


def test_who_makes_an_answer_learns_that_another_process_wants_it_cancelled(path: Path, store: Store) -> None:
    store.write([record(), record("r2"), record("r3")], [write("r3", [END])])
    with opened(path) as other:
        assert [other.ask_cancel(id_) for id_ in ("r1", "r3", "r4")] == [True, False, False]
        assert (store.asked_to_cancel(), other.asked_to_cancel()) == (["r1"], [])
        store.write([], [write("r1", [Ended(Cancelled("operator"), 5.0)])])
        assert store.asked_to_cancel() == []
        assert terminal(stored(other).entries) == Cancelled("operator")


# --- retention ---------------------------------------------------------------------------------------


def prune_all(store: Store) -> int:
    total = 0
    while count := store.prune():
        total += count
    return total


def test_what_ended_too_long_ago_goes_and_what_runs_stays(path: Path) -> None:
    now = time.time()
    with closing(Store(path, max_age_s=YEAR_S, max_bytes=2**40)) as store:
        store.write([record("runs"), record("ended")], [write("runs", texts(1))])
        for days, id_ in enumerate(("young", "old", "older"), start=364):
            ended_record(store, id_, now - days * 86_400.0)
        assert prune_all(store) == 2
        assert [id_ for id_ in ("runs", "ended", "young", "old", "older") if store.load(id_)] == [
            "runs",
            "ended",
            "young",
        ]
        assert store.prune() == 0


def test_the_oldest_go_until_the_rest_fits_and_the_file_shrinks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SPARE_PAGES", 10)
    monkeypatch.setattr(store_module, "VACUUM_PAGES", 100)
    with opened(path, max_bytes=1_000_000) as store:
        store.write([record("runs", size=300_000)], [])
        for number in range(20):
            ended_record(store, f"r{number}", 1_000.0 - number, size=100_000)
        assert path.stat().st_size + path.with_name("store.db-wal").stat().st_size > 2_000_000
        prune_all(store)
        for _ in range(10):  # the file shrinks in steps
            assert store.prune() == 0
        left = [f"r{number}" for number in range(20) if store.load(f"r{number}")]
        assert left == [f"r{number}" for number in range(len(left))]  # they ended last
        assert 5 <= len(left) <= 7
        assert store.load("runs") is not None
    assert path.stat().st_size <= 1_100_000


def test_a_store_that_is_full_of_running_records_keeps_them(path: Path) -> None:
    with opened(path, max_bytes=1) as store:
        store.write([record("r1", size=100_000)], [])
        assert prune_all(store) == 0
        store.write([], [write("r1", [END])])
        assert prune_all(store) == 1


def test_one_call_deletes_one_batch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whoever waits for the file never waits long."""
    monkeypatch.setattr(store_module, "PRUNE_RECORDS", 3)
    with opened(path, max_bytes=1) as store:
        for number in range(7):
            ended_record(store, f"r{number}", 1_000.0)
        assert [store.prune() for _ in range(4)] == [3, 3, 1, 0]


def test_one_call_frees_a_bounded_number_of_bytes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PRUNE_BYTES", 250_000)
    with opened(path, max_bytes=1) as store:
        for number in range(5):
            ended_record(store, f"r{number}", 1_000.0, size=100_000)
        assert store.prune() == 3
        assert prune_all(store) == 2


# --- owners in one process (those of other processes: test_store_processes.py) ------------------------


def test_two_stores_of_one_process_are_two_owners(path: Path, store: Store) -> None:
    store.write([record()], [write("r1", texts(2))])
    other = Store(path, max_age_s=100 * YEAR_S, max_bytes=2**40)
    other.write([record("r2")], [write("r2", texts(1))])
    assert stored(other) == Stored(record(), texts(2), ended=False, mine=False)
    assert (store.recover(), other.recover()) == (0, 0)
    other.close()
    assert store.recover() == 1
    assert lost(stored(store, "r2")) == 1
    assert not stored(store).ended
    assert store.recover() == 0


@pytest.mark.parametrize("how", ["open", "load", "entries_from", "recover"])
def test_what_was_left_running_is_ended_by_whoever_looks_first(path: Path, store: Store, how: str) -> None:
    before = time.time()
    other = Store(path, max_age_s=100 * YEAR_S, max_bytes=2**40)
    other.write([record(), record("r2")], [write("r1", texts(2)), write("r1", texts(1, 2), first=2)])
    other.close()
    match how:
        case "open":
            with opened(path):
                pass
        case "load":
            assert lost(stored(store)) == 3
        case "entries_from":
            found = store.entries_from("r1", 2)
            assert found is not None
            assert (found[0][0], found[1]) == (Text(" 2"), True)
        case _:
            assert store.recover() == 2
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM records WHERE ended_at IS NULL").fetchone() == (0,)
    end = stored(store).entries[-1]
    assert isinstance(end, Ended)
    assert before <= end.at <= time.time()
    assert end.terminal == Failed(
        FailKind.LOST, "the server stopped while the answer was made; what was saved until then is kept"
    )
    assert (lost(stored(store)), lost(stored(store, "r2"))) == (3, 0)


def test_an_owner_that_was_there_a_moment_ago_is_asked_again_later(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "ASK_OWNER_S", 0.0)
    other = Store(path, max_age_s=100 * YEAR_S, max_bytes=2**40)
    other.write([record()], [write("r1", texts(2))])
    assert store.entries_from("r1", 0) == (texts(2), False)
    other.close()
    found = store.entries_from("r1", 2)
    assert found is not None
    assert isinstance(terminal(found[0]), Failed)


def test_an_owner_is_not_asked_by_every_look(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking takes the write lock: who polls would wait for every other writer."""
    monkeypatch.setattr(store_module, "ASK_OWNER_S", 3_600.0)
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    with opened(path) as store, opened(path) as other, closing(sqlite3.connect(path, isolation_level=None)) as third:
        other.write([record()], [write("r1", texts(2))])
        assert store.entries_from("r1", 0) == (texts(2), False)
        third.execute("BEGIN IMMEDIATE")
        assert store.entries_from("r1", 1) == (texts(1, 1), False)


@pytest.mark.skipif(os.name == "nt", reason="Windows does not let anybody delete it")
def test_a_process_that_was_taken_for_dead_is_told_so(path: Path) -> None:
    """Somebody deleted its file: its records are lost for the others, and stay so."""
    store = Store(path, max_age_s=100 * YEAR_S, max_bytes=2**40)
    store.write([record()], [write("r1", texts(2))])
    (owner_file,) = path.parent.glob("*.owner-*")
    owner_file.unlink()
    with opened(path) as other:
        assert lost(stored(other)) == 2
        assert store.write([], [write("r1", [*texts(1, 2), END], first=2)]) == {"r1"}
        assert lost(stored(other)) == 2
    store.close()
