"""An upstream's Responses stream: what it says of its ending, and what passes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.events import (
    Cancelled,
    Event,
    Failed,
    FailKind,
    Finished,
    Relayed,
    RelayedEvent,
    UpstreamError,
    Usage,
)
from engine.response_reader import PageReader, ResponseReader
from tests.e2e.relayed import BEGIN, ID, USAGE, bare, ended, message, numbered, response, says, sse, wire

HELLO = says("Hel", "lo")
COMPLETED = ended("completed", message("Hello"))
COUNTED = Usage(9, 7, 4, 2)


def read(*pieces: bytes, limit: int | None = None, context: int | None = None, cut: bool = False) -> list[Event]:
    reader = ResponseReader("it", limit, context)
    events: list[Event] = []
    for piece in pieces:
        events += reader.feed(piece)[0]
        if reader.terminal is not None:
            break
    else:
        events += reader.cut(FailKind.DIED, "it broke") if cut else reader.end()
    assert events[-1] is reader.terminal
    return events


def relayed(events: list[Event]) -> list[RelayedEvent]:
    return [one for event in events if isinstance(event, Relayed) for one in event.events]


def test_every_event_passes_with_its_bytes_and_the_terminal_is_what_the_last_one_says() -> None:
    events = numbered([*BEGIN, *HELLO, *COMPLETED])
    made = read(wire(events))
    assert relayed(made) == [RelayedEvent(one, sse(one)) for one in numbered(events)]
    assert made[-1] == Finished("stop", COUNTED)


def test_what_came_at_once_passes_at_once() -> None:
    made = read(wire([*BEGIN, *HELLO]), sse(COMPLETED[0]))
    assert [type(event) for event in made] == [Relayed, Relayed, Finished]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"event: response.created\ndata: {}\n\n", "no type"),
        (b'data: {"type": "x", "a": "\\ud800"}\n\n', "half a character"),
        (b'data: {"type": "x", "a": NaN}\n\n', "no number"),
        (b'data: {"type": "x", "a": "\x01"}\n\n', "a control character"),
    ],
)
def test_what_others_cannot_read_has_no_bytes_that_could_pass(raw: bytes, why: str) -> None:
    made = relayed(read(raw, wire(COMPLETED)))
    assert made[0].raw == b"", why
    json.dumps(made[0].value, allow_nan=False).encode("ascii")


def test_the_form_of_what_passes_is_the_one_that_every_reader_takes() -> None:
    event = numbered(BEGIN)[0]
    data = json.dumps(event, indent=1)
    lines = "".join(f"data:{line}\r\n" for line in data.splitlines())
    (first, _) = relayed(read(f"id: 4\r\n{lines}\r\n".encode(), wire(COMPLETED)))
    assert first.raw.startswith(b"event: response.created\ndata: {")
    assert first.raw.count(b"\n") == 3
    assert json.loads(first.raw.partition(b"data: ")[2]) == event


# --- endings -----------------------------------------------------------------------------------------

OF_LIMIT: dict[str, Any] = {"limit": 7}
FINISHED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "completed": (COMPLETED, {"limit": 8, "context": 17}, "stop"),
    "at the limit": (COMPLETED, OF_LIMIT, "length"),
    "at the response's limit": (ended("completed", max_output_tokens=7), {}, "length"),
    "the request's limit counts": (ended("completed", max_output_tokens=7), {"limit": 8}, "stop"),
    "at the end of the context": (COMPLETED, {"context": 16}, "length"),
    "no counts": (ended("completed", usage=None), OF_LIMIT, "stop"),
    "incomplete": (ended("incomplete"), {}, "length"),
    "for the reason of the example": (ended("incomplete", incomplete_details={"reason": "max_tokens"}), {}, "length"),
    "filtered": (ended("incomplete", incomplete_details={"reason": "content_filter"}), OF_LIMIT, "content_filter"),
    "completed with details": (ended("completed", incomplete_details={"reason": "max_output_tokens"}), {}, "length"),
    "no reason at the limit": (ended("incomplete", incomplete_details=None), OF_LIMIT, "length"),
    "completed and then incomplete": ([*COMPLETED, *ended("incomplete")], {}, "length"),
    "incomplete and then completed": ([*ended("incomplete"), *COMPLETED], {}, "length"),
    "no status": ([{"type": "response.completed", "response": {"usage": USAGE}}], {}, "stop"),
}


@pytest.mark.parametrize("name", FINISHED)
def test_how_it_ended_is_the_worse_of_what_it_says(name: str) -> None:
    events, given, reason = FINISHED[name]
    (*_, terminal) = read(wire([*BEGIN, *events]), **given)
    assert isinstance(terminal, Finished)
    assert terminal.reason == reason


@pytest.mark.parametrize("event_line", ["response.incomplete", "response.completed"])
def test_the_event_line_counts_too(event_line: str) -> None:
    raw = sse({"type": "response.completed", "response": response("completed")}, event_line)
    made = read(raw, limit=7 if event_line.endswith("incomplete") else None)
    assert isinstance(made[-1], Finished)
    assert made[-1].reason == ("length" if event_line.endswith("incomplete") else "stop")


def test_a_cancelled_answer_is_one() -> None:
    assert read(wire(ended("cancelled")))[-1] == Cancelled("operator", COUNTED)


def test_a_failure_ends_it_at_once_with_its_cause() -> None:
    raw = wire(ended("failed", error={"code": "rate_limit_exceeded", "message": "slow down"}))
    made = read(raw, b"never read")
    told = UpstreamError(200, None, "rate_limit_exceeded")
    assert made[-1] == Failed(FailKind.DIED, "it failed: slow down", COUNTED, told)
    assert len(relayed(made)) == 1


def test_what_an_event_of_an_unknown_kind_calls_a_message_is_no_error() -> None:
    made = read(wire([{"type": "keepalive", "message": "here", "detail": "still"}, *COMPLETED]))
    assert isinstance(made[-1], Finished)
    made = read(wire([{"type": "odd", "error": {"message": "gone"}}]))
    assert made[-1] == Failed(FailKind.DIED, "it failed: gone", Usage(), UpstreamError(200))


def test_events_behind_the_end_are_dropped_and_more_of_the_answer_is_a_contradiction() -> None:
    late: list[dict[str, Any]] = [{"type": "response.output_item.done", "item": {}}, {"type": "keepalive"}]
    made = read(wire([*COMPLETED, *late]))
    assert len(relayed(made)) == 1
    assert isinstance(made[-1], Finished)
    for one in (HELLO[0], HELLO[2]):
        made = read(wire([*COMPLETED, one]))
        assert isinstance(made[-1], Failed)
        assert made[-1].kind is FailKind.PROTOCOL


def test_an_answer_whose_end_came_is_whole_although_the_connection_breaks() -> None:
    raw = wire([*BEGIN, *COMPLETED])
    assert isinstance(read(raw, cut=True)[-1], Finished)
    assert isinstance(read(raw, b": bye", cut=True)[-1], Finished)
    for rest in (b'data: {"error": {"message": "gone"}}', b'{"error": "gone"}', b'data: {"erro'):
        assert isinstance(read(raw, rest, cut=True)[-1], Failed)
    assert read(wire(BEGIN), cut=True)[-1] == Failed(FailKind.DIED, "it broke", Usage())


def test_without_counts_each_delta_is_one_token() -> None:
    made = read(wire([*BEGIN, {"type": "response.reasoning_text.delta", "delta": "x"}, *HELLO]), cut=True)
    assert made[-1] == Failed(FailKind.DIED, "it broke", Usage(0, 3, 0, 1))


# --- signs of life -----------------------------------------------------------------------------------


def test_what_only_keeps_a_connection_open_is_no_sign_of_life() -> None:
    reader = ResponseReader("it")
    beat, progress = sse(BEGIN[1]), sse({**BEGIN[1], "prompt_progress": {"processed": 1}})
    given = [wire(BEGIN), beat, beat, progress, b": ping\n\n", b"data:\n\n", sse({"type": "keepalive"}), sse(HELLO[2])]
    assert [reader.feed(piece)[1] for piece in given] == [True, False, False, True, False, False, False, True]


# --- one body ----------------------------------------------------------------------------------------


def test_a_body_that_is_a_response_is_its_last_event() -> None:
    value = response("completed", [message("Hello")])
    made = ResponseReader("it").whole(b"\xef\xbb\xbf" + json.dumps(value).encode())
    assert relayed(made) == [RelayedEvent({"type": "response.completed", "response": value})]
    assert made[-1] == Finished("stop", COUNTED)
    assert ResponseReader("it", 7).whole(json.dumps(value).encode())[-1] == Finished("length", COUNTED)


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        (b'{"error": {"message": "gone"}}', FailKind.DIED, "gone"),
        (b'{"detail": "gone"}', FailKind.DIED, "gone"),
        (json.dumps(response("queued")).encode(), FailKind.PROTOCOL, "'queued'"),
        (json.dumps(response("failed", error={"message": "gone"})).encode(), FailKind.DIED, "gone"),
        (b"{}", FailKind.PROTOCOL, "status"),
        (b"[1]", FailKind.PROTOCOL, "not a JSON object"),
        (b"{oops", FailKind.PROTOCOL, "not JSON"),
        (b"[" * 100_000, FailKind.PROTOCOL, "JSON"),
    ],
    ids=range(8),
)
def test_a_body_that_is_none_is_told(body: bytes, kind: FailKind, why: str) -> None:
    (*_, terminal) = ResponseReader("it").whole(body)
    assert isinstance(terminal, Failed)
    assert terminal.kind is kind
    assert why in terminal.message


def test_a_page_rides_on_the_terminal() -> None:
    for reader in (PageReader("it"), PageReader("it")):
        reader.feed(b'{"id": ')
        assert reader.feed(b'"x"}') == ([], True)
        assert reader.end() == [Finished("stop", raw=b'{"id": "x"}')]
        assert reader.terminal is not None
    assert PageReader("it").whole(b"[]") == [Finished("stop", raw=b"[]")]
    (failed,) = PageReader("it").whole(b"<html>502</html>")
    assert failed == Failed(FailKind.PROTOCOL, "it answered no JSON: 502")
    assert PageReader("it").cut(FailKind.SILENT, "it says nothing") == [Failed(FailKind.SILENT, "it says nothing")]


def test_llama_cpps_form_is_read() -> None:
    made = read(b"".join(map(sse, bare([*BEGIN, *HELLO, *COMPLETED]))))
    assert made[-1] == Finished("stop", Usage(9, 7, 4, 0))
    assert relayed(made)[0].value == {
        "type": "response.created",
        "response": {"id": ID, "object": "response", "status": "in_progress"},
    }
