"""Bytes of an event stream -> whole events as they came, where each is one line of data and nothing else.

That is how nearly every server writes them, and what can be passed on without a look at each. Comments between them are
dropped; any other form goes through `engine.sse_codec`, from there to the end of the stream. It knows no JSON, no API.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from engine.sse_codec import MAX_EVENT_BYTES, SseDecoder, SseItem, SseTooLong

_BOM = b"\xef\xbb\xbf"
_PLAIN = re.compile(rb"(?:data: [^\n]*+\n\n)*+")
_COMMENTS = re.compile(rb"(?::[^\n]*+\n|\n)*+")

Part: TypeAlias = bytes | SseItem
"""Whole plain events (`data: …`, a line each), or what the decoder makes of something else."""


class EventBlocks:
    """Feed it the stream's bytes as they come. Not thread-safe, does not block. The cost is linear in the number of
    bytes, whatever the chunking."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_event_bytes
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._begun = False
        self._decoder = SseDecoder(max_event_bytes)
        self._decoder.feed(b"\n")  # a mark at the beginning is ours to drop
        self._decoding = False

    @property
    def between(self) -> bool:
        """Whether all that came is given out: what comes next begins an event."""
        return self._begun and not self._waiting and not self._decoding

    def feed(self, data: bytes) -> list[Part]:
        """Read the next bytes; gives what became whole.

        Raises: SseTooLong: an event exceeds the limit.
        """
        if self._decoding:
            return [*self._decoder.feed(data)]
        if not self._begun:
            data = self._taken() + data
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._wait(data)
                return []
            self._begun = True
            data = data.removeprefix(_BOM)
        if b"\r" in data:
            return self._odd(self._taken() + data)
        if b"\n" not in data:
            self._wait(data)
            return []
        block = self._taken() + data
        cut = block.rfind(b"\n\n") + 2
        whole, rest = (block[:cut], block[cut:]) if cut >= 2 else (b"", block)
        parts = self._parts(whole)
        if rest[:1] in (b":", b"\n"):
            rest = rest[_COMMENTS.match(rest).end() :]  # type: ignore[union-attr]  # it matches the empty string, too
        line, newline, more = rest.partition(b"\n")
        if more or (newline and not line.startswith(b"data: ")):
            return parts + self._odd(rest)
        self._wait(rest)
        return parts

    def end(self) -> list[SseItem]:
        """What is still open when the stream is over; see `SseDecoder.end`."""
        return self._decoder.feed(self._taken()) + self._decoder.end()

    def _taken(self) -> bytes:
        block = b"".join(self._waiting)
        self._waiting = []
        self._waiting_bytes = 0
        return block

    def _wait(self, data: bytes) -> None:
        if data:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if self._waiting_bytes > self._max_bytes:
                raise SseTooLong(f"one event is longer than {self._max_bytes} bytes")

    def _odd(self, data: bytes) -> list[Part]:
        self._decoding = True
        return [*self._decoder.feed(data)]

    def _parts(self, whole: bytes) -> list[Part]:
        if _PLAIN.fullmatch(whole):
            return [whole] if whole else []
        parts: list[Part] = []
        for block in whole.split(b"\n\n")[:-1]:
            lines = [line for line in block.split(b"\n") if line and not line.startswith(b":")]
            if len(lines) == 1 and lines[0].startswith(b"data: "):
                parts.append(lines[0] + b"\n\n")
            elif lines:
                parts += self._decoder.feed(block + b"\n\n")
        return parts
