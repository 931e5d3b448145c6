"""Items → chat messages: each assistant turn is one message, and nothing that was said is lost."""

import json
from typing import Any

import pytest

from serve.parse.turns import chat_messages, first_image, template_message, upstream_message
from tests.unit.serve.parse.agents import text

USER = text("user", "hi")
SAID = text("assistant", "well")
NEXT = text("user", "and?")


def thought(*texts: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": t} for t in texts]}


def call(call_id: str, arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments, **more}


def result(call_id: str, output: Any = "x") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def shape(items: list[dict[str, Any]]) -> list[str]:
    """Each message as its role and what it holds: r(easoning), t(ext), c(alls)."""
    return [
        f"{m['role']}:{'r' if 'reasoning_content' in m else ''}{'t' if m['content'] else ''}"
        + "c" * len(m.get("tool_calls", []))  # type: ignore[arg-type] - JSON
        for m in chat_messages(items)
    ]


ONE_TURN = ["user:t", "assistant:rtc", "tool:t", "user:t"]
TURNS: list[tuple[list[dict[str, Any]], list[str]]] = [
    ([USER, SAID, NEXT], ["user:t", "assistant:t", "user:t"]),
    ([USER, thought("so"), SAID, call("1"), result("1"), NEXT], ONE_TURN),
    ([USER, SAID, thought("so"), call("1"), result("1"), NEXT], ONE_TURN),
    ([USER, call("1"), thought("so"), SAID, result("1"), NEXT], ONE_TURN),
    ([USER, call("1"), call("2"), result("1"), result("2")], ["user:t", "assistant:cc", "tool:t", "tool:t"]),
    (
        [USER, thought("a"), call("1"), result("1"), thought("b"), call("2"), result("2"), SAID],
        ["user:t", "assistant:rc", "tool:t", "assistant:rc", "tool:t", "assistant:t"],
    ),
    ([USER, thought("cut")], ["user:t", "assistant:r"]),
    ([USER, {"type": "reasoning", "summary": [], "encrypted_content": "x"}, NEXT], ["user:t", "user:t"]),
    ([USER, {"role": "assistant"}, NEXT], ["user:t", "assistant:", "user:t"]),
    ([USER, SAID, {"type": "web_search_call"}, call("1"), result("1")], ["user:t", "assistant:tc", "tool:t"]),
    ([USER, {"type": "additional_tools", "tools": []}, NEXT], ["user:t", "user:t"]),
    ([text("system", "s"), text("developer", "d"), USER], ["system:t", "developer:t", "user:t"]),
    ([], []),
]


@pytest.mark.parametrize(("items", "expected"), TURNS)
def test_what_belongs_to_one_assistant_turn_is_one_message(items: list[dict[str, Any]], expected: list[str]) -> None:
    assert shape(items) == expected


def test_texts_and_reasoning_of_one_turn_are_kept_apart_by_a_blank_line() -> None:
    made = chat_messages([thought("a", "b"), text("assistant", "x", "y"), thought("c"), SAID])
    assert made == [{"role": "assistant", "content": "xy\n\nwell", "reasoning_content": "a\n\nb\n\nc"}]


def test_a_summary_speaks_where_there_is_no_reasoning() -> None:
    item: dict[str, Any] = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}
    assert chat_messages([item, SAID])[0]["reasoning_content"] == "short"
    assert chat_messages([item | {"content": thought("long")["content"]}])[0]["reasoning_content"] == "long"


def test_a_call_has_raw_arguments_for_chat_engines_and_an_object_for_templates() -> None:
    made = chat_messages([call("1", '{"a": 1}'), call("2", '{"a'), call("3", " ")])[0]
    calls: Any = made["tool_calls"]
    assert [c["function"]["arguments"] for c in calls] == ['{"a": 1}', '{"a', "{}"]
    assert made["content"] is None
    templated: Any = template_message(made)
    assert [c["function"]["arguments"] for c in templated["tool_calls"]] == [{"a": 1}, '{"a', {}]
    assert templated["content"] == ""
    assert made["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'  # type: ignore[index] - JSON


@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a":' * 100_000, '{"a":' * 900 + "1" + "}" * 900, "[1]", "5"])
def test_arguments_that_are_no_plain_object_stay_text(arguments: str) -> None:
    made: Any = template_message(chat_messages([call("1", arguments)])[0])
    assert made["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("arguments", ['{"a": 1', "cut", "[1]", '{"a": "\u2028é'])
def test_arguments_that_were_cut_are_json_for_upstreams_which_refuse_others(arguments: str) -> None:
    (message,) = chat_messages([call("1", arguments), call("2", '{"b":2}'), call("3", "")])
    told: Any = upstream_message(message)
    first, *rest = told["tool_calls"]
    assert json.loads(first["function"]["arguments"]) == {"arguments": arguments}
    assert (first["id"], first["type"], first["function"]["name"]) == ("1", "function", "f")
    assert [one["function"]["arguments"] for one in rest] == ['{"b":2}', "{}"]
    assert message["tool_calls"][0]["function"]["arguments"] == arguments  # type: ignore[index] - JSON
    assert upstream_message({"role": "user", "content": "x"}) == {"role": "user", "content": "x"}


def test_calls_of_other_kinds_are_calls_of_a_function_with_their_name() -> None:
    made: Any = chat_messages(
        [
            {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": 'ä"'},
            {"type": "local_shell_call", "id": "2", "action": {"command": ["ls"]}},
            {"type": "shell_call", "call_id": "3", "action": {"commands": ["ls"]}},
            {"type": "apply_patch_call", "call_id": "4", "operation": {"path": "a"}},
            call("5", namespace="mcp"),
        ]
    )[0]["tool_calls"]
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in made] == [
        ("1", "patch", '{"input": "ä\\""}'),
        ("2", "local_shell", '{"command": ["ls"]}'),
        ("3", "shell", '{"commands": ["ls"]}'),
        ("4", "apply_patch", '{"path": "a"}'),
        ("5", "mcp.f", "{}"),
    ]


def test_results_of_all_kinds_are_tool_messages() -> None:
    made = chat_messages(
        [
            result("1", [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]),
            {"type": "custom_tool_call_output", "call_id": "2", "output": "c"},
            {"type": "local_shell_call_output", "id": "3", "output": "d"},
            {"type": "shell_call_output", "call_id": "4", "output": [{"stdout": "e"}]},
            {"type": "apply_patch_call_output", "call_id": "5", "status": "failed"},
            {"type": "function_call_output", "name": "f", "output": ""},
        ]
    )
    assert made == [
        {"role": "tool", "content": "ab", "tool_call_id": "1"},
        {"role": "tool", "content": "c", "tool_call_id": "2"},
        {"role": "tool", "content": "d", "tool_call_id": "3"},
        {"role": "tool", "content": '[{"stdout": "e"}]', "tool_call_id": "4"},
        {"role": "tool", "content": "failed", "tool_call_id": "5"},
        {"role": "tool", "content": "", "name": "f"},
    ]


def test_a_refusal_is_text() -> None:
    item: dict[str, Any] = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert chat_messages([item]) == [{"role": "assistant", "content": "no"}]


def test_the_first_image_is_found_where_parts_are_read() -> None:
    image = {"type": "input_image", "image_url": "data:"}
    assert first_image([USER, {"role": "user", "content": [image]}], "input") == "input[1].content[0].type"
    assert first_image([result("1", [image])], "input") == "input[0].output[0].type"
    assert first_image([{"type": "computer_call_output", "output": [image]}], "input") is None
