"""What real agents send is taken, says the right thing to both kinds of engines, and is echoed in the API's forms."""

from typing import Any

import pytest
from openai.types.responses import Response, ResponseItem
from pydantic import TypeAdapter

from serve.parse.responses import generate_request, parse_responses, with_ids
from tests.unit.serve.parse.agents import AGENTS_SECOND, ALL, CODEX_FIRST, CODEX_LITE, CODEX_SECOND, OPENCODE, text

ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)


def messages_of(body: dict[str, Any]) -> list[Any]:
    return list(generate_request(parse_responses(body), []).messages)


@pytest.mark.parametrize("body", ALL.values(), ids=ALL)
def test_an_agents_request_is_echoed_as_the_sdk_reads_it(body: dict[str, Any]) -> None:
    request = parse_responses(body)
    response: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "output": [],
        **request.echo,
    }
    read = Response.model_validate(response)
    assert [tool.type for tool in read.tools] == [tool["type"] for tool in body["tools"]]
    for item in with_ids(request.items, lambda prefix: f"{prefix}_new"):
        ITEM.validate_python(item)


def test_codex_first_turn_tells_instructions_then_all_messages() -> None:
    generate = generate_request(parse_responses(CODEX_FIRST), [])
    assert [(m["role"], m["content"]) for m in generate.messages] == [
        ("system", "You are a coding agent."),
        ("developer", "<permissions>ask first</permissions>"),
        ("user", "# AGENTS.md\n<environment_context/>"),
        ("user", "list the files"),
    ]
    assert [tool["function"]["name"] for tool in generate.tools] == ["exec_command"]  # type: ignore[index] - JSON
    assert set(generate.body) == {
        "messages",
        "model",
        "parallel_tool_calls",
        "reasoning_effort",
        "tool_choice",
        "tools",
    }
    assert generate.stream
    assert parse_responses(CODEX_FIRST).store is False


def test_codex_second_turn_merges_each_assistant_turn_into_one_message() -> None:
    told = messages_of(CODEX_SECOND)[4:]
    assert [m["role"] for m in told] == [
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    first, patch, shell = told[0], told[3], told[5]
    assert first["reasoning_content"] == "They want a list."
    assert first["content"] == "I look."
    assert [call["function"]["arguments"] for call in first["tool_calls"]] == [{"command": "ls"}, {"command": "pwd"}]
    assert told[2] == {"role": "tool", "content": "/tmp", "tool_call_id": "call_2"}
    assert patch["tool_calls"][0]["function"] == {"name": "apply_patch", "arguments": {"input": "*** x"}}
    assert shell["tool_calls"][0]["function"]["name"] == "local_shell"
    assert told[6] == {"role": "tool", "content": "a.py", "tool_call_id": "call_4"}


def test_codex_tools_in_an_item_are_told() -> None:
    generate = generate_request(parse_responses(CODEX_LITE), [])
    assert [tool["function"]["name"] for tool in generate.tools] == ["exec_command"]  # type: ignore[index] - JSON
    assert generate.tool_choice == "auto"
    assert [m["role"] for m in generate.messages] == ["developer", "user"]


def test_agents_sdk_second_turn_has_schema_tools_and_logprobs() -> None:
    generate = generate_request(parse_responses(AGENTS_SECOND), [])
    assert generate.body["response_format"] == {
        "type": "json_schema",
        "json_schema": {
            "name": "final_output",
            "schema": AGENTS_SECOND["text"]["format"]["schema"],
            "strict": True,
        },
    }
    assert (generate.body["logprobs"], generate.body["top_logprobs"]) == (True, 2)
    assert generate.body["temperature"] == 0.1
    assert generate.messages[2] == {
        "role": "assistant",
        "content": "let me see",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
        ],
    }
    assert parse_responses(AGENTS_SECOND).include_logprobs


def test_opencode_history_without_ids_or_status_is_taken() -> None:
    assert [m["role"] for m in messages_of(OPENCODE)] == ["developer", "user", "assistant", "tool", "user"]
    assert generate_request(parse_responses(OPENCODE), []).max_tokens == 32_000


def test_our_own_output_sent_back_verbatim_is_one_turn() -> None:
    output: list[dict[str, Any]] = [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "so"}],
            "status": "completed",
        },
        text("assistant", "half", id="msg_1", status="incomplete"),
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "add",
            "arguments": '{"a": 1',
            "status": "incomplete",
        },
    ]
    body: dict[str, Any] = {"input": [text("user", "hi"), *output, text("user", "go on")]}
    told = messages_of(body)
    assert told[1] == {
        "role": "assistant",
        "content": "half",
        "reasoning_content": "so",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1'}}],
    }
    listed = with_ids(parse_responses(body).items, lambda prefix: f"{prefix}_new")
    assert [item["id"] for item in listed] == ["msg_new", "rs_1", "msg_1", "fc_1", "msg_new"]
    assert [item["status"] for item in listed[1:4]] == ["completed", "incomplete", "incomplete"]
