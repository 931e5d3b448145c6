"""Bytes of a connection -> one HTTP/1 answer: its head, the pieces of its body, and exactly how the body ended.

It undoes chunked framing, not a content coding; owns no socket and no clock. Source: RFC 9112.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Literal

from tools.probe.values import shown

MAX_HEAD_BYTES = 256 * 1024
MAX_LINE_BYTES = 8 * 1024
MAX_SURPLUS_BYTES = 64 * 1024
_STATUS_LINE = re.compile(rb"(HTTP/\d(?:\.\d)?) (\d{3})(?: ([^\r\n]*))?")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;.*)?")

Framing = Literal["chunked", "length", "close", "none", "unframed"]
"""What ends the body; `unframed`: a recording without its framing."""


class BodyEnd(enum.StrEnum):
    """How a body ended, as the connection tells."""

    LENGTH = "length"
    """All bytes of Content-Length came."""
    TERMINATOR = "terminator"
    """The last chunk came."""
    NO_BODY = "no body"
    CLOSE = "close"
    """The connection was closed, and only that ends this body: nobody can tell whether it was cut."""
    NO_TERMINATOR = "no terminator"
    """Closed without the last chunk."""
    SHORT = "short"
    """Closed before all bytes of Content-Length had come."""
    RESET = "reset"
    TLS_CUT = "tls cut"
    """The connection ended without TLS saying so, which ends this body."""
    FRAMING = "broken framing"
    NO_ANSWER = "no answer"
    """Ended before a whole head."""
    SILENT = "silent"
    """Nothing came for as long as we wait."""
    LEFT = "left"
    """We left."""
    RECORDING = "recording"
    """A recording ends here; it does not say how the connection ended."""

    @property
    def whole(self) -> bool:
        """The framing says that nothing is missing."""
        return self in _WHOLE

    @property
    def cut(self) -> bool:
        """A client sees that something is missing."""
        return self in _CUT


_WHOLE = frozenset({BodyEnd.LENGTH, BodyEnd.TERMINATOR, BodyEnd.NO_BODY})
_CUT = frozenset(
    {
        BodyEnd.NO_TERMINATOR,
        BodyEnd.SHORT,
        BodyEnd.RESET,
        BodyEnd.TLS_CUT,
        BodyEnd.FRAMING,
        BodyEnd.NO_ANSWER,
        BodyEnd.SILENT,
    }
)

Closing = Literal["fin", "tls", "reset", "silent", "left", "recording", "unfinished"]
"""What ended the reading. `tls`: the connection ended without TLS's own word for it. `unfinished`: whoever made the
recording saw that the framing was not at its end."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of the body that came in one read. `at_s`: seconds since the request was sent."""

    at_s: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """Names of fields are as they came; `at_s` is when the head was whole."""

    version: str
    status: int
    reason: str
    fields: tuple[tuple[str, str], ...]
    at_s: float

    def all(self, name: str) -> list[str]:
        return [value for each, value in self.fields if each.lower() == name.lower()]

    def get(self, name: str) -> str | None:
        """All values of a field, joined by commas; None where there is none."""
        values = self.all(name)
        return ", ".join(values) if values else None


class AnswerReader:
    """Feed it what comes; it gives the body's pieces. `method` is the request's.

    `framing_faults` are what the framing does against the standard and can still be read; `surplus` is what came after
    the body's end.
    """

    def __init__(self, method: str = "POST") -> None:
        self.head: Head | None = None
        self.interim: list[int] = []
        self.framing: Framing = "close"
        self.end: BodyEnd | None = None
        self.end_s = 0.0
        self.end_note = ""
        self.first_byte_s: float | None = None
        self.body_bytes = 0
        self.chunks = 0
        self.framing_faults: list[str] = []
        self.surplus = bytearray()
        self._method = method
        self._headless = False
        self._buffer = bytearray()
        self._left = 0
        self._awaits: Literal["size", "data", "end of chunk", "trailer"] = "size"

    def feed(self, data: bytes, at_s: float) -> list[Piece]:
        """Take what was read. After the end it is kept as surplus."""
        if self.first_byte_s is None:
            self.first_byte_s = at_s
        if self.end is not None:
            self._keep(data)
            return []
        self._buffer += data
        if self.head is None and not self._headless and not self._read_head(at_s):
            return []
        pieces = [Piece(at_s, part) for part in self._read_body(at_s) if part]
        self.body_bytes += sum(len(piece.data) for piece in pieces)
        return pieces

    def unframe(self) -> None:
        """From now on all that comes is body: for a recording that has lost its framing, or its head."""
        self.framing, self.end, self._headless = "unframed", None, True

    def closed(self, how: Closing, at_s: float, note: str = "") -> None:
        """The reading ended. Nothing happens if the body has ended already."""
        if self.end is None:
            self._finish(self._end_of(how), at_s, note)

    def _end_of(self, how: Closing) -> BodyEnd:
        if how == "silent":
            return BodyEnd.SILENT
        if how == "left":
            return BodyEnd.LEFT
        if self.head is None and not self._headless:
            return BodyEnd.RESET if how == "reset" else BodyEnd.NO_ANSWER
        if how == "reset":
            return BodyEnd.RESET
        if self.framing == "chunked" or how == "unfinished":
            return BodyEnd.NO_TERMINATOR
        if self.framing == "length":
            return BodyEnd.SHORT
        if how == "recording":
            return BodyEnd.RECORDING
        return BodyEnd.TLS_CUT if how == "tls" else BodyEnd.CLOSE

    def _finish(self, end: BodyEnd, at_s: float, note: str = "") -> None:
        self.end, self.end_s, self.end_note = end, at_s, note
        self._keep(bytes(self._buffer))
        self._buffer.clear()

    def _keep(self, data: bytes) -> None:
        self.surplus += data[: max(0, MAX_SURPLUS_BYTES - len(self.surplus))]

    # --- head ---------------------------------------------------------------------------------------

    def _read_head(self, at_s: float) -> bool:
        while True:
            found = re.search(rb"\r?\n\r?\n", self._buffer)
            if found is None:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    self._finish(BodyEnd.FRAMING, at_s, f"the head is longer than {MAX_HEAD_BYTES} bytes")
                return False
            raw = bytes(self._buffer[: found.start()])
            del self._buffer[: found.end()]
            head = self._parsed_head(raw, at_s)
            if head is None:
                self._finish(BodyEnd.FRAMING, at_s, f"not an HTTP answer: {shown(raw[:200])}")
                return False
            if 100 <= head.status < 200 and head.status != 101:
                self.interim.append(head.status)
                continue
            self.head = head
            self._choose_framing(head, at_s)
            return self.end is None

    def _parsed_head(self, raw: bytes, at_s: float) -> Head | None:
        if re.search(rb"(?<!\r)\n", raw):
            self.framing_faults.append("lines of the head end with LF alone")
        first, *lines = re.split(rb"\r?\n", raw)
        found = _STATUS_LINE.fullmatch(first.rstrip(b" "))
        if found is None:
            return None
        fields: list[tuple[str, str]] = []
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not name or name != name.strip():
                self.framing_faults.append(f"not a field of a head: {shown(line)}")
                continue
            fields.append((name.decode("latin-1"), value.strip().decode("latin-1")))
        reason = (found[3] or b"").decode("latin-1")
        return Head(found[1].decode(), int(found[2]), reason, tuple(fields), at_s)

    def _choose_framing(self, head: Head, at_s: float) -> None:
        codings = (head.get("transfer-encoding") or "").lower()
        lengths = set(head.all("content-length"))
        if self._method == "HEAD" or head.status in (204, 304):
            self.framing = "none"
            self._finish(BodyEnd.NO_BODY, at_s)
        elif "chunked" in codings:
            self.framing = "chunked"
            if lengths:
                self.framing_faults.append("both Transfer-Encoding and Content-Length")
            if head.version == "HTTP/1.0":
                self.framing_faults.append("chunked in an HTTP/1.0 answer")
        elif lengths:
            self.framing = "length"
            (text, *others) = lengths
            if others or not text.isascii() or not text.isdigit():
                self._finish(BodyEnd.FRAMING, at_s, f"content-length: {shown(sorted(lengths))} is no length")
                return
            self._left = int(text)
            if not self._left:
                self._finish(BodyEnd.LENGTH, at_s)

    # --- body ---------------------------------------------------------------------------------------

    def _read_body(self, at_s: float) -> list[bytes]:
        if self.framing == "chunked":
            return self._read_chunks(at_s)
        if self.framing == "length":
            data = self._take(self._left)
            self._left -= len(data)
            if not self._left:
                self._finish(BodyEnd.LENGTH, at_s)
            return [data]
        return [self._take(len(self._buffer))]

    def _read_chunks(self, at_s: float) -> list[bytes]:
        parts: list[bytes] = []
        while self.end is None and self._buffer:
            if self._awaits == "data":
                data = self._take(self._left)
                parts.append(data)
                self._left -= len(data)
                if not self._left:
                    self._awaits = "end of chunk"
            elif not self._read_line(at_s):
                break
        return [b"".join(parts)]

    def _read_line(self, at_s: float) -> bool:
        """The framing's next line. False: it is not whole yet, or broken."""
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > MAX_LINE_BYTES:
                self._finish(BodyEnd.FRAMING, at_s, "a line of the chunked framing has no end")
            return False
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        if not line.endswith(b"\r") and (fault := "a line of the chunked framing ends with LF alone") not in (
            self.framing_faults
        ):
            self.framing_faults.append(fault)
        line = line.removesuffix(b"\r")
        if self._awaits == "trailer":
            if not line:
                self._finish(BodyEnd.TERMINATOR, at_s)
        elif self._awaits == "end of chunk":
            if line:
                self._finish(BodyEnd.FRAMING, at_s, f"{shown(line)} after a chunk; expected a line break")
                return False
            self._awaits = "size"
        else:
            return self._read_size(line, at_s)
        return True

    def _read_size(self, line: bytes, at_s: float) -> bool:
        found = _SIZE.fullmatch(line)
        if found is None:
            self._finish(BodyEnd.FRAMING, at_s, f"{shown(line)} is no size of a chunk")
            return False
        self._left = int(found[1], 16)
        self._awaits = "data" if self._left else "trailer"
        self.chunks += bool(self._left)
        return True

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data
