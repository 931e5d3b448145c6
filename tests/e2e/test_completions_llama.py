"""Completions over the default engine with the real model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.client import Connection
from tests.e2e.completions_client import ROUTE, Json, finished, refused, request, send, streamed, total
from tests.e2e.completions_grammar import check_completion, check_completion_stream
from tests.e2e.server import ServerProcess, wait_for

pytestmark = pytest.mark.llama
SAME: Json = {"temperature": 0, "seed": 1}
COUNTING = "one, two, three, four,"


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(server_command, ["--parallel", "2"], tmp_path_factory.mktemp("llama")) as started:
        yield started


def test_a_text_goes_on_without_a_chat_around_it_and_is_counted(server: ServerProcess) -> None:
    ending = finished(server.port, request(COUNTING, max_tokens=4, **SAME))
    (text,) = ending.texts
    assert text.startswith(" five")
    assert ending.finish_reasons == ("length",)
    prompt, made = total(ending.usage)
    assert made == 4
    assert 5 <= prompt <= 12  # a chat's template would add some twenty


def test_it_ends_by_itself_at_the_models_end_and_at_a_stop_string(server: ServerProcess) -> None:
    prompt = "<|im_start|>user\nSay hello in one word.<|im_end|>\n<|im_start|>assistant\n"
    ending = finished(server.port, request(prompt, max_tokens=300, **SAME))
    assert ending.finish_reasons == ("stop",)
    ending = finished(server.port, request(COUNTING, max_tokens=100, stop=[" six"], **SAME))
    assert (ending.texts, ending.finish_reasons) == ((" five,",), ("stop",))


def test_each_prompt_of_a_list_is_answered_as_alone_and_all_are_counted(server: ServerProcess) -> None:
    prompts = [COUNTING, "The capital of France is"]
    alone = [finished(server.port, request(prompt, max_tokens=3, **SAME)) for prompt in prompts]
    together = finished(server.port, request(prompts, max_tokens=3, **SAME))
    assert together.texts == tuple(ending.texts[0] for ending in alone)
    counts = [total(ending.usage) for ending in alone]
    assert total(together.usage) == (sum(prompt for prompt, _ in counts), 6)


def test_several_answers_to_one_prompt_are_choices_and_all_are_counted(server: ServerProcess) -> None:
    body = request(COUNTING, max_tokens=3, n=2, temperature=0)
    ending = streamed(server.port, body)
    assert ending.finish_reasons == ("length", "length")
    assert all(text.startswith(" five") for text in ending.texts)
    counted = check_completion(send(server.port, {**body, "stream": False}).json, 2)
    assert total(counted.usage)[1] == 6


def test_token_ids_are_passed_and_those_that_are_none_are_refused(server: ServerProcess) -> None:
    assert total(finished(server.port, request([28, 5344, 28], max_tokens=2, **SAME)).usage) == (3, 2)
    for stream in (True, False):
        refused(send(server.port, request([49_152_000], stream=stream)))


def test_log_probabilities_are_carried(server: ServerProcess) -> None:
    body = request(COUNTING, max_tokens=2, logprobs=2, **SAME)
    ending = streamed(server.port, body)
    whole = check_completion(send(server.port, {**body, "stream": False}).json)
    told = [entry["token"] for one in ending.logprobs for entry in one["content"]]
    (joined,) = whole.logprobs
    assert told == [entry["token"] for entry in joined["content"]]
    assert "".join(told) == ending.texts[0]


def test_a_prompt_that_does_not_fit_is_refused(server: ServerProcess) -> None:
    for stream in (True, False):
        error = refused(send(server.port, request("word " * 6_000, stream=stream)))
        assert error["code"] == "context_length_exceeded"


def test_openais_client_streams(server: ServerProcess) -> None:
    url = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        create: Any = client.completions.create
        with create(model="any", prompt=COUNTING, max_tokens=4, stream=True, **SAME) as stream:
            chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks).startswith(" five")
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.skipif(os.name == "nt", reason="POSIX: the engine is killed by a signal")
def test_kill_9_of_the_engine_is_an_error_ending_and_the_next_is_answered(server: ServerProcess) -> None:
    with Connection(server.port) as connection:
        connection.post(ROUTE, request(COUNTING, max_tokens=2_000))
        connection.until(b'"text"')
        server.engine_process().kill()
        ending = check_completion_stream(connection.answer())
    assert ending.error is not None
    assert "SIGKILL" in ending.error["message"]
    assert ending.texts[0]
    assert ending.usage is not None
    assert ending.usage["completion_tokens"] > 0
    assert streamed(server.port, request("Hi", max_tokens=5, **SAME)).error is None
    wait_for(server.settled, "idle")
