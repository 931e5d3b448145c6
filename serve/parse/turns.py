"""The items of a Responses conversation as chat messages: one assistant message for each of its turns.

It takes checked items (`serve.parse.items`) and checks nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from serve.parse.fields import parsed_arguments
from serve.parse.items import IMAGE_PART, kind_of
from serve.request import Json


def chat_messages(items: Iterable[Json]) -> list[Json]:
    """The messages of a chat completions request. What follows one another of reasoning, text and calls is one
    assistant message, as chat templates need it."""
    made: list[Json] = []
    turn = _Turn()
    for item in items:
        kind = kind_of(item)
        if kind == "reasoning":
            turn.reasoning += _reasoning(item)
        elif kind == "message" and item["role"] == "assistant":
            turn.says(_text(item.get("content")))
        elif kind in CALLS:
            turn.calls.append(_call(kind, item))
        elif kind == "message" or kind in _OUTPUTS:
            turn.end(made)
            made.append(_plain(item) if kind == "message" else _result(kind, item))
    turn.end(made)
    return made


def template_message(message: Json) -> Json:
    """The same message for a chat template: content as text, arguments as objects where they are."""
    made: Json = {**message, "content": _text(message["content"])}
    if (calls := message.get("tool_calls")) is not None:
        made["tool_calls"] = [_with_object(call) for call in cast("list[Json]", calls)]
    return made


def upstream_message(message: Json) -> Json:
    """The same message for servers that speak chat: they read the arguments of each call as JSON and refuse the whole
    request where they are none (vLLM). What was cut of a call stands in an object, as chat templates get it."""
    if (calls := message.get("tool_calls")) is None:
        return message
    return {**message, "tool_calls": [_with_json(call) for call in cast("list[Json]", calls)]}


def first_image(items: Iterable[Json], where: str) -> str | None:
    """The path of the type of the first image."""
    for i, item in enumerate(items):
        for name in ("content", "output"):
            parts = item.get(name)
            if kind_of(item) not in _WITH_PARTS or not isinstance(parts, list):
                continue
            for j, part in enumerate(cast("list[Json]", parts)):
                if part["type"] == IMAGE_PART:
                    return f"{where}[{i}].{name}[{j}].type"
    return None


class _Turn:
    """The assistant message that is being put together."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.texts: list[str] | None = None
        self.calls: list[Json] = []

    def says(self, text: str) -> None:
        self.texts = [*(self.texts or []), text]

    def end(self, made: list[Json]) -> None:
        if self.texts is not None or self.reasoning or self.calls:
            text = "\n\n".join(filter(None, self.texts or []))
            message: Json = {"role": "assistant", "content": text or (None if self.calls else "")}
            if self.reasoning:
                message["reasoning_content"] = "\n\n".join(self.reasoning)
            if self.calls:
                message["tool_calls"] = self.calls
            made.append(message)
        self.__init__()


def _reasoning(item: Json) -> list[str]:
    """The reasoning itself; its summary where that is all there is."""
    for name in ("content", "summary"):
        texts = [cast("str", part.get("text") or "") for part in cast("list[Json]", item.get(name) or [])]
        if any(texts):
            return ["\n\n".join(filter(None, texts))]
    return []


def _plain(item: Json) -> Json:
    return {"role": item["role"], "content": _content(item["content"])}


def _content(content: object) -> str | list[Json]:
    """Text as one string; parts only where one is an image."""
    if not isinstance(content, list):
        return cast("str", content)
    parts = cast("list[Json]", content)
    if all(part["type"] != IMAGE_PART for part in parts):
        return _text(parts)
    return [_image(part) if part["type"] == IMAGE_PART else {"type": "text", "text": _text([part])} for part in parts]


def _image(part: Json) -> Json:
    image: Json = {"url": part["image_url"]}
    if part.get("detail") is not None:
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}


def _text(content: object) -> str:
    if not isinstance(content, list):
        return cast("str", content or "")
    return "".join(_part_text(part) for part in cast("list[Json]", content))


def _part_text(part: Json) -> str:
    text = part.get("refusal" if part["type"] == "refusal" else "text")
    return text if isinstance(text, str) else ""


# --- calls and their results -------------------------------------------------------------------------


def _call(kind: str, item: Json) -> Json:
    name, arguments = CALLS[kind](item)
    return {
        "id": item.get("call_id") or item.get("id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _name(item: Json) -> str:
    namespace = item.get("namespace")
    return f"{namespace}.{item['name']}" if namespace else cast("str", item["name"])


CALLS: Mapping[str, Callable[[Json], tuple[str, str]]] = {
    "function_call": lambda item: (_name(item), _given(cast("str", item["arguments"]))),
    "custom_tool_call": lambda item: (_name(item), _json({"input": item["input"]})),
    "local_shell_call": lambda item: ("local_shell", _json(item["action"])),
    "shell_call": lambda item: ("shell", _json(item["action"])),
    "apply_patch_call": lambda item: ("apply_patch", _json(item["operation"])),
}
"""Kind of a call → the function's name and its arguments as JSON text."""


def _result(kind: str, item: Json) -> Json:
    made: Json = {"role": "tool", "content": _OUTPUTS[kind](item)}
    call_id = item.get("call_id") or (item.get("id") if kind == "local_shell_call_output" else None)
    if call_id is not None:
        made["tool_call_id"] = call_id
    if item.get("name") is not None:
        made["name"] = item["name"]
    return made


_OUTPUTS: Mapping[str, Callable[[Json], str | list[Json]]] = {
    "function_call_output": lambda item: _content(item["output"]),
    "custom_tool_call_output": lambda item: _content(item["output"]),
    "local_shell_call_output": lambda item: cast("str", item["output"]),
    "shell_call_output": lambda item: item["output"] if isinstance(item["output"], str) else _json(item["output"]),
    "apply_patch_call_output": lambda item: cast("str", item.get("output") or item.get("status") or ""),
}
"""Kind of a result → what it says."""

_WITH_PARTS = ("message", "function_call_output", "custom_tool_call_output")


def _given(arguments: str) -> str:
    """Servers that speak chat read the text as JSON, also that of a call without arguments."""
    return arguments if arguments.strip() else "{}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _with_json(call: Json) -> Json:
    function = cast("Json", call["function"])
    if not isinstance(parsed_arguments(text := cast("str", function["arguments"])), str):
        return call
    return {**call, "function": {**function, "arguments": _json({"arguments": text})}}


def _with_object(call: Json) -> Json:
    function = cast("Json", call["function"])
    return {**call, "function": {**function, "arguments": parsed_arguments(cast("str", function["arguments"]))}}
