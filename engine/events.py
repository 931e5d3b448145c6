"""The words that engines and the server use for what happens in one answer.

Every answer is a sequence of events that ends with exactly one terminal: `Finished`, `Cancelled` or
`Failed`. This module holds values only; who makes the terminal certain is `engine.terminal.sealed`,
and who turns it into HTTP is `serve.outcomes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]
CancelledBy: TypeAlias = Literal["client", "operator", "deadline", "shutdown"]


class FailKind(StrEnum):
    """Why an answer failed. The values are metric labels and log words; wire forms are in serve.outcomes."""

    DIED = "engine_died"
    """The engine is gone or unusable: exit, signal, closed pipe, fatal ERR, upstream cut."""
    SILENT = "engine_silent"
    """The engine lives and said nothing for `silence_s`, or never took a command."""
    NOT_STARTED = "engine_not_started"
    """The engine could not be started, or the upstream could not be reached."""
    REFUSED = "engine_refused"
    """The engine's ERR before it made anything; the engine stays healthy."""
    ERR = "engine_error"
    """The engine's ERR after it made something, or an upstream's 5xx; the engine stays healthy."""
    PROTOCOL = "engine_protocol"
    """The engine broke its protocol: damaged line, contradiction, unknown finish word."""
    CUT = "engine_cut"
    """The source ended without saying how."""
    TOOL_CALL = "tool_call_incomplete"
    """The engine said it was done, but a tool call is open or its arguments are not JSON."""
    STRUCTURED = "structured_output_failed"
    """The answer is not the JSON that the request asked for."""
    CONTEXT = "context_length_exceeded"
    """The prompt does not fit into the engine's context."""
    QUEUE_WAIT = "queue_wait_timeout"
    """The request waited longer than `queue_wait_s`."""
    QUEUE_FULL = "queue_full"
    """As many requests as `queue_max` wait already."""
    SHUTDOWN = "server_shutdown"
    """The server is going away."""
    STORE = "store_failed"
    """The answer could not be saved although that was promised."""
    LOST = "server_lost"
    """The server's process was gone before the answer ended; said by the one that found its record."""
    INTERNAL = "internal_error"
    """A fault of the server itself."""


@dataclass(frozen=True, slots=True)
class Timings:
    """What an engine's own clock says of one answer: `prompt_tokens` were read in `prompt_ms` milliseconds, besides the
    `cached_tokens` that needed no reading; the `answer_tokens` were made in `answer_ms`. `drafted` tokens were guessed
    ahead, `drafts_accepted` of them rightly."""

    prompt_tokens: int
    prompt_ms: float
    answer_tokens: int
    answer_ms: float
    cached_tokens: int = 0
    drafted: int = 0
    drafts_accepted: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. `completion_tokens` includes `reasoning_tokens`; `prompt_tokens` includes
    `cached_tokens`. `timings` are there where the engine told its clock; they are no part of what makes two equal."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    timings: Timings | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class UpstreamError:
    """What an upstream server answered instead of an answer. `status` is its HTTP status; `headers` are those that its
    client should see."""

    status: int
    type: str | None = None
    code: str | None = None
    param: str | None = None
    retry_after: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


# --- what is said on the way -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accepted:
    """The engine took the request: before it, a failure can still be a plain HTTP status. `headers` are those of an
    upstream's answer that its client should see."""

    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing new. Sent at least every `engine.api.TICK_S` while the engine is quiet or text is held back, so that
    the reader can beat, check its client and its deadlines."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` prompt tokens are read. It is a sign of life of the engine."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token of an engine that speaks token ids (never after `serve.assemble`)."""

    id: int


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer. `logprobs` is the upstream's own JSON value for this piece, where it gave one."""

    text: str
    logprobs: object = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the thinking before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A tool call begins. `index` counts the calls of one answer from 0; `id` is unique in the answer."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArgs:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call is whole and the pieces of its arguments are one JSON object."""

    index: int


Piece: TypeAlias = Text | Reasoning | ToolCallStart | ToolCallArgs | ToolCallEnd


@dataclass(frozen=True, slots=True)
class Passed:
    """A part of an upstream's chat stream that needs no repair: `raw` is whole server-sent events, to go out as they
    are. `pieces` is what they say of choice 0; the text in it only where the request wants that
    (`engine.api.ChatRequest.pieces`). `finished` are the choices whose end is in it. `held`: what the upstream's own
    ending says besides, to go out only where the answer does not end with that (`Finished.raw`)."""

    raw: bytes
    pieces: tuple[Piece, ...] = ()
    finished: tuple[int, ...] = ()
    held: bytes = b""


@dataclass(frozen=True, slots=True)
class RelayedEvent:
    """One event of an upstream's own Responses stream: its JSON, and its bytes as they came, which can go out as they
    are (b"": they cannot, and it has to be written anew)."""

    value: Mapping[str, object]
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class Relayed:
    """What came at once of an upstream's own Responses stream, its terminal event included."""

    events: tuple[RelayedEvent, ...]


# --- how it ended ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finished:
    """The engine ended the answer by itself, and what it made is whole (or cut at the token limit: `length`).
    `stop_sequence` is the stop string that ended it, if one did. `raw` is the upstream's own ending of a stream that
    passes, or its whole body; none where it has to be written anew."""

    reason: FinishReason
    usage: Usage | None = None
    stop_sequence: str | None = None
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody ended the answer before the engine did."""

    by: CancelledBy
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer could not be finished. `message` is for people and says the cause; `upstream` is set where the
    cause is another server's own refusal; `exit_code` is the child's (negative: minus the signal number)."""

    kind: FailKind
    message: str
    usage: Usage | None = None
    upstream: UpstreamError | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class OfChoice:
    """What is said of one of several choices of a completion: a piece of its text, or that it ended by itself. The
    answer's own terminal comes after the last of them, with the counts of all."""

    index: int
    said: Text | Finished


Terminal: TypeAlias = Finished | Cancelled | Failed
Event: TypeAlias = Accepted | Tick | Progress | Piece | Passed | Relayed | OfChoice | Terminal
EngineEvent: TypeAlias = Event | Token
