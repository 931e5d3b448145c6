"""Every way in which a response ends: the stream's terminal, the body of a second request and what is kept are one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.client import Connection
from tests.e2e.responses_client import (
    ROUTE,
    check_failed,
    engine_folder,
    failed,
    finished,
    request,
    respond,
    rule,
    stored,
)
from tests.e2e.responses_grammar import ResponseEnding, check_response_stream
from tests.e2e.responses_outcomes import CONTEXT, FAILED, FINISHED, FULL, INCOMPLETE, SCRIPT, Outcome
from tests.e2e.server import ServerProcess, fake_server, wait_for

Start = Callable[..., ServerProcess]


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("endings")) as started:
        yield started


def check_made(ending: ResponseEnding, outcome: Outcome) -> None:
    assert tuple(ending.texts) == outcome.texts
    assert tuple(ending.reasoning) == outcome.reasoning
    assert tuple((call["arguments"], call["status"]) for call in ending.calls) == outcome.calls
    output = ending.response["output"]
    expected = outcome.calls[-1][1] if outcome.calls else outcome.last
    assert [item["status"] for item in output[-1:]] == ([expected] if expected else [])
    assert all(item["status"] == "completed" for item in output[:-1])
    usage = ending.response["usage"]
    assert usage["input_tokens"] > 0
    assert usage["output_tokens"] > 0
    assert (usage["output_tokens_details"]["reasoning_tokens"] > 0) == bool(outcome.reasoning)


@pytest.mark.parametrize("outcome", FINISHED, ids=lambda outcome: outcome.name)
def test_a_finished_answer_is_completed_in_all_three_readings(server: ServerProcess, outcome: Outcome) -> None:
    ending = finished(server.port, outcome.body)
    assert ending.status == "completed"
    check_made(ending, outcome)


@pytest.mark.parametrize("outcome", INCOMPLETE, ids=lambda outcome: outcome.name)
def test_an_answer_cut_at_the_limit_is_incomplete_in_all_three_readings(
    server: ServerProcess, outcome: Outcome
) -> None:
    ending = finished(server.port, outcome.body)
    check_incomplete(ending, outcome.fields["max_output_tokens"])
    check_made(ending, outcome)


def test_an_answer_cut_by_the_end_of_the_context_is_incomplete_in_all_three_readings(server: ServerProcess) -> None:
    ending = finished(server.port, FULL.body)
    room = CONTEXT - ending.response["usage"]["input_tokens"]
    check_incomplete(ending, room)
    check_made(ending, replace(FULL, texts=("x" * room,)))


def check_incomplete(ending: ResponseEnding, limit: int) -> None:
    assert ending.status == "incomplete"
    assert ending.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert ending.response["usage"]["output_tokens"] == limit


@pytest.mark.parametrize("outcome", FAILED, ids=lambda outcome: outcome.name)
def test_an_answer_that_is_not_whole_fails_in_all_three_readings(server: ServerProcess, outcome: Outcome) -> None:
    check_made(failed(server.port, outcome.body, 502, outcome.code), outcome)


def test_a_shutdown_fails_running_responses_truthfully_and_they_can_be_read_by_the_next_server(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    second = rule("second", {"text": "Hello"}, {"reached": "second"}, {"stall": True})
    script = {"batch_slots": 2, "requests": [rule("first", {"text": "Hello"}, {"stall": True}), second]}
    options = ("--drain-s", "0.5", "--queue-grace-s", "0.1", "--store", str(tmp_path / "shared.db"))
    with (
        fake_server(server_command, script, tmp_path, *options) as server,
        Connection(server.port) as stream,
        Connection(server.port) as whole,
        Connection(server.port) as waiting,
    ):
        stream.post(ROUTE, request("first"))
        stream.until(b'"delta": "o"')
        whole.post(ROUTE, request("second", stream=False))
        wait_for((engine_folder(server) / "reached-second").exists, "both run")
        waiting.post(ROUTE, request("third"))
        waiting.until(b"response.in_progress")
        server.process.send_signal(signal.SIGTERM)
        endings = [check_response_stream(connection.answer()) for connection in (stream, waiting)]
        body = whole.answer()
        assert server.end() == 0
    for ending, texts in zip(endings, (["Hello"], []), strict=True):
        check_failed(ending, "server_shutdown")
        assert ending.texts == texts
    assert (body.status, body.json["error"]["code"]) == (503, "server_shutdown")
    assert body.json["error"]["partial_output"] == "Hello"
    assert "retry-after" in body.headers
    with fake_server(server_command, {"requests": []}, tmp_path, *options) as later:
        for ending in endings:
            assert stored(later.port, ending.response["id"]) == ending.response
        kept = stored(later.port, body.json["error"]["response_id"])
        assert (kept["status"], kept["error"]["message"]) == ("failed", body.json["error"]["message"])


def test_a_response_that_waited_too_long_fails_as_a_status_before_the_headers_and_in_the_stream_after_them(
    fake: Start,
) -> None:
    hold = rule("hold", {"text": "Hel"}, {"stall": True})
    late = fake({"requests": [hold]}, "--queue-wait-s", "0.4", "--queue-grace-s", "30")
    with held(late):
        for stream in (True, False):
            answer = respond(late.port, request(stream=stream))
            assert (answer.status, answer.json["error"]["code"]) == (429, "queue_wait_timeout")
            assert int(answer.headers["retry-after"]) > 0
            assert "response_id" not in answer.json["error"]  # nothing was begun
    early = fake({"requests": [hold]}, "--queue-wait-s", "0.4", "--queue-grace-s", "0.1")
    with held(early):
        ending = failed(early.port, request(), 429, "queue_wait_timeout")
        assert ending.response["error"]["code"] == "rate_limit_exceeded"
        assert ending.response["output"] == []


def test_a_full_queue_is_a_status_in_both_modes(fake: Start) -> None:
    server = fake({"requests": [rule("hold", {"text": "Hel"}, {"stall": True})]}, "--queue-max", "0")
    with held(server):
        for stream in (True, False):
            answer = respond(server.port, request(stream=stream))
            assert (answer.status, answer.json["error"]["code"]) == (429, "queue_full")
            assert int(answer.headers["retry-after"]) > 0


@contextmanager
def held(server: ServerProcess) -> Generator[None]:
    """The server's one slot is taken."""
    with Connection(server.port) as holder:
        holder.post(ROUTE, request("hold"))
        holder.until(b'"delta": "l"')
        yield
