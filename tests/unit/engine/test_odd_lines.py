"""Lines that are no events: kept, and read as the cause of a failure."""

from __future__ import annotations

import json

import pytest

from engine.odd_lines import MAX_CHARS, OddLines
from engine.sse_codec import SseComment, SseEvent, SseItem, SseOdd
from engine.upstream_errors import Problem

ERROR = json.dumps({"error": {"message": "gone", "type": "oom"}})
GONE = Problem("gone", "oom")


def test_a_line_may_tell_an_error_by_itself() -> None:
    assert OddLines().keep(SseOdd("", ERROR)) == GONE
    assert OddLines().keep(SseOdd("error", json.dumps({"message": "gone", "type": "oom"}))) == GONE
    assert OddLines().keep(SseOdd("error", "gone")) == Problem("gone")
    for odd in (SseOdd("", "Internal Server Error"), SseOdd("x", "y"), SseOdd("", "{broken"), SseOdd("", '{"a": 1}')):
        assert OddLines().keep(odd) is None


def test_lines_may_tell_one_together() -> None:
    lines = OddLines()
    for line in json.dumps({"error": {"message": "gone", "type": "oom"}}, indent=1).splitlines():
        lines.keep(SseOdd("", line))
    assert lines.problem == GONE
    assert OddLines().problem is None


def test_what_tells_none_is_a_note() -> None:
    lines = OddLines()
    assert lines.note == ""
    lines.keep(SseOdd("", "<html><h1>502 Bad Gateway</h1>"))
    assert lines.problem is None
    assert lines.note == "; it wrote: '502 Bad Gateway'"


def test_not_more_is_kept_than_can_be_a_cause() -> None:
    lines = OddLines()
    for _ in range(1000):
        lines.keep(SseOdd("", "x" * 1000))
    assert len(lines.note) < MAX_CHARS


@pytest.mark.parametrize(
    ("pending", "problem", "suspicious"),
    [
        ([], None, False),
        ([SseComment(" error")], None, False),
        ([SseEvent('{"a": ')], None, False),
        ([SseEvent('{"erro')], None, True),
        ([SseEvent(ERROR)], GONE, True),
        ([SseEvent("gone", name="error")], Problem("gone"), True),
        ([SseOdd("", ERROR)], GONE, True),
        ([SseOdd("x", "y")], None, False),
    ],
    ids=str,
)
def test_what_is_left_of_a_stream_that_broke_may_be_the_cause(
    pending: list[SseItem], problem: Problem | None, suspicious: bool
) -> None:
    assert OddLines().at_cut(pending) == (problem, suspicious)


def test_what_was_kept_and_what_is_left_may_be_one() -> None:
    lines = OddLines()
    lines.keep(SseOdd("", ERROR[:15]))
    assert lines.at_cut([SseOdd("", ERROR[15:])]) == (None, True)
    lines = OddLines()
    lines.keep(SseOdd("", '{"error":'))
    assert lines.at_cut([SseOdd("", '{"message": "gone", "type": "oom"}}')]) == (GONE, True)
