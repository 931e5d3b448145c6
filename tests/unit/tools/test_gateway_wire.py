"""tools/gateway_wire.py: what is asked for comes out again, and the stream is one that every client reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tools.gateway_wire import BLOCK_CHUNKS, MARK, STAMP, StreamBytes, Wanted, request_bytes, wanted_in


def unframed(data: bytes) -> bytes:
    """The body in HTTP chunks that are all whole."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        body += data[: int(size, 16)]
        assert data[int(size, 16) :][:2] == b"\r\n"
        data = data[int(size, 16) + 2 :]
    return body


def events(data: bytes) -> list[Any]:
    found = unframed(data).split(b"\n\n")
    assert found.pop() == b""
    return [json.loads(event.removeprefix(b"data: ")) for event in found]


@pytest.mark.parametrize("wanted", [Wanted(7, 0.0, 256), Wanted(1_000, 50.0), Wanted(1, 0.5, 3)])
def test_what_a_request_asks_for_is_read_from_its_body(wanted: Wanted) -> None:
    head, _, body = request_bytes(80, wanted).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert wanted_in(body) == wanted


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"messages": []}', b'{"messages": "chunks=x"}'])
def test_a_body_that_asks_for_nothing_gives_none(body: bytes) -> None:
    assert wanted_in(body) is None


def test_every_chunk_is_a_whole_event_with_its_stamp_in_the_text() -> None:
    stream = StreamBytes("chatcmpl-1")
    texts: list[str] = []
    for index in range(100):
        (chunk,) = events(stream.stamped(index, 1_000_000 + index))
        assert (chunk["id"], chunk["object"]) == ("chatcmpl-1", "chat.completion.chunk")
        (choice,) = chunk["choices"]
        assert choice["finish_reason"] is None
        texts.append(choice["delta"]["content"])
    assert [text[-17:] for text in texts] == [f"@{1_000_000 + index:016d}" for index in range(100)]
    assert any("\n" in text for text in texts)
    assert any(not text.isascii() for text in texts)


def test_a_block_is_its_chunks_and_ends_where_it_ends() -> None:
    stream = StreamBytes("chatcmpl-1")
    whole = stream.block(BLOCK_CHUNKS)
    assert whole == b"".join(stream.stamped(index, 0) for index in range(BLOCK_CHUNKS))
    assert whole.count(MARK) == len(STAMP.findall(whole)) == BLOCK_CHUNKS
    assert stream.block(3, 5) == b"".join(stream.stamped(index, 0) for index in (5, 6, 7))
    assert stream.block(9, BLOCK_CHUNKS - 1) == stream.stamped(BLOCK_CHUNKS - 1, 0)


def test_the_ending_says_stop_counts_and_ends_the_body() -> None:
    data = StreamBytes("chatcmpl-1").ending(41)
    assert data.endswith(b"\r\n0\r\n\r\n")
    body = unframed(data.removesuffix(b"0\r\n\r\n"))
    finish, usage, done, rest = body.split(b"\n\n")
    assert json.loads(finish[6:])["choices"][0]["finish_reason"] == "stop"
    assert json.loads(usage[6:])["usage"]["completion_tokens"] == 41
    assert (done, rest) == (b"data: [DONE]", b"")
