"""One SQLite file of ours: make it, recognise it, bring it up to date, and say in plain words what goes wrong.

It knows no records (`serve.store`). SQLite (from 3.24) does the durability: write-ahead log, every commit synced.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

BUSY_S = 5.0
APPLICATION_ID = 0x53747261  # "Stra"
MAGIC = b"SQLite format 3\0"
WAL_LIMIT_BYTES = 16 * 2**20
RETRY_S = 0.01

_WORDS = {
    sqlite3.SQLITE_BUSY: f"it was locked by another program for longer than {BUSY_S:g} s",
    sqlite3.SQLITE_LOCKED: f"it was locked by another program for longer than {BUSY_S:g} s",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it cannot be written: it or its folder is read-only",
    sqlite3.SQLITE_PERM: "access was denied",
    sqlite3.SQLITE_CANTOPEN: "it or a file beside it cannot be opened",
    sqlite3.SQLITE_IOERR: "reading or writing failed",
    sqlite3.SQLITE_NOTADB: "it is not a database",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_TOOBIG: "a value is too large for it",
}


class StoreError(Exception):
    """The store cannot do what was asked. The text names the file as the user did; `cause` does not."""

    def __init__(self, file: str, cause: str) -> None:
        super().__init__(f"store {file!r}: {cause}")
        self.cause = cause


class Database:
    """A connection that writes and one that reads; both may be used from any thread, one at a time each.

    `migrations[n]` are the statements that bring a file from version n to n + 1. `path` is the real path. Opening
    blocks, at most some `BUSY_S`.

    Raises: StoreError: it cannot be made or opened, is not ours, is from a newer version, or is locked.
    """

    def __init__(self, file: str, path: Path, migrations: Sequence[Sequence[str]]) -> None:
        self._file = file
        self._path = path
        self._closed = False
        with self._words():
            _claim(file, path)
        with contextlib.ExitStack() as undo, self._words():
            undo.callback(_disclaim, path)
            self._writer = self._connect()
            undo.callback(self._writer.close)
            self._migrate(migrations)
            self._use_wal()
            self._reader = self._connect()
            undo.pop_all()
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()

    @contextmanager
    def write(self) -> Generator[sqlite3.Connection]:
        """One transaction that writes: on disk when the block is left, undone if it raises. Blocks.

        Raises: StoreError: it could not be done; nothing of it was.
        """
        with self._write_lock, self._words():
            self._check_open()
            with _transaction(self._writer, "IMMEDIATE"):
                yield self._writer

    @contextmanager
    def read(self) -> Generator[sqlite3.Connection]:
        """One transaction that reads: everything in it is of one moment. Blocks, but not for who writes.

        Raises: StoreError: it could not be read.
        """
        with self._read_lock, self._words():
            self._check_open()
            with _transaction(self._reader, "DEFERRED"):
                yield self._reader

    def close(self) -> None:
        """Blocks for transactions that are going on, in bounded time. A second call does nothing. Never raises."""
        with self._write_lock, self._read_lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(sqlite3.Error):  # only tidier: the log is read by the next one who opens
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._reader.close()
            self._writer.close()
            _disclaim(self._path)

    def error(self, cause: str) -> StoreError:
        """An error about this file."""
        return StoreError(self._file, cause)

    def _check_open(self) -> None:
        if self._closed:
            raise self.error("it is closed")

    @contextmanager
    def _words(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self.error(_cause(error)) from error
        except OSError as error:
            raise self.error(error.strerror or type(error).__name__) from error

    def _connect(self) -> sqlite3.Connection:
        link = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            link.execute("PRAGMA synchronous = FULL")
            link.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
        except BaseException:
            link.close()
            raise
        return link

    def _migrate(self, migrations: Sequence[Sequence[str]]) -> None:
        """Before the write-ahead log is on: so the header that tells whose file it is is in the file at once."""
        newest = len(migrations)
        if self._version(newest) == newest:
            return
        self._writer.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts for a new file only
        with _transaction(self._writer, "IMMEDIATE"):
            version = self._version(newest)  # somebody else may have done it meanwhile
            for statement in (statement for step in migrations[version:] for statement in step):
                self._writer.execute(statement)
            self._writer.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._writer.execute(f"PRAGMA user_version = {newest}")

    def _use_wal(self) -> None:
        deadline = time.monotonic() + BUSY_S
        while True:  # SQLite does not wait by itself here if two processes do this at once
            try:
                mode: str = self._writer.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)
                continue
            if mode != "wal":
                raise self.error("its file system cannot share memory between processes; name a file on a local disk")
            return

    def _version(self, newest: int) -> int:
        version: int = self._writer.execute("PRAGMA user_version").fetchone()[0]
        if version > newest:
            raise self.error(
                f"it was written by a newer version (schema {version}, this one knows {newest}); "
                "use that version, or name another file"
            )
        return version


@contextmanager
def _transaction(link: sqlite3.Connection, mode: Literal["IMMEDIATE", "DEFERRED"]) -> Generator[None]:
    link.execute(f"BEGIN {mode}")
    try:
        yield
        link.execute("COMMIT")
    except BaseException:
        if link.in_transaction:  # a full disk has undone it already
            with contextlib.suppress(sqlite3.Error):
                link.execute("ROLLBACK")
        raise


def _primary(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # errors of the Python module have none
    return code & 0xFF


def _cause(error: sqlite3.Error) -> str:
    words = _WORDS.get(_primary(error), "it cannot be used")
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return f"{words} ({name})"


# --- the file itself ---------------------------------------------------------------------------------

_open_here: Counter[Path] = Counter()
_open_here_lock = threading.Lock()


def _claim(file: str, path: Path) -> None:
    """Make the file if it is not there, readable by its user only; refuse one that is not ours, without touching it.

    SQLite itself would write into another program's file (a log to roll back, files beside it). POSIX takes all of a
    process's locks on a file away when one descriptor of it is closed, so a file that this process has open as a
    store is not opened beside SQLite again.
    """
    with _open_here_lock:
        if not _open_here[path]:
            _create(path)
            if not _is_ours(path):
                raise StoreError(file, "it is not a store of this server; name another file")
        _open_here[path] += 1


def _disclaim(path: Path) -> None:
    with _open_here_lock:
        _open_here[path] -= 1


def _create(path: Path) -> None:
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _is_ours(path: Path) -> bool:
    """An empty file is: one that was just made. So is a database in which nothing was ever made, as SQLite leaves it
    between its first write and ours. Source: sqlite.org/fileformat2.html, 1.3 "The Database Header": versions 1 of the
    format have no log beside them that could hold more; the schema cookie counts changes of the schema."""
    if not path.is_file():  # a pipe would wait for its writer
        return False
    with path.open("rb") as file:
        header = file.read(100)
    if not header:
        return True
    if not header.startswith(MAGIC):
        return False
    cookie, version, application = (int.from_bytes(header[at : at + 4], "big") for at in (40, 60, 68))
    return application == APPLICATION_ID or (header[18:20] == b"\1\1" and not (cookie or version or application))
