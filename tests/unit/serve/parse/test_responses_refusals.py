"""Responses requests that are wrong: a 400 that names the field and is small. Nothing else is raised, ever."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve.parse.body import json_object
from serve.parse.items import KINDS
from serve.parse.response_fields import MOVED, NO_EFFECT, REFUSED, SUPPORTED
from serve.parse.responses import generate_request, parse_responses, with_ids
from serve.request import BadRequest
from tests.unit.serve.parse.agents import SHELL, text

USER = text("user", "hi")


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [USER, fields]}


def part(**fields: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [fields]}]}


def refused(fields: dict[str, Any]) -> BadRequest:
    body = json_object(json.dumps({"input": "hi", **fields}).encode())
    with pytest.raises(BadRequest) as caught:
        generate_request(parse_responses(body), [])
    return caught.value


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{**SHELL, **fields}]}


def choice(**fields: Any) -> dict[str, Any]:
    return {"tools": [SHELL], "tool_choice": fields}


CALL: dict[str, Any] = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
CUSTOM: dict[str, Any] = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "c", "output": "x"}

FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": {}}, "input"),
    ({"input": 5}, "input"),
    ({"input": [USER, 5]}, "input[1]"),
    ({"input": [USER, "x"]}, "input[1]"),
    ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input"),
    ({"model": 5}, "model"),
    ({"instructions": ["x"]}, "instructions"),
    ({"instructions": {}}, "instructions"),
    ({"previous_response_id": 5}, "previous_response_id"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"background": "no"}, "background"),
    ({"background": True, "store": False}, "background"),
    ({"store": 1}, "store"),
    ({"store": "false"}, "store"),
    ({"include": "reasoning.encrypted_content"}, "include"),
    ({"include": [5]}, "include[0]"),
    ({"include": ["reasoning.encrypted_content", "everything"]}, "include[1]"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"max_output_tokens": 1.5}, "max_output_tokens"),
    ({"max_output_tokens": "5"}, "max_output_tokens"),
    ({"max_output_tokens": True}, "max_output_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": []}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_p": "1"}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": -1}, "top_logprobs"),
    ({"top_logprobs": "5"}, "top_logprobs"),
    ({"metadata": []}, "metadata"),
    ({"metadata": "x"}, "metadata"),
    ({"metadata": {"a": 5}}, "metadata.a"),
    ({"metadata": {"a": None}}, "metadata.a"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a"),
    ({"metadata": {"k" * 65: "x"}}, "metadata"),
    ({"metadata": {f"k{i}": "x" for i in range(17)}}, "metadata"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ({"reasoning": "low"}, "reasoning"),
    ({"reasoning": []}, "reasoning"),
    ({"reasoning": {"effort": 5}}, "reasoning.effort"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"reasoning": {"summary": []}}, "reasoning.summary"),
    ({"text": "x"}, "text"),
    ({"text": []}, "text"),
    ({"text": {"format": "json"}}, "text.format"),
    ({"text": {"format": []}}, "text.format"),
    ({"text": {"verbosity": 5}}, "text.verbosity"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"seed": "x"}, "seed"),
    ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
    ({"max_tool_calls": "x"}, "max_tool_calls"),
    ({"service_tier": 5}, "service_tier"),
    ({"prompt_cache_key": []}, "prompt_cache_key"),
    ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
    ({"safety_identifier": 5}, "safety_identifier"),
    ({"stream_options": []}, "stream_options"),
    ({"truncation": 5}, "truncation"),
    ({"user": {}}, "user"),
    ({"tools": {}}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [SHELL, {"type": "teleport"}]}, "tools[1].type"),
    ({"tools": [{"type": ["function"]}]}, "tools[0].type"),
    ({"tools": [{"type": "mcp"}]}, "tools[0].server_label"),
    ({"tools": [SHELL] * 513}, "tools"),
    ({"tools": [SHELL, SHELL]}, "tools[1].name"),
    (function(name="has space"), "tools[0].name"),
    (function(name=None), "tools[0].name"),
    (function(parameters=[]), "tools[0].parameters"),
    (function(description=5), "tools[0].description"),
    (function(strict="yes"), "tools[0].strict"),
    ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools[0].function.name"),
    ({"tool_choice": "maybe"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
    (choice(type="function"), "tool_choice.name"),
    (choice(type="function", name=5), "tool_choice.name"),
    (choice(type="function", function={"name": "x"}), "tool_choice.function.name"),
    (choice(type="web_search_preview"), "tool_choice.type"),
    (choice(type="mcp", server_label="x"), "tool_choice.type"),
    (choice(type="nothing"), "tool_choice.type"),
    (choice(), "tool_choice.type"),
    (choice(type="allowed_tools", mode="auto"), "tool_choice.tools"),
    (choice(type="allowed_tools", mode="auto", tools=[5]), "tool_choice.tools[0]"),
    (choice(type="allowed_tools", mode="auto", tools=[{"type": "x"}]), "tool_choice.tools[0].type"),
    (choice(type="allowed_tools", mode="auto", tools=[{"type": "function", "name": "x"}]), "tool_choice.tools[0].name"),
    (choice(type="allowed_tools", mode="none", tools=[]), "tool_choice.mode"),
    (choice(type="allowed_tools", mode="required", tools=[]), "tool_choice.mode"),
]

ITEMS: list[tuple[dict[str, Any], str]] = [
    (item(type="teleport"), "input[1].type"),
    (item(type=5), "input[1].type"),
    (item(content="x"), "input[1].type"),
    (item(type="message"), "input[1].role"),
    (item(role="tool", content="x"), "input[1].role"),
    (item(role=["user"], content="x"), "input[1].role"),
    (item(role="user"), "input[1].content"),
    (item(role="user", content=5), "input[1].content"),
    (item(role="user", content={}), "input[1].content"),
    (item(role="user", content=["x"]), "input[1].content[0]"),
    (part(), "input[0].content[0].type"),
    (part(type="input_text"), "input[0].content[0].text"),
    (part(type="input_text", text=5), "input[0].content[0].text"),
    (part(type="refusal", text="x"), "input[0].content[0].refusal"),
    (part(type="input_file", file_id="x"), "input[0].content[0].type"),
    (part(type="input_audio"), "input[0].content[0].type"),
    (part(type=["text"]), "input[0].content[0].type"),
    (part(type="input_image"), "input[0].content[0].image_url"),
    (part(type="input_image", file_id="file-1"), "input[0].content[0].file_id"),
    (part(type="input_image", image_url={"url": "x"}), "input[0].content[0].image_url"),
    (part(type="input_image", image_url="x", detail=5), "input[0].content[0].detail"),
    (item(role="assistant", content=[{"type": "input_image", "image_url": "x"}]), "input[1].content[0].type"),
    (item(**{**CALL, "call_id": None}), "input[1].call_id"),
    (item(**{**CALL, "name": 5}), "input[1].name"),
    (item(**{**CALL, "name": ""}), "input[1].name"),
    (item(**{**CALL, "arguments": {}}), "input[1].arguments"),
    (item(**{**CALL, "namespace": 5}), "input[1].namespace"),
    (item(**{**CUSTOM, "call_id": 5}), "input[1].call_id"),
    (item(**{**CUSTOM, "name": None}), "input[1].name"),
    (item(**{**CUSTOM, "input": {}}), "input[1].input"),
    (item(**{**OUTPUT, "call_id": None}), "input[1].call_id"),
    (item(**{**OUTPUT, "call_id": 5}), "input[1].call_id"),
    (item(**{**OUTPUT, "output": None}), "input[1].output"),
    (item(**{**OUTPUT, "output": {"content": "x"}}), "input[1].output"),
    (item(**{**OUTPUT, "output": [{"type": "input_file"}]}), "input[1].output[0].type"),
    (item(type="reasoning", summary="x"), "input[1].summary"),
    (item(type="reasoning", summary=["x"]), "input[1].summary[0]"),
    (item(type="reasoning", summary=[{"type": "text", "text": "x"}]), "input[1].summary[0].type"),
    (item(type="reasoning", summary=[], content={}), "input[1].content"),
    (item(type="reasoning", content=[{"type": "reasoning_text"}]), "input[1].content[0].text"),
    (item(type="local_shell_call", action={}), "input[1].id"),
    (item(type="local_shell_call", call_id="c"), "input[1].action"),
    (item(type="local_shell_call_output", id="c", output=[]), "input[1].output"),
    (item(type="shell_call", call_id="c", action="ls"), "input[1].action"),
    (item(type="shell_call_output", call_id="c"), "input[1].output"),
    (item(type="apply_patch_call", call_id="c"), "input[1].operation"),
    (item(type="apply_patch_call_output", call_id="c", output=5), "input[1].output"),
    (item(type="additional_tools"), "input[1].tools"),
    (item(type="additional_tools", tools=[5]), "input[1].tools[0]"),
    (item(type="additional_tools", tools=[{"type": "x"}]), "input[1].tools[0].type"),
    (item(type="additional_tools", tools=[SHELL, SHELL]), "input[1].tools[1].name"),
    (item(type="item_reference"), "input[1].id"),
    (item(type="item_reference", id="msg_1"), "input[1].id"),
    (item(id="msg_1"), "input[1].id"),
]


@pytest.mark.parametrize(("fields", "param"), FIELDS + ITEMS, ids=lambda value: str(value)[:70])
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    error = refused(fields)
    assert (error.status, error.param) == (400, param)
    assert error.message.startswith(param)
    assert len(error.message) < 400


@pytest.mark.parametrize("name", [*REFUSED, *MOVED])
def test_a_field_that_is_not_supported_is_refused_with_a_remedy(name: str) -> None:
    error = refused({name: {"id": "x"}})
    assert error.param == name
    assert {**REFUSED, **MOVED}[name] in error.message
    parse_responses({"input": "hi", name: None})


@pytest.mark.timeout(30)
def test_ten_thousand_bad_parts_get_a_short_answer_at_once() -> None:
    parts = [{"type": "input_text", "txt": "x" * 10} for _ in range(10_000)]
    error = refused({"input": [{"role": "user", "content": parts}]})
    assert error.param == "input[0].content[0].text"
    assert len(error.message) < 200


def test_long_foreign_values_are_cut() -> None:
    for fields in ({"type": "x" * 10_000}, {"role": "y" * 10_000}):
        assert len(refused({"input": [fields]}).message) < 200
    for fields in (
        {"tools": [{"type": "z" * 10_000}]},
        {"reasoning": {"effort": "e" * 10_000}},
        {"include": ["i" * 9_999]},
    ):
        assert len(refused(fields).message) < 300


# --- anything at all ---------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["function", "message", "user", "assistant", "input_text", "input_image", "auto", "required", "allowed_tools", "x"]
)
KEYS = st.sampled_from(
    [
        "type",
        "role",
        "content",
        "text",
        "name",
        "call_id",
        "arguments",
        "output",
        "summary",
        "tools",
        "id",
        "status",
        "k",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(), inner, max_size=4),
    max_leaves=12,
)
NAMES = sorted({name.partition(".")[0] for name in (*SUPPORTED, *NO_EFFECT)} | {"stop", "seed", "chat_template_kwargs"})
OFTEN = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def taken_or_refused(body: dict[str, Any]) -> None:
    """Also what was taken must be JSON again, in every form that it is given on."""
    try:
        request = parse_responses(body)
        json.dumps(with_ids(request.items, lambda prefix: prefix + "_1"))
        json.dumps(dict(request.echo))
        generate = generate_request(request, request.items)
        json.dumps([dict(generate.body), generate.messages, generate.tools])
    except BadRequest as error:
        assert error.message
        assert len(error.message) < 500


@OFTEN
@given(name=st.sampled_from(NAMES), value=JSON)
def test_any_value_in_any_field_is_taken_or_refused(name: str, value: Any) -> None:
    taken_or_refused({"input": "hi", "tools": [SHELL], name: value})


@OFTEN
@given(kind=st.sampled_from(sorted(KINDS)), fields=st.dictionaries(KEYS, JSON, max_size=6))
def test_any_item_is_taken_or_refused(kind: str, fields: dict[str, Any]) -> None:
    taken_or_refused({"input": [{"role": "user", "content": "hi"}, {**fields, "type": kind}]})


@OFTEN
@given(fields=st.dictionaries(KEYS, JSON, max_size=6), choice=JSON)
def test_any_tool_and_choice_is_taken_or_refused(fields: dict[str, Any], choice: Any) -> None:
    taken_or_refused({"input": "hi", "tools": [{"type": "function", "name": "f", **fields}], "tool_choice": choice})
