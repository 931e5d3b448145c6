"""The journal: one writer, many readers, one end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from engine.events import Accepted, Finished, Text, Tick
from serve.entries import Beat, Ended, Entry
from serve.journal import Journal

DEADLINE_S = 30.0
END = Ended(Finished("stop"), 5.0)


def made(count: int, first: int = 0) -> list[Text]:
    return [Text(f" {number}") for number in range(first, first + count)]


def filled(*entries: Text | Accepted | Beat) -> Journal:
    journal = Journal()
    for entry in entries:
        journal.append(entry)
    return journal


def without_ticks(items: Iterator[Entry | Tick]) -> list[Entry]:
    return [item for item in items if not isinstance(item, Tick)]


def test_new_journal_is_empty_and_runs() -> None:
    journal = Journal()
    assert (len(journal), journal.since(0), journal.ended) == (0, [], None)
    assert (journal.fault, journal.dropped) == (None, False)
    assert not journal.wait_ended(0)


def test_entries_are_read_from_any_index_as_a_copy() -> None:
    entries = [Accepted(), *made(3), Beat()]
    journal = filled(*entries)
    assert [journal.since(first) for first in range(7)] == [entries[first:] for first in range(7)]
    journal.since(0).clear()
    assert len(journal) == 5


def test_the_end_is_the_last_entry_and_nothing_follows_it() -> None:
    journal = filled(*made(1))
    journal.end(END)
    assert journal.ended == END
    assert journal.wait_ended(0)
    with pytest.raises(RuntimeError, match="follow"):
        journal.append(Text("x"))
    with pytest.raises(RuntimeError, match="follow"):
        journal.end(END)
    assert journal.since(0) == [*made(1), END]


def test_a_late_follower_gets_everything_without_waiting() -> None:
    journal = filled(*made(3))
    journal.end(END)
    assert list(journal.follow(DEADLINE_S)) == [*made(3), END]


def test_a_follower_ticks_while_nothing_comes() -> None:
    journal = filled(*made(1))
    items = journal.follow(0.001)
    assert [next(items) for _ in range(3)] == [Text(" 0"), Tick(), Tick()]
    journal.append(Text("x"))
    assert without_ticks(next(items) for _ in range(1)) == [Text("x")]
    journal.end(END)
    assert list(items) == [END]


def test_a_waiting_follower_is_woken_by_an_entry_and_by_the_end() -> None:
    """Without a wake-up it would tick only after the deadline of the test."""
    journal = Journal()
    seen: list[Entry | Tick] = []
    got_one = threading.Event()

    def read() -> None:
        for item in journal.follow(10 * DEADLINE_S):
            seen.append(item)
            got_one.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    journal.append(Text("x"))
    assert got_one.wait(DEADLINE_S)
    journal.end(END)
    reader.join(DEADLINE_S)
    assert not reader.is_alive()
    assert seen == [Text("x"), END]


def test_who_waits_for_the_end_is_woken_by_it() -> None:
    journal = Journal()
    results: list[bool] = []
    waiter = threading.Thread(target=lambda: results.append(journal.wait_ended(10 * DEADLINE_S)), daemon=True)
    waiter.start()
    journal.append(Text("x"))
    journal.end(END)
    waiter.join(DEADLINE_S)
    assert results == [True]


def test_every_follower_sees_every_entry_once_and_in_order() -> None:
    journal = Journal()
    seen: list[list[Entry]] = [[] for _ in range(4)]

    def read(into: list[Entry], tick_s: float) -> None:
        into.extend(without_ticks(journal.follow(tick_s)))

    readers = [
        threading.Thread(target=read, args=(into, 0.0005 * (1 + number)), daemon=True)
        for number, into in enumerate(seen)
    ]
    for reader in readers:
        reader.start()
    entries = made(5_000)
    for entry in entries:
        journal.append(entry)
    journal.end(END)
    for reader in readers:
        reader.join(DEADLINE_S)
    assert [into == [*entries, END] for into in seen] == [True] * 4


def test_a_follower_that_leaves_costs_the_others_nothing() -> None:
    journal = filled(*made(2))
    leaving = journal.follow(0.001)
    assert [next(leaving) for _ in range(3)] == [*made(2), Tick()]
    del leaving
    journal.append(Text("x"))
    journal.end(END)
    assert list(journal.follow()) == [*made(2), Text("x"), END]
