"""The bytes of entries: what goes in comes out, and nothing else is taken for entries."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.events import (
    Accepted,
    Cancelled,
    CancelledBy,
    Failed,
    FailKind,
    Finished,
    FinishReason,
    Reasoning,
    Text,
    Timings,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    UpstreamError,
    Usage,
)
from serve.entries import Beat, Ended, Entry, Made, decode, encode

EVERY_TERMINAL: list[Entry] = [
    Ended(Finished("stop", Usage(1, 2, 3, 4), "###"), 1_750_000_000.123456),
    Ended(Finished("length"), 0.0),
    Ended(Cancelled("operator", Usage(1, 2)), 1.5),
    Ended(Cancelled("client"), 1.5),
    Ended(Failed(FailKind.DIED, "exit code 3", Usage(9, 1), None, -9), 2.5),
    Ended(Failed(FailKind.REFUSED, "no", None, UpstreamError(429, "t", "c", "p", "7"), None), 2.5),
    Ended(Failed(FailKind.CUT, "", None, UpstreamError(200)), 2.5),
]
EVERY_KIND: list[Entry] = [
    Accepted(),
    Text("Hello"),
    Text("", {"content": [{"token": "a", "logprob": -0.25, "bytes": [97], "top": None}]}),
    Reasoning("because"),
    ToolCallStart(0, "call_1", "weather"),
    ToolCallArgs(0, '{"city": "'),
    ToolCallEnd(0),
    Beat(),
    *EVERY_TERMINAL,
]

text = st.text(st.characters(exclude_categories=["Cs"]))
count = st.integers(0, 2**31)
number = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_value: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | number | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)
usage = st.none() | st.builds(Usage, count, count, count, count)
maybe = st.none() | text
upstream = st.none() | st.builds(UpstreamError, count, maybe, maybe, maybe, maybe)
terminal = (
    st.builds(Finished, st.sampled_from(get_args(FinishReason)), usage, maybe)
    | st.builds(Cancelled, st.sampled_from(get_args(CancelledBy)), usage)
    | st.builds(Failed, st.sampled_from(FailKind), text, usage, upstream, st.none() | st.integers(-(2**31), 2**32))
)
entry: st.SearchStrategy[Entry] = (
    st.builds(Text, text, json_value)
    | st.builds(Text, text)
    | st.builds(Reasoning, text)
    | st.builds(ToolCallStart, count, text, text)
    | st.builds(ToolCallArgs, count, text)
    | st.builds(ToolCallEnd, count)
    | st.builds(Accepted)
    | st.builds(Beat)
    | st.builds(Ended, terminal, st.floats(0, 2**40))
)


@given(st.lists(entry, max_size=20))
def test_entries_come_back_as_they_were(entries: list[Entry]) -> None:
    assert decode(encode(entries)) == entries


def test_every_kind_comes_back_as_it_was_and_is_json() -> None:
    data = encode(EVERY_KIND)
    assert decode(data) == EVERY_KIND
    assert len(json.loads(data)) == len(EVERY_KIND)


def test_every_kind_of_entry_is_among_those() -> None:
    kinds = {kind for alias in get_args(Entry) for kind in (get_args(alias) or [alias])}
    assert {type(entry) for entry in EVERY_KIND} == kinds
    assert Ended not in get_args(Made)


@pytest.mark.parametrize("value", [0, False, "", [], {}, 2**100, -0.0, [[None]]], ids=repr)
def test_logprobs_that_look_like_nothing_are_kept(value: object) -> None:
    (back,) = decode(encode([Text("x", value)]))
    assert isinstance(back, Text)
    assert repr(back.logprobs) == repr(value)


def test_equal_neighbours_stay_several_entries() -> None:
    entries: list[Entry] = [Text("a"), Text(""), Text(""), Beat(), Beat(), Reasoning("a"), Reasoning("a")]
    assert decode(encode(entries)) == entries


def test_a_text_is_stored_with_three_bytes_around_it() -> None:
    """A long answer is mostly texts: its record must not be many times its size."""
    assert len(encode([Text("word")] * 1_000)) <= 1_000 * (len("word") + 3) + 2


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{}",
        b"null",
        b'["a"',
        b"[1]",
        b"[null]",
        b'[["q"]]',
        b"[[]]",
        b'[["t","x"]]',
        b'[["r"]]',
        b'[["r","x",1]]',
        b'[["r",1]]',
        b'[["a","0","x"]]',
        b'[["y",1]]',
        b'[["finished",1,{"reason":"nope"}]]',
        b'[["finished","now",{"reason":"stop"}]]',
        b'[["failed",1,{"kind":"nope","message":"m"}]]',
        b'[["cancelled",1,{}]]',
        b'["\xff"]',
        b"[" * 100_000,
    ],
    ids=lambda bad: repr(bad[:30]),
)
def test_other_bytes_are_refused(bad: bytes) -> None:
    with pytest.raises(ValueError, match="not the entries of an answer"):
        decode(bad)


def test_half_a_surrogate_pair_is_refused_without_its_text() -> None:
    with pytest.raises(ValueError, match="surrogate") as caught:
        encode([Text("secret\ud83d")])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", [object(), {None: 1}, {1, 2}.__iter__()], ids=["object", "key", "iterator"])
def test_logprobs_that_are_no_json_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="logprobs"):
        encode([Text("x", value)])


def test_the_engines_clock_is_kept() -> None:
    timings = Timings(1, 2.5, 3, 4.0, 5, 6, 7)
    (kept,) = decode(encode([Ended(Finished("stop", Usage(6, 3, timings=timings)), 1.0)]))
    assert isinstance(kept, Ended)
    assert kept.terminal.usage is not None
    assert kept.terminal.usage.timings == timings
