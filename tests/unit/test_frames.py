"""The strict reader of event streams and JSON refuses what some reader would take for something else."""

from __future__ import annotations

import pytest

from tests.e2e.frames import Event, read_frames, strict_json, strict_object

GOOD = b'data: {"a": 1}\n\n: keep-alive\n: keep-alive\nevent: x\ndata: y\n\n'


def test_events_are_read_with_their_names_and_without_heartbeats() -> None:
    assert read_frames(GOOD) == [Event(None, '{"a": 1}'), Event("x", "y")]
    assert read_frames(b"") == []


def test_of_a_stream_that_was_left_the_whole_events_are_read() -> None:
    body = GOOD + "data: é€😀\n\n".encode() + b"data: more\n"
    whole = [len(GOOD[:16]), len(GOOD), len(body) - 11]
    for cut in range(len(body)):
        assert len(read_frames(body[:cut], whole=False)) == sum(end <= cut for end in whole)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"data: x\n", "not whole"),
        (b"data: x", "not whole"),
        (b"data: \xff\n\n", "no UTF-8"),
        (b"data: x\r\n\r\n\n\n", "ends lines"),
        ("data: \u2028\n\n".encode(), "ends lines"),
        ("data: \u2029\n\n".encode(), "ends lines"),
        ("data: \x85\n\n".encode(), "ends lines"),
        (b"data: \x00\n\n", "ends lines"),
        (b"data: \x1b[0m\n\n", "ends lines"),
        (b"data: \x7f\n\n", "ends lines"),
        (b"data:x\n\n", "not a data line"),
        (b"id: 1\ndata: x\n\n", "not one data line"),
        (b"data: x\ndata: y\n\n", "not one data line"),
        (b"data: x\nevent: y\n\n", "not one data line"),
        (b"event: x\n\n", "not one data line"),
        (b"\n\ndata: x\n\n", "not a data line"),
        (b": keep-alive\n\n", "empty event"),
        (b": ping\ndata: x\n\n", "not one data line"),
        (b"\xef\xbb\xbfdata: x\n\n", "not a data line"),
        (b'{"error": 1}\n\n', "not a data line"),
    ],
)
def test_what_some_reader_would_take_for_something_else_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        read_frames(body)


def test_a_comment_is_refused_where_the_api_has_an_event_for_it() -> None:
    with pytest.raises(AssertionError, match="heartbeats"):
        read_frames(b": keep-alive\ndata: x\n\n", beats=False)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", '{"a": Infinity}', '"\\ud83d"', '{"\\udc00": 1}', "{", b'"\xff"'])
def test_what_is_not_strict_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(AssertionError):
        strict_json(text)


def test_strict_json_is_read() -> None:
    assert strict_json(b'{"a": ["\\ud83d\\ude00", null, 1e3]}') == {"a": ["😀", None, 1000.0]}
    with pytest.raises(AssertionError, match="no object"):
        strict_object("[1]")
