"""The store's file: made, recognised, brought up to date, refused; and its errors in plain words."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from serve import database
from serve.database import APPLICATION_ID, Database, StoreError
from tests.unit.serve.stored import DEADLINE_S, ROOT, small_disk

FIRST = ("CREATE TABLE t (x INTEGER)",)
SECOND = ("ALTER TABLE t ADD COLUMN y INTEGER NOT NULL DEFAULT 7",)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def opened(path: Path, *migrations: tuple[str, ...]) -> closing[Database]:
    return closing(Database(str(path), Path(os.path.realpath(path)), migrations or (FIRST,)))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def add(base: Database, value: int) -> None:
    with base.write() as db:
        db.execute("INSERT INTO t (x) VALUES (?)", (value,))


def rows(base: Database) -> list[tuple[int, ...]]:
    with base.read() as db:
        return db.execute("SELECT * FROM t").fetchall()


# --- making and opening ------------------------------------------------------------------------------


def test_what_was_written_is_there_in_the_next_life(path: Path) -> None:
    with opened(path) as base:
        add(base, 5)
        assert rows(base) == [(5,)]
    with opened(path) as base:
        assert rows(base) == [(5,)]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_the_file_what_lies_beside_it_and_a_new_folder_are_for_their_user_only(tmp_path: Path) -> None:
    path = tmp_path / "outer" / "new" / "store.db"
    with opened(path) as base:
        add(base, 1)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_the_modes_of_a_folder_and_a_file_that_are_there_stay(path: Path) -> None:
    path.touch()
    path.chmod(0o640)
    path.parent.chmod(0o750)
    with opened(path):
        pass
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o640, 0o750)


def test_a_commit_is_synced_and_a_file_can_shrink(path: Path) -> None:
    with opened(path) as base, base.write() as db:
        values = {
            name: db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "auto_vacuum")
        }
    assert values == {"journal_mode": "wal", "synchronous": 2, "auto_vacuum": 2}


class Contended(sqlite3.Connection):
    """Another process opens the same new file: SQLite refuses the change of mode without waiting, so often."""

    refusals = 0

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "PRAGMA journal_mode = WAL" and Contended.refusals:
            Contended.refusals -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return super().execute(sql, parameters)


@pytest.mark.parametrize("refusals", [3, 10**9])
def test_opening_waits_for_another_process_that_opens_the_same_new_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Contended))
    monkeypatch.setattr(Contended, "refusals", refusals)
    if refusals == 3:
        with opened(path) as base:
            add(base, 1)
        return
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    with pytest.raises(StoreError, match="locked"):
        opened(path)


def test_many_that_open_a_new_file_at_once_make_one(tmp_path: Path) -> None:
    together = threading.Barrier(6)
    faults: list[Exception] = []
    paths = [tmp_path / f"{turn}.db" for turn in range(20)]

    def use(number: int) -> None:
        try:
            for path in paths:
                together.wait(DEADLINE_S)
                with opened(path) as base:
                    add(base, number)
        except (StoreError, threading.BrokenBarrierError) as error:
            faults.append(error)
            together.abort()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert faults == []
    for path in paths:
        with opened(path) as base:
            assert sorted(rows(base)) == [(number,) for number in range(6)]


def test_a_file_whose_maker_was_killed_before_anything_was_in_it_is_taken(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as maker:
        maker.execute("PRAGMA auto_vacuum = INCREMENTAL")  # a write of its own
    assert path.read_bytes().startswith(b"SQLite format 3")
    with opened(path) as base:
        add(base, 1)
        assert rows(base) == [(1,)]
    with closing(sqlite3.connect(path)) as reader:
        assert reader.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert reader.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_opening_a_file_twice_in_one_process_does_not_lose_its_locks(path: Path) -> None:
    """Another process could take the log away under the one that is open."""
    code = (
        "import sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], timeout=0)\n"
        "try: print(db.execute('PRAGMA journal_mode = DELETE').fetchone()[0])\n"  # needs the file for itself
        "except sqlite3.OperationalError as error: print(error)\n"
    )

    def taken() -> str:
        found = subprocess.run([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, timeout=DEADLINE_S)
        return found.stdout.decode().strip()

    with opened(path):
        with opened(path):
            pass
        assert taken() == "database is locked"
    assert taken() == "delete"


@pytest.mark.skipif(os.name == "nt", reason="on Windows, links are for administrators")
def test_a_link_and_the_file_that_it_leads_to_are_one_store(tmp_path: Path) -> None:
    real, link = tmp_path / "real.db", tmp_path / "link.db"
    link.symlink_to(real)
    with opened(link) as one, opened(real) as other:
        add(one, 1)
        assert rows(other) == [(1,)]


# --- versions ----------------------------------------------------------------------------------------


def test_an_older_file_is_brought_up_to_date_and_keeps_what_it_has(path: Path) -> None:
    with opened(path, FIRST) as base:
        add(base, 5)
    for _ in range(2):  # once, and never again
        with opened(path, FIRST, SECOND) as base:
            assert rows(base) == [(5, 7)]


def test_a_newer_file_is_refused_and_stays_as_it_is(path: Path) -> None:
    with opened(path, FIRST, SECOND) as base:
        add(base, 5)
    before = contents(path.parent)
    with pytest.raises(StoreError, match=r"newer version \(schema 2, this one knows 1\)"):
        opened(path, FIRST)
    assert contents(path.parent) == before


def test_a_step_that_fails_leaves_the_older_version(path: Path) -> None:
    with opened(path, FIRST) as base:
        add(base, 5)
    with pytest.raises(StoreError):
        opened(path, FIRST, (*SECOND, "CREATE TABLE t (again)"))
    with opened(path, FIRST) as base:
        assert rows(base) == [(5,)]


# --- files that are not ours -------------------------------------------------------------------------


def foreign_database(path: Path) -> None:
    """Another program's: in write-ahead mode, as its process left it when it was killed."""
    code = (
        "import os, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1])\n"
        "db.execute('PRAGMA journal_mode = WAL')\n"
        "db.execute('CREATE TABLE t (x)')\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=DEADLINE_S)


def some_text(path: Path) -> None:
    path.write_text("x = 1\n" * 100, encoding="utf-8")


def short_text(path: Path) -> None:
    path.write_bytes(b"SQLite")


def zeros(path: Path) -> None:
    path.write_bytes(bytes(4096))


@pytest.mark.parametrize("make", [foreign_database, some_text, short_text, zeros])
def test_a_file_that_is_not_ours_is_refused_and_stays_as_it_is(path: Path, make: object) -> None:
    assert callable(make)
    make(path)
    before = contents(path.parent)
    with pytest.raises(StoreError, match="not a store of this server; name another file"):
        opened(path)
    assert contents(path.parent) == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in the file system")
def test_a_pipe_is_refused_without_waiting_for_its_writer(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(StoreError, match="not a store"):
        opened(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a store"):
        opened(tmp_path)


def test_a_damaged_file_of_ours_says_so(path: Path) -> None:
    with opened(path) as base:
        for number in range(2_000):
            add(base, number)
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\x5a" * (len(data) - 4096))
    with opened(path) as base, pytest.raises(StoreError, match="damaged"):
        rows(base)


# --- what cannot be done -----------------------------------------------------------------------------


def test_no_folder_can_be_made_where_a_file_is(path: Path) -> None:
    path.touch()
    with pytest.raises(StoreError, match=re.escape(repr(str(path / "store.db")))):
        opened(path / "store.db")


@pytest.fixture
def locked_folder() -> Iterator[Path]:
    """One that everybody can look into and nobody can write to (pytest's own are closed to other users)."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_cannot_be_written_is_said(locked_folder: Path, there: bool) -> None:
    path = locked_folder / "store.db"
    if there:
        locked_folder.chmod(0o755)
        with opened(path):
            pass
        path.chmod(0o444)
        locked_folder.chmod(0o555)
    code = (
        "import os, pathlib, sys\n"
        "from serve.store import Store, StoreError\n"
        "if os.geteuid() == 0: os.seteuid(65534)\n"  # root may write everywhere
        "try: Store(sys.argv[1], max_age_s=1.0, max_bytes=1)\n"
        "except StoreError as error: print(error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, timeout=DEADLINE_S, encoding="utf-8"
    )
    assert found.returncode == 0
    assert re.search("ermission denied|read-only|cannot be opened", found.stdout), found.stdout
    assert list(locked_folder.iterdir()) == ([path] if there else [])


def test_a_file_locked_by_another_program_is_said_and_nothing_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    with opened(path) as base, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another program"):
            add(base, 1)
        with pytest.raises(StoreError, match="locked by another program"):
            opened(path, FIRST, SECOND)
        assert rows(base) == []  # who reads does not wait
        other.execute("ROLLBACK")
        add(base, 2)
        assert rows(base) == [(2,)]


def test_a_full_disk_is_said_and_nothing_of_the_transaction_is_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_disk(monkeypatch, 40)
    with opened(path) as base:
        add(base, 1)
        with pytest.raises(StoreError, match="the disk is full") as caught, base.write() as db:
            db.execute("CREATE TABLE big AS SELECT zeroblob(1000000)")
        assert caught.value.cause == "the disk is full (SQLITE_FULL)"
        add(base, 2)
        assert rows(base) == [(1,), (2,)]


def test_a_transaction_whose_block_raises_is_undone(path: Path) -> None:
    with opened(path) as base:
        with pytest.raises(KeyError), base.write() as db:
            db.execute("INSERT INTO t VALUES (1)")
            raise KeyError
        assert rows(base) == []


def test_a_closed_one_says_so_and_closes_again(path: Path) -> None:
    base = Database(str(path), path, (FIRST,))
    base.close()
    base.close()
    with pytest.raises(StoreError, match="it is closed"):
        add(base, 1)
    with pytest.raises(StoreError, match="it is closed"):
        rows(base)


def test_the_errors_name_the_file_as_the_user_did_and_the_cause_does_not(path: Path) -> None:
    some_text(path)
    with pytest.raises(StoreError) as caught:
        Database("~/my.db", path, (FIRST,))
    assert str(caught.value).startswith("store '~/my.db': ")
    assert str(path.parent) not in str(caught.value)
    assert "my.db" not in caught.value.cause


def test_the_mark_of_our_files_never_changes() -> None:
    """Files that are out there carry it."""
    assert APPLICATION_ID == 0x53747261
