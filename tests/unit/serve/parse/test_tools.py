"""Tools of a Responses request: functions are told, all other known kinds change nothing, a choice narrows them."""

from typing import Any, get_args

import pytest
from openai.types.responses import Tool
from pydantic import TypeAdapter

from serve.parse.tools import NO_EFFECT_TOOLS, choose, merged, parse_tools

TOOL: TypeAdapter[Any] = TypeAdapter(Tool)

HOSTED: dict[str, dict[str, Any]] = {
    "code_interpreter": {"container": {"type": "auto"}},
    "computer_use_preview": {"display_height": 1, "display_width": 1, "environment": "linux"},
    "custom": {"name": "patch", "format": {"type": "text"}},
    "file_search": {"vector_store_ids": ["vs_1"]},
    "mcp": {"server_label": "s", "server_url": "https://example.com"},
    "namespace": {"name": "n", "description": "d", "tools": [{"type": "function", "name": "f"}]},
}


def named(*names: str) -> tuple[dict[str, Any], ...]:
    return parse_tools([{"type": "function", "name": name} for name in names]).told


def sdk_kinds() -> set[str]:
    union = get_args(Tool)[0]
    return {word for model in get_args(union) for word in get_args(model.model_fields["type"].annotation)}


def test_every_kind_of_the_sdk_is_a_function_or_has_no_effect() -> None:
    assert sdk_kinds() == {"function", *NO_EFFECT_TOOLS}


@pytest.mark.parametrize("kind", NO_EFFECT_TOOLS)
def test_a_kind_without_effect_is_echoed_as_sent_and_not_told(kind: str) -> None:
    tool: dict[str, Any] = {"type": kind, **HOSTED.get(kind, {})}
    tools = parse_tools([tool])
    assert tools.told == ()
    assert tools.echo == (tool,)
    TOOL.validate_python(tool)
    assert set(NO_EFFECT_TOOLS[kind]) <= set(tool)


def test_a_function_is_told_in_chat_form_and_echoed_flat() -> None:
    flat: dict[str, Any] = {
        "type": "function",
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {}}},
        "strict": True,
    }
    tools = parse_tools([flat])
    inner = {key: value for key, value in flat.items() if key != "type"}
    assert tools.told == ({"type": "function", "function": inner},)
    assert tools.echo == (flat,)
    assert parse_tools([{"type": "function", "function": inner}]) == tools


def test_a_function_without_parameters_is_told_as_one_that_takes_none() -> None:
    tools = parse_tools([{"type": "function", "name": "f"}])
    assert tools.told == (
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}},
    )
    assert tools.echo == ({"type": "function", "name": "f", "description": None, "parameters": None, "strict": None},)
    TOOL.validate_python(tools.echo[0])


def test_a_later_declaration_replaces_an_earlier_one() -> None:
    newer = parse_tools([{"type": "function", "name": "a", "description": "new"}]).told
    assert merged([named("a", "b"), newer]) == (newer[0], *named("b"))


@pytest.mark.parametrize(
    ("choice", "word", "left"),
    [
        (None, "auto", ["a", "b"]),
        ("auto", "auto", ["a", "b"]),
        ("none", "none", ["a", "b"]),
        ("required", "required", ["a", "b"]),
        ({"type": "function", "name": "b"}, "function:b", ["a", "b"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "b"}]}, "auto", ["b"]),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "web_search"}, {"type": "function", "name": "a"}],
            },
            "required",
            ["a"],
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "auto", []),
    ],
)
def test_a_choice_is_a_word_and_the_tools_that_are_left(choice: object, word: str, left: list[str]) -> None:
    assert choose(choice, named("a", "b")) == (word, named(*left))


def test_without_functions_there_is_no_choice() -> None:
    assert choose(None, ()) == ("none", ())
