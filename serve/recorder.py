"""The one thread that writes answers to the store while they are made: begun, in steps, and settled.

Who makes an answer only appends to its `Journal`; the thread looks there by itself, every `every_s` seconds, and
writes what is new of all answers in one transaction. It decides no ending and reads nothing back (`serve.store`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from serve.entries import Ended, Entry, encode
from serve.journal import Journal
from serve.lifecycle import StoreFailed
from serve.store import Record, Store, StoreError, Write

log = logging.getLogger("strata.store")

EVERY_S = 0.5
BACKOFF_S = 5.0
TEND_S = 10.0
CLOSE_S = 30.0


@dataclass(slots=True, eq=False)
class _Kept:
    """One answer that is kept. Only the recorder's thread changes it."""

    record: Record
    journal: Journal
    saved: int = 0
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class _Job:
    """What somebody waits for: the beginning of an answer, or (`ended`) its end."""

    kept: _Kept
    ended: Ended | None = None
    answered: threading.Event = field(default_factory=threading.Event)
    cause: str | None = None

    def answer(self, cause: str | None = None) -> None:
        self.cause = cause
        self.answered.set()


@dataclass(frozen=True, slots=True)
class _Part:
    """What one transaction writes of one answer."""

    kept: _Kept
    write: Write
    job: _Job | None


class Recorder:
    """All methods may be called from any thread. `on_cancel` is called in the recorder's thread with the id of an
    answer that another process was asked to cancel; it must not block. The store is closed with the recorder."""

    def __init__(self, store: Store, *, every_s: float = EVERY_S, on_cancel: Callable[[str], None]) -> None:
        self._store = store
        self._every_s = every_s
        self._on_cancel = on_cancel
        self._changed = threading.Condition()
        self._jobs: list[_Job] = []
        self._kept: dict[str, _Kept] = {}
        self._closing = False
        self._failures = 0
        self._save_at = time.monotonic() + every_s
        self._tend_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def begin(self, record: Record, journal: Journal) -> None:
        """Keep an answer from now on. Blocks until its record is on disk.

        Raises: StoreFailed: it could not be saved; nothing is kept.
        """
        self._do(_Job(_Kept(record, journal)))

    def settle(self, record_id: str, ended: Ended) -> None:
        """The answer's last entry. Blocks until all of its entries are on disk, and only then ends the journal with
        it: no reader sees an ending that is not saved. The caller appends nothing from here on. An answer whose
        record was deleted meanwhile ends unsaved.

        Raises: StoreFailed: it could not be saved. The journal has not ended: the caller makes a failure of it
            (`give_up`).
        """
        kept = self._find(record_id)
        if kept.journal.ended is not None:
            raise RuntimeError(f"the answer {record_id!r} has ended")
        self._do(_Job(kept, ended))

    def give_up(self, record_id: str, ended: Ended) -> None:
        """End the journal now although that is not saved. Does not block: it is written when that is possible again,
        as long as this process lives."""
        kept = self._find(record_id)
        kept.journal.end(ended)
        if kept.journal.dropped:
            self._forget(kept)

    def keeps(self, record_id: str) -> bool:
        """Whether something of the answer may still have to be written. Does not block."""
        with self._changed:
            return record_id in self._kept

    def close(self) -> None:
        """Write what there is, end the thread and close the store. Blocks, in bounded time; a second call does
        nothing. What has no end by then is ended as lost by whoever opens the store next."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.error("the store hangs: it is left as it is")
        else:
            self._store.close()

    def _find(self, record_id: str) -> _Kept:
        with self._changed:
            kept = self._kept.get(record_id)
        if kept is None:
            raise RuntimeError(f"the answer {record_id!r} is not kept: it was not begun, or is settled")
        return kept

    def _forget(self, kept: _Kept) -> None:
        with self._changed:
            self._kept.pop(kept.record.id, None)

    def _do(self, job: _Job) -> None:
        with self._changed:
            if self._closing:
                raise StoreFailed(_sentence("the server is shutting down"))
            self._jobs.append(job)
            self._changed.notify()
        job.answered.wait()
        if job.cause is not None:
            raise StoreFailed(_sentence(job.cause))

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        closing = False
        while not closing:
            jobs, closing = self._wait()
            due = closing or time.monotonic() >= self._save_at
            try:
                self._save(jobs, due)
                if not closing:
                    self._tend(due)
            except Exception:  # the thread's top: without it nothing would be saved any more
                log.exception("internal error while saving answers")
                self._save_at = self._tend_at = time.monotonic() + BACKOFF_S
            for job in jobs:
                if not job.answered.is_set():
                    job.answer("internal error; the server's log has the details")

    def _wait(self) -> tuple[list[_Job], bool]:
        """Until there is something to do: the jobs, and whether these are the last ones."""
        with self._changed:
            while not self._jobs and not self._closing:
                at = min(self._save_at, self._tend_at) if self._kept else self._tend_at
                left_s = at - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            jobs, self._jobs = self._jobs, []
            return jobs, self._closing

    def _save(self, jobs: Sequence[_Job], due: bool) -> None:
        begun = [job for job in jobs if job.ended is None]
        parts = [part for job in jobs if job.ended is not None and (part := self._part(job.kept, job)) is not None]
        if due:
            ending = {job.kept for job in jobs}
            with self._changed:
                others = [kept for kept in self._kept.values() if kept not in ending]
            parts += [part for kept in others if (part := self._part(kept)) is not None]
        if begun or parts:
            try:
                gone = self._store.write([job.kept.record for job in begun], [part.write for part in parts])
            except StoreError as error:
                self._not_saved(begun, parts, error.cause)
            else:
                self._are_saved(begun, parts, gone)
        if due:
            backoff_s = min(self._every_s * 2 ** min(self._failures, 10), BACKOFF_S)
            self._save_at = time.monotonic() + max(self._every_s, backoff_s)

    def _part(self, kept: _Kept, job: _Job | None = None) -> _Part | None:
        """What is to be written of this answer; None if nothing is, or can be (the job is answered then)."""
        ended = None if job is None else job.ended
        if job is not None and ended is not None and kept.journal.dropped:
            self._publish(kept, job, ended)
            return None
        if kept.journal.dropped or (ended is None and len(kept.journal) == kept.saved):
            return None
        entries = kept.journal.since(kept.saved)
        if ended is not None:
            entries.append(ended)
        last = entries[-1]
        try:
            data = encode(entries)
        except ValueError as error:
            if job is not None or not isinstance(last, Ended):
                kept.journal.fault = _sentence(str(error))
                if job is not None:
                    job.answer(str(error))
                return None
            entries = _encodable(entries)  # it has failed for this very reason: what can be kept is kept
            data = encode(entries)
        write = Write(kept.record.id, kept.saved, len(entries), data, last.at if isinstance(last, Ended) else None)
        return _Part(kept, write, job)

    def _are_saved(self, begun: Sequence[_Job], parts: Sequence[_Part], gone: set[str]) -> None:
        if self._failures:
            log.info("answers can be saved again")
            self._failures = 0
            self._save_at = time.monotonic()  # the others, too
        with self._changed:
            self._kept.update({job.kept.record.id: job.kept for job in begun})
        for job in begun:
            job.answer()
        for part in parts:
            kept = part.kept
            kept.saved = part.write.first + part.write.count
            kept.journal.fault = None
            kept.journal.dropped = part.write.record_id in gone
            if part.job is not None and part.job.ended is not None:
                self._publish(kept, part.job, part.job.ended)
            elif part.write.ended_at is not None:
                self._forget(kept)

    def _publish(self, kept: _Kept, job: _Job, ended: Ended) -> None:
        kept.journal.end(ended)
        self._forget(kept)
        job.answer()

    def _not_saved(self, begun: Sequence[_Job], parts: Sequence[_Part], cause: str) -> None:
        if not self._failures:
            log.warning("answers cannot be saved: %s", cause)
        self._failures += 1
        for part in parts:
            part.kept.journal.fault = _sentence(cause)
            if part.job is not None:
                part.job.answer(cause)
        for job in begun:
            job.answer(cause)

    def _tend(self, due: bool) -> None:
        """What is to be done now and then."""
        try:
            with self._changed:
                running = dict(self._kept) if due else {}
            for record_id in self._store.asked_to_cancel() if running else ():
                kept = running.get(record_id)
                if kept is not None and not kept.cancelled:
                    kept.cancelled = True
                    self._on_cancel(record_id)
            if time.monotonic() >= self._tend_at:
                self._tend_at = time.monotonic() + TEND_S
                self._store.recover()
                if self._store.prune():  # and perhaps there is more
                    self._tend_at = time.monotonic() + self._every_s
        except StoreError as error:
            log.warning("the store could not be tended: %s", error.cause)


def _sentence(cause: str) -> str:
    return f"the answer could not be saved: {cause}"


def _encodable(entries: Sequence[Entry]) -> list[Entry]:
    kept: list[Entry] = []
    for entry in entries:
        try:
            encode([entry])
        except ValueError:
            continue
        kept.append(entry)
    return kept
