"""An upstream's completion: what it says of its texts and its ending, in any pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.completion_reader import CompletionReader
from engine.events import Event, Failed, FailKind, Finished, OfChoice, Progress, Text, UpstreamError, Usage
from tests.scripted_upstream import DONE, event

Json = dict[str, Any]
COUNTS: Json = {"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
USAGE = event({"choices": [], "usage": COUNTS})


def text(said: Any, word: Any = None, index: Any = 0, **fields: Any) -> bytes:
    return event({"choices": [{"text": said, "index": index, "finish_reason": word, **fields}]})


def read(*pieces: bytes, choices: int = 1, cut: bool = False) -> list[Event]:
    reader = CompletionReader("it", choices)
    events: list[Event] = []
    for piece in pieces:
        events += reader.feed(piece)[0]
        if reader.terminal is not None:
            break
    else:
        events += reader.cut(FailKind.DIED, "it broke") if cut else reader.end()
    assert events[-1] is reader.terminal
    return events


def failed(*pieces: bytes, choices: int = 1, cut: bool = False) -> Failed:
    end = read(*pieces, choices=choices, cut=cut)[-1]
    assert isinstance(end, Failed)
    return end


def test_its_texts_and_its_word_are_the_answer_with_its_own_counts() -> None:
    events = read(text("Hel"), text("lo"), text(""), text("", "stop"), USAGE, DONE)
    assert events == [Text("Hel"), Text("lo"), Finished("stop", Usage(9, 7, 4))]


@pytest.mark.parametrize("word", ["length", "content_filter"])
def test_other_words_of_the_public_enum_are_endings(word: str) -> None:
    (said, end) = read(text("Hi", word), DONE)
    assert said == Text("Hi")
    assert isinstance(end, Finished)
    assert end.reason == word


@pytest.mark.parametrize(
    ("word", "kind", "says"),
    [
        ("abort", FailKind.PROTOCOL, "unknown finish word 'abort'"),
        ("error", FailKind.DIED, "finish_reason 'error'"),
        ("tool_calls", FailKind.PROTOCOL, "without a tool call"),
        (7, FailKind.PROTOCOL, "not a string"),
        (None, FailKind.DIED, "without a finish_reason"),
    ],
)
def test_any_other_word_is_a_failure(word: Any, kind: FailKind, says: str) -> None:
    end = failed(text("Hi"), text("", word), DONE)
    assert (end.kind, says in end.message) == (kind, True)
    assert end.usage == Usage(0, 1)


@pytest.mark.parametrize(
    ("piece", "says"),
    [
        (event([1]), "not a JSON object"),
        (b"data: {oops\n\n", "oops"),
        (event({"choices": 1}), "not a list"),
        (event({"choices": [1]}), "not an object"),
        (text(7), "not a string"),
        (event({"choices": [{"delta": {"content": "x"}}]}), "of a chat"),
        (event({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}), "of a chat"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "not JSON"),
    ],
)
def test_what_is_no_completion_breaks_the_protocol(piece: bytes, says: str) -> None:
    events = read(text("Hi"), piece, text("", "stop"), DONE)
    assert events[0] == Text("Hi")
    end = events[-1]
    assert isinstance(end, Failed)
    assert (end.kind, says in end.message) == (FailKind.PROTOCOL, True)


def test_an_error_fails_it_with_the_text_and_the_counts_that_came_with_it() -> None:
    error = {"error": {"message": "no", "type": "t", "code": "c"}}
    events = read(event({"choices": [{"text": "Hi", "index": 0, "finish_reason": "error"}], "usage": COUNTS, **error}))
    assert events[0] == Text("Hi")
    assert events[-1] == Failed(FailKind.DIED, "it failed: no", Usage(9, 7, 4), UpstreamError(200, "t", "c"))
    assert failed(text("Hi", "stop"), DONE, event(error)).message == "it failed: no"


def test_nothing_and_what_is_like_it_is_no_sign_of_life() -> None:
    reader = CompletionReader("it")
    for idle in (b"data: null\n\n", b": ping\n\n", b"data:\n\n", b"data: : ping\n\n"):
        assert reader.feed(idle) == ([], False)
    assert reader.feed(text("a")) == ([Text("a")], True)
    assert reader.feed(DONE)[1]


def test_the_end_marker_is_held_until_the_body_ends() -> None:
    reader = CompletionReader("it")
    reader.feed(text("a", "stop"))
    assert (reader.finish_seen, reader.done_seen) == (True, False)
    assert reader.feed(DONE)[0] == []
    assert reader.done_seen
    assert reader.terminal is None
    assert reader.end() == [Finished("stop", Usage(0, 1))]


def test_a_cut_after_the_word_is_whole_and_before_it_is_not() -> None:
    assert read(text("a", "stop"), cut=True)[-1] == Finished("stop", Usage(0, 1))
    assert failed(text("a"), cut=True).message == "it broke"
    assert failed(text("a", "stop"), b'data: {"err', cut=True).message == "it broke"


def test_log_probabilities_ride_on_their_text_and_progress_passes() -> None:
    probabilities = {"tokens": ["a"], "token_logprobs": [-0.5]}
    progress = event({"choices": [{"text": "", "index": 0}], "prompt_progress": {"total": 6, "processed": 2}})
    events = read(progress, text("a", logprobs=probabilities), text("", "stop"))
    assert events[:2] == [Progress(2, 6), Text("a", probabilities)]


def test_one_body_is_read_like_a_stream() -> None:
    body = {"choices": [{"text": "Hi", "index": 0, "finish_reason": "length"}], "usage": COUNTS}
    assert CompletionReader("it").whole(json.dumps(body).encode()) == [Text("Hi"), Finished("length", Usage(9, 7, 4))]
    (end,) = CompletionReader("it").whole(b"<html>")
    assert isinstance(end, Failed)
    (end,) = CompletionReader("it").whole(json.dumps({"error": "no"}).encode())
    assert isinstance(end, Failed)


# --- several choices ---------------------------------------------------------------------------------


def test_each_of_several_choices_has_its_text_and_its_end() -> None:
    events = read(
        text("b", None, 1), text("a"), text("c", "length", 1), text("", "stop"), text("no", "stop", 5), USAGE, DONE,
        choices=2,
    )  # fmt: skip
    assert events == [
        OfChoice(1, Text("b")),
        OfChoice(0, Text("a")),
        OfChoice(1, Text("c")),
        OfChoice(0, Finished("stop")),
        OfChoice(1, Finished("length")),
        Finished("stop", Usage(9, 7, 4)),
    ]


def test_counts_that_each_choice_has_are_added_over_the_one_prompt() -> None:
    ends = [
        event({**json.loads(text("", "stop", i)[6:]), "usage": COUNTS | {"completion_tokens": n}})
        for i, n in ((1, 3), (0, 5))
    ]
    assert read(text("a"), text("b", None, 1), *ends, DONE, choices=2)[-1] == Finished("stop", Usage(9, 8, 4))


def test_a_choice_that_is_never_mentioned_is_none_but_in_a_cut() -> None:
    assert read(text("a", "stop"), DONE, choices=2)[1:] == [
        OfChoice(0, Finished("stop")),
        Finished("stop", Usage(0, 1)),
    ]
    assert failed(text("a", "stop"), cut=True, choices=2).message == "it broke"


def test_the_first_that_fails_fails_the_answer_and_the_others_keep_their_ends() -> None:
    events = read(text("b", "stop", 1), text("a"), DONE, choices=2)
    assert events[-2] == OfChoice(1, Finished("stop"))
    assert isinstance(events[-1], Failed)
    events = read(text("a", "stop"), text("b", "abort", 1), DONE, choices=2)
    assert events[-2] == OfChoice(0, Finished("stop"))
    events = read(text("a", "stop"), text("b", "stop", 1), event({"error": "no"}), choices=2)
    assert [event for event in events if isinstance(event, OfChoice) and isinstance(event.said, Finished)] == []


ONE = b"".join((text("Grü"), text("ße 😀"), text("", "stop"), USAGE, DONE))
TWO = b"".join((text("a"), text("b", None, 1), text("", "length", 1), text("ä", "stop"), USAGE, DONE))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([(ONE, 1), (TWO, 2)]), st.lists(st.integers(0, len(TWO)), max_size=6))
def test_it_says_the_same_in_any_pieces(case: tuple[bytes, int], at: list[int]) -> None:
    raw, choices = case
    cuts = sorted({min(place, len(raw)) for place in at})
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert read(*pieces, choices=choices) == read(raw, choices=choices)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([(ONE, 1), (TWO, 2)]), st.integers(0, len(TWO)))
def test_a_stream_that_is_cut_anywhere_is_finished_only_after_every_word(case: tuple[bytes, int], at: int) -> None:
    raw, choices = case
    end = read(raw[:at], choices=choices, cut=True)[-1]
    assert isinstance(end, Finished) == (raw[:at].count(b'_reason": "') == choices and _last_word_is_whole(raw[:at]))


def _last_word_is_whole(raw: bytes) -> bool:
    return b"\n\n" in raw[raw.rindex(b'_reason": "') :]
