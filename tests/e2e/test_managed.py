"""`--upstream-command`: the server starts the upstream, watches it and starts it again. Real processes; a scripted
upstream, and llama.cpp's server with the real model."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import openai
import psutil
import pytest

from engine.model import ensure_default_model
from tests.e2e.client import Connection, ask, chat, fetch
from tests.e2e.grammar import check_chat_stream
from tests.e2e.responses_client import ROUTE, Json, check_failed, finished, request, stored
from tests.e2e.responses_grammar import check_response_stream
from tests.e2e.server import ServerProcess, wait_for

CHAT = "/v1/chat/completions"
SCRIPTED = Path(__file__).parents[1] / "managed_server.py"
LLAMA = Path(__file__).with_name("llama_server.py")
WAIT_S = 60.0
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX: signals")


def line(words: Sequence[str]) -> str:
    """The words as one command line of this system."""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def scripted(folder: Path, *modes: str, port: str = "{port}") -> list[str]:
    return [sys.executable, "-S", str(SCRIPTED), port, str(folder), *modes]


def pids(folder: Path, name: str = "lives") -> list[int]:
    return [int(word) for word in (folder / name).read_text(encoding="utf-8").split()]


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# --- a scripted upstream -----------------------------------------------------------------------------


@pytest.fixture
def server(server_command: tuple[str, ...], tmp_path: Path) -> Iterator[ServerProcess]:
    options = ["--upstream-command", line(scripted(tmp_path, "grandchild", "slots"))]
    with ServerProcess(server_command, options, tmp_path) as started:
        yield started


def test_a_command_answers_both_apis_under_its_servers_name_and_slots(server: ServerProcess, tmp_path: Path) -> None:
    assert check_chat_stream(ask(server.port, chat())).content == "Hello"
    assert finished(server.port, request()).texts == ["Hello"]
    assert fetch(server.port, "/v1/models")["data"][0]["id"] == "tiny"
    engine = server.status["engine"]
    assert (engine["kind"], engine["slots"], engine["max_context"]) == ("upstream", 3, 4096)
    assert [engine["pid"]] == pids(tmp_path)


def test_its_death_is_told_with_code_and_last_line_and_the_next_request_is_answered(server: ServerProcess) -> None:
    ending = check_chat_stream(ask(server.port, chat(content="exit")))
    assert ending.error is not None
    assert (ending.error["code"], ending.finish_reason, ending.content) == ("engine_died", "error", "He")
    assert "exit code 3; last log line: the GPU is gone" in ending.error["message"]
    whole = ask(server.port, chat(content="exit", stream=False))
    assert (whole.status, whole.json["error"]["partial_output"]) == (503, "He")
    assert check_chat_stream(ask(server.port, chat())).content == "Hello"
    assert server.status["engine"]["restarts"] == 2


def test_kill_9_of_our_server_leaves_nothing_of_it(server: ServerProcess, tmp_path: Path) -> None:
    started = [*pids(tmp_path), *pids(tmp_path, "grandchildren")]
    assert not any(map(gone, started))
    server.process.kill()
    server.process.wait(WAIT_S)
    wait_for(lambda: all(map(gone, started)), "its upstream is gone")


@posix
def test_a_stop_of_our_server_ends_it_too(server: ServerProcess, tmp_path: Path) -> None:
    assert server.end() == 0
    assert all(map(gone, [*pids(tmp_path), *pids(tmp_path, "grandchildren")]))


def test_a_command_that_cannot_start_ends_us_with_its_last_line(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    for words, told in ((scripted(tmp_path, "exits"), "the model is damaged"), (["no-such", "{port}"], "no-such")):
        started = ServerProcess(server_command, ["--upstream-command", line(words)], tmp_path)
        assert started.process.wait(WAIT_S) == 3
        started.end()
        assert "the engine did not start" in started.log()
        assert told in started.log()


def test_the_file_gives_the_command_as_words_and_its_log(server_command: tuple[str, ...], tmp_path: Path) -> None:
    config = {
        "upstream_command": scripted(tmp_path),
        "log": str(tmp_path / "upstream.log"),
        "env": {"SHOWN": "from the file"},
        "upstream_key": "k",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    with ServerProcess(server_command, ["--config", str(path)], tmp_path) as started:
        assert check_chat_stream(ask(started.port, chat(content="environment"))).content == "from the filello"
        assert check_chat_stream(ask(started.port, chat(content="key"))).content == "HeBearer k"
        ask(started.port, chat(content="exit"))
    assert (tmp_path / "upstream.log").read_text(encoding="utf-8").endswith("goodbye\nthe GPU is gone\n")


# --- llama.cpp ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    words = [sys.executable, str(LLAMA), str(ensure_default_model()), "{port}", "2"]
    with ServerProcess(server_command, ["--upstream-command", line(words)], tmp_path_factory.mktemp("managed")) as made:
        yield made


@pytest.mark.llama
def test_openais_client_streams_from_a_llama_server_that_we_started(llama: ServerProcess) -> None:
    engine = llama.status["engine"]
    assert (engine["kind"], engine["slots"], engine["max_context"]) == ("upstream", 2, 4096)
    with openai.OpenAI(base_url=f"http://127.0.0.1:{llama.port}/v1", api_key="none", max_retries=0) as client:
        assert client.models.list().data[0].id == "smol"
        stream = client.chat.completions.create(
            model="smol",
            messages=[{"role": "user", "content": "Say hello in one word."}],
            stream=True,
            max_tokens=5,
            temperature=0,
        )
        chunks = list(stream)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons in (["length"], ["stop"])


@pytest.mark.llama
def test_a_response_of_it_says_incomplete_at_the_limit(llama: ServerProcess) -> None:
    ending = finished(llama.port, request("Count to one hundred.", max_output_tokens=4, temperature=0, seed=1))
    assert ending.status == "incomplete"
    assert ending.response["incomplete_details"] == {"reason": "max_output_tokens"}


@posix
@pytest.mark.llama
def test_kill_9_of_it_in_mid_stream_is_told_and_the_next_request_is_answered(llama: ServerProcess) -> None:
    before = llama.status["engine"]["restarts"]
    with Connection(llama.port) as connection:
        connection.post(CHAT, chat(content="Tell me a very long story.", max_tokens=2000))
        connection.until(b'"content":"')  # as llama.cpp spaces it
        llama.engine_process().kill()
        ending = check_chat_stream(connection.answer())
    assert ending.error is not None
    assert (ending.error["code"], ending.finish_reason) == ("engine_died", "error")
    assert "SIGKILL" in ending.error["message"]
    assert ending.content
    long: Json = request("Tell me a very long story.", max_output_tokens=2000)
    with Connection(llama.port) as connection:
        connection.post(ROUTE, long)
        connection.until(b'"sequence_number": 7}')
        llama.engine_process().kill()
        response = check_response_stream(connection.answer())
    check_failed(response, "engine_died")
    assert "SIGKILL" in response.response["error"]["message"]
    assert stored(llama.port, response.response["id"]) == response.response
    assert check_chat_stream(ask(llama.port, chat(content="Hi", max_tokens=3))).finish_reason in ("stop", "length")
    wait_for(llama.settled, "idle")
    assert llama.status["engine"]["restarts"] == before + 2
