"""The grammar of a Messages stream: what every stream must hold, whatever happened.

It shares no code with the server, so that it cannot share its mistakes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tests.e2e.client import Answer

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
    events = read_events(answer)
    for event in events:
        _check_has(event, EVENT_KEYS[event["type"]], event["type"])
    told = [event for event in events if event["type"] != "ping"]
    assert events[-1]["type"] in ("message_stop", "error"), f"ends with {events[-1]['type']}"
    assert told[0]["type"] == "message_start", f"begins with {told[0]['type']}"
    message = told[0]["message"]
    check_message(message, running=True)
    names = [event["type"] for event in told]
    for name in ("message_start", "message_delta", "message_stop", "error"):
        assert names.count(name) <= 1, f"more than one {name}"
    blocks = _read_blocks([event for event in told if event["type"].startswith("content_block_")])
    if told[-1]["type"] == "error":
        assert "message_delta" not in names, "a stop reason, and then an error"
        assert all(block.stopped for block in blocks[:-1]), "a block was left open before the last one"
        check_error(told[-1], request_id=False)
        return MessageEnding(blocks, None, None, None, told[-1]["error"], events)
    assert names[-2:] == ["message_delta", "message_stop"], f"ends with {names[-2:]}"
    assert all(block.stopped for block in blocks), "ended with an open block"
    end = told[-2]
    _check_has(end["delta"], {"stop_reason", "stop_sequence"}, "message_delta.delta")
    _check_usage(end["usage"])
    reason, sequence = end["delta"]["stop_reason"], end["delta"]["stop_sequence"]
    _check_stop(reason, sequence)
    _check_success(reason, blocks)
    return MessageEnding(blocks, reason, sequence, end["usage"], None, events)


# --- framing -----------------------------------------------------------------------------------------


def read_events(answer: Answer) -> list[Json]:
    """The events of a stream: each one block of an `event:` and a `data:` line, the name equal to the type."""
    assert answer.status == 200, f"no stream: {answer.body[:300]!r}"
    assert answer.headers["content-type"].startswith("text/event-stream"), "not an event stream"
    assert answer.terminated, "the body was cut"
    body = answer.body.decode("utf-8")
    assert body.endswith("\n\n"), "the last event is not whole"
    assert body.splitlines() == body.split("\n")[:-1], "a character that ends lines for some readers"
    return [_event(block) for block in body[:-2].split("\n\n")]


def _event(block: str) -> Json:
    lines = block.split("\n")
    assert len(lines) == 2, f"not an event and a data line: {lines!r}"
    assert lines[0].startswith("event: "), f"not an event line: {lines[0]!r}"
    assert lines[1].startswith("data: "), f"not a data line: {lines[1]!r}"
    event: Json = json.loads(lines[1].removeprefix("data: "), parse_constant=_no_constant)
    _check_has(event, {"type"}, "an event")
    assert event["type"] in EVENT_KEYS, f"unknown event {event['type']!r}"
    assert lines[0].removeprefix("event: ") == event["type"], "the event line is not the type"
    return event


def _no_constant(word: str) -> NoReturn:
    raise AssertionError(f"{word} is not JSON")


def _check_has(value: Any, keys: set[str], what: str) -> None:
    assert isinstance(value, dict), f"{what} is no object"
    missing = [key for key in keys if key not in value]
    assert missing == [], f"{what} lacks {missing}"


# --- messages and errors -----------------------------------------------------------------------------


def check_message(message: Json, *, running: bool = False) -> None:
    """One message object: a body, or what a stream starts with."""
    _check_has(message, MESSAGE_KEYS, "the message")
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
        _check_has(block, {"type", *BEGUN[block["type"]]}, "a block")
        if block["type"] == "tool_use":
            _check_has(block, {"id", "name"}, "a call")
            assert isinstance(block["input"], dict), "an input that is no object"
            assert message["stop_reason"] == "max_tokens" or "partial_json" not in block, "a cut call in a whole answer"


def check_error(body: Json, *, request_id: bool = True) -> Json:
    """One error in the API's form; gives what is in it."""
    assert set(body) == {"type", "error", *(["request_id"] if request_id else [])}, "an error of another form"
    assert body["type"] == "error"
    error = body["error"]
    assert {"type", "message"} <= set(error) <= {"type", "message", "partial_output", "usage"}, "an error with more"
    assert error["type"] in ERROR_TYPES, f"an undocumented type {error['type']!r}"
    assert error["message"], "an error without a message"
    return error


def _check_usage(usage: Json) -> None:
    _check_has(usage, set(COUNTS), "usage")
    assert all(type(usage[name]) is int and usage[name] >= 0 for name in COUNTS), "a count that is no number"
    thinking = usage["output_tokens_details"]["thinking_tokens"]
    assert 0 <= thinking <= usage["output_tokens"], "more thinking than output"


def _check_stop(reason: Any, sequence: Any) -> None:
    assert reason in STOP_REASONS, f"a home-made stop reason {reason!r}"
    assert (sequence is not None) == (reason == "stop_sequence"), "stop_sequence and stop_reason disagree"


# --- blocks ------------------------------------------------------------------------------------------


def _read_blocks(events: list[Json]) -> list[Block]:
    blocks: list[Block] = []
    for event in events:
        index, name = event["index"], event["type"]
        assert type(index) is int, "an index that is no integer"
        if name == "content_block_start":
            assert index == len(blocks), f"block {index} after {len(blocks)} blocks"
            assert not blocks or blocks[-1].stopped, "a block in another"
            blocks.append(_begun(event["content_block"]))
            continue
        assert index == len(blocks) - 1, "an event of a block that is not the last"
        block = blocks[-1]
        assert not block.stopped, "an event of a block that was stopped"
        if name == "content_block_delta":
            _apply(block, event["delta"])
        else:
            assert (block.signature != "") == (block.kind == "thinking"), "a thinking block without a signature"
            block.stopped = True
    ids = [block.id for block in blocks if block.kind == "tool_use"]
    assert len(ids) == len(set(ids)), "two calls with one id"
    return blocks


def _begun(block: Json) -> Block:
    kind = block["type"]
    assert kind in BEGUN, f"unknown block {kind!r}"
    if kind == "tool_use":
        assert set(block) == {"type", "id", "name", "input"}, "a call that starts with other keys"
        assert block["id"], "a call without an id"
        assert block["name"], "a call without a name"
    assert {**block, **BEGUN[kind]} == block, "a block that starts with content"
    return Block(kind, block.get("id", ""), block.get("name", ""))


def _apply(block: Block, delta: Json) -> None:
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
            assert isinstance(json.loads(call.text), dict), "arguments that are no object in a whole answer"
    assert reason != "end_turn" or not calls, "end_turn, but there are calls"
