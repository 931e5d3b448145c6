"""The tools of a Messages request: which the model is told of, and which may be chosen.

Only tools with a schema of their own are told. The kinds that a provider defines are accepted because clients send them
unasked; nothing is called through them.
"""

from __future__ import annotations

import re
from typing import cast

from serve.parse.fields import check_count, check_function, tool_name
from serve.request import BadRequest, Json

NO_EFFECT_TOOLS = (
    "advisor",
    "bash",
    "browser_toolset",
    "code_execution",
    "computer",
    "computer_toolset",
    "memory",
    "text_editor",
    "tool_search_tool_bm25",
    "tool_search_tool_regex",
    "web_fetch",
    "web_search",
)
"""The kinds of tools that the model is not told of, without the date behind them. Source: `ToolUnionParam` and its beta
form in the anthropic package 2.14."""

UNDATED_TOOLS = ("mcp_toolset", "tool_search_tool_bm25", "tool_search_tool_regex")
"""Those that come without a date."""

_NO_EFFECT = re.compile(rf"(?:{'|'.join(NO_EFFECT_TOOLS)})_\d{{8}}|{'|'.join(UNDATED_TOOLS)}")


def parse_tools(tools: list[Json]) -> tuple[tuple[Json, ...], frozenset[str]]:
    """The tools that the model is told of, in chat form, and the names of those that it is not.

    Raises: BadRequest: an unknown kind, a wrong tool, a name that is declared twice.
    """
    check_count(tools, "tools")
    told: list[Json] = []
    silent: set[str] = set()
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        kind = tool.get("type")
        if kind is None or kind == "custom":
            told.append(_custom(tool, where, seen))
        elif isinstance(kind, str) and _NO_EFFECT.fullmatch(kind):
            if isinstance(tool.get("name"), str):
                silent.add(cast("str", tool["name"]))
        else:
            raise BadRequest(f"{where}.type: {repr(kind)[:80]} is no kind of tool; send 'custom'", f"{where}.type")
    return tuple(told), frozenset(silent)


def choose(choice: Json | None, told: tuple[Json, ...], silent: frozenset[str]) -> tuple[str, object]:
    """What `tool_choice` means: "auto", "none", "required" or "function:" with a name; and the same in chat's words.

    Raises: BadRequest: it names what is not there.
    """
    kind = "auto" if choice is None else choice.get("type")
    if kind in ("auto", "none"):
        return (kind if told else "none"), kind
    if kind == "any":
        if not told:
            raise BadRequest("tool_choice.type: 'any' needs a tool with an input_schema in tools", "tool_choice.type")
        return "required", "required"
    if kind != "tool":
        what = "required" if kind is None else f"{repr(kind)[:80]} is not one of auto, any, tool, none"
        raise BadRequest(f"tool_choice.type: {what}", "tool_choice.type")
    name = cast("Json", choice).get("name")
    if not isinstance(name, str):
        raise BadRequest("tool_choice.name: required", "tool_choice.name")
    if name not in {tool_name(tool) for tool in told}:
        why = "cannot be chosen, as the model is not told of it" if name in silent else "is not in tools"
        raise BadRequest(f"tool_choice.name: {name[:80]!r} {why}", "tool_choice.name")
    return f"function:{name}", {"type": "function", "function": {"name": name}}


def one_call_at_most(choice: Json | None) -> bool:
    """Raises: BadRequest: the switch is no boolean."""
    value = (choice or {}).get("disable_parallel_tool_use")
    if value is not None and not isinstance(value, bool):
        name = "tool_choice.disable_parallel_tool_use"
        raise BadRequest(f"{name}: expected bool", name)
    return bool(value)


def _custom(tool: Json, where: str, seen: set[str]) -> Json:
    check_function({"name": tool.get("name")}, where, seen)
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        what = "required" if schema is None else "expected object"
        raise BadRequest(f"{where}.input_schema: {what}", f"{where}.input_schema")
    function: Json = {"name": tool["name"]}
    for name, type_, word in (("description", str, "str"), ("strict", bool, "bool")):
        if tool.get(name) is None:
            continue
        if not isinstance(tool[name], type_):
            raise BadRequest(f"{where}.{name}: expected {word}", f"{where}.{name}")
        function[name] = tool[name]
    function["parameters"] = cast("Json", schema)
    return {"type": "function", "function": function}
