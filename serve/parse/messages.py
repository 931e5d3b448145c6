"""`POST /v1/messages` and its `count_tokens`: the body → `GenerateRequest`.

Knows no engine: what an engine cannot do is refused by the service, which knows it. Content blocks are in
`serve.parse.message_blocks`, kinds of tools in `serve.parse.message_tools`.
"""

from __future__ import annotations

from serve.parse.fields import sampling_values, stop_strings, thinking_of
from serve.parse.message_blocks import IMAGE, check_messages, check_system, first_image
from serve.parse.message_fields import (
    OWN,
    MessagesBody,
    budget_of,
    check_body,
    check_max_tokens,
    effort_of,
    format_of,
    thinking_type,
)
from serve.parse.message_tools import choose, one_call_at_most, parse_tools
from serve.parse.message_turns import chat_messages, split_continued
from serve.parse.turns import template_message
from serve.request import BadRequest, GenerateRequest, Json

NO_THINKING = "none"
"""Chat's `reasoning_effort` of an answer without thinking."""


def parse_messages(body: Json) -> GenerateRequest:
    """Check a request.

    Raises: BadRequest: with the path of the field and its limit.
    """
    fields = check_body(body)
    return _request(body, fields, check_max_tokens(fields))


def parse_count(body: Json) -> GenerateRequest:
    """The same for a request whose prompt is only to be counted. Raises: BadRequest."""
    return _request(body, check_body(body), None)


def _request(body: Json, fields: MessagesBody, max_tokens: int | None) -> GenerateRequest:
    tools, silent = parse_tools(fields.tools or [])
    choice, chat_choice = choose(fields.tool_choice, tools, silent)
    one_call = one_call_at_most(fields.tool_choice)
    effort = effort_of(fields.output_config)
    budget = budget_of(fields.thinking)
    if thinking_type(fields.thinking) == "disabled" or budget == 0:
        effort = NO_THINKING
    thinking = thinking_of(fields, effort, budget)
    response_format, format_name = format_of(fields)
    messages, continued = _conversation(fields)
    kwargs = fields.chat_template_kwargs or {}
    if continued:
        _check_continued(choice, response_format, format_name)
        kwargs = {**kwargs, "enable_thinking": False}  # there is no thinking in mid-answer
    ours: Json = {
        "messages": [*messages, {"role": "assistant", "content": continued}] if continued else messages,
        "model": fields.model,
        "max_tokens": max_tokens,
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "top_k": fields.top_k,
        "stop": fields.stop_sequences or None,
        "response_format": response_format,
        "reasoning_effort": effort,
        "tools": list(tools) or None,
        "tool_choice": chat_choice if tools and fields.tool_choice is not None else None,
        "parallel_tool_calls": False if tools and one_call else None,
        "chat_template_kwargs": kwargs or None,
    }
    passed = {name: value for name, value in body.items() if name not in OWN}
    return GenerateRequest(
        body=passed | {name: value for name, value in ours.items() if value is not None},
        messages=tuple(template_message(message) for message in messages),
        model=fields.model,
        tools=tools,
        tool_choice=choice,
        max_tokens=max_tokens,
        stop=_stops(fields),
        sampling=sampling_values(fields),
        thinking=thinking.on,
        template_kwargs=kwargs,
        response_format=response_format,
        logprobs=False,
        stream=bool(fields.stream),
        include_usage=True,
        unsupported=None if (path := first_image(fields.messages or [])) is None else (path, IMAGE),
        names={"response_format": format_name, "response_format.json_schema": format_name},
        at_most=True,
        continued=continued,
        effort=thinking.effort,
        thinking_budget=thinking.budget,
    )


def _conversation(fields: MessagesBody) -> tuple[list[Json], str]:
    """The chat messages, and the text of the assistant that the answer goes on from."""
    if not fields.messages:
        what = "required" if fields.messages is None else "empty; send at least one message"
        raise BadRequest(f"messages: {what}", "messages")
    check_system(fields.system)
    check_messages(fields.messages)
    messages = chat_messages(fields.system, fields.messages)
    if messages and messages[-1].get("tool_calls"):
        last = f"messages[{len(fields.messages) - 1}]"
        raise BadRequest(f"{last}: its tool_use has no tool_result; send one in a user message", last)
    messages, continued = split_continued(messages)
    if not messages:
        raise BadRequest("messages: nothing in it is told to the model; send a user message", "messages")
    return messages, continued


def _check_continued(choice: str, response_format: Json | None, format_name: str) -> None:
    why = "not supported where the last message is the assistant's; end with a user message"
    if choice not in ("auto", "none"):
        raise BadRequest(f"tool_choice: a call that must be made is {why}", "tool_choice")
    if response_format is not None:
        raise BadRequest(f"{format_name}: {why}", format_name)


def _stops(fields: MessagesBody) -> tuple[str, ...]:
    try:
        return stop_strings(fields.stop_sequences)
    except BadRequest as error:
        raise error.renamed({"stop": "stop_sequences"}) from None
