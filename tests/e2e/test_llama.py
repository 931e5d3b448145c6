"""The default engine with the real model, through OpenAI's own client; its process killed in mid-answer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.client import Connection, ask, chat
from tests.e2e.grammar import check_chat_stream, check_choices
from tests.e2e.server import ServerProcess, wait_for

pytestmark = pytest.mark.llama
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(server_command, ["--parallel", "2"], tmp_path_factory.mktemp("llama")) as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_openais_client_gets_a_streamed_answer_with_its_true_reason(client: openai.OpenAI) -> None:
    for max_tokens in (5, 300):
        stream = client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "Say hello in one word."}],
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=max_tokens,
            temperature=0,
        )
        chunks = list(stream)
        reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        usage = chunks[-1].usage
        assert text
        assert usage is not None
        assert reasons == ["length" if usage.completion_tokens >= max_tokens else "stop"]


def test_stream_and_body_agree_on_text_reason_and_usage(client: openai.OpenAI, server: ServerProcess) -> None:
    whole = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "Count to five."}], max_tokens=20, temperature=0, seed=1
    )
    body = chat(content="Count to five.", max_tokens=20, temperature=0, seed=1, stream_options={"include_usage": True})
    ending = check_chat_stream(ask(server.port, body))
    assert ending.content == whole.choices[0].message.content
    assert ending.finish_reason == whole.choices[0].finish_reason
    assert ending.usage is not None
    assert whole.usage is not None
    assert ending.usage["completion_tokens"] == whole.usage.completion_tokens


def test_several_answers_are_choices_and_all_are_counted_once(server: ServerProcess) -> None:
    body = chat(content="Count to ten.", max_tokens=6, temperature=0, n=2, stream_options={"include_usage": True})
    endings = check_choices(ask(server.port, body), 2)
    assert [ending.finish_reason for ending in endings] == ["length", "length"]
    whole = ask(server.port, {**body, "stream": False, "stream_options": None}).json
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["length", "length"]
    for usage in (endings[0].usage, whole["usage"]):
        assert usage is not None
        assert usage["completion_tokens"] == 12
        assert usage["total_tokens"] == usage["prompt_tokens"] + 12
        assert 20 < usage["prompt_tokens"] < 50, "the prompt is that of both"


def test_a_json_schema_is_kept_to(server: ServerProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    answer_format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    body = chat(stream=False, content="Give a number.", max_tokens=60, temperature=0, response_format=answer_format)
    answer = ask(server.port, body)
    assert answer.status == 200, answer.body
    choice = answer.json["choices"][0]
    assert choice["finish_reason"] == "stop"
    value = json.loads(choice["message"]["content"])
    assert set(value) == {"n"}
    assert isinstance(value["n"], int)


@pytest.mark.skipif(os.name == "nt", reason="POSIX: the engine is killed by a signal")
def test_kill_9_of_the_engine_gives_the_ending_and_the_next_request_answers(
    server: ServerProcess, client: openai.OpenAI
) -> None:
    with Connection(server.port) as connection:
        connection.post(CHAT, chat(content="Tell me a very long story.", max_tokens=2000))
        connection.until(b'"delta":{"content":"')
        engine = server.engine_process()
        engine.kill()
        ending = check_chat_stream(connection.answer())
    assert ending.error is not None
    assert (ending.error["code"], ending.finish_reason) == ("engine_died", "error")
    assert "SIGKILL" in ending.error["message"]
    assert ending.content
    answer = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "Hi"}], max_tokens=5, temperature=0
    )
    assert answer.choices[0].finish_reason in ("stop", "length")
    wait_for(server.settled, "idle")
    assert server.status["engine"]["restarts"] == 1


def test_a_missing_model_exits_3_or_2_with_one_clear_message(server_command: tuple[str, ...], tmp_path: Path) -> None:
    started = ServerProcess(server_command, ["--model", str(tmp_path / "none.gguf")], tmp_path)
    assert started.process.wait(30) == 2
    assert "no such file" in started.log()
    started.end()
