"""Clients that leave, wait and half-close; the queue; heartbeats; shutdown; many streams with random faults."""

from __future__ import annotations

import json
import random
import signal
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.client import Answer, Connection, ask, chat
from tests.e2e.grammar import check_chat_stream
from tests.e2e.server import START_DEADLINE_S, ServerProcess, fake_server, wait_for

Start = Callable[..., ServerProcess]
CHAT = "/v1/chat/completions"
END: list[dict[str, Any]] = [{"end_token": True}, {"done": "stop"}]
HANGS: list[dict[str, Any]] = [{"text": "Hello"}, {"stall": True}]
SLOW: list[dict[str, Any]] = [{"text": "Hel"}, {"stall": True}]
GOOD: list[dict[str, Any]] = [{"text": "fine"}, *END]
STALLED_FIRST: list[dict[str, Any]] = [{"stall": True}]


def commands(server: ServerProcess) -> list[str]:
    """The names of the commands that the engine got, from the log that the fake engine keeps."""
    folder = Path(server.engine_process().cmdline()[server.engine_process().cmdline().index("--state") + 1])
    lines = (folder / "commands.jsonl").read_text(encoding="utf-8").splitlines()
    return [str(json.loads(line)["raw"]).split()[0] for line in lines]


def reset(sock: socket.socket) -> None:
    """Close with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("steps", [HANGS, STALLED_FIRST], ids=["in-text", "before-the-first-token"])
@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["fin", "rst"])
def test_a_client_that_leaves_stops_the_engine_once_and_the_next_gets_its_own_answer(
    fake: Start, stream: bool, steps: list[dict[str, Any]], leave: Callable[[socket.socket], None]
) -> None:
    server = fake({"requests": [steps, GOOD]})
    with Connection(server.port) as connection:
        connection.post(CHAT, chat(stream=stream))
        wait_for(lambda: server.status["engine"]["active"] == 1, "the engine runs the request")
        if stream and steps is HANGS:
            connection.until(b'"content": "o"')
        leave(connection.sock)
    wait_for(lambda: "STOP" in commands(server), "the engine was told to stop", 5)
    answer = ask(server.port, chat(stream=False))
    assert answer.json["choices"][0]["message"]["content"] == "fine"
    assert commands(server) == ["GEN", "STOP", "GEN"]
    assert server.status["history"][0]["cause"] == "client_disconnect"
    assert server.status["engine"]["restarts"] == 0


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_half_closed_client_still_gets_its_answer(fake: Start, stream: bool, tmp_path: Path) -> None:
    server = fake({"requests": [[{"text": "Hel"}, {"delay_s": 0.7}, {"text": "lo"}, *END]]})
    with Connection(server.port) as connection:
        connection.post(CHAT, chat(stream=stream))
        connection.sock.shutdown(socket.SHUT_WR)
        answer = connection.answer()
    if stream:
        assert check_chat_stream(answer).content == "Hello"
    else:
        assert answer.json["choices"][0]["message"]["content"] == "Hello"
    assert commands(server) == ["GEN"]


def test_waiting_clients_are_served_in_order_and_a_leaver_never_reaches_the_engine(fake: Start) -> None:
    server = fake({"requests": [SLOW, GOOD, GOOD]}, "--queue-grace-s", "0.1", "--heartbeat-s", "0.2")
    first, second, third = (Connection(server.port) for _ in range(3))
    first.post(CHAT, chat())
    first.until(b'"content": "l"')
    second.post(CHAT, chat())
    wait_for(lambda: server.status["queue"]["waiting"] == 1, "the second waits")
    third.post(CHAT, chat())
    wait_for(lambda: server.status["queue"]["waiting"] == 2, "the third waits")
    third.until(b": keep-alive\n")
    second.sock.close()
    wait_for(lambda: server.status["queue"]["waiting"] == 1, "the second has left")
    first.sock.close()
    assert check_chat_stream(third.answer()).content == "fine"
    third.sock.close()
    assert commands(server) == ["GEN", "STOP", "GEN"]


def test_the_queue_has_a_wait_limit_and_a_length_limit(fake: Start) -> None:
    server = fake({"requests": [SLOW]}, "--queue-wait-s", "0.5", "--queue-grace-s", "0.1", "--queue-max", "2")
    holder = Connection(server.port)
    holder.post(CHAT, chat())
    holder.until(b'"content": "l"')
    waiting = Connection(server.port)
    waiting.post(CHAT, chat())
    unstreamed = Connection(server.port)
    unstreamed.post(CHAT, chat(stream=False))
    wait_for(lambda: server.status["queue"]["waiting"] == 2, "two wait")
    full = ask(server.port, chat())
    assert (full.status, full.json["error"]["code"]) == (429, "queue_full")
    assert int(full.headers["retry-after"]) > 0
    ending = check_chat_stream(waiting.answer())
    assert ending.error is not None
    assert (ending.error["type"], ending.error["code"]) == ("rate_limit_error", "queue_wait_timeout")
    answer = unstreamed.answer()
    assert (answer.status, answer.json["error"]["code"]) == (429, "queue_wait_timeout")
    assert "retry-after" in answer.headers
    for connection in (holder, waiting, unstreamed):
        connection.sock.close()


def test_a_quiet_stream_beats_and_never_with_a_blank_line(fake: Start) -> None:
    steps = [{"delay_s": 0.6}, {"text": "<tool_call>\n<function=x", "pace_s": 0.05}, {"done": "stop"}]
    server = fake({"requests": [steps]}, "--heartbeat-s", "0.1")
    answer = ask(server.port, chat())
    assert answer.body.count(b": keep-alive\n") >= 3
    assert b": keep-alive\n\n" not in answer.body
    check_chat_stream(answer)


def test_a_shutdown_ends_running_streams_truthfully_and_leaves_nothing(fake: Start) -> None:
    server = fake({"requests": [SLOW]}, "--drain-s", "0.2")
    engine = server.engine_process()
    with Connection(server.port) as connection:
        connection.post(CHAT, chat())
        connection.until(b'"content": "l"')
        server.process.send_signal(signal.SIGTERM)
        ending = check_chat_stream(connection.answer())
    assert ending.error is not None
    assert (ending.error["code"], ending.content) == ("server_shutdown", "Hel")
    assert server.end() == 0
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE


def test_a_server_told_to_stop_while_its_engine_loads_stops_at_once_and_leaves_nothing(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    server = fake_server(server_command, {"start": [{"stall": True}], "requests": []}, tmp_path)
    process = psutil.Process(server.process.pid)
    wait_for(lambda: len(process.children()) == 1, "the engine is being started", START_DEADLINE_S)
    (engine,) = process.children()
    assert server.end() == 0
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE


def test_the_fake_engines_folder_goes_with_the_server(fake: Start) -> None:
    server = fake({"requests": []})
    command = server.engine_process().cmdline()
    folder = Path(command[command.index("--state") + 1])
    assert folder.is_dir()
    assert server.end() == 0
    assert not folder.exists()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX: the server is killed by a signal")
def test_a_killed_server_leaves_no_engine(fake: Start) -> None:
    server = fake({"requests": [], "ignore": ["SIGTERM"]})
    engine = server.engine_process()
    server.process.kill()
    server.process.wait(10)
    wait_for(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE, "the engine is gone", 5)


FAULT_STEPS: list[list[dict[str, Any]]] = [
    [{"exit": 1}],
    [{"signal": "SIGKILL"}],
    [{"err": "a token id is outside the vocabulary"}],
    [{"err": "verify: timed out at layer 18"}, {"done": "error"}],
    [{"line": "T x"}],
    [{"done": "abort"}],
    [{"close_stdout": True}],
    [{"half_line": "T 1"}, {"exit": 0}],
    END,
    END,
    [{"done": "length"}],
]
STREAMS = 200
WORKERS = 8


def test_two_hundred_streams_with_random_faults_all_end_truthfully_and_leave_nothing(fake: Start) -> None:
    seeded = random.Random(20)
    lists = [[{"text": "Hello"[: seeded.randrange(6)]}, *seeded.choice(FAULT_STEPS)] for _ in range(64)]
    server = fake({"requests": [], "lives": _lives(lists)}, "--silence-s", "2", "--queue-grace-s", "0.2")
    check_chat_stream(ask(server.port, chat()))
    process = psutil.Process(server.process.pid)
    before = (process.num_threads(), process.num_fds())
    endings: list[str] = []
    left = iter(range(STREAMS))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                return
            answer: Answer = ask(server.port, chat())
            endings.append("busy" if answer.status == 503 else check_chat_stream(answer).finish_reason)

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert len(endings) == STREAMS
    assert {"error", "stop"} <= set(endings)
    wait_for(server.settled, "nothing runs")
    ask(server.port, chat())
    wait_for(lambda: process.num_threads() <= before[0] + 1, f"no thread is left over {before}")
    wait_for(lambda: process.num_fds() <= before[1] + 2, f"no descriptor is left over {before}")
    assert len(process.children(recursive=True)) <= 1


def _lives(lists: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Lives that start their requests at different lists, so that no two go the same way."""
    return [{"requests": lists[i:] + lists[:i], "then": "cycle"} for i in range(len(lists))]
