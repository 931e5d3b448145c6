"""OpenAI's client over `/v1/completions`: it reads what was made and how it ended, and raises the cause of faults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import Completion

from tests.e2e.completions_client import END, Json, rule
from tests.e2e.server import ServerProcess, fake_server

SCRIPT: Json = {
    "requests": [
        rule("whole", {"text": "Grüße 😀\u2028."}, *END),
        rule("stops", {"text": "one END two"}, *END),
        rule("fails", {"text": "Hel"}, {"exit": 3}),
    ],
    "context": 200,
}


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("sdk")) as started:
        yield started


def options_of(server: ServerProcess) -> dict[str, Any]:
    return {
        "base_url": f"http://127.0.0.1:{server.port}/v1",
        "api_key": "none",
        "max_retries": 0,  # no strict validation: the SDK's own type has no null, which every stream of OpenAI's has
    }


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(**options_of(server)) as made:
        yield made


def check_form(completion: Completion) -> Completion:
    """Strictly of the documented form: nothing converted, no unknown finish reason."""
    return Completion.model_validate(completion.to_dict(), strict=True)


ENDED: list[tuple[Any, Json, list[str], list[str]]] = [
    ("whole", {}, ["Grüße 😀\u2028."], ["stop"]),
    (list(b"whole"), {}, ["Grüße 😀\u2028."], ["stop"]),
    ("whole", {"max_tokens": 3}, ["Gr\ufffd"], ["length"]),
    ("stops", {"stop": "END"}, ["one "], ["stop"]),
    (["whole", "stops"], {"max_tokens": 13}, ["Grüße 😀\ufffd", "one END two"], ["length", "stop"]),
]


@pytest.mark.parametrize(("prompt", "fields", "texts", "reasons"), ENDED)
def test_it_reads_an_answer_streamed_and_whole(
    client: openai.OpenAI, prompt: Any, fields: Json, texts: list[str], reasons: list[str]
) -> None:
    create: Any = client.completions.create
    made: Completion = check_form(create(model="any", prompt=prompt, **{"max_tokens": 100, **fields}))
    assert [choice.text for choice in made.choices] == texts
    assert [choice.finish_reason for choice in made.choices] == reasons
    assert made.usage is not None
    told = [""] * len(texts)
    ends: dict[int, str] = {}
    counts: list[Any] = []
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with create(model="any", prompt=prompt, **{"max_tokens": 100, **fields}, **options) as stream:
        for chunk in stream:
            counts += [chunk.usage] if chunk.usage else []
            for choice in chunk.choices:
                told[choice.index] += choice.text
                if choice.finish_reason:
                    ends[choice.index] = choice.finish_reason
    assert (told, [ends[index] for index in range(len(texts))]) == (texts, reasons)
    assert counts == [made.usage]


def test_it_raises_the_cause_of_a_failure_in_both_modes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as whole:
        client.completions.create(model="any", prompt="fails", max_tokens=50)
    body: Any = whole.value.body
    assert (whole.value.status_code, body["code"], body["partial_output"]) == (503, "engine_died", "Hel")
    told = ""
    with (
        pytest.raises(openai.APIError, match="exit code 3"),
        client.completions.create(model="any", prompt="fails", max_tokens=50, stream=True) as stream,
    ):
        for chunk in stream:
            told += chunk.choices[0].text
    assert told == "Hel"


def test_it_raises_what_is_refused(client: openai.OpenAI) -> None:
    for fields in ({"echo": True}, {"suffix": "x"}, {"best_of": 2}, {"n": 2}, {"logprobs": 1}):
        create: Any = client.completions.create
        (name,) = fields
        with pytest.raises(openai.BadRequestError) as raised:
            create(model="any", prompt="whole", **fields)
        assert raised.value.param == name
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model="any", prompt="x" * 200)
    assert raised.value.code == "context_length_exceeded"


def test_the_asynchronous_client_reads_many_streams_at_once(server: ServerProcess) -> None:
    async def one(client: openai.AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(model="any", prompt=prompt, max_tokens=100, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def many() -> list[str]:
        async with openai.AsyncOpenAI(**options_of(server)) as client:
            return await asyncio.gather(*[one(client, prompt) for prompt in ("whole", "stops") * 4])

    assert asyncio.run(many()) == ["Grüße 😀\u2028.", "one END two"] * 4
