"""`POST /v1/responses` for an upstream's own Responses API: the few fields that matter on the way.

Everything else is the upstream's business, and passes as it came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from msgspec import Struct

from serve.parse.body import convert
from serve.request import BadRequest, Json
from serve.structured import FormatError, StructuredCheck, structured_check

_CHECKED = ("json_object", "json_schema")


class _Body(Struct):
    model: str | None = None
    stream: bool | None = None
    background: bool | None = None
    max_output_tokens: int | None = None  # the engine reads it; here it only has to be a number
    previous_response_id: str | None = None
    conversation: str | Json | None = None
    text: Json | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None


@dataclass(frozen=True, slots=True)
class RelayedFields:
    """What is read of a request. `names_response`: it goes on from something that
    an upstream keeps; `check`: what its text must be; `call_due`: it must be answered by a call of a function."""

    stream: bool
    background: bool
    names_response: bool
    check: StructuredCheck | None
    call_due: bool


def parse_relayed(body: Json) -> RelayedFields:
    """Read a request.

    Raises: BadRequest: a field has the wrong type, or asks for what cannot be passed on.
    """
    fields = convert(body, _Body)
    if fields.background and fields.stream:
        raise BadRequest(
            "stream: the stream of a background response cannot be passed on; leave it out, and fetch the response by "
            "its id",
            "stream",
        )
    return RelayedFields(
        stream=bool(fields.stream),
        background=bool(fields.background),
        names_response=fields.previous_response_id is not None or fields.conversation is not None,
        check=_check((fields.text or {}).get("format")),
        call_due=_call_due(fields),
    )


def _check(given: object) -> StructuredCheck | None:
    """Formats that nobody here can check are the upstream's alone."""
    if not isinstance(given, dict):
        return None
    form = cast("Mapping[str, object]", given)
    if form.get("type") not in _CHECKED:
        return None
    try:
        if form["type"] == "json_object":
            return structured_check({"type": "json_object"})
        schema = {name: form[name] for name in ("name", "schema", "strict") if form.get(name) is not None}
        return structured_check({"type": "json_schema", "json_schema": schema})
    except FormatError as error:
        names = {"response_format": "text.format", "response_format.json_schema": "text.format"}
        raise BadRequest(str(error), error.param).renamed(names) from None


def _call_due(fields: _Body) -> bool:
    """Whether a function must be called. Where the upstream has tools of its own, it may use those instead."""
    choice = fields.tool_choice
    if isinstance(choice, dict):
        return choice.get("type") == "function"
    return choice == "required" and all(tool.get("type") == "function" for tool in fields.tools or [])
