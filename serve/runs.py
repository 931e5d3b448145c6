"""The answers that can be read later: those being made now, and those in the store.

A `Run` is one answer and its journal; `Runs` finds them by id, follows them live, cancels and deletes them. It knows
neither HTTP nor what an entry looks like on the wire.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from engine.api import TICK_S, Cancel, failed_of
from engine.events import (
    Accepted,
    Cancelled,
    Event,
    Failed,
    Finished,
    Passed,
    Progress,
    Reasoning,
    Terminal,
    Text,
    Tick,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)
from serve.entries import Beat, Ended, Entry, Made
from serve.journal import Journal
from serve.lifecycle import StoreFailed
from serve.recorder import Recorder
from serve.store import Record, Store

log = logging.getLogger("strata.runs")

ID_BYTES = 24
POLL_S = 0.25
"""How often a running record of another process is looked at."""
CANCEL_WAIT_S = 10.0
CLOSE_WAIT_S = 5.0


class Forgotten(Exception):
    """How an answer ends that is followed is not known here: it was deleted meanwhile, or another process makes it and
    this one stops."""


def new_id(prefix: str) -> str:
    """An id that cannot be guessed; `prefix` with its separator, as "resp_"."""
    return f"{prefix}{secrets.token_hex(ID_BYTES)}"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of an answer now. The last entry is an `Ended` if it ended."""

    record: Record
    entries: list[Entry]

    @property
    def ended(self) -> bool:
        return bool(self.entries) and isinstance(self.entries[-1], Ended)


class Run:
    """One answer being made. `begin` promises that it is kept; without it nothing is written anywhere.

    `settle` and `entries` are called by the thread that makes the answer, everything else by any.
    """

    def __init__(self, record: Record, cancel: Cancel, owner: Runs) -> None:
        self.record = record
        self.cancel = cancel
        self.journal = Journal()
        self.ended: Ended | None = None
        self._owner = owner
        self._begun = False
        self._unsaved: str | None = None  # why it is being ended: what was made could not be saved

    def begin(self) -> None:
        """Write the record. Blocks until it is on disk.

        Raises: StoreFailed.
        """
        self._owner.begin(self)
        self._begun = True

    def settle(self, terminal: Terminal) -> None:
        """Write how it ended; for `engine.terminal.sealed`. Blocks until it is on disk.

        Raises: StoreFailed: it, or what was made before it, could not be saved; the answer has failed then.
        """
        failure = None if self._unsaved is None else StoreFailed(self._unsaved)
        if failure is not None:
            terminal = replace(failed_of(failure), usage=terminal.usage)
        if isinstance(terminal, Finished):
            terminal = replace(terminal, raw=b"")  # the entries say it all
        self.ended = Ended(terminal, time.time())
        if not self._begun:
            return
        try:
            self._owner.settle(self, self.ended)
        except StoreFailed as error:
            self.ended = Ended(replace(failed_of(error), usage=terminal.usage), self.ended.at)
            self._owner.give_up(self, self.ended)
            raise
        if failure is not None:
            raise failure

    def entries(
        self, first: Event, events: Generator[Event, None, None], beat_s: float | None = None
    ) -> Generator[Entry | Tick, None, None]:
        """The entries of the answer as they are made, the last one an `Ended`; a `Tick` where there is nothing new.
        `events` are those of `Service.answer` after `first`, settled by this run. After `beat_s` seconds without an
        entry there is a `Beat`; None: never. Blocks as `events` does.
        """
        beat = time.monotonic()
        for event in self.watched(first, events):
            match event:
                case Text() | Reasoning() | ToolCallArgs():
                    beat = time.monotonic()
                    yield event
                case Finished() | Cancelled() | Failed():
                    yield self.ended or Ended(event, time.time())
                case Tick() | Progress():
                    if beat_s is not None and time.monotonic() - beat >= beat_s:
                        beat = time.monotonic()
                        yield from self._kept(Beat())
                    else:
                        yield Tick()
                case _:
                    beat = time.monotonic()
                    yield from _entries(event)

    def watched(self, first: Event, events: Generator[Event, None, None]) -> Generator[Event, None, None]:
        """The events as they come, up to the terminal, while what they say is kept. Blocks as `events` does."""
        journal = self.journal
        event = first
        while True:
            match event:
                case Text() | Reasoning() | ToolCallArgs():  # nearly all of them: this way is kept short
                    if self._begun:
                        journal.append(event)
                case Finished() | Cancelled() | Failed():
                    yield event
                    return
                case _:
                    self._kept(*_entries(event))
            yield event
            if journal.dropped and self.record.background:  # deleted, so nobody can ever read it
                self.cancel.cancel("operator")
            if journal.fault is not None and self._unsaved is None:
                self._unsaved = journal.fault
                self.cancel.cancel("operator")  # what is held back and the counts come with its end
            event = next(events)

    def drain(self, events: Generator[Event, None, None]) -> None:
        """Read the rest for the record alone. Blocks until the end."""
        if self._begun:
            for event in events:
                self._kept(*_entries(event))

    def _kept(self, *entries: Made) -> tuple[Made, ...]:
        if self._begun:
            for entry in entries:
                self.journal.append(entry)
        return entries


def _entries(event: Event) -> tuple[Made, ...]:
    """What an event that is no terminal says, as entries."""
    match event:
        case Passed():
            return event.pieces
        case Accepted():
            return (Accepted(),)
        case Text() | Reasoning() | ToolCallStart() | ToolCallArgs() | ToolCallEnd():
            return (event,)
        case _:
            return ()


class Runs:
    """Thread-safe. Without a store nothing is kept: `begin` does nothing, and nothing is found."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._recorder = None if store is None else Recorder(store, on_cancel=self._cancel_here)
        self._live: dict[str, Run] = {}
        self._readers = 0
        self._closing = False
        self._changed = threading.Condition()

    @property
    def keeps(self) -> bool:
        """Whether there is a store."""
        return self._store is not None

    # --- answers being made --------------------------------------------------------------------------

    def new(self, record: Record, cancel: Cancel) -> Run:
        """An answer that is not kept yet."""
        return Run(record, cancel, self)

    def begin(self, run: Run) -> None:
        """See `Run.begin`."""
        if self._recorder is None:
            return
        recorder = self._recorder
        recorder.begin(run.record, run.journal)
        with self._changed:
            # those that could not be saved when they ended, and are by now
            done = [id_ for id_, old in self._live.items() if old.journal.ended and not recorder.keeps(id_)]
            for id_ in done:
                del self._live[id_]
            self._live[run.record.id] = run

    def settle(self, run: Run, ended: Ended) -> None:
        """See `Run.settle`."""
        if self._recorder is None:
            return
        self._recorder.settle(run.record.id, ended)
        with self._changed:
            self._live.pop(run.record.id, None)
            self._changed.notify_all()

    def give_up(self, run: Run, ended: Ended) -> None:
        """The ending could not be saved: it is true here, and goes on disk as soon as the store takes it."""
        assert self._recorder is not None
        self._recorder.give_up(run.record.id, ended)

    def drive(self, entries: Iterator[Entry | Tick], events: Generator[Event, None, None]) -> None:
        """Make an answer on a thread of its own, whoever reads it; `events` are what `entries` read."""
        thread = threading.Thread(target=self._drain, args=(entries, events), name="background-answer", daemon=True)
        thread.start()

    @staticmethod
    def _drain(entries: Iterator[Entry | Tick], events: Generator[Event, None, None]) -> None:
        with closing(events):
            for _ in entries:
                pass

    # --- answers to read -----------------------------------------------------------------------------

    def load(self, id_: str) -> Kept | None:
        """The answer as of now. Blocks for the disk.

        Raises: StoreError.
        """
        with self._changed:
            run = self._live.get(id_)
        if run is not None:
            return Kept(run.record, run.journal.since(0))
        stored = None if self._store is None else self._store.load(id_)
        return None if stored is None else Kept(stored.record, stored.entries)

    def follow(self, id_: str) -> Generator[Entry | Tick, None, None]:
        """All entries from the first, then live until the `Ended`, wherever the answer is made; at least one event
        every `TICK_S`. Blocks as it is read; `close` waits until it is closed.

        Raises: StoreError, Forgotten.
        """
        with self._changed:
            run = self._live.get(id_)
            self._readers += 1
        try:
            yield from self._follow_store(id_) if run is None else run.journal.follow()
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    def _follow_store(self, id_: str) -> Iterator[Entry | Tick]:
        assert self._store is not None
        seen, pause = 0, threading.Event()
        while True:
            found = self._store.entries_from(id_, seen)
            if found is None:
                raise Forgotten
            entries, ended = found
            yield from entries
            seen += len(entries)
            if ended:
                return
            if self._closing:
                raise Forgotten
            for _ in range(max(1, round(POLL_S / TICK_S))):
                yield Tick()
                pause.wait(TICK_S)

    # --- their end -----------------------------------------------------------------------------------

    def _cancel_here(self, id_: str) -> None:
        with self._changed:
            run = self._live.get(id_)
        if run is not None:
            run.cancel.cancel("operator")

    def cancel(self, id_: str) -> Kept | None:
        """End an answer wherever it is made. Blocks until it ended, `CANCEL_WAIT_S` at most.

        Raises: StoreError.
        """
        kept = self.load(id_)
        if kept is None or kept.ended:
            return kept
        self._cancel_here(id_)
        with self._changed:
            run = self._live.get(id_)
        if run is not None:
            run.journal.wait_ended(CANCEL_WAIT_S)
        elif self._store is not None and self._store.ask_cancel(id_):
            deadline = time.monotonic() + CANCEL_WAIT_S
            with suppress(Forgotten):
                for entry in self.follow(id_):
                    if isinstance(entry, Tick) and time.monotonic() > deadline:
                        break
        return self.load(id_)

    def delete(self, id_: str) -> bool:
        """Forget an answer; one that runs without a client is cancelled. Blocks for the disk.

        Raises: StoreError.
        """
        if self._store is None:
            return False
        with self._changed:
            run = self._live.pop(id_, None)
        if run is not None and run.record.background:
            run.cancel.cancel("operator")
        elif run is None and (kept := self.load(id_)) is not None and kept.record.background:
            self.cancel(id_)  # its own process must hear of it before the record is gone
        return self._store.delete(id_) or run is not None

    def close(self) -> None:
        """Wait for answers that are being settled and for who reads them, write what there is, close the store.
        Bounded."""
        with self._changed:
            self._changed.wait_for(lambda: all(run.journal.ended for run in self._live.values()), CLOSE_WAIT_S)
            self._closing = True
            self._changed.wait_for(lambda: not self._readers, CLOSE_WAIT_S)
        if self._recorder is not None:
            self._recorder.close()
