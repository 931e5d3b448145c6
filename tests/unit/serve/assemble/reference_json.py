"""A call's JSON object in a whole text, read by plain descent: a part of `reference`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

SPACE = " \t\n\r"
STRING_START = re.compile(r'"(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
NUMBER_START = re.compile(r"-?|-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?[eE][+-]?[0-9]*")


class Wrong(Exception):
    """It is not JSON from the character `at` on."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class Cut(Exception):
    """The text ended inside."""


@dataclass
class Members:
    """What is known of a call's object. `end`: behind its brace, None where the text ended in it."""

    name: str | None = None
    arguments: str = ""
    plausible: bool = False
    end: int | Wrong | None = None


def read_members(text: str, at: int) -> Members:
    """The object at `at`, as far as it is one of a call."""
    found = Members()
    try:
        found.end = _read(text, at + 1, found)
    except Wrong as wrong:
        found.end = wrong
    except Cut:
        found.end = None
    return found


def _read(text: str, at: int, found: Members) -> int:
    keys: list[str] = []
    while True:
        at = past_space(text, at)
        if text[at] == "}" and not keys:
            break
        key, at = _member_key(text, at, found)
        if key in keys or text[at] != {"arguments": "{", "name": '"'}.get(key, text[at]):
            raise Wrong(at)
        keys.append(key)
        at = _member_value(text, at, key, found)
        at = past_space(text, at)
        if text[at] == "}":
            break
        if text[at] != ",":
            raise Wrong(at)
        at = past_space(text, at + 1)
        if text[at] != '"':
            raise Wrong(at)
    if "arguments" not in keys:
        found.arguments = "{}"
    if found.name is None:
        raise Wrong(at + 1)
    return at + 1


def _member_key(text: str, at: int, found: Members) -> tuple[str, int]:
    if text[at] != '"':
        raise Wrong(at)
    found.plausible = True
    end = value_end(text, at)
    colon = past_space(text, end)
    if text[colon] != ":":
        raise Wrong(colon)
    return json.loads(text[at:end], strict=False), past_space(text, colon + 1)


def _member_value(text: str, at: int, key: str, found: Members) -> int:
    try:
        end = value_end(text, at)
    except (Wrong, Cut) as error:
        if key == "arguments":
            found.arguments = escaped(text[at : error.at if isinstance(error, Wrong) else len(text)])
        raise
    if key == "arguments":
        found.arguments = escaped(text[at:end])
    elif key == "name":
        found.name = json.loads(text[at:end], strict=False) or None
        if found.name is None:
            raise Wrong(end)
    return end


def past_space(text: str, at: int) -> int:
    """Raises: Cut: there is only white space."""
    while at < len(text) and text[at] in SPACE:
        at += 1
    if at == len(text):
        raise Cut
    return at


def escaped(text: str) -> str:
    """JSON text with the control characters inside its strings as escapes, also where it ends inside one."""
    made, at = "", 0
    while (quote := text.find('"', at)) >= 0:
        string = STRING_START.match(text, quote)
        assert string is not None
        end = string.end()
        if end < len(text) and text[end] == "\\":
            end = len(text)
        body = re.sub(r"[\x00-\x1f]", lambda char: json.dumps(char[0])[1:-1], text[quote:end])
        made += text[at:quote] + body + text[end : end + 1]
        at = end + 1
    return made + text[at:]


def value_end(text: str, at: int) -> int:
    """The end of the value at `at`. Raises: Wrong, Cut."""
    if text[at] in "{[":
        return _container_end(text, at)
    if text[at] == '"':
        return _string_end(text, at)
    for word in ("true", "false", "null"):
        if text[at] == word[0]:
            return _word_end(text, at, word)
    if text[at] not in "-0123456789":
        raise Wrong(at)
    end = at
    while end < len(text) and NUMBER_START.fullmatch(text[at : end + 1]):
        end += 1
    if end == len(text):
        raise Cut
    if not NUMBER.fullmatch(text[at:end]):
        raise Wrong(end)
    return end


def _string_end(text: str, at: int) -> int:
    string = STRING_START.match(text, at)
    assert string is not None
    end = string.end()
    if end == len(text) or CUT_ESCAPE.fullmatch(text, end):
        raise Cut
    if text[end] == '"':
        return end + 1
    if text[end + 1] != "u":
        raise Wrong(end + 1)
    raise Wrong(next(i for i in range(end + 2, end + 6) if text[i] not in "0123456789abcdefABCDEF"))


def _word_end(text: str, at: int, word: str) -> int:
    for offset, char in enumerate(word):
        if at + offset == len(text):
            raise Cut
        if text[at + offset] != char:
            raise Wrong(at + offset)
    return at + len(word)


def _container_end(text: str, at: int) -> int:
    closer = "}" if text[at] == "{" else "]"
    at = past_space(text, at + 1)
    if text[at] == closer:
        return at + 1
    while True:
        if closer == "}":
            if text[at] != '"':
                raise Wrong(at)
            at = past_space(text, _string_end(text, at))
            if text[at] != ":":
                raise Wrong(at)
            at = past_space(text, at + 1)
        at = past_space(text, value_end(text, at))
        if text[at] == closer:
            return at + 1
        if text[at] != ",":
            raise Wrong(at)
        at = past_space(text, at + 1)
