"""OpenAI's client with strict response validation: it parses every outcome, and raises with the cause on a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from tests.e2e.responses_client import ADD, bare
from tests.e2e.responses_outcomes import DIES, FAILED, FINISHED, INCOMPLETE, SCRIPT, Outcome
from tests.e2e.server import ServerProcess, fake_server

BY_NAME = {one.name: one for one in (*FINISHED, *INCOMPLETE, *FAILED, DIES)}
ENDED = [*FINISHED, *INCOMPLETE]
BROKEN = [*FAILED, DIES]
TERMINALS = ("response.completed", "response.incomplete", "response.failed")


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("sdk")) as started:
        yield started


def options_of(server: ServerProcess) -> dict[str, Any]:
    return {
        "base_url": f"http://127.0.0.1:{server.port}/v1",
        "api_key": "none",
        "max_retries": 0,
        "_strict_response_validation": True,
    }


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(**options_of(server)) as made:
        yield made


def fields_of(outcome: Outcome) -> dict[str, Any]:
    """The outcome's request as the client takes it: what is not the API's goes into the extra body."""
    body = {name: value for name, value in outcome.body.items() if name != "stream"}
    extra = {"stop": body.pop("stop")} if "stop" in body else None
    return {"model": "fake", "extra_body": extra, **body}


def plain(response: Response) -> dict[str, Any]:
    return bare(response.model_dump(mode="json"))


def check_read(response: Response, outcome: Outcome) -> None:
    assert response.output_text == "".join(outcome.texts)
    calls = [(item.arguments, item.status) for item in response.output if item.type == "function_call"]
    assert tuple(calls) == outcome.calls


@pytest.mark.parametrize("outcome", ENDED, ids=lambda outcome: outcome.name)
def test_the_client_reads_stream_body_and_kept_response_alike(client: openai.OpenAI, outcome: Outcome) -> None:
    with client.responses.create(stream=True, **fields_of(outcome)) as stream:
        events: list[Any] = list(stream)
    status = "completed" if outcome in FINISHED else "incomplete"
    assert events[-1].type == f"response.{status}"
    response: Response = events[-1].response
    assert response.status == status
    check_read(response, outcome)
    assert (
        "".join(event.delta for event in events if event.type == "response.output_text.delta") == response.output_text
    )
    whole = client.responses.create(stream=False, **fields_of(outcome))
    assert plain(whole) == plain(response)
    assert client.responses.retrieve(response.id) == response
    assert client.responses.retrieve(whole.id) == whole


@pytest.mark.parametrize("outcome", BROKEN, ids=lambda outcome: outcome.name)
def test_the_client_raises_the_cause_and_can_read_what_was_made(client: openai.OpenAI, outcome: Outcome) -> None:
    seen: list[Any] = []
    with (
        client.responses.create(stream=True, **fields_of(outcome)) as stream,
        pytest.raises(openai.APIError) as raised,
    ):
        seen.extend(stream)
    assert raised.value.code == outcome.code
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == "".join(
        outcome.texts
    )
    kept = client.responses.retrieve(seen[0].response.id)
    assert kept.status == "failed"
    assert kept.error is not None
    assert kept.error.message == raised.value.message
    check_read(kept, outcome)
    with pytest.raises(openai.InternalServerError) as refused:
        client.responses.create(**fields_of(outcome))
    assert refused.value.code == outcome.code
    body: Any = refused.value.body
    assert body["message"] == kept.error.message
    assert body["message"] in str(refused.value)
    assert plain(client.responses.retrieve(body["response_id"])) == plain(kept)


@pytest.mark.parametrize("outcome", ENDED, ids=lambda outcome: outcome.name)
def test_the_stream_helper_reads_every_event_and_gives_a_final_response_only_of_a_completed_one(
    client: openai.OpenAI, outcome: Outcome
) -> None:
    with client.responses.stream(**fields_of(outcome)) as stream:
        events: list[Any] = list(stream)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        if outcome in FINISHED:
            assert stream.get_final_response().output_text == "".join(outcome.texts)
        else:  # the helper knows no other ending: its user must read the terminal event (seen in 3.57.0)
            with pytest.raises(RuntimeError, match=r"response\.completed"):
                stream.get_final_response()
    assert [event.type for event in events if event.type in TERMINALS] == [events[-1].type]
    check_read(events[-1].response, outcome)


@pytest.mark.parametrize("outcome", BROKEN, ids=lambda outcome: outcome.name)
def test_the_stream_helper_raises_the_cause_not_the_lack_of_an_ending(client: openai.OpenAI, outcome: Outcome) -> None:
    with client.responses.stream(**fields_of(outcome)) as stream, pytest.raises(openai.APIError) as raised:
        stream.get_final_response()
    assert raised.value.code == outcome.code


class Number(BaseModel):
    a: int


def test_the_clients_own_parsing_gives_structured_answers_and_arguments(client: openai.OpenAI) -> None:
    fields = fields_of(BY_NAME["json"])
    del fields["text"]
    assert client.responses.parse(text_format=Number, **fields).output_parsed == Number(a=1)
    with client.responses.stream(text_format=Number, **fields) as stream:
        assert stream.get_final_response().output_parsed == Number(a=1)
    fields = fields_of(BY_NAME["call"])
    fields["tools"] = [{**ADD, "strict": True}]
    parsed: Any = client.responses.parse(**fields)
    (call,) = parsed.output
    assert call.type == "function_call"
    assert call.parsed_arguments == {"a": 1}


def test_a_request_that_is_refused_raises_with_the_field(client: openai.OpenAI) -> None:
    for stream in (True, False):
        with pytest.raises(openai.BadRequestError) as raised:
            client.responses.create(model="fake", input="hi", stream=stream, temperature=9)
        assert raised.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="resp_none"):
        client.responses.retrieve("resp_none")


def test_the_asynchronous_client_reads_side_by_side(server: ServerProcess) -> None:
    async def read(client: openai.AsyncOpenAI, outcome: Outcome) -> Response:
        last: Any = None
        async with await client.responses.create(stream=True, **fields_of(outcome)) as stream:
            async for event in stream:
                last = event
        assert await client.responses.retrieve(last.response.id) == last.response
        return last.response

    async def read_all(outcomes: list[Outcome]) -> list[Response]:
        async with openai.AsyncOpenAI(**options_of(server)) as client:
            responses = await asyncio.gather(*(read(client, outcome) for outcome in outcomes))
            with pytest.raises(openai.APIError) as raised:
                await read(client, FAILED[0])
            assert raised.value.code == FAILED[0].code
            return responses

    outcomes = [BY_NAME[name] for name in ("stop", "two-calls", "length-in-arguments")]
    for outcome, response in zip(outcomes, asyncio.run(read_all(outcomes)), strict=True):
        check_read(response, outcome)
