"""The gateway in front of a real vLLM: what vLLM says of its answers, and what we make of it.

One vLLM is started, watched and started again by a server of ours (`--upstream-command`); other servers of ours have it
behind them by its address, and the tests ask it directly, too. `tests/e2e/vllm_server.py` says how its model answers.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.e2e import messages_client as messages
from tests.e2e import responses_client as responses
from tests.e2e import server as servers
from tests.e2e.client import Answer, Connection, ask
from tests.e2e.gateway import CHAT, passed_bytes, plain_chat
from tests.e2e.grammar import check_chat_stream, check_choices
from tests.e2e.messages_grammar import check_message_stream
from tests.e2e.responses_grammar import check_response_object, check_response_stream
from tests.e2e.server import ServerProcess, wait_for
from tests.e2e.tap import Tap

Json = responses.Json

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.name == "nt", reason="vLLM runs on POSIX systems"),
]
VLLM = Path(__file__).with_name("vllm_server.py")
START_S = 400.0
"""vLLM imports and compiles for half a minute on a quiet machine."""
JSON_BODY = "Content-Type: application/json"  # vLLM refuses a body without
SAME: Json = {"temperature": 0, "seed": 1}
ENDLESS = "count 0"
"""What is answered with digits until a limit ends it."""
DIGITS = "12345678"
TOOL: Json = {"type": "function", "function": {"name": "add", "parameters": responses.ADD["parameters"]}}


@dataclass(frozen=True)
class Stack:
    """vLLM's port, the server of ours that runs it, and those that have it behind them by its address: one makes
    Responses of its chat completions, one passes its own on, one is quick to call it silent."""

    vllm: int
    managing: ServerProcess
    plain: ServerProcess
    relaying: ServerProcess
    impatient: ServerProcess

    def direct(self, path: str, body: Json) -> Answer:
        return ask(self.vllm, body, JSON_BODY, path=path)

    def engine(self) -> psutil.Process:
        """vLLM's process that computes, a child of the one that serves."""
        children = psutil.Process(self.managing.status["engine"]["pid"]).children()
        (engine,) = [child for child in children if "EngineCore" in " ".join(child.cmdline())]
        return engine

    def running(self) -> float:
        """How many requests vLLM computes."""
        with Connection(self.vllm) as connection:
            connection.get("/metrics", "Connection: close")
            page = connection.answer().body.decode()
        found = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", page, re.MULTILINE)
        assert len(found) == 2
        return sum(map(float, found))

    def wait_up(self) -> None:
        """Have it started again where it has ended, which the next request to the server that runs it does."""
        assert check_chat_stream(ask(self.managing.port, plain_chat("spell y"))).content == "z"
        for server in (self.managing, self.plain, self.relaying, self.impatient):
            wait_for(lambda server=server: server.health["status"] == "ok", "it is known to be up", START_S)


def healthy(port: int) -> bool:
    try:
        with Connection(port, timeout_s=5.0) as connection:
            connection.get("/health", "Connection: close")
            return connection.answer().status == 200
    except (OSError, AssertionError):
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def message_request(content: str, **fields: Any) -> Json:
    return messages.request(content, model="tiny", **fields)  # vLLM knows it by no other name


def vllm_command(folder: Path, port: str) -> str:
    (folder / "model").mkdir()
    return shlex.join([sys.executable, str(VLLM), os.environ["STRATA_VLLM"], str(folder / "model"), port])


@pytest.fixture(scope="module")
def _started(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("vllm")
    port = free_port()
    url = ["--upstream", f"http://127.0.0.1:{port}"]
    with ExitStack() as stack:

        def start(name: str, *options: str) -> ServerProcess:
            (folder / name).mkdir()
            return stack.enter_context(ServerProcess(server_command, options, folder / name))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(servers, "START_DEADLINE_S", START_S)
            managing = start("managing", "--upstream-command", vllm_command(folder, str(port)), *url)
        yield Stack(
            port,
            managing,
            start("plain", *url),
            start("relaying", *url, "--upstream-api", "responses"),
            start("impatient", *url, "--silence-s", "3"),
        )


@pytest.fixture
def vllm(_started: Stack) -> Stack:
    """The stack, with vLLM up: the test before may have ended it."""
    _started.wait_up()
    return _started


# --- a limit -----------------------------------------------------------------------------------------


def test_an_8_token_response_is_completed_there_and_incomplete_here(vllm: Stack) -> None:
    body: Json = {"input": ENDLESS, "max_output_tokens": 8, **SAME}
    block = vllm.direct(responses.ROUTE, {**body, "model": "tiny", "stream": True}).body.decode().strip()
    last: Json = json.loads(block.split("\n\n")[-1].partition("data: ")[2])
    assert last["type"] == "response.completed"
    assert [item["status"] for item in last["response"]["output"]] == ["completed"]
    # 0.32.0 says the truth in one field of the same event
    assert (last["response"]["status"], last["response"]["output"][0]["content"][0]["text"]) == ("incomplete", DIGITS)

    for server in (vllm.managing, vllm.plain, vllm.relaying):
        ending = check_response_stream(responses.respond(server.port, {**body, "stream": True}))
        assert (ending.status, ending.events[-1]["type"]) == ("incomplete", "response.incomplete")
        whole = responses.respond(server.port, {**body, "stream": False}).json
        check_response_object(whole)
        for response in (ending.response, whole):
            assert (response["status"], response["incomplete_details"]) == (
                "incomplete",
                {"reason": "max_output_tokens"},
            )
            assert [item["status"] for item in response["output"]] == ["incomplete"]
            assert response["output"][0]["content"][0]["text"] == DIGITS
            assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (len(ENDLESS), 8)


def test_a_limit_and_an_end_are_told_apart_on_every_api(vllm: Stack) -> None:
    for content, limit, text, ended in (("spell u", 20, "vwxyz", True), (ENDLESS, 8, DIGITS, False)):
        told = check_chat_stream(ask(vllm.plain.port, plain_chat(content, max_tokens=limit, **SAME)))
        assert (told.content, told.finish_reason) == (text, "stop" if ended else "length")
        response = responses.finished(
            vllm.plain.port, responses.request(content, max_output_tokens=limit, store=True, **SAME)
        )
        assert (response.texts, response.status) == ([text], "completed" if ended else "incomplete")
        message = messages.finished(vllm.plain.port, message_request(content, max_tokens=limit, **SAME))
        assert (message.of("text"), message.stop_reason) == ((text,), "end_turn" if ended else "max_tokens")
        assert messages.total(message.usage)[:2] == (len(content), 6 if ended else 8)
        asked: Json = {"input": content, "max_output_tokens": limit, "stream": True, **SAME}
        theirs = check_response_stream(responses.respond(vllm.relaying.port, asked))
        assert (theirs.texts, theirs.status) == (response.texts, response.status)


def test_a_prompt_that_does_not_fit_is_a_plain_refusal(vllm: Stack) -> None:
    for server in (vllm.plain, vllm.managing):
        for streams in (True, False):
            refused = ask(server.port, plain_chat("0" * 9_000, stream=streams))
            assert refused.status == 400
            assert refused.json["error"]["code"] == "context_length_exceeded"
    refused = responses.respond(vllm.relaying.port, {"input": "0" * 9_000, "stream": True})
    assert (refused.status, refused.json["error"]["code"]) == (400, "context_length_exceeded")


# --- passed on ---------------------------------------------------------------------------------------


def test_a_chat_stream_is_passed_on_byte_for_byte(vllm: Stack, server_command: tuple[str, ...], tmp_path: Path) -> None:
    counted = {"include_usage": True, "continuous_usage_stats": True}
    for body, reason in (
        (plain_chat("spell a", **SAME), "stop"),
        (plain_chat("spell a", stream_options={"include_usage": True}, **SAME), "stop"),
        (plain_chat(ENDLESS, max_tokens=40, stream_options=counted), "length"),
        (plain_chat(ENDLESS, max_tokens=5, logprobs=True, top_logprobs=2, return_token_ids=True, **SAME), "length"),
        (plain_chat(ENDLESS, stop=["7"], max_tokens=40), "stop"),
        (plain_chat("call @", tools=[TOOL], **SAME), "tool_calls"),
        (plain_chat("call @", tools=[TOOL], max_tokens=4, **SAME), "length"),
    ):
        with (
            Tap(vllm.vllm) as tap,
            ServerProcess(server_command, ["--upstream", f"http://127.0.0.1:{tap.port}"], tmp_path) as server,
        ):
            answer = ask(server.port, body)
            (sent,) = tap.streams()
        assert passed_bytes(answer) == sent
        assert sent.endswith(b"data: [DONE]\n\n")
        assert check_chat_stream(answer).finish_reason == reason


def test_the_same_request_is_answered_alike_there_and_here(vllm: Stack) -> None:
    body = plain_chat("spell a", n=2, stream_options={"include_usage": True})
    there = check_choices(vllm.direct(CHAT, body), 2)
    here = check_choices(ask(vllm.plain.port, body), 2)
    assert here == there
    assert [choice.content for choice in here] == ["bcdefghijklmnopqrstuvwxyz"] * 2
    whole = ask(vllm.plain.port, {**body, "stream": False, "stream_options": None}).json
    direct = vllm.direct(CHAT, {**body, "stream": False, "stream_options": None}).json
    for name in ("content", "role"):
        assert [one["message"][name] for one in whole["choices"]] == [one["message"][name] for one in direct["choices"]]
    assert [one["finish_reason"] for one in whole["choices"]] == ["stop", "stop"]
    assert {key: whole["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        key: direct["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")
    }


def test_openais_client_reads_the_relayed_responses_strictly(vllm: Stack) -> None:
    base = f"http://127.0.0.1:{vllm.relaying.port}/v1"
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0, _strict_response_validation=True) as client:
        with client.responses.create(model="tiny", input=ENDLESS, max_output_tokens=16, stream=True) as stream:
            events = list(stream)
        assert events[-1].type == "response.incomplete"
        whole = client.responses.create(model="tiny", input=ENDLESS, max_output_tokens=16)
        assert (whole.status, whole.output_text) == ("incomplete", events[-1].response.output_text)


# --- tool calls --------------------------------------------------------------------------------------


def test_a_whole_tool_call_arrives_on_every_api(vllm: Stack) -> None:
    told = check_chat_stream(ask(vllm.plain.port, plain_chat("call @", tools=[TOOL], **SAME)))
    assert told.finish_reason == "tool_calls"
    assert [(call["name"], json.loads(call["arguments"])) for call in told.calls] == [("add", {"a": 1})]
    response = responses.finished(vllm.plain.port, responses.request("call @", tools=[responses.ADD], **SAME))
    assert [(call["name"], json.loads(call["arguments"])) for call in response.calls] == [("add", {"a": 1})]
    message = messages.finished(vllm.plain.port, message_request("call @", tools=[messages.ADD], **SAME))
    assert message.stop_reason == "tool_use"
    assert [(call.name, json.loads(call.text)) for call in message.calls] == [("add", {"a": 1})]


def test_a_call_cut_by_the_limit_is_length(vllm: Stack) -> None:
    told = check_chat_stream(ask(vllm.plain.port, plain_chat("call @", tools=[TOOL], max_tokens=4, **SAME)))
    assert told.finish_reason == "length"
    response = check_response_stream(
        responses.respond(
            vllm.plain.port, responses.request("call @", tools=[responses.ADD], max_output_tokens=4, **SAME)
        )
    )
    asked: Json = {"input": "call @", "tools": [responses.ADD], "max_output_tokens": 4, "stream": True, **SAME}
    theirs = check_response_stream(responses.respond(vllm.relaying.port, asked))
    for ending in (response, theirs):
        assert (ending.status, [call["status"] for call in ending.calls]) == ("incomplete", ["incomplete"])


def test_tool_calls_over_cut_arguments_is_an_error_here(vllm: Stack) -> None:
    body = plain_chat("call #", tools=[TOOL], **SAME)
    *_, last, done = vllm.direct(CHAT, body).events
    assert (last["choices"][0]["finish_reason"], done) == ("tool_calls", "[DONE]")  # that is its lie

    told = check_chat_stream(ask(vllm.plain.port, body))
    assert told.error is not None
    assert (told.finish_reason, told.error["code"]) == ("error", "tool_call_incomplete")
    response = check_response_stream(
        responses.respond(vllm.plain.port, responses.request("call #", tools=[responses.ADD], **SAME))
    )
    asked: Json = {"input": "call #", "tools": [responses.ADD], "stream": True, **SAME}
    theirs = check_response_stream(responses.respond(vllm.relaying.port, asked))
    for ending in (response, theirs):
        responses.check_failed(ending, "tool_call_incomplete")
        assert [call["status"] for call in ending.calls] == ["incomplete"]
    message = check_message_stream(
        messages.send(vllm.plain.port, message_request("call #", tools=[messages.ADD], **SAME))
    )
    assert message.error is not None
    assert message.error["type"] == "api_error"


# --- a client that leaves ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])
@pytest.mark.parametrize("api", ["chat", "responses", "messages", "relayed"])
def test_a_client_that_leaves_ends_its_work(vllm: Stack, api: str, stream: bool) -> None:
    port = (vllm.relaying if api == "relayed" else vllm.plain).port
    path, body = {
        "chat": (CHAT, plain_chat(ENDLESS, max_tokens=8_000)),
        "responses": (responses.ROUTE, responses.request(ENDLESS, max_output_tokens=8_000)),
        "relayed": (responses.ROUTE, {"input": ENDLESS, "max_output_tokens": 8_000}),
        "messages": (messages.ROUTE, message_request(ENDLESS, max_tokens=8_000)),
    }[api]
    assert vllm.running() == 0
    with Connection(port) as connection:
        connection.post(path, {**body, "stream": stream})
        wait_for(lambda: vllm.running() == 1, "it runs")
        if stream:
            connection.until(b"9")
    wait_for(lambda: vllm.running() == 0, "vLLM is idle", 10.0)


# --- it stalls, it dies ------------------------------------------------------------------------------


def test_a_stopped_engine_is_silence_although_vllm_says_it_is_healthy(vllm: Stack) -> None:
    engine = vllm.engine()
    with Connection(vllm.impatient.port) as connection:
        connection.post(CHAT, plain_chat(ENDLESS, max_tokens=8_000))
        connection.until(b'"content":"')
        engine.suspend()
        try:
            told = check_chat_stream(connection.answer())
            assert healthy(vllm.vllm)
        finally:
            engine.resume()
    assert told.error is not None
    assert (told.finish_reason, told.error["code"]) == ("error", "engine_died")
    assert "said nothing for 3 s" in told.error["message"]
    assert told.content.startswith(DIGITS[0])
    wait_for(lambda: vllm.running() == 0, "it was told to stop")
    assert check_chat_stream(ask(vllm.impatient.port, plain_chat("spell y"))).content == "z"


def open_streams(vllm: Stack, stack: ExitStack) -> list[Connection]:
    """A chat stream through the server that runs vLLM and one of each API through the others, all with text."""
    made: list[Connection] = []
    for port, path, body, mark in (
        (vllm.managing.port, CHAT, plain_chat(ENDLESS, max_tokens=8_000), b'"content":"'),
        (vllm.plain.port, CHAT, plain_chat(ENDLESS, max_tokens=8_000), b'"content":"'),
        (vllm.plain.port, responses.ROUTE, responses.request(ENDLESS), b"output_text.delta"),
        (vllm.relaying.port, responses.ROUTE, {"input": ENDLESS, "stream": True}, b"output_text.delta"),
        (vllm.plain.port, messages.ROUTE, message_request(ENDLESS, max_tokens=8_000), b"text_delta"),
    ):
        connection = stack.enter_context(Connection(port))
        connection.post(path, body)
        made.append(connection)
        connection.until(mark)
    return made


def check_all_failed(streams: list[Connection]) -> list[str]:
    """Every one of them ends as its API says it; returns the causes as they are told."""
    told = [check_chat_stream(stream.answer()) for stream in streams[:2]]
    for one in told:
        assert one.finish_reason == "error"
        assert one.content.startswith(DIGITS[0])
    answered = [check_response_stream(streams[2].answer()), check_response_stream(streams[3].answer())]
    for response in answered:
        assert response.status == "failed"
        assert response.texts[0].startswith(DIGITS[0])
    message = check_message_stream(streams[4].answer())
    assert message.of("text")[0].startswith(DIGITS[0])
    errors = [*[one.error for one in told], *[one.error for one in answered], message.error]
    return [f"{error.get('code')}: {error['message']}" for error in errors if error is not None]


@pytest.mark.parametrize("victim", ["server", "engine"])
def test_kill_9_of_it_is_told_on_every_stream_and_the_next_is_answered(vllm: Stack, victim: str) -> None:
    serving = vllm.managing.engine_process()
    killed = serving if victim == "server" else vllm.engine()
    before = vllm.managing.status["engine"]["restarts"]
    with ExitStack() as stack:
        streams = open_streams(vllm, stack)
        killed.send_signal(signal.SIGKILL)
        causes = check_all_failed(streams)
    assert len(causes) == 5
    if victim == "server":
        assert causes[0].startswith("engine_died: ")
        assert "SIGKILL" in causes[0]
    wait_for(lambda: not lives(serving), "vLLM ends when its engine did", 60.0)
    vllm.wait_up()
    assert vllm.managing.status["engine"]["restarts"] == before + 1
    assert check_chat_stream(ask(vllm.plain.port, plain_chat("spell y"))).content == "z"


def test_kill_9_of_our_server_leaves_nothing_of_vllm(server_command: tuple[str, ...], tmp_path: Path) -> None:
    started = ServerProcess(server_command, ["--upstream-command", vllm_command(tmp_path, "{port}")], tmp_path)
    try:
        tree: list[psutil.Process] = []

        def computes() -> bool:
            tree[:] = psutil.Process(started.process.pid).children(recursive=True)
            return any("EngineCore" in " ".join(process.cmdline()) for process in tree)

        wait_for(computes, "vLLM has started its engine", START_S)
    finally:
        started.process.kill()
        started.end()
    wait_for(lambda: not any(map(lives, tree)), "all of it is gone", 60.0)


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
