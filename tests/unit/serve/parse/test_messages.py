"""A Messages request → the generation: what each field becomes, for engines that speak chat and for those of tokens."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import beta, message_count_tokens_params, message_create_params

from serve.parse.message_fields import MOVED, NO_EFFECT, OWN, REFUSED, SUPPORTED
from serve.parse.messages import parse_count, parse_messages
from serve.request import BadRequest
from tests.unit.serve.parse.claude_code import ALL, COUNT, FIRST, SECOND, TITLE

USER: list[Any] = [{"role": "user", "content": "hi"}]
ADD: dict[str, Any] = {"name": "add", "input_schema": {"type": "object"}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 10, "messages": USER, **fields}


def refused(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as raised:
        parse_messages(body(**fields))
    assert raised.value.param is not None
    assert raised.value.message.startswith(raised.value.param)
    return raised.value


def test_every_field_of_the_api_is_in_exactly_one_table() -> None:
    params = (
        message_create_params.MessageCreateParamsBase,
        message_create_params.MessageCreateParamsStreaming,
        message_count_tokens_params.MessageCountTokensParams,
        beta.message_create_params.MessageCreateParamsBase,
        beta.message_count_tokens_params.MessageCountTokensParams,
    )
    fields = {name for one in params for name in one.__annotations__}
    assert fields <= OWN
    tops = [{name.partition(".")[0] for name in table} for table in (SUPPORTED, NO_EFFECT, REFUSED, MOVED)]
    assert not set(SUPPORTED) & set(NO_EFFECT)
    for i, one in enumerate(tops):
        for other in tops[i + 1 :]:
            assert one & other <= {"output_config", "thinking"}


def test_a_bare_request_is_a_chat_with_a_limit() -> None:
    made = parse_messages(body())
    assert made.body == {"model": "m", "max_tokens": 10, "messages": USER}
    assert (made.max_tokens, made.at_most, made.stream, made.thinking) == (10, True, False, True)
    assert (made.tool_choice, made.tools, made.stop) == ("none", (), ())
    assert made.form == "pieces"


def test_the_fields_become_those_of_chat() -> None:
    schema = {"type": "object"}
    made = parse_messages(
        body(
            stop_sequences=["END"],
            top_k=3,
            top_p=0.5,
            temperature=1,
            stream=True,
            tools=[ADD],
            tool_choice={"type": "tool", "name": "add", "disable_parallel_tool_use": True},
            output_config={"effort": "max", "format": {"type": "json_schema", "schema": schema}},
            seed=4,
            metadata={"user_id": "u"},
            service_tier="auto",
        )
    )
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    assert made.body == {
        "model": "m",
        "messages": USER,
        "max_tokens": 10,
        "stop": ["END"],
        "top_k": 3,
        "top_p": 0.5,
        "temperature": 1,
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
        "reasoning_effort": "max",
        "response_format": form,
        "seed": 4,
    }
    assert made.sampling == {"top_k": 3, "top_p": 0.5, "temperature": 1, "seed": 4}
    assert (made.tool_choice, made.stop, made.stream) == ("function:add", ("END",), True)
    assert made.response_format == form


def test_thinking_is_on_unless_it_is_disabled() -> None:
    for kind in ("enabled", "adaptive", "between_tools"):
        made = parse_messages(body(thinking={"type": kind, "budget_tokens": 1024}))
        assert made.thinking
        assert "reasoning_effort" not in made.body
        assert made.thinking_budget == 1024
    for turned_off in ({"type": "disabled", "budget_tokens": 1024}, {"type": "enabled", "budget_tokens": 0}):
        off = parse_messages(body(thinking=turned_off, output_config={"effort": "high"}))
        assert (off.thinking, off.effort, off.thinking_budget) == (False, None, None)
        assert off.body["reasoning_effort"] == "none"


def test_a_budget_may_be_small_and_larger_than_the_limit_and_is_its_own_fields_first() -> None:
    for budget in (1, 1023, 1_000_000):
        assert parse_messages(body(thinking={"type": "enabled", "budget_tokens": budget})).thinking_budget == budget
    both = body(thinking={"type": "enabled", "budget_tokens": 5}, reasoning_budget_tokens=9)
    assert parse_messages(both).thinking_budget == 5
    assert parse_messages(body(reasoning_budget_tokens=9)).thinking_budget == 9
    made = parse_messages(body(output_config={"effort": "high"}))
    assert (made.effort, made.thinking_budget) == ("high", None)


def test_a_count_needs_no_limit() -> None:
    assert parse_count({"messages": USER}).max_tokens is None
    assert parse_count(COUNT).tools
    with pytest.raises(BadRequest, match="max_tokens: required"):
        parse_messages({"messages": USER})


def test_an_answer_goes_on_from_a_last_message_of_the_assistant() -> None:
    last = {"role": "assistant", "content": [{"type": "text", "text": "The"}]}
    made = parse_messages(body(messages=[*USER, last]))
    assert made.continued == "The"
    assert made.messages == ({"role": "user", "content": "hi"},)
    assert made.body["messages"] == [*USER, {"role": "assistant", "content": "The"}]
    assert made.body["chat_template_kwargs"] == {"enable_thinking": False}
    empty = parse_messages(body(messages=[*USER, {"role": "assistant", "content": ""}]))
    assert (empty.continued, empty.body["messages"]) == ("", USER)
    error = refused(messages=[*USER, last], output_format={"type": "json_schema", "schema": {}})
    assert error.param == "output_format"
    assert refused(messages=[*USER, last], tools=[ADD], tool_choice={"type": "any"}).param == "tool_choice"
    call: dict[str, Any] = {"type": "tool_use", "id": "c", "name": "add", "input": {}}
    assert refused(messages=[*USER, {"role": "assistant", "content": [call]}]).param == "messages[1]"


@pytest.mark.parametrize("name", [*REFUSED, *MOVED])
def test_what_is_refused_is_named_with_its_remedy(name: str) -> None:
    error = refused(**{name: {"type": "x"}})
    assert error.param == name
    assert {**REFUSED, **MOVED}[name] in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": ""}]}, "messages"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"thinking": {"budget_tokens": 5}}, "thinking.type"),
        ({"thinking": {"type": "some"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": "5"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2.5}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2**31}}, "thinking.budget_tokens"),
        ({"reasoning_budget_tokens": -2}, "reasoning_budget_tokens"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": "json"}}, "output_config.format"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_format": {"type": "xml"}}, "output_format.type"),
        ({"metadata": "x"}, "metadata"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


@pytest.mark.parametrize("name", ALL)
def test_claude_codes_requests_are_taken_and_nothing_of_theirs_reaches_an_upstream(name: str) -> None:
    made = parse_messages(ALL[name])
    allowed = {"model", "messages", "max_tokens", "tools", "reasoning_effort", "temperature", "response_format"}
    assert set(made.body) <= allowed
    assert "billing" not in str(made.body)


def test_claude_codes_conversation_is_told_in_its_order() -> None:
    made = parse_messages(SECOND)
    roles = [message["role"] for message in made.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user", "system", "assistant", "user"]
    assistant = made.messages[2]
    assert (assistant["content"], assistant["reasoning_content"]) == ("I read both.", "They want both.")
    calls: Any = assistant["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == [{"file_path": "a.py"}, {"file_path": "b.py"}]
    assert made.messages[4]["content"] == "<tool_use_error>File does not exist.</tool_use_error>"
    names: list[Any] = [tool["function"] for tool in made.tools]
    assert [function["name"] for function in names] == ["Read", "Bash", "mcp__tracker__list"]
    assert parse_messages(TITLE).response_format is not None
    assert parse_messages(FIRST).thinking
