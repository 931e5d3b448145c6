"""The records of answers on disk: what was asked, the entries of what was made, and who makes it.

No status is stored: a record without an end runs. Several processes may use one file; each open store is an owner, and
what an owner left running when its process ended is ended here, as lost. It starts no thread (`serve.recorder` does),
knows no wire form, and never looks into `head` and `input`.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.events import Failed, FailKind
from serve.database import Database, StoreError
from serve.entries import Ended, Entry, decode, encode
from serve.owner import Owner, is_gone, sweep

PRUNE_RECORDS = 256
PRUNE_BYTES = 8 * 2**20
VACUUM_PAGES = 1_024
SPARE_PAGES = 1_024
"""As many free pages stay in the file: what comes next takes them, and moving pages about is not free."""
ASK_OWNER_S = 1.0
"""A reader that polls asks no more often whether a record's owner is still there: asking takes the write lock."""

LOST = "the server stopped while the answer was made; what was saved until then is kept"

_MIGRATIONS = (
    (
        "CREATE TABLE records (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,"
        " created_at REAL NOT NULL, background INTEGER NOT NULL, previous_id TEXT, owner TEXT NOT NULL,"
        " cancel INTEGER NOT NULL DEFAULT 0, ended_at REAL)",
        "CREATE INDEX records_running ON records (owner) WHERE ended_at IS NULL",
        "CREATE INDEX records_ended ON records (ended_at) WHERE ended_at IS NOT NULL",
        # Of their own: a row is rewritten as a whole when it ends, and these may be large.
        "CREATE TABLE bodies (record INTEGER PRIMARY KEY, head BLOB NOT NULL, input BLOB NOT NULL)",
        "CREATE TABLE segments (record INTEGER NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,"
        " data BLOB NOT NULL, PRIMARY KEY (record, first)) WITHOUT ROWID",
    ),
)


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of an answer when it begins. `created_at` is in Unix seconds; `kind`, `head` and `input` are the
    caller's own."""

    id: str
    kind: str
    created_at: float
    background: bool
    previous_id: str | None
    head: bytes
    input: bytes


@dataclass(frozen=True, slots=True)
class Write:
    """`count` entries of a record from index `first` on, as `serve.entries.encode` gives them. `ended_at`, in Unix
    seconds, if the last of them is the end."""

    record_id: str
    first: int
    count: int
    data: bytes
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as it was at one moment. `mine`: this store's process makes it, or made it."""

    record: Record
    entries: list[Entry]
    ended: bool
    mine: bool


@dataclass(frozen=True, slots=True)
class _Row:
    key: int
    owner: str
    ended: bool


class Store:
    """Thread-safe; every method blocks: for the disk, and up to `serve.database.BUSY_S` seconds for a file that
    another process has locked. Every method may raise `StoreError`.

    Ended records go after `max_age_s` seconds, and the oldest ones where the file has more than `max_bytes` bytes in
    use (`prune`).

    Raises: StoreError: the file cannot be made or opened, is not ours, is from a newer version, or is locked.
    """

    def __init__(self, path: str | Path, *, max_age_s: float, max_bytes: int) -> None:
        self._max_age_s = max_age_s
        self._max_bytes = max_bytes
        # SQLite puts its log beside the file that a link leads to; the owners' files must lie there, too.
        self._path = Path(os.path.realpath(path))
        self._there_until: dict[str, float] = {}
        self._database = Database(str(path), self._path, _MIGRATIONS)
        self._owner: Owner | None = None
        try:
            with self._database.write() as db:
                self._owner = Owner(self._path)
                self._recover(db)
                sweep(self._path)
        except BaseException:
            self.close()
            raise
        self._token = self._owner.token

    # --- writing -------------------------------------------------------------------------------------

    def write(self, begin: Sequence[Record], writes: Sequence[Write]) -> set[str]:
        """New records and further entries in one transaction: all are on disk, or none. Gives back the ids of the
        `writes` whose record is gone: deleted, or ended by somebody else. Repeating a write does nothing."""
        with self._database.write() as db:
            for record in begin:
                self._insert(db, record)
            return {write.record_id for write in writes if not self._append(db, write)}

    def _insert(self, db: sqlite3.Connection, record: Record) -> None:
        cursor = db.execute(
            "INSERT INTO records (id, kind, created_at, background, previous_id, owner) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO NOTHING",
            (record.id, record.kind, record.created_at, record.background, record.previous_id, self._token),
        )
        if cursor.rowcount:
            values = (cursor.lastrowid, record.head, record.input)
            db.execute("INSERT INTO bodies (record, head, input) VALUES (?, ?, ?)", values)
        elif (row := _row(db, record.id)) is None or row.owner != self._token:
            raise self._database.error("a record with this id is there already")

    def _append(self, db: sqlite3.Connection, write: Write) -> bool:
        row = _row(db, write.record_id)
        if row is None:
            return False
        values = (row.key, write.first, write.count, write.data)
        if row.ended:  # a repeated write, or one to a record that was given up as lost
            same = "SELECT 1 FROM segments WHERE record = ? AND first = ? AND count = ? AND data = ?"
            return db.execute(same, values).fetchone() is not None
        # A write that is tried again may have grown meanwhile.
        db.execute(
            "INSERT INTO segments (record, first, count, data) VALUES (?, ?, ?, ?) ON CONFLICT (record, first)"
            " DO UPDATE SET count = excluded.count, data = excluded.data WHERE excluded.count > count",
            values,
        )
        if write.ended_at is not None:
            db.execute("UPDATE records SET ended_at = ? WHERE key = ?", (write.ended_at, row.key))
        return True

    def delete(self, record_id: str) -> bool:
        """Delete the record, running or not; whether there was one."""
        with self._database.write() as db:
            row = _row(db, record_id)
            if row is not None:
                _delete(db, row.key)
            return row is not None

    def ask_cancel(self, record_id: str) -> bool:
        """Ask the process that makes it to cancel it; whether it runs."""
        with self._database.write() as db:
            changed = db.execute("UPDATE records SET cancel = 1 WHERE id = ? AND ended_at IS NULL", (record_id,))
            return changed.rowcount > 0

    # --- reading -------------------------------------------------------------------------------------

    def load(self, record_id: str) -> Stored | None:
        """The record with all of its entries; None if there is none. One whose owner is gone is ended first."""
        with self._database.read() as db:
            found = db.execute(
                "SELECT kind, created_at, background, previous_id, head, input FROM records"
                " JOIN bodies ON record = key WHERE id = ?",
                (record_id,),
            ).fetchone()
        if found is None:
            return None
        kind, created_at, background, previous_id, head, input_ = found
        made = self._made(record_id, 0)
        if made is None:
            return None
        row, entries = made
        record = Record(record_id, kind, created_at, bool(background), previous_id, head, input_)
        return Stored(record, entries, row.ended, row.owner == self._token)

    def entries_from(self, record_id: str, first: int) -> tuple[list[Entry], bool] | None:
        """The saved entries from index `first` (≥ 0) on, and whether the last one saved is the end; None if there is
        no such record. For who follows a record of another process; one whose owner is gone is ended first."""
        made = self._made(record_id, first)
        return None if made is None else (made[1], made[0].ended)

    def _made(self, record_id: str, first: int) -> tuple[_Row, list[Entry]] | None:
        found = self._segments(record_id, first)
        if found is not None and not found[0].ended and self._ended_for(found[0].owner):
            found = self._segments(record_id, first)
        if found is None:
            return None
        row, segments = found
        begin = segments[0][0] if segments else first
        entries: list[Entry] = []
        for at, data in segments:
            if at != begin + len(entries):
                raise self._database.error("it is damaged: entries of a record are missing")
            try:
                entries += decode(data)
            except ValueError as error:
                raise self._database.error(f"it is damaged: {error}") from None
        return row, entries[max(0, first - begin) :]

    def _segments(self, record_id: str, first: int) -> tuple[_Row, list[tuple[int, bytes]]] | None:
        """The segments from the one on that holds entry `first`, with the record's state at that moment."""
        with self._database.read() as db:
            row = _row(db, record_id)
            if row is None:
                return None
            segments: list[tuple[int, bytes]] = db.execute(
                "SELECT first, data FROM segments WHERE record = ?1 AND first >= coalesce("
                "(SELECT max(first) FROM segments WHERE record = ?1 AND first <= ?2), 0) ORDER BY first",
                (row.key, first),
            ).fetchall()
            return row, segments

    def asked_to_cancel(self) -> list[str]:
        """The ids of this process's running records that somebody asked to cancel."""
        with self._database.read() as db:
            rows: list[tuple[str]] = db.execute(
                "SELECT id FROM records WHERE owner = ? AND ended_at IS NULL AND cancel", (self._token,)
            ).fetchall()
            return [id_ for (id_,) in rows]

    # --- what others left ----------------------------------------------------------------------------

    def recover(self) -> int:
        """End what the processes that are gone left running, as lost; how many records that were."""
        with self._database.read() as db:
            if not self._other_owners(db):
                return 0
        with self._database.write() as db:
            return self._recover(db)

    def _recover(self, db: sqlite3.Connection) -> int:
        return sum(_end_all(db, owner) for owner in self._other_owners(db) if is_gone(self._path, owner))

    def _other_owners(self, db: sqlite3.Connection) -> list[str]:
        mine = "" if self._owner is None else self._owner.token
        rows: list[tuple[str]] = db.execute(
            "SELECT DISTINCT owner FROM records WHERE ended_at IS NULL AND owner != ?", (mine,)
        ).fetchall()
        return [owner for (owner,) in rows]

    def _ended_for(self, owner: str) -> bool:
        """End what this owner left, if it is gone; whether it is."""
        if owner == self._token or time.monotonic() < self._there_until.get(owner, 0.0):
            return False
        with self._database.write() as db:
            if is_gone(self._path, owner):
                _end_all(db, owner)
                return True
        self._there_until[owner] = time.monotonic() + ASK_OWNER_S
        return False

    # --- retention -----------------------------------------------------------------------------------

    def prune(self) -> int:
        """Delete ended records that are too old or too much, the oldest first, in one batch, and make the file
        smaller in steps; how many records those were. The caller comes again soon until it is 0, and now and then.
        Running records stay."""
        with self._database.read() as db:
            if not self._too_much(db, _oldest(db, 1)) and _number(db, "freelist_count") <= SPARE_PAGES:
                return 0
        with self._database.write() as db:
            before = _used_bytes(db)
            count = 0
            for key, ended_at in _oldest(db, PRUNE_RECORDS):
                if not self._too_much(db, [(key, ended_at)]) or before - _used_bytes(db) > PRUNE_BYTES:
                    break
                _delete(db, key)
                count += 1
            for _ in range(min(_number(db, "freelist_count") - SPARE_PAGES, VACUUM_PAGES)):
                db.execute("PRAGMA incremental_vacuum(1)")  # Python's module stops it after its first page anyway
            return count

    def _too_much(self, db: sqlite3.Connection, oldest: list[tuple[int, float]]) -> bool:
        return any(at < time.time() - self._max_age_s for _, at in oldest) or (
            bool(oldest) and _used_bytes(db) > self._max_bytes
        )

    def close(self) -> None:
        """Give the file up: what this process left running is ended by whoever opens or reads it next. A second call
        does nothing. Never raises."""
        self._database.close()
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.release()


def _row(db: sqlite3.Connection, record_id: str) -> _Row | None:
    found: tuple[int, str, float | None] | None = db.execute(
        "SELECT key, owner, ended_at FROM records WHERE id = ?", (record_id,)
    ).fetchone()
    return None if found is None else _Row(found[0], found[1], found[2] is not None)


def _delete(db: sqlite3.Connection, key: int) -> None:
    db.execute("DELETE FROM segments WHERE record = ?", (key,))
    db.execute("DELETE FROM bodies WHERE record = ?", (key,))
    db.execute("DELETE FROM records WHERE key = ?", (key,))


def _end_all(db: sqlite3.Connection, owner: str) -> int:
    now = time.time()
    data = encode([Ended(Failed(FailKind.LOST, LOST), now)])
    cursor = db.execute(
        "INSERT INTO segments (record, first, count, data) SELECT key, coalesce("
        "(SELECT max(first + count) FROM segments WHERE record = key), 0), 1, ?"
        " FROM records WHERE owner = ? AND ended_at IS NULL",
        (data, owner),
    )
    db.execute("UPDATE records SET ended_at = ? WHERE owner = ? AND ended_at IS NULL", (now, owner))
    return cursor.rowcount


def _oldest(db: sqlite3.Connection, limit: int) -> list[tuple[int, float]]:
    return db.execute(
        "SELECT key, ended_at FROM records WHERE ended_at IS NOT NULL ORDER BY ended_at LIMIT ?", (limit,)
    ).fetchall()


def _used_bytes(db: sqlite3.Connection) -> int:
    return (_number(db, "page_count") - _number(db, "freelist_count")) * _number(db, "page_size")


def _number(db: sqlite3.Connection, pragma: str) -> int:
    number: int = db.execute(f"PRAGMA {pragma}").fetchone()[0]
    return number


__all__ = ["Record", "Store", "StoreError", "Stored", "Write"]
