"""Any answer, cut anywhere: the same events again, numbers without gaps, and the body says what the stream said."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events import (
    Accepted,
    Cancelled,
    Finished,
    Reasoning,
    Terminal,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from serve.encode.responses import Head, ResponseEncoder
from serve.entries import Beat, Entry
from tests.unit.serve.encode.response_streams import (
    NASTY,
    TERMINALS,
    check_sdk_response,
    encode,
    ended,
    head,
    judged,
    told,
)

texts = st.one_of(st.sampled_from(["", "a", "word ", NASTY]), st.text(max_size=6))
values = st.dictionaries(st.text(max_size=3), st.one_of(st.integers(), st.text(max_size=4), st.none()), max_size=3)
logprobs: st.SearchStrategy[Any] = st.sampled_from(
    [None, {"content": [{"token": "a", "logprob": -1.5, "bytes": [97], "top_logprobs": []}]}, {"content": "x"}]
)
heads = st.builds(head, background=st.booleans(), include_logprobs=st.booleans())
counts = st.one_of(st.none(), st.just(Usage(9, 8, 7, 6)))


@st.composite
def answers(draw: st.DrawFn) -> list[Entry]:
    """An answer as an engine may give it: calls are opened, written in turns and ended; then a terminal that fits."""
    entries: list[Entry] = [Accepted()] if draw(st.booleans()) else []
    rests: dict[int, str] = {}  # what is still to be written of the calls that are open
    calls = 0
    for step in draw(st.lists(st.sampled_from("ttttrrrbscccce"), max_size=30)):
        index = draw(st.sampled_from(sorted(rests))) if rests else None
        if step == "t":
            entries.append(Text(draw(texts), draw(logprobs)))
        elif step == "r":
            entries.append(Reasoning(draw(texts)))
        elif step == "b":
            entries.append(Beat())
        elif step == "s":
            entries.append(ToolCallStart(calls, f"call_{calls}", draw(st.sampled_from(["add", "sub"]))))
            rests[calls] = json.dumps(draw(values))
            calls += 1
        elif index is not None and step == "c":
            length = draw(st.integers(0, len(rests[index])))
            entries.append(ToolCallArgs(index, rests[index][:length]))
            rests[index] = rests[index][length:]
        elif index is not None:
            entries.extend([ToolCallArgs(index, rests.pop(index)), ToolCallEnd(index)])
    terminal: Terminal = draw(st.sampled_from([*TERMINALS, Cancelled("client"), Finished("stop")]))
    if isinstance(terminal, Finished) and terminal.reason in ("stop", "tool_calls"):
        for index, rest in rests.items():
            entries.extend([ToolCallArgs(index, rest), ToolCallEnd(index)])
    return [*entries, ended(terminal)]


@settings(max_examples=300, deadline=None)
@given(heads, answers())
def test_any_answer_keeps_the_grammar_and_says_what_was_made(of: Head, entries: list[Entry]) -> None:
    encoder, events = encode(of, entries)
    ending = judged(events)
    assert told(encoder.response()) == ending.response
    assert "".join(ending.texts) == "".join(entry.text for entry in entries if isinstance(entry, Text))
    assert "".join(ending.reasoning) == "".join(entry.text for entry in entries if isinstance(entry, Reasoning))
    starts = [entry for entry in entries if isinstance(entry, ToolCallStart)]
    assert [call["call_id"] for call in ending.calls] == [start.id for start in starts]
    for start, call in zip(starts, ending.calls, strict=True):
        written = [entry.text for entry in entries if isinstance(entry, ToolCallArgs) and entry.index == start.index]
        assert call["arguments"] == "".join(written)
        assert (call["status"] == "completed") == (ToolCallEnd(start.index) in entries)


@settings(max_examples=100, deadline=None)
@given(heads, answers(), st.data())
def test_the_events_of_the_first_entries_are_the_first_events(
    of: Head, entries: list[Entry], data: st.DataObject
) -> None:
    _, events = encode(of, entries)
    count = data.draw(st.integers(0, len(entries)))
    encoder, first = encode(of, entries[:count])
    assert first == events[: len(first)]
    assert [event["sequence_number"] for event in first] == list(range(len(first)))
    check_sdk_response(told(encoder.response()))


@settings(max_examples=100, deadline=None)
@given(heads, answers(), st.data())
def test_the_rest_of_a_stream_fits_behind_any_cut(of: Head, entries: list[Entry], data: st.DataObject) -> None:
    _, events = encode(of, entries)
    number = data.draw(st.integers(1, len(events) - 1))
    resumed = encode(of, entries)[1][number:]
    ending = judged(resumed, first_number=number)
    assert ending.response == events[-1]["response"]
    assert [*events[:number], *resumed] == events


@settings(max_examples=100, deadline=None)
@given(heads, answers(), st.sets(st.integers(0, 40)))
def test_looking_at_the_response_on_the_way_changes_nothing(of: Head, entries: list[Entry], looks: set[int]) -> None:
    encoder = ResponseEncoder(of)
    events: list[Any] = [*encoder.start()]
    for number, entry in enumerate(entries):
        if number in looks:
            shown = encoder.response()
            check_sdk_response(told(shown))
        events.extend(encoder.feed(entry))
    assert told(events) == encode(of, entries)[1]
