"""Several worker processes on one port: each a whole server, none alone to blame, none left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.client import Connection
from tests.e2e.gateway import CHAT, Gateway, gateway, plain_chat
from tests.e2e.grammar import check_chat_stream
from tests.e2e.server import wait_for
from tests.scripted_upstream import DONE, LAST_CHUNK, Peer, chunk, sse_head

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes cannot share a port there")

TRIES = 2_000
RESPONSES = "/v1/responses"
DEADLINE_S = 60.0


def event(**delta: str) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
    value = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


class Upstream:
    """Says "One", waits for `go`, says " two" and ends."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def gated(self, peer: Peer) -> None:
        peer.send(sse_head(), chunk(event(role="assistant", content="One")))
        assert self.go.wait(DEADLINE_S)
        peer.send(chunk(event(content=" two")), chunk(event() + DONE), LAST_CHUNK)

    def stays(self, peer: Peer) -> None:
        peer.send(sse_head(), chunk(event(role="assistant", content="One")))
        assert peer.wait_gone()

    @property
    def scripts(self) -> dict[str, Any]:
        return {"gated": self.gated, "stays": self.stays}


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
def front(server_command: tuple[str, ...], tmp_path: Path, upstream: Upstream) -> Iterator[Gateway]:
    with gateway(server_command, tmp_path, upstream.scripts, "--workers", "2") as made:
        yield made
        upstream.go.set()


def who(connection: Connection) -> int:
    """The process that serves the connection."""
    connection.get("/status")
    pid: int = connection.answer().json["process"]["pid"]
    return pid


def workers(port: int) -> dict[int, int]:
    """Number and pid of all who are met until two are known."""
    known: dict[int, int] = {}
    for _ in range(TRIES):
        with Connection(port) as connection:
            connection.get("/status")
            process = connection.answer().json["process"]
            known[process["worker"]] = process["pid"]
        if len(known) == 2:
            return known
    raise AssertionError(f"only {known} in {TRIES} connections")


def connected(stack: ExitStack, port: int, pid: int) -> Connection:
    """A connection that this process serves."""
    for _ in range(TRIES):
        connection = Connection(port)
        if who(connection) == pid:
            return stack.enter_context(connection)
        connection.sock.close()
    raise AssertionError(f"{pid} took none of {TRIES} connections")


def test_each_of_the_workers_serves_the_port(front: Gateway, upstream: Upstream) -> None:
    pids = workers(front.port)
    assert {child.pid for child in psutil.Process(front.server.process.pid).children()} == set(pids.values())
    with ExitStack() as stack:
        streams = [connected(stack, front.port, pid) for pid in pids.values()]
        for stream in streams:
            stream.post(CHAT, plain_chat("gated", stream=True))
            stream.until(b"One")
        upstream.go.set()
        for stream in streams:
            assert check_chat_stream(stream.answer()).content == "One two"


def test_a_worker_that_is_killed_takes_its_own_streams_only_and_another_starts(
    front: Gateway, upstream: Upstream
) -> None:
    pids = workers(front.port)
    with ExitStack() as stack:
        lost, other = (connected(stack, front.port, pids[number]) for number in (1, 2))
        for stream in (lost, other):
            stream.post(CHAT, plain_chat("gated", stream=True))
            stream.until(b"One")
        os.kill(pids[1], 9)
        assert not lost.answer().terminated
        wait_for(lambda: "killed by signal 9 (SIGKILL)" in front.server.log(), "the death is told")
        wait_for(lambda: workers(front.port)[1] != pids[1], "another serves in its place")
        assert workers(front.port)[2] == pids[2]
        upstream.go.set()
        assert check_chat_stream(other.answer()).content == "One two"


def test_at_sigterm_each_worker_lets_its_streams_end(front: Gateway, upstream: Upstream) -> None:
    pids = workers(front.port)
    with ExitStack() as stack:
        streams = [connected(stack, front.port, pid) for pid in pids.values()]
        for stream in streams:
            stream.post(CHAT, plain_chat("gated", stream=True))
            stream.until(b"One")
        front.server.process.terminate()
        for number in pids:
            wait_for(lambda n=number: f" worker {n} INFO strata: shutting down" in front.server.log(), "each is asked")
        upstream.go.set()
        for stream in streams:
            assert check_chat_stream(stream.answer()).content == "One two"
    assert front.server.process.wait(DEADLINE_S) == 0
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


def test_no_worker_outlives_the_process_that_was_started(front: Gateway) -> None:
    pids = workers(front.port)
    front.server.process.kill()
    for pid in pids.values():
        wait_for(lambda pid=pid: not psutil.pid_exists(pid), f"worker {pid} ends", DEADLINE_S)


def test_a_response_of_one_worker_is_read_and_cancelled_at_the_other(front: Gateway) -> None:
    pids = workers(front.port)
    with ExitStack() as stack:
        maker, other = (connected(stack, front.port, pids[number]) for number in (1, 2))
        maker.post(RESPONSES, {"model": "m", "input": "stays", "stream": True, "background": True})
        maker.until(b'"One"')
        found = maker.until(b'"id"').partition(b'"resp_')[2].partition(b'"')[0].decode()

        def text() -> str:
            other.get(f"{RESPONSES}/resp_{found}")
            return other.answer().body.decode()

        wait_for(lambda: '"One"' in text(), "the other one sees what was made")
        other.post(f"{RESPONSES}/resp_{found}/cancel", {})
        assert other.answer().json["status"] == "cancelled"
        assert b'"cancelled"' in maker.answer().body


def test_the_workers_share_out_what_runs_at_once(
    server_command: tuple[str, ...], tmp_path: Path, upstream: Upstream
) -> None:
    options = ("--workers", "2", "--parallel", "2", "--queue-max", "0")
    with gateway(server_command, tmp_path, upstream.scripts, *options) as made, ExitStack() as stack:
        for pid in workers(made.port).values():
            first, second = connected(stack, made.port, pid), connected(stack, made.port, pid)
            first.post(CHAT, plain_chat("gated", stream=True))
            first.until(b"One")
            second.post(CHAT, plain_chat("gated", stream=True))
            refused = second.answer()
            assert (refused.status, refused.json["error"]["code"]) == (429, "queue_full")
        upstream.go.set()


def test_what_keeps_all_from_starting_is_said_once(server_command: tuple[str, ...], tmp_path: Path) -> None:
    store = tmp_path / "folder"
    store.mkdir()
    words = ["--upstream", "http://127.0.0.1:9", "--workers", "3", "--port", "0", "--store", str(store)]
    done = subprocess.run([*server_command, *words], capture_output=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"strata-serve: store: ") == 1
