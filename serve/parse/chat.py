"""`POST /v1/chat/completions`: the body → `GenerateRequest`. Knows no engine: what an engine cannot do is refused
by the service, which knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

from msgspec import Meta, Struct

from serve.parse.body import convert
from serve.parse.fields import (
    ThinkingFields,
    check_count,
    check_function,
    check_metadata,
    parsed_arguments,
    sampling_values,
    stop_strings,
    thinking_of,
    tool_name,
)
from serve.request import BadRequest, GenerateRequest, Json

KEEPING = frozenset({"store", "metadata"})
"""Fields that say what is kept of an answer."""


MAX_CHOICES = 128


class StreamOptions(Struct):
    include_usage: bool | None = None


class ChatBody(ThinkingFields, kw_only=True):
    """The fields that mean something to every engine; all others are passed on to engines that speak chat."""

    messages: list[Json]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    n: int | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    response_format: Json | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    store: bool | None = None
    metadata: object = None


def parse_chat(body: Json) -> GenerateRequest:
    """Check a chat request.

    Raises: BadRequest: with the path of the field and its limit.
    """
    if "messages" not in body:
        raise BadRequest("messages: required", "messages")
    fields = convert(body, ChatBody)
    if not fields.messages:
        raise BadRequest("messages: empty; send at least one message", "messages")
    choices = 1 if fields.n is None else fields.n
    if not 1 <= choices <= MAX_CHOICES:
        raise BadRequest(f"n: {choices} is not from 1 to {MAX_CHOICES}", "n")
    if choices > 1 and (fields.store or (fields.response_format or {}).get("type", "text") != "text"):
        other = "store" if fields.store else "response_format"
        raise BadRequest(f"n: {choices} is not supported together with {other}; send 1", "n")
    if fields.top_logprobs is not None and not fields.logprobs:
        raise BadRequest("top_logprobs: needs logprobs: true", "top_logprobs")
    messages = tuple(_message(value, f"messages[{i}]") for i, value in enumerate(fields.messages))
    tools = _tools(fields.tools or [])
    metadata = _metadata(fields)
    thinking = thinking_of(fields, fields.reasoning_effort)
    return GenerateRequest(
        # what is kept is kept here, not by an upstream as well
        body={name: value for name, value in body.items() if name not in KEEPING} if fields.store else body,
        messages=messages,
        model=fields.model,
        tools=tools,
        tool_choice=_tool_choice(fields.tool_choice, tools),
        max_tokens=_max_tokens(fields),
        stop=stop_strings(fields.stop),
        sampling=sampling_values(fields),
        thinking=thinking.on,
        template_kwargs=fields.chat_template_kwargs or {},
        response_format=fields.response_format,
        logprobs=bool(fields.logprobs),
        stream=bool(fields.stream),
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        unsupported=unsupported_part(body),
        choices=choices,
        form="stream" if fields.stream else "whole",
        store=bool(fields.store),
        metadata=metadata,
        effort=thinking.effort,
        thinking_budget=thinking.budget,
    )


def _metadata(fields: ChatBody) -> dict[str, str]:
    """What is kept with the answer. Where nothing is kept it is not ours, and not checked."""
    if not fields.store or fields.metadata is None:
        return {}
    metadata = convert(fields.metadata, dict[str, object], "metadata")
    check_metadata(metadata)
    return cast("dict[str, str]", metadata)


def _max_tokens(fields: ChatBody) -> int | None:
    name = "max_completion_tokens" if fields.max_completion_tokens is not None else "max_tokens"
    value = cast("int | None", getattr(fields, name))
    if value == 0:
        raise BadRequest(f"{name}: 0 leaves no room for an answer; send at least 1 (or -1 for no limit)", name)
    return None if value == -1 else value


# --- tools -------------------------------------------------------------------------------------------


def _tools(tools: list[Json]) -> tuple[Json, ...]:
    """Function tools, checked; each stays the JSON that came (templates print it)."""
    check_count(tools, "tools")
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if tool.get("type") != "function":
            raise BadRequest(f"{where}.type: {str(tool.get('type'))[:80]!r} is not supported; send 'function'", where)
        function = tool.get("function")
        if not isinstance(function, dict):
            raise BadRequest(f"{where}.function: expected object", f"{where}.function")
        check_function(cast("Json", function), f"{where}.function", seen)
    return tuple(tools)


def _tool_choice(choice: str | Json | None, tools: tuple[Json, ...]) -> str:
    """ "auto", "none", "required", or the name of a declared tool behind "function:"."""
    if choice is None:
        return "auto" if tools else "none"
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise BadRequest(
                f"tool_choice: {choice[:80]!r} is not one of 'auto', 'none', 'required' or a function", "tool_choice"
            )
        if choice == "required" and not tools:
            raise BadRequest("tool_choice: 'required' needs tools", "tool_choice")
        return choice
    function = choice.get("function")
    name = cast("Json", function).get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise BadRequest("tool_choice.function.name: required", "tool_choice.function.name")
    if name not in {tool_name(tool) for tool in tools}:
        raise BadRequest(f"tool_choice.function.name: {name[:80]!r} is not in tools", "tool_choice.function.name")
    return f"function:{name}"


# --- messages ----------------------------------------------------------------------------------------


def _message(value: Json, where: str) -> Json:
    """One message for the chat template: text content, reasoning, calls with parsed arguments."""
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        shown = repr(role)[:80]
        raise BadRequest(f"{where}.role: {shown} is not one of {', '.join(_ROLES)}", f"{where}.role")
    return _ROLES[role](value, role, where)


def _plain(value: Json, role: str, where: str) -> Json:
    content = value.get("content")
    if content is None:
        raise BadRequest(f"{where}.content: required for role {role!r}", f"{where}.content")
    return {"role": role, "content": _content(content, f"{where}.content")}


def _assistant(value: Json, role: str, where: str) -> Json:
    made: Json = {"role": role, "content": _content(value.get("content"), f"{where}.content")}
    for name in ("reasoning_content", "reasoning"):  # both names are in use; ours goes out as reasoning_content
        reasoning = value.get(name)
        if isinstance(reasoning, str) and reasoning:
            made["reasoning_content"] = reasoning
            break
    calls = value.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise BadRequest(f"{where}.tool_calls: expected array", f"{where}.tool_calls")
        made["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(cast("list[object]", calls))
        ]
    return made


def _tool_result(value: Json, role: str, where: str) -> Json:
    made: Json = {"role": "tool", "content": _content(value.get("content"), f"{where}.content")}
    for name in ("tool_call_id", "name"):
        item = value.get(name)
        if item is not None and not isinstance(item, str):
            raise BadRequest(f"{where}.{name}: expected str", f"{where}.{name}")
        if item is not None:
            made[name] = item
    return made


_ROLES: Mapping[str, Callable[[Json, str, str], Json]] = {
    "system": _plain,
    "developer": _plain,
    "user": _plain,
    "assistant": _assistant,
    "tool": _tool_result,
    "function": _tool_result,
}


def _content(content: object, where: str) -> str:
    """The text of a content: a string, null, or parts. Parts that are not text are left to engines that take them:
    the service refuses them for the others (`unsupported_parts`)."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"{where}: expected a string or an array of parts", where)
    texts: list[str] = []
    for i, part in enumerate(cast("list[Any]", content)):
        if not isinstance(part, dict) or not isinstance(cast("Json", part).get("type"), str):
            raise BadRequest(f"{where}[{i}].type: required", f"{where}[{i}].type")
        part_text = cast("Json", part).get("text", cast("Json", part).get("refusal"))
        if cast("Json", part)["type"] in _TEXT_PARTS:
            if not isinstance(part_text, str):
                raise BadRequest(f"{where}[{i}].text: expected str", f"{where}[{i}].text")
            texts.append(part_text)
    return "".join(texts)


_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def unsupported_part(body: Mapping[str, object]) -> tuple[str, str] | None:
    """(path, type) of the first part that is not text."""
    for i, message in enumerate(cast("list[Json]", body["messages"])):
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for j, part in enumerate(cast("list[Json]", content)):
            if part["type"] not in _TEXT_PARTS:
                return f"messages[{i}].content[{j}].type", str(part["type"])[:80]
    return None


def _call(value: object, where: str) -> Json:
    function = cast("Json", value).get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(cast("Json", function).get("name"), str):
        raise BadRequest(f"{where}.function.name: required", f"{where}.function.name")
    arguments = cast("Json", function).get("arguments", "")
    if not isinstance(arguments, str | dict):
        raise BadRequest(f"{where}.function.arguments: expected str", f"{where}.function.arguments")
    if isinstance(arguments, str):
        arguments = parsed_arguments(arguments)
    call_id = cast("Json", value).get("id")
    made: Json = {
        "type": "function",
        "function": {"name": cast("Json", function)["name"], "arguments": arguments},
    }
    if isinstance(call_id, str):
        made["id"] = call_id
    return made
