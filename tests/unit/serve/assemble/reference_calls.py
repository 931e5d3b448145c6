"""One tool call in a whole text, read slowly: a part of `reference`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tests.unit.serve.assemble.reference_json import Wrong, read_members

Ending: TypeAlias = Literal["stop", "length", "failed"]
Tools: TypeAlias = Mapping[str, Mapping[str, object]]

OPENER, CLOSER = "<tool_call>", "</tool_call>"
NAME = r"[^<>\n]{1,128}"
FUNCTION = re.compile(rf"<function=({NAME})>")
PARAMETER = re.compile(rf"\s*<parameter=({NAME})>")
OPENS_OR_CLOSES = re.compile(rf"</parameter>|<parameter={NAME}>")
CLOSING = re.compile(r"\s*</function>\s*</tool_call>\s*")
EMPTY = re.compile(r"\s*</function>\s*</tool_call>")
HALF_NAMED = re.compile(r"<(function|parameter)=[^<>\n]{0,128}")


@dataclass(frozen=True)
class Call:
    """What stands at a `<tool_call>`. `to`: where it ends (open: with the text; broken: before what breaks it)."""

    state: Literal["whole", "open", "broken", "none"]
    name: str | None
    arguments: str
    to: int
    plausible: bool = True
    settles: bool = False
    """Text follows, so that the whole turn had to be looked through for a later end: there is none for later calls."""


def read_call(text: str, start: int, tools: Tools, ending: Ending, *, settled: bool) -> Call:
    """The call that `<tool_call>` at `start` opens; state none: it is only a mention of the tag. `settled`: a call
    before it settles (`Call.settles`)."""
    head = start + len(OPENER)
    at = past_space(text, head)
    function = FUNCTION.match(text, at)
    if function is not None:
        return read_function(text, function, tools.get(function[1], {}), ending, settled=settled)
    if text.startswith("{", at):
        return read_object(text, at)
    if begins(text[at:], "<function="):
        return Call("open", None, "", len(text))
    return Call("none", None, "", head)


def past_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def begins(rest: str, *tags: str) -> bool:
    """Whether `rest`, with which the text ends, may be the beginning of one of the tags."""
    half = HALF_NAMED.fullmatch(rest)
    return any(tag.startswith(rest) for tag in tags) or (half is not None and f"<{half[1]}=" in tags)


# --- the JSON form -----------------------------------------------------------------------------------


def read_object(text: str, at: int) -> Call:
    members = read_members(text, at)
    if isinstance(members.end, Wrong):
        return Call("broken", members.name, members.arguments, members.end.at, members.plausible)
    if members.end is None:
        return Call("open", members.name, members.arguments, len(text))
    after = past_space(text, members.end)
    if text.startswith(CLOSER, after):
        return Call("whole", members.name, members.arguments, after + len(CLOSER))
    state = "open" if begins(text[after:], CLOSER) else "broken"
    return Call(state, members.name, members.arguments, len(text) if state == "open" else after)


# --- the tag form ------------------------------------------------------------------------------------


def read_function(
    text: str, function: re.Match[str], schema: Mapping[str, object], ending: Ending, *, settled: bool
) -> Call:
    name, at = function[1], function.end()
    empty = EMPTY.match(text, at)
    if empty is not None:
        return Call("whole", name, "{}", empty.end())
    parameter = PARAMETER.match(text, at)
    if parameter is None:
        return without_parameters(text, name, at)
    written = ""
    keys: list[str] = []
    while True:
        key, start = parameter[1], parameter.end()
        written += ("{" if not keys else ", ") + json.dumps(key, ensure_ascii=False) + ": "
        keys.append(key)
        end, parameter, to = value_end(text, start, keys, ending, settled=settled)
        value = text[start:end].removeprefix("\n")
        if end is None:
            return Call("open", name, written + so_far(value, schema, key), len(text))
        written += typed(value.removesuffix("\n"), schema, key)
        if to is not None:
            rest = text[past_space(text, to) :]
            return Call("whole", name, written + "}", to, settles=bool(rest) and not rest.startswith(OPENER))
        if parameter is None:
            return Call("open", name, written, len(text))


def without_parameters(text: str, name: str, at: int) -> Call:
    at = past_space(text, at)
    tags = ("<parameter=", "</function>")
    if text.startswith("</function>", at):
        at = past_space(text, at + len("</function>"))
        tags = (CLOSER,)
    if begins(text[at:], *tags):
        return Call("open", name, "", len(text))
    return Call("broken", name, "", at)


def value_end(
    text: str, start: int, keys: list[str], ending: Ending, *, settled: bool
) -> tuple[int | None, re.Match[str] | None, int | None]:
    """Where the value ends (None: it does not), the next parameter if one follows, the call's end if that follows."""
    depth, at = 0, start
    while (tag := OPENS_OR_CLOSES.search(text, at)) is not None:
        at = tag.end()
        if tag[0] != "</parameter>":
            depth += at_line_start(text, tag.start())
            continue
        inner = depth > 0
        depth -= inner
        following = PARAMETER.match(text, at)
        if following is not None and not inner and following[1] not in keys:
            return tag.start(), following, None
        closing = CLOSING.match(text, at)
        if closing is None:
            if not inner and framing_is_cut(text, at):
                return tag.start(), None, None
            continue
        to = text.index(CLOSER, at) + len(CLOSER)
        rest = text[closing.end() :]
        if not rest and (ending == "stop" or not inner):
            return tag.start(), None, to
        if inner:
            continue
        if settled or rest.startswith(OPENER) or (ending != "stop" and OPENER.startswith(rest)):
            return tag.start(), None, to
        unpaired = next_unpaired(text, closing.end())
        if unpaired is None:
            return (tag.start(), None, to) if ending == "stop" else (None, None, None)
        at = unpaired
    return None, None, None


def framing_is_cut(text: str, at: int) -> bool:
    """The text ends in the tags that may follow a value."""
    at = past_space(text, at)
    if begins(text[at:], "<parameter=", "</function>"):
        return True
    return text.startswith("</function>", at) and begins(text[past_space(text, at + len("</function>")) :], CLOSER)


def next_unpaired(text: str, at: int) -> int | None:
    """The next `</parameter>` that closes nothing which was opened since."""
    depth = 0
    for tag in OPENS_OR_CLOSES.finditer(text, at):
        if tag[0] != "</parameter>":
            depth += at_line_start(text, tag.start())
        elif depth == 0:
            return tag.start()
        else:
            depth -= 1
    return None


def at_line_start(text: str, at: int) -> bool:
    return text[:at].rstrip(" \t")[-1] in "\n>"


# --- values: the kinds of schema that the tests use ----------------------------------------------------


def type_of(schema: Mapping[str, object], key: str) -> object:
    properties: object = schema.get("properties", {})
    assert isinstance(properties, dict)
    return properties.get(key, {}).get("type", "string")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - the tests' own schemas


def typed(value: str, schema: Mapping[str, object], key: str) -> str:
    """A whole value as JSON text."""
    kind = type_of(schema, key)
    if kind == ["string", "null"] and value in ("null", "None"):
        return "null"
    if kind == "integer" and is_integer(value.strip()):
        return value.strip()
    return json.dumps(value, ensure_ascii=False)


def is_integer(word: str) -> bool:
    try:
        number: object = json.loads(word)
    except (ValueError, RecursionError):
        return False
    return type(number) is int or (isinstance(number, float) and number.is_integer())


def so_far(value: str, schema: Mapping[str, object], key: str) -> str:
    """The beginning of a value as the beginning of JSON text; as it stands while its type is open."""
    kind = type_of(schema, key)
    if kind == "integer" or (kind == ["string", "null"] and any(n.startswith(value) for n in ("null", "None"))):
        return value
    return json.dumps(value, ensure_ascii=False)[:-1]
