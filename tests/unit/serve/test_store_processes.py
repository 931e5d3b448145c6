"""Several processes and one file: killed ones, living ones, all at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from serve.entries import Entry
from serve.store import Store
from tests.unit.serve.stored import (
    DEADLINE_S,
    END,
    YEAR_S,
    child,
    line,
    lost,
    opened,
    stored,
    texts,
    wait_until,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def saved(store: Store, id_: str) -> int:
    found = store.entries_from(id_, 0)
    assert found is not None
    assert not found[1]
    return len(found[0])


def kill_in_the_middle(path: Path, store: Store, ids: list[str], count: int) -> None:
    """A process that makes these answers, killed after so many entries of each are saved."""
    with child("stream", str(path), *ids) as process:
        assert sorted(line(process) for _ in ids) == sorted(f"begun {id_}" for id_ in ids)
        wait_until(lambda: all(saved(store, id_) > count for id_ in ids), "entries of another process are saved")
        assert store.recover() == 0  # it lives
        process.kill()
        assert process.wait(DEADLINE_S) != 0


def test_a_process_killed_in_mid_answer_leaves_lost_records_with_what_was_saved(path: Path) -> None:
    ids = ["r1", "r2", "r3"]
    with opened(path) as store:
        kill_in_the_middle(path, store, ids, 30)
        assert store.recover() == 3
        assert min(lost(stored(store, id_)) for id_ in ids) > 30
    with opened(path) as store:
        assert min(lost(stored(store, id_)) for id_ in ids) > 30


def test_the_next_server_finds_no_running_record(path: Path) -> None:
    """Nobody was there when the process was killed: the file is as it was left, with its log."""
    with child("stream", str(path), "r1") as process:
        assert line(process) == "begun r1"
        process.kill()
        process.wait(DEADLINE_S)
    with opened(path) as store:
        assert lost(stored(store)) >= 0
        assert store.recover() == 0  # opening did it
        (owner_file,) = path.parent.glob("*.owner-*")  # only our own
    assert not owner_file.exists()


@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_killed_at_any_moment_again_and_again_no_record_lies(path: Path, rounds: int) -> None:
    chance = random.Random(rounds)
    for number in range(rounds):
        with opened(path) as store:
            kill_in_the_middle(path, store, [f"r{number}", f"s{number}"], chance.randrange(100))
    with opened(path) as store:
        for number in range(rounds):
            assert lost(stored(store, f"r{number}")) > 0
            assert lost(stored(store, f"s{number}")) > 0


def test_a_follower_of_a_killed_process_gets_its_entries_once_and_the_end(path: Path) -> None:
    with opened(path) as store, child("stream", str(path), "r1") as process:
        assert line(process) == "begun r1"
        seen: list[Entry] = []
        pause = threading.Event()
        ended = False
        while not ended:
            found = store.entries_from("r1", len(seen))
            assert found is not None
            seen += found[0]
            ended = found[1]
            if len(seen) > 20:
                process.kill()
            pause.wait(0.005)
        assert seen == stored(store).entries
        assert seen[:-1] == texts(len(seen) - 1)
        assert lost(stored(store)) > 20


@pytest.fixture
def left_engine(path: Path) -> Iterator[int]:
    """The process id of an engine that outlives its killed server and has every descriptor that one can inherit."""
    with child("leave", str(path), "r1") as process:
        pid = int(line(process))
        process.kill()
        process.wait(DEADLINE_S)
        assert psutil.Process(pid).is_running()
        yield pid
        if psutil.pid_exists(pid):
            psutil.Process(pid).kill()


def test_an_engine_that_outlives_its_server_keeps_no_record_running(path: Path, left_engine: int) -> None:
    with opened(path) as store:
        assert lost(stored(store)) == 3
    assert psutil.Process(left_engine).status() != psutil.STATUS_ZOMBIE


def test_many_that_recover_at_once_end_a_record_once(path: Path) -> None:
    with child("stream", str(path), "r1", "r2") as process:
        assert {line(process), line(process)} == {"begun r1", "begun r2"}
        process.kill()
        process.wait(DEADLINE_S)
    together = threading.Barrier(6)
    found: list[int] = []

    def look() -> None:
        together.wait(DEADLINE_S)
        with closing(Store(path, max_age_s=100 * YEAR_S, max_bytes=2**40)) as store:
            found.extend(lost(stored(store, id_)) for id_ in ("r1", "r2"))  # exactly one end each
            store.recover()
            found.extend(lost(stored(store, id_)) for id_ in ("r1", "r2"))

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(found) == 24


def test_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    with child("answers", str(path), "a", "60") as one, child("answers", str(path), "b", "60") as other:
        with opened(path) as store:
            assert (line(one), line(other)) == ("done", "done")
            for id_ in [f"{name}{number}" for name in "ab" for number in range(60)]:
                assert stored(store, id_).entries == [*texts(5), END]
        assert one.stdin is not None
        assert (one.wait(DEADLINE_S), other.wait(DEADLINE_S)) == (0, 0)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_cancel_for_another_process_arrives_there(path: Path) -> None:
    with opened(path) as store, child("stream", str(path), "r1") as process:
        assert line(process) == "begun r1"
        assert store.ask_cancel("r1")
        assert line(process) == "cancel r1"
