"""The state folder: what the fake engine leaves for a test to read, and the cues it waits for.

Without a folder nothing is written and every life is the first.
"""

from __future__ import annotations

import os
import time

from .fastjson import dumps

# pathlib takes 10 ms to import; plain os calls do here.


class State:
    """One life's view of the folder. `life` counts from 1 over the processes that were started with the folder."""

    def __init__(self, folder: str | None) -> None:
        """Enter the folder (it is made if needed) and take the next life's number. Blocks for file access.

        Raises: OSError: the folder cannot be used.
        """
        self._folder = folder
        self.life = 1
        if folder is None:
            return
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - see the top
        self.life = self._claim(folder)
        self._commands = self._open("commands.jsonl")
        self.append("lives.jsonl", {"life": self.life, "pid": os.getpid(), "time": time.monotonic()})

    @staticmethod
    def _claim(folder: str) -> int:
        life = 1
        while True:
            try:
                os.close(os.open(os.path.join(folder, f"life-{life}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))  # noqa: PTH118 - see the top
            except FileExistsError:
                life += 1
            else:
                return life

    def path(self, name: str) -> str:
        """Where a file of the folder is. Only for scripts that were checked to have a folder."""
        return os.path.join(self._folder or ".", name)  # noqa: PTH118 - see the top

    def _open(self, name: str) -> int:
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | getattr(os, "O_BINARY", 0)  # O_BINARY: only Windows has it
        return os.open(self.path(name), flags, 0o644)

    def append(self, name: str, record: dict[str, str | int | float]) -> None:
        """Add one line to a log of the folder, in one write."""
        if self._folder is None:
            return
        log = self._open(name)
        os.write(log, dumps(record).encode("ascii") + b"\n")
        os.close(log)

    def command(self, name: str, raw: str) -> None:
        """Log one command line. Called by the reader thread only."""
        if self._folder is not None:
            record: dict[str, str | int | float] = {
                "life": self.life,
                "time": time.monotonic(),
                "command": name,
                "raw": raw,
            }
            os.write(self._commands, dumps(record).encode("ascii") + b"\n")

    def reached(self, name: str) -> None:
        """Leave the mark that a test waits for."""
        os.close(os.open(self.path(f"reached-{name}"), os.O_CREAT | os.O_WRONLY))

    def cued(self, name: str) -> bool:
        """Whether a test has given this cue."""
        return os.path.exists(self.path(f"cue-{name}"))  # noqa: PTH110 - see the top
