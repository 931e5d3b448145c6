"""The messages of a Messages request and their content blocks: which kinds there are, and their checks.

What a block says to the model is `serve.parse.message_turns`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from serve.request import BadRequest, Json

IMAGE = "image"
ROLES = ("user", "assistant", "system")
MEDIA_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")

SILENT = frozenset(
    {
        "advisor_tool_result",
        "bash_code_execution_tool_result",
        "code_execution_tool_result",
        "container_upload",
        "fallback",
        "mcp_tool_listing",
        "mcp_tool_result",
        "mcp_tool_use",
        "redacted_thinking",
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    }
)
"""Blocks of an answer that another server made, sent back: they are taken and say nothing to the model. Source:
`ContentBlockParam` and its beta form in the anthropic package 2.14."""

Check = Callable[[Json, str], None]


def check_messages(messages: list[Json]) -> None:
    """Raises: BadRequest: the first fault, with its path."""
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            what = "required" if role is None else f"{repr(role)[:80]} is not one of {', '.join(ROLES)}"
            raise BadRequest(f"{where}.role: {what}", f"{where}.role")
        content = message.get("content")
        if content is None and role == "user":
            raise BadRequest(f"{where}.content: required", f"{where}.content")
        if content is not None:
            _check_content(content, f"{where}.content", _BLOCKS[role])


def check_system(system: str | list[Json] | None) -> None:
    """Raises: BadRequest: a block that is no text."""
    if system is not None:
        _check_content(system, "system", _BLOCKS["system"])


def blocks_of(content: object) -> list[Json]:
    """A checked content as blocks; a string is one text block."""
    if content is None:
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else cast("list[Json]", content)


def first_image(messages: list[Json]) -> str | None:
    """The path of the type of the first image in checked messages."""
    for i, message in enumerate(messages):
        for j, block in enumerate(blocks_of(message.get("content"))):
            where = f"messages[{i}].content[{j}]"
            if block["type"] == IMAGE:
                return f"{where}.type"
            if block["type"] == "tool_result":
                for k, part in enumerate(blocks_of(block.get("content"))):
                    if part["type"] == IMAGE:
                        return f"{where}.content[{k}].type"
    return None


def _check_content(content: object, where: str, kinds: Mapping[str, Check | None]) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise BadRequest(f"{where}: expected a string or an array of blocks", where)
    for i, block in enumerate(cast("list[object]", content)):
        here = f"{where}[{i}]"
        if not isinstance(block, dict):
            raise BadRequest(f"{here}: expected object", here)
        fields = cast("Json", block)
        kind = fields.get("type")
        if not isinstance(kind, str) or kind not in kinds:
            what = "required" if kind is None else f"{repr(kind)[:80]} is not supported here; send text"
            raise BadRequest(f"{here}.type: {what}", f"{here}.type")
        if (check := kinds[kind]) is not None:
            check(fields, here)


def _need(block: Json, name: str, type_: type, where: str) -> None:
    words: Mapping[type, str] = {str: "str", list: "array", dict: "object", bool: "bool"}
    if not isinstance(block.get(name), type_):
        what = "required" if block.get(name) is None else f"expected {words[type_]}"
        raise BadRequest(f"{where}.{name}: {what}", f"{where}.{name}")


def _text(block: Json, where: str) -> None:
    _need(block, "text", str, where)


def _image(block: Json, where: str) -> None:
    _need(block, "source", dict, where)
    source, where = cast("Json", block["source"]), f"{where}.source"
    kind = source.get("type")
    if kind == "url":
        _need(source, "url", str, where)
    elif kind == "base64":
        _need(source, "data", str, where)
        media = source.get("media_type")
        if media not in MEDIA_TYPES:
            what = "required" if media is None else f"{repr(media)[:80]} is not one of {', '.join(MEDIA_TYPES)}"
            raise BadRequest(f"{where}.media_type: {what}", f"{where}.media_type")
    elif kind == "file":
        raise BadRequest(f"{where}.type: files are not kept here; send 'base64' or 'url'", f"{where}.type")
    else:
        raise BadRequest(f"{where}.type: {repr(kind)[:80]} is not one of base64, url", f"{where}.type")


def _thinking(block: Json, where: str) -> None:
    _need(block, "thinking", str, where)


def _tool_use(block: Json, where: str) -> None:
    for name, type_ in (("id", str), ("name", str), ("input", dict)):
        _need(block, name, type_, where)
    if not block["name"]:
        raise BadRequest(f"{where}.name: empty", f"{where}.name")


def _tool_result(block: Json, where: str) -> None:
    _need(block, "tool_use_id", str, where)
    if block.get("is_error") is not None:
        _need(block, "is_error", bool, where)
    if block.get("content") is not None:
        _check_content(block["content"], f"{where}.content", _RESULT)


def _tool_reference(block: Json, where: str) -> None:
    _need(block, "tool_name", str, where)


_RESULT: Mapping[str, Check | None] = {"text": _text, IMAGE: _image, "tool_reference": _tool_reference}
_BLOCKS: Mapping[str, Mapping[str, Check | None]] = {
    "user": {"text": _text, IMAGE: _image, "tool_result": _tool_result, **dict.fromkeys(SILENT)},
    "assistant": {"text": _text, "thinking": _thinking, "tool_use": _tool_use, **dict.fromkeys(SILENT)},
    "system": {"text": _text},
}
"""Role → the kinds of blocks that its messages may have → their check."""
