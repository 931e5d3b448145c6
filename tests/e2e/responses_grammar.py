"""The grammar of a Responses stream: what every stream must hold, whatever happened.

It shares no code with the server, so that it cannot share its mistakes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.e2e.client import Answer
from tests.e2e.frames import Event, check_arguments, check_has, is_count, read_frames, strict_object

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
DELTAS = {"response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta"}
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
    assert answer.status == 200, f"no stream: {answer.body[:300]!r}"
    assert answer.headers["content-type"].startswith("text/event-stream"), "not an event stream"
    assert answer.terminated, "the body was cut"
    walk = ResponseWalk(first_number)
    for event in read_frames(answer.body, beats=False):
        walk.feed(event)
    return walk.end()


class ResponseWalk:
    """One stream, event by event. One that was resumed begins with `first_number`. `theirs`: an upstream's own, passed
    on: there may be events and items that we never make, and an item may have another id at the end."""

    def __init__(self, first_number: int = 0, *, theirs: bool = False) -> None:
        self._theirs = theirs
        self._first = first_number
        self._events: list[Json] = []
        self._told: Json | None = None
        self._ran = False
        self._items = _Items()

    def feed(self, event: Event) -> None:
        """Raises: AssertionError: this event may not come here."""
        value = strict_object(event.data)
        check_has(value, {"type", "sequence_number"}, "an event")
        name, number = value["type"], value["sequence_number"]
        assert event.name == name, f"the event line says {event.name!r} of {name!r}"
        if not self._theirs or name in EVENT_KEYS:
            _check_keys(value)
        assert type(number) is int, "a sequence number that is no integer"
        expected = self._first + len(self._events)
        ahead = not self._events and name in TERMINALS and 0 < number < self._first  # who asks for more is told the end
        assert number == expected or ahead, f"sequence numbers with gaps: {number} where {expected} is due"
        assert not self.closed, f"{name} after the terminal {self._last}"
        assert self._last != "error" or name == "response.failed", f"{name} after the error"
        self._events.append(value)
        if name in LIFECYCLE:
            self._lifecycle(value)
        if self._first == 0 and not self._theirs:
            self._check_place(name)
            self._items.step(value)
        if self.closed:
            self._check_terminal(value)

    @property
    def _last(self) -> str:
        return self._events[-1]["type"] if self._events else ""

    @property
    def closed(self) -> bool:
        """Whether the terminal came."""
        return self._last in TERMINALS

    def end(self) -> ResponseEnding:
        """Raises: AssertionError: the stream may not end here."""
        assert self.closed, f"ends with {self._last!r}"
        error = self._events[-2].get("error") if len(self._events) > 1 else None
        return _ending(self._events[-1]["response"], error, self._events)

    def _lifecycle(self, event: Json) -> None:
        """All embedded responses are whole, of one identity, and of the status that their event's name says."""
        response, name = event["response"], event["type"]
        check_response_object(response, theirs=self._theirs)
        if name == "response.created":
            assert response["status"] in RUNNING, "created with the status of an end"
        else:
            assert name == f"response.{response['status']}", "the event's name contradicts the status"
        if name not in TERMINALS:
            assert response["output"] == [], "a running response in an event carries output"
        if self._told is not None:
            for key in ("id", "created_at", "model", "background"):
                assert response[key] == self._told[key], f"the response changed its {key}"
        self._told = response

    def _check_place(self, name: str) -> None:
        """Created, then queued or in progress; never back into the queue."""
        assert len(self._events) > 1 or name == "response.created", "the first event is not response.created"
        first = self._events[0]["response"]
        if len(self._events) == 1:
            assert first["background"] is (first["status"] == "queued"), "only a background response is queued"
            return
        assert name != "response.created", "created twice"
        assert len(self._events) > 2 or name == f"response.{first['status']}", "created is not followed by the state"
        assert name != "response.queued" or not self._ran, "queued again"
        assert name not in ("response.completed", "response.incomplete") or self._ran, "ended without having run"
        self._ran = self._ran or name == "response.in_progress"

    def _check_terminal(self, event: Json) -> None:
        response = event["response"]
        if event["type"] == "response.failed" and (len(self._events) > 1 or self._first == 0):
            error = self._events[-2]
            assert error["type"] == "error", "no error event right before response.failed"
            _check_error(error, response)
        if self._theirs:
            assert self._first > 0 or self._events[0]["type"] == "response.created", "not response.created first"
            _check_rest(self._events, response, theirs=True)
        elif self._first == 0:
            self._items.end(response)
        else:
            assert all(one["type"] != "response.created" for one in self._events), "a resumed stream begins anew"
            _check_rest(self._events, response)


def _check_keys(event: Json) -> None:
    name = event["type"]
    assert name in EVENT_KEYS, f"unknown event {name!r}"
    check_has(event, EVENT_KEYS[name], name)
    for key in ("output_index", "content_index"):
        assert type(event.get(key, 0)) is int, f"{key} of {name} is no integer"
    for key in ("delta", "text", "arguments", "name", "item_id"):
        assert isinstance(event.get(key, ""), str), f"{key} of {name} is no string"


def _check_error(event: Json, response: Json) -> None:
    """The error event, in its two forms, and the response's say one cause."""
    nested: Json = event["error"]
    assert set(nested) == {"type", "code", "message", "param"}, "the nested error has other members"
    assert all(event[key] == nested[key] for key in ("code", "message", "param")), "the two forms of the error disagree"
    words = [nested["type"], nested["code"], nested["message"]]
    assert all(isinstance(word, str) and word for word in words), "an error without a type, code or message"
    assert response["error"]["message"] == nested["message"], "the response says another cause"


# --- the response object -----------------------------------------------------------------------------


def check_response_object(response: Json, *, theirs: bool = False) -> None:
    """One response object, running or ended: as body, as stored, or inside an event. `theirs`: an upstream's own, which
    may have items that we never make."""
    check_has(response, RESPONSE_KEYS, "the response")
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
        check_has(response["incomplete_details"], {"reason"}, "incomplete_details")
        assert response["incomplete_details"]["reason"] in REASONS, "a home-made reason"
    if status == "failed":
        assert set(response["error"]) == {"code", "message"}, "the error of a response is code and message"
        assert response["error"]["code"] in ERROR_CODES, "a code that is not public"
        assert response["error"]["message"], "an error without a message"
    _check_usage(response["usage"], status)
    for item in response["output"]:
        if theirs and item.get("type") not in ITEM_KEYS:
            continue
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
    check_has(usage, USAGE_KEYS, "the usage")
    read, made = usage["input_tokens_details"], usage["output_tokens_details"]
    check_has(read, {"cached_tokens", "cache_write_tokens"}, "the usage")
    check_has(made, {"reasoning_tokens"}, "the usage")
    totals = [usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]]
    counts = [*totals, read["cached_tokens"], read["cache_write_tokens"], made["reasoning_tokens"]]
    assert all(is_count(count) for count in counts), "a count that is none"
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], "the usage does not add up"
    assert read["cached_tokens"] <= usage["input_tokens"], "more cached than read"
    assert made["reasoning_tokens"] <= usage["output_tokens"], "more reasoning than output"


def _check_item(item: Json) -> None:
    check_has(item, {"type"}, "an item")
    kind = item["type"]
    assert kind in ITEM_KEYS, f"unknown item {kind!r}"
    check_has(item, ITEM_KEYS[kind], kind)
    assert item["status"] in ("in_progress", "completed", "incomplete"), "an unknown status of an item"
    assert item["id"], "an item without an id"
    if kind == "function_call":
        assert item["call_id"], "a call without a call_id"
        assert item["name"], "a call without a name"
        assert isinstance(item["arguments"], str), "arguments that are no string"
        if item["status"] == "completed":
            check_arguments(item["arguments"])
        return
    assert kind != "message" or item["role"] == "assistant", "a message of another role"
    parts: list[Any] = item["content"]
    assert type(parts) is list, "content that is no list"
    for part in parts:
        _check_part(part, kind)


def _check_part(part: Json, kind: str) -> None:
    assert kind in PART_OF, "a part of a call"
    check_has(part, PART_KEYS[PART_OF[kind]], "a part")
    assert part["type"] == PART_OF[kind], "a part of another kind"
    assert isinstance(part["text"], str), "a text that is no string"


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
class _Items:
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


def _check_rest(events: list[Json], response: Json, *, theirs: bool = False) -> None:
    """A resumed stream, or one of somebody else: what it tells of items is the end of what the terminal says."""
    output = response["output"]
    rest: dict[int, str] = {}
    for event in events:
        if "output_index" not in event:
            continue
        assert 0 <= event["output_index"] < len(output), "an index of no item"
        item = output[event["output_index"]]
        if theirs:
            if event["type"] in DELTAS and item["type"] in ITEM_KEYS:
                rest[event["output_index"]] = rest.get(event["output_index"], "") + event["delta"]
            continue
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
