"""The body of an HTTP/1.1 answer: bytes as they come from the connection -> bytes of the body, and where it ends.

It owns no socket and undoes no content coding. Heads are not read here; trailers are checked and dropped.

All chunks of one read come out as one piece: a reader's cost is per read and, for each chunk, near that of a copy.

Source: RFC 9112 §6.3 (which framing), §7.1 (chunked). Lines end with CRLF only: §2.2 lets a bare LF pass, nothing needs
it, and two readers that differ about it disagree about where an answer ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

MAX_LINE_BYTES = 16384
"""The most that the line of a chunk's size (with its extensions) or of a trailer may take."""
MAX_TRAILER_BYTES = 65536
_SHORT_LINE_BYTES = 30
"""The usual size lines, those that are remembered, are not longer."""

_CRLF = b"\r\n"
_SIZE_LINE = re.compile(rb"\r\n([0-9A-Fa-f]{1,20})[ \t]*(?:;[^\0\r\n]*)?")  # §7.1.1: BWS, then extensions, ignored
_FIELD_LINE = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+:[^\0\r\n]*")
_FOLDED_LINE = re.compile(rb"[ \t][^\0\r\n]*")  # §5.2: still read, although nobody may send it
_LENGTH = re.compile(r"[0-9]{1,19}", re.ASCII)


class FramingUnknown(ValueError):
    """The head does not say where the body ends, or says it in a way that is not read here."""


class Body(Protocol):
    """A body on its way. It is fed until it is `whole` or has a `problem`, and never after that."""

    @property
    def announced(self) -> bool:
        """Whether the head already said where the body ends."""
        ...

    @property
    def between_chunks(self) -> bool:
        """Whether the next byte begins one of HTTP's chunks."""
        ...

    @property
    def whole(self) -> bool: ...

    @property
    def problem(self) -> str | None:
        """Why the rest cannot be read. What came before the damage was given."""
        ...

    @property
    def rest(self) -> bytes:
        """What was fed beyond the end of the body."""
        ...

    def feed(self, data: bytes) -> bytes:
        """The next part of the body; b"" where the bytes hold none."""
        ...

    def end(self) -> str | None:
        """The connection has ended: None if that ends the body, or what is missing."""
        ...


def body_of(method: str, status: int, headers: Mapping[str, str]) -> Body:
    """The reader for the answer to a request. `headers`: names in lower case, repeated ones joined by commas.

    Raises: FramingUnknown.
    """
    if method in ("HEAD", "CONNECT") or status < 200 or status in (204, 304):
        return _Announced(0)
    codings = _values(headers.get("transfer-encoding", ""))
    if codings:  # beats a length: §6.3, rule 3
        if codings != ["chunked"]:
            raise FramingUnknown(f"transfer-encoding {', '.join(codings)[:80]!r} is not supported")
        return _Chunked()
    lengths = set(_values(headers.get("content-length", "")))
    if "content-length" not in headers:
        return _UntilEnd()
    if len(lengths) > 1:
        raise FramingUnknown("conflicting content-length headers")
    length = lengths.pop() if lengths else ""
    if _LENGTH.fullmatch(length) is None:
        raise FramingUnknown(f"bad content-length {length[:80]!r}")
    return _Announced(int(length))


def _values(header: str) -> list[str]:
    return [value for part in header.lower().split(",") if (value := part.strip(" \t"))]


def only_chunk(data: bytes) -> bytes:
    """The data of the chunk, if the bytes are one whole chunk, its CRLF included, and nothing else; else b""."""
    stop = data.find(_CRLF, 1, 1 + _SHORT_LINE_BYTES)
    if stop < 0 or _chunk_size(_CRLF + data[:stop]) != len(data) - stop - 4 or not data.endswith(_CRLF):
        return b""
    return data[stop + 2 : -2]


def whole_chunks(data: bytes) -> bytes:
    """The data of the chunks, if the bytes are whole chunks that are not the last one, and nothing else; else b""."""
    if only := only_chunk(data):
        return only
    body = _Chunked()
    given = body.feed(data)
    return given if body.between_chunks else b""


class _Announced:
    """A body of a known length."""

    announced = True
    between_chunks = False
    problem = None

    def __init__(self, length: int) -> None:
        self._length = length
        self._left = length
        self.whole = length == 0
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        if self.whole or len(data) > self._left:
            data, self.rest = data[: self._left], data[self._left :]
        self._left -= len(data)
        self.whole = self._left == 0
        return data

    def end(self) -> str | None:
        return f"received {self._length - self._left} bytes, expected {self._length}"


class _UntilEnd:
    """A body that ends with the connection: nobody can tell it from a cut one."""

    announced = False
    between_chunks = False
    problem = None
    rest = b""

    def __init__(self) -> None:
        self.whole = False

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> str | None:
        self.whole = True
        return None


class _Chunked:
    """What stands between the data of two chunks is read at once, as CRLF, size line, CRLF; the first chunk's missing
    CRLF is put before it."""

    announced = False

    def __init__(self) -> None:
        self.whole = False
        self.problem: str | None = None
        self.rest = b""
        self._left = 0  # what has not come of the present chunk's data
        self._held = _CRLF  # a delimiter, or a trailer's line, whose end has not come
        self._trailer_bytes = -1  # since the last chunk; -1 before it

    @property
    def between_chunks(self) -> bool:
        return self._left == 0 and self._held == _CRLF and self._trailer_bytes < 0 and self.problem is None

    def feed(self, data: bytes) -> bytes:
        left, size = self._left, len(data)
        if left >= size:
            self._left = left - size
            return data
        if self._trailer_bytes >= 0:
            self._trailers(self._held + data)
            return b""
        if not left:
            if self._held == _CRLF and (only := only_chunk(data)):
                return only
            data = self._held + data
            size = len(data)
        pieces = [data[:left]] if left else []
        at = left
        while at < size:
            stop = data.find(_CRLF, at + 2, at + 2 + MAX_LINE_BYTES)
            if stop < 0:
                self._hold(data[at:])
                break
            delimiter = data[at:stop]
            length = (
                _chunk_size(delimiter)
                if len(delimiter) <= 2 + _SHORT_LINE_BYTES
                else _chunk_size.__wrapped__(delimiter)
            )
            if length <= 0:
                self._last(length, delimiter, data[stop + 2 :])
                break
            at = stop + 2 + length
            pieces.append(data[stop + 2 : at])
        else:
            self._left = at - size
            self._held = b""
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _hold(self, start: bytes) -> None:
        """Keep the start of a delimiter, if it can be one."""
        self._left = 0
        self._held = start
        if not _CRLF.startswith(start[:2]):
            self.problem = f"a chunk ends with {start[:2]!r} instead of CRLF"
        elif len(start) >= 2 + MAX_LINE_BYTES:
            self.problem = f"the line of a chunk's size is longer than {MAX_LINE_BYTES} bytes"

    def _last(self, length: int, delimiter: bytes, data: bytes) -> None:
        self._left = 0
        if length == 0:
            self._trailer_bytes = 0
            self._trailers(data)
        elif delimiter.startswith(_CRLF):
            self.problem = f"bad chunk size {delimiter[2:82]!r}"
        else:
            self.problem = f"a chunk ends with {delimiter[:2]!r} instead of CRLF"

    def _trailers(self, data: bytes) -> None:
        at = 0
        while True:
            stop = data.find(_CRLF, at, at + MAX_LINE_BYTES)
            if stop < 0:
                self._held = data[at:]
                if len(self._held) >= MAX_LINE_BYTES:
                    self.problem = f"a trailer is longer than {MAX_LINE_BYTES} bytes"
                return
            if stop == at:
                self.whole = True
                self.rest = data[stop + 2 :]
                return
            line = data[at:stop]
            if not (_FIELD_LINE.fullmatch(line) or (self._trailer_bytes and _FOLDED_LINE.fullmatch(line))):
                self.problem = f"bad trailer {line[:80]!r}"
                return
            at = stop + 2
            self._trailer_bytes += len(line)
            if self._trailer_bytes > MAX_TRAILER_BYTES:
                self.problem = f"the trailers are longer than {MAX_TRAILER_BYTES} bytes"
                return

    def end(self) -> str | None:
        return "the chunked body has no end"


@lru_cache(maxsize=1024)  # a stream's chunks have few different sizes
def _chunk_size(delimiter: bytes) -> int:
    """The size in `CRLF size-line`, or -1 if it is none."""
    match = _SIZE_LINE.fullmatch(delimiter)
    return -1 if match is None else int(match[1], 16)
