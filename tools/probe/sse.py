"""Bytes of an event stream -> events and comments with their times, and every breach of the format.

A reader of the checkers' own: it reads all that the standard allows, and says what of it common clients stumble over.
It knows nothing of JSON or of any API. Source: WHATWG HTML, "Server-sent events", 9.2.5 and 9.2.6.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tools.probe.values import shown

LONG_LINE_BYTES = 512 * 1024
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Of a longer line, and of more data in one event, the rest is not kept."""
_FIELDS = ("data", "event", "id", "retry")
_SPLITTERS = re.compile("[\u2028\u2029\u0085\x0b\x0c\x1c\x1d\x1e]")

BreachKind = Literal[
    "bom",
    "cr lines",
    "crlf lines",
    "mixed line ends",
    "invalid utf-8",
    "unknown field",
    "retry no number",
    "nul in id",
    "open event",
    "open line",
    "empty data",
    "block without data",
    "bare colon",
    "comment block after id",
    "several data lines",
    "line separators",
    "no space after colon",
    "long line",
    "endless event",
    "comment block",
]
LOSSES: frozenset[BreachKind] = frozenset(
    {"invalid utf-8", "unknown field", "retry no number", "nul in id", "open event", "open line", "endless event"}
)
"""What is against the standard, so that something is lost or damaged for every reader."""
HARMLESS: frozenset[BreachKind] = frozenset({"comment block"})
"""What only old clients stumble over."""
MEANINGS: Mapping[BreachKind, str] = {
    "bom": "a byte order mark at the start: openai-python loses the first event",
    "cr lines": "lines end with CR alone: many readers wait for LF and see one endless line",
    "crlf lines": "lines end with CRLF: allowed, but some gateways hold such a stream back to its end",
    "mixed line ends": "line ends are mixed",
    "invalid utf-8": "bytes that are not UTF-8: readers put replacement marks in their place, or stop",
    "unknown field": "a line that is no field of the format: every reader drops it",
    "retry no number": "retry is not a whole number: every reader drops it",
    "nul in id": "id with a NUL: every reader drops it",
    "open event": "the stream ends in an event that no blank line closes: every reader drops it",
    "open line": "the stream ends within a line: every reader drops it",
    "empty data": "an event with empty data: SDKs that parse every event as JSON stop there",
    "block without data": "a block of id or retry alone: openai-python stops with a JSON error",
    "bare colon": "a comment without text: breaks clients that expect `key: value`",
    "comment block after id": "a comment in a block of its own after an id: openai-python stops with a JSON error",
    "several data lines": "an event of several data lines: hand-written readers join them wrongly",
    "line separators": "U+2028 or the like unescaped: readers that split lines by it lose the event",
    "no space after colon": "no space after the colon: allowed, but hand-written readers look for `data: `",
    "long line": f"a line above {LONG_LINE_BYTES} bytes: aiohttp's line reader stops",
    "endless event": f"more than {MAX_EVENT_BYTES} bytes without a blank line: no reader can hold such an event",
    "comment block": "a comment with a blank line after it: openai-go before 3.43 stops there",
}


@dataclass(slots=True)
class Breach:
    """A kind of breach, how often it was seen, and where first. `at_s` is None where time is not known."""

    kind: BreachKind
    example: str
    at_byte: int
    at_s: float | None
    count: int = 1

    @property
    def loss(self) -> bool:
        return self.kind in LOSSES


@dataclass(frozen=True, slots=True)
class SseEvent:
    """An event that every reader sees. `name` is "message" where the stream gave none.

    `begun_s` is when its first line came, `at_s` when the blank line did.
    """

    name: str
    data: str
    id: str
    begun_s: float
    at_s: float
    at_byte: int
    named: bool = False


@dataclass(frozen=True, slots=True)
class SseComment:
    text: str
    at_s: float
    at_byte: int


@dataclass(slots=True)
class _Block:
    """The lines since the last blank line."""

    begun_s: float = 0.0
    at_byte: int = 0
    data: list[str] = field(default_factory=list[str])
    name: str | None = None
    other: list[str] = field(default_factory=list[str])
    comments: int = 0
    size: int = 0


class SseReader:
    """Feed it the body as it comes. `stray`: the first lines that are no fields, and what was open at the end."""

    MAX_STRAY = 20

    def __init__(self) -> None:
        self.breaches: dict[BreachKind, Breach] = {}
        self.stray: list[str] = []
        self.events = 0
        self.comments = 0
        self.retry_ms: int | None = None
        self.longest_line_bytes = 0
        self.line_ends = {"lf": 0, "cr": 0, "crlf": 0}
        self._line = bytearray()
        self._line_at = 0
        self._offset = 0
        self._after_cr = False
        self._begun = False
        self._last_id = ""
        self._block = _Block()

    def feed(self, data: bytes, at_s: float) -> list[SseEvent | SseComment]:
        made: list[SseEvent | SseComment] = []
        position = 0
        if self._after_cr and data:
            self._after_cr = False
            if data[:1] == b"\n":
                self.line_ends["cr"] -= 1
                self.line_ends["crlf"] += 1
                position = 1
                self._line_at = self._offset + 1
        for found in re.compile(rb"\r\n|\r|\n").finditer(data, position):
            self._keep_line(data[position : found.start()], at_s)
            position = found.end()
            end = found[0]
            self.line_ends["crlf" if len(end) == 2 else "cr" if end == b"\r" else "lf"] += 1
            self._after_cr = end == b"\r" and position == len(data)
            self._take_line(at_s, made)
            self._line.clear()
            self._line_at = self._offset + position
        self._keep_line(data[position:], at_s)
        self._offset += len(data)
        return made

    def _keep_line(self, data: bytes, at_s: float) -> None:
        room = MAX_EVENT_BYTES - len(self._line) - self._block.size
        if len(data) > room:
            self._breach("endless event", "", self._line_at, at_s)
        self._line += data[: max(0, room)]

    def close(self, at_s: float) -> None:
        """The body has ended; what is open is lost."""
        ends = {name for name, count in self.line_ends.items() if count}
        if len(ends) > 1:
            self._breach("mixed line ends", str(self.line_ends), 0, at_s)
        elif ends == {"cr"}:
            self._breach("cr lines", "", 0, at_s, self.line_ends["cr"])
        elif ends == {"crlf"}:
            self._breach("crlf lines", "", 0, at_s, self.line_ends["crlf"])
        if self._line:
            text = self._decoded(at_s)
            self._breach("open line", shown(text), self._line_at, at_s)
            if not text.startswith(":"):
                self._keep_stray(text)
        elif self._block.data:
            self._breach("open event", shown("\n".join(self._block.data)), self._block.at_byte, at_s)
            self._keep_stray("\n".join(f"data: {line}" for line in self._block.data))

    def _breach(self, kind: BreachKind, example: str, at_byte: int, at_s: float, count: int = 1) -> None:
        if kind in self.breaches:
            self.breaches[kind].count += count
        else:
            self.breaches[kind] = Breach(kind, example, at_byte, at_s, count)

    def _keep_stray(self, text: str) -> None:
        if len(self.stray) < self.MAX_STRAY:
            self.stray.append(text)

    def _decoded(self, at_s: float) -> str:
        raw = bytes(self._line)
        if not self._begun:
            self._begun = True
            if raw.startswith(codecs.BOM_UTF8):
                self._breach("bom", "", 0, at_s)
                raw = raw[len(codecs.BOM_UTF8) :]
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            around = raw[max(0, error.start - 20) : error.end + 20]
            self._breach("invalid utf-8", shown(around), self._line_at + error.start, at_s)
            return raw.decode(errors="replace")

    def _take_line(self, at_s: float, made: list[SseEvent | SseComment]) -> None:
        self.longest_line_bytes = max(self.longest_line_bytes, len(self._line))
        if LONG_LINE_BYTES < len(self._line) < MAX_EVENT_BYTES:
            self._breach("long line", f"{len(self._line)} bytes", self._line_at, at_s)
        text = self._decoded(at_s)
        if not text:
            self._end_block(at_s, made)
            return
        block = self._block
        if not (block.data or block.other or block.comments or block.name is not None):
            block.begun_s, block.at_byte = at_s, self._line_at
        if found := _SPLITTERS.search(text):
            self._breach("line separators", f"U+{ord(found[0]):04X} in {shown(text)}", self._line_at, at_s)
        if text.startswith(":"):
            self._take_comment(text, at_s, made)
        else:
            self._take_field(text, at_s)

    def _take_comment(self, text: str, at_s: float, made: list[SseEvent | SseComment]) -> None:
        self.comments += 1
        self._block.comments += 1
        if not text[1:].strip():
            self._breach("bare colon", shown(text), self._line_at, at_s)
        made.append(SseComment(text[1:].removeprefix(" "), at_s, self._line_at))

    def _take_field(self, text: str, at_s: float) -> None:
        name, colon, value = text.partition(":")
        if name not in _FIELDS:
            self._breach("unknown field", shown(text), self._line_at, at_s)
            self._keep_stray(text)
            return
        if colon and value and not value.startswith(" "):
            self._breach("no space after colon", shown(text), self._line_at, at_s)
        value = value.removeprefix(" ")
        block = self._block
        if name == "data":
            block.data.append(value)
            block.size += len(self._line)
        elif name == "event":
            block.name = value
        elif name == "id":
            block.other.append(name)
            if "\0" in value:
                self._breach("nul in id", shown(text), self._line_at, at_s)
            else:
                self._last_id = value
        else:
            block.other.append(name)
            if value.isascii() and value.isdigit():
                self.retry_ms = int(value)
            else:
                self._breach("retry no number", shown(text), self._line_at, at_s)

    def _end_block(self, at_s: float, made: list[SseEvent | SseComment]) -> None:
        block, self._block = self._block, _Block()
        if not block.data:
            if block.other or block.name is not None:
                what = ", ".join(block.other) or f"event: {block.name}"
                self._breach("block without data", shown(what), block.at_byte, at_s)
            elif block.comments:
                self._breach("comment block after id" if self._last_id else "comment block", "", block.at_byte, at_s)
            return
        data = "\n".join(block.data)
        if len(block.data) > 1:
            self._breach("several data lines", shown(data), block.at_byte, at_s)
        if not data.strip():
            self._breach("empty data", shown(block.name or ""), block.at_byte, at_s)
        self.events += 1
        name = block.name or "message"
        made.append(SseEvent(name, data, self._last_id, block.begun_s, at_s, block.at_byte, block.name is not None))
