"""Chat bodies: what is accepted means the right thing; what is wrong is a 400 that names the field and is small."""

import json
from typing import Any

import pytest

from serve.parse.body import json_object
from serve.parse.chat import parse_chat, unsupported_part
from serve.request import BadRequest

USER = {"role": "user", "content": "hi"}


def tool(name: object = "add", **function: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}, **function}}


def refused(**fields: Any) -> BadRequest:
    body = {"messages": [USER], **fields}
    with pytest.raises(BadRequest) as caught:
        parse_chat(json_object(json.dumps(body).encode()))
    return caught.value


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [USER, {"content": "x"}]}, "messages[1].role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function.name"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": 5}]}, "messages[0].tool_call_id"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": True}, "stream_options"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 2, "store": True}, "n"),
    ({"n": 2, "response_format": {"type": "json_object"}}, "n"),
    ({"n": 0}, "n"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"seed": "x"}, "seed"),
    ({"seed": 2**80}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a", 5]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": "x" * 1_001}, "stop"),
    ({"tools": {}}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{"type": "web"}]}, "tools[0]"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [tool("has space")]}, "tools[0].function.name"),
    ({"tools": [tool(None)]}, "tools[0].function.name"),
    ({"tools": [tool(), tool()]}, "tools[1].function.name"),
    ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
    ({"tool_choice": "maybe"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
    ({"response_format": "json"}, "response_format"),
    ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
    ({"logprobs": 1}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 1}, "top_logprobs"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_FIELDS, ids=lambda value: str(value)[:60])
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.status == 400
    assert error.param is not None
    assert error.param.startswith(param)
    assert error.param.split("[")[0].split(".")[0] in error.message
    assert len(error.message) < 400


BAD_BODIES: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b"[]", None),
    (b"5", None),
    (b'"x"', None),
    (b"true", None),
    (b"null", None),
    (b"{", None),
    (b'{"a": NaN}', "a"),
    (b'{"temperature": 1e999}', "temperature"),
    (b"\xff\xfe", None),
    (b'{"a": "\xff"}', None),
    (b'{"messages": [{"role": "user", "content": "\\ud83d"}]}', "messages[0].content"),
    (b'{"x": {"y": ["ok", "\\udc00 tail"]}}', "x.y[1]"),
    (b"[" * 200_000, None),
    (b'{"a":' * 50_000, None),
    (b'{"tools": ' + b"[" * 150 + b"]" * 150 + b"}", "tools"),
    (b'{"a": "tab\there"}', None),
]


@pytest.mark.parametrize(("body", "param"), BAD_BODIES, ids=lambda value: repr(value)[:40])
def test_a_body_that_is_not_one_good_object_is_refused(body: bytes, param: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        json_object(body)
    assert len(caught.value.message) < 400
    if param is not None:
        assert caught.value.param == param


def test_ten_thousand_bad_parts_get_a_short_answer() -> None:
    error = refused(messages=[{"role": "user", "content": [{"kind": i} for i in range(10_000)]}])
    assert len(error.message) < 400


def test_whole_surrogate_pairs_and_nul_are_text() -> None:
    body = json_object(b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00 \\u0000"}]}')
    assert parse_chat(body).messages[0]["content"] == "😀 \x00"


def test_history_of_an_assistant_may_lack_content() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    history: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": ""},
        {"role": "assistant"},
        {"role": "assistant", "content": "", "reasoning": "thought"},
        {"role": "assistant", "content": [], "reasoning_content": "thought too"},
        {"role": "system", "content": "late"},
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    made = parse_chat({"messages": history}).messages
    assert made[1]["tool_calls"] == [
        {"type": "function", "id": "call_1", "function": {"name": "add", "arguments": {"a": 1}}}
    ]
    assert made[2] == {"role": "tool", "content": "", "tool_call_id": "call_1"}
    assert made[4]["reasoning_content"] == "thought"
    assert made[5]["reasoning_content"] == "thought too"
    assert made[7]["content"] == "ab"


def test_cut_arguments_in_the_history_stay_the_text_they_are() -> None:
    call = {"function": {"name": "add", "arguments": '{"a": 1'}}
    made = parse_chat({"messages": [USER, {"role": "assistant", "tool_calls": [call]}]}).messages
    assert made[1]["tool_calls"] == [{"type": "function", "function": {"name": "add", "arguments": '{"a": 1'}}]


def test_limits_and_sampling_reach_the_request() -> None:
    request = parse_chat(
        {
            "messages": [USER],
            "max_tokens": 5,
            "max_completion_tokens": 7,
            "temperature": 0.5,
            "frequency_penalty": 1,
            "repetition_penalty": 1.1,
            "seed": 3,
            "stop": "END",
            "unknown": {"kept": True},
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    assert request.max_tokens == 7
    assert request.sampling == {"temperature": 0.5, "penalty_freq": 1, "penalty_repeat": 1.1, "seed": 3}
    assert request.stop == ("END",)
    assert request.body["unknown"] == {"kept": True}
    assert (request.stream, request.include_usage) == (True, True)


@pytest.mark.parametrize("value", [None, -1])
def test_no_limit_is_no_limit(value: int | None) -> None:
    assert parse_chat({"messages": [USER], "max_tokens": value}).max_tokens is None


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, True),
    ],
)
def test_thinking_is_on_unless_turned_off(fields: dict[str, Any], thinking: bool) -> None:
    assert parse_chat({"messages": [USER], **fields}).thinking is thinking


BUDGETS = ("reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget")


@pytest.mark.parametrize("name", BUDGETS)
def test_a_budget_of_thinking_has_three_names(name: str) -> None:
    made = parse_chat({"messages": [USER], name: 7})
    assert (made.thinking, made.thinking_budget, made.body[name]) == (True, 7, 7)
    assert parse_chat({"messages": [USER], name: -1}).thinking_budget is None
    assert parse_chat({"messages": [USER], name: None}).thinking_budget is None


@pytest.mark.parametrize(
    ("fields", "thinking", "effort", "budget"),
    [
        ({"reasoning_budget_tokens": 0}, False, None, None),
        ({"reasoning_budget_tokens": 0, "chat_template_kwargs": {"enable_thinking": True}}, False, None, None),
        ({"reasoning_budget_tokens": 9, "reasoning_effort": "none"}, False, None, None),
        ({"reasoning_budget_tokens": 9, "chat_template_kwargs": {"enable_thinking": False}}, False, None, None),
        ({"reasoning_budget_tokens": 9, "reasoning_effort": "low"}, True, "low", 9),
        ({"reasoning_budget_tokens": -1, "thinking_token_budget": 9}, True, None, None),
        ({"reasoning_effort": "xhigh"}, True, "xhigh", None),
    ],
)
def test_effort_and_budget_together(
    fields: dict[str, Any], thinking: bool, effort: str | None, budget: int | None
) -> None:
    made = parse_chat({"messages": [USER], **fields})
    assert (made.thinking, made.effort, made.thinking_budget) == (thinking, effort, budget)


@pytest.mark.parametrize("name", BUDGETS)
@pytest.mark.parametrize(
    ("value", "says"),
    [(-2, ">= -1"), (2**31, "<= 2147483647"), (2.5, "got float"), ("7", "got str"), (True, "got bool"), ([], "got")],
)
def test_a_budget_that_is_no_count_is_refused(name: str, value: object, says: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse_chat({"messages": [USER], name: value})
    assert raised.value.param == name
    assert raised.value.message.startswith(f"{name}: ")
    assert says in raised.value.message


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "add"}}, "function:add"),
    ],
)
def test_tool_choice(choice: object, expected: str) -> None:
    assert parse_chat({"messages": [USER], "tools": [tool()], "tool_choice": choice}).tool_choice == expected


def test_the_first_part_that_is_not_text_is_found() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    body: dict[str, object] = {"messages": [{"role": "user", "content": parts}]}
    parse_chat(body)
    assert unsupported_part(body) == ("messages[0].content[1].type", "image_url")
    assert unsupported_part({"messages": [USER]}) is None
