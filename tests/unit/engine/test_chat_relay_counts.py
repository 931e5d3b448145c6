"""The counts of several choices: added up for the client and for us, however the upstream tells them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.events import Event, Failed, FailKind, Finished, Passed, Usage
from tests.scripted_upstream import DONE
from tests.unit.engine.passing_shapes import Shape, chunk, on_the_wire, passed, relay

Json = dict[str, Any]
HEAD: Json = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": "b1"}
ASKED = Shape(b"", choices=2, usage=True)
NOT_ASKED = Shape(b"", choices=2)
CACHED: Json = {"prompt_tokens_details": {"cached_tokens": 30}}


def usage(completion: int) -> Json:
    return {"prompt_tokens": 34, "completion_tokens": completion, "total_tokens": 34 + completion, **CACHED}


def timings(made: int) -> Json:
    return {"timings": {"cache_n": 30, "prompt_n": 4, "predicted_n": made, "predicted_ms": 1.5}}


def first(index: int) -> bytes:
    return chunk({"role": "assistant", "content": None}, index=index, head=HEAD)


def says(text: str, index: int, **more: Any) -> bytes:
    return chunk({"content": text}, index=index, head=HEAD, **more)


def ends(index: int, word: str = "length", **more: Any) -> bytes:
    return chunk({}, word, index=index, head=HEAD, **more)


def counts(completion: int, **more: Any) -> bytes:
    return chunk(None, head=HEAD, usage=usage(completion), **more)


def finished(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1]


def usages(events: list[Event]) -> list[Any]:
    """What the chunks on the wire say of the counts."""
    blocks = on_the_wire(events).split(b"\n\n")[:-2]
    return [value["usage"] for value in (json.loads(block[6:]) for block in blocks) if value.get("usage")]


SAID = (first(1), says("x", 1), first(0), says("a", 0), says("yz", 1))
EACH = (*SAID, ends(1), counts(3, **timings(3)), says("b", 0), says("c", 0), ends(0), counts(4, **timings(4)), DONE)
"""What llama.cpp writes where counts are asked for: those of each choice, right behind its end."""


def test_counts_of_each_choice_are_told_once_and_added_up() -> None:
    events = passed(EACH, relay(ASKED))
    assert usages(events) == [usage(7)]
    assert finished(events).usage == Usage(34, 7, 30)
    without = [one for one in EACH if b'"usage"' not in one]
    assert on_the_wire(events).replace(finished(events).raw, b"") == b"".join(without[:-2]), "the rest is as it came"


def test_so_are_they_in_one_body() -> None:
    events = passed(EACH, relay(ASKED, form="whole"))
    body = json.loads(finished(events).raw)
    assert body["usage"] == usage(7)
    assert [choice["message"]["content"] for choice in body["choices"]] == ["abc", "xyz"]
    assert finished(events).usage == Usage(34, 7, 30)


def test_the_order_of_the_ends_does_not_matter_nor_do_details_get_lost() -> None:
    more = {"completion_tokens_details": {"reasoning_tokens": 2, "audio_tokens": 0, "odd": None}}
    told = [{**usage(n), **more} for n in (3, 4)]
    data = (
        first(0),
        ends(0),
        chunk(None, head=HEAD, usage=told[0]),
        first(1),
        ends(1),
        chunk(None, head=HEAD, usage=told[1]),
    )
    events = passed([*data, DONE], relay(ASKED))
    summed = {"completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": 0, "odd": None}}
    assert usages(events) == [{**usage(7), **summed}]
    assert finished(events).usage == Usage(34, 7, 30, 4)


WHOLE: dict[str, tuple[bytes, ...]] = {
    "once": (*SAID, ends(1), ends(0), counts(9), DONE),
    "twice": (*SAID, ends(1), ends(0), counts(9), counts(9), DONE),
    "with counts of each choice before": (
        *SAID, says("z", 1, usage=usage(4)), ends(1, usage=usage(4)), ends(0, usage=usage(5)), counts(9), DONE),
    "although there is one choice": (first(0), says("a", 0), ends(0), counts(9), DONE),
    "while a choice goes on": (*SAID, counts(3), ends(1), ends(0), counts(9), DONE),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_counts_of_the_whole_answer_stay_as_they_are(name: str) -> None:
    events = passed(WHOLE[name], relay(ASKED))
    assert usages(events)[-1] == usage(9)
    assert WHOLE[name][-2] in finished(events).raw
    assert finished(events).usage == Usage(34, 9, 30)


def test_timings_of_each_choice_are_added_up_where_no_counts_are_asked_for() -> None:
    data = (*SAID, ends(1, **timings(30)), says("b", 0), ends(0, **timings(40)), DONE)
    events = passed(data, relay(NOT_ASKED))
    assert on_the_wire(events) == b"".join(data)
    assert finished(events).usage == Usage(34, 70, 30)


def test_what_one_choice_told_and_another_made_is_added_up_in_a_failure() -> None:
    for ended in ([ends(1, **timings(30))], [ends(1), counts(30)]):
        events = passed([*SAID, *ended, says("b", 0)], relay(ASKED), cut=True)
        failed = events[-1]
        assert isinstance(failed, Failed)
        assert failed.usage == Usage(34, 32, 30), "two deltas of the choice that was cut"


def test_a_count_of_each_chunk_is_one_of_its_choice_if_all_have_one() -> None:
    data = [first(0), first(1), says("a", 0, usage=usage(5)), says("x", 1, usage=usage(6))]
    cut = passed(data, relay(NOT_ASKED), cut=True)[-1]
    assert isinstance(cut, Failed)
    assert cut.usage == Usage(34, 11, 30)


def test_a_count_that_only_the_last_choice_has_may_be_that_of_all() -> None:
    events = passed([*SAID, ends(1), ends(0, usage=usage(9)), DONE], relay(ASKED))
    assert (usages(events), finished(events).usage) == ([usage(9)], Usage(34, 9, 30))


@pytest.mark.parametrize("broken", [b"data: {oops\n\n", chunk({"content": 7}, head=HEAD), ends(1) + says("x", 1)])
def test_a_failure_counts_all_choices(broken: bytes) -> None:
    for form in ("stream", "whole"):
        failed = passed([*SAID, broken], relay(NOT_ASKED, form=form))[-1]
        assert isinstance(failed, Failed)
        assert failed.kind is FailKind.PROTOCOL
        assert failed.usage == Usage(0, 3)


def test_a_chunk_that_says_nothing_is_not_what_a_choice_told() -> None:
    data = (*SAID, ends(1), chunk(None, head=HEAD), says("b", 0), ends(0), counts(9), DONE)
    events = passed(data, relay(ASKED))
    assert usages(events) == [usage(9)]
    assert any(isinstance(event, Passed) for event in events)
