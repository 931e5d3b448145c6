"""A supervised child that serves chat over HTTP, as an engine: its lives, and what their ends mean for an answer.

How processes are started and ended is the supervisor's matter, HTTP and chat streams are the upstream's. Which program
it is, and how its address is known, is said by who derives from it.
"""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import cast

from engine.api import (
    TICK_S,
    Cancel,
    ChatRequest,
    EngineError,
    EngineInfo,
    EngineRequest,
    EngineStarting,
    EngineStatus,
    error_of,
    failed_of,
)
from engine.events import Accepted, Cancelled, EngineEvent, Event, Failed, FailKind, Finished, Progress, Tick
from engine.supervisor import ChildSpec, Death, Supervisor
from engine.upstream import UpstreamEngine

DEATH_WAIT_S = 1.0
"""How long a broken connection waits for the cause, in seconds. The process is usually gone within milliseconds."""
CONNECT_S = 5.0
AGAIN = "; the next request restarts it"
KEPT_LIVES = 4

_GONE = {FailKind.DIED, FailKind.NOT_STARTED}
"""What the upstream client says when the server's process ends: the connection broke, or there is none."""


@dataclass(slots=True)
class ServedLife:
    """One process: how its server is spoken to, once it listens, and its end. `port` is the one that it was given."""

    key: str | None = None
    port: int | None = None
    upstream: UpstreamEngine | None = None
    death: Death | None = None
    looked_for: bool = False
    """Somebody looks whether it is ready."""
    answers: int = 0
    heard: int = 0
    """The answer that was heard of last."""
    heard_at_s: float = float("-inf")
    active: int = 0


class ChatChild(ABC):
    """The engine. `facts` are what is known before it runs; `silence_s` is that of its upstreams, in seconds;
    `start_timeout_s`: seconds that a start may take (None: any time); `goodbye` and `stop_grace_s` as in `Supervisor`.
    Thread-safe; the constructor starts nothing.
    """

    def __init__(
        self,
        facts: EngineInfo,
        *,
        silence_s: float,
        start_timeout_s: float | None,
        goodbye: bytes = b"",
        stop_grace_s: float = 5.0,
    ) -> None:
        self._facts = facts
        self._silence_s = silence_s
        self._changed = threading.Condition()
        self._lives: dict[int, ServedLife] = {}
        self._active = 0
        self._progress: tuple[int, int] | None = None
        self._supervisor = Supervisor(
            self._begin_life,
            self._on_line,
            self._on_death,
            start_timeout_s=start_timeout_s,
            stop_grace_s=stop_grace_s,
            goodbye=goodbye,
            on_watch=self._on_watch,
        )

    # --- said by who derives from it ---------------------------------------------------------------

    @abstractmethod
    def _spec(self, life: ServedLife) -> ChildSpec:
        """What to run for a new life. Called on a thread of the supervisor's."""

    def _on_line(self, number: int, line: bytes) -> bool:
        """A line of the child's stdout; True = the life is ready, and has its upstream."""
        return False

    def _on_watch(self, number: int) -> float | None:
        """See `Supervisor`; the first call comes when the process is there."""
        return None

    def _is_worth_another(self, life: ServedLife) -> bool:
        """Whether a life that could not be started failed by bad luck, which the next one need not have."""
        return False

    # --- facts -------------------------------------------------------------------------------------

    @property
    def facts(self) -> EngineInfo:
        """What is known so far."""
        return self._facts

    def status(self) -> EngineStatus:
        """A snapshot. Does not block."""
        death = self._supervisor.last_death
        with self._changed:
            active, progress = self._active, self._progress
        return EngineStatus(
            self._supervisor.state,
            self._supervisor.pid,
            self._supervisor.restarts,
            active,
            last_death=None if death is None else death.note(),
            progress=progress if active else None,
        )

    def alive(self) -> bool:
        """Whether the child serves. Does not block."""
        return self._supervisor.state == "ready"

    def start(self) -> None:
        """Start the child if it does not run. Blocks until it is ready.

        Raises: EngineStarting: it could not be started (exit code, last log lines).
        """
        for event in self._until_ready(Cancel()):
            if isinstance(event, Failed):
                raise error_of(event)

    def count_prompt(self, request: ChatRequest) -> int:
        """How many tokens the prompt of a chat has; see `engine.api.CountsPrompts`."""
        self.start()
        with self._changed:
            ready = [life.upstream for life in self._lives.values() if life.upstream is not None and life.death is None]
        if not ready:
            raise EngineStarting("the engine died; the next request restarts it")
        return ready[-1].count_prompt(request)

    def close(self) -> None:
        """End the child. Blocks, in bounded time; a second call does nothing. Raises: EngineStuck."""
        self._supervisor.close()

    # --- answers -----------------------------------------------------------------------------------

    def stream(self, request: EngineRequest, cancel: Cancel) -> Iterator[EngineEvent]:
        """One answer; see `engine.api.Engine.stream`. Starts the child if needed, ticking meanwhile."""
        return self._stream(request, cancel)

    def _stream(self, request: EngineRequest, cancel: Cancel) -> Generator[Event, None, None]:
        with self._changed:
            self._active += 1
        try:
            for last in (False, True):
                number = yield from self._until_ready(cancel)
                if number is None:
                    return
                again = yield from self._attempt(number, request, cancel, last=last)
                if not again:
                    return
        finally:
            with self._changed:
                self._active -= 1

    def _until_ready(self, cancel: Cancel) -> Generator[Event, None, int | None]:
        """The number of a life that is ready; None after the terminal that says why there is none."""
        for last in (False, True):
            number = 0
            try:
                number = self._supervisor.begin_start()
                while not self._supervisor.wait_ready(number, TICK_S):
                    if cancel.is_set():
                        yield Cancelled(cancel.by)
                        return None
                    yield Tick()
                return number
            except EngineError as error:
                life = self._lives.get(number)
                if last or life is None or not self._is_worth_another(life):
                    yield failed_of(error)
                    return None
        return None

    def _attempt(
        self, number: int, request: EngineRequest, cancel: Cancel, *, last: bool
    ) -> Generator[Event, None, bool]:
        """One answer of this life. Gives True, and no terminal, if the life ended before it took the request: nothing
        was made, so the next life may be asked."""
        life = self._lives[number]
        assert life.upstream is not None  # set before the life became ready
        with self._changed:
            life.active += 1
            life.answers += 1
            mine = life.answers
        accepted = False
        if isinstance(request, ChatRequest):
            request = replace(request, inflow=None)  # when its child dies, what is waited for is the child's end
        answer = cast("Generator[Event, None, None]", life.upstream.stream(request, cancel))
        try:
            for event in answer:
                if isinstance(event, Failed):
                    return (yield from self._failed(number, life, event, mine, may_repeat=not accepted and not last))
                if not isinstance(event, Tick | Finished | Cancelled):
                    life.heard, life.heard_at_s = mine, time.monotonic()
                accepted = accepted or isinstance(event, Accepted)
                if isinstance(event, Progress | Accepted):
                    self._progress = (event.done, event.total) if isinstance(event, Progress) else None
                yield event
        finally:
            answer.close()
            with self._changed:
                life.active -= 1
            self._put_away(life)
        return False

    # --- failures ----------------------------------------------------------------------------------

    def _failed(
        self, number: int, life: ServedLife, failed: Failed, mine: int, *, may_repeat: bool
    ) -> Generator[Event, None, bool]:
        """The failure with the child's own end as its cause, where that is what it was; True as `_attempt` says."""
        if failed.upstream is not None or failed.kind not in {*_GONE, FailKind.SILENT}:
            yield failed  # the server itself said what was wrong, and goes on
            return False
        if failed.kind is FailKind.SILENT and self._others_are_heard(life, mine):
            yield failed
            return False
        death = yield from self._end_of(number, life, failed)
        if death is None:
            yield failed
        elif death.expected:
            yield Failed(FailKind.NOT_STARTED, "the engine was stopped", failed.usage)
        elif may_repeat and failed.kind in _GONE:
            return True
        else:
            yield Failed(death.kind, f"{death.note()}{AGAIN}", failed.usage, exit_code=death.exit_code)
        return False

    def _others_are_heard(self, life: ServedLife, mine: int) -> bool:
        """Whether the server says something to others: then it does not hang, and this request waits in a queue of its
        own, or is stuck alone. The answer that was heard last ends a server that hangs."""
        with self._changed:
            return life.heard != mine and time.monotonic() - life.heard_at_s < self._silence_s

    def _end_of(self, number: int, life: ServedLife, failed: Failed) -> Generator[Event, None, Death | None]:
        """The end of the life that this failure tells of. It is brought about if the server hangs, or lives and takes
        no connection."""
        if failed.kind is FailKind.SILENT:
            self._supervisor.kill(number, failed.message, FailKind.SILENT)
        death = yield from self._wait_death(life)
        if death is None and failed.kind is FailKind.NOT_STARTED and _have_descriptors():
            self._supervisor.kill(number, failed.message)
            death = yield from self._wait_death(life)
        return death

    def _wait_death(self, life: ServedLife) -> Generator[Event, None, Death | None]:
        deadline_s = time.monotonic() + DEATH_WAIT_S
        while not self._wait_over(life, TICK_S) and time.monotonic() < deadline_s:
            yield Tick()
        return life.death

    def _wait_over(self, life: ServedLife, timeout_s: float) -> bool:
        """Whether the life's end was told. Blocks up to `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: life.death is not None, timeout_s)

    # --- lives -------------------------------------------------------------------------------------

    def _begin_life(self, number: int) -> ChildSpec:
        life = ServedLife()
        with self._changed:
            self._lives[number] = life
            self._lives.pop(number - KEPT_LIVES, None)
        return self._spec(life)

    def _on_death(self, number: int, death: Death) -> None:
        with self._changed:
            life = self._lives.get(number)
            if life is not None:
                life.death = death
            self._changed.notify_all()
        if life is not None:
            self._put_away(life)

    def _put_away(self, life: ServedLife) -> None:
        """Close what is left of the client of a life that is over; its answers still say how they ended."""
        with self._changed:
            over = life.death is not None and life.active == 0
        if over and life.upstream is not None:
            life.upstream.close()


def _have_descriptors() -> bool:
    """Whether this process can open sockets at all: if not, that is no fault of the child's."""
    try:
        socket.socket().close()
    except OSError:
        return False
    return True
