"""Background responses: queued at once, made without a client, cancelled, ended by faults and by the server's end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kept import (
    END,
    RUNNING,
    Json,
    Steps,
    Stream,
    call,
    calm,
    check,
    commands,
    cue,
    ended,
    file_of,
    get,
    kept_ids,
    make,
    read,
    replay,
    request,
    rules,
    text_of,
    uncue,
)
from tests.e2e.responses_grammar import check_response_object
from tests.e2e.server import ServerProcess, fake_server, wait_for

GATED: Steps = [{"text": "On"}, {"cue": "gate"}, {"text": "e"}, *END]
HANGS: Steps = [{"text": "One"}, {"stall": True}]
SILENT: Steps = [{"stall": True}]
LIMITED: Steps = [{"text": "too much"}, *END]
DIES: Steps = [{"text": "One"}, {"exit": 7}]
REFUSES: Steps = [{"err": "a token id is outside the vocabulary"}]
SCRIPT = rules(carry_on=LIMITED, gated=GATED, hangs=HANGS, silent=SILENT, limited=LIMITED, dies=DIES, refuses=REFUSES)
OPTIONS = ("--drain-s", "0.1", "--queue-max", "3", "--queue-grace-s", "0.1")


@pytest.fixture(scope="module")
def shared(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("background"), *OPTIONS) as made:
        yield made


@pytest.fixture
def server(shared: ServerProcess) -> Iterator[ServerProcess]:
    uncue(shared, "gate")
    yield shared
    calm(shared)


def begin(server: ServerProcess, what: str, **fields: Any) -> Json:
    """Start one; the answer, which comes at once."""
    answer = make(server, request(f"{what} please", background=True, **fields))
    assert answer.status == 200, answer.body
    check_response_object(answer.json)
    return answer.json


def cancel(server: ServerProcess, id_: str) -> Json:
    answer = call(server, "POST", f"/v1/responses/{id_}/cancel")
    assert answer.status == 200, answer.body
    check_response_object(answer.json)
    return answer.json


def test_it_answers_at_once_with_queued_and_is_polled_to_its_end(server: ServerProcess) -> None:
    made = begin(server, "gated", metadata={"a": "b"})
    assert (made["status"], made["background"], made["output"], made["usage"]) == ("queued", True, [], None)
    wait_for(lambda: text_of(read(server, made["id"])) == "On", "the first half is made")
    polled = read(server, made["id"])
    check_response_object(polled)
    assert polled["status"] == "in_progress"
    assert polled["output"][0]["status"] == "in_progress"
    cue(server, "gate")
    done = ended(server, made["id"])
    check_response_object(done)
    assert (done["status"], text_of(done), done["usage"]["output_tokens"]) == ("completed", "One", 4)
    assert {**done, "status": "queued", "output": [], "usage": None, "completed_at": None} == made


def test_a_stream_begins_with_queued_and_says_when_it_runs(server: ServerProcess) -> None:
    with Stream.post(server, request("hangs please", background=True)) as busy:
        busy.until('"e"')
        with Stream.post(server, request("limited please", background=True)) as waiting:
            begun = waiting.take(2)
            assert [event.type for event in begun] == ["response.created", "response.queued"]
            assert read(server, waiting.id)["status"] == "queued"
            assert cancel(server, busy.id)["status"] == "cancelled"
            names = [event.type for event in waiting.rest()]
            assert names[:3] == ["response.created", "response.queued", "response.in_progress"]
            assert check(waiting.seen).status == "completed"
        assert check(busy.rest()).status == "cancelled"


@pytest.mark.parametrize("leave", [Stream.leave, Stream.reset], ids=["fin", "rst"])
def test_its_client_may_leave_and_it_goes_on(server: ServerProcess, leave: Callable[[Stream], None]) -> None:
    stream = Stream.post(server, request("gated please", background=True))
    stream.until('"n"')
    leave(stream)
    assert read(server, stream.id)["status"] == "in_progress"
    cue(server, "gate")
    done = ended(server, stream.id)
    assert (done["status"], text_of(done)) == ("completed", "One")
    assert "STOP" not in commands(server)[-1:]


def test_the_token_limit_is_incomplete_in_the_background_too(server: ServerProcess) -> None:
    done = ended(server, begin(server, "limited", max_output_tokens=3)["id"])
    assert (done["status"], text_of(done)) == ("incomplete", "too")
    assert done["incomplete_details"] == {"reason": "max_output_tokens"}
    reasoning = make(server, {"input": "limited please", "background": True, "max_output_tokens": 1}).json
    done = ended(server, reasoning["id"])
    assert (done["status"], [item["type"] for item in done["output"]]) == ("incomplete", ["reasoning"])
    assert done["usage"]["output_tokens"] == 1


# --- cancel ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "text"), [("hangs", "One"), ("silent", "")])
def test_a_running_one_is_cancelled_and_an_attached_stream_says_so(server: ServerProcess, what: str, text: str) -> None:
    with Stream.post(server, request(f"{what} please", background=True)) as stream:
        wait_for(lambda: server.status["engine"]["active"] == 1, "the engine runs it")
        if text:
            stream.until('"e"')
        made = cancel(server, stream.id)
        ending = check(stream.rest())
    assert (ending.status, made["status"]) == ("cancelled", "cancelled")
    assert ending.response == made == read(server, stream.id)
    assert text_of(made) == text
    assert made["usage"]["output_tokens"] == len(text)
    wait_for(lambda: commands(server)[-1] == "STOP", "the engine was told to stop")
    assert cancel(server, stream.id) == made, "a second cancel changes nothing"


def test_a_waiting_one_is_cancelled_and_never_reaches_the_engine(server: ServerProcess) -> None:
    first = begin(server, "hangs")
    wait_for(lambda: text_of(read(server, first["id"])) == "One", "the first one runs")
    before = len(commands(server))
    with Stream.post(server, request("limited please", background=True)) as waiting:
        waiting.take(2)
        made = cancel(server, waiting.id)
        ending = check(waiting.rest())
    assert (made["status"], made["output"]) == ("cancelled", [])
    assert [event["type"] for event in ending.events] == ["response.created", "response.queued", "response.cancelled"]
    assert cancel(server, first["id"])["status"] == "cancelled"
    wait_for(server.settled, "nothing runs")
    assert commands(server)[before:] == ["STOP"]


def test_to_cancel_what_has_ended_changes_nothing(server: ServerProcess) -> None:
    for what, status in (("limited", "completed"), ("dies", "failed")):
        done = ended(server, begin(server, what)["id"])
        assert done["status"] == status
        assert cancel(server, done["id"]) == done == read(server, done["id"])


def test_to_cancel_a_foreground_one_or_none_is_refused(server: ServerProcess) -> None:
    with Stream.post(server, request("gated please")) as running:
        running.until('"n"')
        answer = call(server, "POST", f"/v1/responses/{running.id}/cancel")
        assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
        assert "background" in answer.json["error"]["message"]
        cue(server, "gate")
        assert check(running.rest()).status == "completed"
    assert call(server, "POST", f"/v1/responses/{running.id}/cancel").status == 400
    answer = call(server, "POST", "/v1/responses/resp_0123/cancel")
    assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")


# --- faults ------------------------------------------------------------------------------------------


def test_a_full_queue_is_told_at_once_and_leaves_no_record(server: ServerProcess) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(Stream.post(server, request("hangs please", background=True)))
        first.until('"e"')
        waiting = [begin(server, "limited") for _ in range(3)]
        before = kept_ids(file_of(server))
        for stream in (False, True):
            full = make(server, request("limited please", background=True, stream=stream))
            assert (full.status, full.json["error"]["code"]) == (429, "queue_full")
            assert int(full.headers["retry-after"]) > 0
        assert kept_ids(file_of(server)) == before
        assert cancel(server, first.id)["status"] == "cancelled"
        for made in waiting:
            assert ended(server, made["id"])["status"] == "completed"


def test_an_engine_that_dies_fails_it_with_what_was_made(server: ServerProcess) -> None:
    done = ended(server, begin(server, "dies")["id"])
    check_response_object(done)
    assert (done["status"], text_of(done), done["error"]["code"]) == ("failed", "One", "server_error")
    assert "exit code 7" in done["error"]["message"]
    ending = check(replay(server, done["id"]))
    assert ending.error is not None
    assert ending.error["code"] == "engine_died"


def test_a_refusal_of_the_engine_is_told_by_the_record(server: ServerProcess) -> None:
    answer = make(server, request("refuses please", background=True))
    if answer.status == 200:  # it was taken before the engine had read it
        done = ended(server, answer.json["id"])
        assert (done["status"], done["output"]) == ("failed", [])
        assert "vocabulary" in done["error"]["message"]
    else:
        assert (answer.status, answer.json["error"]["code"]) == (400, "engine_refused")


def test_a_request_that_cannot_be_met_is_refused_before_anything_is_kept(server: ServerProcess) -> None:
    before = kept_ids(file_of(server))
    for fields, status in (
        ({"store": False}, 400),
        ({"input": "word " * 2_000}, 400),
        ({"previous_response_id": "resp_0123"}, 400),
    ):
        answer = make(server, {**request("limited please", background=True), **fields})
        assert answer.status == status, answer.body
    assert kept_ids(file_of(server)) == before


# --- the server's end --------------------------------------------------------------------------------


def test_at_the_servers_end_running_and_waiting_ones_fail_as_a_shutdown_and_that_is_on_disk(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    with fake_server(server_command, SCRIPT, tmp_path, *OPTIONS) as server, ExitStack() as stack:
        running = stack.enter_context(Stream.post(server, request("hangs please", background=True)))
        running.until('"e"')
        waiting = stack.enter_context(Stream.post(server, request("hangs please", background=True)))
        waiting.take(2)
        foreground = stack.enter_context(Stream.post(server, request("hangs please")))
        foreground.take(2)
        unread = begin(server, "hangs")
        ahead = stack.enter_context(Stream.resume(server, running.id, 10**6))
        ahead.head()
        server.process.send_signal(signal.SIGTERM)
        endings = [check(stream.rest()) for stream in (running, waiting, foreground)]
        assert ahead.rest()[-1].raw == running.seen[-1].raw
        assert server.process.wait(20) == 0
    assert [ending.texts for ending in endings] == [["One"], [], []]
    for ending in endings:
        assert ending.error is not None
        assert (ending.status, ending.error["code"]) == ("failed", "server_shutdown")
    with fake_server(server_command, SCRIPT, tmp_path, *OPTIONS) as server:
        for ending in endings:
            assert read(server, ending.response["id"]) == ending.response
        left = read(server, unread["id"])
        assert (left["status"], left["error"]["code"]) == ("failed", "server_error")
        made = make(server, request("carry-on please", previous_response_id=left["id"]))
        assert made.json["status"] == "completed", "a turn that failed is no dead end"


def test_one_that_ends_within_the_drain_time_is_completed(server_command: tuple[str, ...], tmp_path: Path) -> None:
    with fake_server(server_command, SCRIPT, tmp_path, "--drain-s", "20") as server:
        made = begin(server, "gated")
        wait_for(lambda: text_of(read(server, made["id"])) == "On", "it runs")
        with Stream.resume(server, made["id"]) as reader:
            reader.until('"n"')
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: "shutting down" in server.log(), "the server is told to end")
            cue(server, "gate")
            assert check(reader.rest()).status == "completed"
        assert server.process.wait(20) == 0
    with fake_server(server_command, SCRIPT, tmp_path) as server:
        done = read(server, made["id"])
        assert (done["status"], text_of(done)) == ("completed", "One")
        assert done["status"] not in RUNNING
        assert get(server, made["id"], "?stream=true").status == 200
