"""The fields of a completions request: which have an effect, which have none, which are refused; their checks.

Every field of the API is in exactly one of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from serve.parse.body import convert
from serve.parse.fields import SamplingFields
from serve.request import BadRequest, Json

SUPPORTED = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "model",
        "n",
        "presence_penalty",
        "prompt",
        "seed",
        "stop",
        "stream",
        "stream_options.include_usage",
        "temperature",
        "top_p",
    }
)
"""The fields of the API that do what they say. A field that no table has is passed on to engines that speak chat."""

NO_EFFECT = frozenset({"stream_options.include_obfuscation", "user"})
"""The fields that are accepted and change nothing here. Source: `CompletionCreateParams` in the openai package 3.57."""

REFUSED: Mapping[str, str] = {
    "best_of": "one answer is made for each choice; send 1 or leave it out",
    "echo": "the prompt is not sent back; leave it out",
    "suffix": "text is only made at the prompt's end; leave it out",
}
"""The fields of the API that are not supported → what to do. Values that ask for nothing are taken."""

MOVED: Mapping[str, str] = {
    "functions": "use /v1/chat/completions",
    "input": "send prompt",
    "messages": "send prompt, or use /v1/chat/completions",
    "response_format": "use /v1/chat/completions",
    "tools": "use /v1/chat/completions",
}
"""Fields of other APIs, refused: their answer would not be what they ask for."""

_NOTHING = {"best_of": (1,), "echo": (False,), "suffix": ("",)}
DEFAULT_MAX_TOKENS = 16
"""Source: OpenAI API reference, `max_tokens` of completions; vLLM and SGLang have the same (2026-11)."""
MAX_CHOICES = 128
MAX_PROMPTS = 1024


class StreamOptions(Struct):
    include_usage: bool | None = None


class CompletionBody(SamplingFields, kw_only=True):
    """The fields that are read. `prompt` has checks of its own."""

    prompt: object = None
    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    n: int | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    logit_bias: Json | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


def check_body(body: Json) -> CompletionBody:
    """Raises: BadRequest: a field that is refused or has the wrong type."""
    for name, remedy in REFUSED.items():
        value = body.get(name)
        if value is not None and not any(value is nothing or value == nothing for nothing in _NOTHING[name]):
            raise BadRequest(f"{name}: not supported; {remedy}", name)
    for name, remedy in MOVED.items():
        if body.get(name):
            raise BadRequest(f"{name}: not supported by this API; {remedy}", name)
    fields = convert(body, CompletionBody)
    if fields.max_tokens == 0:
        raise BadRequest(
            "max_tokens: 0 leaves no room for an answer; send at least 1 (or -1 for no limit)", "max_tokens"
        )
    if fields.n is not None and not 1 <= fields.n <= MAX_CHOICES:
        raise BadRequest(f"n: {fields.n} is not from 1 to {MAX_CHOICES}", "n")
    return fields
