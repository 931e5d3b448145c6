"""What of an upstream's events goes out at once, what is held, and what makes no sense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine.events import RelayedEvent
from serve.relay.track import Broken, Track, aligned
from tests.e2e.relayed import BEGIN, calls, says, sse, thinks
from tests.e2e.responses_client import Json
from tests.unit.serve.relay.relays import HEAD

HELLO = says("Hel", "lo")
ITEM: Json = {"item_id": "msg_a", "output_index": 0}


def track_of(*events: Json) -> Track:
    track = Track(HEAD)
    track.take(RelayedEvent(event, sse(event)) for event in events)
    return track


def out(track: Track) -> list[str]:
    return [str(event.value["type"]).removeprefix("response.") for event in track.ready()]


def held(track: Track) -> list[str]:
    return [str(one.event.value["type"]).removeprefix("response.") for one in track.held]


def test_the_end_of_an_item_is_held_until_more_comes() -> None:
    track = track_of(*BEGIN, *HELLO)
    assert out(track)[-3:] == ["content_part.added", "output_text.delta", "output_text.delta"]
    assert held(track) == ["output_text.done", "content_part.done", "output_item.done"]
    assert not track.items[0].told
    track.take([RelayedEvent({"type": "keepalive"})])
    assert (out(track), held(track)[-1]) == ([], "keepalive")
    track.take([RelayedEvent(thinks("x", index=1)[0])])
    assert out(track)[-3:] == ["output_item.done", "keepalive", "output_item.added"][-3:]
    assert (held(track), track.items[0].told) == ([], True)


def test_a_call_that_is_broken_stays_held() -> None:
    track = track_of(*BEGIN, *calls('{"a": '), *HELLO[:1])
    assert held(track) == ["function_call_arguments.done", "output_item.done"]
    assert out(track)[-1] == "output_item.added"


def test_events_that_are_right_keep_their_bytes() -> None:
    last: Json = {**HELLO[0], "output_index": 3, "item": {**HELLO[0]["item"], "id": "msg_b"}}
    given = [*BEGIN, *thinks("Hm"), *says("Hel", index=1), *calls("{}", index=2), last]
    track = track_of(*given)
    assert [event.raw for event in track.ready()] == [sse(event) for event in given]


@pytest.mark.parametrize(
    ("event", "members"),
    [
        ({"type": "response.output_text.delta", "delta": "x"}, {**ITEM, "content_index": 0, "logprobs": []}),
        ({"type": "response.output_text.delta", "delta": "x", "item_id": "msg_a"}, ITEM),
        ({"type": "response.output_text.delta", "delta": "x", "item_id": "other", "output_index": 0}, ITEM),
        ({"type": "response.output_text.delta", "delta": "x", "output_index": 5, "item_id": "msg_a"}, ITEM),
        ({"type": "response.output_text.delta", "delta": "x", "output_index": True}, ITEM),
        ({"type": "response.refusal.delta", "delta": "x", "content_index": 1}, {**ITEM, "content_index": 1}),
        (
            {"type": "response.output_item.added", "item": {"type": "message"}},
            {"output_index": 1, "item": {"role": "assistant", "content": [], "type": "message",
             "id": "item_resp_theirs_1", "status": "in_progress"}},
        ),
        (
            {"type": "response.output_item.added", "item": {"type": "function_call", "id": "f", "name": "n"}},
            {"item": {"type": "function_call", "id": "f", "name": "n", "status": "in_progress", "call_id": "call_f",
             "arguments": ""}},
        ),
    ],
    ids=range(8),
)  # fmt: skip
def test_what_an_event_lacks_is_added(event: Json, members: dict[str, Any]) -> None:
    track = track_of(*BEGIN, *HELLO[:2])
    track.ready()
    track.take([RelayedEvent(event, sse(event))])
    last = track.ready()[-1]
    assert {name: last.value[name] for name in members} == members
    assert last.raw == b""


def test_a_text_of_no_item_begins_one() -> None:
    track = track_of(*BEGIN, {"type": "response.output_text.delta", "delta": "x"})
    assert out(track)[2:] == ["output_item.added", "content_part.added", "output_text.delta"]
    track = track_of(*BEGIN, {"type": "response.reasoning_summary_text.delta", "delta": "x", "item_id": "r"})
    assert out(track)[2:] == ["output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta"]
    assert (track.items[0].id, track.items[0].kind) == ("r", "reasoning")


NONSENSE: list[tuple[list[Json], str]] = [
    ([*HELLO, HELLO[2]], "more of an item"),
    ([*HELLO, HELLO[1]], "more of an item"),
    ([*HELLO[:5], HELLO[2]], "more of a text"),
    ([*calls("{}")[:3], calls("{}")[1]], "more of arguments"),
    ([calls("{}")[1]], "never began"),
    ([{"type": "response.output_item.added", "item": {}}], "without a type"),
    ([{"type": "response.output_item.done"}], "without a type"),
    ([{"type": "response.output_item.added", "item": {"type": "function_call"}}], "without a name"),
    ([HELLO[0], {**HELLO[-1], "item": {"id": "msg_a", "type": "reasoning"}}], "another kind"),
    ([HELLO[0], {"type": "response.output_text.delta", "delta": None}], "no text"),
]


@pytest.mark.parametrize(("events", "why"), NONSENSE, ids=range(len(NONSENSE)))
def test_what_makes_no_sense_is_said(events: Sequence[Json], why: str) -> None:
    with pytest.raises(Broken, match=why):
        track_of(*BEGIN, *events)


def test_an_annotation_is_kept_with_its_text() -> None:
    note = {"type": "response.output_text.annotation.added", "content_index": 0, "annotation": {"a": 1}, **ITEM}
    track = track_of(*BEGIN, *HELLO[:3], note)
    assert track.items[0].parts["content", 0].annotations == [{"a": 1}]
    assert out(track)[-1] == "output_text.annotation.added"


def test_items_are_those_that_are_told_if_their_kinds_are() -> None:
    items = track_of(*BEGIN, *thinks("x"), *says("y", index=1)).items
    kinds: list[Json] = [{"type": "reasoning"}, {"type": "message", "id": "another"}]
    assert aligned(items, kinds)
    assert not aligned(items, kinds[:1])
    assert not aligned(items, kinds[::-1])
