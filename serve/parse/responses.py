"""`POST /v1/responses`: the body → a checked `ResponsesRequest`; with the earlier turns → `GenerateRequest`.

It knows no engine and no store: what an engine cannot do is refused by the service, and whoever has the earlier turns
hands them in. Kinds of items are in `serve.parse.items`, kinds of tools in `serve.parse.tools`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from serve.parse.body import convert
from serve.parse.fields import check_metadata, sampling_values, stop_strings, thinking_of
from serve.parse.items import IMAGE_PART, check_items, is_whole, kind_of, with_ids
from serve.parse.response_fields import (
    LOGPROBS,
    MOVED,
    OWN,
    REFUSED,
    SUMMARIES,
    VERBOSITIES,
    ReasoningField,
    ResponsesBody,
    TextField,
    check_flags,
    effort_of,
    wants_logprobs,
)
from serve.parse.tools import choose, echoed_choice, merged, parse_tools
from serve.parse.turns import CALLS, chat_messages, first_image, template_message, upstream_message
from serve.request import BadRequest, GenerateRequest, Json

__all__ = [
    "ResponsesRequest",
    "generate_request",
    "parse_responses",
    "referenced_ids",
    "resolved",
    "with_ids",
]


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A checked request. `items` are the input as it came, a string as one message; `store` None: it does not say.
    `echo` is what the response object repeats. `tools` are those in the field of that name that the model is told of,
    in chat form; `draft` is the generation without its messages and tools."""

    items: tuple[Json, ...]
    previous_response_id: str | None
    model: str | None
    stream: bool
    background: bool
    store: bool | None
    include_logprobs: bool
    echo: Mapping[str, object]
    instructions: str
    tools: tuple[Json, ...]
    tool_choice: str | Json | None
    draft: GenerateRequest


def parse_responses(body: Json) -> ResponsesRequest:
    """Check a request by itself, without the earlier turns.

    Raises: BadRequest: with the path of the field and its limit.
    """
    for name, remedy in {**REFUSED, **MOVED}.items():
        if body.get(name) is not None:
            raise BadRequest(f"{name}: not supported by this API; {remedy}", name)
    fields = convert(body, ResponsesBody)
    items = _items(fields)
    check_flags(fields)
    check_metadata(fields.metadata or {})
    effort = effort_of(fields.reasoning)
    tools = parse_tools(fields.tools or [])
    if fields.previous_response_id is None:  # else the earlier turns may have brought more tools
        choose(fields.tool_choice, merged([tools.told, *_added_tools(items)]))
    logprobs = wants_logprobs(fields)
    return ResponsesRequest(
        items=items,
        previous_response_id=fields.previous_response_id,
        model=fields.model,
        stream=bool(fields.stream),
        background=bool(fields.background),
        store=fields.store,
        include_logprobs=logprobs,
        echo=_echo(fields, tools.echo),
        instructions=fields.instructions or "",
        tools=tools.told,
        tool_choice=fields.tool_choice,
        draft=_draft(body, fields, effort, logprobs),
    )


def generate_request(request: ResponsesRequest, history: Sequence[Json]) -> GenerateRequest:
    """The generation. `history` are the items of the earlier turns, their inputs and outputs, oldest first.

    Raises: BadRequest: a reference to an item that is not there, a tool that cannot be chosen, nothing to answer to.
    """
    earlier = [item for item in history if _usable(item)]
    known = [item.get("id") for item in earlier]
    for i, item in enumerate(request.items):
        if kind_of(item) == "item_reference" and item["id"] not in known:
            raise _unknown_item(i, item)
    items = [item for item in request.items if kind_of(item) != "item_reference"]
    told = merged([*_added_tools(earlier), request.tools, *_added_tools(items)])
    choice, told = choose(request.tool_choice, told)
    messages: list[Json] = [{"role": "system", "content": request.instructions}] if request.instructions else []
    messages += chat_messages([*earlier, *items])
    if not messages:
        raise BadRequest("input: nothing in it is told to the model; send a message", "input")
    body = {**request.draft.body, "messages": [upstream_message(message) for message in messages]}
    if told:
        body["tools"] = list(told)
        if request.tool_choice is not None:
            body["tool_choice"] = _chat_choice(choice)
    else:
        body.pop("parallel_tool_calls", None)
    return replace(
        request.draft,
        body=body,
        messages=tuple(template_message(message) for message in messages),
        tools=told,
        tool_choice=choice,
        unsupported=_unsupported(request.items, earlier),
    )


# --- references to stored items ----------------------------------------------------------------------


def referenced_ids(request: ResponsesRequest) -> tuple[str, ...]:
    """The ids of the stored items that stand in the input by their id only."""
    return tuple(cast("str", item["id"]) for item in request.items if kind_of(item) == "item_reference")


def resolved(request: ResponsesRequest, found: Mapping[str, Json]) -> ResponsesRequest:
    """The request with the items themselves in place of the references to them.

    Raises: BadRequest: one of them is not in `found`.
    """
    items = list(request.items)
    for i, item in enumerate(items):
        if kind_of(item) == "item_reference":
            if item["id"] not in found:
                raise _unknown_item(i, item)
            items[i] = found[cast("str", item["id"])]
    return replace(request, items=tuple(items))


def _unknown_item(i: int, item: Json) -> BadRequest:
    shown = repr(item["id"])[:80]
    return BadRequest(f"input[{i}].id: no item {shown} is kept here; send the item itself", f"input[{i}].id")


def _items(fields: ResponsesBody) -> tuple[Json, ...]:
    given = fields.input
    if isinstance(given, str):
        return ({"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]},)
    if not given and fields.previous_response_id is None:
        what = "required" if given is None else "empty; send at least one item"
        raise BadRequest(f"input: {what}", "input")
    check_items(given or [], "input")
    return tuple(given or [])


# --- what becomes of the fields ----------------------------------------------------------------------


def _echo(fields: ResponsesBody, tools: Sequence[Json]) -> Mapping[str, object]:
    """Of the fields without effect, only values that the API knows: clients check the response object."""
    reasoning, text = fields.reasoning or ReasoningField(), fields.text or TextField()
    echoed_text: Json = {"format": text.format or {"type": "text"}}
    if text.verbosity in VERBOSITIES:
        echoed_text["verbosity"] = text.verbosity
    return {
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": fields.max_tool_calls,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "prompt_cache_key": fields.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort,
            "summary": reasoning.summary if reasoning.summary in SUMMARIES else None,
        },
        "safety_identifier": fields.safety_identifier,
        "service_tier": "default",
        "temperature": fields.temperature,
        "text": echoed_text,
        "tool_choice": echoed_choice(fields.tool_choice),
        "tools": list(tools),
        "top_logprobs": fields.top_logprobs,
        "top_p": fields.top_p,
        "truncation": "disabled",
        "user": fields.user,
    }


def _draft(body: Json, fields: ResponsesBody, effort: str | None, logprobs: bool) -> GenerateRequest:
    response_format = _response_format(fields.text)
    thinking = thinking_of(fields, effort)
    ours: Json = {
        "model": fields.model,
        "max_tokens": fields.max_output_tokens,
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "response_format": response_format,
        "reasoning_effort": effort,
        "parallel_tool_calls": fields.parallel_tool_calls,
        "logprobs": True if logprobs else None,
        "top_logprobs": fields.top_logprobs if logprobs else None,
    }
    passed = {name: value for name, value in body.items() if name not in OWN}
    return GenerateRequest(
        body=passed | {name: value for name, value in ours.items() if value is not None},
        messages=(),
        model=fields.model,
        tools=(),
        tool_choice="none",
        max_tokens=fields.max_output_tokens,
        stop=stop_strings(fields.stop),
        sampling=sampling_values(fields),
        thinking=thinking.on,
        template_kwargs=fields.chat_template_kwargs or {},
        response_format=response_format,
        logprobs=logprobs,
        stream=bool(fields.stream),
        include_usage=True,
        names={
            "messages": "input",
            "max_tokens": "max_output_tokens",
            "response_format": "text.format",
            "response_format.json_schema": "text.format",
            "logprobs": "include" if LOGPROBS in (fields.include or ()) else "top_logprobs",
        },
        effort=thinking.effort,
        thinking_budget=thinking.budget,
    )


def _response_format(text: TextField | None) -> Json | None:
    """`text.format` in chat form, with its faults: the service checks it for all APIs."""
    given = text and text.format
    if not given or given.get("type") == "text":
        return None
    if given.get("type") != "json_schema":
        return {"type": given.get("type")}
    names = ("name", "description", "schema", "strict")
    return {"type": "json_schema", "json_schema": {name: given[name] for name in names if given.get(name) is not None}}


def _chat_choice(choice: str) -> object:
    name = choice.removeprefix("function:")
    return choice if name == choice else {"type": "function", "function": {"name": name}}


def _added_tools(items: Sequence[Json]) -> list[tuple[Json, ...]]:
    added = [item["tools"] for item in items if kind_of(item) == "additional_tools"]
    return [parse_tools(cast("list[Json]", tools)).told for tools in added]


def _usable(item: Json) -> bool:
    """Whether an item of an earlier turn belongs in the prompt: no result can come for a call that was cut."""
    return is_whole(item) if kind_of(item) in CALLS else kind_of(item) != "item_reference"


def _unsupported(items: Sequence[Json], earlier: Sequence[Json]) -> tuple[str, str] | None:
    if (path := first_image(items, "input")) is not None:
        return path, IMAGE_PART
    return ("previous_response_id", IMAGE_PART) if first_image(earlier, "") is not None else None
