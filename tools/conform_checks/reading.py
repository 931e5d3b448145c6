"""JSON bodies of the four APIs -> what they told, in the words that streams are told in. It judges nothing."""

from __future__ import annotations

from dataclasses import dataclass

from tools.probe.chat_telling import WORDS
from tools.probe.message_telling import REASONS as MESSAGE_REASONS
from tools.probe.response_telling import REASONS, STATUSES
from tools.probe.target import Api
from tools.probe.telling import Outcome
from tools.probe.values import Json, as_int, as_list, as_object, as_text, at


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call. `arguments`: its text; of Messages None, because a body has the object alone."""

    name: str
    id: str
    arguments: str | None
    input: object = None
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """None where it is not told. `prompt` counts what was cached, too."""

    prompt: int | None
    output: int | None
    total: int | None


@dataclass(frozen=True, slots=True)
class BodyAnswer:
    """`word`: how the body says that the answer ended; `outcome` is None where that is no word of the standard."""

    word: str | None
    outcome: Outcome | None
    text: str
    calls: tuple[Called, ...]
    counts: Counts


def read_body(api: Api, value: Json) -> BodyAnswer:
    if api == "responses":
        return _response(value)
    if api == "messages":
        return _message(value)
    choice = as_object(at(value, "choices", 0))
    word = as_text(choice.get("finish_reason"))
    message = as_object(choice.get("message"))
    text = as_text(choice.get("text") if api == "completions" else message.get("content")) or ""
    calls = tuple(
        Called(
            as_text(at(call, "function", "name")) or "",
            as_text(at(call, "id")) or "",
            as_text(at(call, "function", "arguments")),
        )
        for call in as_list(message.get("tool_calls"))
    )
    return BodyAnswer(word, WORDS.get(word or ""), text, calls, counts_of(api, value.get("usage")))


def counts_of(api: Api, usage: object) -> Counts:
    """Of a usage object, in a body or a stream."""
    told = as_object(usage)
    if api == "responses":
        return Counts(*(as_int(told.get(name)) for name in ("input_tokens", "output_tokens", "total_tokens")))
    if api == "messages":
        names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        parts = [as_int(told.get(name)) for name in names]
        prompt = None if parts[0] is None else sum(part or 0 for part in parts)
        return Counts(prompt, as_int(told.get("output_tokens")), None)
    return Counts(*(as_int(told.get(name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens")))


def _response(value: Json) -> BodyAnswer:
    status = as_text(value.get("status"))
    outcome = STATUSES.get(status or "")
    if status == "incomplete":
        outcome = REASONS.get(as_text(at(value, "incomplete_details", "reason")) or "")
    items = [as_object(item) for item in as_list(value.get("output"))]
    text = "".join(
        as_text(at(part, "text")) or ""
        for item in items
        if item.get("type") == "message"
        for part in as_list(item.get("content"))
    )
    calls = tuple(
        Called(
            as_text(item.get("name")) or "",
            as_text(item.get("call_id")) or "",
            as_text(item.get("arguments")),
            status=as_text(item.get("status")),
        )
        for item in items
        if item.get("type") == "function_call"
    )
    return BodyAnswer(status, outcome, text, calls, counts_of("responses", value.get("usage")))


def _message(value: Json) -> BodyAnswer:
    word = as_text(value.get("stop_reason"))
    blocks = [as_object(block) for block in as_list(value.get("content"))]
    text = "".join(as_text(block.get("text")) or "" for block in blocks if block.get("type") == "text")
    calls = tuple(
        Called(as_text(block.get("name")) or "", as_text(block.get("id")) or "", None, block.get("input"))
        for block in blocks
        if block.get("type") == "tool_use"
    )
    counts = counts_of("messages", value.get("usage"))
    return BodyAnswer(word, MESSAGE_REASONS.get(word or ""), text, calls, counts)
