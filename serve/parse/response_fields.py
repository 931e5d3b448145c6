"""The fields of a Responses request: which have an effect, which have none, which are refused; their checks.

Every field of the API is in exactly one of the tables. Items and tools have modules of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from serve.parse.fields import ThinkingFields
from serve.request import BadRequest, Json

SUPPORTED = frozenset(
    {
        "background",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "metadata",
        "model",
        "parallel_tool_calls",
        "previous_response_id",
        "reasoning",
        "store",
        "stream",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
    }
)
"""The fields of the API that do what they say. A field that no table has is passed on to engines that speak chat."""

NO_EFFECT: Mapping[str, str] = {
    "access_programs": "there are none",
    "background_options": "a background response starts at once",
    "client_metadata": "",
    "context_management": "nothing is compacted; a prompt that does not fit is refused",
    "image": "",
    "max_tool_calls": "no tool runs here",
    "prompt_cache_key": "the engine finds what it has cached by the text",
    "prompt_cache_options": "the engine decides what it caches",
    "prompt_cache_retention": "the engine decides what it caches",
    "reasoning.context": "",
    "reasoning.generate_summary": "the reasoning itself is sent, not a summary",
    "reasoning.mode": "",
    "reasoning.summary": "the reasoning itself is sent, not a summary",
    "safety_identifier": "",
    "service_tier": "there is one, 'default'",
    "stream_options": "nothing is obfuscated; usage is always sent",
    "text.verbosity": "",
    "truncation": "nothing is cut off; a prompt that does not fit is refused",
    "user": "",
}
"""The fields that are accepted and change nothing → why, where it needs saying."""

NO_EFFECT_INCLUDES = frozenset(
    {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""Values of `include` that are accepted and change nothing."""

REFUSED: Mapping[str, str] = {
    "conversation": "send previous_response_id, or the items themselves",
    "moderation": "nothing is moderated here; leave it out",
    "prompt": "no prompts are kept here; send instructions and input",
}
"""The fields of the API that are not supported → what to do."""

MOVED: Mapping[str, str] = {
    "function_call": "send tool_choice",
    "functions": "send tools",
    "logprobs": "send include: ['message.output_text.logprobs']",
    "max_completion_tokens": "send max_output_tokens",
    "max_tokens": "send max_output_tokens",
    "messages": "send input",
    "n": "one answer is made; leave it out",
    "reasoning_effort": "send reasoning.effort",
    "response_format": "send text.format",
}
"""Fields of chat completions, refused as the API does: passed on, they would overrule those of this API."""

LOGPROBS = "message.output_text.logprobs"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SUMMARIES = ("auto", "concise", "detailed")
VERBOSITIES = ("low", "medium", "high")

OWN = SUPPORTED | NO_EFFECT.keys() | REFUSED.keys() | MOVED.keys()


class TextField(Struct):
    format: Json | None = None
    verbosity: str | None = None


class ReasoningField(Struct):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesBody(ThinkingFields, kw_only=True):
    """The fields that are read. Those without effect are checked for their type only."""

    input: str | list[Json] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    include: list[str] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    metadata: Json | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    text: TextField | None = None
    reasoning: ReasoningField | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Json | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    stream_options: Json | None = None
    truncation: str | None = None
    user: str | None = None


# --- checks ------------------------------------------------------------------------------------------


def check_flags(fields: ResponsesBody) -> None:
    if fields.background and fields.store is False:
        raise BadRequest("background: needs store: true, as its answer is fetched later", "background")
    if (fields.prompt_cache_options or {}).get("prewarm"):
        name = "prompt_cache_options.prewarm"
        raise BadRequest(f"{name}: a request without an answer is not supported; leave it out", name)


def effort_of(reasoning: ReasoningField | None) -> str | None:
    effort = reasoning and reasoning.effort
    if effort is None or effort in EFFORTS:
        return effort
    raise BadRequest(
        f"reasoning.effort: {repr(effort)[:80]} is not one of {', '.join(EFFORTS)}",
        "reasoning.effort",
    )


def wants_logprobs(fields: ResponsesBody) -> bool:
    for i, name in enumerate(fields.include or ()):
        if name != LOGPROBS and name not in NO_EFFECT_INCLUDES:
            raise BadRequest(f"include[{i}]: {repr(name)[:80]} is not known", f"include[{i}]")
    return LOGPROBS in (fields.include or ()) or bool(fields.top_logprobs)
