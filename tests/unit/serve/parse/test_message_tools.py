"""The tools of a Messages request, and which of them may be chosen."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import anthropic.types
import anthropic.types.beta
import pytest

from serve.parse.message_tools import choose, one_call_at_most, parse_tools
from serve.request import BadRequest

ADD: dict[str, Any] = {"name": "add", "description": "Adds.", "strict": True, "input_schema": {"type": "object"}}
SEARCH: dict[str, Any] = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
TOLD, SILENT = parse_tools([ADD, SEARCH])


def provider_kinds() -> set[str]:
    """The kinds of tools that the package's types name, but `custom`."""
    found: set[str] = set()
    for package in (anthropic.types, anthropic.types.beta):
        for module in pkgutil.iter_modules(package.__path__):
            if "tool" in module.name and module.name.endswith("_param") and "block" not in module.name:
                loaded = importlib.import_module(f"{package.__name__}.{module.name}")
                source = Path(str(loaded.__file__)).read_text(encoding="utf-8")
                if re.search(r"^class (Beta)?(\w*Tool\w*\d{8}|MCPToolset)Param", source, re.MULTILINE):
                    found |= set(re.findall(r'type: Required\[Literal\["(\w+)"\]\]', source))
    return found - {"custom", "object"}


def test_a_tool_with_a_schema_is_told_as_a_function_and_others_are_not() -> None:
    function = {"name": "add", "description": "Adds.", "strict": True, "parameters": {"type": "object"}}
    assert parse_tools([ADD, SEARCH]) == (({"type": "function", "function": function},), {"web_search"})
    assert parse_tools([{**ADD, "type": "custom", "cache_control": {}, "defer_loading": True}])[0] == TOLD


def test_every_kind_that_the_api_has_is_taken() -> None:
    kinds = provider_kinds()
    assert len(kinds) > 15
    for kind in kinds:
        assert parse_tools([{"type": kind, "name": "x"}]) == ((), {"x"})


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "function", "function": {}}, "type"),
        ({"type": "web_search"}, "type"),
        ({"type": 5}, "type"),
        ({"input_schema": {}}, "name"),
        ({"name": "a b", "input_schema": {}}, "name"),
        ({"name": "a"}, "input_schema"),
        ({"name": "a", "input_schema": []}, "input_schema"),
        ({"name": "a", "input_schema": {}, "description": 5}, "description"),
        ({"name": "add", "input_schema": {}}, "name"),
    ],
)
def test_a_wrong_tool_is_refused_with_its_path(tool: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse_tools([ADD, tool])
    assert raised.value.param == f"tools[1].{param}"


@pytest.mark.parametrize(
    ("choice", "meaning", "chat"),
    [
        (None, "auto", "auto"),
        ({"type": "auto"}, "auto", "auto"),
        ({"type": "none"}, "none", "none"),
        ({"type": "any"}, "required", "required"),
        ({"type": "tool", "name": "add"}, "function:add", {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_a_choice_has_its_meaning(choice: dict[str, Any] | None, meaning: str, chat: object) -> None:
    if meaning == "none":
        assert choose(choice, TOLD, SILENT) == ("none", "none")
    else:
        assert choose(choice, TOLD, SILENT) == (meaning, chat)


def test_without_tools_that_are_told_nothing_is_chosen() -> None:
    assert choose(None, (), SILENT)[0] == "none"
    assert choose({"type": "auto"}, (), SILENT)[0] == "none"


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"type": "any"}, "tool_choice.type: 'any' needs a tool"),
        ({}, "tool_choice.type: required"),
        ({"type": "required"}, "tool_choice.type: 'required' is not one of"),
        ({"type": "tool"}, "tool_choice.name: required"),
        ({"type": "tool", "name": "sub"}, "tool_choice.name: 'sub' is not in tools"),
        ({"type": "tool", "name": "web_search"}, "tool_choice.name: 'web_search' cannot be chosen"),
    ],
)
def test_a_choice_of_what_is_not_there_is_refused(choice: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=f"^{re.escape(says)}"):
        choose(choice, (), SILENT)


def test_one_call_at_most_is_a_switch() -> None:
    assert one_call_at_most({"type": "auto", "disable_parallel_tool_use": True})
    assert not one_call_at_most({"type": "auto"})
    assert not one_call_at_most(None)
    with pytest.raises(BadRequest, match="disable_parallel_tool_use"):
        one_call_at_most({"disable_parallel_tool_use": "yes"})
