"""Which server processes of one store are alive: each holds a lock on a file of its own beside the store's file.

The system gives a lock back when its process ends, however it ends. A file descriptor of Python is not inherited by
child processes, so an engine that outlives the server keeps nothing alive.

Nobody but the process that holds the store's write transaction calls anything here but `Owner.release`: thereby nobody
takes a lock of another one at the moment in which its owner makes it.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
from pathlib import Path

from filelock import lock_descriptor, unlock_descriptor

PART = ".owner-"


class Owner:
    """This process's own sign of life for one open store: there from the call on.

    Raises: OSError: the file cannot be made, or the file system has no locks.
    """

    def __init__(self, store: Path) -> None:
        self.token = secrets.token_hex(8)
        self._file = _file(store, self.token)
        self._fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if not lock_descriptor(self._fd, blocking=False):
                raise BlockingIOError("somebody else holds the lock of a new file")
        except BaseException:
            os.close(self._fd)
            self._file.unlink(missing_ok=True)
            raise

    def release(self) -> None:
        """From here on, this owner is gone. Called once."""
        unlock_descriptor(self._fd)
        os.close(self._fd)
        with contextlib.suppress(OSError):  # Windows: somebody looks at it now; the next sweep takes it away
            self._file.unlink()


def is_gone(store: Path, token: str) -> bool:
    """Whether the owner's process has ended or closed the store. Does not block. One that cannot be asked is there."""
    try:
        fd = os.open(_file(store, token), os.O_RDWR)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        gone = lock_descriptor(fd, blocking=False)
        if gone:
            unlock_descriptor(fd)
        return gone
    except OSError:
        return False
    finally:
        os.close(fd)


def sweep(store: Path) -> None:
    """Take away the files of owners that are gone. Does not block."""
    for file in store.parent.glob(f"{glob.escape(store.name)}{PART}*"):
        if is_gone(store, file.name[len(store.name) + len(PART) :]):
            with contextlib.suppress(OSError):
                file.unlink()


def _file(store: Path, token: str) -> Path:
    return store.with_name(f"{store.name}{PART}{token}")
