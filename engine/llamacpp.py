"""The `llama` engine: a llama.cpp server as our own supervised child, driven by the upstream client.

It decides what the end of the child means for an answer. How processes are started and ended is the supervisor's
matter, HTTP and chat streams are the upstream's, and llama.cpp's parameters are `engine.llama_child`'s.

Source: llama.cpp build 11549 in xllamacpp 2026.10.11549, with SmolLM2-135M-Instruct, seen on 2026-11-30:
- 200 and the head come when the request has a slot and its prompt is being read; with all slots busy nothing comes.
- A prompt over the slot's context: 400, type `exceed_context_size_error`. An answer that fills the context: `length`.
- `stop` strings end with `stop`, without saying which; `logprobs` come in `choices[0].logprobs`, one entry a token.
- `response_format` json_schema is kept by a grammar; a schema that it cannot read is 400 `invalid_request_error`.
- `tools`: SmolLM2's template has none, so they are dropped without a word and the answer is text, `tool_choice:
  "required"` too. Streamed tool calls of llama.cpp itself were not seen with this model.
- Images without a projector: 500 `server_error`. A wrong or missing key: 401.
- A closed connection frees the slot within some 30 ms.
"""

from __future__ import annotations

import re
import secrets
import sys
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import psutil

from engine.api import (
    TICK_S,
    Cancel,
    EngineError,
    EngineInfo,
    EngineRequest,
    EngineStatus,
    failed_of,
)
from engine.events import Accepted, Cancelled, EngineEvent, Event, Failed, FailKind, Progress, Tick
from engine.llama_child import KEY_VARIABLE
from engine.supervisor import ChildSpec, Death, Supervisor
from engine.upstream import UpstreamEngine

DEATH_WAIT_S = 1.0
"""How long a broken connection waits for the cause, in seconds. The process is usually gone within milliseconds."""

CONNECT_S = 5.0
AGAIN = "; the next request restarts it"
NAME = "llama.cpp"

_GONE = {FailKind.DIED, FailKind.NOT_STARTED}
"""What the upstream client says when the server's process ends: the connection broke, or there is none."""

_LISTENING = re.compile(rb"LISTENING (http://127\.0\.0\.1:\d+) context=(\d+)")


def default_threads() -> int:
    """One for each core, but one core is left for the rest: llama.cpp's threads wait for each other, so one that has to
    share its core slows all of them down.

    Measured on two cores that other programs kept busy (2026-11-30, SmolLM2): 2 tokens/s with two threads, 22 with one.
    """
    usable = len(psutil.Process().cpu_affinity() or ()) if hasattr(psutil.Process, "cpu_affinity") else 0
    usable = usable or psutil.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or usable, usable - 1))


@dataclass(slots=True)
class _Life:
    """One process: its server, once it listens, and its end."""

    key: str
    upstream: UpstreamEngine | None = None
    death: Death | None = None


class LlamaEngine:
    """A llama.cpp server with `parallel` slots of `context` tokens each, for the GGUF file at `model_path`.

    `log`: a file that llama.cpp's log is appended to. `silence_s`: seconds without data after which the child is
    ended. `start_timeout_s`: seconds that loading may take (None: any time). `threads`: for computing on the CPU (None:
    `default_threads`). Thread-safe; the constructor starts nothing.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        parallel: int = 1,
        context: int = 4096,
        log: str | None = None,
        silence_s: float = 300.0,
        start_timeout_s: float | None = None,
        model_name: str | None = None,
        threads: int | None = None,
    ) -> None:
        self._model_path = Path(model_path).resolve()
        self._context = context
        self._log = log
        self._silence_s = silence_s
        self._threads = threads or default_threads()
        name = model_name or self._model_path.stem
        self._facts = EngineInfo("llama", name, "chat", parallel, context)
        self._changed = threading.Condition()
        self._lives: dict[int, _Life] = {}
        self._active = 0
        self._progress: tuple[int, int] | None = None
        self._supervisor = Supervisor(
            self._spec, self._on_line, self._on_death, start_timeout_s=start_timeout_s, goodbye=b"QUIT\n"
        )

    # --- facts -------------------------------------------------------------------------------------

    @property
    def facts(self) -> EngineInfo:
        """`max_context` is a slot's, as llama.cpp told it once it ran (it rounds up)."""
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
        """Load the model if it is not loaded. Blocks until it is ready.

        Raises: EngineStarting: it could not be started (exit code, last log lines).
        """
        self._supervisor.start()

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
                again = yield from self._attempt(request, cancel, last=last)
                if not again:
                    return
        finally:
            with self._changed:
                self._active -= 1

    def _attempt(self, request: EngineRequest, cancel: Cancel, *, last: bool) -> Generator[Event, None, bool]:
        """One answer of the present life, or of a new one. Gives True, and no terminal, if that life ended before it
        took the request: nothing was made, so the next life may be asked."""
        try:
            number = self._supervisor.begin_start()
            while not self._supervisor.wait_ready(number, TICK_S):
                if cancel.is_set():
                    yield Cancelled(cancel.by)
                    return False
                yield Tick()
        except EngineError as error:
            yield failed_of(error)
            return False
        life = self._lives[number]
        assert life.upstream is not None  # set by the line that made the life ready
        accepted = False
        answer = cast("Generator[Event, None, None]", life.upstream.stream(request, cancel))
        try:
            for event in answer:
                if isinstance(event, Failed):
                    if not accepted and not last and event.upstream is None and event.kind in _GONE:
                        yield from self._ended(number, life, event)
                        if life.death is not None and not life.death.expected:
                            return True
                    yield from self._explained(number, life, event)
                    return False
                accepted = accepted or isinstance(event, Accepted)
                if isinstance(event, Progress | Accepted):
                    self._progress = (event.done, event.total) if isinstance(event, Progress) else None
                yield event
        finally:
            answer.close()
        return False

    def _explained(self, number: int, life: _Life, failed: Failed) -> Generator[Event, None, None]:
        """The failure with the child's own end as its cause, where that is what it was."""
        if failed.upstream is not None or failed.kind not in {*_GONE, FailKind.SILENT}:
            yield failed  # llama.cpp itself said what was wrong, and goes on
            return
        yield from self._ended(number, life, failed)
        death = life.death
        if death is None:
            yield failed
        elif death.expected:
            yield Failed(FailKind.NOT_STARTED, "the engine was stopped", failed.usage)
        else:
            yield Failed(death.kind, f"{death.note()}{AGAIN}", failed.usage, exit_code=death.exit_code)

    def _ended(self, number: int, life: _Life, failed: Failed) -> Generator[Event, None, None]:
        """Wait for the end of the life, and bring it about if it says nothing or takes no connection."""
        if failed.kind is not FailKind.DIED:
            kind = FailKind.SILENT if failed.kind is FailKind.SILENT else FailKind.DIED
            self._supervisor.kill(number, failed.message, kind)
        deadline = time.monotonic() + DEATH_WAIT_S
        while self._death_of(life) is None and time.monotonic() < deadline:
            yield Tick()

    def _death_of(self, life: _Life) -> Death | None:
        with self._changed:
            self._changed.wait_for(lambda: life.death is not None, TICK_S)
            return life.death

    # --- the child ---------------------------------------------------------------------------------

    def _spec(self, number: int) -> ChildSpec:
        life = _Life(secrets.token_urlsafe(32))
        with self._changed:
            self._lives[number] = life
            self._lives.pop(number - 4, None)
        child = Path(__file__).with_name("llama_child.py")
        options = {
            "--model": str(self._model_path),
            "--alias": self._facts.model,
            "--parallel": str(self._facts.slots),
            "--context": str(self._context),
            "--threads": str(self._threads),
        }
        arguments = [f"{name}={value}" for name, value in options.items()]
        argv = (sys.executable, "-P", "-u", "-X", "utf8", str(child), *arguments)
        return ChildSpec(argv, env={KEY_VARIABLE: life.key}, log_path=self._log, name=NAME)

    def _on_line(self, number: int, line: bytes) -> bool:
        found = _LISTENING.fullmatch(line)
        if found is None:
            return False
        life = self._lives[number]
        life.upstream = UpstreamEngine(
            found[1].decode(),
            model=self._facts.model,
            key=life.key,
            slots=self._facts.slots,
            kind="llama",
            connect_s=CONNECT_S,
            silence_s=self._silence_s,
            who=NAME,
        )
        self._facts = replace(self._facts, max_context=int(found[2]) or self._facts.max_context)
        return True

    def _on_death(self, number: int, death: Death) -> None:
        with self._changed:
            life = self._lives.get(number)
            if life is not None:
                life.death = death
            self._changed.notify_all()
