"""The mailbox of one request: the reader puts events in, the consumer takes them out in bulk.

An answer that is interrupted (`engine.api.Interruption`) has two parts, each with a command and an end of its own; the
mailbox is one. It decides nothing about the protocol. All of it is guarded by the engine's lock, which its condition is
made of and which the caller holds (`end` and `fail` take it themselves).
"""

from __future__ import annotations

import threading
from dataclasses import replace

from engine.api import Cancel, Interruption
from engine.events import EngineEvent, Failed, FailKind, Terminal, Timings, Token, Usage
from engine.pipe_codec import Done, Prompt
from engine.supervisor import Sending


class Answer:
    """One request from the queue to its end on the engine's side, which may come long after its reader left."""

    def __init__(
        self, prompt: Prompt, cancel: Cancel, changed: threading.Condition, interruption: Interruption | None = None
    ) -> None:
        self.prompt = prompt
        """What the engine is asked in this part."""
        self.cancel = cancel
        self.changed = changed
        self.sending: Sending | None = None
        """Its command on the way to the engine; None while it waits for its turn."""
        self.slot: int | None = None
        self.heard = False
        """The engine said something about it: it has the command, whatever the writing thread knows yet."""
        self.generated = 0
        """The tokens that the engine made in this part, also those that nobody gets."""
        self.made = 0
        """The tokens of the answer, as its reader gets them."""
        self.cached = 0
        self.progress: tuple[int, int] | None = None
        self.ending: Terminal | None = None
        self.left = False
        """Its reader is gone; what still comes is counted and dropped."""
        self.cut = False
        """It was interrupted: what this part still makes is dropped, and the next part begins where it ends."""
        self.stop_sent = False
        self.slot_stop_sent = False
        self.drain_until_s: float | None = None
        self.again = False
        """The first part is over."""
        self._whole = prompt
        self._room = prompt.max_new
        self._interruption = interruption
        self._ids: list[int] | None = None if interruption is None else []  # while they may have to be gone on from
        self._prompt_ms = self._answer_ms = 0.0
        self._drafted = self._drafts_accepted = 0
        self._events: list[EngineEvent] = []
        self._waiting = False

    # --- the reader's side ---------------------------------------------------------------------------

    def begin(self, slot: int | None, max_context: int | None, *, can_stop: bool) -> None:
        """It gets its turn. One that may be interrupted must not be waited for where the engine `can_stop` nothing: it
        is asked for no more than can be needed before that."""
        self.slot = slot
        if self._interruption is None:
            return
        if max_context is not None:
            self._room = min(self._room, max_context - len(self._whole.ids))
        if not can_stop:
            self.prompt = replace(self.prompt, max_new=max(1, min(self._room, self._interruption.within)))

    def token(self, token: int) -> None:
        self.heard = True
        self.generated += 1
        self.progress = None
        if self.left or self.cut:
            return
        self.made += 1
        self.push(Token(token))
        if self._ids is not None:
            self._ids.append(token)
            self._maybe_interrupt(token, self._ids)

    def _maybe_interrupt(self, token: int, ids: list[int]) -> None:
        put_in = self._interruption.after(token) if self._interruption is not None else ()
        if not put_in:
            return
        self._interruption = None
        if self.made + len(put_in) >= self._room:
            return
        self.cut = True
        ids += put_in
        self.made += len(put_in)
        for put in put_in:
            self.push(Token(put))

    def goes_on(self, finish: str) -> bool:
        """Whether this part's end, by the engine's word, is not the answer's."""
        if self.left or self.ending is not None or self.cancel.is_set():
            return False
        asked_for_less = self.prompt.max_new < self._room and not self.again
        return self.cut or (finish == "length" and asked_for_less and self.made < self._room)

    def go_on(self) -> None:
        """The next part, which is the last one: it waits for its turn, in the slot that it has."""
        ids = [*self._whole.ids, *(self._ids or ())]
        self.prompt = replace(self._whole, ids=ids, max_new=self._whole.max_new - self.made)
        self.again = True
        self.cut = False
        self.sending = None
        self.generated = 0
        self.stop_sent = self.slot_stop_sent = False
        self.drain_until_s = None
        self._interruption = self._ids = None

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
        """The counts so far. What was put in is the answer's, as it takes its room; what was dropped is nobody's, and
        the prompt of a second part is no prompt of the client's."""
        prompt = len(self._whole.ids)
        return Usage(prompt, self.made, min(self.cached, prompt))

    # --- the engine's clock --------------------------------------------------------------------------

    def reused(self, tokens: int) -> None:
        """So much of the prompt was in the cache. In a second part that is the answer's first part, too."""
        if not self.again:
            self.cached = tokens

    def time(self, done: Done | None, answer_ms: float) -> None:
        """What the engine took: what `done` says of the prompt, and `answer_ms` for tokens. To read what a second part
        begins with is part of making the answer."""
        self._answer_ms += answer_ms
        if done is None:
            return
        if self.again:
            self._answer_ms += done.prompt_ms
        else:
            self._prompt_ms = done.prompt_ms
            self.cached = self.cached or done.reused
        self._drafted += done.drafts_offered
        self._drafts_accepted += done.drafts_accepted

    def timed_usage(self) -> Usage:
        """The counts of an answer that is over, with the engine's times."""
        usage = self.usage()
        return replace(
            usage,
            timings=Timings(
                prompt_tokens=usage.prompt_tokens - usage.cached_tokens,
                prompt_ms=self._prompt_ms,
                answer_tokens=usage.completion_tokens,
                answer_ms=self._answer_ms,
                cached_tokens=usage.cached_tokens,
                drafted=self._drafted,
                drafts_accepted=self._drafts_accepted,
            ),
        )

    # --- its command ---------------------------------------------------------------------------------

    @property
    def was_written(self) -> bool:
        """Whether the engine was given the whole command."""
        return self.sending is not None and self.sending.wait(0.0)

    @property
    def never_taken(self) -> bool:
        """Whether the engine was gone before it saw a byte of the command: the next life can have it. (Not a second
        part: the answer is lost with the life that it began in.)"""
        sending = self.sending
        return sending is not None and sending.failed and sending.untouched and not self.left and not self.again

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
