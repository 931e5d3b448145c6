"""Chat completions with `store: true`: what was made and how it ended is read again, whatever happened."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import NotFoundError, OpenAI

from tests.e2e.client import Connection, ask, chat
from tests.e2e.grammar import Ending, check_chat_stream
from tests.e2e.kept import (
    CALL,
    CHATS,
    END,
    PARAMETERS,
    RESPONSES,
    Json,
    Steps,
    bytes_on_disk,
    call,
    calm,
    cue,
    file_of,
    kept_ids,
    make,
    read_chat,
    request,
    reset,
    rules,
    saved_entries,
    uncue,
    unreach,
    wait_reached,
)
from tests.e2e.server import ServerProcess, fake_server, wait_for

TOOLS: list[Json] = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}]
GATED: Steps = [{"text": "On"}, {"cue": "gate"}, {"text": "e"}, *END]
HELD = "One <tool_call>\n<func"
HANGS: Steps = [{"text": HELD}, {"reached": "held"}, {"stall": True}]
CUT: Steps = [{"text": CALL[:50]}, *END]
ERR: Steps = [{"text": "One"}, {"err": "no candidate is left"}]
DIES: Steps = [{"text": "One"}, {"exit": 4}]
SCRIPT = rules(
    gated=GATED,
    hangs=HANGS,
    cut=CUT,
    err=ERR,
    dies=DIES,
    thinks=[{"text": "Hm.</think>Four."}, *END],
    calls=[{"text": "Sure." + CALL}, *END],
    fine=[{"text": "fine \u2028 \u0000 x"}, *END],
)


@pytest.fixture(scope="module")
def shared(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("chat"), "--drain-s", "0.1") as made:
        yield made


@pytest.fixture
def server(shared: ServerProcess) -> Iterator[ServerProcess]:
    uncue(shared, "gate")
    yield shared
    calm(shared)


def stored(what: str, *, stream: bool, thinking: bool = False, **fields: Any) -> Json:
    return chat(stream=stream, thinking=thinking, content=f"{what} please", store=True, **fields)


def streamed(server: ServerProcess, what: str, **fields: Any) -> tuple[str, Ending]:
    """One that is streamed: its id, and what its client was told."""
    answer = ask(server.port, stored(what, stream=True, **fields))
    ending = check_chat_stream(answer)
    return next(event["id"] for event in answer.events if event != "[DONE]" and "choices" in event), ending


def kept_ending(body: Json) -> Ending:
    """What the record says, in the words of a stream."""
    (choice,) = body["choices"]
    message = choice["message"]
    calls = [{"id": one["id"], **one["function"]} for one in message.get("tool_calls", [])]
    error = body.get("error")
    return Ending(
        content=message["content"] or "",
        reasoning=message.get("reasoning_content", ""),
        calls=calls,
        finish_reason=choice["finish_reason"],
        error=error,
        usage=body["usage"],
    )


ENDINGS: list[tuple[str, Json, str]] = [
    ("fine", {}, "stop"),
    ("fine", {"max_tokens": 3}, "length"),
    ("calls", {"tools": TOOLS}, "tool_calls"),
    ("thinks", {"thinking": True}, "stop"),
    ("cut", {"tools": TOOLS}, "tool_call_incomplete"),
    ("err", {}, "engine_error"),
    ("dies", {}, "engine_died"),
]


@pytest.mark.parametrize(("what", "fields", "finish"), ENDINGS, ids=[finish for _, _, finish in ENDINGS])
def test_what_a_client_was_told_is_read_again(server: ServerProcess, what: str, fields: Json, finish: str) -> None:
    id_, told = streamed(server, what, stream_options={"include_usage": True}, **fields)
    assert (told.error["code"] if told.error else told.finish_reason) == finish
    body = read_chat(server, id_)
    assert (body["id"], body["object"], body["model"]) == (id_, "chat.completion", "fake")
    assert kept_ending(body) == told
    assert read_chat(server, id_) == body


def test_a_body_is_read_again_as_it_was_with_its_metadata(server: ServerProcess) -> None:
    made = ask(server.port, stored("calls", stream=False, tools=TOOLS, metadata={"a": "b", "c": ""})).json
    assert made["choices"][0]["finish_reason"] == "tool_calls"
    assert read_chat(server, made["id"]) == {**made, "metadata": {"a": "b", "c": ""}}
    plain = ask(server.port, stored("fine", stream=False)).json
    assert read_chat(server, plain["id"]) == {**plain, "metadata": {}}


def test_one_that_runs_is_read_as_far_as_it_is(server: ServerProcess) -> None:
    with Connection(server.port) as connection:
        connection.post(CHATS, stored("gated", stream=True))
        connection.until(b'"n"')
        id_ = kept_ids(file_of(server))[-1]
        body = read_chat(server, id_)
        assert (body["choices"][0]["message"]["content"], body["choices"][0]["finish_reason"]) == ("On", None)
        assert body["usage"] is None
        cue(server, "gate")
        assert check_chat_stream(connection.answer()).content == "One"
    assert kept_ending(read_chat(server, id_)).content == "One"


def test_one_that_failed_as_a_body_is_kept_with_what_was_made(server: ServerProcess) -> None:
    answer = ask(server.port, stored("err", stream=False))
    assert (answer.status, answer.json["error"]["partial_output"]) == (500, "One")
    kept = kept_ending(read_chat(server, kept_ids(file_of(server))[-1]))
    assert kept.error is not None
    assert (kept.content, kept.finish_reason, kept.error["code"]) == ("One", "error", "engine_error")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["fin", "rst"])
def test_one_whose_client_left_is_no_success_and_has_all_that_was_made(
    server: ServerProcess, stream: bool, leave: Callable[[socket.socket], None]
) -> None:
    before = kept_ids(file_of(server))
    unreach(server, "held")
    with Connection(server.port) as connection:
        connection.post(CHATS, stored("hangs", stream=stream, tools=TOOLS))
        wait_for(lambda: len(kept_ids(file_of(server))) > len(before), "it is kept")
        (id_,) = kept_ids(file_of(server))[len(before) :]
        wait_for(lambda: kept_ending(read_chat(server, id_)).content.startswith("One"), "it is made")
        wait_reached(server, "held")
        leave(connection.sock)
    wait_for(lambda: read_chat(server, id_)["choices"][0]["finish_reason"] is not None, "it ends")
    kept = kept_ending(read_chat(server, id_))
    assert kept.error is not None
    assert (kept.error["code"], kept.error["type"]) == ("request_cancelled", "server_error")
    assert kept.finish_reason == "error"
    assert kept.usage is not None
    assert kept.content == HELD[: kept.usage["completion_tokens"]], "not all that was made"
    assert len(kept.content) > len("One")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX: the server is killed by a signal")
def test_after_the_server_was_killed_the_record_says_that_it_was_lost(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    with fake_server(server_command, SCRIPT, tmp_path) as server:
        finished, told = streamed(server, "fine", stream_options={"include_usage": True})
        with Connection(server.port) as connection:
            connection.post(CHATS, stored("gated", stream=True, metadata={"a": "b"}))
            connection.until(b'"n"')
            id_ = kept_ids(file_of(server))[-1]
            wait_for(lambda: saved_entries(file_of(server), id_) == 3, "what was made is on disk")
            server.process.kill()
            server.process.wait(10)
            assert not connection.answer().terminated
    with fake_server(server_command, SCRIPT, tmp_path) as server:
        body = read_chat(server, id_)
        kept = kept_ending(body)
        assert kept.error is not None
        assert (kept.content, kept.finish_reason, kept.error["code"]) == ("On", "error", "server_lost")
        assert body["metadata"] == {"a": "b"}
        assert kept_ending(read_chat(server, finished)) == told


def test_what_was_not_to_be_stored_is_not_found_and_leaves_nothing_on_disk(server: ServerProcess) -> None:
    before = kept_ids(file_of(server))
    for fields in ({}, {"store": False}, {"store": None}):
        body: Json = {**chat(stream=False, content="fine please vibraphone-44"), **fields, "metadata": {"a": "b"}}
        made = ask(server.port, body).json
        answer = call(server, "GET", f"{CHATS}/{made['id']}")
        assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")
        assert call(server, "DELETE", f"{CHATS}/{made['id']}").status == 404
    assert kept_ids(file_of(server)) == before
    assert b"vibraphone-44" not in bytes_on_disk(file_of(server))


def test_bad_metadata_is_refused_and_leaves_no_record(server: ServerProcess) -> None:
    before = kept_ids(file_of(server))
    wrong: list[Any] = [{"a": 1}, {"a" * 65: "b"}, {"a": "b" * 513}, {str(i): "" for i in range(17)}, ["a"], "a"]
    for metadata in wrong:
        answer = ask(server.port, stored("fine", stream=False, metadata=metadata))
        assert (answer.status, answer.json["error"]["param"][:8]) == (400, "metadata"), metadata
    assert kept_ids(file_of(server)) == before


def test_ids_of_one_api_are_not_found_in_the_other(server: ServerProcess) -> None:
    completion = ask(server.port, stored("fine", stream=False)).json
    response = make(server, request("fine please")).json
    for method in ("GET", "DELETE"):
        assert call(server, method, f"{RESPONSES}/{completion['id']}").status == 404
        assert call(server, method, f"{CHATS}/{response['id']}").status == 404
    for path in (f"{completion['id']}?stream=true", f"{completion['id']}/input_items"):
        assert call(server, "GET", f"{RESPONSES}/{path}").status == 404
    assert call(server, "POST", f"{RESPONSES}/{completion['id']}/cancel").status == 404
    refused = make(server, request("fine please", previous_response_id=completion["id"]))
    assert (refused.status, refused.json["error"]["code"]) == (400, "previous_response_not_found")
    assert read_chat(server, completion["id"])["id"] == completion["id"]


def test_the_sdk_reads_and_deletes_stored_ones_with_its_strict_types(server: ServerProcess) -> None:
    with OpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        made = client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "fine please"}],
            store=True,
            metadata={"a": "b"},
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )
        kept = client.chat.completions.retrieve(made.id)
        assert (kept.choices, kept.usage) == (made.choices, made.usage)
        deleted = client.chat.completions.delete(made.id)
        assert (deleted.id, deleted.deleted, deleted.object) == (made.id, True, "chat.completion.deleted")
        with pytest.raises(NotFoundError):
            client.chat.completions.retrieve(made.id)
