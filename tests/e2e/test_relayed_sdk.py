"""`--upstream-api responses`: OpenAI's client, strictly validating, reads what we make of an upstream's Responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.relayed import Front, fronted
from tests.e2e.test_relayed_responses import FAILING, REPAIRED, RIGHT, SCRIPTS, Case

OWN = ("unknown events", "vllm thinks")
"""Streams with events that are not in the API: a client that validates strictly does not take them from anybody."""
SLOW = ("silence", "silence with comments")
READ = [name for name, case in FAILING.items() if name not in SLOW and not case.fields]


@pytest.fixture(scope="module")
def front(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with fronted(server_command, tmp_path_factory.mktemp("sdk"), SCRIPTS) as made:
        yield made


@pytest.fixture(scope="module")
def client(front: Front) -> Iterator[openai.OpenAI]:
    options: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True}
    with openai.OpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key="none", **options) as made:
        yield made


def texts_of(response: Any) -> tuple[str, ...]:
    return tuple(part.text for item in response.output if item.type == "message" for part in item.content if part.text)


def calls_of(response: Any) -> tuple[tuple[str, str], ...]:
    return tuple((item.arguments, item.status) for item in response.output if item.type == "function_call")


@pytest.mark.parametrize("name", [name for name in RIGHT if name not in OWN])
def test_a_right_stream_is_read(client: openai.OpenAI, name: str) -> None:
    with client.responses.create(model="m", input=name, stream=True) as stream:
        events: list[Any] = list(stream)
    assert [event.type for event in events] == [event["type"] for event in RIGHT[name]]
    whole = client.responses.create(model="m", input=name)
    assert whole == events[-1].response


@pytest.mark.parametrize("name", REPAIRED)
def test_a_repaired_stream_is_read(client: openai.OpenAI, name: str) -> None:
    case: Case = REPAIRED[name]
    with client.responses.create(model="m", input=f"repaired: {name}", stream=True, **case.fields) as stream:
        events: list[Any] = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == f"response.{case.status}"
    response = events[-1].response
    assert (response.status, texts_of(response), calls_of(response)) == (case.status, case.texts, case.calls)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == response.output_text


@pytest.mark.parametrize("name", READ)
def test_a_failed_stream_raises_its_cause(client: openai.OpenAI, name: str) -> None:
    case = FAILING[name]
    seen: list[Any] = []
    with (
        client.responses.create(model="m", input=f"failing: {name}", stream=True) as stream,
        pytest.raises(openai.APIError) as raised,
    ):
        seen.extend(stream)
    assert raised.value.code == case.code
    assert case.says in raised.value.message
    deltas = [event.delta for event in seen if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "".join(case.texts)
    done = [event.item for event in seen if event.type == "response.output_item.done"]
    assert [item for item in done if item.type == "function_call"] == []  # so that nobody runs one that was cut
    with pytest.raises(openai.InternalServerError) as refused:
        client.responses.create(model="m", input=f"failing: {name}")
    assert refused.value.code == case.code


def test_the_stream_helper_gives_the_final_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="m", input="repaired: llama.cpp as it is") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "Hello"
