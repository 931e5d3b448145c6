"""The one table of endings: outcome → HTTP status before the first byte, words and error objects after it.

No other module spells a finish reason, an error type, an error code or the status of a failure. It knows no socket
and no framing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never, get_args

from engine.api import failed_of
from engine.events import Cancelled, CancelledBy, Failed, FailKind, Finished, FinishReason, Terminal, Usage
from serve.message_wire import MessageErrorBody, MessageErrorType, MessageStopReason, MessageUsage
from serve.wire import (
    ErrorBody,
    ErrorObject,
    IncompleteReason,
    ItemStatus,
    ResponseError,
    ResponseErrorCode,
    ResponseStatus,
    ResponseUsage,
    RunningEventName,
    TerminalEventName,
    TimingsObject,
    UsageObject,
)

MAX_MESSAGE_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class FailureRow:
    """How one kind of failure looks. `status`, `type` and `code` before the first byte; in a stream the same type and
    code, except where `stream_type` differs: a status can blame the request, a stream that began cannot.
    `response_code` is the public code inside a response object, which has no room for `code`. `message_type` is the
    type in a Messages stream; before its first byte the status decides."""

    status: int
    type: str
    code: str
    stream_type: str | None = None
    retry_after_s: int | None = None
    response_code: ResponseErrorCode = "server_error"
    message_type: MessageErrorType = "api_error"


def _busy(code: str) -> FailureRow:
    return FailureRow(
        429,
        "rate_limit_error",
        code,
        retry_after_s=5,
        response_code="rate_limit_exceeded",
        message_type="overloaded_error",
    )


_GONE = FailureRow(503, "server_error", "engine_died")

FAILURES: Mapping[FailKind, FailureRow] = {
    FailKind.DIED: _GONE,
    FailKind.SILENT: _GONE,
    FailKind.CUT: _GONE,
    FailKind.NOT_STARTED: FailureRow(503, "server_error", "engine_not_started"),
    FailKind.REFUSED: FailureRow(400, "invalid_request_error", "engine_refused", stream_type="server_error"),
    FailKind.ERR: FailureRow(500, "server_error", "engine_error"),
    FailKind.PROTOCOL: FailureRow(502, "server_error", "engine_protocol"),
    FailKind.TOOL_CALL: FailureRow(502, "server_error", "tool_call_incomplete"),
    FailKind.STRUCTURED: FailureRow(502, "structured_output_failed", "structured_output_failed"),
    FailKind.CONTEXT: FailureRow(
        400, "invalid_request_error", "context_length_exceeded", message_type="invalid_request_error"
    ),
    FailKind.QUEUE_WAIT: _busy("queue_wait_timeout"),
    FailKind.QUEUE_FULL: _busy("queue_full"),
    FailKind.SHUTDOWN: FailureRow(
        503, "server_error", "server_shutdown", retry_after_s=5, message_type="overloaded_error"
    ),
    FailKind.STORE: FailureRow(500, "server_error", "store_failed"),
    FailKind.LOST: FailureRow(503, "server_error", "server_lost"),
    FailKind.INTERNAL: FailureRow(500, "server_error", "internal_error"),
}

_CANCELLED = FailureRow(503, "server_error", "request_cancelled")
_CANCELLED_MESSAGES = {
    "client": "the request was cancelled by its client",
    "operator": "the request was cancelled",
    "deadline": "the request ran out of time",
    "shutdown": "the server is shutting down",
}

HTTP_ERRORS: Mapping[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "origin_not_allowed"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("invalid_request_error", "request_timeout"),
    411: ("invalid_request_error", "length_required"),
    413: ("invalid_request_error", "request_too_large"),
    414: ("invalid_request_error", "uri_too_long"),
    415: ("invalid_request_error", "unsupported_media_type"),
    417: ("invalid_request_error", "expectation_failed"),
    431: ("invalid_request_error", "headers_too_large"),
    500: ("server_error", "internal_error"),
    501: ("invalid_request_error", "not_implemented"),
    505: ("invalid_request_error", "http_version_not_supported"),
}
"""HTTP's own refusals → (type, code)."""


def error_object(message: str, type_: str, code: str | None, param: str | None = None) -> ErrorObject:
    """An error in OpenAI's form; the message is bounded and never empty."""
    text = message.strip() or "unknown error"
    if len(text) > MAX_MESSAGE_CHARS:
        text = text[:MAX_MESSAGE_CHARS] + "…"
    return {"message": text, "type": type_, "param": param, "code": code}


def http_error(status: int, message: str, param: str | None = None, code: str | None = None) -> ErrorBody:
    """The body of one of HTTP's own refusals."""
    type_, default_code = HTTP_ERRORS.get(status, HTTP_ERRORS[400 if status < 500 else 500])
    return {"error": error_object(message, type_, code or default_code, param)}


@dataclass(frozen=True, slots=True)
class HttpFailure:
    """A failure as a plain HTTP answer: used only while no byte of the answer was sent."""

    status: int
    error: ErrorObject
    retry_after: str | None
    headers: tuple[tuple[str, str], ...] = ()


def _row(terminal: Failed | Cancelled) -> FailureRow:
    match terminal:
        case Failed(kind=kind):
            return FAILURES[kind]
        case Cancelled(by="shutdown"):
            return FAILURES[FailKind.SHUTDOWN]
        case Cancelled():
            return _CANCELLED
    assert_never(terminal)


def _message(terminal: Failed | Cancelled) -> str:
    return terminal.message if isinstance(terminal, Failed) else _CANCELLED_MESSAGES[terminal.by]


def http_failure(terminal: Failed | Cancelled) -> HttpFailure:
    """Before the first byte. An upstream's own refusal keeps its status, type, code and Retry-After."""
    row = _row(terminal)
    status, type_, code, param = row.status, row.type, row.code, None
    headers: tuple[tuple[str, str], ...] = ()
    retry_after = None if row.retry_after_s is None else str(row.retry_after_s)
    if isinstance(terminal, Failed) and (upstream := terminal.upstream) is not None and upstream.status >= 400:
        retry_after, headers = upstream.retry_after or retry_after, upstream.headers
        if terminal.kind is not FailKind.CONTEXT:  # a context overflow has its own row, whatever the upstream calls it
            status, type_ = upstream.status, upstream.type or type_
            code, param = upstream.code or code, upstream.param
    return HttpFailure(status, error_object(_message(terminal), type_, code, param), retry_after, headers)


def stream_error(terminal: Failed | Cancelled) -> ErrorObject:
    """The error object of a stream that began."""
    row = _row(terminal)
    return error_object(_message(terminal), row.stream_type or row.type, row.code)


def stream_error_of(error: BaseException) -> ErrorObject:
    """The same for an exception with one of Strata's names."""
    return stream_error(failed_of(error))


FAILED_FINISH_REASON = "error"
"""The closing `finish_reason` of whatever was not finished (OpenRouter's word; outside OpenAI's enum)."""


def known_finish_reason(word: str) -> str:
    """`word` if it is a finish reason; a word that nobody knows is no success."""
    return word if word in get_args(FinishReason) else FAILED_FINISH_REASON


def chat_finish_reason(terminal: Terminal) -> str:
    """The closing `finish_reason` of a chat stream. Only a `Finished` gives a word of success."""
    match terminal:
        case Finished(reason=reason):
            return reason
        case Failed() | Cancelled():
            return FAILED_FINISH_REASON
    assert_never(terminal)


def completion_finish_reason(finished: Finished) -> str:
    """The closing `finish_reason` of a completion's choice, in which there are no calls."""
    return FAILED_FINISH_REASON if finished.reason == "tool_calls" else finished.reason


RESPONSE_QUEUED: ResponseStatus = "queued"
RESPONSE_RUNNING: ResponseStatus = "in_progress"
QUEUED_EVENT: RunningEventName = "response.queued"
RUNNING_EVENT: RunningEventName = "response.in_progress"
ITEM_OPEN: ItemStatus = "in_progress"
ITEM_WHOLE: ItemStatus = "completed"
ITEM_CUT: ItemStatus = "incomplete"


@dataclass(frozen=True, slots=True)
class ResponseEnding:
    """How an answer ends in Responses. `open_item` is the status of a text or reasoning that was still open;
    `calls_close` says whether a call that was still open gets its `.done` events: one that a failure cut does not, so
    that no client runs it. Closed or not, it is `ITEM_CUT`. `error` is set for a failure only."""

    event: TerminalEventName
    status: ResponseStatus
    open_item: ItemStatus
    calls_close: bool = False
    incomplete_reason: IncompleteReason | None = None
    error: ResponseError | None = None


def response_ending(terminal: Terminal) -> ResponseEnding:
    """The terminal event of a response, its status and what goes with them. Only a `Finished` gives `completed`."""
    match terminal:
        case Finished(reason=reason):
            return _finished_response(reason)
        case Cancelled(by=by) if not _cancel_fails(by):
            return ResponseEnding("response.cancelled", "cancelled", ITEM_CUT)
        case Failed() | Cancelled():
            message = stream_error(terminal)["message"]
            error: ResponseError = {"code": _row(terminal).response_code, "message": message}
            return ResponseEnding("response.failed", "failed", ITEM_CUT, error=error)
    assert_never(terminal)


def _finished_response(reason: FinishReason) -> ResponseEnding:
    match reason:
        case "stop" | "tool_calls":
            return ResponseEnding("response.completed", "completed", ITEM_WHOLE)
        case "length":
            return ResponseEnding("response.incomplete", "incomplete", ITEM_CUT, True, "max_output_tokens")
        case "content_filter":
            return ResponseEnding("response.incomplete", "incomplete", ITEM_CUT, True, "content_filter")
    assert_never(reason)


def _cancel_fails(by: CancelledBy) -> bool:
    """Whether it is a failure to whoever asked: `cancelled` is what a client or an operator wanted."""
    match by:
        case "client" | "operator":
            return False
        case "deadline" | "shutdown":
            return True
    assert_never(by)


@dataclass(frozen=True, slots=True)
class Record:
    """How an answer ended, for the log, the metrics and Strata's history: `finish` is the finish reason, "error" or
    "cancel"; `cause` is "" for a finished answer."""

    finish: str
    cause: str
    message: str


def record_of(terminal: Terminal) -> Record:
    match terminal:
        case Finished(reason=reason):
            return Record(reason, "", "")
        case Cancelled(by="client"):
            return Record("cancel", "client_disconnect", "")
        case Cancelled(by=by):
            return Record("cancel", by, _CANCELLED_MESSAGES[by])
        case Failed(kind=kind, message=message):
            return Record("error", kind.value, message)
    assert_never(terminal)


def usage_object(usage: Usage) -> UsageObject:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings_object(usage: Usage | None) -> TimingsObject | None:
    """The engine's clock in llama.cpp's names; None where it told none. As there, the answer's rates are those of the
    tokens after the first one, which comes of reading the prompt."""
    times = None if usage is None else usage.timings
    if times is None:
        return None
    later = times.answer_tokens - 1
    made: TimingsObject = {
        "cache_n": times.cached_tokens,
        "prompt_n": times.prompt_tokens,
        "prompt_ms": times.prompt_ms,
        "prompt_per_token_ms": _ratio(times.prompt_ms, times.prompt_tokens),
        "prompt_per_second": _ratio(1000.0 * times.prompt_tokens, times.prompt_ms),
        "predicted_n": times.answer_tokens,
        "predicted_ms": times.answer_ms,
        "predicted_per_token_ms": _ratio(times.answer_ms, later),
        "predicted_per_second": _ratio(1000.0 * later, times.answer_ms),
    }
    if times.drafted:
        made["draft_n"] = times.drafted
        made["draft_n_accepted"] = times.drafts_accepted
    return made


def _ratio(whole: float, parts: float) -> float | None:
    return whole / parts if whole >= 0 and parts > 0 else None


def response_usage(usage: Usage) -> ResponseUsage:
    """The same counts in Responses' words. No engine of ours says what it wrote to a cache."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


# --- Messages ----------------------------------------------------------------------------------------

_STOP_REASONS: Mapping[FinishReason, MessageStopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}

MESSAGE_ERRORS: Mapping[int, MessageErrorType] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""HTTP status → error type. Source: Anthropic API reference, errors. Others by their class."""

PROMPT_TOO_LONG = "prompt is too long"
"""How the API's own message begins; agents make their conversation shorter when they read it."""


def message_stop(finished: Finished) -> tuple[MessageStopReason, str | None]:
    """`stop_reason` and `stop_sequence` of a message."""
    if finished.reason == "stop" and finished.stop_sequence is not None:
        return "stop_sequence", finished.stop_sequence
    return _STOP_REASONS[finished.reason], None


def message_stream_error(terminal: Failed | Cancelled) -> MessageErrorBody:
    """The `error` event of a stream that began."""
    error = stream_error(terminal)
    return {"type": "error", "error": {"type": _row(terminal).message_type, "message": _message_text(error)}}


def message_error(status: int, error: ErrorObject, request_id: str) -> MessageErrorBody:
    """An HTTP answer's error in the form of Messages: the type goes by the status, except at a shutdown."""
    type_ = MESSAGE_ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    if error["code"] == FAILURES[FailKind.SHUTDOWN].code:
        type_ = FAILURES[FailKind.SHUTDOWN].message_type
    return {"type": "error", "error": {"type": type_, "message": _message_text(error)}, "request_id": request_id}


def message_fault(error: ErrorObject) -> MessageErrorBody:
    """The `error` event of a stream that a fault of ours ends."""
    return {"type": "error", "error": {"type": "api_error", "message": error["message"]}}


def _message_text(error: ErrorObject) -> str:
    message = error["message"]
    too_long = error["code"] == FAILURES[FailKind.CONTEXT].code and PROMPT_TOO_LONG not in message.lower()
    return f"{PROMPT_TOO_LONG}: {message}" if too_long else message


def message_usage(usage: Usage) -> MessageUsage:
    """The same counts in Messages' words, whose input tokens are those that were not in the cache."""
    return {
        "input_tokens": max(usage.prompt_tokens - usage.cached_tokens, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
