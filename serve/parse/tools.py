"""The tools of a Responses request: which the model is told of, how they are echoed, and which may be chosen.

Only functions are told. The kinds that run at a provider, or that need another kind of call, are accepted because
clients send them unasked; nothing is called through them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from serve.parse.fields import check_count, check_function, tool_name
from serve.request import BadRequest, Json

NO_EFFECT_TOOLS: Mapping[str, tuple[str, ...]] = {
    "apply_patch": (),
    "code_interpreter": ("container",),
    "computer": (),
    "computer_use_preview": ("display_height", "display_width", "environment"),
    "custom": ("name",),
    "file_search": ("vector_store_ids",),
    "image_generation": (),
    "local_shell": (),
    "mcp": ("server_label",),
    "namespace": ("name", "description", "tools"),
    "programmatic_tool_calling": (),
    "shell": (),
    "tool_search": (),
    "web_search": (),
    "web_search_2025_08_26": (),
    "web_search_preview": (),
    "web_search_preview_2025_03_11": (),
}
"""The kinds of tools that the model is not told of → the fields that the API requires in them.
Source: `Tool` in the openai package 3.57.0."""


@dataclass(frozen=True, slots=True)
class Tools:
    """`told` is in chat form; `echo` is what a response object repeats."""

    told: tuple[Json, ...]
    echo: tuple[Json, ...]


def parse_tools(tools: list[Json], where: str = "tools") -> Tools:
    """Raises: BadRequest: an unknown kind, a wrong function, a name that is declared twice."""
    check_count(tools, where)
    told: list[Json] = []
    echo: list[Json] = []
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        here = f"{where}[{i}]"
        kind = tool.get("type")
        if kind == "function":
            function = _function(tool, here, seen)
            told.append(_chat_form(function))
            echo.append(function)
            continue
        if not isinstance(kind, str) or kind not in NO_EFFECT_TOOLS:
            shown = "nothing" if kind is None else repr(kind)[:80]
            raise BadRequest(f"{here}.type: {shown} is no kind of tool; send 'function'", f"{here}.type")
        for name in NO_EFFECT_TOOLS[kind]:
            if tool.get(name) is None:
                raise BadRequest(f"{here}.{name}: required in a tool of type {kind!r}", f"{here}.{name}")
        echo.append(tool)
    return Tools(tuple(told), tuple(echo))


def merged(groups: Iterable[Sequence[Json]]) -> tuple[Json, ...]:
    """The functions of all groups, in chat form. A later declaration of a name replaces an earlier one."""
    return tuple({tool_name(tool): tool for group in groups for tool in group}.values())


def choose(choice: object, told: tuple[Json, ...]) -> tuple[str, tuple[Json, ...]]:
    """What `tool_choice` means: "auto", "none", "required" or "function:" with a name, and the tools that are left.

    Raises: BadRequest: it names what is not there.
    """
    if choice is None:
        return ("auto" if told else "none"), told
    if isinstance(choice, str):
        return _word(choice, told, "tool_choice"), told
    if not isinstance(choice, dict):
        raise BadRequest("tool_choice: expected a string or an object", "tool_choice")
    fields = cast("Json", choice)
    kind = fields.get("type")
    if kind == "function":
        name, where = _chosen_name(fields, "tool_choice")
        if name not in {tool_name(tool) for tool in told}:
            raise BadRequest(f"{where}: {name[:80]!r} is not in tools", where)
        return f"function:{name}", told
    if kind == "allowed_tools":
        left = _allowed(fields, told)
        mode = fields.get("mode")
        if mode not in ("auto", "required"):
            raise BadRequest(
                f"tool_choice.mode: {str(mode)[:80]!r} is not one of 'auto', 'required'", "tool_choice.mode"
            )
        return _word(cast("str", mode), left, "tool_choice.mode"), left
    if isinstance(kind, str) and kind in NO_EFFECT_TOOLS:
        raise BadRequest(
            f"tool_choice.type: {kind!r} cannot be chosen, as the model is told of functions only; send 'auto'",
            "tool_choice.type",
        )
    raise BadRequest(
        f"tool_choice.type: {str(kind)[:80]!r} is not one of 'function', 'allowed_tools'", "tool_choice.type"
    )


def echoed_choice(choice: object) -> object:
    """A checked `tool_choice` in the form of a response object."""
    if choice is None:
        return "auto"
    if isinstance(choice, dict) and cast("Json", choice).get("type") == "function":
        return {"type": "function", "name": _chosen_name(cast("Json", choice), "tool_choice")[0]}
    return cast("object", choice)


def _word(word: str, told: tuple[Json, ...], where: str) -> str:
    if word not in ("auto", "none", "required"):
        raise BadRequest(f"{where}: {word[:80]!r} is not one of 'auto', 'none', 'required' or a function", where)
    if word == "required" and not told:
        raise BadRequest(f"{where}: 'required' needs a function in tools", where)
    return word


def _chosen_name(fields: Json, where: str) -> tuple[str, str]:
    """The function's name and its path; chat's nested form is taken too."""
    nested = fields.get("function")
    if "name" not in fields and isinstance(nested, dict):
        fields, where = cast("Json", nested), f"{where}.function"
    name = fields.get("name")
    if not isinstance(name, str):
        raise BadRequest(f"{where}.name: required", f"{where}.name")
    return name, f"{where}.name"


def _allowed(fields: Json, told: tuple[Json, ...]) -> tuple[Json, ...]:
    tools = fields.get("tools")
    if not isinstance(tools, list):
        raise BadRequest("tool_choice.tools: expected array", "tool_choice.tools")
    by_name = {tool_name(tool): tool for tool in told}
    left: dict[str, Json] = {}
    for i, tool in enumerate(cast("list[object]", tools)):
        where = f"tool_choice.tools[{i}]"
        if not isinstance(tool, dict):
            raise BadRequest(f"{where}: expected object", where)
        kind = cast("Json", tool).get("type")
        if isinstance(kind, str) and kind in NO_EFFECT_TOOLS:
            continue
        if kind != "function":
            raise BadRequest(f"{where}.type: {str(kind)[:80]!r} is no kind of tool; send 'function'", f"{where}.type")
        name, path = _chosen_name(cast("Json", tool), where)
        if name not in by_name:
            raise BadRequest(f"{path}: {name[:80]!r} is not in tools", path)
        left[name] = by_name[name]
    return tuple(left.values())


def _function(tool: Json, where: str, seen: set[str]) -> Json:
    """A function in the API's flat form, checked, with all fields that a response object has."""
    nested = tool.get("function")
    if "name" not in tool and isinstance(nested, dict):
        tool, where = {"type": "function", **cast("Json", nested)}, f"{where}.function"
    check_function(tool, where, seen)
    for name, type_, word in (("description", str, "str"), ("strict", bool, "bool")):
        if tool.get(name) is not None and not isinstance(tool[name], type_):
            raise BadRequest(f"{where}.{name}: expected {word}", f"{where}.{name}")
    return {"description": None, "parameters": None, "strict": None, **tool, "type": "function"}


def _chat_form(function: Json) -> Json:
    made: Json = {"name": function["name"]}
    if function["description"] is not None:
        made["description"] = function["description"]
    made["parameters"] = function["parameters"] or {"type": "object", "properties": {}}
    if function["strict"] is not None:
        made["strict"] = function["strict"]
    return {"type": "function", "function": made}
