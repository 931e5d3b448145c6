"""tools/probe/sse.py: every event that is one is read, and every breach of the format is told."""

from __future__ import annotations

import tracemalloc

import pytest
import sseclient  # pyright: ignore[reportMissingTypeStubs] - it has none

from tools.probe import sse
from tools.probe.sse import HARMLESS, LOSSES, MAX_EVENT_BYTES, MEANINGS, BreachKind, SseComment, SseEvent, SseReader


def read(data: bytes, size: int = 1 << 20) -> tuple[SseReader, list[SseEvent], list[SseComment]]:
    reader = SseReader()
    told = [one for at in range(0, len(data), size) for one in reader.feed(data[at : at + size], float(at))]
    reader.close(float(len(data)))
    events = [one for one in told if isinstance(one, SseEvent)]
    return reader, events, [one for one in told if isinstance(one, SseComment)]


BREACHES: dict[BreachKind, bytes] = {
    "bom": b"\xef\xbb\xbfdata: 1\n\n",
    "cr lines": b"data: 1\r\r",
    "crlf lines": b"data: 1\r\n\r\n",
    "mixed line ends": b"data: 1\r\n\n",
    "invalid utf-8": b"data: \xff1\n\n",
    "unknown field": b"error: 1\n\ndata: 1\n\n",
    "retry no number": b"retry: soon\ndata: 1\n\n",
    "nul in id": b"id: 1\0\ndata: 1\n\n",
    "open event": b"data: 1\n\ndata: 2\n",
    "open line": b"data: 1\n\ndata: 2",
    "empty data": b"data: 1\n\nevent: ping\ndata:\n\n",
    "block without data": b"retry: 10\n\ndata: 1\n\n",
    "bare colon": b":\ndata: 1\n\n",
    "comment block after id": b"id: 1\ndata: 1\n\n: ping\n\n",
    "several data lines": b"data: 1\ndata: 2\n\n",
    "line separators": "data: 1\u20282\n\n".encode(),
    "no space after colon": b"data:1\n\n",
    "long line": b"data: " + b"x" * (512 * 1024) + b"\n\n",
    "endless event": b"data: " + b"x" * MAX_EVENT_BYTES + b"\n\n",
    "comment block": b": ping\n\ndata: 1\n\n",
}
FINE = b": keep-alive\nevent: a\nid: 7\nretry: 10\ndata: 1\n\n: ping\ndata: 2\n\n"


def test_every_kind_of_breach_has_a_case_and_a_meaning() -> None:
    assert set(BREACHES) == set(MEANINGS)
    assert set(MEANINGS) >= LOSSES | HARMLESS
    assert not LOSSES & HARMLESS


@pytest.mark.parametrize("size", [1, 2, 1 << 20])
@pytest.mark.parametrize("kind", BREACHES)
def test_a_breach_is_told_once_and_no_other(kind: BreachKind, size: int) -> None:
    if kind in ("long line", "endless event") and size != 1 << 20:
        size = 1 << 16
    reader, events, _ = read(BREACHES[kind], size)
    assert [(breach.kind, breach.loss) for breach in reader.breaches.values()] == [(kind, kind in LOSSES)]
    assert events
    assert events[0].data.startswith(("1", "x", "\ufffd1"))


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_a_stream_without_breaches_is_read_whole(size: int) -> None:
    reader, events, comments = read(FINE, size)
    assert reader.breaches == {}
    assert [(one.name, one.data, one.id, one.named) for one in events] == [
        ("a", "1", "7", True),
        ("message", "2", "7", False),
    ]
    assert [one.text for one in comments] == ["keep-alive", "ping"]
    assert (reader.events, reader.comments, reader.retry_ms) == (2, 2, 10)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_all_line_ends_are_read_as_another_reader_reads_them(newline: bytes) -> None:
    data = b"event: a\ndata: 1\ndata: 2\n\n: c\n\ndata:  x\n\n".replace(b"\n", newline)
    theirs = [(one.event, one.data) for one in sseclient.SSEClient(iter([data])).events()]  # pyright: ignore
    for size in (1, 2, 100):
        _, events, _ = read(data, size)
        assert [(one.name, one.data) for one in events] == theirs == [("a", "1\n2"), ("message", " x")]


def test_a_character_that_is_split_over_reads_is_no_breach() -> None:
    for size in range(1, 12):
        reader, events, _ = read("data: grün 字 😀\n\n".encode(), size)
        assert (events[0].data, reader.breaches) == ("grün 字 😀", {})


def test_times_are_those_of_the_first_line_and_of_the_blank_line() -> None:
    reader = SseReader()
    assert reader.feed(b"data: 1\nda", 1.0) == []
    assert reader.feed(b"ta: 2\n", 2.0) == []
    (event,) = reader.feed(b"\n: x\n", 3.0)[:1]
    assert isinstance(event, SseEvent)
    assert (event.begun_s, event.at_s, event.at_byte) == (1.0, 3.0, 0)
    (comment,) = reader.feed(b": y\n", 4.0)
    assert (comment.at_s, comment.at_byte) == (4.0, 21)


def test_what_is_lost_is_kept_for_whoever_looks_for_an_error() -> None:
    data = b'error: {"message": "no"}\n\n{"error": 1}\n' + b"data: {}\n\ndata: half"
    assert read(data)[0].stray == ['error: {"message": "no"}', '{"error": 1}', "data: half"]
    assert len(read(b"x: 1\n" * 100)[0].stray) == SseReader.MAX_STRAY


@pytest.mark.parametrize("line", [b"data: " + b"x" * 1000 + b"\n", b"x" * 1000])
def test_an_event_without_an_end_takes_no_more_memory_than_its_limit(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100_000)
    reader = SseReader()
    tracemalloc.start()
    for _ in range(2_000):
        reader.feed(line, 1.0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1_000_000 < 2_000 * len(line)
    assert "endless event" in reader.breaches
