"""Checks that several APIs share: sampling, stop strings, thinking, function tools. Knows no API's own shape."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, cast

from msgspec import Meta, Struct

from engine.api import SamplingValue
from serve.parse.body import too_deep
from serve.request import BadRequest, Json

MAX_STOPS = 16
MAX_STOP_CHARS = 1_000
MAX_TOOLS = 512
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")

_Probability = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]


class SamplingFields(Struct, kw_only=True):
    """How to choose tokens and when to stop, in the names that every API here takes."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: _Probability | None = None
    min_p: _Probability | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    penalty_last_n: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    chat_template_kwargs: Json | None = None


SAMPLING_KEYS: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "penalty_freq",
    "presence_penalty": "penalty_present",
    "repeat_penalty": "penalty_repeat",
    "repetition_penalty": "penalty_repeat",
    "penalty_last_n": "penalty_last_n",
    "seed": "seed",
}
"""Request field → the pipe protocol's key."""


def sampling_values(fields: SamplingFields) -> Mapping[str, SamplingValue]:
    """The values that were given, by the pipe protocol's keys."""
    found: dict[str, SamplingValue] = {}
    for name, key in SAMPLING_KEYS.items():
        value = cast("SamplingValue | None", getattr(fields, name))
        if value is not None:
            found[key] = value
    return found


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """Raises: BadRequest: too many, too long or empty."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"stop: {len(stops)} strings exceed the limit of {MAX_STOPS}", "stop")
    for i, text in enumerate(stops):
        where = "stop" if isinstance(stop, str) else f"stop[{i}]"
        if not text:
            raise BadRequest(f"{where}: empty", where)
        if len(text) > MAX_STOP_CHARS:
            raise BadRequest(f"{where}: {len(text)} characters exceed the limit of {MAX_STOP_CHARS}", where)
    return stops


# --- thinking ----------------------------------------------------------------------------------------

MAX_BUDGET = 2**31 - 1
_Budget = Annotated[int, Meta(ge=-1, le=MAX_BUDGET)]


class ThinkingFields(SamplingFields, kw_only=True):
    """The names for the most tokens of thinking that local servers have; -1 is no limit, 0 no thinking.

    Source: Strata and llama.cpp (build 11549 takes the first two, -1 included), vLLM (the last one, docs
    features/reasoning_outputs), 2026-11.
    """

    reasoning_budget_tokens: _Budget | None = None
    thinking_budget_tokens: _Budget | None = None
    thinking_token_budget: _Budget | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a request says of the thinking: whether there is to be any, how hard it is to be (for the template), and how
    many tokens it may have (None: any number)."""

    on: bool
    effort: str | None = None
    budget: int | None = None


def thinking_of(fields: ThinkingFields, effort: str | None, budget: int | None = None) -> Thinking:
    """On, unless the template's own switch, the effort "none" or a budget of 0 turns it off. `budget` is what the API
    itself has a field for, and comes first.

    Raises: BadRequest: the switch is no boolean.
    """
    asked = (fields.chat_template_kwargs or {}).get("enable_thinking")
    if asked is not None and not isinstance(asked, bool):
        raise BadRequest("chat_template_kwargs.enable_thinking: expected bool", "chat_template_kwargs.enable_thinking")
    names = (fields.reasoning_budget_tokens, fields.thinking_budget_tokens, fields.thinking_token_budget)
    most = next((value for value in (budget, *names) if value is not None), -1)
    if most == 0 or not (effort != "none" if asked is None else asked):
        return Thinking(False)
    return Thinking(True, None if effort == "none" else effort, None if most < 0 else most)


# --- functions ---------------------------------------------------------------------------------------


def check_count(tools: list[Json], where: str) -> None:
    if len(tools) > MAX_TOOLS:
        raise BadRequest(f"{where}: {len(tools)} exceed the limit of {MAX_TOOLS}", where)


def check_function(function: Json, where: str, seen: set[str]) -> None:
    """A function's name and parameters. `seen` are the names before it, to which its own is added.

    Raises: BadRequest: with the path under `where`.
    """
    name = function.get("name")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise BadRequest(
            f"{where}.name: expected 1 to 128 letters, digits, '_', '-', '.' or ':'",
            f"{where}.name",
        )
    if name in seen:
        raise BadRequest(f"{where}.name: {name[:80]!r} is declared twice", f"{where}.name")
    seen.add(name)
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise BadRequest(f"{where}.parameters: expected object", f"{where}.parameters")


def tool_name(tool: Json) -> str:
    """The name of a checked tool in chat form."""
    return cast("str", cast("Json", tool["function"])["name"])


def parsed_arguments(arguments: str) -> Json | str:
    """A call's arguments as an object; the text itself where they are none: a cut call stays what it is."""
    try:
        parsed: object = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(parsed, dict) or too_deep(cast("Json", parsed)) is not None:
        return arguments
    return cast("Json", parsed)


MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_CHARS = 512


def check_metadata(metadata: Json) -> None:
    if len(metadata) > MAX_METADATA:
        raise BadRequest(f"metadata: {len(metadata)} pairs exceed the limit of {MAX_METADATA}", "metadata")
    for key, value in metadata.items():
        where = f"metadata.{key[:MAX_METADATA_KEY_CHARS]}"
        if len(key) > MAX_METADATA_KEY_CHARS:
            raise BadRequest(
                f"metadata: a key of {len(key)} characters exceeds the limit of {MAX_METADATA_KEY_CHARS}", "metadata"
            )
        if not isinstance(value, str):
            raise BadRequest(f"{where}: expected str", where)
        if len(value) > MAX_METADATA_CHARS:
            raise BadRequest(f"{where}: {len(value)} characters exceed the limit of {MAX_METADATA_CHARS}", where)
