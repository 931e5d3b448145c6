"""Messages over the default engine with the real model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import anthropic
import pytest

from tests.e2e.client import Connection
from tests.e2e.messages_client import ADD, COUNT, ROUTE, Json, finished, refused, request, send, streamed, total
from tests.e2e.messages_grammar import check_message_stream
from tests.e2e.server import ServerProcess, wait_for
from tests.unit.serve.parse.claude_code import SECOND

pytestmark = pytest.mark.llama
SAME: Json = {"temperature": 0, "seed": 1}


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(server_command, ["--parallel", "2"], tmp_path_factory.mktemp("llama")) as started:
        yield started


def test_an_answer_ends_by_itself_and_is_counted(server: ServerProcess) -> None:
    body = request("Say hello in one word.", max_tokens=300, system="Be brief.", **SAME)
    ending = finished(server.port, body)
    assert ending.stop_reason == "end_turn"
    assert ending.of("text") != ("",)
    counted = send(server.port, body, path=COUNT).json
    assert counted == {"input_tokens": total(ending.usage)[0]}


def test_an_answer_cut_at_the_limit_says_so(server: ServerProcess) -> None:
    for limit in (1, 4):
        ending = finished(server.port, request("Count to one hundred.", max_tokens=limit, **SAME))
        assert ending.stop_reason == "max_tokens"
        assert total(ending.usage)[1] == limit


def test_a_json_schema_is_kept_to(server: ServerProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "words": {"enum": ["few", "many"]}},
        "required": ["n", "words"],
        "additionalProperties": False,
    }
    config: Json = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    ending = finished(server.port, request("Give a number.", max_tokens=100, **config, **SAME))
    (made,) = ending.of("text")
    assert set(json.loads(made)) == {"n", "words"}


def test_an_answer_goes_on_from_a_last_message_of_the_assistant(server: ServerProcess) -> None:
    body = request(
        max_tokens=20,
        messages=[
            {"role": "user", "content": "Say: one two three four five six"},
            {"role": "assistant", "content": "one two three four"},
        ],
        **SAME,
    )
    ending = finished(server.port, body)
    (text,) = ending.of("text")
    assert text.startswith(" five")
    assert send(server.port, body, path=COUNT).json == {"input_tokens": total(ending.usage)[0]}


def test_an_agents_long_history_is_taken_and_a_tool_conversation_goes_on(server: ServerProcess) -> None:
    ending = check_message_stream(send(server.port, {**SECOND, "max_tokens": 2}, path=f"{ROUTE}?beta=true"))
    assert ending.stop_reason in ("end_turn", "max_tokens")
    history = [
        {"role": "user", "content": "Add 1 and 1."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "The sum is 2."}]},
    ]
    assert finished(server.port, request(messages=history, tools=[ADD], max_tokens=6, **SAME)).of("text")


def test_a_prompt_that_does_not_fit_is_refused_in_words_that_agents_know(server: ServerProcess) -> None:
    for streams in (True, False):
        answered = send(server.port, request("word " * 6_000, stream=streams))
        assert answered.status == 400
        assert refused(answered)["message"].startswith("prompt is too long")


def test_anthropics_client_streams(server: ServerProcess) -> None:
    url = f"http://127.0.0.1:{server.port}"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, _strict_response_validation=True) as client:
        messages: list[anthropic.types.MessageParam] = [{"role": "user", "content": "Say hello in one word."}]
        with client.messages.stream(model="any", max_tokens=5, messages=messages) as stream:
            text = "".join(stream.text_stream)
            assert stream.get_final_message().stop_reason in ("end_turn", "max_tokens")
    assert text


@pytest.mark.skipif(os.name == "nt", reason="POSIX: the engine is killed by a signal")
def test_kill_9_of_the_engine_is_an_error_event_and_the_next_is_answered(server: ServerProcess) -> None:
    with Connection(server.port) as connection:
        connection.post(ROUTE, request("Tell me a very long story.", max_tokens=2000))
        connection.until(b"text_delta")
        server.engine_process().kill()
        ending = check_message_stream(connection.answer())
    assert ending.error is not None
    assert ending.error["type"] == "api_error"
    assert "SIGKILL" in ending.error["message"]
    assert ending.of("text")[0]
    assert streamed(server.port, request("Hi", max_tokens=5, **SAME)).error is None
    wait_for(server.settled, "idle")
