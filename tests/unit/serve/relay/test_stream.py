"""A relayed stream, cut and split anywhere: its ending is true, and what is right passes as it came."""

from __future__ import annotations

import json
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events import (
    Accepted,
    Cancelled,
    Event,
    Failed,
    FailKind,
    Finished,
    Passed,
    Relayed,
    RelayedEvent,
    Text,
    Tick,
    ToolCallEnd,
    ToolCallStart,
)
from serve.entries import Beat
from serve.relay.stream import ResponseRelay
from tests.e2e.relayed import BEGIN, bare, call, calls, ended, message, numbered, reasoning, says, sse, thinks, wire
from tests.e2e.responses_client import Json
from tests.e2e.responses_grammar import check_response_stream
from tests.unit.serve.relay.relays import HEAD, answer, source, told

HELLO = says("Hel", "lo")
KINDS: list[Json] = [
    *BEGIN,
    *thinks("Hm"),
    *says("Hel", "lo", index=1),
    *calls('{"a": ', "1}", index=2),
    *ended("completed", reasoning("Hm"), message("Hello"), call('{"a": 1}')),
]
BARE = b"".join(map(sse, bare([*BEGIN, *HELLO, *calls('{"a": ', "1}", index=1), *ended("completed")])))
"""As llama.cpp writes it."""
TERMINAL = len(sse(numbered(KINDS)[-1]))


def check_cut(raw: bytes, at: int, whole: int) -> None:
    """Everything up to `at` came; with `whole` bytes the terminal event is there."""
    ending = check_response_stream(answer(told([raw[:at]], "cut")))
    assert ending.status == ("completed" if at >= whole else "failed")
    assert "Hello".startswith("".join(ending.texts))
    if ending.status == "failed":
        assert ending.error is not None
        assert ending.error["message"] == "the connection broke"
        done = [e["item"]["type"] for e in ending.events if e["type"] == "response.output_item.done"]
        assert "function_call" not in done
    end = check_response_stream(answer(told([raw[:at]])))
    assert end.status == ("completed" if at >= whole - 2 else "failed")  # its line ends may be missing


@pytest.mark.parametrize("part", range(8))
def test_a_stream_that_breaks_at_any_byte_fails_with_what_came(part: int) -> None:
    for at in range(part, len(BARE) + 1, 8):
        check_cut(BARE, at, len(BARE))


@given(at=st.integers(0, len(wire(KINDS))))
@settings(max_examples=150, deadline=None)
def test_so_does_one_with_all_that_the_api_asks_for(at: int) -> None:
    raw = wire(KINDS)
    check_cut(raw, at, len(raw))


@given(cuts=st.lists(st.integers(0, len(BARE)), max_size=12))
@settings(max_examples=100, deadline=None)
def test_how_the_bytes_come_changes_nothing(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(BARE)]
    pieces = [BARE[a:b] for a, b in pairwise(places)]
    assert told(pieces) == told([BARE])
    right = wire(KINDS)
    scaled = sorted(at * len(right) // len(BARE) for at in places)
    assert told([right[a:b] for a, b in pairwise(scaled)]) == right


def test_text_outside_ascii_passes_as_it_was_written() -> None:
    pieces = ("\u4e16\u754c", "\u2028\U0001f642")
    events = numbered([*BEGIN, *says(*pieces), *ended("completed", message("".join(pieces)))])
    raw = b"".join(f"event: {one['type']}\ndata: {json.dumps(one, ensure_ascii=False)}\n\n".encode() for one in events)
    assert told([raw]) == raw
    assert told([raw[i : i + 1] for i in range(len(raw))]) == raw


def test_what_is_no_unicode_or_no_json_for_others_is_written_anew() -> None:
    raw = wire([*BEGIN, *HELLO, *ended("completed", message("Hello"))])
    odd = raw.replace(b'"delta":"lo"', b'"delta":"\\ud83d","odd":NaN', 1).replace(
        b'"delta":"Hel"', b'"delta":"H\x01"', 1
    )
    out = told([odd])
    assert b"ud83d" not in out
    assert b"NaN" not in out
    deltas = [e["delta"] for e in check_events(out) if "delta" in e]
    assert deltas[:2] == ["H\x01", "\ufffd"]


def check_events(body: bytes) -> list[Json]:
    return [json.loads(block.partition("data: ")[2]) for block in body.decode().split("\n\n")[:-1]]


# --- numbers and beats -------------------------------------------------------------------------------


def beaten(events: list[Json], *places: int) -> bytes:
    """The stream with a heartbeat in front of the events at these places."""
    relay = ResponseRelay(HEAD)

    def slow() -> Generator[Event, None, None]:
        for at, event in enumerate(source(map(sse, numbered(events))), -1):
            if at in places:
                yield Tick()
            yield event

    beating = (Beat() if isinstance(event, Tick) else event for event in relay.judged(slow()))
    return b"".join(frame.data for frame in relay.frames(beating, lambda: 7.0))


def test_only_the_number_changes_behind_a_heartbeat() -> None:
    text = '"sequence_number":3 and \\"sequence_number\\": 4'
    events = [*BEGIN, *says("Hel", text), *ended("completed", message("Hel" + text))]
    out = beaten(events, 4)
    ending = check_response_stream(answer(out))
    assert ending.texts == ["Hel" + text]
    before, _, after = out.partition(b'event: response.in_progress\ndata: {"type": ')
    assert before == wire(events[:4])
    rest = after.partition(b"\n\n")[2]
    assert rest == b"".join(map(sse, numbered(events[4:], 5)))


def test_a_nested_number_is_not_taken_for_the_events_own() -> None:
    odd: Json = {"type": "odd", "of": {"sequence_number": 1}}
    events = [*BEGIN, odd, *HELLO, *ended("completed", message("Hello"))]
    made = check_events(beaten(events, 2))
    assert [one["sequence_number"] for one in made] == list(range(len(made)))
    assert made[3]["of"] == {"sequence_number": 1}


def test_a_heartbeat_is_a_comment_before_the_response_has_a_name_and_nothing_after_the_last_word() -> None:
    events = [*BEGIN, *HELLO, *ended("completed", message("Hello"))]
    assert beaten(events, 0) == b": keep-alive\n" + wire(events)
    relay = ResponseRelay(HEAD)
    for event in relay.judged(source([wire(events)])):
        if isinstance(event, Relayed):
            last = [frame.data for frame in relay.frames([event, Beat(), Finished("stop")], lambda: 7.0)]
            assert last[1] == b""
            break


# --- what goes to the checks in between --------------------------------------------------------------


def judged(*events: Json, limit: int | None = None) -> list[Event]:
    relay = ResponseRelay(HEAD)
    return list(relay.judged(source([wire(events)], limit=limit)))


def test_the_last_message_and_the_calls_are_given_to_be_checked() -> None:
    made = judged(
        *BEGIN, *says("not this"), *says("{}", index=1, id_="msg_b"), *calls("{}", index=2), *ended("completed")
    )
    assert [one.pieces for one in made if isinstance(one, Passed)] == [
        (Text("{}"), ToolCallStart(0, "fc_a", "add"), ToolCallEnd(0))
    ]
    assert isinstance(made[-1], Finished)
    assert made[-1].reason == "tool_calls"


def test_a_limit_is_the_reason_whatever_the_upstream_calls_it() -> None:
    made = judged(*BEGIN, *HELLO, *ended("completed", message("Hello")), limit=7)
    assert isinstance(made[-1], Finished)
    assert made[-1].reason == "length"
    made = judged(*BEGIN, *HELLO, *ended("completed", message("Hello")), limit=8)
    assert isinstance(made[-1], Finished)
    assert made[-1].reason == "stop"


@pytest.mark.parametrize(
    ("terminal", "status"),
    [
        (Cancelled("operator"), "cancelled"),
        (Cancelled("deadline"), "failed"),
        (Cancelled("shutdown"), "failed"),
        (Failed(FailKind.STRUCTURED, "not JSON"), "failed"),
        (Failed(FailKind.INTERNAL, "a fault"), "failed"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_another_ending_than_the_upstreams_closes_what_is_open(terminal: Any, status: str) -> None:
    relay = ResponseRelay(HEAD)
    read = [Accepted(), Tick(), *(Relayed((RelayedEvent(e, sse(e)),)) for e in numbered(KINDS[:-2])), terminal]
    body = b"".join(frame.data for frame in relay.frames(relay.judged(event for event in read), lambda: 7.0))
    ending = check_response_stream(answer(body))
    assert (ending.status, ending.texts) == (status, ["Hello"])
    assert [one["status"] for one in ending.response["output"]] == ["completed", "completed", "incomplete"]
    assert relay.response == ending.response


def test_the_source_is_closed_whoever_leaves() -> None:
    closed: list[str] = []

    def endless() -> Generator[Event, None, None]:
        try:
            while True:
                yield Tick()
        finally:
            closed.append("it")

    events = ResponseRelay(HEAD).judged(endless())
    next(events)
    events.close()
    assert closed == ["it"]


# --- what is missing ---------------------------------------------------------------------------------

SPARE = [n for n, event in enumerate(KINDS) if "delta" not in event]
"""The events without which a client can still know what was said."""


@given(missing=st.sets(st.sampled_from(SPARE)), form=st.sampled_from(["right", "bare"]))
@settings(max_examples=200, deadline=None)
def test_whatever_is_missing_the_stream_keeps_to_the_grammar_and_never_succeeds_without_its_end(
    missing: set[int], form: str
) -> None:
    left = [event for n, event in enumerate(KINDS) if n not in missing]
    raw = wire(left) if form == "right" else b"".join(map(sse, bare(left)))
    ending = check_response_stream(answer(told([raw])))
    call_began = KINDS.index(calls("x", index=2)[0]) not in missing
    whole = len(KINDS) - 1 not in missing and call_began
    assert (ending.status == "completed") == whole
    if whole:
        assert (ending.reasoning, ending.texts) == (["Hm"], ["Hello"])
        assert [one["arguments"] for one in ending.calls] == ['{"a": 1}']
