"""Drives the fake engine from tests: its command line, its cues, and what it logged.

It starts nothing: the code under test does, with `exe` and `args`. Every wait here has a deadline.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .commands import parse_request
from .launch import args, argv, exe, executable, script_path

_POLL_S = 0.003
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Command:
    """One line that the engine read. `name` is its first word ("EOF" for the end of stdin), `time_s` the monotonic
    clock's time; `max_new`, `slot` and `ids` are set for GEN and BGEN."""

    name: str
    raw: str
    life: int
    time_s: float
    max_new: int = 0
    slot: int | None = None
    ids: tuple[int, ...] = ()

    @property
    def prompt(self) -> str:
        """The prompt's text, without special tokens, for a `ByteTokenizer`'s ids."""
        return bytes(token for token in self.ids if token < 256).decode("utf-8", "replace")


class FakeEngine:
    """One script with its state folder. Thread-safe; one object per engine under test."""

    def __init__(self, script: Mapping[str, object] | Path | str, state_dir: Path) -> None:
        """`script`: the script itself, its file, or the name of a ready one. The folder is made if needed.

        Raises: FileNotFoundError: there is no such script.
        """
        state_dir.mkdir(parents=True, exist_ok=True)
        self.state_dir = state_dir
        if isinstance(script, Mapping):
            self.script = state_dir / "script.json"
            self.script.write_text(json.dumps(script), encoding="utf-8")
        else:
            self.script = script_path(script)

    @property
    def exe(self) -> list[str]:
        """The program, as the words before `--serve`."""
        return exe()

    def executable(self) -> Path:
        """The program as one file, for servers that take no argument list. Written into the state folder."""
        return executable(self.state_dir)

    @property
    def args(self) -> list[str]:
        """The words after `--serve`."""
        return args(self.script, self.state_dir)

    @property
    def argv(self) -> list[str]:
        """The whole command line."""
        return argv(self.script, self.state_dir)

    # --- what the engine did -------------------------------------------------------------------------

    def commands(self, name: str | None = None, life: int | None = None) -> list[Command]:
        """The lines that the engine read so far, oldest first, of one name and one life if given. Does not block."""
        found = [_command(record) for record in self._records("commands.jsonl")]
        return [item for item in found if name in (None, item.name) and life in (None, item.life)]

    def pids(self) -> list[int]:
        """The process ids of the lives so far, oldest first. Does not block."""
        return [_whole(record, "pid") for record in self._records("lives.jsonl")]

    def grandchildren(self) -> list[int]:
        """The process ids of what the engine's `grandchild` steps started. Does not block."""
        return [_whole(record, "pid") for record in self._records("grandchildren.jsonl")]

    # --- waiting -------------------------------------------------------------------------------------

    def wait_command(self, name: str, count: int = 1, timeout_s: float = 5.0, life: int | None = None) -> Command:
        """Block until the engine read `count` commands of this name; the last of them.

        Raises: TimeoutError: it did not, within `timeout_s`.
        """

        def found() -> Command | None:
            commands = self.commands(name, life)
            return commands[count - 1] if len(commands) >= count else None

        return self._wait(found, f"{count} x {name}", timeout_s)

    def wait_life(self, life: int, timeout_s: float = 5.0) -> int:
        """Block until the engine was started for the `life`-th time; its process id.

        Raises: TimeoutError: it was not, within `timeout_s`.
        """

        def found() -> int | None:
            pids = self.pids()
            return pids[life - 1] if len(pids) >= life else None

        return self._wait(found, f"life {life}", timeout_s)

    def wait_reached(self, name: str, timeout_s: float = 5.0) -> None:
        """Block until the engine came to a `reached` step of this name (once in all lives).

        Raises: TimeoutError: it did not, within `timeout_s`.
        """
        mark = self.state_dir / f"reached-{name}"
        self._wait(lambda: mark if mark.exists() else None, f"step reached {name!r}", timeout_s)

    def cue(self, name: str) -> None:
        """Let the engine go on at its `cue` steps of this name, now and later. Does not block."""
        (self.state_dir / f"cue-{name}").touch()

    def _wait(self, look: Callable[[], _Value | None], what: str, timeout_s: float) -> _Value:
        deadline = time.monotonic() + timeout_s
        while True:
            found = look()
            if found is not None:
                return found
            if time.monotonic() >= deadline:
                got = ", ".join(f"{item.name} (life {item.life})" for item in self.commands()) or "nothing"
                raise TimeoutError(f"the fake engine saw no {what} within {timeout_s} s; it read: {got}")
            time.sleep(_POLL_S)

    def _records(self, name: str) -> list[dict[str, str | int | float]]:
        try:
            data = (self.state_dir / name).read_text(encoding="ascii")
        except FileNotFoundError:
            return []
        whole, _, _ = data.rpartition("\n")  # the engine may be writing the last line right now
        return [json.loads(line) for line in whole.splitlines()]


def _command(record: dict[str, str | int | float]) -> Command:
    name, raw = str(record["command"]), str(record["raw"])
    life, time_s = _whole(record, "life"), float(record["time"])
    if name not in ("GEN", "BGEN"):
        return Command(name, raw, life, time_s)
    request = parse_request(raw)
    return Command(name, raw, life, time_s, request.max_new, request.slot, tuple(request.ids))


def _whole(record: dict[str, str | int | float], key: str) -> int:
    return int(record[key])
