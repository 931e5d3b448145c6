"""Log probabilities: from an upstream's chat form to that of Responses, and nothing else gets through."""

from __future__ import annotations

from typing import Any

import pytest

from engine.events import Accepted, Finished, Reasoning, Text, Usage
from serve.encode.response_items import token_logprobs
from serve.entries import Entry
from tests.unit.serve.encode.response_streams import encode, ended, head, judged

HEL: dict[str, Any] = {
    "token": "Hel",
    "logprob": -0.25,
    "bytes": [72, 101, 108],
    "top_logprobs": [
        {"token": "Hel", "logprob": -0.25, "bytes": [72, 101, 108]},
        {"token": "Hi", "logprob": -3, "bytes": None},
    ],
}
LO: dict[str, Any] = {"token": "lo", "logprob": 0, "bytes": None, "top_logprobs": []}
TOLD: list[dict[str, Any]] = [
    {
        "token": "Hel",
        "bytes": [72, 101, 108],
        "logprob": -0.25,
        "top_logprobs": [
            {"token": "Hel", "bytes": [72, 101, 108], "logprob": -0.25},
            {"token": "Hi", "bytes": [], "logprob": -3},
        ],
    },
    {"token": "lo", "bytes": [], "logprob": 0, "top_logprobs": []},
]
SPOKEN: list[Entry] = [
    Accepted(),
    Text("Hel", {"content": [HEL], "refusal": None}),
    Text("lo", {"content": [LO]}),
    ended(Finished("stop", Usage(1, 2))),
]


def test_logprobs_stand_in_their_deltas_and_all_together_in_what_is_done() -> None:
    _, events = encode(head(include_logprobs=True), SPOKEN)
    response = judged(events).response
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == [TOLD[:1], TOLD[1:]]
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == response["output"][0]["content"][0]["logprobs"] == TOLD


def test_logprobs_that_nobody_asked_for_are_left_out() -> None:
    _, events = encode(head(), SPOKEN)
    judged(events)
    assert all(event.get("logprobs", []) == [] for event in events)


def test_a_token_without_text_keeps_its_logprob_but_begins_no_message() -> None:
    silent = Text("", {"content": [LO]})
    end = ended(Finished("stop", Usage(1, 2)))
    _, begun = encode(head(include_logprobs=True), [Text("Hel", {"content": [HEL]}), silent, end])
    assert judged(begun).response["output"][0]["content"][0]["logprobs"] == TOLD
    _, thinking = encode(head(include_logprobs=True), [Reasoning("hm"), silent, end])
    assert [item["type"] for item in judged(thinking).response["output"]] == ["reasoning"]


NO_LOGPROBS: list[Any] = [
    None,
    "Hel",
    [HEL],
    {},
    {"content": None},
    {"content": HEL},
    {"content": [None, 1, "x", []]},
    {"content": [{**HEL, "token": None}]},
    {"content": [{**HEL, "logprob": "-1"}]},
    {"content": [{**HEL, "logprob": True}]},
    {"content": [{**HEL, "logprob": float("nan")}]},
    {"content": [{**HEL, "logprob": float("-inf")}]},
    {"content": [{"token": "x"}]},
]


@pytest.mark.parametrize("value", NO_LOGPROBS, ids=repr)
def test_what_is_no_logprob_is_left_out(value: object) -> None:
    assert token_logprobs(value) == []


def test_what_is_broken_inside_a_logprob_is_left_out_of_it() -> None:
    value = {"content": [{**HEL, "bytes": [72, None, True, "x"], "top_logprobs": [None, {"token": "Hi"}]}]}
    assert token_logprobs(value) == [{"token": "Hel", "bytes": [72], "logprob": -0.25, "top_logprobs": []}]
