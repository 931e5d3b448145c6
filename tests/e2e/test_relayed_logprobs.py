"""`--upstream-api responses`: the lists of a text, which vLLM writes as null where they are empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import openai
import pytest

from tests.e2e.relayed import BEGIN, Front, ended, fronted, message, part, plays, reasoning, says, thinks
from tests.e2e.responses_client import Json
from tests.e2e.responses_grammar import check_response_object, check_response_stream

LOGPROBS: list[Json] = [{"token": text, "logprob": -0.5, "top_logprobs": [], "bytes": [1]} for text in ("Hel", "lo")]


def without_lists(value: object, *names: str) -> Any:
    """The events as vLLM 0.32.0 writes them: what says the whole text has null for these lists."""
    if isinstance(value, list):
        return [without_lists(one, *names) for one in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("Json", value)
    made = {name: without_lists(item, *names) for name, item in fields.items()}
    if fields.get("text") and fields.get("type") in ("output_text", "response.output_text.done"):
        made |= {name: None for name in names if name in fields}
    return made


def likely(events: list[Json]) -> list[Json]:
    """The events with what each delta says of its token."""
    numbers = iter(LOGPROBS)
    return [
        {**event, "logprobs": [next(numbers)]} if event["type"] == "response.output_text.delta" else event
        for event in events
    ]


HELLO = says("Hel", "lo")
WHOLE = {**message("Hello"), "content": [{**part("Hello"), "logprobs": LOGPROBS}]}
STREAMS: dict[str, tuple[list[Json], list[Json]]] = {
    "null": (without_lists([*BEGIN, *HELLO, *ended("completed", message("Hello"))], "logprobs"), []),
    "null everywhere": (
        without_lists([*BEGIN, *HELLO, *ended("completed", message("Hello"))], "logprobs", "annotations"), []),
    "null at the end alone": (
        [*BEGIN, *HELLO, *without_lists(ended("completed", message("Hello")), "logprobs")], []),
    "null, with other ids at the end": (
        without_lists([*BEGIN, *HELLO, *ended("completed", message("Hello", id_="msg_b"))], "logprobs"), []),
    "null behind a thought": (
        without_lists(
            [*BEGIN, *thinks("Hm"), *says("Hel", "lo", index=1),
             *ended("completed", reasoning("Hm"), message("Hello"))], "logprobs"), []),
    "null, and no end of the item": (
        without_lists([*BEGIN, *HELLO[:-1], *ended("completed", message("Hello"))], "logprobs"), []),
    "null, and told at the end alone": (without_lists([*BEGIN, *ended("completed", message("Hello"))], "logprobs"), []),
    "null over those of the deltas": (
        without_lists([*BEGIN, *likely(HELLO), *ended("completed", message("Hello"))], "logprobs"), LOGPROBS),
    "those of the deltas at the end": (
        [*BEGIN, *likely(HELLO[:-3]), {**HELLO[-3], "logprobs": LOGPROBS},
         {**HELLO[-2], "part": WHOLE["content"][0]}, {**HELLO[-1], "item": WHOLE},
         *ended("completed", WHOLE)], LOGPROBS),
}  # fmt: skip
"""Events, and what is known of the tokens."""


@pytest.fixture(scope="module")
def front(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    scripts = {name: plays(*events) for name, (events, _) in STREAMS.items()}
    with fronted(server_command, tmp_path_factory.mktemp("logprobs"), scripts) as made:
        yield made


def lists_of(value: object) -> list[object]:
    """The log probabilities and annotations in an event or a response, wherever they are."""
    if isinstance(value, list):
        return [found for one in cast("list[object]", value) for found in lists_of(one)]
    if not isinstance(value, dict):
        return []
    fields = cast("Json", value)
    own = [item for name, item in fields.items() if name in ("logprobs", "annotations")]
    return own + [found for item in fields.values() for found in lists_of(item)]


@pytest.mark.parametrize("name", STREAMS)
def test_a_text_has_its_lists_wherever_it_is_told(front: Front, name: str) -> None:
    ending = check_response_stream(front.ask(name))
    assert (ending.status, ending.texts[-1]) == ("completed", "Hello")
    assert all(isinstance(found, list) for found in lists_of(ending.events))
    assert ending.response["output"][-1]["content"][0]["logprobs"] == STREAMS[name][1]
    whole = front.ask(name, stream=False).json
    check_response_object(whole)
    assert whole == ending.response


@pytest.mark.parametrize("name", STREAMS)
def test_openais_client_reads_it_strictly(front: Front, name: str) -> None:
    base = f"http://127.0.0.1:{front.port}/v1"
    with (
        openai.OpenAI(base_url=base, api_key="none", max_retries=0, _strict_response_validation=True) as client,
        client.responses.create(model="m", input=name, stream=True) as stream,
    ):
        events: list[Any] = list(stream)
    parts = [event.part for event in events if event.type == "response.content_part.done"]
    (done,) = [part for part in parts if part.text == "Hello"]
    assert len(done.logprobs) == len(STREAMS[name][1])
    assert events[-1].response.output_text == "Hello"
