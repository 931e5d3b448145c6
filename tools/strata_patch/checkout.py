"""A checkout on the disk: what would change in it, the change, and the way back.

Files are replaced whole or not at all. What is in them is not its concern.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

BACKUP = ".strata-patch"
MANIFEST = "manifest.json"
GIT_TIMEOUT_S = 60.0
GIT_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")


class Refused(Exception):
    """Nothing was changed; the text says why and what helps."""


@dataclass(frozen=True, slots=True)
class Change:
    """One file with another content. `name`: its path in the checkout, with `/`."""

    name: str
    before: bytes
    after: bytes


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read(root: Path, name: str) -> bytes:
    """Raises: Refused: it cannot be read."""
    try:
        return (root / name).read_bytes()
    except OSError as error:
        raise Refused(f"{name}: cannot be read: {error.strerror}") from None


def apply(root: Path, changes: Sequence[Change]) -> None:
    """Write the changes, after a backup that `revert` needs.

    Raises: Refused: a file cannot be written; those written before are put back.
    """
    folder = root / BACKUP
    kept = {change.name: {"before": _digest(change.before), "after": _digest(change.after)} for change in changes}
    try:
        # what an earlier change kept is of use only for files that this one leaves alone and that are as it left them
        for name, digests in _manifest(folder).items():
            if name not in kept and _digest(read(root, name)) == digests["after"]:
                kept[name] = dict(digests)
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_text("*\n", encoding="ascii")
        for change in changes:
            _replace(folder / _copy_name(change.name), change.before, mode=None)
        _replace(folder / MANIFEST, json.dumps({"files": kept}, indent=2).encode(), mode=None)
    except OSError as error:
        raise Refused(f"{BACKUP}: the backup cannot be written: {error.strerror}") from None
    _write_all(root, {change.name: (change.before, change.after) for change in changes})


def revert(root: Path) -> list[str]:
    """Put the files back as they were before the patch; their names.

    Raises: Refused: there is no backup, or a file was changed since.
    """
    folder = root / BACKUP
    manifest = _manifest(folder)
    if not manifest:
        raise Refused(f"there is no backup in {BACKUP}; nothing was patched here, or it was reverted")
    wanted: dict[str, tuple[bytes, bytes]] = {}
    for name, digests in manifest.items():
        now, kept = read(root, name), _kept(folder, name)
        if _digest(kept) != digests["before"]:
            raise Refused(f"{BACKUP}/{_copy_name(name)} is damaged; {name} stays as it is")
        if _digest(now) not in (digests["after"], digests["before"]):
            raise Refused(f"{name} was changed since it was patched; undo that change first, or edit it by hand")
        if now != kept:
            wanted[name] = (now, kept)
    _write_all(root, wanted)
    shutil.rmtree(folder, ignore_errors=True)
    return sorted(wanted)


def _kept(folder: Path, name: str) -> bytes:
    try:
        return (folder / _copy_name(name)).read_bytes()
    except OSError as error:
        raise Refused(f"{BACKUP}/{_copy_name(name)}: cannot be read: {error.strerror}") from None


def _copy_name(name: str) -> str:
    return name.replace("/", "-") + ".before"


def _manifest(folder: Path) -> Mapping[str, Mapping[str, str]]:
    """The digests of the backup by file; empty if there is none."""
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Refused(f"{BACKUP}/{MANIFEST}: cannot be read: {error.strerror}") from None
    try:
        files = cast("dict[str, dict[str, str]]", json.loads(text)["files"])
        return {str(name): {"before": one["before"], "after": one["after"]} for name, one in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(f"{BACKUP}/{MANIFEST} is damaged; the files stay as they are") from None


def _write_all(root: Path, wanted: Mapping[str, tuple[bytes, bytes]]) -> None:
    """Write the second content of every file, or (if one fails) leave all with the first.

    Raises: Refused: one cannot be written.
    """
    done: list[str] = []
    for name, (_, after) in wanted.items():
        try:
            _replace(root / name, after, mode=(root / name).stat().st_mode)
        except OSError as error:
            for other in done:
                with contextlib.suppress(OSError):
                    _replace(root / other, wanted[other][0], mode=(root / other).stat().st_mode)
            raise Refused(f"{name}: cannot be written: {error.strerror}; nothing was changed") from None
        done.append(name)


def _replace(path: Path, data: bytes, mode: int | None) -> None:
    """The whole new content or the old one, with the same mode; a link stays one."""
    target = path.resolve()
    handle, part = tempfile.mkstemp(prefix=target.name, suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            Path(part).chmod(mode & 0o7777)
        Path(part).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(part).unlink()
        raise


def refuse_uncommitted(root: Path, names: Sequence[str]) -> None:
    """Raises: Refused: git has one of these files, and it differs from what is committed (or git cannot say)."""
    here = root.resolve()
    if not any((folder / ".git").exists() for folder in (here, *here.parents)):
        return
    said = _git("-C", str(root), "status", "--porcelain=v1", "-z", "--untracked-files=no", "--", *names)
    dirty = [entry[3:].decode("utf-8", "replace") for entry in said.split(b"\0") if entry[3:]]
    if dirty:
        raise Refused(f"{', '.join(dirty)}: changed since the last commit; commit it first, or use --force")


def _git(*arguments: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", *arguments],
            # within a hook they name the repository that the hook is of
            env={name: value for name, value in os.environ.items() if name not in GIT_ELSEWHERE},
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"git cannot say whether the files are committed ({error}); --force goes on without it") from None
    if done.returncode:
        why = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
        raise Refused(f"git cannot say whether the files are committed ({why[0]}); --force goes on without it")
    return done.stdout
