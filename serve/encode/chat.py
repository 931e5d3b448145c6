"""Chat completions: events → stream bytes, or one JSON body from the same events.

Pure: id, clock and model are in the `Head`. It does not decide how anything ended (`serve.outcomes` does) and writes
to no socket.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

from engine.events import (
    Accepted,
    Cancelled,
    Event,
    Failed,
    Finished,
    Passed,
    Reasoning,
    Terminal,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from serve import outcomes, sse
from serve.wire import (
    AssistantMessage,
    ChatChunk,
    ChatCompletion,
    Delta,
    ErrorObject,
    ToolCall,
    UsageObject,
)


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of one stream share. `created` is in Unix seconds; `choices` is how many answers there are;
    `passes`: the chunks are an upstream's own, its first one included."""

    id: str
    created: int
    model: str
    include_usage: bool = False
    choices: int = 1
    passes: bool = False


def chunk(head: Head, delta: Delta, finish_reason: str | None = None, logprobs: object = None) -> ChatChunk:
    made: ChatChunk = {
        "id": head.id,
        "object": "chat.completion.chunk",
        "created": head.created,
        "model": head.model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }
    if logprobs is not None:
        made["choices"][0]["logprobs"] = logprobs
    if head.include_usage:
        made["usage"] = None
    return made


def usage_chunk(head: Head, usage: UsageObject) -> ChatChunk:
    """Source: OpenAI API reference, `stream_options.include_usage`: an extra chunk with empty `choices`."""
    return {
        "id": head.id,
        "object": "chat.completion.chunk",
        "created": head.created,
        "model": head.model,
        "choices": [],
        "usage": usage,
    }


def error_chunk(head: Head, error: ErrorObject | None, usage: UsageObject | None) -> ChatChunk:
    """The closing chunk of a failure, with the same `error` as the error object before it."""
    made = chunk(head, {}, outcomes.FAILED_FINISH_REASON)
    if error is not None:
        made["error"] = error
    if usage is not None and not head.include_usage:
        made["usage"] = usage
    return made


def failure_ending(head: Head, error: ErrorObject, usage: Usage | None, closed: Collection[int] = ()) -> bytes:
    """Error object, a closing chunk for each choice that is not `closed`, usage chunk if asked for, `[DONE]`: to be
    sent in one write."""
    wire_usage = None if usage is None else outcomes.usage_object(usage)
    parts = [sse.data({"error": error})]
    still_open = [index for index in range(head.choices) if index not in closed]
    for index in still_open:
        closing = error_chunk(head, error, wire_usage if index == still_open[-1] else None)
        closing["choices"][0]["index"] = index
        parts.append(sse.data(closing))
    if head.include_usage and wire_usage is not None:
        parts.append(sse.data(usage_chunk(head, wire_usage)))
    return b"".join((*parts, sse.DONE))


def first_chunk(head: Head) -> ChatChunk:
    """Every stream's first delta says the role: clients key on it (openai-node's helper fails without)."""
    return chunk(head, {"role": "assistant", "content": ""})


def piece_chunk(head: Head, event: Event) -> ChatChunk | None:
    """The chunk of one piece; None for what has none in this API."""
    match event:
        case Text(text=text, logprobs=logprobs):
            return chunk(head, {"content": text}, None, logprobs)
        case Reasoning(text=text):
            return chunk(head, {"reasoning_content": text})
        case ToolCallStart(index=index, id=id_, name=name):
            call: Delta = {
                "tool_calls": [
                    {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": ""}}
                ]
            }
            return chunk(head, call)
        case ToolCallArgs(index=index, text=text):
            return chunk(head, {"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        case _:
            return None


def stream(events: Iterable[Event], head: Head) -> Iterator[sse.Frame]:
    """One frame per event; the last one holds the whole ending."""
    return ChatStream(head).frames(events)


class ChatStream:
    """One stream. What an upstream said in this API passes as it came (its line ends escaped), and what has to be added
    takes the id, time and model of the last that passed. Not thread-safe."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._begun = False
        self._passed = b""
        self._held = b""
        self._closed: set[int] = set()

    def frames(self, events: Iterable[Event]) -> Iterator[sse.Frame]:
        """One frame per event; the last one holds the whole ending."""
        for event in events:
            if isinstance(event, Passed):
                self._passed = event.raw or self._passed
                self._held += sse.without_line_ends(event.held)
                self._begun = self._begun or bool(event.raw)
                self._closed.update(event.finished)
                yield sse.Frame(sse.without_line_ends(event.raw))
            elif isinstance(event, Finished | Failed | Cancelled):
                yield sse.Frame(self._ending(event), last=True)
                return
            else:
                yield sse.Frame(self._anew(event))

    def fault_ending(self, error: ErrorObject) -> bytes:
        """The ending of a stream that a fault of ours broke off."""
        return self._failure(error, None)

    def _anew(self, event: Event) -> bytes:
        head = self._head
        if self._passed and isinstance(event, Text | Reasoning | ToolCallStart | ToolCallArgs):
            head = _head_of(self._passed, head)
        made = piece_chunk(head, event)
        data = b"" if made is None else sse.data(made)
        if not self._begun and (data or (isinstance(event, Accepted) and not head.passes)):
            self._begun = True
            data = sse.data(first_chunk(head)) + data
        return data

    def _ending(self, terminal: Terminal) -> bytes:
        if isinstance(terminal, Failed | Cancelled):
            return self._failure(outcomes.stream_error(terminal), terminal.usage)
        if terminal.raw:
            return sse.without_line_ends(terminal.raw)
        head = _head_of(self._held or self._passed, self._head)
        parts = [self._held] if self._begun or self._held else [sse.data(first_chunk(head))]
        told = [chunk(head, {}, outcomes.chat_finish_reason(terminal))]
        if head.include_usage:
            told.append(usage_chunk(head, outcomes.usage_object(terminal.usage or Usage())))
        if (timings := outcomes.timings_object(terminal.usage)) is not None:
            told[-1]["timings"] = timings
        return b"".join((*parts, *map(sse.data, told), sse.DONE))

    def _failure(self, error: ErrorObject, usage: Usage | None) -> bytes:
        """What the upstream's own ending said besides is not lost."""
        head = _head_of(self._held or self._passed, self._head)
        return self._held + failure_ending(head, error, usage, self._closed)


def _head_of(passed: bytes, head: Head) -> Head:
    """The head of what is added after these events of an upstream, whose last one is a chunk (b"": none passed)."""
    if not passed:
        return head
    last = passed[:-2].rpartition(b"\n\n")[2]
    chunk = cast("dict[str, object]", json.loads(last.removeprefix(b"data: ")))
    id_, created, model = chunk["id"], chunk["created"], chunk["model"]
    return replace(head, id=cast("str", id_), created=cast("int", created), model=cast("str", model))


@dataclass(slots=True)
class Collected:
    """The answer so far, for the body that is not streamed."""

    text: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: dict[int, tuple[ToolCallStart, list[str]]] = field(
        default_factory=dict[int, tuple[ToolCallStart, list[str]]]
    )
    logprobs: list[object] = field(default_factory=list[object])

    def add(self, event: Event) -> None:
        match event:
            case Text(text=text, logprobs=logprobs):
                self.text.append(text)
                if logprobs is not None:
                    self.logprobs.append(logprobs)
            case Reasoning(text=text):
                self.reasoning.append(text)
            case ToolCallStart(index=index):
                self.calls[index] = (event, [])
            case ToolCallArgs(index=index, text=text):
                self.calls[index][1].append(text)
            case ToolCallEnd() | _:
                pass


def completion(head: Head, made: Collected, terminal: Terminal | None) -> ChatCompletion:
    """The body of an answer: what was made and how it ended, `finish_reason` null while it has not. One that failed
    has the same `error` member as its stream's closing chunk."""
    text = "".join(made.text)
    message: AssistantMessage = {"role": "assistant", "content": text, "refusal": None}
    if made.reasoning:
        message["reasoning_content"] = "".join(made.reasoning)
    if made.calls:
        message["content"] = text or None
        message["tool_calls"] = [_call(start, args) for start, args in made.calls.values()]
    finish_reason = None if terminal is None else outcomes.chat_finish_reason(terminal)
    usage = Usage() if isinstance(terminal, Finished) else None
    if terminal is not None and terminal.usage is not None:
        usage = terminal.usage
    body: ChatCompletion = {
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": _joined_logprobs(made.logprobs),
                "finish_reason": finish_reason,
            }
        ],
        "usage": None if usage is None else outcomes.usage_object(usage),
    }
    if isinstance(terminal, Failed | Cancelled):
        body["error"] = outcomes.stream_error(terminal)
    elif (timings := outcomes.timings_object(usage)) is not None:
        body["timings"] = timings
    return body


def _call(start: ToolCallStart, args: list[str]) -> ToolCall:
    return {"id": start.id, "type": "function", "function": {"name": start.name, "arguments": "".join(args)}}


def _joined_logprobs(pieces: list[object]) -> object:
    """The `content` and `refusal` lists of all pieces, joined. Source: OpenAI API reference, choice.logprobs."""
    if not pieces:
        return None
    joined: dict[str, list[object]] = {}
    for piece in pieces:
        if isinstance(piece, dict):
            for key, value in cast("dict[str, object]", piece).items():
                if isinstance(value, list):
                    joined.setdefault(key, []).extend(cast("list[object]", value))
    return {"content": None, "refusal": None, **joined}


def failure_error(made: Collected, failure: outcomes.HttpFailure, terminal: Failed | Cancelled) -> ErrorObject:
    """The error of a body that failed after text was made: nothing received is lost."""
    error = failure.error
    if made.text:
        error["partial_output"] = "".join(made.text)
    if terminal.usage is not None:
        error["usage"] = outcomes.usage_object(terminal.usage)
    return error
