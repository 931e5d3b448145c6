"""The honest server's words: streams and bodies of the four APIs, made from the same pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.unit.tools.conform_checks.honest_engine import Ask, End, Event, Json, Piece, prompt_tokens
from tools.probe.target import Api

CREATED = 1_796_000_000
MODEL = "m"


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream. `value` None: the comment `: keep-alive`."""

    name: str | None
    value: Json | str | None

    def raw(self) -> bytes:
        if self.value is None:
            return b": keep-alive\n"
        data = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return (f"event: {self.name}\n" if self.name else "").encode() + f"data: {data}\n\n".encode()

    @property
    def kind(self) -> str:
        """The type of its value."""
        return str(self.value.get("type", "")) if isinstance(self.value, dict) else ""


DONE = Frame(None, "[DONE]")
BEAT = Frame(None, None)


@dataclass(slots=True)
class Whole:
    """What an answer came to."""

    end: End = field(default_factory=lambda: End("finished", 0))
    text: str = ""
    called: str | None = None
    arguments: str = ""

    def take(self, piece: Piece) -> None:
        if piece.kind == "text":
            self.text += piece.text
        elif piece.kind == "call":
            self.called = piece.text
        elif piece.kind == "arguments":
            self.arguments += piece.text


def gathered(events: Iterator[Event]) -> Whole:
    whole = Whole()
    for event in events:
        if isinstance(event, End):
            whole.end = event
        else:
            whole.take(event)
    return whole


def error_of(api: Api, message: str, code: str = "server_error") -> Json:
    """The body of an error."""
    if api == "messages":
        kind = "api_error" if code == "server_error" else "invalid_request_error"
        return {"type": "error", "error": {"type": kind, "message": message}}
    kind = "server_error" if code == "server_error" else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


# --- chat and completions ---------------------------------------------------------------------------


def _word(end: End, whole: Whole) -> str:
    if end.outcome == "limit":
        return "length"
    return "tool_calls" if whole.called else "stop"


def _usage(ask: Ask, end: End) -> Json:
    prompt = prompt_tokens(ask)
    return {"prompt_tokens": prompt, "completion_tokens": end.made, "total_tokens": prompt + end.made}


def _chunk(ask: Ask, id_: str, choices: list[Json]) -> Json:
    kind = "text_completion" if ask.api == "completions" else "chat.completion.chunk"
    return {"id": id_, "object": kind, "created": CREATED, "model": MODEL, "choices": choices}


def _choice(ask: Ask, id_: str, delta: Json, word: str | None = None) -> Json:
    if ask.api == "completions":
        text = delta.get("content", "")
        return _chunk(ask, id_, [{"index": 0, "text": text, "logprobs": None, "finish_reason": word}])
    return _chunk(ask, id_, [{"index": 0, "delta": delta, "finish_reason": word}])


def chat_stream(ask: Ask, events: Iterator[Event], id_: str) -> Iterator[Frame]:
    whole = Whole()
    if ask.api == "chat":
        yield Frame(None, _choice(ask, id_, {"role": "assistant", "content": ""}))
    for event in events:
        if isinstance(event, End):
            yield from _chat_end(ask, id_, event, whole)
            return
        whole.take(event)
        if event.kind == "beat":
            yield BEAT
        elif event.kind == "text":
            yield Frame(None, _choice(ask, id_, {"content": event.text}))
        else:
            call: Json = {"index": 0, "function": {"arguments": event.text}}
            if event.kind == "call":
                function: Json = {"name": event.text, "arguments": ""}
                call = {"index": 0, "id": "call_1", "type": "function", "function": function}
            yield Frame(None, _choice(ask, id_, {"tool_calls": [call]}))


def _chat_end(ask: Ask, id_: str, end: End, whole: Whole) -> Iterator[Frame]:
    if end.outcome == "failed":
        yield Frame(None, error_of("chat", end.error))
        yield Frame(None, _choice(ask, id_, {}, "error"))
    elif end.outcome != "cancelled":
        yield Frame(None, _choice(ask, id_, {}, _word(end, whole)))
        if ask.value.get("stream_options"):
            yield Frame(None, _chunk(ask, id_, []) | {"usage": _usage(ask, end)})
    yield DONE


def chat_body(ask: Ask, whole: Whole, id_: str) -> Json:
    choice: Json = {"index": 0, "finish_reason": _word(whole.end, whole)}
    if ask.api == "completions":
        choice |= {"text": whole.text, "logprobs": None}
    else:
        message: Json = {"role": "assistant", "content": whole.text or None}
        if whole.called:
            function: Json = {"name": whole.called, "arguments": whole.arguments}
            message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        choice["message"] = message
    kind = "text_completion" if ask.api == "completions" else "chat.completion"
    return _chunk(ask, id_, [choice]) | {"object": kind, "usage": _usage(ask, whole.end)}


# --- Responses --------------------------------------------------------------------------------------

_STATUS = {"finished": "completed", "limit": "incomplete", "failed": "failed", "cancelled": "cancelled"}


def _response(ask: Ask, id_: str, whole: Whole | None) -> Json:
    status = "in_progress" if whole is None else _STATUS[whole.end.outcome]
    made: Json = {"id": id_, "object": "response", "created_at": CREATED, "status": status, "error": None}
    made |= {"incomplete_details": None, "instructions": None, "model": MODEL, "tools": [], "output": []}
    made |= {"parallel_tool_calls": True, "metadata": {}, "tool_choice": "auto", "temperature": 0, "top_p": 1}
    made |= {"usage": None, "completed_at": None}
    if whole is None:
        return made
    if status == "completed":
        made["completed_at"] = CREATED
    if status == "incomplete":
        made["incomplete_details"] = {"reason": "max_output_tokens"}
    if status == "failed":
        made["error"] = {"code": "server_error", "message": whole.end.error}
    prompt = prompt_tokens(ask)
    made["usage"] = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": whole.end.made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + whole.end.made,
    }
    made["output"] = [_item(id_, whole, "completed" if status == "completed" else "incomplete")]
    return made


def _item(id_: str, whole: Whole, status: str) -> Json:
    if whole.called:
        call: Json = {"type": "function_call", "id": f"fc_{id_}", "call_id": "call_1", "name": whole.called}
        return call | {"arguments": whole.arguments, "status": status}
    part: Json = {"type": "output_text", "text": whole.text, "annotations": [], "logprobs": []}
    content = [] if status == "in_progress" else [part]
    return {"type": "message", "id": f"msg_{id_}", "role": "assistant", "status": status, "content": content}


def response_body(ask: Ask, whole: Whole, id_: str) -> Json:
    return _response(ask, id_, whole)


@dataclass(slots=True)
class _Numbers:
    next: int = 0

    def frame(self, kind: str, **fields: object) -> Frame:
        value: Json = {"type": kind, "sequence_number": self.next, **fields}
        self.next += 1
        return Frame(kind, value)


def response_stream(ask: Ask, events: Iterator[Event], id_: str) -> Iterator[Frame]:
    numbers, whole, begun = _Numbers(), Whole(), False
    opening = _response(ask, id_, None)
    yield numbers.frame("response.created", response=opening)
    yield numbers.frame("response.in_progress", response=opening)
    for event in events:
        if isinstance(event, End):
            whole.end = event
            break
        if event.kind == "beat":
            yield numbers.frame("response.in_progress", response=opening)
            continue
        whole.take(event)
        if not begun:
            begun = True
            yield from _open_item(numbers, id_, whole)
        if event.kind == "text":
            place = {"item_id": f"msg_{id_}", "output_index": 0, "content_index": 0}
            yield numbers.frame("response.output_text.delta", **place, delta=event.text, logprobs=[])
        elif event.kind == "arguments":
            name = "response.function_call_arguments.delta"
            yield numbers.frame(name, item_id=f"fc_{id_}", output_index=0, delta=event.text)
    response = _response(ask, id_, whole)
    if whole.end.outcome == "failed":
        error: Json = {"code": "server_error", "message": whole.end.error, "param": None}
        yield numbers.frame("error", **error, error=error | {"type": "server_error"})
    elif begun:
        yield from _close_item(numbers, id_, whole, response)
    yield numbers.frame(f"response.{response['status']}", response=response)


def _open_item(numbers: _Numbers, id_: str, whole: Whole) -> Iterator[Frame]:
    empty = Whole(called=whole.called)
    yield numbers.frame("response.output_item.added", output_index=0, item=_item(id_, empty, "in_progress"))
    if not whole.called:
        part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        place = {"item_id": f"msg_{id_}", "output_index": 0, "content_index": 0}
        yield numbers.frame("response.content_part.added", **place, part=part)


def _close_item(numbers: _Numbers, id_: str, whole: Whole, response: Json) -> Iterator[Frame]:
    item = response["output"][0]
    if whole.called:
        done: Json = {"item_id": f"fc_{id_}", "output_index": 0, "name": whole.called, "arguments": whole.arguments}
        yield numbers.frame("response.function_call_arguments.done", **done)
    else:
        place: Json = {"item_id": f"msg_{id_}", "output_index": 0, "content_index": 0}
        yield numbers.frame("response.output_text.done", **place, text=whole.text, logprobs=[])
        yield numbers.frame("response.content_part.done", **place, part=item["content"][0])
    yield numbers.frame("response.output_item.done", output_index=0, item=item)


# --- Messages ---------------------------------------------------------------------------------------


def _reason(whole: Whole) -> str:
    if whole.end.outcome == "limit":
        return "max_tokens"
    if whole.end.stop is not None:
        return "stop_sequence"
    return "tool_use" if whole.called else "end_turn"


def _named(kind: str, **fields: object) -> Frame:
    return Frame(kind, {"type": kind, **fields})


def message_stream(ask: Ask, events: Iterator[Event], id_: str) -> Iterator[Frame]:
    whole, begun = Whole(), False
    start: Json = {"id": id_, "type": "message", "role": "assistant", "model": MODEL, "content": []}
    usage: Json = {"input_tokens": prompt_tokens(ask), "output_tokens": 0}
    yield _named("message_start", message=start | {"stop_reason": None, "stop_sequence": None, "usage": usage})
    for event in events:
        if isinstance(event, End):
            whole.end = event
            break
        if event.kind == "beat":
            yield _named("ping")
            continue
        whole.take(event)
        if not begun:
            begun = True
            text: Json = {"type": "text", "text": ""}
            call: Json = {"type": "tool_use", "id": "toolu_1", "name": whole.called, "input": {}}
            yield _named("content_block_start", index=0, content_block=call if whole.called else text)
        if event.kind == "text":
            yield _named("content_block_delta", index=0, delta={"type": "text_delta", "text": event.text})
        elif event.kind == "arguments":
            delta: Json = {"type": "input_json_delta", "partial_json": event.text}
            yield _named("content_block_delta", index=0, delta=delta)
    if whole.end.outcome in ("failed", "cancelled"):
        yield _named("error", error={"type": "api_error", "message": whole.end.error})
        return
    if begun:
        yield _named("content_block_stop", index=0)
    final: Json = {"stop_reason": _reason(whole), "stop_sequence": whole.end.stop}
    yield _named("message_delta", delta=final, usage={"output_tokens": whole.end.made})
    yield _named("message_stop")


def message_body(ask: Ask, whole: Whole, id_: str) -> Json:
    content: list[Json] = []
    if whole.text:
        content.append({"type": "text", "text": whole.text})
    if whole.called:
        given: object = {}
        if whole.end.outcome == "finished":
            given = json.loads(whole.arguments)
        content.append({"type": "tool_use", "id": "toolu_1", "name": whole.called, "input": given})
    made: Json = {"id": id_, "type": "message", "role": "assistant", "model": MODEL, "content": content}
    usage: Json = {"input_tokens": prompt_tokens(ask), "output_tokens": whole.end.made}
    return made | {"stop_reason": _reason(whole), "stop_sequence": whole.end.stop, "usage": usage}


Streamer = Callable[[Ask, Iterator[Event], str], Iterator[Frame]]
Maker = Callable[[Ask, Whole, str], Json]
STREAMS: dict[Api, Streamer] = {
    "chat": chat_stream,
    "completions": chat_stream,
    "responses": response_stream,
    "messages": message_stream,
}
BODIES: dict[Api, Maker] = {
    "chat": chat_body,
    "completions": chat_body,
    "responses": response_body,
    "messages": message_body,
}
