"""How a child process ended, in words for people."""

from __future__ import annotations

from dataclasses import dataclass

from engine.events import FailKind


@dataclass(frozen=True, slots=True)
class Death:
    """The end of one life. `exit_code` is minus the signal number where a signal ended it, None if it is not known;
    `cause` is one sentence; `log_tail` the last lines of its stderr; `at_s` the monotonic clock; `kind` what the end
    means for requests that ran (DIED, or what `Supervisor.kill` was given); `expected`: close() or unload() ended it.
    """

    exit_code: int | None
    cause: str
    log_tail: tuple[str, ...]
    at_s: float
    kind: FailKind = FailKind.DIED
    expected: bool = False

    def note(self) -> str:
        """One line for people: the cause and the log's last line."""
        raise NotImplementedError
