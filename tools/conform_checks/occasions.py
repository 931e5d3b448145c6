"""What a server is asked, in the words of each API: the occasions on which the checks see what they judge.

It sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tools.probe.asking import LONG_PROMPT, SHORT_PROMPT, TOOL_PROMPT, ToolChoice, asking
from tools.probe.target import Api
from tools.probe.values import Json

Name = Literal["short", "limit", "call", "cut call", "cut json", "flow", "long", "long call"]
CALL_PROMPT = "Save the word hello to a file. Call write_file with path a.txt and content hello."
JSON_PROMPT = "Write a JSON object with the member numbers: the numbers from 1 to 300 as strings, in order."
_SCHEMA: Json = {
    "type": "object",
    "properties": {"numbers": {"type": "array", "items": {"type": "string"}, "minItems": 300}},
    "required": ["numbers"],
    "additionalProperties": False,
}
LIMIT = 16
"""The least that the Responses API takes."""


@dataclass(frozen=True, slots=True)
class Occasion:
    prompt: str
    max_tokens: int
    tool: ToolChoice | None = None
    json: bool = False


OCCASIONS: Mapping[Name, Occasion] = {
    "short": Occasion(SHORT_PROMPT, 512),
    "limit": Occasion(LONG_PROMPT, LIMIT),
    "call": Occasion(CALL_PROMPT, 512, tool="required"),
    "cut call": Occasion(TOOL_PROMPT, 32, tool="required"),
    "cut json": Occasion(JSON_PROMPT, LIMIT, json=True),
    "flow": Occasion(LONG_PROMPT, 64),
    "long": Occasion(LONG_PROMPT, 1024),
    "long call": Occasion(TOOL_PROMPT, 1024, tool="required"),
}
RAW_TOKENS = 48
"""A raw prompt is hardly ever ended by the model: no need to wait for that."""
SAMPLES: tuple[Name, ...] = ("short", "limit", "call", "cut call")
"""What the checks of every stream and body look at."""


def limit_of(api: Api, name: Name) -> int:
    """The tokens that are asked for at most."""
    return RAW_TOKENS if api == "completions" and name == "short" else OCCASIONS[name].max_tokens


def has(api: Api, name: Name) -> bool:
    """Whether the API has what the occasion asks for."""
    occasion = OCCASIONS[name]
    if api == "completions":
        return occasion.tool is None and not occasion.json
    return not occasion.json or api != "messages"


def request_body(api: Api, model: str, name: Name, *, stream: bool, fields: Mapping[str, object] | None = None) -> Json:
    occasion = OCCASIONS[name]
    more: Json = {}
    if occasion.json:
        form: Json = {"type": "json_schema", "name": "numbers", "schema": _SCHEMA, "strict": True}
        if api == "chat":
            inner = {name: value for name, value in form.items() if name != "type"}
            more["response_format"] = {"type": "json_schema", "json_schema": inner}
        else:
            more["text"] = {"format": form}
    return asking(
        api,
        model,
        occasion.prompt,
        max_tokens=limit_of(api, name),
        stream=stream,
        tool=occasion.tool,
        fields=more | dict(fields or {}),
    )
