"""`--upstream-api responses` over a real llama.cpp server: what it says of a cut answer, and what we make of it."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from engine.model import ensure_default_model
from tests.e2e.client import Answer, Connection
from tests.e2e.responses_client import ROUTE, Json, respond
from tests.e2e.responses_grammar import check_response_object, check_response_stream
from tests.e2e.server import ServerProcess, wait_for

pytestmark = pytest.mark.llama
LLAMA = Path(__file__).with_name("llama_server.py")
SAME: Json = {"temperature": 0, "seed": 1}
CUT: Json = {"input": "Count to one hundred.", "max_output_tokens": 8, **SAME}


class Both:
    """Our server, and the port of the llama.cpp server behind it, which it runs."""

    def __init__(self, server: ServerProcess, direct: int) -> None:
        self.server, self.port, self.direct = server, server.port, direct


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def llama(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    port = free_port()
    words = [sys.executable, str(LLAMA), str(ensure_default_model()), str(port), "2"]
    command = subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)
    options = ["--upstream-command", command, "--upstream", f"http://127.0.0.1:{port}", "--upstream-api", "responses"]
    with ServerProcess(server_command, options, tmp_path_factory.mktemp("relayed")) as server:
        yield Both(server, port)


def last_event(answer: Answer) -> Json:
    block = answer.body.decode().strip().split("\n\n")[-1]
    made: Json = json.loads(block.partition("data: ")[2])
    return made


def test_an_8_token_answer_is_completed_there_and_incomplete_here(llama: Both) -> None:
    direct = last_event(respond(llama.direct, {**CUT, "stream": True}))
    assert (direct["type"], direct["response"]["status"]) == ("response.completed", "completed")
    assert [item["status"] for item in direct["response"]["output"]] == ["completed"]
    assert respond(llama.direct, {**CUT, "stream": False}).json["status"] == "completed"

    ending = check_response_stream(respond(llama.port, {**CUT, "stream": True}))
    assert (ending.status, ending.events[-1]["type"]) == ("incomplete", "response.incomplete")
    assert ending.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert ending.response["usage"]["output_tokens"] == 8
    assert [item["status"] for item in ending.response["output"]] == ["incomplete"]
    assert ending.texts == [direct["response"]["output"][0]["content"][0]["text"]]
    assert set(ending.events[-1]["timings"]) == set(direct["timings"])  # what is theirs alone stays

    whole = respond(llama.port, {**CUT, "stream": False})
    check_response_object(whole.json)
    assert (whole.json["status"], whole.json["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_an_answer_that_ended_by_itself_is_completed(llama: Both) -> None:
    body: Json = {"input": "Say hello in one word.", "max_output_tokens": 300, "stream": True, **SAME}
    ending = check_response_stream(respond(llama.port, body))
    assert ending.status == "completed"
    assert ending.texts != [""]


def test_openais_client_reads_its_stream_strictly(llama: Both) -> None:
    options: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True}
    base = f"http://127.0.0.1:{llama.port}/v1"
    with openai.OpenAI(base_url=base, api_key="none", **options) as client:
        with client.responses.create(
            model="smol", input="Count to ten.", max_output_tokens=16, stream=True, temperature=0
        ) as stream:
            events: list[Any] = list(stream)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[-1].type == "response.incomplete"
        whole = client.responses.create(model="smol", input="Count to ten.", max_output_tokens=16, temperature=0)
        assert (whole.status, whole.output_text) == ("incomplete", events[-1].response.output_text)


def test_a_refusal_of_it_is_the_answer(llama: Both) -> None:
    got = respond(llama.port, {"input": "Hi", "previous_response_id": "resp_1", "stream": True})
    assert got.status == 400
    assert "previous_response_id" in got.json["error"]["message"]


def test_a_client_that_leaves_a_body_ends_its_work(llama: Both) -> None:
    with Connection(llama.port) as connection:
        connection.post(ROUTE, {"input": "Tell me a very long story.", "max_output_tokens": 3000, "stream": False})
        wait_for(lambda: llama.server.status["queue"]["running"] == 1, "it runs")
    wait_for(llama.server.settled, "nothing runs")
    with Connection(llama.direct) as connection:
        wait_for(lambda: not busy(llama.direct), "llama.cpp is idle", 10.0)


def busy(port: int) -> bool:
    with Connection(port) as connection:
        connection.get("/slots")
        return any(slot["is_processing"] for slot in connection.answer().json)


@pytest.mark.skipif(os.name == "nt", reason="POSIX: the engine is killed by a signal")
def test_kill_9_of_it_is_told(llama: Both) -> None:
    with Connection(llama.port) as connection:
        connection.post(ROUTE, {"input": "Tell me a very long story.", "max_output_tokens": 3000, "stream": True})
        connection.until(b'"sequence_number": 7}')
        llama.server.engine_process().kill()
        ending = check_response_stream(connection.answer())
    assert (ending.status, len(ending.texts)) == ("failed", 1)
    assert ending.error is not None
    assert ending.error["code"] == "engine_died"
    assert "SIGKILL" in ending.error["message"]
    assert check_response_stream(respond(llama.port, {**CUT, "stream": True})).status == "incomplete"
