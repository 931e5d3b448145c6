"""The boundary between the server and its engines: the `Engine` Protocol, requests, errors, cancellation.

It does not know any engine, HTTP or the wire form of an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from engine.events import CancelledBy, EngineEvent, Failed, FailKind, UpstreamError, Usage

TICK_S = 0.1
"""The longest time in seconds that `Engine.stream` lets pass without an event."""

SamplingValue: TypeAlias = float | int | str | bool


class Cancel(threading.Event):
    """A request to end one answer, with who asked. Thread-safe; the first caller wins.

    It is a `threading.Event`, so code written for Strata's plain event can set and read it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._by: CancelledBy | None = None
        self._by_lock = threading.Lock()

    @property
    def by(self) -> CancelledBy:
        """Who asked; "client" where the event was set without a name."""
        return self._by or "client"

    def cancel(self, by: CancelledBy) -> None:
        """Ask for the end. Does not block."""
        with self._by_lock:
            if self._by is None and not self.is_set():
                self._by = by
        self.set()


class AdoptedCancel(Cancel):
    """A `Cancel` over a plain event of the caller's."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self._event = event

    def is_set(self) -> bool:
        return self._event.is_set() or super().is_set()


@dataclass(slots=True, eq=False)
class Inflow:
    """Where the bytes of an answer come from, for a reader that waits for many answers in one thread.

    The engine sets `source`, the descriptor to wait for (None: there is none, read on as ever), and `drained`: the last
    event was the last one that is there. While the reader has set `outside`, the engine does not wait for bytes: it
    gives a `Tick` where none are there. The reader adds to `waited_s` the seconds that it waited instead.

    `shortcut` is set by the engine while it may be called in place of reading the next event. It does not wait, and
    gives bytes for the client where what came says nothing that anybody else has to know: they are counted, and no
    event tells them. Else it gives b"", and what came is in the next events: now they have to be read.
    """

    source: int | None = None
    drained: bool = False
    outside: bool = False
    waited_s: float = 0.0
    shortcut: Callable[[], bytes] | None = None


class Interruption(Protocol):
    """Where tokens of ours go into an answer while it is made, once at most: the engine drops what it made after that
    point and goes on from there, in the place that it has. It belongs to one answer and remembers what it was told.

    The tokens come out as if the engine had made them, and count as the answer's: they take room of `max_tokens` and of
    the context. Where they leave no room for one more, they do not go in.
    """

    @property
    def within(self) -> int:
        """They go in after so many tokens at the latest, or never."""
        ...

    def after(self, token: int) -> Sequence[int]:
        """Called once after each token, in order, until it gives some: what goes in there, or nothing. It must not
        block, and is called on a thread of the engine's."""
        ...


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A prompt for an engine that speaks token ids. `max_tokens` ≥ 1; `sampling` has the pipe protocol's key names. One
    with an `interruption` can be run once."""

    ids: Sequence[int]
    max_tokens: int
    sampling: Mapping[str, SamplingValue] = field(default_factory=dict[str, SamplingValue])
    interruption: Interruption | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat for an engine that speaks OpenAI chat completions: the request body as JSON values; `headers` of the
    client that its upstream should see.

    `form` is what the client gets: "pieces" of an answer that is written anew, or the upstream's own chat "stream" or
    "whole" body, as they are where nothing is wrong with them. `pieces`: whether what passes is wanted as pieces, too;
    `id`: the id that it is to have (None: the upstream's own). An engine that can tells `inflow` what it waits for.
    `thinking_budget`: the most tokens of thinking, where the client's API says that in a way that chat has no word for.
    """

    body: Mapping[str, object]
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    form: Literal["pieces", "stream", "whole"] = "pieces"
    pieces: bool = False
    id: str | None = None
    inflow: Inflow | None = None
    thinking_budget: int | None = None


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """A request in an upstream's own Responses API. `path` comes after the API's base and has its query; `body` is the
    JSON that is sent (None: nothing is); `headers` are those of the client that its upstream should see.

    `relays`: an answer is made, and its event stream asked for, to be passed on as `Relayed`. Otherwise the answer is
    one page, which rides on the terminal (`Finished.raw`). `names_response`: it names a response that one upstream
    keeps: another one knows nothing of it.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    body: Mapping[str, object] | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    relays: bool = False
    names_response: bool = False

    @property
    def model(self) -> object:
        """The model that it asks for, as it is written."""
        return None if self.body is None else self.body.get("model")


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request for an engine that speaks OpenAI completions, the older API: the request body as JSON values, with one
    prompt; `headers` of the client that its upstream should see. `choices`: how many texts it asks for (`n`)."""

    body: Mapping[str, object]
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    choices: int = 1


EngineRequest: TypeAlias = TokenRequest | ChatRequest | CompletionRequest | NativeRequest


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine can do. `max_context` is in tokens, None if it does not say; `models` are the names that a request
    may use, empty if it does not say or takes any."""

    kind: Literal["strata", "llama", "upstream", "fake"]
    model: str
    speaks: Literal["tokens", "chat"]
    slots: int
    max_context: int | None
    vocab_limit: int | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One engine of a pool, for `/status`. `url` names it, without credentials; `state` is "ready", "sick" (it failed
    and is left alone for a while) or its own engine's word; `problem` says why it is not ready."""

    url: str
    state: str
    active: int
    slots: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot for `/status` and `/health`. `pid` is the engine's process; `state` is one of the supervisor's words
    ("stopped", "starting", "ready", "stopping", "dead"), for an upstream "ready" or "unreachable". `members` are the
    engines of a pool."""

    state: str
    pid: int | None = None
    restarts: int = 0
    active: int = 0
    finishing: int = 0
    last_death: str | None = None
    progress: tuple[int, int] | None = None
    members: tuple[MemberStatus, ...] = ()


class Engine(Protocol):
    """One engine. All methods may be called from any thread; `stream` up to `facts.slots` times at once (further
    calls wait inside, ticking)."""

    @property
    def facts(self) -> EngineInfo: ...

    def status(self) -> EngineStatus: ...

    def alive(self) -> bool:
        """Whether a request could be served without starting anything. Does not block."""
        ...

    def start(self) -> None:
        """Start it if it is not running. Blocks until it is ready.

        Raises: EngineDied: it could not be started (the message has the exit code and the log's last line).
        """
        ...

    def stream(self, request: EngineRequest, cancel: Cancel) -> Iterator[EngineEvent]:
        """Generate. Yields `Accepted` once the engine took the request, then pieces, and last one terminal; in
        between at least one event every `TICK_S`. Starts the engine if needed (ticking meanwhile). Failures are
        `Failed` terminals; a set `cancel` gives `Cancelled`. Closing the iterator early never raises, tells the
        engine to stop and does not block: the engine drains by itself, in bounded time.
        """
        ...

    def close(self) -> None:
        """End it and everything it started. Blocks, in bounded time; a second call does nothing.

        Raises: EngineStuck: its process could not be ended.
        """
        ...


@runtime_checkable
class CountsPrompts(Protocol):
    """An engine that speaks chat and may be able to count a prompt's tokens."""

    def count_prompt(self, request: ChatRequest) -> int:
        """Starts the engine if needed. Blocks, in bounded time once it runs. Any thread.

        Raises: EngineError: it cannot count, refused, or could not be asked.
        """
        ...


class EngineError(Exception):
    """An engine could not finish a request. `kind` says why."""

    kind: FailKind = FailKind.DIED

    def __init__(
        self,
        message: str,
        *,
        usage: Usage | None = None,
        exit_code: int | None = None,
        upstream: UpstreamError | None = None,
    ) -> None:
        super().__init__(message)
        self.usage = usage
        self.exit_code = exit_code
        self.upstream = upstream


class EngineDied(EngineError, RuntimeError):
    """The engine is gone or unusable; the next request starts it again."""


class EngineSilent(EngineDied):
    """The engine lived and said nothing for too long; it was ended."""

    kind = FailKind.SILENT


class EngineStarting(EngineDied):
    """The engine could not be started, or is not ready yet."""

    kind = FailKind.NOT_STARTED


class EngineStuck(RuntimeError):
    """The engine's process did not end although it was killed: its memory is not free yet."""


class EngineRefused(EngineError, ValueError):
    """The engine's ERR before it made anything. The engine stays healthy."""

    kind = FailKind.REFUSED


class EngineFault(EngineError, ValueError):
    """The engine's ERR in mid-answer. The engine stays healthy."""

    kind = FailKind.ERR


class EngineProtocol(EngineDied):
    """The engine broke its protocol."""

    kind = FailKind.PROTOCOL


def error_of(failed: Failed) -> Exception:
    """The exception with Strata's name for a failure (for callers that use Strata's raising API)."""
    kinds: dict[FailKind, type[EngineError]] = {
        FailKind.SILENT: EngineSilent,
        FailKind.NOT_STARTED: EngineStarting,
        FailKind.REFUSED: EngineRefused,
        FailKind.CONTEXT: EngineRefused,
        FailKind.ERR: EngineFault,
        FailKind.PROTOCOL: EngineProtocol,
    }
    error = kinds.get(failed.kind, EngineDied)(
        failed.message, usage=failed.usage, exit_code=failed.exit_code, upstream=failed.upstream
    )
    error.kind = failed.kind
    return error


def failed_of(error: BaseException) -> Failed:
    """The failure that an exception stands for. A plain `ValueError` is an engine's ERR (Strata's convention);
    anything unknown is a fault of ours, whose text stays out of the message."""
    if isinstance(error, EngineError):
        return Failed(error.kind, str(error), error.usage, error.upstream, error.exit_code)
    if isinstance(error, ValueError):
        return Failed(FailKind.ERR, str(error))
    return Failed(FailKind.INTERNAL, "internal error; the server's log has the details")
