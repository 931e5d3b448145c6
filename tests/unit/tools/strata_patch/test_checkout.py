from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.strata_patch import checkout
from tools.strata_patch.checkout import BACKUP, Change, Refused

NAMES = ("serve/server.py", "serve/test.py")
posix = pytest.mark.skipif(os.name == "nt", reason="modes and links are POSIX's")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "serve").mkdir()
    for name in NAMES:
        (tmp_path / name).write_bytes(name.encode() + b"\r\n")
    return tmp_path


def change(root: Path, name: str, after: bytes) -> Change:
    return Change(name, (root / name).read_bytes(), after)


def changes(root: Path) -> list[Change]:
    return [change(root, name, f"{name} patched \u20ac".encode()) for name in NAMES]


def contents(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in NAMES}


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        call()
    return str(caught.value)


def test_revert_puts_back_every_byte_and_leaves_nothing(root: Path) -> None:
    before = contents(root)
    checkout.apply(root, changes(root))
    assert all(data.endswith("patched €".encode()) for data in contents(root).values())
    assert checkout.revert(root) == list(NAMES)
    assert contents(root) == before
    assert sorted(path.name for path in root.rglob("*")) == ["serve", "server.py", "test.py"]


def test_revert_refuses_a_file_that_was_changed_since_and_changes_none(root: Path) -> None:
    checkout.apply(root, changes(root))
    (root / NAMES[1]).write_bytes(b"mine")
    now = contents(root)
    assert "serve/test.py was changed since it was patched" in refused(lambda: checkout.revert(root))
    assert contents(root) == now


def test_revert_after_a_change_that_was_cut_off_is_exact(root: Path) -> None:
    before = contents(root)
    checkout.apply(root, changes(root))
    (root / NAMES[1]).write_bytes(before[NAMES[1]])  # as if the power had failed between the two files
    assert checkout.revert(root) == [NAMES[0]]
    assert contents(root) == before


def test_revert_without_a_backup_says_so(root: Path) -> None:
    assert "there is no backup" in refused(lambda: checkout.revert(root))


@pytest.mark.parametrize("name", ["manifest.json", "serve-server.py.before"])
def test_a_damaged_backup_changes_nothing(root: Path, name: str) -> None:
    checkout.apply(root, changes(root))
    (root / BACKUP / name).write_bytes(b"{}x")
    now = contents(root)
    assert "damaged" in refused(lambda: checkout.revert(root))
    assert contents(root) == now


def test_a_second_change_of_one_file_keeps_the_way_back_of_the_other(root: Path) -> None:
    before = contents(root)
    checkout.apply(root, changes(root))
    checkout.revert(root)
    checkout.apply(root, changes(root))
    (root / NAMES[0]).write_bytes(b"a new version")
    checkout.apply(root, [change(root, NAMES[0], b"the new version patched")])
    checkout.revert(root)
    assert contents(root) == {NAMES[0]: b"a new version", NAMES[1]: before[NAMES[1]]}


@posix
def test_the_mode_stays_and_a_link_stays_a_link(root: Path, tmp_path: Path) -> None:
    server = root / NAMES[0]
    server.chmod(0o755)
    elsewhere = tmp_path / "real.py"
    (root / NAMES[1]).replace(elsewhere)
    (root / NAMES[1]).symlink_to(elsewhere)
    checkout.apply(root, changes(root))
    assert stat.S_IMODE(server.stat().st_mode) == 0o755
    assert (root / NAMES[1]).is_symlink()
    assert elsewhere.read_bytes().endswith("patched €".encode())
    checkout.revert(root)
    assert stat.S_IMODE(server.stat().st_mode) == 0o755


def test_one_file_that_cannot_be_written_leaves_the_other_as_it_was(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = contents(root), Path.replace

    def replace(self: Path, target: Path) -> Path:
        if target.name == "test.py":
            raise PermissionError(13, "in use")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    assert "serve/test.py: cannot be written: in use" in refused(lambda: checkout.apply(root, changes(root)))
    assert contents(root) == before
    assert not list((root / "serve").glob("*.part"))


# --- git ----------------------------------------------------------------------------------------------


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture
def committed(root: Path) -> Path:
    git(root, "init", "-q")
    git(root, "add", NAMES[0])
    git(root, "commit", "-q", "-m", "first")
    return root


def test_files_as_they_are_committed_and_files_that_git_has_not_are_not_refused(committed: Path) -> None:
    checkout.refuse_uncommitted(committed, NAMES)
    (committed / "serve" / "other.py").write_bytes(b"x")
    checkout.refuse_uncommitted(committed, NAMES)


@pytest.mark.parametrize("staged", [False, True])
def test_a_file_with_changes_that_are_not_committed_is_refused(committed: Path, staged: bool) -> None:
    (committed / NAMES[0]).write_bytes(b"mine")
    if staged:
        git(committed, "add", NAMES[0])
    said = refused(lambda: checkout.refuse_uncommitted(committed, NAMES))
    assert said.startswith("serve/server.py: changed since the last commit")
    assert "--force" in said


def test_a_file_that_was_added_and_never_committed_is_refused(committed: Path) -> None:
    git(committed, "add", NAMES[1])
    assert "serve/test.py" in refused(lambda: checkout.refuse_uncommitted(committed, NAMES))


def test_a_folder_below_a_repository_is_looked_at_too(committed: Path) -> None:
    (committed / NAMES[0]).write_bytes(b"mine")
    assert "server.py" in refused(lambda: checkout.refuse_uncommitted(committed / "serve", ["server.py"]))


def test_in_a_hook_of_another_repository_the_checkouts_own_is_asked(
    committed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    checkout.refuse_uncommitted(committed, NAMES)
    (committed / NAMES[0]).write_bytes(b"mine")
    assert "server.py" in refused(lambda: checkout.refuse_uncommitted(committed, NAMES))


def test_no_repository_is_not_refused(root: Path) -> None:
    checkout.refuse_uncommitted(root, NAMES)


def test_a_repository_that_git_cannot_read_is_refused(root: Path) -> None:
    (root / ".git").write_bytes(b"nonsense")
    assert "git cannot say" in refused(lambda: checkout.refuse_uncommitted(root, NAMES))
