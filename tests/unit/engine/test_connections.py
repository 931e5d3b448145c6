"""The place of idle connections: limits, times, ends, threads, forks."""

from __future__ import annotations

import gc
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.channel import Channel
from engine.connections import IDLE_S, MAX_IDLE, Connections
from engine.origin import Origin
from tests.scripted_upstream import DEADLINE_S

ROOT = Path(__file__).resolve().parents[3]


class Clock:
    """A monotonic clock that stands still unless the test moves it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("engine.connections.time", clock)
    return clock


class Server:
    """Accepts connections, and holds their other ends in the order of their coming."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.origin = Origin(False, "127.0.0.1", self._listener.getsockname()[1], "")
        self.ends: list[socket.socket] = []

    def connect(self, tls: ssl.SSLContext | None = None) -> Channel:
        channel = Channel(self.origin, tls, 0.02)
        for _ in channel.connect(DEADLINE_S):
            pass
        channel.send(b"x")  # makes it ready to receive
        end, _ = self._listener.accept()
        end.settimeout(DEADLINE_S)
        assert end.recv(1) == b"x"
        self.ends.append(end)
        return channel

    def is_closed(self, number: int) -> bool:
        """Whether the client closed this connection, within the deadline."""
        try:
            return self.ends[number].recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def close(self) -> None:
        self._listener.close()
        for end in self.ends:
            end.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def kept() -> Iterator[Connections]:
    connections = Connections()
    yield connections
    connections.close()


def until(condition: Callable[[], bool]) -> bool:
    """Whether a state that the system brings about came within the deadline."""
    pause = threading.Event()
    return any(condition() or pause.wait(0.01) for _ in range(int(DEADLINE_S / 0.01))) or condition()


def test_what_was_given_last_is_taken_first_and_only_once(server: Server, kept: Connections) -> None:
    one, two = server.connect(), server.connect()
    kept.give(one)
    kept.give(two)
    assert len(kept) == 2
    taken = [kept.take(server.origin, None, 0.5) for _ in range(3)]
    assert taken == [two, one, None]
    assert (two.tick_s, len(kept)) == (0.5, 0)
    one.close()
    two.close()


def test_a_connection_is_only_for_its_own_server_and_trust(server: Server, kept: Connections) -> None:
    context = ssl.create_default_context()
    kept.give(server.connect(context))
    origin = server.origin
    others = [
        (Origin(False, "localhost", origin.port, ""), context),
        (Origin(False, origin.host, origin.port + 1, ""), context),
        (Origin(True, origin.host, origin.port, ""), context),
        (origin, None),
        (origin, ssl.create_default_context()),
    ]
    assert [kept.take(other, tls, 1.0) for other, tls in others] == [None] * 5
    channel = kept.take(Origin(False, origin.host, origin.port, "/another/path"), context, 1.0)
    assert channel is not None
    channel.close()


def test_of_too_many_the_oldest_is_closed(server: Server, kept: Connections) -> None:
    for _ in range(MAX_IDLE + 2):
        kept.give(server.connect())
    assert len(kept) == MAX_IDLE
    assert server.is_closed(0)
    assert server.is_closed(1)
    server.ends[2].send(b"!")  # still there


def test_a_place_for_none_keeps_none(server: Server) -> None:
    kept = Connections(max_idle=0)
    kept.give(server.connect())
    assert len(kept) == 0
    assert server.is_closed(0)


# --- times -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server_s", "limit_s"), [(None, IDLE_S), (5.0, 4.0), (IDLE_S + 1, IDLE_S), (600.0, IDLE_S), (1.5, 0.5)]
)
def test_an_idle_connection_is_used_until_its_time_is_over(
    server_s: float | None, limit_s: float, server: Server, kept: Connections, clock: Clock
) -> None:
    kept.give(server.connect(), server_s)
    clock.now_s += limit_s - 0.01
    channel = kept.take(server.origin, None, 0.02)
    assert channel is not None
    kept.give(channel, server_s)  # being used begins its time anew
    clock.now_s += limit_s
    assert kept.take(server.origin, None, 0.02) is None
    assert server.is_closed(0)


@pytest.mark.parametrize("server_s", [1.0, 0.5, 0.0])
def test_a_connection_with_no_time_left_is_closed_at_once(server_s: float, server: Server, kept: Connections) -> None:
    kept.give(server.connect(), server_s)
    assert len(kept) == 0
    assert server.is_closed(0)


def test_what_is_too_old_is_closed_when_any_other_is_given_or_taken(
    server: Server, kept: Connections, clock: Clock
) -> None:
    elsewhere = Origin(False, "127.0.0.2", 1, "")
    kept.give(server.connect(), 3.0)
    kept.give(server.connect())
    clock.now_s += 2.0
    assert kept.take(elsewhere, None, 0.02) is None
    assert server.is_closed(0)
    clock.now_s += IDLE_S
    kept.give(server.connect())
    assert server.is_closed(1)
    assert len(kept) == 1


# --- ends --------------------------------------------------------------------------------------------


def test_a_connection_that_the_server_closed_is_dropped(server: Server, kept: Connections) -> None:
    first, second = server.connect(), server.connect()
    kept.give(first)
    kept.give(second)
    server.ends[1].close()
    assert until(lambda: not second.is_quiet())
    channel = kept.take(server.origin, None, 0.02)
    assert channel is first
    assert len(kept) == 0
    first.close()


def test_a_connection_on_which_the_server_spoke_unasked_is_dropped(server: Server, kept: Connections) -> None:
    """What it said would be taken for the answer to the next request."""
    channel = server.connect()
    kept.give(channel)
    server.ends[0].send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert until(lambda: not channel.is_quiet())
    assert kept.take(server.origin, None, 0.02) is None
    assert server.is_closed(0)


def test_a_connection_with_something_unread_is_not_kept(server: Server, kept: Connections) -> None:
    channel = server.connect()
    server.ends[0].send(b"late")
    assert until(lambda: not channel.is_quiet())
    kept.give(channel)
    assert len(kept) == 0
    assert server.is_closed(0)


def test_after_close_nothing_is_kept(server: Server) -> None:
    kept = Connections()
    kept.give(server.connect())
    kept.close()
    kept.close()
    assert server.is_closed(0)
    kept.give(server.connect())
    assert server.is_closed(1)
    assert (len(kept), kept.take(server.origin, None, 0.02)) == (0, None)


def test_a_place_that_nobody_holds_any_more_closes_its_connections(server: Server) -> None:
    kept = Connections()
    kept.give(server.connect())
    del kept
    gc.collect()
    assert server.is_closed(0)


# --- threads and processes ---------------------------------------------------------------------------


def test_no_two_threads_get_the_same_connection(server: Server) -> None:
    kept = Connections(max_idle=20)
    for _ in range(20):
        kept.give(server.connect())
    holders: dict[int, int] = {}
    shared: list[int] = []
    guard = threading.Lock()

    def work() -> None:
        for _ in range(200):
            channel = kept.take(server.origin, None, 0.02)
            if channel is None:
                continue
            with guard:
                holders[id(channel)] = holders.get(id(channel), 0) + 1
                if holders[id(channel)] > 1:
                    shared.append(id(channel))
            with guard:
                holders[id(channel)] -= 1
            kept.give(channel)

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert shared == []
    assert len(kept) == 20
    kept.close()


FORK = """
import os, socket, sys, threading
from engine.channel import Channel
from engine.connections import Connections
from engine.origin import Origin

listener = socket.create_server(("127.0.0.1", 0))
origin = Origin(False, "127.0.0.1", listener.getsockname()[1], "")
kept = Connections()
channel = Channel(origin, None, 0.05)
for _ in channel.connect(10):
    pass
channel.send(b"x")
end, _ = listener.accept()
kept.give(channel)
held = kept._lock  # another thread of the parent may hold it at the fork
held.acquire()
child = os.fork()
if child == 0:
    os._exit(0 if len(kept) == 0 and kept.take(origin, None, 0.05) is None else 1)
held.release()
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert kept.take(origin, None, 0.05) is channel, "the parent has lost its own"
end.settimeout(10)
channel.send(b"y")
assert end.recv(2) in (b"xy", b"x")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_has_none_of_its_parents_connections() -> None:
    ended = subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, capture_output=True, timeout=DEADLINE_S)
    assert ended.returncode == 0, ended.stderr
