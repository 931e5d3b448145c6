"""Responses over the default engine with the real model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.e2e.client import Connection
from tests.e2e.responses_client import ADD, ROUTE, Json, check_failed, finished, request, respond, stored
from tests.e2e.responses_grammar import check_response_stream
from tests.e2e.server import ServerProcess, wait_for
from tests.unit.serve.parse.agents import CODEX_SECOND, text

pytestmark = pytest.mark.llama
SAME: Json = {"temperature": 0, "seed": 1}


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(server_command, ["--parallel", "2"], tmp_path_factory.mktemp("llama")) as started:
        yield started


def test_a_finished_answer_is_completed_in_all_three_readings(server: ServerProcess) -> None:
    ending = finished(server.port, request("Say hello in one word.", max_output_tokens=300, **SAME))
    assert ending.status == "completed"
    assert ending.texts != [""]
    assert ending.response["usage"]["input_tokens"] > 0


def test_an_answer_cut_at_the_limit_is_incomplete_where_llama_server_itself_says_completed(
    server: ServerProcess,
) -> None:
    for limit in (1, 4):
        ending = finished(server.port, request("Count to one hundred.", max_output_tokens=limit, **SAME))
        assert ending.status == "incomplete"
        assert ending.response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert ending.response["usage"]["output_tokens"] == limit


def test_a_json_schema_is_kept_to_and_cut_json_is_incomplete(server: ServerProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "words": {"enum": ["few", "many"]}},
        "required": ["n", "words"],
        "additionalProperties": False,
    }
    form: Json = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    ending = finished(server.port, request("Give a number.", text=form, max_output_tokens=100, **SAME))
    assert ending.status == "completed"
    (made,) = ending.texts
    assert set(json.loads(made)) == {"n", "words"}
    cut = finished(server.port, request("Give a number.", text=form, max_output_tokens=4, **SAME))
    assert cut.status == "incomplete"
    assert made.startswith("".join(cut.texts))  # llama.cpp build 11549 keeps the text of a cut one to itself


def test_a_conversation_with_a_call_goes_on_by_id_and_by_items_sent_back_alike(server: ServerProcess) -> None:
    fields: Json = {"tools": [ADD], "max_output_tokens": 6, **SAME}
    history = [
        text("user", "Add 1 and 1."),
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "The sum is 2."},
    ]
    first = finished(server.port, request(history, **fields))
    assert first.texts
    by_id = finished(server.port, request("Again.", previous_response_id=first.response["id"], **fields))
    sent = [*history, *first.response["output"], text("user", "Again.")]
    by_items = finished(server.port, request(sent, **fields))
    assert by_items.texts == by_id.texts
    assert by_items.response["usage"]["input_tokens"] == by_id.response["usage"]["input_tokens"]


def test_an_agents_long_history_is_taken(server: ServerProcess) -> None:
    ending = check_response_stream(respond(server.port, {**CODEX_SECOND, "max_output_tokens": 2}))
    assert ending.status in ("completed", "incomplete")
    assert ending.response["usage"]["output_tokens"] <= 2


@pytest.mark.skipif(os.name == "nt", reason="POSIX: the engine is killed by a signal")
def test_kill_9_of_the_engine_fails_the_response_and_the_next_is_answered(server: ServerProcess) -> None:
    with Connection(server.port) as connection:
        connection.post(ROUTE, request("Tell me a very long story.", max_output_tokens=2000))
        connection.until(b'"sequence_number": 7}')
        server.engine_process().kill()
        ending = check_response_stream(connection.answer())
    check_failed(ending, "engine_died")
    assert "SIGKILL" in ending.response["error"]["message"]
    assert ending.texts[0]
    assert stored(server.port, ending.response["id"]) == ending.response
    assert finished(server.port, request("Hi", max_output_tokens=5, **SAME)).status in ("completed", "incomplete")
    wait_for(server.settled, "idle")
