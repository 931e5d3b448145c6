"""Bytes of an event stream in any chunking -> events, comments and the odd lines that broken servers write.

It reads the WHATWG event-stream format and nothing else: it owns no socket, knows no clock, no JSON and no API. It
differs from the format in two points, both so that no cause is lost: lines with an unknown field are reported instead
of dropped, and `end` gives an event whose closing blank line is missing.

Source: HTML Living Standard §9.2.6 "Interpreting an event stream".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

MAX_EVENT_BYTES = 16 << 20
"""The default limit for one line and for the lines of one event."""

_BOM = b"\xef\xbb\xbf"


class SseTooLong(ValueError):
    """A line or an event is longer than the limit. The decoder must not be used again."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event. `data` joins the event's data lines with LF; `name` is "" where no event field was given; `id` is the
    last id of the stream so far."""

    data: str
    name: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class SseComment:
    """A comment line, without its colon. It is no data: servers send it to keep a connection open."""

    text: str


@dataclass(frozen=True, slots=True)
class SseOdd:
    """A line that the format says to drop: an unknown field (`error: …` of old llama-server builds) or a line that is
    no field at all (raw JSON), whose `field` is "" and whose `value` is the whole line."""

    field: str
    value: str


SseItem: TypeAlias = SseEvent | SseComment | SseOdd


class SseDecoder:
    """Feed it the stream's bytes as they come; it returns what became whole. Not thread-safe, does not block.

    Only CR, LF and CRLF end a line: U+2028, U+2029 and U+0085 are ordinary text. Bytes that are no UTF-8 become
    U+FFFD. The cost is linear in the number of bytes, whatever the chunking.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_event_bytes
        self._partial: list[bytes] = []  # pieces of a line whose end has not come
        self._partial_bytes = 0
        self._after_cr = False  # the last chunk ended with CR: an LF that follows belongs to it
        self._first_line = True
        self._data: list[str] = []
        self._event_bytes = 0
        self._name = ""
        self._id = ""

    def feed(self, chunk: bytes) -> list[SseItem]:
        """Read the next bytes.

        Raises: SseTooLong: a line or an event exceeds the limit.
        """
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
            if not chunk:
                return []
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        items: list[SseItem] = []
        if lines:
            lines[0] = self._take_partial() + lines[0]
            for line in lines:
                self._line(line, items)
        if rest:
            self._partial.append(rest)
            self._partial_bytes += len(rest)
            self._check(self._partial_bytes)
        return items

    def end(self) -> list[SseItem]:
        """What is still open when the stream is over: a last line without its end, an event without its blank line.

        After a clean end these are whole lines; after a cut they may be fragments. Does not change the decoder's
        limits; nothing may be fed afterwards.
        """
        items: list[SseItem] = []
        line = self._take_partial()
        if line:
            self._line(line, items)
        self._dispatch(items)
        return items

    def _take_partial(self) -> bytes:
        line = b"".join(self._partial)
        self._partial.clear()
        self._partial_bytes = 0
        return line

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise SseTooLong(f"one event is longer than {self._max_bytes} bytes")

    def _line(self, line: bytes, items: list[SseItem]) -> None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            self._dispatch(items)
            return
        self._check(len(line))
        text = line.decode("utf-8", "replace")
        field, colon, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._event_bytes += len(line)
            self._check(self._event_bytes)
            self._data.append(value)
        elif colon and not field:
            items.append(SseComment(text[1:]))
        elif field == "event":
            self._name = value
        elif field == "id":
            if "\0" not in value:
                self._id = value
        elif field != "retry":
            items.append(SseOdd(field, value) if _is_name(field) and colon else SseOdd("", text))

    def _dispatch(self, items: list[SseItem]) -> None:
        if self._data:
            items.append(SseEvent("\n".join(self._data), self._name, self._id))
        self._data.clear()
        self._event_bytes = 0
        self._name = ""


def _is_name(field: str) -> bool:
    return field.replace("-", "").replace("_", "").isalnum() and len(field) <= 40
