"""The grammar of a Messages stream: what every stream must hold, whatever happened, and what one that was left may not
break.

It shares no code with the server, so that it cannot share its mistakes. Source: Anthropic API reference, "streaming
messages" (2026-10), and the contract of endings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.e2e.client import Answer
from tests.e2e.frames import Event, check_arguments, check_has, is_count, read_frames, strict_object

Json = dict[str, Any]

STOP_REASONS = {"end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"}
ERROR_TYPES = {
    "invalid_request_error", "authentication_error", "billing_error", "permission_error", "not_found_error",
    "request_too_large", "rate_limit_error", "api_error", "timeout_error", "overloaded_error",
}  # fmt: skip
EVENT_KEYS: dict[str, set[str]] = {
    "message_start": {"message"},
    "content_block_start": {"index", "content_block"},
    "content_block_delta": {"index", "delta"},
    "content_block_stop": {"index"},
    "message_delta": {"delta", "usage"},
    "message_stop": set(),
    "ping": set(),
    "error": {"error"},
}
MESSAGE_KEYS = {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"}
BEGUN: dict[str, Json] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}
"""Kind of a block → what it says at its start."""
DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
}
"""Kind of a delta → the kind of its block, and where its text is."""
COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


@dataclass
class Block:
    """What a stream said of one block. `stopped`: its stop came."""

    kind: str
    id: str = ""
    name: str = ""
    text: str = ""
    signature: str = ""
    stopped: bool = False


@dataclass(frozen=True)
class MessageEnding:
    """What a stream said and how it ended: `stop_reason` is None where it ended with `error`."""

    blocks: list[Block]
    stop_reason: str | None
    stop_sequence: str | None
    usage: Json | None
    error: Json | None
    events: list[Json] = field(default_factory=list[Json])

    def of(self, kind: str) -> tuple[str, ...]:
        """The texts of all blocks of a kind; of calls the arguments."""
        return tuple(block.text for block in self.blocks if block.kind == kind)

    @property
    def calls(self) -> list[Block]:
        return [block for block in self.blocks if block.kind == "tool_use"]


def check_message_stream(answer: Answer) -> MessageEnding:
    """Check a whole stream; returns what it said.

    Raises: AssertionError: the stream breaks the grammar.
    """
    assert answer.status == 200, f"no stream: {answer.body[:300]!r}"
    assert answer.headers["content-type"].startswith("text/event-stream"), "not an event stream"
    assert answer.terminated, "the body was cut"
    walk = MessageWalk()
    for event in read_frames(answer.body, beats=False):
        walk.feed(event)
    return walk.end()


class MessageWalk:
    """One stream, event by event."""

    def __init__(self) -> None:
        self._events: list[Json] = []
        self._blocks: list[Block] = []
        self._begun: Json | None = None
        self._end: Json | None = None
        self._last = ""

    def feed(self, event: Event) -> None:
        """Raises: AssertionError: this event may not come here."""
        value = strict_object(event.data)
        check_has(value, {"type"}, "an event")
        name = value["type"]
        assert name in EVENT_KEYS, f"unknown event {name!r}"
        assert event.name == name, f"the event line says {event.name!r} of {name}"
        check_has(value, EVENT_KEYS[name], name)
        assert not self.closed, f"{name} after {self._last}"
        self._events.append(value)
        if self._begun is None:
            assert name == "message_start", f"begins with {name}"
            check_message(value["message"], running=True)
            self._begun = value["message"]
        else:
            self._step(name, value)
        self._last = name

    def _step(self, name: str, value: Json) -> None:
        assert name != "message_start", "more than one message_start"
        if name.startswith("content_block_"):
            assert self._end is None, f"{name} after the stop reason"
            _step_block(self._blocks, value)
        elif name == "message_delta":
            assert self._end is None, "more than one message_delta"
            self._check_end(value)
            self._end = value
        elif name == "message_stop":
            assert self._end is not None, f"message_stop after {self._last}"
        elif name == "error":
            assert self._end is None, "a stop reason, and then an error"
            check_error(value, request_id=False)

    def _check_end(self, end: Json) -> None:
        assert all(block.stopped for block in self._blocks), "ended with an open block"
        check_has(end["delta"], {"stop_reason", "stop_sequence"}, "message_delta.delta")
        _check_usage(end["usage"])
        assert self._begun is not None
        assert end["usage"]["output_tokens"] >= self._begun["usage"]["output_tokens"], "counts that shrink"
        reason, sequence = end["delta"]["stop_reason"], end["delta"]["stop_sequence"]
        _check_stop(reason, sequence)
        _check_success(reason, self._blocks)

    @property
    def closed(self) -> bool:
        """Whether the whole ending came."""
        return self._last in ("message_stop", "error")

    def end(self) -> MessageEnding:
        """Raises: AssertionError: the stream may not end here."""
        assert self.closed, f"ends with {self._last}"
        if self._end is None:
            return MessageEnding(self._blocks, None, None, None, self._events[-1]["error"], self._events)
        told = self._end["delta"]
        return MessageEnding(
            self._blocks, told["stop_reason"], told["stop_sequence"], self._end["usage"], None, self._events
        )


# --- messages and errors -----------------------------------------------------------------------------


def check_message(message: Json, *, running: bool = False) -> None:
    """One message object: a body, or what a stream starts with."""
    check_has(message, MESSAGE_KEYS, "the message")
    assert message["type"] == "message", "another object"
    assert message["role"] == "assistant", "another role"
    assert message["id"].startswith("msg_"), "an id of another form"
    assert isinstance(message["model"], str), "a model that is no string"
    _check_usage(message["usage"])
    if running:
        assert message["content"] == [], "a message that starts with content"
        assert message["stop_reason"] is None, "a message that starts with its end"
        assert message["stop_sequence"] is None, "a message that starts with its end"
        return
    _check_stop(message["stop_reason"], message["stop_sequence"])
    for block in message["content"]:
        assert block["type"] in BEGUN, f"unknown block {block['type']!r}"
        check_has(block, {"type", *BEGUN[block["type"]]}, "a block")
        if block["type"] == "tool_use":
            check_has(block, {"id", "name"}, "a call")
            assert isinstance(block["input"], dict), "an input that is no object"
            assert message["stop_reason"] == "max_tokens" or "partial_json" not in block, "a cut call in a whole answer"


def check_error(body: Json, *, request_id: bool = True) -> Json:
    """One error in the API's form; gives what is in it."""
    assert set(body) == {"type", "error", *(["request_id"] if request_id else [])}, "an error of another form"
    assert body["type"] == "error", "another object"
    error = body["error"]
    more = {"partial_output", "usage"} if request_id else set[str]()
    assert {"type", "message"} <= set(error) <= {"type", "message", *more}, "an error with more"
    assert error["type"] in ERROR_TYPES, f"an undocumented type {error['type']!r}"
    assert isinstance(error["message"], str), "a message that is no string"
    assert error["message"].strip(), "an error without a message"
    return error


def _check_usage(usage: Json) -> None:
    check_has(usage, set(COUNTS), "usage")
    assert all(is_count(usage[name]) for name in COUNTS), "a count that is no number"
    thinking = usage["output_tokens_details"]["thinking_tokens"]
    assert 0 <= thinking <= usage["output_tokens"], "more thinking than output"


def _check_stop(reason: Any, sequence: Any) -> None:
    assert reason in STOP_REASONS, f"a home-made stop reason {reason!r}"
    assert (sequence is not None) == (reason == "stop_sequence"), "stop_sequence and stop_reason disagree"


# --- blocks ------------------------------------------------------------------------------------------


def _step_block(blocks: list[Block], event: Json) -> None:
    index, name = event["index"], event["type"]
    assert type(index) is int, "an index that is no integer"
    if name == "content_block_start":
        assert index == len(blocks), f"block {index} after {len(blocks)} blocks"
        assert not blocks or blocks[-1].stopped, "a block in another"
        block = _begun(event["content_block"])
        assert block.kind != "tool_use" or block.id not in [one.id for one in blocks], "two calls with one id"
        blocks.append(block)
        return
    assert index == len(blocks) - 1, "an event of a block that is not the last"
    block = blocks[-1]
    assert not block.stopped, "an event of a block that was stopped"
    if name == "content_block_delta":
        _apply(block, event["delta"])
    else:
        assert (block.signature != "") == (block.kind == "thinking"), "a thinking block without a signature"
        block.stopped = True


def _begun(block: Json) -> Block:
    check_has(block, {"type"}, "a block")
    kind = block["type"]
    assert kind in BEGUN, f"unknown block {kind!r}"
    if kind == "tool_use":
        assert set(block) == {"type", "id", "name", "input"}, "a call that starts with other keys"
        assert block["id"], "a call without an id"
        assert block["name"], "a call without a name"
    assert {**block, **BEGUN[kind]} == block, "a block that starts with content"
    return Block(kind, block.get("id", ""), block.get("name", ""))


def _apply(block: Block, delta: Json) -> None:
    check_has(delta, {"type"}, "a delta")
    assert delta["type"] in DELTAS, f"unknown delta {delta['type']!r}"
    kind, key = DELTAS[delta["type"]]
    assert kind == block.kind, f"{delta['type']} in a block of kind {block.kind}"
    assert set(delta) == {"type", key}, "a delta with other keys"
    assert isinstance(delta[key], str), "a delta that is no string"
    assert delta[key], "an empty delta"
    assert block.signature == "", "more of a block after its signature"
    if key == "signature":
        block.signature = delta[key]
    else:
        block.text += delta[key]


def _check_success(reason: str, blocks: list[Block]) -> None:
    calls = [block for block in blocks if block.kind == "tool_use"]
    if reason == "tool_use":
        assert calls, "tool_use without a call"
    if reason in ("tool_use", "end_turn", "stop_sequence"):
        for call in calls:
            check_arguments(call.text)
    assert reason != "end_turn" or not calls, "end_turn, but there are calls"
