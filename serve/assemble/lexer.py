"""Finds the tags of reasoning and tool calls in text that comes in pieces.

A tag is found whole however the text is cut; what may still become a tag is held (never more than one tag's length).
It does not know which tag may follow which: that is for its readers, who say which tags they look for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

NAME_MAX_CHARACTERS = 128
"""The longest name in `<function=NAME>` and `<parameter=NAME>`; a longer one makes the tag plain text."""


class Kind(Enum):
    """What a lexeme is; the value of a fixed tag is its spelling."""

    TEXT = ""
    THINK = "<think>"
    END_THINK = "</think>"
    CALL = "<tool_call>"
    END_CALL = "</tool_call>"
    FUNCTION = "<function="
    END_FUNCTION = "</function>"
    PARAMETER = "<parameter="
    END_PARAMETER = "</parameter>"


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A piece of the text as it was written (`raw`): a tag, or text that contains none of the tags looked for.
    `name` is the NAME of `<function=NAME>` and `<parameter=NAME>`."""

    kind: Kind
    raw: str
    name: str = ""


_NAMED = (Kind.FUNCTION, Kind.PARAMETER)
_NAME = re.compile(rf"([^<>\n]{{1,{NAME_MAX_CHARACTERS}}})>")
_NAME_PART = re.compile(rf"[^<>\n]{{0,{NAME_MAX_CHARACTERS}}}\Z")
_SPACE = re.compile(r"\s*")


class Lexer:
    """The text that was fed and not read yet."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0

    def feed(self, text: str) -> None:
        """Add text. What was read is dropped, what is held stays in front."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def next(self, tags: frozenset[Kind]) -> Lexeme | None:
        """The next tag out of `tags`, or text; None where more text is needed."""
        text, at = self._text, self._at
        if at == len(text):
            return None
        bracket = text.find("<", at) if tags else -1
        if bracket == at:
            tag = _tag(text, at, tags)
            if tag is not None:
                self._at += len(tag.raw)
                return tag
            if _may_become_tag(text, at, tags):
                return None
            bracket = text.find("<", at + 1)
        self._at = len(text) if bracket < 0 else bracket
        return Lexeme(Kind.TEXT, text[at : self._at])

    def flush(self) -> str:
        """The end: what was held is no tag."""
        rest, self._text, self._at = self._text[self._at :], "", 0
        return rest


def split_space(text: str) -> tuple[str, str]:
    """`text` as its leading white space and the rest."""
    space = _SPACE.match(text)
    end = space.end() if space else 0
    return text[:end], text[end:]


def _tag(text: str, at: int, tags: frozenset[Kind]) -> Lexeme | None:
    for kind in tags:
        if not text.startswith(kind.value, at):
            continue
        if kind not in _NAMED:
            return Lexeme(kind, kind.value)
        name = _NAME.match(text, at + len(kind.value))
        if name is not None:
            return Lexeme(kind, text[at : name.end()], name.group(1))
    return None


def _may_become_tag(text: str, at: int, tags: frozenset[Kind]) -> bool:
    for kind in tags:
        spelling = kind.value
        if len(text) - at < len(spelling):
            if spelling.startswith(text[at:]):
                return True
        elif kind in _NAMED and text.startswith(spelling, at) and _NAME_PART.match(text, at + len(spelling)):
            return True
    return False
