"""The fields of a Messages request: which have an effect, which have none, which are refused; their checks.

Every field of the API is in exactly one of the tables. Content blocks and tools have modules of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast

from msgspec import Meta

from serve.parse.body import convert
from serve.parse.fields import MAX_BUDGET, ThinkingFields
from serve.request import BadRequest, Json

SUPPORTED = frozenset(
    {
        "max_tokens",
        "messages",
        "model",
        "output_config.effort",
        "output_config.format",
        "output_format",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking.budget_tokens",
        "thinking.type",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    }
)
"""The fields of the API that do what they say. A field that no table has is passed on to engines that speak chat."""

NO_EFFECT: Mapping[str, str] = {
    "betas": "",
    "billing_policy": "",
    "cache_control": "the engine decides what it caches",
    "container": "no tool runs here",
    "context_management": "nothing is cleared or compacted; a prompt that does not fit is refused",
    "diagnostics": "",
    "fallback_credit_token": "",
    "fallbacks": "",
    "inference_geo": "",
    "mcp_servers": "no tool runs here",
    "metadata": "",
    "output_config.task_budget": "",
    "service_tier": "there is one",
    "speed": "there is one",
    "thinking.display": "the thinking is sent",
    "user_profile_id": "",
    "workspace_id": "",
}
"""The fields that are accepted and change nothing → why, where it needs saying. Source: `MessageCreateParams` and its
beta form in the anthropic package 2.14."""

REFUSED: Mapping[str, str] = {
    "compaction": "no summary is made here; leave it out",
    "thread": "no conversations are kept here; send all messages",
}
"""The fields of the API that are not supported → what to do."""

MOVED: Mapping[str, str] = {
    "function_call": "send tool_choice",
    "functions": "send tools",
    "input": "send messages",
    "max_completion_tokens": "send max_tokens",
    "max_output_tokens": "send max_tokens",
    "n": "one answer is made; leave it out",
    "parallel_tool_calls": "send tool_choice.disable_parallel_tool_use",
    "prompt": "send messages",
    "reasoning_effort": "send output_config.effort",
    "response_format": "send output_config.format",
    "stop": "send stop_sequences",
}
"""Fields of other APIs, refused: passed on, they would overrule those of this one."""

EFFORTS = ("low", "medium", "high", "xhigh", "max")
THINKING = ("enabled", "adaptive", "between_tools", "disabled")

_IN_OBJECTS = {"output_config", "thinking"}
OWN = {name for name in (*SUPPORTED, *NO_EFFECT) if "." not in name} | {*REFUSED, *MOVED} | _IN_OBJECTS


class MessagesBody(ThinkingFields, kw_only=True):
    """The fields that are read. Those without effect are checked for their type only."""

    messages: list[Json] | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    model: str | None = None
    system: str | list[Json] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    thinking: Json | None = None
    tools: list[Json] | None = None
    tool_choice: Json | None = None
    output_config: Json | None = None
    output_format: Json | None = None
    metadata: Json | None = None
    context_management: Json | None = None
    service_tier: str | None = None


def check_body(body: Json) -> MessagesBody:
    """Raises: BadRequest: a field that is refused or has the wrong type."""
    for name, remedy in {**REFUSED, **MOVED}.items():
        if body.get(name) is not None:
            raise BadRequest(f"{name}: not supported by this API; {remedy}", name)
    return convert(body, MessagesBody)


def check_max_tokens(fields: MessagesBody) -> int:
    if fields.max_tokens is None:
        raise BadRequest("max_tokens: required", "max_tokens")
    if fields.max_tokens == 0:
        raise BadRequest("max_tokens: 0 asks for no answer, which is not supported; send at least 1", "max_tokens")
    return fields.max_tokens


def thinking_type(thinking: Json | None) -> str | None:
    """One of `THINKING`, or None where the request does not say."""
    if thinking is None:
        return None
    kind = thinking.get("type")
    if kind not in THINKING:
        shown = "required" if kind is None else f"{repr(kind)[:80]} is not one of {', '.join(THINKING)}"
        raise BadRequest(f"thinking.type: {shown}", "thinking.type")
    return cast("str", kind)


def budget_of(thinking: Json | None) -> int | None:
    """`thinking.budget_tokens`. Anthropic takes 1024 up to `max_tokens`; a small model is well served by less, and more
    is no mistake either: the answer ends at `max_tokens` in any case."""
    budget = (thinking or {}).get("budget_tokens")
    if budget is None:
        return None
    if not isinstance(budget, int) or isinstance(budget, bool) or not 0 <= budget <= MAX_BUDGET:
        name = "thinking.budget_tokens"
        raise BadRequest(f"{name}: {repr(budget)[:80]} is not a whole number from 0 to {MAX_BUDGET}", name)
    return budget


def effort_of(config: Json | None) -> str | None:
    effort = (config or {}).get("effort")
    if effort is None or effort in EFFORTS:
        return cast("str | None", effort)
    name = "output_config.effort"
    raise BadRequest(f"{name}: {repr(effort)[:80]} is not one of {', '.join(EFFORTS)}", name)


def format_of(fields: MessagesBody) -> tuple[Json | None, str]:
    """The format of the answer in chat form, with the faults of its schema (the service checks it), and its path."""
    given, name = (fields.output_config or {}).get("format"), "output_config.format"
    if given is None:
        given, name = fields.output_format, "output_format"
    if given is None:
        return None, name
    if not isinstance(given, dict):
        raise BadRequest(f"{name}: expected object", name)
    form = cast("Json", given)
    if form.get("type") != "json_schema":
        raise BadRequest(f"{name}.type: {repr(form.get('type'))[:80]} is not 'json_schema'", f"{name}.type")
    schema: Json = {"name": "answer", "strict": True}
    if form.get("schema") is not None:
        schema["schema"] = form["schema"]
    return {"type": "json_schema", "json_schema": schema}, name
