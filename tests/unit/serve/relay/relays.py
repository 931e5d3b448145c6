"""A relay without sockets: an upstream's bytes in, the client's bytes out."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Literal

from engine.events import Accepted, Event, FailKind
from engine.response_reader import ResponseReader
from serve.encode.responses import ECHO_DEFAULTS
from serve.relay.objects import RelayHead
from serve.relay.stream import ResponseRelay
from tests.e2e.client import Answer

HEAD = RelayHead("resp_ours", 3, "ours", ECHO_DEFAULTS)


def source(
    pieces: Iterable[bytes], ends: Literal["end", "cut"] = "end", limit: int | None = None
) -> Generator[Event, None, None]:
    """What the engine makes of an upstream's stream. "cut": the connection breaks behind it."""
    reader = ResponseReader("the upstream", limit)
    yield Accepted()
    for piece in pieces:
        yield from reader.feed(piece)[0]
        if reader.terminal is not None:
            return
    yield from reader.end() if ends == "end" else reader.cut(FailKind.DIED, "the connection broke")


def told(pieces: Iterable[bytes], ends: Literal["end", "cut"] = "end", limit: int | None = None) -> bytes:
    """What the client gets."""
    relay = ResponseRelay(HEAD)
    frames = list(relay.frames(relay.judged(source(pieces, ends, limit)), lambda: 7.0))
    assert [frame.last for frame in frames] == [False] * (len(frames) - 1) + [True]
    return b"".join(frame.data for frame in frames)


def answer(body: bytes) -> Answer:
    """The client's bytes as an answer, for the checker."""
    return Answer(200, {"content-type": "text/event-stream"}, body, True)
