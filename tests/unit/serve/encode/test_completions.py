"""Completions: an answer's stream and its body say the same, in the documented form, and end as it ended."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion, CompletionChoice

from engine.events import (
    Accepted,
    Cancelled,
    Event,
    Failed,
    FailKind,
    Finished,
    OfChoice,
    Progress,
    Terminal,
    Text,
    Tick,
    Timings,
    Usage,
)
from serve import outcomes
from serve.encode.completions import CollectedCompletion, CompletionStream, Head
from serve.outcomes import error_object
from tests.e2e.client import Answer
from tests.e2e.completions_grammar import Completed, check_completion, check_completion_stream

SSE = {"content-type": "text/event-stream; charset=utf-8"}
USAGE = Usage(9, 7, 4)


def head(choices: int = 1, *, counted: bool = False) -> Head:
    return Head("cmpl-1", 5, "m", counted, choices)


def told(*events: Event, choices: int = 1, counted: bool = False) -> Completed:
    """The stream of these events, which keeps to the grammar."""
    frames = list(CompletionStream(head(choices, counted=counted)).frames(iter(events)))
    assert [frame.last for frame in frames] == [False] * (len(frames) - 1) + [True]
    return check_completion_stream(Answer(200, SSE, b"".join(frame.data for frame in frames), True), choices)


def collected(*events: Event, choices: int = 1) -> CollectedCompletion:
    made = CollectedCompletion(head(choices))
    for event in events:
        made.add(event)
    return made


def body(*events: Event, terminal: Finished, choices: int = 1) -> Any:
    made = json.loads(json.dumps(collected(*events, choices=choices).completion(terminal), allow_nan=False))
    Completion.model_validate(made, strict=True)
    return made


def test_every_word_of_the_sdk_can_be_said_and_no_other() -> None:
    documented = set(get_args(CompletionChoice.model_fields["finish_reason"].annotation))
    for reason in ("stop", "length", "content_filter"):
        ending = told(Text("a"), Finished(reason, USAGE))
        assert ending.finish_reasons == (reason,)
        assert reason in documented
    assert outcomes.completion_finish_reason(Finished("tool_calls")) not in documented


def test_a_stream_and_a_body_say_the_same() -> None:
    events = [Accepted(), Tick(), Progress(1, 2), Text("Hel"), Tick(), Text("lo")]
    end = Finished("stop", USAGE)
    ending = told(*events, end, counted=True)
    whole = check_completion(body(*events, terminal=end))
    assert ending.texts == whole.texts == ("Hello",)
    assert ending.finish_reasons == whole.finish_reasons == ("stop",)
    assert ending.usage == whole.usage
    assert ending.usage_apart
    assert told(*events, end).usage is None


def test_an_empty_answer_is_one() -> None:
    end = Finished("stop", USAGE)
    assert told(end).texts == check_completion(body(terminal=end)).texts == ("",)


def test_counts_are_null_in_other_chunks_where_they_are_asked_for_and_absent_elsewhere() -> None:
    for counted in (True, False):
        frames = CompletionStream(head(counted=counted)).frames(iter([Text("a"), Finished("stop", USAGE)]))
        first = json.loads(next(frames).data[6:])
        assert ("usage" in first) == counted
        assert first.get("usage") is None
        assert first["choices"] == [{"text": "a", "index": 0, "logprobs": None, "finish_reason": None}]


FAILURES: list[Failed | Cancelled] = [
    Failed(FailKind.DIED, "it died", USAGE),
    Failed(FailKind.QUEUE_WAIT, "it waited"),
    Cancelled("shutdown", USAGE),
]


@pytest.mark.parametrize("terminal", FAILURES, ids=str)
@pytest.mark.parametrize("counted", [True, False])
def test_a_failure_is_an_error_a_closing_chunk_and_the_end_in_one_write(
    terminal: Failed | Cancelled, counted: bool
) -> None:
    frames = list(CompletionStream(head(counted=counted)).frames(iter([Text("Hel"), terminal])))
    assert frames[-1].data.startswith(b'data: {"error": ')
    assert frames[-1].data.endswith(b"data: [DONE]\n\n")
    ending = told(Text("Hel"), terminal, counted=counted)
    assert (ending.texts, ending.finish_reasons) == (("Hel",), ("error",))
    assert ending.error == outcomes.stream_error(terminal)
    assert ending.usage_apart == (counted and terminal.usage is not None)
    assert (ending.usage is None) == (terminal.usage is None)
    failure = outcomes.http_failure(terminal)
    error = collected(Text("Hel")).error(failure, terminal)
    assert error.get("partial_output") == "Hel"
    assert ("usage" in error) == (terminal.usage is not None)
    assert "partial_outputs" not in error
    assert "partial_output" not in collected().error(outcomes.http_failure(terminal), terminal)


def test_of_several_choices_each_has_its_end_and_a_failure_closes_those_that_are_open() -> None:
    events = [OfChoice(1, Text("b")), OfChoice(0, Text("a")), OfChoice(1, Finished("length"))]
    end = OfChoice(0, Finished("stop"))
    ending = told(*events, end, Finished("stop", USAGE), choices=2)
    whole = check_completion(body(*events, end, terminal=Finished("stop", USAGE), choices=2), 2)
    assert ending.texts == whole.texts == ("a", "b")
    assert ending.finish_reasons == whole.finish_reasons == ("stop", "length")
    failed = Failed(FailKind.DIED, "it died", USAGE)
    ending = told(*events, failed, choices=3)
    assert ending.finish_reasons == ("error", "length", "error")
    assert ending.usage is not None
    error = collected(*events, choices=3).error(outcomes.http_failure(failed), failed)
    assert error.get("partial_outputs") == ["a", "b", ""]


def test_a_fault_of_ours_ends_a_stream_as_a_failure() -> None:
    encoder = CompletionStream(head())
    begun = next(encoder.frames(iter([Text("a")]))).data
    ending = check_completion_stream(Answer(200, SSE, begun + encoder.fault_ending(error_object("x", "t", "c")), True))
    assert (ending.texts, ending.finish_reasons) == (("a",), ("error",))


def test_log_probabilities_of_both_forms_are_joined() -> None:
    first = {"tokens": ["a"], "text_offset": [0], "top_logprobs": None}
    second = {"tokens": ["b"], "text_offset": [1], "top_logprobs": None}
    end = Finished("stop", USAGE)
    assert told(Text("a", first), Text("b", second), end).logprobs == [first, second]
    made = body(Text("a", first), Text("b", second), Text("c", 7), terminal=end)
    assert made["choices"][0]["logprobs"] == {"tokens": ["a", "b"], "text_offset": [0, 1], "top_logprobs": None}
    content = [{"content": [{"token": token}]} for token in "ab"]
    made = collected(Text("a", content[0]), Text("b", content[1])).completion(end)
    assert made["choices"][0]["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}]}


PIECES = st.lists(st.tuples(st.integers(0, 2), st.text(max_size=8)), max_size=12)
ENDS: list[Terminal] = [Finished("stop", USAGE), *FAILURES]


@settings(max_examples=200, deadline=None)
@given(PIECES, st.sampled_from(ENDS), st.booleans())
def test_every_text_is_told_exactly_once_whatever_it_is(
    pieces: list[tuple[int, str]], terminal: Terminal, counted: bool
) -> None:
    texts = tuple("".join(text for index, text in pieces if index == i) for i in range(3))
    events: list[Event] = [OfChoice(index, Text(text)) for index, text in pieces]
    if isinstance(terminal, Finished):
        events += [OfChoice(index, terminal) for index in range(3)]
    assert told(*events, terminal, choices=3, counted=counted).texts == texts


def test_the_clock_is_on_the_last_chunk_of_a_stream_and_in_a_body() -> None:
    end = Finished("stop", Usage(3, 2, timings=Timings(3, 6.0, 2, 8.0)))
    for include_usage in (True, False):
        shared = head(counted=include_usage)
        data = b"".join(frame.data for frame in CompletionStream(shared).frames([Text("a"), end]))
        *before, last = [json.loads(line[6:]) for line in data.split(b"\n\n") if line.startswith(b"data: {")]
        assert last["timings"]["predicted_n"] == 2
        assert (last["choices"] == []) is include_usage
        assert not any("timings" in chunk for chunk in before)
        made = CollectedCompletion(shared)
        made.add(Text("a"))
        assert made.completion(end).get("timings") == last["timings"]
        assert "timings" not in made.completion(Finished("stop", Usage(3, 2)))
