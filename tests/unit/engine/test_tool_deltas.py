"""Tool-call deltas in every form that servers write."""

from __future__ import annotations

from itertools import count

import pytest

from engine.events import Event, ToolCallArgs, ToolCallEnd, ToolCallStart
from engine.tool_deltas import DeltaBroken, ToolCalls


def calls() -> ToolCalls:
    numbers = count()
    return ToolCalls(lambda: f"call_new{next(numbers)}")


def entry(index: object = None, id_: object = None, name: object = None, arguments: object = None) -> dict[str, object]:
    """One entry of a delta's `tool_calls`; what is None is not there."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fields: dict[str, object] = {"function": function} if function else {}
    return fields | {key: value for key, value in (("index", index), ("id", id_)) if value is not None}


def read(*deltas: object) -> tuple[list[Event], str | None]:
    """The events of the deltas and of the end, and what is wrong."""
    tools = calls()
    events = [event for delta in deltas for event in tools.delta(delta)]
    ends, wrong = tools.close()
    return events + ends, wrong


ONE: list[Event] = [
    ToolCallStart(0, "call_a", "weather"),
    ToolCallArgs(0, '{"city": '),
    ToolCallArgs(0, '"Paris"}'),
    ToolCallEnd(0),
]
TWO: list[Event] = [
    ToolCallStart(0, "call_a", "weather"),
    ToolCallArgs(0, '{"a": 1}'),
    ToolCallStart(1, "call_b", "time"),
    ToolCallArgs(1, '{"b": 2}'),
    ToolCallEnd(0),
    ToolCallEnd(1),
]

ONE_CALL: dict[str, list[list[dict[str, object]]]] = {
    "as openai writes it": [
        [entry(0, "call_a", "weather", "")],
        [entry(0, arguments='{"city": ')],
        [entry(0, arguments='"Paris"}')],
    ],
    "name and first arguments together": [
        [entry(0, "call_a", "weather", '{"city": ')],
        [entry(0, arguments='"Paris"}')],
    ],
    "name in pieces": [
        [entry(0, "call_a", "wea")],
        [entry(0, name="ther")],
        [entry(0, arguments='{"city": ')],
        [entry(0, arguments='"Paris"}')],
    ],
    "id and name with every piece": [
        [entry(0, "call_a", "weather", "")],
        [entry(0, "call_a", "weather", '{"city": ')],
        [entry(0, "call_a", "weather", '"Paris"}')],
    ],
    "empty id and name with later pieces": [
        [entry(0, "call_a", "weather", "")],
        [entry(0, "", "", '{"city": ')],
        [entry(0, "", "", '"Paris"}')],
    ],
    "no index": [
        [entry(None, "call_a", "weather")],
        [entry(None, arguments='{"city": ')],
        [entry(None, arguments='"Paris"}')],
    ],
    "no index, id with every piece": [
        [entry(None, "call_a", "weather")],
        [entry(None, "call_a", arguments='{"city": ')],
        [entry(None, "call_a", arguments='"Paris"}')],
    ],
    "id after the name": [
        [entry(0, None, "weather")],
        [entry(0, "call_a", arguments='{"city": ')],
        [entry(0, arguments='"Paris"}')],
    ],
    "index starting at 1": [
        [entry(1, "call_a", "weather")],
        [entry(1, arguments='{"city": ')],
        [entry(1, arguments='"Paris"}')],
    ],
    "two entries for one index in one delta": [
        [entry(0, "call_a", "weather"), entry(0, arguments='{"city": ')],
        [entry(0, arguments='"Paris"}')],
    ],
}

TWO_CALLS: dict[str, list[list[dict[str, object]]]] = {
    "by index": [[entry(0, "call_a", "weather", '{"a": 1}')], [entry(1, "call_b", "time", '{"b": 2}')]],
    "in one delta": [[entry(0, "call_a", "weather", '{"a": 1}'), entry(1, "call_b", "time", '{"b": 2}')]],
    "no index, by id": [[entry(None, "call_a", "weather", '{"a": 1}')], [entry(None, "call_b", "time", '{"b": 2}')]],
    "every index 0": [[entry(0, "call_a", "weather", '{"a": 1}')], [entry(0, "call_b", "time", '{"b": 2}')]],
    "every index 0, arguments later": [
        [entry(0, "call_a", "weather")],
        [entry(0, arguments='{"a": 1}')],
        [entry(0, "call_b", "time")],
        [entry(0, arguments='{"b": 2}')],
    ],
}


@pytest.mark.parametrize("form", ONE_CALL)
def test_one_call_in_any_form_has_one_start_its_arguments_and_an_end(form: str) -> None:
    assert read(*ONE_CALL[form]) == (ONE, None)


@pytest.mark.parametrize("form", TWO_CALLS)
def test_two_calls_in_any_form_are_kept_apart(form: str) -> None:
    assert read(*TWO_CALLS[form]) == (TWO, None)


def test_calls_without_index_and_id_are_told_apart_by_their_order() -> None:
    events, wrong = read([entry(None, None, "a", "{}"), entry(None, None, "b", "{}")], [entry(None, None, "c", "{}")])
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    assert [(start.index, start.name) for start in starts] == [(0, "a"), (1, "b"), (2, "c")]
    assert len({start.id for start in starts}) == 3
    assert wrong is None


def test_interleaved_calls_keep_their_arguments() -> None:
    events, wrong = read(
        [entry(0, "call_a", "weather", '{"a":')],
        [entry(1, "call_b", "time", '{"b":')],
        [entry(0, arguments=" 1}")],
        [entry(1, arguments=" 2}")],
    )
    arguments = {0: "", 1: ""}
    for event in events:
        if isinstance(event, ToolCallArgs):
            arguments[event.index] += event.text
    assert (arguments, wrong) == ({0: '{"a": 1}', 1: '{"b": 2}'}, None)


def test_a_missing_id_is_made() -> None:
    assert read([entry(0, None, "weather", "{}")])[0][0] == ToolCallStart(0, "call_new0", "weather")


def test_arguments_before_the_name_wait_for_it() -> None:
    tools = calls()
    assert tools.delta([entry(0, "call_a", None, '{"a"')]) == []
    assert tools.delta([entry(0, None, "weather", ": 1}")]) == [
        ToolCallStart(0, "call_a", "weather"),
        ToolCallArgs(0, '{"a"'),
        ToolCallArgs(0, ": 1}"),
    ]


def test_arguments_given_as_an_object_become_text() -> None:
    assert read([entry(0, "call_a", "weather", {"city": "Paris"})])[0][1] == ToolCallArgs(0, '{"city": "Paris"}')


def test_a_start_waits_for_the_arguments_or_the_next_call() -> None:
    tools = calls()
    assert tools.delta([entry(0, "call_a", "wea")]) == []
    assert tools.delta([entry(1, "call_b", "time")]) == [ToolCallStart(0, "call_a", "wea")]


def test_the_legacy_function_call_is_a_call() -> None:
    tools = calls()
    events = tools.legacy({"name": "weather", "arguments": ""}) + tools.legacy({"arguments": "{}"})
    assert events == [ToolCallStart(0, "call_new0", "weather"), ToolCallArgs(0, "{}")]
    assert tools.close() == ([ToolCallEnd(0)], None)


@pytest.mark.parametrize(
    "arguments", ["", '{"a": ', "{'a': 1}", '{"a": 1}}', '{"a": NaN}', '{"a": -Infinity}', "[" * 100_000]
)
def test_arguments_that_are_no_json_have_no_end(arguments: str) -> None:
    events, wrong = read([entry(0, "call_a", "weather", arguments)])
    assert not any(isinstance(event, ToolCallEnd) for event in events)
    assert events[0] == ToolCallStart(0, "call_a", "weather")
    assert wrong == "the arguments of the call of 'weather' are not JSON"


@pytest.mark.parametrize("arguments", ["1", '"x"', "null", "[]"])
def test_arguments_that_are_no_object_have_no_end(arguments: str) -> None:
    events, wrong = read([entry(0, "call_a", "weather", arguments)])
    assert not any(isinstance(event, ToolCallEnd) for event in events)
    assert wrong == "the arguments of the call of 'weather' are not a JSON object"


def test_a_whole_call_before_a_broken_one_has_its_end() -> None:
    events, wrong = read([entry(0, "call_a", "weather", "{}"), entry(1, "call_b", "time", "{")])
    assert [event for event in events if isinstance(event, ToolCallEnd)] == [ToolCallEnd(0)]
    assert wrong == "the arguments of the call of 'time' are not JSON"


def test_a_call_without_a_name_is_wrong() -> None:
    assert read([entry(0, "call_a", None, "{}")]) == ([], "tool call 0 has no name")


def test_lone_surrogates_become_replacement_characters() -> None:
    events, _ = read([entry(0, "call_a", "w\ud83d", '{"a": "\ud83d\ude00\udc00"}')])
    assert events[:2] == [ToolCallStart(0, "call_a", "w\ufffd"), ToolCallArgs(0, '{"a": "😀\ufffd"}')]


WRONG_SHAPES: list[tuple[object, str]] = [
    ({}, "tool_calls is not a list"),
    ([1], "a tool call is not an object"),
    ([{"function": []}], "a tool call's function is not an object"),
    ([entry(0, 7)], "a tool call's id is not a string"),
    ([entry(0, name=["x"])], "a tool call's name is not a string"),
    ([entry(0, arguments=7)], "a tool call's arguments is not a string"),
]


@pytest.mark.parametrize(("delta", "message"), WRONG_SHAPES)
def test_a_delta_of_the_wrong_shape_is_refused(delta: object, message: str) -> None:
    with pytest.raises(DeltaBroken, match=message):
        calls().delta(delta)


def test_nothing_is_nothing() -> None:
    assert read(None, []) == ([], None)
    assert len(calls()) == 0
