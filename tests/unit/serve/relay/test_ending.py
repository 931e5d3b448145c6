"""The last events of a relayed response, for each terminal."""

from __future__ import annotations

from typing import Any

import pytest

from engine.events import Cancelled, Failed, FailKind, Finished, RelayedEvent, Terminal, Usage
from serve.relay.ending import Ending
from serve.relay.track import Track
from tests.e2e.relayed import BEGIN, call, calls, ended, message, reasoning, says, sse, thinks
from tests.e2e.responses_client import Json
from tests.unit.serve.relay.relays import HEAD

HELLO = says("Hel", "lo")
USED = Usage(9, 7, 4, 2)
DIED = Failed(FailKind.DIED, "gone", USED)


def ending(terminal: Terminal, *events: Json) -> Ending:
    track = Track(HEAD)
    track.take(RelayedEvent(event, sse(event)) for event in [*BEGIN, *events])
    track.ready()
    return Ending(track, terminal, 8.5)


def names(made: Ending) -> list[str]:
    return [str(event.value["type"]).removeprefix("response.") for event in made.events]


def statuses(made: Ending) -> list[Any]:
    output: Any = made.response["output"]
    return [item.get("status") for item in output]


def test_what_the_upstream_says_stands_where_it_is_true() -> None:
    said = ended("completed", message("Hello"))
    made = ending(Finished("stop", USED), *HELLO, *said)
    assert [event.raw for event in made.events] == [sse(event) for event in [*HELLO[-3:], *said]]
    assert made.response == said[0]["response"]


@pytest.mark.parametrize(
    ("terminal", "last", "status"),
    [
        (Finished("length", USED), ["incomplete"], "incomplete"),
        (Finished("content_filter", USED), ["incomplete"], "incomplete"),
        (DIED, ["error", "failed"], "failed"),
        (Cancelled("operator", USED), ["cancelled"], "cancelled"),
        (Cancelled("shutdown", USED), ["error", "failed"], "failed"),
    ],
    ids=["length", "filter", "died", "cancelled", "shutdown"],
)
def test_any_other_ending_closes_the_item_that_was_just_ended_as_cut(
    terminal: Terminal, last: list[str], status: str
) -> None:
    made = ending(
        terminal, *thinks("Hm"), *says("Hel", "lo", index=1), *ended("completed", reasoning("Hm"), message(""))
    )
    assert names(made) == ["output_text.done", "content_part.done", "output_item.done", *last]
    assert (made.response["status"], made.response["completed_at"]) == (status, None)
    assert statuses(made) == ["completed", "incomplete"]
    assert (made.response["error"] is not None) == (status == "failed")


def test_a_call_that_was_cut_is_ended_at_a_limit_and_not_at_a_failure() -> None:
    for open_ in (calls('{"a": '), calls('{"a": ', ends=0), calls('{"a": ', ends=1)):
        made = ending(Finished("length", USED), *open_)
        assert names(made) == ["function_call_arguments.done", "output_item.done", "incomplete"]
        assert statuses(made) == ["incomplete"]
        failed = ending(DIED, *open_)
        assert names(failed) == ["error", "failed"]
        assert failed.response["output"] == [call('{"a": ', "incomplete")]


def test_a_whole_call_is_no_less_whole_at_a_limit() -> None:
    made = ending(Finished("length", USED), *calls('{"a": 1}'), *ended("completed", call('{"a": 1}')))
    assert (names(made)[-2:], statuses(made)) == (["output_item.done", "incomplete"], ["completed"])


def test_what_is_open_at_a_good_end_is_whole() -> None:
    made = ending(Finished("tool_calls", USED), *says("Hi", ends=0), *calls("{}", index=1, ends=0))
    assert names(made) == [
        "output_text.done", "content_part.done", "output_item.done",
        "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert statuses(made) == ["completed", "completed"]
    assert made.response["completed_at"] == 8


def test_an_item_without_any_part_ends_with_an_empty_one() -> None:
    made = ending(DIED, HELLO[0])
    assert names(made)[:4] == ["content_part.added", "output_text.done", "content_part.done", "output_item.done"]
    made = ending(DIED, {**HELLO[0], "item": {"id": "rs", "type": "reasoning", "summary": []}})
    assert names(made) == ["output_item.done", "error", "failed"]


def test_tools_of_the_upstream_have_statuses_of_their_own() -> None:
    search: Json = {"id": "ws", "type": "web_search_call", "status": "searching"}
    added: Json = {"type": "response.output_item.added", "output_index": 0, "item": search}
    failed = ending(DIED, added)
    assert (names(failed), statuses(failed)) == (["error", "failed"], ["searching"])
    done: Json = {"type": "response.output_item.done", "output_index": 0, "item": {**search, "status": "failed"}}
    made = ending(Finished("length", USED), added, done)
    assert (names(made), statuses(made)) == (["output_item.done", "incomplete"], ["failed"])


def test_a_response_that_never_began_begins_and_ends() -> None:
    made = Ending(Track(HEAD), DIED, 8.5)
    assert names(made) == ["created", "in_progress", "error", "failed"]
    assert (made.response["id"], made.response["status"]) == ("resp_ours", "failed")
    error = made.events[-2].value
    assert (error["code"], error["message"]) == ("engine_died", "gone")
    assert made.response["error"] == {"code": "server_error", "message": "gone"}


def test_what_is_the_upstreams_alone_stays_in_a_terminal_that_is_written_anew() -> None:
    said = ended("completed", message("Hello"), odd=1)
    made = ending(Finished("length", USED), *HELLO, {**said[0], "timings": {"a": 1}, "sequence_number": 4})
    last = made.events[-1].value
    assert (last["timings"], made.response["odd"]) == ({"a": 1}, 1)
    assert "sequence_number" not in last
