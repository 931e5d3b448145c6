"""Responses streams: every ending at every position, exactly, and by the judgement of the SDK's types."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from engine.events import (
    Accepted,
    Cancelled,
    Failed,
    FailKind,
    Finished,
    Reasoning,
    Terminal,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from serve import outcomes, sse
from serve.encode.responses import ResponseEncoder, response_of_item
from serve.entries import Beat, Entry
from tests.e2e.responses_grammar import RESPONSE_KEYS
from tests.unit.serve.encode.response_streams import (
    CALLING,
    NASTY,
    POSITIONS,
    SECRET,
    SPOKEN,
    TERMINALS,
    USAGE,
    Json,
    Position,
    answer,
    check_sdk_event,
    check_sdk_response,
    encode,
    ended,
    head,
    judged,
    names,
    told,
)

DONE = Finished("stop", USAGE)
CUT = Finished("length", USAGE)
DIED = Failed(FailKind.DIED, "the engine exited with code 3", USAGE)

Statuses = list[str]


def expected(position: Position, terminal: Terminal) -> tuple[str, Statuses, bool]:
    """The status, those of the items, and whether calls that were open were closed: from the contract's words."""
    match terminal:
        case Finished(reason="stop" | "tool_calls"):
            status, open_item, closes = "completed", "completed", False
        case Finished():
            status, open_item, closes = "incomplete", "incomplete", True
        case Cancelled(by="client" | "operator"):
            status, open_item, closes = "cancelled", "incomplete", False
        case _:
            status, open_item, closes = "failed", "incomplete", False
    return status, [open_item if n in position.open else "completed" for n in range(len(position.items))], closes


def whole(position: Position) -> bool:
    """Whether an engine may say that it is done here: `serve.verify` lets no open call pass."""
    return not any(position.items[index][0] == "function_call" for index in position.open)


CASES = [
    pytest.param(position, terminal, id=f"{position.name}-{terminal!r:.40}")
    for position in POSITIONS
    for terminal in TERMINALS
    if whole(position) or outcomes.response_ending(terminal).status != "completed"
]


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
@pytest.mark.parametrize(("position", "terminal"), CASES)
def test_every_outcome_at_every_position_is_true_and_whole(
    position: Position, terminal: Terminal, background: bool
) -> None:
    encoder, events = encode(head(background=background), [*position.entries, ended(terminal)])
    ending = judged(events)
    status, statuses, closes = expected(position, terminal)
    assert encoder.ended
    assert told(encoder.response()) == ending.response
    assert ending.status == status
    output = ending.response["output"]
    said = [item.get("arguments", "".join(part["text"] for part in item.get("content", []))) for item in output]
    assert [*zip([item["type"] for item in output], said, strict=True)] == list(position.items)
    assert [item["status"] for item in output] == statuses
    done = {event["output_index"] for event in events if event["type"] == "response.output_item.done"}
    calls = {index for index in position.open if position.items[index][0] == "function_call"}
    assert done == set(range(len(output))) - (set() if closes else calls)
    assert ending.response["usage"] == outcomes.response_usage(USAGE)
    if isinstance(terminal, Failed | Cancelled) and status == "failed":
        assert ending.error == outcomes.stream_error(terminal)
    else:
        assert ending.error is None


def test_the_object_in_the_terminal_event_is_the_final_response_itself() -> None:
    encoder = ResponseEncoder(head())
    encoder.start()
    (*_, terminal) = encoder.feed(ended(DONE))
    assert "response" in terminal
    assert terminal["response"] is encoder.response()


# --- exactly -----------------------------------------------------------------------------------------


def item_events(events: list[Json]) -> list[Json]:
    """The events between the lifecycle's, without their numbers (those are checked everywhere)."""
    return [
        {key: event[key] for key in event if key != "sequence_number"} for event in events if "response" not in event
    ]


def test_text_is_one_message_from_added_to_done() -> None:
    _, events = encode(head(), [Accepted(), Text("Hel"), Text("lo"), ended(DONE)])
    place = {"item_id": f"msg_{SECRET}0000", "output_index": 0}
    part: Json = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    item = {"id": place["item_id"], "type": "message", "role": "assistant"}
    spot = {**place, "content_index": 0}
    assert item_events(events) == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **spot, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **spot, "delta": "Hel", "logprobs": []},
        {"type": "response.output_text.delta", **spot, "delta": "lo", "logprobs": []},
        {"type": "response.output_text.done", **spot, "text": "Hello", "logprobs": []},
        {"type": "response.content_part.done", **spot, "part": part},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {**item, "status": "completed", "content": [part]},
        },
    ]
    assert names(events)[:2] == ["created", "in_progress"]
    assert names(events)[-1] == "completed"


def test_reasoning_is_an_item_that_ends_completed_where_the_answer_begins() -> None:
    _, events = encode(head(), [Reasoning("hm"), Text("yes"), ended(CUT)])
    spot = {"item_id": f"rs_{SECRET}0000", "output_index": 0, "content_index": 0}
    item: Json = {"id": spot["item_id"], "type": "reasoning", "summary": []}
    part = {"type": "reasoning_text", "text": "hm"}
    assert item_events(events)[:6] == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "content": [], "status": "in_progress"},
        },
        {"type": "response.content_part.added", **spot, "part": {**part, "text": ""}},
        {"type": "response.reasoning_text.delta", **spot, "delta": "hm"},
        {"type": "response.reasoning_text.done", **spot, "text": "hm"},
        {"type": "response.content_part.done", **spot, "part": part},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {**item, "content": [part], "status": "completed"},
        },
    ]
    assert [item["status"] for item in events[-1]["response"]["output"]] == ["completed", "incomplete"]


def test_a_call_is_an_item_with_the_engines_call_id_and_its_name_at_the_end() -> None:
    _, events = encode(head(), [*CALLING[-3:], ToolCallEnd(0), ended(Finished("tool_calls", USAGE))])
    place = {"item_id": f"fc_{SECRET}0000", "output_index": 0}
    item = {"id": place["item_id"], "type": "function_call", "call_id": "call_1", "name": "add"}
    assert item_events(events) == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "arguments": "", "status": "in_progress"},
        },
        {"type": "response.function_call_arguments.delta", **place, "delta": '{"a": '},
        {"type": "response.function_call_arguments.delta", **place, "delta": "1}"},
        {"type": "response.function_call_arguments.done", **place, "name": "add", "arguments": '{"a": 1}'},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {**item, "arguments": '{"a": 1}', "status": "completed"},
        },
    ]


def test_calls_that_are_written_at_the_same_time_stay_apart() -> None:
    entries: list[Entry] = [
        ToolCallStart(0, "call_1", "add"),
        ToolCallStart(1, "call_2", "sub"),
        ToolCallArgs(1, '{"b"'),
        ToolCallArgs(0, '{"a": 1}'),
        ToolCallArgs(1, ": 2}"),
        ToolCallEnd(1),
        ToolCallEnd(0),
        ended(Finished("tool_calls", USAGE)),
    ]
    _, events = encode(head(), entries)
    calls = judged(events).calls
    assert [(call["call_id"], call["arguments"]) for call in calls] == [("call_1", '{"a": 1}'), ("call_2", '{"b": 2}')]
    done = [event["output_index"] for event in events if event["type"] == "response.output_item.done"]
    assert done == [1, 0]


def test_a_failure_is_an_error_event_then_failed_and_the_cut_call_is_left_alone() -> None:
    _, events = encode(head(), [*CALLING[:-1], ended(DIED)])
    error = {"type": "server_error", "code": "engine_died", "message": DIED.message, "param": None}
    assert names(events)[-3:] == ["function_call_arguments.delta", "error", "failed"]
    assert events[-2] == {
        "type": "error",
        "code": "engine_died",
        "message": DIED.message,
        "param": None,
        "error": error,
        "sequence_number": len(events) - 2,
    }
    response = events[-1]["response"]
    assert response["error"] == {"code": "server_error", "message": DIED.message}
    assert response["output"][-1]["arguments"] == '{"a": '
    assert response["output"][-1]["status"] == "incomplete"


def test_a_call_cut_by_the_token_limit_is_closed_with_its_raw_arguments() -> None:
    _, events = encode(head(), [*CALLING[:-1], ended(CUT)])
    assert names(events)[-3:] == ["function_call_arguments.done", "output_item.done", "incomplete"]
    assert events[-3]["arguments"] == events[-2]["item"]["arguments"] == '{"a": '
    assert events[-2]["item"]["status"] == "incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_cancel_is_one_event_without_an_error() -> None:
    _, events = encode(head(), [*SPOKEN, ended(Cancelled("operator", USAGE))])
    assert names(events)[-4:] == ["output_text.done", "content_part.done", "output_item.done", "cancelled"]
    response = events[-1]["response"]
    assert (response["status"], response["error"], response["incomplete_details"]) == ("cancelled", None, None)
    assert response["output"][-1]["status"] == "incomplete"


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
def test_a_call_that_never_ended_is_not_completed_whatever_the_engine_says(reason: str) -> None:
    end = Finished(reason, USAGE)  # type: ignore[arg-type]  # the parameters are the literal's values
    _, events = encode(head(), [*CALLING, ended(end)])
    assert events[-1]["response"]["output"][-1]["status"] == "incomplete"
    assert "function_call_arguments.done" not in names(events)


def test_an_answer_without_anything_is_completed_and_empty() -> None:
    _, events = encode(head(), [Accepted(), Text(""), Reasoning(""), ended(DONE)])
    assert names(events) == ["created", "in_progress", "completed"]
    assert events[-1]["response"]["output"] == []
    assert events[-1]["response"]["completed_at"] == 1_700_000_009


@pytest.mark.parametrize("terminal", [CUT, DIED, Cancelled("client", USAGE)], ids=repr)
def test_only_a_completed_response_has_a_time_of_completion(terminal: Terminal) -> None:
    _, events = encode(head(), [*SPOKEN, ended(terminal)])
    assert events[-1]["response"]["completed_at"] is None


def test_without_counts_a_finished_answer_counts_nothing_and_a_failed_one_says_null() -> None:
    _, finished = encode(head(), [*SPOKEN, ended(Finished("stop"))])
    _, failed = encode(head(), [*SPOKEN, ended(Failed(FailKind.LOST, "the server was killed"))])
    assert judged(finished).response["usage"] == outcomes.response_usage(Usage())
    assert judged(failed).response["usage"] is None


# --- a response that runs ----------------------------------------------------------------------------


def test_a_background_response_is_queued_until_the_engine_takes_it() -> None:
    encoder = ResponseEncoder(head(background=True))
    events = told(encoder.start())
    assert names(events) == ["created", "queued"]
    assert [event["response"]["status"] for event in events] == ["queued", "queued"]
    assert names(told(encoder.feed(Beat()))) == ["queued"]
    assert encoder.response()["status"] == "queued"
    assert names(told(encoder.feed(Accepted()))) == ["in_progress"]
    assert encoder.response()["status"] == "in_progress"
    assert names(told(encoder.feed(Beat()))) == ["in_progress"]


@pytest.mark.parametrize("first", [Text("x"), Reasoning("x"), ToolCallStart(0, "call_1", "f")], ids=repr)
def test_a_background_response_runs_at_its_first_piece_at_the_latest(first: Entry) -> None:
    _, events = encode(head(background=True), [first, Accepted()])
    assert names(events)[:4] == ["created", "queued", "in_progress", "output_item.added"]
    assert names(events).count("in_progress") == 1


def test_a_background_response_that_failed_in_the_queue_never_ran() -> None:
    failed = Failed(FailKind.QUEUE_WAIT, "waited 3 s")
    _, events = encode(head(background=True), [Beat(), ended(failed)])
    assert names(events) == ["created", "queued", "queued", "error", "failed"]
    assert judged(events).response["error"] == {"code": "rate_limit_exceeded", "message": "waited 3 s"}


def test_in_the_foreground_the_engines_acceptance_is_no_event() -> None:
    encoder = ResponseEncoder(head())
    assert names(told(encoder.start())) == ["created", "in_progress"]
    assert encoder.feed(Accepted()) == []


def test_a_beat_has_the_next_number_and_does_not_grow_with_the_answer() -> None:
    sizes: list[int] = []
    encoder = ResponseEncoder(head())
    encoder.start()
    for count in (1, 2_000):
        for _ in range(count):
            encoder.feed(Text("more "))
        (beat,) = encoder.feed(Beat())
        assert "response" in beat
        assert beat["response"]["output"] == []
        sizes.append(len(sse.event(beat["type"], {**beat, "sequence_number": 0})))
    assert sizes[0] == sizes[1]


def test_the_response_shows_at_any_time_what_was_made_so_far() -> None:
    encoder, _ = encode(head(), CALLING)
    response = told(encoder.response())
    check_sdk_response(response)
    assert not encoder.ended
    assert (response["status"], response["usage"], response["completed_at"]) == ("in_progress", None, None)
    assert [item["status"] for item in response["output"]] == ["completed", "completed", "in_progress"]
    assert response["output"][1]["content"][0]["text"] == "Hello, " + NASTY
    encoder.feed(ToolCallArgs(0, " "))
    assert response["output"][2]["arguments"] == '{"a": 1}'
    assert told(encoder.response())["output"][2]["arguments"] == '{"a": 1} '


def test_looking_at_a_running_response_changes_none_of_its_events() -> None:
    looked = ResponseEncoder(head())
    events: list[Any] = [*looked.start()]
    for entry in [*CALLING, ended(DIED)]:
        looked.response()
        events.extend(looked.feed(entry))
        looked.response()
    assert told(events) == encode(head(), [*CALLING, ended(DIED)])[1]


# --- the rest ----------------------------------------------------------------------------------------


def test_the_judge_of_the_events_is_strict() -> None:
    _, events = encode(head(), [Text("x"), ended(DONE)])
    for event in events:
        for key in event.keys() - {"type"}:
            broken = {name: value for name, value in event.items() if name != key}
            with pytest.raises((ValidationError, KeyError)):
                check_sdk_event(broken)


def test_no_character_of_an_answer_breaks_the_framing() -> None:
    entries: list[Entry] = [
        Reasoning(NASTY),
        Text(NASTY),
        ToolCallStart(0, "call_1", "add"),
        *(ToolCallArgs(0, character) for character in NASTY),
        ended(CUT),
    ]
    _, events = encode(head(model=NASTY, fields={"instructions": NASTY}), entries)
    assert answer(events).body.isascii()
    ending = judged(events)
    assert (ending.texts, ending.reasoning, ending.calls[0]["arguments"]) == ([NASTY], [NASTY], NASTY)


def test_what_the_request_said_is_repeated_and_every_key_is_there() -> None:
    fields: Json = {"temperature": 0.5, "metadata": {"a": "b"}, "tools": [], "store": True, "truncation": "auto"}
    _, events = encode(head(fields=fields), [ended(DONE)])
    for event in events:
        assert event["response"].keys() == RESPONSE_KEYS
        assert {key: event["response"][key] for key in fields} == fields


def test_what_the_request_said_does_not_hide_what_happened() -> None:
    lies = {"status": "completed", "id": "resp_x", "output": [1], "error": 1, "usage": 1, "completed_at": 1}
    _, events = encode(head(fields=lies), [ended(DIED)])
    assert [event["response"]["status"] for event in events if "response" in event] == [*["in_progress"] * 2, "failed"]
    judged(events)


def test_the_id_of_an_item_says_which_response_it_belongs_to() -> None:
    encoder, _ = encode(head(), [*CALLING, *(entry for n in range(20) for entry in (Text("x"), Reasoning(f"{n}")))])
    ids = [item["id"] for item in encoder.response()["output"]]
    assert len(ids) == len(set(ids)) == 43
    assert [id_.partition("_")[0] for id_ in ids[:3]] == ["rs", "msg", "fc"]
    assert {response_of_item(id_) for id_ in ids} == {head().id}


@pytest.mark.parametrize("foreign", ["", "msg", "msg_", "msg_1", "resp_x", "_", "\x00_\ud800"], ids=ascii)
def test_the_id_of_a_foreign_item_is_that_of_no_response(foreign: str) -> None:
    assert response_of_item(foreign) != head().id


def test_misuse_is_an_error_and_not_a_broken_stream() -> None:
    encoder = ResponseEncoder(head())
    with pytest.raises(ValueError, match="after its start"):
        encoder.feed(Text("x"))
    encoder.start()
    with pytest.raises(ValueError, match="once"):
        encoder.start()
    with pytest.raises(KeyError):
        encoder.feed(ToolCallArgs(0, "x"))
    with pytest.raises(KeyError):
        encoder.feed(ToolCallEnd(0))
    events = told(encoder.feed(ended(DONE)))
    assert events[0]["sequence_number"] == 2
    with pytest.raises(ValueError, match="before its end"):
        encoder.feed(Beat())
