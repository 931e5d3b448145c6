"""The bytes of the gateway benchmark: what its load asks for, and the chat stream that its upstream answers.

Chunks look as vLLM's do, one HTTP chunk for each, and every one carries a stamp (`@` and 16 digits): the microseconds
of the monotonic clock, which all processes of a machine share, at which it was sent; zeros where nobody asks. A stamp
stands in the text, so it comes through any server. It owns no socket and no clock.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass

MODEL = "bench"
PATH = "/v1/chat/completions"
MARK = b" @"
"""Stands once in every chunk of text, and nowhere else."""
STAMP = re.compile(rb" @([0-9]{16})")
BLOCK_CHUNKS = 256
"""The most chunks of one write."""
_ZEROS = b"0" * 16
_LAST_CHUNK = b"0\r\n\r\n"
_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: scripted\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_REQUEST = re.compile(r"chunks=([0-9]+) rate=([0-9.]+) burst=([0-9]+)")
# A text's tokens as they come: mostly plain, some with what JSON escapes or what is more than a byte
_TOKENS = (
    *(" the", " gateway", " passes", " every", " chunk", " on", ",", " and", " says", " how", " it", " ended", "."),
    *("\n", ' "so', " grün", "\n\n", " Then", " the", " upstream", " goes", " on", " with", " its", " answer", ":"),
    *(" one", " two", " three", " 字", " more", "!"),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A stream that is asked for: so many chunks of text, `rate` of them a second. Rate 0: as fast as they are taken,
    `burst` of them (`BLOCK_CHUNKS` at most) in each write."""

    chunks: int
    rate: float
    burst: int = 1

    @property
    def text(self) -> str:
        return f"chunks={self.chunks} rate={self.rate:g} burst={self.burst}"


def request_bytes(port: int, wanted: Wanted) -> bytes:
    """The whole HTTP request; the numbers stand in the message, which every server passes on."""
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": wanted.text}],
            "max_tokens": wanted.chunks,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: text/event-stream\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def wanted_in(body: bytes) -> Wanted | None:
    """What a request's body asks for; None where it is none of ours."""
    try:
        found = _REQUEST.search(json.dumps(json.loads(body)["messages"]))
    except (ValueError, TypeError, KeyError):
        return None
    return None if found is None else Wanted(int(found[1]), float(found[2]), int(found[3]))


class StreamBytes:
    """One answer's bytes, made before they are needed. `id_` is its name in every chunk."""

    def __init__(self, id_: str) -> None:
        self._id = id_
        frames = [_stamped_frame(self._event({"content": f"{token}{MARK.decode()}%"})) for token in _TOKENS]
        self._frames = frames
        self._block = b""
        self._ends: list[int] = []

    def _event(self, delta: dict[str, object], finish: str | None = None) -> bytes:
        return self._data(choices=[{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])

    def _data(self, **members: object) -> bytes:
        head = {"id": self._id, "object": "chat.completion.chunk", "created": 1764547200, "model": MODEL}
        text = json.dumps(head | members, ensure_ascii=False, separators=(",", ":"))
        return b"data: " + text.encode() + b"\n\n"

    def opening(self) -> bytes:
        """The head, and the chunk that names the role."""
        return _HEAD + http_chunk(self._event({"role": "assistant", "content": ""}))

    def stamped(self, index: int, now_us: int) -> bytes:
        """The text's chunk `index`, sent at `now_us`."""
        before, after = self._frames[index % len(self._frames)]
        return before + b"%016d" % now_us + after

    def block(self, chunks: int, start: int = 0) -> bytes:
        """So many chunks from the text's chunk `start` on, without times; fewer where the block ends."""
        if not self._block:
            pieces = [_ZEROS.join(self._frames[index % len(self._frames)]) for index in range(BLOCK_CHUNKS)]
            self._block = b"".join(pieces)
            self._ends = [0, *itertools.accumulate(map(len, pieces))]
        return self._block[self._ends[start] : self._ends[min(BLOCK_CHUNKS, start + chunks)]]

    def ending(self, chunks: int) -> bytes:
        """What ends a stream of so many chunks: finish, usage, end marker, the body's end."""
        counts = {"prompt_tokens": 8, "completion_tokens": chunks, "total_tokens": 8 + chunks}
        events = (self._event({}, "stop"), self._data(choices=[], usage=counts), b"data: [DONE]\n\n")
        return b"".join(map(http_chunk, events)) + _LAST_CHUNK


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _stamped_frame(event: bytes) -> tuple[bytes, bytes]:
    """The HTTP chunk of an event, before and after the stamp that takes the place of its `%`."""
    before, _, after = event.partition(b"%")
    return b"%x\r\n%b" % (len(event) - 1 + len(_ZEROS), before), after + b"\r\n"
