"""Who is alive: a lock on a file, given back by the system with its process."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from serve.owner import Owner, is_gone, sweep


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a [b].db"  # a name that looks like a pattern


def files(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


def test_an_owner_is_there_until_it_releases_also_for_its_own_process(path: Path) -> None:
    owner = Owner(path)
    assert not is_gone(path, owner.token)
    assert not is_gone(path, owner.token)  # asking took nothing away
    assert files(path) == [f"{path.name}.owner-{owner.token}"]
    owner.release()
    assert is_gone(path, owner.token)
    assert files(path) == []


def test_one_process_can_be_several_owners(path: Path) -> None:
    one, other = Owner(path), Owner(path)
    one.release()
    assert (is_gone(path, one.token), is_gone(path, other.token)) == (True, False)
    other.release()
    assert is_gone(path, other.token)


def test_tokens_cannot_be_guessed_and_name_a_file_everywhere(path: Path) -> None:
    owners = [Owner(path) for _ in range(20)]
    tokens = {owner.token for owner in owners}
    for owner in owners:
        owner.release()
    assert len(tokens) == 20
    assert all(re.fullmatch("[0-9a-f]{16}", token) for token in tokens)


def test_an_owner_that_nobody_knows_is_gone(path: Path) -> None:
    assert is_gone(path, "0123456789abcdef")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_the_file_is_for_its_user_only(path: Path) -> None:
    owner = Owner(path)
    (file,) = path.parent.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    owner.release()


def test_a_sweep_takes_away_what_nobody_holds_and_nothing_else(path: Path) -> None:
    owner = Owner(path)
    stale = path.with_name(f"{path.name}.owner-00")
    others = [path, path.with_name("a b.db.owner-00"), path.with_name(f"{path.name}-wal")]
    for file in (stale, *others):
        file.touch()
    sweep(path)
    assert files(path) == sorted([*(file.name for file in others), f"{path.name}.owner-{owner.token}"])
    assert not is_gone(path, owner.token)
    owner.release()


def test_no_folder_no_owner(path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Owner(path.parent / "missing" / "x.db")
