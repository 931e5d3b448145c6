"""Responses bodies that are taken: what each field becomes for engines, for the response object, for errors."""

from typing import Any

import pytest
from openai.types.responses import Response
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from openai.types.responses.response_includable import ResponseIncludable
from openai.types.shared import ReasoningEffort

from serve.parse.response_fields import (
    EFFORTS,
    LOGPROBS,
    MOVED,
    NO_EFFECT,
    NO_EFFECT_INCLUDES,
    REFUSED,
    SUPPORTED,
)
from serve.parse.responses import generate_request, parse_responses, referenced_ids, resolved
from serve.request import BadRequest, GenerateRequest
from serve.structured import FormatError, structured_check
from tests.unit.serve.parse.agents import SHELL, text

USER = text("user", "hi")
CALL: dict[str, Any] = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "c", "output": "x"}


def generated(history: list[dict[str, Any]] | None = None, **fields: Any) -> GenerateRequest:
    return generate_request(parse_responses({"input": "hi", **fields}), history or [])


def literals(type_: Any) -> set[str]:
    """The words in a type of the SDK."""
    found = {type_} if isinstance(type_, str) else set[str]()
    for inner in getattr(type_, "__args__", ()):
        found |= literals(inner)
    return found


# --- the tables --------------------------------------------------------------------------------------


def test_every_field_of_the_api_is_in_exactly_one_table() -> None:
    api = set(ResponseCreateParamsNonStreaming.__annotations__) | set(ResponseCreateParamsStreaming.__annotations__)
    ours = [*SUPPORTED, *(name for name in NO_EFFECT if "." not in name), *REFUSED]
    assert len(ours) == len(set(ours))
    assert api - set(ours) == set()
    assert set(ours) - api == {"client_metadata"}  # Codex's own
    assert set(MOVED) & api == set()
    assert {name.partition(".")[0] for name in NO_EFFECT if "." in name} <= SUPPORTED


def test_every_value_of_include_and_effort_is_known() -> None:
    assert {LOGPROBS, *NO_EFFECT_INCLUDES} == literals(ResponseIncludable)
    assert set(EFFORTS) == literals(ReasoningEffort)


NO_EFFECT_VALUES: dict[str, Any] = {
    "access_programs": {"cyber": "standard"},
    "background_options": {"completion_window": "2h"},
    "client_metadata": {"a": "b"},
    "context_management": [{"type": "compaction", "compact_threshold": 1_000}],
    "image": {"context_compression": "auto"},
    "max_tool_calls": 3,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "service_tier": "flex",
    "stream_options": {"include_obfuscation": False},
    "truncation": "auto",
    "user": "u",
}


def test_fields_without_effect_change_nothing_that_an_engine_gets() -> None:
    assert NO_EFFECT_VALUES.keys() == {name for name in NO_EFFECT if "." not in name}
    nested: dict[str, Any] = {
        "reasoning": {"summary": "detailed", "generate_summary": "auto", "context": "auto", "mode": "pro"},
        "text": {"verbosity": "high"},
        "include": sorted(NO_EFFECT_INCLUDES),
    }
    assert generated(**NO_EFFECT_VALUES, **nested) == generated()


# --- the input ---------------------------------------------------------------------------------------


def test_a_string_is_one_user_message() -> None:
    request = parse_responses({"input": "hi"})
    assert request.items == (USER,)
    assert generated().body == {"messages": [{"role": "user", "content": "hi"}]}


def test_an_empty_string_is_a_message_too() -> None:
    assert generated(input="").messages == ({"role": "user", "content": ""},)


def test_items_stay_what_came() -> None:
    items = [{"role": "user", "content": "a", "odd": 1}, {"type": "web_search_call", "id": "ws_1"}]
    assert parse_responses({"input": items}).items == tuple(items)


def test_without_input_the_earlier_turns_are_answered() -> None:
    request = parse_responses({"previous_response_id": "resp_1"})
    assert request.items == ()
    assert generate_request(request, [USER]).messages == ({"role": "user", "content": "hi"},)


def test_instructions_come_first_and_only_those_of_this_turn() -> None:
    made = generated([text("system", "old"), USER], instructions="new", previous_response_id="resp_1")
    assert [(m["role"], m["content"]) for m in made.messages] == [
        ("system", "new"),
        ("system", "old"),
        ("user", "hi"),
        ("user", "hi"),
    ]


@pytest.mark.parametrize("status", ["incomplete", "in_progress"])
def test_a_call_that_was_cut_in_an_earlier_turn_is_left_out_and_cut_text_stays(status: str) -> None:
    cut = text("assistant", "half", status="incomplete")
    made = generated([USER, cut, {**CALL, "arguments": '{"a', "status": status}], previous_response_id="resp_1")
    assert made.messages[1] == {"role": "assistant", "content": "half"}
    whole = generated([USER, cut, {**CALL, "status": "completed"}], previous_response_id="resp_1")
    assert "tool_calls" in whole.messages[1]


def test_a_cut_call_in_the_input_stays_the_text_it_is() -> None:
    made = generated(input=[USER, {**CALL, "arguments": '{"a', "status": "incomplete"}])
    calls: Any = made.messages[1]["tool_calls"]
    assert calls[0]["function"]["arguments"] == '{"a'


# --- references --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", [{"type": "item_reference", "id": "fc_1"}, {"id": "fc_1"}])
def test_a_reference_to_an_item_of_an_earlier_turn_is_in_the_prompt_once(reference: dict[str, Any]) -> None:
    made = generated([USER, CALL], input=[reference, OUTPUT], previous_response_id="resp_1")
    assert [m["role"] for m in made.messages] == ["user", "assistant", "tool"]


def test_a_reference_is_replaced_by_what_was_found() -> None:
    request = parse_responses({"input": [USER, {"type": "item_reference", "id": "fc_1"}, OUTPUT]})
    assert referenced_ids(request) == ("fc_1",)
    made = generate_request(resolved(request, {"fc_1": CALL}), [])
    assert [m["role"] for m in made.messages] == ["user", "assistant", "tool"]
    for attempt in (lambda: resolved(request, {}), lambda: generate_request(request, [])):
        with pytest.raises(BadRequest) as caught:
            attempt()
        assert caught.value.param == "input[1].id"


# --- what engines get --------------------------------------------------------------------------------


def test_fields_become_those_of_chat_completions() -> None:
    made = generated(
        model="m",
        max_output_tokens=7,
        temperature=0.5,
        top_p=0.9,
        reasoning={"effort": "low"},
        top_logprobs=3,
        include=[LOGPROBS],
        text={"format": {"type": "json_object"}},
        tools=[SHELL, {"type": "web_search"}],
        tool_choice={"type": "function", "name": "exec_command"},
        parallel_tool_calls=False,
        metadata={"a": "b"},
        store=True,
    )
    function = {key: value for key, value in SHELL.items() if key != "type"}
    assert made.body == {
        "messages": [{"role": "user", "content": "hi"}],
        "model": "m",
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning_effort": "low",
        "logprobs": True,
        "top_logprobs": 3,
        "response_format": {"type": "json_object"},
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "exec_command"}},
        "parallel_tool_calls": False,
    }
    assert (made.max_tokens, made.tool_choice, made.logprobs) == (7, "function:exec_command", True)
    assert made.sampling == {"temperature": 0.5, "top_p": 0.9}
    assert made.response_format == {"type": "json_object"}


def test_fields_that_the_api_does_not_have_pass_to_engines_that_speak_chat() -> None:
    extra: dict[str, Any] = {
        "seed": 3,
        "top_k": 40,
        "min_p": 0.1,
        "stop": ["END"],
        "chat_template_kwargs": {"enable_thinking": False, "style": "dry"},
        "logit_bias": {"5": 1},
        "provider": {"order": ["x"]},
    }
    made = generated(**extra)
    assert {name: made.body[name] for name in extra} == extra
    assert (made.stop, made.thinking) == (("END",), False)
    assert made.sampling == {"seed": 3, "top_k": 40, "min_p": 0.1}
    assert made.template_kwargs == extra["chat_template_kwargs"]


@pytest.mark.parametrize(("effort", "thinking"), [(None, True), ("minimal", True), ("none", False)])
def test_effort_none_turns_thinking_off(effort: str | None, thinking: bool) -> None:
    assert generated(reasoning={"effort": effort}).thinking is thinking


def test_without_functions_nothing_is_said_of_tools() -> None:
    made = generated(tools=[{"type": "web_search"}], tool_choice="auto", parallel_tool_calls=True)
    assert set(made.body) == {"messages"}
    assert (made.tools, made.tool_choice) == ((), "auto")


def test_top_logprobs_alone_ask_for_logprobs() -> None:
    request = parse_responses({"input": "hi", "top_logprobs": 2})
    assert request.include_logprobs
    assert request.draft.names["logprobs"] == "top_logprobs"
    assert not parse_responses({"input": "hi", "top_logprobs": 0}).include_logprobs


def test_an_image_goes_to_engines_that_speak_chat_and_is_named_to_the_others() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
    message = {"role": "user", "content": [{"type": "input_text", "text": "see"}, image]}
    made = generated(input=[USER, message])
    assert made.unsupported == ("input[1].content[1].type", "input_image")
    bodies: Any = made.body["messages"]
    assert bodies[1]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
    ]
    assert made.messages[1]["content"] == "see"
    assert generated([message], previous_response_id="resp_1").unsupported == ("previous_response_id", "input_image")
    result = {**OUTPUT, "output": [image]}
    assert generated(input=[CALL, result]).unsupported == ("input[1].output[0].type", "input_image")
    assert generated().unsupported is None


# --- structured answers ------------------------------------------------------------------------------


def test_a_schema_is_taken_together_with_functions() -> None:
    format_ = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": None, "description": "d"}
    made = generated(text={"format": format_}, tools=[SHELL])
    assert made.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "description": "d"},
    }
    assert structured_check(made.response_format) is not None
    assert made.tools


@pytest.mark.parametrize(
    ("format_", "param"),
    [
        ({"type": "xml"}, "text.format.type"),
        ({"name": "n"}, "text.format.type"),
        ({"type": "json_schema"}, "text.format.name"),
        ({"type": "json_schema", "name": "n"}, "text.format.schema"),
        ({"type": "json_schema", "name": "n", "schema": {"type": 5}}, "text.format.schema"),
    ],
)
def test_a_format_that_cannot_be_followed_is_named_in_the_apis_words(format_: dict[str, Any], param: str) -> None:
    made = generated(text={"format": format_})
    with pytest.raises(FormatError) as caught:
        structured_check(made.response_format)
    error = BadRequest(str(caught.value), caught.value.param).renamed(made.names)
    assert error.param == param
    assert error.message.startswith(param)


@pytest.mark.parametrize(
    ("param", "renamed"),
    [("messages", "input"), ("max_tokens", "max_output_tokens"), ("tool_choice", "tool_choice"), (None, None)],
)
def test_other_faults_are_named_in_the_apis_words_too(param: str | None, renamed: str | None) -> None:
    error = BadRequest(f"{param}: too much", param, code="c").renamed(generated().names)
    assert (error.param, error.message, error.code) == (renamed, f"{renamed}: too much", "c")


@pytest.mark.parametrize("format_", [None, {}, {"type": "text"}])
def test_plain_text_is_no_format(format_: dict[str, Any] | None) -> None:
    made = generated(text={"format": format_})
    assert made.response_format is None
    assert "response_format" not in made.body


# --- the echo ----------------------------------------------------------------------------------------


def test_the_echo_of_a_bare_request_has_every_default() -> None:
    assert parse_responses({"input": "hi"}).echo == {
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": None,
        "top_p": None,
        "truncation": "disabled",
        "user": None,
    }


def test_the_echo_repeats_what_was_said_and_tells_the_truth_about_the_rest() -> None:
    request = parse_responses(
        {
            "input": "hi",
            "instructions": "be",
            "max_output_tokens": 9,
            "metadata": {"a": "b"},
            "parallel_tool_calls": False,
            "previous_response_id": "resp_1",
            "reasoning": {"effort": "high", "summary": "none"},
            "service_tier": "warp",
            "text": {"format": {"type": "json_object"}, "verbosity": "epic"},
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "truncation": "auto",
            "user": "me",
        }
    )
    echo = request.echo
    assert echo["service_tier"] == "default"
    assert echo["truncation"] == "disabled"
    assert echo["reasoning"] == {"effort": "high", "summary": None}
    assert echo["text"] == {"format": {"type": "json_object"}}
    assert echo["tool_choice"] == {"type": "function", "name": "f"}
    assert echo["tools"] == [
        {"type": "function", "name": "f", "description": None, "parameters": {"type": "object"}, "strict": None}
    ]
    base: dict[str, Any] = {"id": "resp_2", "object": "response", "created_at": 1, "model": "m", "output": []}
    read = Response.model_validate(base | dict(echo))
    assert (read.instructions, read.max_output_tokens, read.user) == ("be", 9, "me")
    assert (read.parallel_tool_calls, read.previous_response_id, read.metadata) == (False, "resp_1", {"a": "b"})


# --- tools of earlier turns --------------------------------------------------------------------------


def test_tools_that_an_earlier_turn_added_can_be_chosen_and_declared_anew() -> None:
    added: dict[str, Any] = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [SHELL, {"type": "function", "name": "old"}],
    }
    wanted: dict[str, Any] = {
        "input": "hi",
        "previous_response_id": "resp_1",
        "tools": [{**SHELL, "description": "Newer."}],
        "tool_choice": {"type": "function", "name": "old"},
    }
    made: Any = generate_request(parse_responses(wanted), [added, USER])
    assert [tool["function"]["name"] for tool in made.tools] == ["exec_command", "old"]
    assert made.tools[0]["function"]["description"] == "Newer."
    assert made.tool_choice == "function:old"
    alone = {key: value for key, value in wanted.items() if key != "previous_response_id"}
    for attempt in (lambda: generate_request(parse_responses(wanted), [USER]), lambda: parse_responses(alone)):
        with pytest.raises(BadRequest) as caught:
            attempt()
        assert caught.value.param == "tool_choice.name"
