"""Response objects in a relayed stream: completed where they lack something, of one identity, counted in five parts."""

from __future__ import annotations

from engine.events import Usage
from serve.relay.objects import REQUIRED, Responses, right_usage
from tests.e2e.relayed import USAGE, response
from tests.unit.serve.relay.relays import HEAD


def test_an_object_that_has_all_is_itself() -> None:
    given = response("completed")
    assert Responses(HEAD).right(given, "in_progress") is given


def test_an_object_that_lacks_something_gets_it_and_keeps_the_rest() -> None:
    made = Responses(HEAD).right({"id": "theirs", "odd": 1, "status": "completed", "tools": None}, "in_progress")
    assert all(name in made for name in REQUIRED)
    assert (made["id"], made["odd"], made["status"], made["tools"]) == ("theirs", 1, "completed", [])
    assert (made["created_at"], made["model"], made["object"]) == (3, "ours", "response")
    nothing = Responses(HEAD).right(None, "in_progress")
    assert (nothing["id"], nothing["status"], nothing["output"]) == ("resp_ours", "in_progress", [])


def test_all_objects_of_a_stream_have_the_identity_of_the_first() -> None:
    responses = Responses(HEAD)
    responses.right({"id": "first"}, "in_progress")
    later = responses.right(response("completed", id="second", created_at=9, model="other"), "completed")
    assert (later["id"], later["created_at"], later["model"]) == ("first", 3, "ours")


def test_counts_have_all_five_parts() -> None:
    assert right_usage(USAGE, Usage(1, 1)) is USAGE
    bare = {"input_tokens": 9, "output_tokens": 7, "odd": 1, "input_tokens_details": {"cached_tokens": 4, "more": 2}}
    assert right_usage(bare, Usage(9, 7, 4)) == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0, "more": 2},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 16,
        "odd": 1,
    }
    assert right_usage(None, Usage(2, 3)) == right_usage({}, Usage(2, 3))
    assert right_usage(None, None) is None
