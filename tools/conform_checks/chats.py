"""Grammar of chat completions and completions, and what bodies of all four APIs must have."""

from __future__ import annotations

from collections.abc import Mapping

from tools.conform_checks.bench import Bench, found, over
from tools.conform_checks.check import Check
from tools.conform_checks.talk import Talk
from tools.probe.target import APIS, Api
from tools.probe.values import Json, as_int, as_list, as_object, as_text, at, shown

OBJECTS: Mapping[Api, str] = {"chat": "chat.completion.chunk", "completions": "text_completion"}
_IDENTITY = ("id", "object", "model")


def chunks(talk: Talk) -> list[Json]:
    """The chunks of a stream: what has `choices`."""
    return [each.value for each in talk.events if "choices" in each.value]


def _role(bench: Bench, api: Api) -> str | None:
    return found(bench.streams(api), "no-role")


def _one_stream(bench: Bench, api: Api) -> str | None:
    return over(bench.streams(api), lambda talk: _same(talk, api), chunks)


def _same(talk: Talk, api: Api) -> str | None:
    first: dict[str, object] = {}
    for chunk in chunks(talk):
        if as_int(chunk.get("created")) is None:  # that it may change has no effect on any client that was measured
            return f"a chunk has created {shown(chunk.get('created'))}"
        for name in _IDENTITY:
            value = chunk.get(name)
            if not as_text(value):
                return f"a chunk has {name} {shown(value)}"
            if first.setdefault(name, value) != value:
                return f"{name} is {shown(first[name])}, and later {shown(value)}"
    if first and first["object"] != OBJECTS[api]:
        return f"object is {shown(first['object'])}, not {OBJECTS[api]!r}"
    return None


def _choices(bench: Bench, api: Api) -> str | None:
    if (text := found(bench.streams(api), "empty-finish")) is not None:
        return text
    return over(bench.streams(api), lambda talk: _forms(talk, api), chunks)


def _forms(talk: Talk, api: Api) -> str | None:
    for chunk in chunks(talk):
        if not as_list(chunk["choices"]) and chunk["choices"] != []:
            return f"choices is {shown(chunk['choices'])}"
        for choice in map(as_object, as_list(chunk["choices"])):
            if as_int(choice.get("index")) is None:
                return f"a choice without an index: {shown(choice)}"
            if "finish_reason" not in choice:
                return f"a choice without finish_reason, which is null until the end: {shown(choice)}"
            if api == "chat" and not isinstance(choice.get("delta"), dict):
                return f"a choice whose delta is no object: {shown(choice)}"
            if api == "completions" and not isinstance(choice.get("text"), str):
                return f"a choice whose text is no string: {shown(choice)}"
    return None


# --- bodies -----------------------------------------------------------------------------------------

_RESPONSE_FIELDS = (
    *("id", "object", "created_at", "status", "error", "incomplete_details", "instructions", "model", "tools"),
    *("output", "parallel_tool_calls", "metadata", "tool_choice", "temperature", "top_p"),
)
_MESSAGE_FIELDS = ("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage")
_CONSTANTS: Mapping[Api, Json] = {
    "chat": {"object": "chat.completion"},
    "completions": {"object": "text_completion"},
    "responses": {"object": "response"},
    "messages": {"type": "message", "role": "assistant"},
}
_FIELDS: Mapping[Api, tuple[str, ...]] = {
    "chat": ("id", "object", "created", "model", "choices"),
    "completions": ("id", "object", "created", "model", "choices"),
    "responses": _RESPONSE_FIELDS,
    "messages": _MESSAGE_FIELDS,
}


def missing(api: Api, value: Json) -> str | None:
    """What a whole answer of this API, or the response in an event, lacks."""
    lacking = [name for name in _FIELDS[api] if name not in value]
    if lacking:
        return f"without {', '.join(lacking)}"
    for name, constant in _CONSTANTS[api].items():
        if value[name] != constant:
            return f"{name} is {shown(value[name])}, not {constant!r}"
    return None


def _bodies(bench: Bench, api: Api) -> str | None:
    for name, value in bench.bodies(api):
        if (text := missing(api, value) or _choice(api, value) or _parts(api, value)) is not None:
            return f"body of {name!r}: {text}"
    return None


def _choice(api: Api, value: Json) -> str | None:
    if api not in ("chat", "completions"):
        return None
    choice = as_object(at(value, "choices", 0))
    if as_int(choice.get("index")) != 0 or "finish_reason" not in choice:
        return f"its choice has no index or no finish_reason: {shown(choice)}"
    if api == "completions":
        return None if isinstance(choice.get("text"), str) else f"its text is {shown(choice.get('text'))}"
    message = as_object(choice.get("message"))
    if message.get("role") != "assistant" or "content" not in message:
        return f"its message has no role assistant or no content: {shown(message)}"
    return None


def _parts(api: Api, value: Json) -> str | None:
    if api == "responses":
        for item in map(as_object, as_list(value.get("output"))):
            if not as_text(item.get("type")) or not as_text(item.get("id")):
                return f"an item without type or id: {shown(item)}"
            if item.get("type") == "message" and not as_text(item.get("status")):
                return f"a message without a status: {shown(item)}"
    if api == "messages":
        for block in map(as_object, as_list(value.get("content"))):
            if not as_text(block.get("type")):
                return f"a block without a type: {shown(block)}"
    return None


CHECKS = (
    Check(
        "first-role",
        "grammar",
        "risk",
        "The first delta of a choice has the role.",
        "langwatch #6196, llama.cpp PR #13634; measured: openai-node's helper and LangChain JS break without it",
        ("chat",),
        _role,
    ),
    Check(
        "one-stream",
        "grammar",
        "risk",
        "All chunks of a stream have the same id, object and model, and a created.",
        "OpenAI API reference, the chunk object",
        ("chat", "completions"),
        _one_stream,
    ),
    Check(
        "choice-form",
        "grammar",
        "breach",
        "Each choice of a chunk has an index, a delta (completions: a text), and finish_reason, null until the end.",
        "OpenAI API reference, the chunk object; MiniMax-M2.5 #2, SGLang #18335",
        ("chat", "completions"),
        _choices,
    ),
    Check(
        "body-form",
        "grammar",
        "breach",
        "A JSON body has all fields that its API requires, nullable ones too.",
        "OpenAI and Anthropic API references, the answer objects; vLLM #45367, llama.cpp #20607",
        APIS,
        _bodies,
    ),
)
