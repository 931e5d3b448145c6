"""`StrataEngine`: a pipe engine with the names and the raising API of Strata's own class, so that code written for that
can use it. It adds no behaviour of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Literal, cast

from engine.api import AdoptedCancel, Cancel, SamplingValue, TokenRequest, error_of
from engine.events import Cancelled, EngineEvent, Failed, Finished, Token
from engine.pipe.engine import PipeEngine
from engine.supervisor import Backoff

HEARTBEAT_S = 10.0


class StrataEngine(PipeEngine):
    """`EXE --serve ARGS…` as a supervised child. Thread-safe."""

    def __init__(
        self,
        exe: str | Sequence[str],
        args: Sequence[str] = (),
        cwd: str | None = None,
        log: str | None = None,
        env: Mapping[str, str] | None = None,
        lazy: bool = False,
        *,
        kind: Literal["strata", "fake"] = "strata",
        model: str = "strata",
        parallel: int | None = None,
        silence_s: float = 300.0,
        drain_s: float | None = None,
        start_timeout_s: float | None = None,
        stop_grace_s: float = 5.0,
        backoff: Backoff | None = None,
    ) -> None:
        """`exe` may be several words, as `[sys.executable, "-m", "engine.fake"]`. `env` is added to our environment;
        stderr is appended to the file `log`. `parallel` limits the batch slots used; 1 never uses them. Unless `lazy`,
        it blocks until the engine is ready.

        Raises: EngineDied: it could not be started.
        """
        words = [exe] if isinstance(exe, str) else list(exe)
        super().__init__(
            [*words, "--serve", *args],
            cwd=cwd,
            log_path=log,
            env=env,
            kind=kind,
            model=model,
            parallel=parallel,
            silence_s=silence_s,
            drain_s=drain_s,
            start_timeout_s=start_timeout_s,
            stop_grace_s=stop_grace_s,
            backoff=backoff,
        )
        if not lazy:
            self.start()

    @property
    def info(self) -> dict[str, str]:
        """The engine's INFO pairs, as it wrote them."""
        return self._known.info

    @property
    def max_context(self) -> int | None:
        """In tokens; None before the first READY."""
        return self._known.max_context

    @property
    def can_stop(self) -> bool:
        """Whether a running request can be ended before its token limit."""
        return self._known.can_stop

    @property
    def last(self) -> dict[str, object]:
        """The fields of the newest DONE; empty before the first."""
        return self._known.last or {}

    def death_note(self) -> str:
        """Why the engine ended the last time that nobody asked for it; "" if it never did."""
        return self._death_text()

    def exit_code(self) -> int | None:
        """Of the newest process, once it is gone; minus the signal number where a signal ended it."""
        return self._exit_code

    def generate(
        self,
        ids: Sequence[int],
        max_new: int,
        sampling: Mapping[str, SamplingValue] | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[int | None]:
        """The ids of the tokens as they come; None as a heartbeat every 10 s of quiet. Ends when the engine does or
        `cancel` is set. Blocks as it is read. A dead engine is started first, a closed one is not.

        Raises: EngineDied, EngineSilent, EngineStarting; ValueError: the engine's ERR.
        """
        if cancel is None:
            cancel = Cancel()
        ours = cancel if isinstance(cancel, Cancel) else AdoptedCancel(cancel)
        request = TokenRequest(ids, max_new, sampling or {})
        events = cast("Generator[EngineEvent, None, None]", self.stream(request, ours))
        beat_s = time.monotonic()
        with closing(events):
            for event in events:
                now_s = time.monotonic()
                if isinstance(event, Token):
                    beat_s = now_s
                    yield event.id
                elif isinstance(event, Failed):
                    raise error_of(event)
                elif isinstance(event, Finished | Cancelled):
                    return
                elif now_s - beat_s >= HEARTBEAT_S:
                    beat_s = now_s
                    yield None
