"""The fake engine's main loop: takes commands, picks the script's answers, gives each run its turn.

What a step writes is `player`'s business. One thread; the reader thread of `pipes` only queues lines.
"""

from __future__ import annotations

import os
import time

from .commands import Request, parse_request
from .player import FOREVER, Run, Stage, prompt_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .pipes import Inbox, Outbox
    from .script import Script, Step
    from .state import State

_CUE_POLL_S = 0.002
_ORPHAN_S = 120.0
"""How long a process lives on that ignores the end of stdin or reads no more: no test leaves one for ever."""


class Loop:
    """One life. `front` is the run that has the engine to itself (solo, or a slot's admission); `slots` decode
    between fronts, one token each in turn."""

    def __init__(self, script: Script, state: State, inbox: Inbox, out: Outbox) -> None:
        self._script = script
        self._inbox = inbox
        self._out = out
        self._stage = Stage(script, state, inbox, out)
        self._waiting: list[Request] = []
        self._early: list[str | None] = []
        self._front: Run | None = None
        self._slots: dict[int, Run] = {}
        self._gave_way: dict[int, list[Step]] = {}
        self._requests = 0
        self._rules = [rule for rule in script.rules if rule.match is None]
        self._next_rule = 0
        self._quitting = False
        self._orphan_at: float = FOREVER

    def live(self) -> NoReturn:
        """Play the whole life. Ends the process."""
        if not any(step.kind == "stop_reading_stdin" for step in self._script.start):
            self._inbox.start()  # else not one byte is read
        self._play_alone(self._script.start)
        self._out.lines(*self._hello())
        self._play_alone(self._script.after_ready)
        while True:
            self._turn(serving=True)

    def _hello(self) -> list[str]:
        script = self._script
        facts = [
            f"context={script.context}",
            "engine=fake",
            "kv=f16",
            f"batch_slots={script.batch_slots}",
            *script.info,
        ]
        ready = script.ready_line or f"READY {script.context}" + (" stop" if script.can_stop else "")
        return ["INFO " + " ".join(facts), ready]

    def _play_alone(self, steps: list[Step]) -> None:
        run = self._front = Run(self._stage, steps)
        while not run.over:
            self._turn(serving=False)

    def _turn(self, serving: bool) -> None:
        moved = self._commands() if serving else self._early_commands()
        for run in self._turns():
            if run.ready():
                moved = True
                run.advance()
            self._settle(run)
        if moved:
            return
        if self._quitting:
            os._exit(0)
        self._pause()

    def _turns(self) -> list[Run]:
        return [self._front] if self._front is not None else list(self._slots.values())

    def _settle(self, run: Run) -> None:
        """Move a run from the front to its slot, or out."""
        if run is self._front and (run.over or (run.slot is not None and not run.admitting and not run.ended)):
            self._front = None
            if not run.over and run.slot is not None:
                self._slots[run.slot] = run
        if run.over and run.slot is not None and self._slots.get(run.slot) is run:
            del self._slots[run.slot]

    def _pause(self) -> None:
        now = time.monotonic()
        if self._stage.stopped_reading and self._orphan_at == FOREVER:
            self._orphan_at = now + _ORPHAN_S
        if now >= self._orphan_at:
            os._exit(0)
        wake_at = self._orphan_at
        for run in self._turns():
            if isinstance(run.wait, str):
                wake_at = min(wake_at, now + _CUE_POLL_S)
            elif run.wait is not None:
                wake_at = min(wake_at, run.wait)
        self._inbox.wait(None if wake_at == FOREVER else wake_at - now)

    # --- commands ------------------------------------------------------------------------------------

    def _commands(self) -> bool:
        """Heed what was read; whether a request was begun."""
        begun = self._begin_next()
        lines, self._early = [*self._early, *self._inbox.take()], []
        for line in lines:
            self._command(line)
            begun |= self._begin_next()  # at once: the next line may be this request's STOP
        return begun

    def _early_commands(self) -> bool:
        """Keep what was read for later, but heed the end: a process that is still loading can be ended."""
        for line in self._inbox.take():
            if line in (None, "QUIT"):
                self._command(line)
            else:
                self._early.append(line)
        return False

    def _command(self, line: str | None) -> None:
        if line is None:
            self._end_of_input()
            return
        name, _, rest = line.partition(" ")
        if name in self._stage.ignored or (name == "BSTOP" and "STOP" in self._stage.ignored):
            return
        if name == "STOP":
            if self._script.can_stop and self._front is not None and not self._front.ended:
                self._cancel(self._front)
        elif name in ("BSTOP", "BYIELD") and rest.isdigit() and self._script.batch_slots:
            self._stop_slot(int(rest)) if name == "BSTOP" else self._give_way(int(rest))
        elif name == "QUIT":
            self._quitting = True
        elif line:
            self._waiting.append(parse_request(line))

    def _end_of_input(self) -> None:
        if "EOF" in self._stage.ignored:
            self._orphan_at = time.monotonic() + _ORPHAN_S
        else:
            self._quitting = True

    def _cancel(self, run: Run) -> None:
        run.cancel()
        self._settle(run)

    def _stop_slot(self, slot: int) -> None:
        run = self._slots.get(slot)
        if run is not None and not run.ended:
            self._cancel(run)

    def _give_way(self, slot: int) -> None:
        run = self._front
        if run is None or run.slot != slot or run.ended or run.generated:
            return
        self._gave_way[slot] = run.steps
        self._out.lines(f"YIELDED {slot} {run.read}")
        run.drop()
        self._settle(run)

    # --- requests ------------------------------------------------------------------------------------

    def _begin_next(self) -> bool:
        if self._front is not None or not self._waiting:
            return False
        self._begin(self._waiting.pop(0))
        return True

    def _begin(self, request: Request) -> None:
        refusal = self._refusal(request)
        if refusal is not None:
            self._out.lines(f"ERR {refusal}")
            return
        steps = None if request.slot is None else self._gave_way.pop(request.slot, None)
        if steps is None:
            self._requests += 1
            steps = self._steps_for(request)
        self._front = Run.answer(self._stage, steps, self._requests, request)

    def _refusal(self, request: Request) -> str | None:
        if request.fault:
            return request.fault
        if request.slot is not None:
            busy = request.slot in self._slots and not self._slots[request.slot].ended
            if busy or request.slot >= self._script.batch_slots:
                return f"BGEN: no such free slot (batch_slots={self._script.batch_slots})"
        if len(request.ids) >= self._script.context:
            return f"prompt exceeds context ({len(request.ids)} tokens, {self._script.context} fit)"
        if any(token < 0 or (self._script.vocab and token >= self._script.vocab) for token in request.ids):
            return "a token id is outside the vocabulary"
        return None

    def _steps_for(self, request: Request) -> list[Step]:
        prompt = prompt_bytes(request.ids)
        for rule in self._script.rules:
            if rule.match is not None and rule.match in prompt:
                return rule.steps
        if not self._rules:
            return self._script.ok
        if self._next_rule == len(self._rules):
            if self._script.then == "ok":
                return self._script.ok
            self._next_rule = 0 if self._script.then == "cycle" else self._next_rule - 1
        self._next_rule += 1
        return self._rules[self._next_rule - 1].steps
