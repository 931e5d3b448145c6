"""The grammar of a Responses stream: what every stream must hold, whatever happened.

It shares no code with the server, so that it cannot share its mistakes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tests.e2e.client import Answer

Json = dict[str, Any]

TERMINALS = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
LIFECYCLE = {"response.created", "response.queued", "response.in_progress", *TERMINALS}
RUNNING = {"queued", "in_progress"}
STATUSES = {*RUNNING, "completed", "incomplete", "failed", "cancelled"}
REASONS = {"max_output_tokens", "content_filter"}
ERROR_CODES = {"server_error", "rate_limit_exceeded"}

PLACE = {"item_id", "output_index"}
PART = {*PLACE, "content_index"}
EVENT_KEYS: dict[str, set[str]] = {
    **{name: {"response"} for name in LIFECYCLE},
    "error": {"code", "message", "param", "error"},
    "response.output_item.added": {"output_index", "item"},
    "response.output_item.done": {"output_index", "item"},
    "response.content_part.added": {*PART, "part"},
    "response.content_part.done": {*PART, "part"},
    "response.output_text.delta": {*PART, "delta", "logprobs"},
    "response.output_text.done": {*PART, "text", "logprobs"},
    "response.reasoning_text.delta": {*PART, "delta"},
    "response.reasoning_text.done": {*PART, "text"},
    "response.function_call_arguments.delta": {*PLACE, "delta"},
    "response.function_call_arguments.done": {*PLACE, "name", "arguments"},
}
RESPONSE_KEYS = {
    "id", "object", "created_at", "completed_at", "status", "background", "error", "incomplete_details", "instructions",
    "max_output_tokens", "max_tool_calls", "metadata", "model", "output", "parallel_tool_calls", "previous_response_id",
    "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store", "temperature", "text", "tool_choice",
    "tools", "top_logprobs", "top_p", "truncation", "usage", "user",
}  # fmt: skip
ITEM_KEYS = {
    "message": {"id", "type", "role", "status", "content"},
    "reasoning": {"id", "type", "summary", "content", "status"},
    "function_call": {"id", "type", "call_id", "name", "arguments", "status"},
}
PART_KEYS = {"output_text": {"type", "text", "annotations", "logprobs"}, "reasoning_text": {"type", "text"}}
USAGE_KEYS = {"input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details", "total_tokens"}
PART_OF = {"message": "output_text", "reasoning": "reasoning_text"}


@dataclass(frozen=True)
class ResponseEnding:
    """What a stream said and how it ended. `error` is the nested object of the `error` event; `calls` are the
    function call items of the terminal's response."""

    response: Json
    texts: list[str]
    reasoning: list[str]
    calls: list[Json]
    status: str
    error: Json | None
    events: list[Json]


def check_response_stream(answer: Answer, *, first_number: int = 0) -> ResponseEnding:
    """Check a whole stream; returns what it said. A resumed one begins with number `first_number`, perhaps in the
    middle of an item: of it only what needs no earlier event is checked.

    Raises: AssertionError: the stream breaks the grammar.
    """
    events = read_events(answer)
    for event in events:
        _check_keys(event)
    numbers = [event["sequence_number"] for event in events]
    assert all(type(number) is int for number in numbers), "a sequence number that is no integer"
    assert numbers == list(range(first_number, first_number + len(events))), "sequence numbers with gaps"
    assert events[-1]["type"] in TERMINALS, f"ends with {events[-1]['type']}"
    assert [event["type"] for event in events if event["type"] in TERMINALS] == [events[-1]["type"]], "two terminals"
    response = events[-1]["response"]
    _check_responses(events)
    error = _check_errors(events, whole=first_number == 0)
    if first_number == 0:
        _check_start(events)
        walk = _Walk()
        for event in events:
            walk.step(event)
        walk.end(response)
    else:
        assert all(event["type"] != "response.created" for event in events), "a resumed stream begins anew"
        _check_rest(events, response)
    return _ending(response, error, events)


# --- framing -----------------------------------------------------------------------------------------


def read_events(answer: Answer) -> list[Json]:
    """The events of a stream: each one block of an `event:` and a `data:` line, the name equal to the type."""
    assert answer.status == 200, "no stream: an HTTP error"
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
    _check_has(event, {"type", "sequence_number"}, "an event")
    assert lines[0].removeprefix("event: ") == event["type"], "the event line is not the type"
    return event


def _no_constant(word: str) -> NoReturn:
    raise AssertionError(f"{word} is not JSON")


def _check_has(value: Any, keys: set[str], what: str) -> None:
    assert isinstance(value, dict), f"{what} is no object"
    missing = [key for key in keys if key not in value]
    assert missing == [], f"{what} lacks {missing}"


def _check_keys(event: Json) -> None:
    name = event["type"]
    assert name in EVENT_KEYS, f"unknown event {name!r}"
    _check_has(event, EVENT_KEYS[name], name)
    for key in ("output_index", "content_index"):
        assert type(event.get(key, 0)) is int, f"{key} of {name} is no integer"
    for key in ("delta", "text", "arguments", "name", "item_id"):
        assert isinstance(event.get(key, ""), str), f"{key} of {name} is no string"


# --- the response object -----------------------------------------------------------------------------


def _check_responses(events: list[Json]) -> None:
    """All embedded responses are whole, of one identity, and of the status that their event's name says."""
    told = [event for event in events if event["type"] in LIFECYCLE]
    for event in told:
        check_response_object(event["response"])
    identities = {
        (event["response"]["id"], event["response"]["created_at"], event["response"]["model"]) for event in told
    }
    assert len(identities) == 1, "the response changed its identity"
    for event in told:
        response, name = event["response"], event["type"]
        if name == "response.created":
            assert response["status"] in RUNNING, "created with the status of an end"
        else:
            assert name == f"response.{response['status']}", "the event's name contradicts the status"
        if name not in TERMINALS:
            assert response["output"] == [], "a running response in an event carries output"


def check_response_object(response: Json) -> None:
    """One response object, running or ended: as body, as stored, or inside an event."""
    _check_has(response, RESPONSE_KEYS, "the response")
    status = response["status"]
    assert status in STATUSES, "an unknown status"
    assert response["object"] == "response", "another object"
    assert isinstance(response["id"], str), "an id that is no string"
    assert response["id"], "an empty id"
    assert type(response["created_at"]) is int, "created_at is no integer"
    assert isinstance(response["model"], str), "a model that is no string"
    completed_at = response["completed_at"]
    assert (completed_at is not None) == (status == "completed"), "completed_at, but not completed, or the reverse"
    assert completed_at is None or type(completed_at) is int, "completed_at is no integer"
    assert (response["incomplete_details"] is not None) == (status == "incomplete"), (
        "incomplete_details and status disagree"
    )
    assert (response["error"] is not None) == (status == "failed"), "error and status disagree"
    if status == "incomplete":
        _check_has(response["incomplete_details"], {"reason"}, "incomplete_details")
        assert response["incomplete_details"]["reason"] in REASONS, "a home-made reason"
    if status == "failed":
        assert set(response["error"]) == {"code", "message"}, "the error of a response is code and message"
        assert response["error"]["code"] in ERROR_CODES, "a code that is not public"
        assert response["error"]["message"], "an error without a message"
    _check_usage(response["usage"], status)
    for item in response["output"]:
        _check_item(item)
        assert status != "completed" or item["status"] == "completed", "completed with an item that is not"
        assert status in RUNNING or item["status"] != "in_progress", "ended with an item in progress"
    ids = [item["id"] for item in response["output"]]
    assert len(ids) == len(set(ids)), "two items with one id"


def _check_usage(usage: Json | None, status: str) -> None:
    if usage is None:
        assert status not in ("completed", "incomplete"), "ended without usage"
        return
    assert status not in RUNNING, "a running response with usage"
    _check_has(usage, USAGE_KEYS, "the usage")
    read, made = usage["input_tokens_details"], usage["output_tokens_details"]
    _check_has(read, {"cached_tokens", "cache_write_tokens"}, "the usage")
    _check_has(made, {"reasoning_tokens"}, "the usage")
    totals = [usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]]
    counts = [*totals, read["cached_tokens"], read["cache_write_tokens"], made["reasoning_tokens"]]
    assert all(type(count) is int and count >= 0 for count in counts), "a count that is none"
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], "the usage does not add up"
    assert read["cached_tokens"] <= usage["input_tokens"], "more cached than read"
    assert made["reasoning_tokens"] <= usage["output_tokens"], "more reasoning than output"


def _check_item(item: Json) -> None:
    _check_has(item, {"type"}, "an item")
    kind = item["type"]
    assert kind in ITEM_KEYS, f"unknown item {kind!r}"
    _check_has(item, ITEM_KEYS[kind], kind)
    assert item["status"] in ("in_progress", "completed", "incomplete"), "an unknown status of an item"
    assert item["id"], "an item without an id"
    if kind == "function_call":
        assert item["call_id"], "a call without a call_id"
        assert item["name"], "a call without a name"
        assert isinstance(item["arguments"], str), "arguments that are no string"
        if item["status"] == "completed":
            _check_arguments(item["arguments"])
        return
    assert kind != "message" or item["role"] == "assistant", "a message of another role"
    parts: list[Any] = item["content"]
    assert type(parts) is list, "content that is no list"
    for part in parts:
        _check_part(part, kind)


def _check_arguments(arguments: str) -> None:
    try:
        value = json.loads(arguments, parse_constant=_no_constant)
    except ValueError:
        raise AssertionError(f"a completed call with broken arguments: {arguments!r}") from None
    assert isinstance(value, dict), f"a completed call whose arguments are no object: {arguments!r}"


def _check_part(part: Json, kind: str) -> None:
    assert kind in PART_OF, "a part of a call"
    _check_has(part, PART_KEYS[PART_OF[kind]], "a part")
    assert part["type"] == PART_OF[kind], "a part of another kind"
    assert isinstance(part["text"], str), "a text that is no string"


# --- start, errors -----------------------------------------------------------------------------------


def _check_start(events: list[Json]) -> None:
    """Created, then queued or in progress; never back into the queue."""
    assert events[0]["type"] == "response.created", "the first event is not response.created"
    names = [event["type"] for event in events]
    assert names.count("response.created") == 1, "created twice"
    status = events[0]["response"]["status"]
    assert names[1] == f"response.{status}", "created is not followed by the state"
    assert events[0]["response"]["background"] is (status == "queued"), "only a background response is queued"
    if "response.in_progress" in names:
        assert "response.queued" not in names[names.index("response.in_progress") :], "queued again"
    if names[-1] in ("response.completed", "response.incomplete"):
        assert "response.in_progress" in names, "ended without having run"


def _check_errors(events: list[Json], *, whole: bool) -> Json | None:
    """The error event stands right before `response.failed`, and nowhere else."""
    places = [index for index, event in enumerate(events) if event["type"] == "error"]
    failed = events[-1]["type"] == "response.failed"
    if not failed or (not whole and len(events) == 1):
        assert places == [], "an error event without response.failed"
        return None
    assert places == [len(events) - 2], "not one error event right before response.failed"
    event = events[-2]
    nested: Json = event["error"]
    assert set(nested) == {"type", "code", "message", "param"}, "the nested error has other members"
    assert all(event[key] == nested[key] for key in ("code", "message", "param")), "the two forms of the error disagree"
    words = [nested["type"], nested["code"], nested["message"]]
    assert all(isinstance(word, str) and word for word in words), "an error without a type, code or message"
    assert events[-1]["response"]["error"]["message"] == nested["message"], "the response says another cause"
    return nested


# --- items -------------------------------------------------------------------------------------------


@dataclass
class _Item:
    """One item on its way. `stage` is the last of its steps that was seen."""

    kind: str
    added: Json
    stage: str = "added"
    pieces: list[str] = field(default_factory=list[str])
    logprobs: list[Any] = field(default_factory=list[Any])
    done: Json | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass
class _Walk:
    """The lives of all items, step by step."""

    items: list[_Item] = field(default_factory=list[_Item])
    queued: bool = False
    cut: bool = False

    def step(self, event: Json) -> None:
        name: str = event["type"]
        if name in LIFECYCLE:
            self.queued = event["response"]["status"] == "queued"
        elif name == "response.output_item.added":
            self._added(event)
        elif name != "error":
            item = self._item(event)
            assert "content_index" not in event or event["content_index"] == 0, "an index of no part"
            if name.endswith(".delta"):
                self._delta(item, event)
            elif name == "response.output_item.done":
                self._done(item, event)
            elif name.startswith("response.content_part."):
                self._part(item, event)
            else:
                self._text_done(item, event)

    def _item(self, event: Json) -> _Item:
        index: int = event["output_index"]
        assert 0 <= index < len(self.items), "an index of no item"
        item = self.items[index]
        assert item.done is None, "more of an item that is done"
        assert event.get("item_id", item.added["id"]) == item.added["id"], "an event with another item's id"
        return item

    def _added(self, event: Json) -> None:
        item = event["item"]
        _check_item(item)
        assert not self.queued, "an item while queued"
        assert not self.cut, "a new item behind one that was cut"
        assert event["output_index"] == len(self.items), "output indexes with gaps"
        assert item["status"] == "in_progress", "an item that is not in progress when it begins"
        assert item.get("content", []) == [], "an item that begins with content"
        assert item.get("arguments", "") == "", "a call that begins with arguments"
        assert item["id"] not in [other.added["id"] for other in self.items], "two items with one id"
        self.items.append(_Item(item["type"], item))

    def _part(self, item: _Item, event: Json) -> None:
        part = event["part"]
        _check_part(part, item.kind)
        if event["type"].endswith(".added"):
            assert item.stage == "added", "a second part"
            assert part["text"] == "", "a part that begins with text"
            assert part.get("logprobs", []) == [], "a part that begins with logprobs"
            item.stage = "part"
        else:
            assert item.stage == "text done", "a part is done before its text"
            assert part["text"] == item.text, "the part is not what its deltas said"
            assert part.get("logprobs", []) == item.logprobs, "the logprobs are not those of the deltas"
            item.stage = "part done"

    def _delta(self, item: _Item, event: Json) -> None:
        assert event["type"] == f"response.{_word(item)}.delta", "a delta of another kind"
        assert item.stage == ("added" if item.kind == "function_call" else "part"), "a delta at the wrong time"
        assert not self.cut, "more text behind an item that was cut"
        assert event["delta"] or event.get("logprobs"), "an empty delta"
        item.pieces.append(event["delta"])
        item.logprobs.extend(event.get("logprobs", []))

    def _text_done(self, item: _Item, event: Json) -> None:
        call = item.kind == "function_call"
        assert event["type"] == f"response.{_word(item)}.done", "done of another kind"
        assert item.stage == ("added" if call else "part"), "done at the wrong time"
        assert event["arguments" if call else "text"] == item.text, "the done text is not what its deltas said"
        assert event.get("logprobs", []) == item.logprobs, "the logprobs are not those of the deltas"
        assert not call or event["name"] == item.added["name"], "the call has another name"
        item.stage = "part done" if call else "text done"

    def _done(self, item: _Item, event: Json) -> None:
        done = event["item"]
        _check_item(done)
        assert item.stage == "part done", "an item is done before its parts"
        assert done["status"] in ("completed", "incomplete"), "done and still in progress"
        _check_same(item, done)
        self.cut = self.cut or done["status"] == "incomplete"
        item.done = done

    def end(self, response: Json) -> None:
        """The terminal's output is what the events said, item by item."""
        output = response["output"]
        assert len(output) == len(self.items), "the terminal has other items"
        for item, last in zip(self.items, output, strict=True):
            if item.done is None:
                assert item.kind == "function_call", "an item that was never done"
                assert response["status"] in ("failed", "cancelled"), "a call that was never done"
                assert last["status"] == "incomplete", "a cut call that is not incomplete"
                _check_same(item, last)
            else:
                assert item.done == last, "the terminal's item is not the one that was done"


def _word(item: _Item) -> str:
    return {"message": "output_text", "reasoning": "reasoning_text"}.get(item.kind, "function_call_arguments")


def _check_same(item: _Item, last: Json) -> None:
    """`last` is the item that was added, with the text of its deltas."""
    assert last["type"] == item.kind, "an item of another kind"
    assert last["id"] == item.added["id"], "an item with another id"
    if item.kind == "function_call":
        assert last["call_id"] == item.added["call_id"], "the call has another call_id"
        assert last["name"] == item.added["name"], "the call has another name"
        assert last["arguments"] == item.text, "the arguments are not what their deltas said"
    else:
        assert len(last["content"]) == 1, "not one part"
        part = last["content"][0]
        assert part["text"] == item.text, "the item is not what its deltas said"
        assert part.get("logprobs", []) == item.logprobs, "the logprobs are not those of the deltas"


def _check_rest(events: list[Json], response: Json) -> None:
    """A resumed stream: what it tells of items is the end of what the terminal says."""
    output = response["output"]
    rest: dict[int, str] = {}
    for event in events:
        if "output_index" not in event:
            continue
        assert 0 <= event["output_index"] < len(output), "an index of no item"
        item = output[event["output_index"]]
        assert event.get("item_id", item["id"]) == item["id"], "an event with another item's id"
        if "delta" in event:
            rest[event["output_index"]] = rest.get(event["output_index"], "") + event["delta"]
        if event["type"] == "response.output_item.done":
            assert event["item"] == item, "the terminal's item is not the one that was done"
    for index, text in rest.items():
        assert _text_of(output[index]).endswith(text), "the deltas are not the end of the item's text"


# --- what it said ------------------------------------------------------------------------------------


def _text_of(item: Json) -> str:
    if item["type"] == "function_call":
        return item["arguments"]
    return "".join(part["text"] for part in item["content"])


def _ending(response: Json, error: Json | None, events: list[Json]) -> ResponseEnding:
    output = response["output"]
    return ResponseEnding(
        response=response,
        texts=[_text_of(item) for item in output if item["type"] == "message"],
        reasoning=[_text_of(item) for item in output if item["type"] == "reasoning"],
        calls=[item for item in output if item["type"] == "function_call"],
        status=response["status"],
        error=error,
        events=events,
    )
