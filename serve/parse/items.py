"""The items of a Responses conversation: which kinds there are, their checks, and their form when they are read back.

What an item says to the model is `serve.parse.turns`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from serve.parse.tools import parse_tools
from serve.request import BadRequest, Json

TEXT_PARTS = ("input_text", "output_text", "text", "refusal")
IMAGE_PART = "input_image"
REASONING_PARTS = ("reasoning_text", "text")
"""Of reasoning that can be read; what is encrypted says nothing here."""
ROLES = ("user", "system", "developer", "assistant")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of item. `prefix` begins the ids that we give. `needs` are the fields without which the API's list of
    input items cannot show it; None: the list has no such kind. `statuses` are those that it may show; `status` is
    for an item without one, None where it needs none. `check` is None for a kind that says nothing to the model."""

    prefix: str
    check: Callable[[Json, str], None] | None
    needs: tuple[str, ...] | None = ()
    status: str | None = "completed"
    statuses: tuple[str, ...] = ("in_progress", "completed", "incomplete")


def kind_of(item: Json) -> str:
    """The kind of a checked item; a message and a reference may come without `type`."""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    return "message" if "role" in item else "item_reference"


def is_whole(item: Json) -> bool:
    """Whether the item is all of what it was to be. One without a status is."""
    return item.get("status") not in ("in_progress", "incomplete")


def check_items(items: Sequence[Json], where: str) -> None:
    """Raises: BadRequest: the first fault, with its path; an item of an unknown kind is one."""
    for i, item in enumerate(items):
        here = f"{where}[{i}]"
        kind = item.get("type")
        if kind is not None and (not isinstance(kind, str) or kind not in KINDS):
            raise BadRequest(f"{here}.type: {repr(kind)[:80]} is no kind of item", f"{here}.type")
        if kind is None and "role" not in item and "id" not in item:
            raise BadRequest(f"{here}.type: required", f"{here}.type")
        if (check := KINDS[kind_of(item)].check) is not None:
            check(item, here)


def with_ids(items: Sequence[Json], new_id: Callable[[str], str]) -> tuple[Json, ...]:
    """The items as `GET …/input_items` lists them: with id, status and parts. `new_id` makes an id with a prefix.

    Left out are references (they are no items of their own), and what the API's list cannot show.
    """
    listed: list[Json] = []
    for item in items:
        name = kind_of(item)
        kind = KINDS[name]
        if kind.needs is None or any(item.get(need) is None for need in kind.needs):
            continue
        given = item.get("id")
        made: Json = {**item, "type": name, "id": given if isinstance(given, str) and given else new_id(kind.prefix)}
        if made.get("status") not in kind.statuses:
            made.pop("status", None)
            if kind.status is not None:
                made["status"] = kind.status
        if (shape := _SHAPES.get(name)) is not None:
            shape(made)
        listed.append(made)
    return tuple(listed)


# --- checks ------------------------------------------------------------------------------------------


def _need(item: Json, name: str, type_: type, where: str) -> None:
    words: Mapping[type, str] = {str: "str", list: "array", dict: "object"}
    if not isinstance(item.get(name), type_):
        what = "required" if item.get(name) is None else f"expected {words[type_]}"
        raise BadRequest(f"{where}.{name}: {what}", f"{where}.{name}")


def _may(item: Json, name: str, type_: type, where: str) -> None:
    if item.get(name) is not None:
        _need(item, name, type_, where)


def _message(item: Json, where: str) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise BadRequest(f"{where}.role: {repr(role)[:80]} is not one of {', '.join(ROLES)}", f"{where}.role")
    content = item.get("content")
    if content is None and role == "assistant":
        return
    _content(content, f"{where}.content", images=role != "assistant")


def _content(content: object, where: str, *, images: bool) -> None:
    if content is None:
        raise BadRequest(f"{where}: required", where)
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise BadRequest(f"{where}: expected a string or an array of parts", where)
    for i, part in enumerate(cast("list[object]", content)):
        _part(part, f"{where}[{i}]", images)


def _part(part: object, where: str, images: bool) -> None:
    if not isinstance(part, dict):
        raise BadRequest(f"{where}: expected object", where)
    fields = cast("Json", part)
    kind = fields.get("type")
    if kind is None:
        raise BadRequest(f"{where}.type: required", f"{where}.type")
    if kind == "refusal":
        _need(fields, "refusal", str, where)
    elif isinstance(kind, str) and kind in TEXT_PARTS:
        _need(fields, "text", str, where)
    elif kind == IMAGE_PART and images:
        if fields.get("image_url") is None and fields.get("file_id") is not None:
            raise BadRequest(f"{where}.file_id: files are not kept here; send image_url", f"{where}.file_id")
        _need(fields, "image_url", str, where)
        _may(fields, "detail", str, where)
    else:
        raise BadRequest(f"{where}.type: {repr(kind)[:80]} is not supported; send text", f"{where}.type")


def _reasoning(item: Json, where: str) -> None:
    for name, kinds in (("summary", ("summary_text",)), ("content", REASONING_PARTS)):
        _may(item, name, list, where)
        for i, part in enumerate(cast("list[object]", item.get(name) or [])):
            here = f"{where}.{name}[{i}]"
            if not isinstance(part, dict):
                raise BadRequest(f"{here}: expected object", here)
            kind = cast("Json", part).get("type")
            if kind == "encrypted_content" and name == "content":
                continue
            if kind not in kinds:
                raise BadRequest(f"{here}.type: {repr(kind)[:80]} is not {kinds[0]!r}", f"{here}.type")
            _need(cast("Json", part), "text", str, here)


def _function_call(item: Json, where: str) -> None:
    for name in ("call_id", "name", "arguments"):
        _need(item, name, str, where)
    if not item["name"]:
        raise BadRequest(f"{where}.name: empty", f"{where}.name")
    _may(item, "namespace", str, where)


def _custom_call(item: Json, where: str) -> None:
    for name in ("call_id", "name", "input"):
        _need(item, name, str, where)
    _may(item, "namespace", str, where)


def _call_output(item: Json, where: str) -> None:
    _may(item, "name", str, where)
    if item.get("name") is None or item.get("call_id") is not None:
        _need(item, "call_id", str, where)
    _content(item.get("output"), f"{where}.output", images=True)


def _local_shell_call(item: Json, where: str) -> None:
    _need(item, "id" if item.get("call_id") is None else "call_id", str, where)
    _need(item, "action", dict, where)


def _local_shell_output(item: Json, where: str) -> None:
    _need(item, "id" if item.get("call_id") is None else "call_id", str, where)
    _need(item, "output", str, where)


def _shell_call(item: Json, where: str) -> None:
    _need(item, "call_id", str, where)
    _need(item, "action", dict, where)


def _shell_output(item: Json, where: str) -> None:
    _need(item, "call_id", str, where)
    if not isinstance(item.get("output"), str):
        _need(item, "output", list, where)


def _patch_call(item: Json, where: str) -> None:
    _need(item, "call_id", str, where)
    _need(item, "operation", dict, where)


def _patch_output(item: Json, where: str) -> None:
    _need(item, "call_id", str, where)
    _may(item, "status", str, where)
    _may(item, "output", str, where)


def _additional_tools(item: Json, where: str) -> None:
    _need(item, "tools", list, where)
    for i, tool in enumerate(cast("list[object]", item["tools"])):
        if not isinstance(tool, dict):
            raise BadRequest(f"{where}.tools[{i}]: expected object", f"{where}.tools[{i}]")
    parse_tools(cast("list[Json]", item["tools"]), f"{where}.tools")


def _reference(item: Json, where: str) -> None:
    _need(item, "id", str, where)


_RUN_STATUSES = ("in_progress", "searching", "completed", "incomplete", "failed")

KINDS: Mapping[str, Kind] = {
    "message": Kind("msg", _message),
    "reasoning": Kind("rs", _reasoning, status=None),
    "function_call": Kind("fc", _function_call),
    "function_call_output": Kind("fco", _call_output),
    "custom_tool_call": Kind("ctc", _custom_call),
    "custom_tool_call_output": Kind("ctco", _call_output, ("call_id",)),
    "local_shell_call": Kind("lsh", _local_shell_call),
    "local_shell_call_output": Kind("lsho", _local_shell_output),
    "shell_call": Kind("sh", _shell_call),
    "shell_call_output": Kind("sho", _shell_output),
    "apply_patch_call": Kind("apc", _patch_call, statuses=("in_progress", "completed")),
    "apply_patch_call_output": Kind("apco", _patch_output, statuses=("completed", "failed")),
    "additional_tools": Kind("at", _additional_tools, status=None),
    "item_reference": Kind("", _reference, None),
    # what says nothing to the model
    "agent_message": Kind("", None, None),
    "code_interpreter_call": Kind("ci", None, ("container_id",), statuses=(*_RUN_STATUSES, "interpreting")),
    "compaction": Kind("cmp", None, ("encrypted_content",), None),
    "compaction_summary": Kind("", None, None),
    "compaction_trigger": Kind("", None, None),
    "computer_call": Kind("cu", None, ("call_id", "pending_safety_checks")),
    "computer_call_output": Kind("cuo", None, ("call_id", "output"), statuses=_RUN_STATUSES),
    "configuration_update": Kind("cfg", None, (), None),
    "context_compaction": Kind("", None, None),
    "file_search_call": Kind("fs", None, ("queries",), statuses=_RUN_STATUSES),
    "ghost_snapshot": Kind("", None, None),
    "image_generation_call": Kind("ig", None, statuses=("in_progress", "completed", "generating", "failed")),
    "mcp_approval_request": Kind("mcpr", None, ("arguments", "name", "server_label"), None),
    "mcp_approval_response": Kind("mcpa", None, ("approval_request_id", "approve"), None),
    "mcp_call": Kind("mcp", None, ("arguments", "name", "server_label"), None, (*_RUN_STATUSES, "calling")),
    "mcp_list_tools": Kind("mcpl", None, ("server_label", "tools"), None),
    "program": Kind("prg", None, ("call_id", "code", "fingerprint"), None),
    "program_output": Kind("prgo", None, ("call_id", "result"), statuses=("completed", "incomplete")),
    "tool_search_call": Kind("ts", None, ("arguments", "execution")),
    "tool_search_output": Kind("tso", None, ("tools", "execution")),
    "web_search_call": Kind("ws", None, ("action",), statuses=_RUN_STATUSES),
}
"""Every kind that is taken. Source: `ResponseInputItemParam` and `ResponseItem` in the openai package 3.57.0, and
`ResponseItem` of Codex (agent_message, compaction_summary, context_compaction, ghost_snapshot), 2026."""


# --- the listed form ---------------------------------------------------------------------------------


def _list_message(item: Json) -> None:
    content = item.get("content")
    parts: object = cast("object", content) if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    form = _output_part if item["role"] == "assistant" else _input_part
    item["content"] = [form(part) for part in cast("list[Json]", parts)]


def _input_part(part: Json) -> Json:
    if part["type"] == IMAGE_PART:
        return {**part, "detail": part.get("detail") or "auto"}
    return {**part, "type": "input_text", "text": part.get("text", part.get("refusal"))}


def _output_part(part: Json) -> Json:
    if part["type"] == "refusal":
        return part
    return {**part, "type": "output_text", "annotations": part.get("annotations") or []}


def _list_output(item: Json) -> None:
    if isinstance(item["output"], list):
        item["output"] = [_input_part(part) for part in cast("list[Json]", item["output"])]


def _list_reasoning(item: Json) -> None:
    item["summary"] = item.get("summary") or []
    if (content := item.get("content")) is not None:
        parts = [part for part in cast("list[Json]", content) if part["type"] in REASONING_PARTS]
        item["content"] = [{**part, "type": "reasoning_text"} for part in parts]


def _list_local_shell(item: Json) -> None:
    action = cast("Json", item["action"])
    item["action"] = {**action, "env": action.get("env") or {}}
    item["call_id"] = item.get("call_id") or item["id"]


def _list_tools(item: Json) -> None:
    item["role"] = item.get("role") or "developer"
    item["tools"] = list(parse_tools(cast("list[Json]", item["tools"])).echo)


_SHAPES: Mapping[str, Callable[[Json], None]] = {
    "message": _list_message,
    "reasoning": _list_reasoning,
    "function_call_output": _list_output,
    "custom_tool_call_output": _list_output,
    "local_shell_call": _list_local_shell,
    "additional_tools": _list_tools,
}
