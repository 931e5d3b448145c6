"""What is kept of an answer: its entries, in order, and their bytes.

An entry is an event that changes what was made or how it ended, or a heartbeat that was an event of its own. The same
entries always give the same wire events (`serve.encode`), so they are all that has to be stored. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import msgspec

from engine.events import (
    Accepted,
    Cancelled,
    Failed,
    Finished,
    Piece,
    Reasoning,
    Terminal,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat that has a number in the stream."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The last entry: how the answer ended, and when, in Unix seconds."""

    terminal: Terminal
    at: float


Made: TypeAlias = Accepted | Piece | Beat
Entry: TypeAlias = Made | Ended


# --- the form of the bytes: one JSON array; a text is a string, any other entry an array that begins with its tag ---


class _Text(msgspec.Struct, tag="t", array_like=True, forbid_unknown_fields=True):
    text: str
    logprobs: object  # the upstream's own JSON value, kept as it is

    def entry(self) -> Entry:
        return Text(self.text, self.logprobs)


class _Reasoning(msgspec.Struct, tag="r", array_like=True, forbid_unknown_fields=True):
    text: str

    def entry(self) -> Entry:
        return Reasoning(self.text)


class _CallStart(msgspec.Struct, tag="c", array_like=True, forbid_unknown_fields=True):
    index: int
    id: str
    name: str

    def entry(self) -> Entry:
        return ToolCallStart(self.index, self.id, self.name)


class _CallArgs(msgspec.Struct, tag="a", array_like=True, forbid_unknown_fields=True):
    index: int
    text: str

    def entry(self) -> Entry:
        return ToolCallArgs(self.index, self.text)


class _CallEnd(msgspec.Struct, tag="e", array_like=True, forbid_unknown_fields=True):
    index: int

    def entry(self) -> Entry:
        return ToolCallEnd(self.index)


class _Accepted(msgspec.Struct, tag="y", array_like=True, forbid_unknown_fields=True):
    def entry(self) -> Entry:
        return Accepted()


class _Beat(msgspec.Struct, tag="b", array_like=True, forbid_unknown_fields=True):
    def entry(self) -> Entry:
        return Beat()


class _Finished(msgspec.Struct, tag="finished", array_like=True, forbid_unknown_fields=True):
    at: float
    terminal: Finished

    def entry(self) -> Entry:
        return Ended(self.terminal, self.at)


class _Cancelled(msgspec.Struct, tag="cancelled", array_like=True, forbid_unknown_fields=True):
    at: float
    terminal: Cancelled

    def entry(self) -> Entry:
        return Ended(self.terminal, self.at)


class _Failed(msgspec.Struct, tag="failed", array_like=True, forbid_unknown_fields=True):
    at: float
    terminal: Failed

    def entry(self) -> Entry:
        return Ended(self.terminal, self.at)


_Row: TypeAlias = (
    str | _Text | _Reasoning | _CallStart | _CallArgs | _CallEnd | _Accepted | _Beat | _Finished | _Cancelled | _Failed
)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[_Row]).decode


def encode(entries: Sequence[Entry]) -> bytes:
    """The entries as UTF-8 bytes. What `decode` gives back is equal to what went in.

    Raises: ValueError: a text is not valid Unicode (half a surrogate pair), or `logprobs` is not a JSON value.
    """
    try:
        # a plain text at once, because most entries are
        return _encode([e.text if type(e) is Text and e.logprobs is None else _row(e) for e in entries])
    except UnicodeEncodeError:
        raise ValueError("the answer's text is not valid Unicode: it holds half a surrogate pair") from None
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the answer's logprobs are no JSON value: {error}") from None


def decode(data: bytes) -> list[Entry]:
    """The entries of one `encode`.

    Raises: ValueError: the bytes are not those of `encode`.
    """
    try:
        rows = _decode(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"these bytes are not the entries of an answer: {error}") from None
    return [Text(row) if isinstance(row, str) else row.entry() for row in rows]


def _row(entry: Entry) -> object:
    match entry:
        case Text(text=text, logprobs=logprobs):
            return text if logprobs is None else ("t", text, logprobs)
        case Reasoning(text=text):
            return ("r", text)
        case ToolCallStart(index=index, id=id_, name=name):
            return ("c", index, id_, name)
        case ToolCallArgs(index=index, text=text):
            return ("a", index, text)
        case ToolCallEnd(index=index):
            return ("e", index)
        case Accepted():
            return ("y",)
        case Beat():
            return ("b",)
        case Ended(terminal=terminal, at=at):
            return (_tag(terminal), at, terminal)
    assert_never(entry)


def _tag(terminal: Terminal) -> str:
    match terminal:
        case Finished():
            return "finished"
        case Cancelled():
            return "cancelled"
        case Failed():
            return "failed"
    assert_never(terminal)
