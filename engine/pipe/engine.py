"""A pipe engine: requests take their turn on one supervised process, with a deadline for everything it owes.

Threads: any number of consumers in `stream`; the supervisor's reader calls `_on_line` and `_on_death`, its life
thread `_on_watch`. One lock guards all state; nothing blocks while holding it. Turns are given by whichever thread
frees the engine, never by the consumer, so a consumer that pauses holds up nobody but itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Literal

from engine.api import TICK_S, Cancel, EngineInfo, EngineRequest, EngineStarting, EngineStatus, TokenRequest
from engine.events import Accepted, Cancelled, EngineEvent, Failed, FailKind, Terminal, Tick
from engine.pipe.answer import Answer
from engine.pipe.conversation import Broken, Conversation
from engine.pipe_codec import (
    QUIT,
    STOP,
    Admitted,
    Line,
    Prompt,
    SlotToken,
    TokenLine,
    Unknown,
    bstop,
    parse_line,
)
from engine.supervisor import Backoff, ChildSpec, Death, Supervisor

log = logging.getLogger("strata.engine")

SETTLE_S = 0.01
"""Between the end of a request and the next command: lines that should not come are still taken for what they are."""
ERR_SETTLE_S = 0.02
"""So long an ERR may wait for the DONE that would make it fatal."""
WRITE_SETTLE_S = 0.05
DRAIN_MAX_S = 30.0
WASTED_LIVES = 3
"""So many lives that end before anybody was served are enough for one waiting request."""
RESTART_NOTE = "the next request restarts it"


class PipeEngine:
    """See `engine.api.Engine`."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        log_path: str | None = None,
        env: Mapping[str, str] | None = None,
        kind: Literal["strata", "fake"] = "strata",
        model: str = "strata",
        parallel: int | None = None,
        silence_s: float = 300.0,
        drain_s: float | None = None,
        start_timeout_s: float | None = None,
        stop_grace_s: float = 5.0,
        backoff: Backoff | None = None,
    ) -> None:
        """Starts nothing. `silence_s`: an engine that owes something and says no line for so long is ended; `drain_s`:
        so long it may take to end a request after STOP (None: `silence_s`, at most 30)."""
        self._kind: Literal["strata", "fake"] = kind
        self._model = model
        self._parallel = parallel
        self._silence_s = silence_s
        self._drain_s = drain_s
        self._lock = threading.RLock()  # a generator that is collected as garbage may leave at any moment
        self._waiting: deque[Answer] = deque()
        self._talk = Conversation(0, parallel)
        self._talk.over = True
        self._former = self._talk
        self._last_line_s = 0.0
        self._free_at_s = 0.0
        self._err_until_s = 0.0
        self._exit_code: int | None = None
        self._supervisor = Supervisor(
            ChildSpec(tuple(argv), cwd, env, log_path),
            self._on_line,
            self._on_death,
            start_timeout_s=start_timeout_s,
            stop_grace_s=stop_grace_s,
            goodbye=QUIT,
            backoff=backoff,
            on_watch=self._on_watch,
        )

    # --- facts ---------------------------------------------------------------------------------------

    @property
    def facts(self) -> EngineInfo:
        talk = self._known
        slots = talk.slots if talk.ready else (self._parallel or 1)
        return EngineInfo(self._kind, self._model, "tokens", slots, talk.max_context)

    @property
    def _known(self) -> Conversation:
        """The newest life that was ready, if there was one: what it said holds until the next one is."""
        return self._talk if self._talk.ready else self._former

    @property
    def silence_s(self) -> float:
        """Seconds; may be set at any time and holds for running requests too."""
        return self._silence_s

    @silence_s.setter
    def silence_s(self, value: float) -> None:
        self._silence_s = value
        self._supervisor.poke(self._supervisor.life)

    @property
    def drain_s(self) -> float:
        """Seconds that the engine has to end a request after STOP."""
        return min(self._silence_s, DRAIN_MAX_S) if self._drain_s is None else self._drain_s

    @property
    def progress(self) -> tuple[int, int] | None:
        """(done, total) tokens of the prompt that is being read, None if none is."""
        front = self._talk.front
        return None if front is None else front.progress

    def status(self) -> EngineStatus:
        with self._lock:
            running = list(self._talk.running())
        finishing = sum(answer.left for answer in running)
        death = self._supervisor.last_death
        return EngineStatus(
            state=self._supervisor.state,
            pid=self._supervisor.pid,
            restarts=self._supervisor.restarts,
            active=len(running) - finishing,
            finishing=finishing,
            last_death=None if death is None else death.note(),
            progress=self.progress,
        )

    def alive(self) -> bool:
        return self._supervisor.state == "ready" and not self._talk.over

    # --- start and end -------------------------------------------------------------------------------

    def start(self) -> None:
        self._supervisor.start()

    def close(self) -> None:
        self._end_all("the engine was closed")
        self._supervisor.close()

    def unload(self) -> None:
        """End the process and free its memory; the next request starts it again. Blocks, in bounded time.

        Raises: EngineStuck: its process could not be ended.
        """
        self._end_all("the engine was unloaded")
        self._supervisor.unload()

    def restart(self) -> None:
        """End the process if there is one and start it anew, also after `close`. Blocks until it is ready.

        Raises: EngineStuck; EngineDied: it could not be started.
        """
        self.unload()
        self._supervisor.start(force=True)

    def _end_all(self, message: str) -> None:
        with self._lock:
            for answer in self._talk.running():
                self._send_stop(answer)  # a busy engine reads QUIT only when the request is over
            for answer in self._talk.drop_all():
                answer.fail(FailKind.DIED, message)

    # --- one request ---------------------------------------------------------------------------------

    def stream(self, request: EngineRequest, cancel: Cancel) -> Iterator[EngineEvent]:
        if not isinstance(request, TokenRequest):
            yield Failed(FailKind.REFUSED, "this engine takes token ids, not chats")
            return
        try:
            prompt = Prompt(request.ids, request.max_tokens, request.sampling)
        except ValueError as error:
            yield Failed(FailKind.REFUSED, str(error))
            return
        answer = Answer(prompt, cancel, threading.Condition(self._lock), request.interruption)
        try:
            with self._lock:
                self._waiting.append(answer)
                self._give_turns()
                if answer.sending is None and self._talk.settling:
                    self._supervisor.poke(self._talk.life)  # its watch ends the moment on time
            if (yield from self._take_turn(answer)):
                yield from self._receive(answer)
        finally:
            self._leave(answer)

    def _take_turn(self, answer: Answer) -> Generator[EngineEvent, None, bool]:
        """Wait, with the engine started, until the command is written. False: it ended without that, as was told."""
        lives = _Lives()
        while True:
            if answer.sending is None and not answer.cancel.is_set():
                self._bring_up(answer, lives)
            if answer.cancel.is_set() and not answer.was_written:
                self._leave(answer)
                answer.end(Cancelled(answer.cancel.by, answer.usage()))
            step = self._wait_written(answer)
            yield step
            if not isinstance(step, Tick):
                return isinstance(step, Accepted)

    def _wait_written(self, answer: Answer) -> Accepted | Tick | Terminal:
        """Blocks up to `TICK_S`: for its turn, for the end of the write, or for the cause of a death."""
        with self._lock:
            self._give_turns()
            unsent = answer.sending is None or answer.sending.failed
            waits = answer.ending is None and not answer.heard and unsent
            if waits:
                answer.changed.wait(TICK_S)
            sending = answer.sending
        if sending is not None and not answer.heard and not (waits and answer.ending is None):
            sending.wait(TICK_S)
        with self._lock:  # whether it was written and how it ended have to be of one moment
            if answer.heard or answer.was_written:
                return Accepted()
            return Tick() if answer.ending is None else answer.ending

    def _bring_up(self, answer: Answer, lives: _Lives) -> None:
        """Have the engine started if it does not run; end the answer if that is not possible. Does not block."""
        if self._supervisor.closed:
            answer.fail(FailKind.DIED, "the engine is closed")
            return
        try:
            if lives.last:
                self._supervisor.wait_ready(lives.last, 0.0)
            life = self._supervisor.begin_start()
        except EngineStarting as error:
            answer.fail(FailKind.NOT_STARTED, str(error), error.exit_code)
            return
        if life != lives.last and lives.last and not self._talk.begun:
            lives.wasted += 1
            if lives.wasted >= WASTED_LIVES:
                answer.fail(FailKind.DIED, f"the engine ends as soon as it is ready: {self._death_text()}")
        lives.last = life

    def _receive(self, answer: Answer) -> Iterator[EngineEvent]:
        while True:
            with self._lock:
                events, ending = answer.take(TICK_S)
            yield from events
            if ending is not None:
                yield ending
                return
            if answer.cancel.is_set():
                with self._lock:  # what came and what is counted have to be of one moment
                    events, _ = answer.take(0.0)
                    usage = answer.usage()
                self._leave(answer)
                yield from events
                yield Cancelled(answer.cancel.by, usage)
                return
            if not events:
                yield Tick()

    def _leave(self, answer: Answer) -> None:
        """Nobody reads it any more: the engine is told to stop, and drains by itself. Does not block."""
        with self._lock:
            if answer.left or answer.ending is not None:
                return
            answer.leave()
            if answer in self._waiting:
                self._waiting.remove(answer)
            elif self._talk.forget(answer):
                self._give_turns()
            else:
                self._send_stop(answer)

    def _send_stop(self, answer: Answer) -> None:
        talk = self._talk
        command = None
        if talk.decodes_in_slot(answer):
            if not answer.slot_stop_sent:
                answer.slot_stop_sent = True
                command = bstop(answer.slot or 0)
        elif talk.stoppable(answer) and not answer.stop_sent:
            answer.stop_sent = True
            command = STOP
        if command is not None:
            answer.drain_until_s = time.monotonic() + self.drain_s
            self._supervisor.send(talk.life, command, self.drain_s)

    # --- turns and deadlines (lock held) -------------------------------------------------------------

    def _give_turns(self) -> None:
        talk = self._talk
        if talk.settling and time.monotonic() >= self._free_at_s:
            talk.settling = False
        while talk.again and talk.open():
            answer = talk.again[0]
            if answer.cancel.is_set():  # its consumer will see, and may be slow to
                talk.forget(answer)
                answer.end(Cancelled(answer.cancel.by, answer.usage()))
            else:
                self._give_turn(talk.again.popleft())
        while self._waiting and talk.free():
            answer = self._waiting.popleft()
            if answer.cancel.is_set() or answer.ending is not None:
                continue  # its consumer will see
            self._give_turn(answer)

    def _give_turn(self, answer: Answer) -> None:
        answer.sending = self._supervisor.send(self._talk.life, self._talk.begin(answer), self._silence_s)
        answer.changed.notify_all()

    def _on_watch(self, life: int) -> float | None:
        """Do what is due; say in how many seconds something will be."""
        with self._lock:
            talk = self._talk
            if talk.life != life or talk.over:
                return None
            now_s = time.monotonic()
            if talk.held_err is not None and now_s >= self._err_until_s:
                talk.settle_err()
                self._free_at_s = now_s + SETTLE_S
            self._give_turns()
            due_s = self._owed(talk, now_s)
            if talk.over:
                return None
            if talk.held_err is not None:
                due_s.append(self._err_until_s)
            if talk.settling and (self._waiting or talk.again):
                due_s.append(self._free_at_s)
            return min(due_s) - now_s if due_s else None

    def _owed(self, talk: Conversation, now_s: float) -> list[float]:
        """When the engine will have been silent or draining for too long; ends it if that is now."""
        due_s: list[float] = []
        running = list(talk.running())
        if not running:
            return due_s
        written_s = 0.0
        for answer in running:
            if answer.drain_until_s is not None:
                due_s.append(answer.drain_until_s)
                if now_s >= answer.drain_until_s:
                    self._break(FailKind.SILENT, f"the engine did not end a request within {self.drain_s:g} s of STOP")
                    return []
            if answer is talk.front and answer.sending is not None:
                if answer.sending.settled_at_s is None:
                    return [*due_s, now_s + TICK_S]  # the supervisor watches over the write
                written_s = answer.sending.settled_at_s
        silent_at_s = max(self._last_line_s, written_s) + self._silence_s
        if now_s >= silent_at_s:
            self._break(FailKind.SILENT, f"the engine said nothing for {self._silence_s:g} s")
            return []
        return [*due_s, silent_at_s]

    def _break(self, kind: FailKind, message: str) -> None:
        """This life is over: first it is not alive any more, then its requests are told."""
        talk = self._talk
        self._supervisor.kill(talk.life, message, kind)
        for answer in talk.drop_all():
            answer.fail(kind, f"{message}; it was ended; {RESTART_NOTE}")
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        for answer in self._waiting:
            answer.changed.notify_all()

    # --- called by the supervisor --------------------------------------------------------------------

    def _on_line(self, life: int, raw: bytes) -> bool:
        line = parse_line(raw)
        with self._lock:
            talk = self._talk
            if talk.life != life:
                self._former = self._known
                talk = self._talk = Conversation(life, self._parallel)
                self._exit_code = None
            if talk.over:
                return False
            if isinstance(line, Unknown):
                log.debug("the engine said %r", raw[:200])
            else:
                self._last_line_s = time.monotonic()
            settled = not talk.settling
            held = talk.held_err
            try:
                ready = talk.feed(line)
            except Broken as broken:
                self._break(broken.kind, str(broken))
                return False
            if talk.cut is not None:
                self._send_stop(talk.cut)
                talk.cut = None
            if not isinstance(line, TokenLine | SlotToken):
                self._after(talk, line, settled and talk.settling, talk.held_err is not held)
        if ready:
            log.info("the engine is ready: process %s, context %s tokens", self._supervisor.pid, talk.max_context)
        return ready

    def _after(self, talk: Conversation, line: Line, ended: bool, held: bool) -> None:
        """What a line that is no token brings with it."""
        if ended:
            self._free_at_s = self._last_line_s + SETTLE_S
        if held and talk.held_err is not None:
            self._err_until_s = self._last_line_s + ERR_SETTLE_S
        if isinstance(line, Admitted) and line.goes_on:
            for answer in talk.running():
                if (answer.left or answer.cut) and answer.slot == line.slot:
                    self._send_stop(answer)
        self._give_turns()
        if (ended and (self._waiting or talk.again)) or held:
            self._supervisor.poke(talk.life)

    def _on_death(self, life: int, death: Death) -> None:
        if not death.expected:
            log.warning("%s", death.note())
        front = self._talk.front
        if front is not None and front.sending is not None:
            front.sending.wait(WRITE_SETTLE_S)  # whether the engine got a byte of it is known in a moment
        with self._lock:
            self._exit_code = death.exit_code
            if self._talk.life == life:
                for answer in reversed(self._talk.drop_all()):
                    if answer.never_taken and not self._supervisor.closed:
                        answer.requeue()
                        self._waiting.appendleft(answer)
                        continue
                    answer.fail(death.kind, f"{death.note()}; {RESTART_NOTE}", death.exit_code)
            self._wake_waiting()

    def _death_text(self) -> str:
        death = self._supervisor.last_death
        return "" if death is None else death.note()


class _Lives:
    """The lives of the engine that a waiting request has seen."""

    def __init__(self) -> None:
        self.last = 0
        self.wasted = 0
