"""Streams that lie, each with what must be seen of it. Each is one change away from a stream that tells the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.scripted_upstream import DONE, event
from tests.unit.tools.probe import streams
from tests.unit.tools.probe.streams import (
    BLOCK_STOP,
    CALLED,
    CUT_CALL,
    ERROR,
    LIMITED,
    MESSAGE_ERROR,
    MESSAGE_SAID,
    MESSAGE_STOP,
    PING,
    SAID,
    START,
    TEXT_BLOCK,
    TOOL_BLOCK,
    Responses,
    chunk,
    completion,
    counted,
    message,
    usage,
)
from tools.probe.target import Api
from tools.probe.telling import FindingKind

LIMIT = 2048


@dataclass(frozen=True)
class Lie:
    """A body that ends cleanly, and the finding that it must give."""

    api: Api
    body: bytes
    kind: FindingKind
    id: str
    says: str = ""


STOP = chunk("stop")
CHAT: dict[str, Lie] = {
    "no finish": Lie("chat", SAID, "lie", "no-finish", "take it for finished"),
    "no finish, but a marker": Lie("chat", SAID + DONE, "lie", "no-finish", "[DONE] without any finish_reason"),
    "nothing at all": Lie("chat", b"", "lie", "no-finish", "no event at all"),
    "heartbeats alone": Lie("chat", b": ping\n\n", "lie", "no-finish"),
    "no marker": Lie("chat", SAID + STOP, "lie", "no-marker"),
    "no marker after a limit": Lie("chat", SAID + chunk("length"), "lie", "no-marker"),
    "stop over cut arguments": Lie("chat", CUT_CALL + STOP + DONE, "lie", "cut-arguments", "'stop' over a call"),
    "tool_calls over cut arguments": Lie("chat", CUT_CALL + chunk("tool_calls") + DONE, "lie", "cut-arguments"),
    "function_call over cut arguments": Lie(
        "chat", streams.ROLE + chunk(function_call={"name": "f", "arguments": "{"}) + chunk("function_call") + DONE,
        "lie", "cut-arguments"),
    "tool_calls without a call": Lie("chat", SAID + chunk("tool_calls") + DONE, "lie", "no-call"),
    "text after the finish": Lie("chat", SAID + STOP + chunk(content="x") + DONE, "lie", "after-finish"),
    "a call after the finish": Lie("chat", SAID + STOP + CALLED[len(streams.ROLE):] + DONE, "lie", "after-finish"),
    "text after the marker": Lie("chat", SAID + STOP + DONE + chunk(content="x"), "lie", "after-end"),
    "an error after the marker": Lie("chat", SAID + STOP + DONE + ERROR, "lie", "error-after-success"),
    "an error after stop": Lie("chat", SAID + STOP + ERROR + DONE, "lie", "error-after-success"),
    "stop after an error": Lie("chat", SAID + ERROR + STOP + DONE, "lie", "success-after-error"),
    "two words": Lie("chat", SAID + chunk("length") + STOP + DONE, "lie", "finish-twice"),
    "a word of its own": Lie("chat", SAID + chunk("abort") + DONE, "lie", "unknown-finish", "'abort'"),
    "an error in a comment": Lie("chat", SAID + b": error: out of memory\n\n" + DONE, "lie", "hidden-error", "comment"),
    "an error in a field of its own": Lie(
        "chat", SAID + b'error: {"message": "out of memory"}\n\n' + DONE, "lie", "hidden-error", "out of memory"),
    "a raw json error": Lie("chat", SAID + b'{"error": {"message": "no"}}\n' + DONE, "lie", "hidden-error"),
    "a raw page": Lie("chat", SAID + b"<html>502 Bad Gateway</html>\n" + DONE, "lie", "hidden-error", "502"),
    "a flat error": Lie(
        "chat", SAID + event({"object": "error", "message": "no", "code": 500}) + DONE, "lie", "hidden-error", "no"),
    "a detail": Lie("chat", SAID + event({"detail": "no"}) + DONE, "lie", "hidden-error"),
    "an error in a choice": Lie(
        "chat", SAID + event({"choices": [{"index": 0, "error": {"message": "no"}}]}) + DONE, "lie", "hidden-error"),
    "stop at the limit": Lie("chat", SAID + STOP + usage(LIMIT) + DONE, "lie", "success-at-limit"),
    "an error without a message": Lie("chat", SAID + event({"error": "no"}) + DONE, "breach", "error-form"),
    "broken json": Lie("chat", SAID + b"data: {oops\n\n" + STOP + DONE, "breach", "not-json"),
    "raw control characters": Lie(
        "chat", SAID + b'data: {"choices": [{"delta": {"content": "\x1b"}}]}\n\n' + STOP + DONE, "breach", "not-json"),
    "no object": Lie("chat", SAID + b"data: [1]\n\n" + STOP + DONE, "breach", "no-object"),
    "invalid utf-8": Lie("chat", SAID + b": \xff\n\n" + STOP + DONE, "breach", "sse: invalid utf-8"),
    "a lost line": Lie("chat", SAID + b"note: x\n\n" + STOP + DONE, "breach", "sse: unknown field"),
    "an open event": Lie("chat", SAID + STOP + DONE + b"data: {}\n", "breach", "sse: open event"),
    "completions without a finish": Lie("completions", completion(text="a") + DONE, "lie", "no-finish"),
    "completions without a marker": Lie("completions", completion(text="a") + completion("stop"), "lie", "no-marker"),
    "completions, text after the finish": Lie(
        "completions", completion("stop", "a") + completion(text="b") + DONE, "lie", "after-finish"),
}  # fmt: skip

RISKS: dict[str, Lie] = {
    "no role": Lie("chat", chunk(content="x") + STOP + DONE, "risk", "no-role"),
    "an empty word": Lie("chat", streams.ROLE + chunk("", content="x") + STOP + DONE, "risk", "empty-finish"),
    "the same word twice": Lie("chat", SAID + STOP + STOP + DONE, "risk", "finish-again"),
    "two markers": Lie("chat", SAID + STOP + DONE + DONE, "risk", "two-markers"),
    "counts after the end": Lie("chat", SAID + STOP + DONE + usage(2), "risk", "counts-after-end"),
    "a beat after the end": Lie("chat", SAID + STOP + DONE + b": ping\n\n", "risk", "beat-after-end"),
    "a call without an index": Lie(
        "chat", streams.ROLE + chunk(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": "{}"}}])
        + chunk("tool_calls") + DONE, "risk", "call-without-index"),
    "an error in a chunk": Lie(
        "chat", SAID + event({"choices": [{"index": 0, "finish_reason": "error"}], "error": {"message": "x"}}) + DONE,
        "risk", "error-in-chunk"),
    "the word error alone": Lie("chat", SAID + chunk("error") + DONE, "risk", "error-without-cause"),
    "an error without a marker": Lie("chat", SAID + ERROR, "risk", "no-marker-after-error"),
    "a call without an id": Lie(
        "chat", CALLED.replace(b'"id": "call_1", ', b"") + chunk("tool_calls") + DONE, "risk", "call-without-id"),
    "the name of a call twice": Lie(
        "chat", CUT_CALL + chunk(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": '": 1}'}}])
        + chunk("length") + DONE, "risk", "call-name-again"),
    "two pieces of a call in a chunk": Lie(
        "chat", streams.ROLE + chunk(tool_calls=[
            {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}},
            {"index": 0, "function": {"arguments": "}"}}]) + chunk("tool_calls") + DONE, "risk", "call-twice-in-chunk"),
    "usage without choices": Lie(
        "chat", SAID + STOP + event({"id": "a", "usage": {"completion_tokens": 2}}) + DONE,
        "risk", "usage-without-choices"),
    "empty usage": Lie(
        "chat", SAID + event({"id": "a", "choices": [], "usage": {}}) + STOP + DONE, "risk", "empty-usage"),
    "no finish_reason": Lie(
        "chat", SAID + event({"choices": [{"index": 0, "delta": {"content": "x"}}]}) + STOP + DONE,
        "risk", "no-finish-key"),
    "no delta": Lie(
        "chat", SAID + event({"choices": [{"index": 0, "finish_reason": "stop"}]}) + DONE, "risk", "no-delta"),
    "an empty role": Lie("chat", SAID + chunk(role="", content="x") + STOP + DONE, "risk", "empty-role"),
    "no role but null": Lie("chat", SAID + chunk(role=None, content="x") + STOP + DONE, "risk", "empty-role"),
    "half a surrogate pair": Lie(
        "chat", SAID + event({"choices": [{"index": 0, "delta": {"content": "\ud83d"}, "finish_reason": None}]})
        + STOP + DONE, "risk", "lone-surrogate"),
    "empty data": Lie("chat", SAID + b"data:\n\n" + STOP + DONE, "risk", "sse: empty data"),
    "crlf": Lie("chat", (SAID + STOP + DONE).replace(b"\n", b"\r\n"), "risk", "sse: crlf lines"),
    "a comment block after an id": Lie(
        "chat", b"id: 1\n" + SAID + b": ping\n\n" + STOP + DONE, "risk", "sse: comment block after id"),
}  # fmt: skip
"""They are told, and are no lies."""


def _begun(to: Responses) -> bytes:
    return to.begin() + to.text("one")


def _ended(name: str, inner: str | None = None, **members: Any) -> Callable[[Responses], bytes]:
    """`inner`: the status in the response, where it is another one than the event's."""
    return lambda to: _begun(to) + to.response(name, inner or name, **members)


_RESPONSES: dict[str, tuple[FindingKind, str, Callable[[Responses], bytes]]] = {
    "no terminal": ("lie", "no-finish", _begun),
    "an error in a comment": ("lie", "hidden-error", lambda to: _begun(to) + b": error: out of memory\n\n"),
    "completed at the limit": ("lie", "success-at-limit", _ended("completed", usage=counted(LIMIT))),
    "the event says completed": ("lie", "status-contradicts", _ended("completed", "incomplete", **LIMITED)),
    "completed with details": ("lie", "status-contradicts", _ended("completed", **LIMITED)),
    "completed with an error": ("lie", "status-contradicts", _ended("completed", error={"message": "x"})),
    "completed with an open item": (
        "lie", "status-contradicts", _ended("completed", output=[message("one", "incomplete")])),
    "completed over cut arguments": (
        "lie", "cut-arguments", lambda to: to.begin() + to.call('{"a') + to.response("completed", "completed")),
    "a cut call is completed": (
        "lie", "cut-call-completed", lambda to: to.begin() + to.call('{"a') + to.call_done('{"a', "completed")
        + to.response("incomplete", "incomplete", **LIMITED)),
    "other arguments at the end": (
        "lie", "done-differs", lambda to: to.begin() + to.call('{"a') + to.call_done('{"a": 1}', "completed")
        + to.response("completed", "completed")),
    "completed after an error": (
        "lie", "success-after-error", lambda to: _begun(to) + to.error() + to.response("completed", "completed")),
    "more after the end": (
        "lie", "after-end", lambda to: _begun(to) + to.response("completed", "completed") + to.text("x")),
    "a chat error": ("lie", "hidden-error", lambda to: _begun(to) + ERROR),
    "no numbers": (
        "breach", "no-sequence-number",
        lambda to: streams.whole_response().replace(b'"sequence_number"', b'"n"')),
    "a gap in the numbers": (
        "breach", "sequence-gap",
        lambda to: streams.whole_response().replace(b'"sequence_number": 3', b'"sequence_number": 7')),
    "other event names": (
        "breach", "event-name",
        lambda to: streams.whole_response().replace(b"event: response.completed", b"event: done")),
    "no event names": (
        "breach", "event-name", lambda to: streams.whole_response().replace(b"event: response.completed\n", b"")),
    "no type": (
        "breach", "no-type", lambda to: _begun(to) + event({"x": 1}) + to.response("completed", "completed")),
    "a reason of its own": ("risk", "unknown-reason", _ended("incomplete", incomplete_details={"reason": "x"})),
    "failed without a cause": ("risk", "error-without-cause", _ended("failed")),
    "comments alone": ("risk", "comment-beats", lambda to: b": ping\n\n" + streams.whole_response()),
    "another id at the end": (
        "risk", "id-changes", lambda to: _begun(to) + to.response("completed", "completed", id="resp_2")),
    "numbers from 1": (
        "risk", "sequence-start", lambda to: streams.whole_response().partition(b"\n\n")[2]),
    "deltas without an index": (
        "risk", "delta-without-item", lambda to: streams.whole_response().replace(b'"output_index"', b'"oi"')),
    "a flat error": (
        "risk", "error-form", lambda to: _begun(to) + to.event("error", message="x", code=None, param=None)),
}  # fmt: skip
RESPONSES = {
    f"responses, {name}": Lie("responses", build(Responses()), kind, id_)
    for name, (kind, id_, build) in _RESPONSES.items()
}

TO_STOP = BLOCK_STOP + MESSAGE_STOP
END_TURN = streams.message_end("end_turn")
CUT_TOOL = START + TOOL_BLOCK + streams.block_json('{"path')
MESSAGES: dict[str, Lie] = {
    "messages, no end": Lie("messages", MESSAGE_SAID, "lie", "no-finish"),
    "messages, no stop": Lie("messages", MESSAGE_SAID + BLOCK_STOP + END_TURN, "lie", "no-marker"),
    "messages, a stop without a reason": Lie("messages", MESSAGE_SAID + BLOCK_STOP + MESSAGE_STOP, "lie", "no-finish"),
    "messages, tool_use over a cut call": Lie(
        "messages", CUT_TOOL + BLOCK_STOP + streams.message_end("tool_use") + MESSAGE_STOP, "lie", "cut-arguments"),
    "messages, end_turn over a cut call": Lie(
        "messages", CUT_TOOL + BLOCK_STOP + END_TURN + MESSAGE_STOP, "lie", "cut-arguments"),
    "messages, tool_use without a call": Lie(
        "messages", MESSAGE_SAID + BLOCK_STOP + streams.message_end("tool_use") + MESSAGE_STOP, "lie", "no-call"),
    "messages, an open block": Lie("messages", MESSAGE_SAID + END_TURN + MESSAGE_STOP, "lie", "open-block"),
    "messages, end_turn at the limit": Lie(
        "messages", MESSAGE_SAID + BLOCK_STOP + streams.message_end("end_turn", LIMIT) + MESSAGE_STOP,
        "lie", "success-at-limit"),
    "messages, end_turn after an error": Lie(
        "messages", MESSAGE_SAID + MESSAGE_ERROR + END_TURN + MESSAGE_STOP, "lie", "success-after-error"),
    "messages, an error without its event line": Lie(
        "messages", MESSAGE_SAID + MESSAGE_ERROR.partition(b"\n")[2], "lie", "no-event-line"),
    "messages, a chat error": Lie("messages", MESSAGE_SAID + ERROR, "lie", "hidden-error"),
    "messages, a word of its own": Lie(
        "messages", MESSAGE_SAID + BLOCK_STOP + streams.message_end("abort") + MESSAGE_STOP, "lie", "unknown-finish"),
    "messages, two words": Lie(
        "messages", MESSAGE_SAID + BLOCK_STOP + streams.message_end("max_tokens") + END_TURN + MESSAGE_STOP,
        "lie", "finish-twice"),
    "messages, text after the reason": Lie(
        "messages", MESSAGE_SAID + END_TURN + streams.block_text("x") + TO_STOP, "lie", "after-finish"),
    "messages, a block after the reason": Lie(
        "messages", MESSAGE_SAID + BLOCK_STOP + END_TURN + TEXT_BLOCK + TO_STOP, "lie", "after-finish"),
    "messages, more after the end": Lie(
        "messages", streams.WHOLE_MESSAGE + TEXT_BLOCK, "lie", "after-end"),
    "messages, two starts": Lie("messages", START + streams.WHOLE_MESSAGE, "lie", "two-starts"),
    "messages, no event lines": Lie(
        "messages", MESSAGE_SAID + BLOCK_STOP.partition(b"\n")[2] + END_TURN + MESSAGE_STOP, "breach", "no-event-line"),
    "messages, another event line": Lie(
        "messages", MESSAGE_SAID + BLOCK_STOP.replace(b"event: content", b"event: x") + END_TURN + MESSAGE_STOP,
        "breach", "event-name"),
    "messages, half a start": Lie(
        "messages", streams.WHOLE_MESSAGE.replace(b'"role"', b'"r"'), "breach", "start-incomplete"),
    "messages, a start without stop_sequence": Lie(
        "messages", streams.WHOLE_MESSAGE.replace(b'"stop_sequence"', b'"s"', 1), "risk", "start-without-stop"),
    "messages, a stop without a start": Lie("messages", END_TURN + MESSAGE_STOP, "breach", "stop-without-start"),
    "messages, a delta outside": Lie(
        "messages", START + streams.block_text("x") + END_TURN + MESSAGE_STOP, "breach", "delta-outside"),
    "messages, blocks over one another": Lie(
        "messages", START + TEXT_BLOCK + TOOL_BLOCK + BLOCK_STOP + END_TURN + MESSAGE_STOP, "breach", "blocks-overlap"),
    "messages, a ping after the end": Lie("messages", streams.WHOLE_MESSAGE + PING, "risk", "beat-after-end"),
    "messages, an error without a message": Lie(
        "messages", MESSAGE_SAID + streams.message_event("error", error={"type": "api_error"}), "breach", "error-form"),
}  # fmt: skip

LIES: dict[str, Lie] = CHAT | RESPONSES | MESSAGES
