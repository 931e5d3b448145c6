"""The mailbox of one request: the reader puts events in, the consumer takes them out in bulk.

It decides nothing about the protocol. All of it is guarded by the engine's lock, which its condition is made of and
which the caller holds (`end` and `fail` take it themselves).
"""

from __future__ import annotations

import threading

from engine.api import Cancel
from engine.events import EngineEvent, Failed, FailKind, Terminal, Token, Usage
from engine.pipe_codec import Prompt
from engine.supervisor import Sending


class Answer:
    """One request from the queue to its end on the engine's side, which may come long after its reader left."""

    def __init__(self, prompt: Prompt, cancel: Cancel, changed: threading.Condition) -> None:
        self.prompt = prompt
        self.cancel = cancel
        self.changed = changed
        self.sending: Sending | None = None
        """Its command on the way to the engine; None while it waits for its turn."""
        self.slot: int | None = None
        self.heard = False
        """The engine said something about it: it has the command, whatever the writing thread knows yet."""
        self.generated = 0
        self.cached = 0
        self.progress: tuple[int, int] | None = None
        self.ending: Terminal | None = None
        self.left = False
        """Its reader is gone; what still comes is counted and dropped."""
        self.stop_sent = False
        self.slot_stop_sent = False
        self.drain_until_s: float | None = None
        self._events: list[EngineEvent] = []
        self._waiting = False

    # --- the reader's side ---------------------------------------------------------------------------

    def token(self, token: int) -> None:
        self.heard = True
        self.generated += 1
        self.progress = None
        if not self.left:
            self.push(Token(token))

    def push(self, event: EngineEvent) -> None:
        if self.left or self.ending is not None:
            return
        self._events.append(event)
        if self._waiting:
            self.changed.notify_all()

    def end(self, ending: Terminal) -> None:
        """The engine is done with it. The first ending counts."""
        with self.changed:
            if self.ending is None:
                self.ending = ending
                self.progress = None
                self.changed.notify_all()

    def fail(self, kind: FailKind, message: str, exit_code: int | None = None) -> None:
        self.end(Failed(kind, message, self.usage(), exit_code=exit_code))

    def usage(self) -> Usage:
        prompt = len(self.prompt.ids)
        return Usage(prompt, self.generated, min(self.cached, prompt))

    @property
    def was_written(self) -> bool:
        """Whether the engine was given the whole command."""
        return self.sending is not None and self.sending.wait(0.0)

    @property
    def never_taken(self) -> bool:
        """Whether the engine was gone before it saw a byte of the command: the next life can have it."""
        return self.sending is not None and self.sending.failed and self.sending.untouched and not self.left

    def requeue(self) -> None:
        self.sending = None
        self.slot = None

    def leave(self) -> None:
        """The reader is gone."""
        self.left = True
        self._events = []

    # --- the consumer's side -------------------------------------------------------------------------

    def take(self, timeout_s: float) -> tuple[list[EngineEvent], Terminal | None]:
        """What has come, and the ending if there is one. Blocks up to `timeout_s` if there is nothing. Lock held."""
        if not self._events and self.ending is None:
            self._waiting = True
            self.changed.wait(timeout_s)
            self._waiting = False
        events, self._events = self._events, []
        return events, self.ending
