"""One connection: reads, ticks, ends. What connecting tells is in the tests of the HTTP client, which passes it on."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from engine.channel import MAX_RECV_BYTES, MIN_RECV_BYTES, Channel
from engine.origin import Origin
from tests.scripted_upstream import DEADLINE_S
from tests.unit.engine.certificates import Certificate, make_certificate, server_context, trusting_context

TICK_S = 0.02


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE_S)
        yield listener


def connected(
    listener: socket.socket, client: ssl.SSLContext | None = None, server: ssl.SSLContext | None = None
) -> tuple[Channel, socket.socket]:
    """A channel that has sent "x", and its other end."""
    ends: list[socket.socket] = []

    def accept() -> None:
        end, _ = listener.accept()
        end.settimeout(DEADLINE_S)
        ends.append(server.wrap_socket(end, server_side=True) if server is not None else end)

    thread = threading.Thread(target=accept)
    thread.start()
    channel = Channel(Origin(client is not None, "127.0.0.1", listener.getsockname()[1], ""), client, TICK_S)
    for _ in channel.connect(DEADLINE_S):
        pass
    thread.join()
    channel.send(b"x")
    assert ends[0].recv(1) == b"x"
    return channel, ends[0]


def connecting(listener: socket.socket, kind: type[socket.socket], monkeypatch: pytest.MonkeyPatch) -> Channel:
    """A channel over this kind of socket."""
    channel = Channel(Origin(False, "127.0.0.1", listener.getsockname()[1], ""), None, TICK_S)
    with monkeypatch.context() as patch:
        patch.setattr("engine.channel.socket.socket", kind)
        for _ in channel.connect(DEADLINE_S):
            pass
    return channel


def next_of(channel: Channel) -> bytes:
    """What comes next, within the deadline."""
    for _ in range(int(DEADLINE_S / TICK_S)):
        data = channel.receive()
        if data is not None:
            return data
    raise AssertionError("nothing came")


def test_a_read_waits_a_tick_at_most_and_gives_what_is_there(listener: socket.socket) -> None:
    channel, end = connected(listener)
    assert [channel.receive(), channel.receive()] == [None, None]
    for data in (b"one", b"two"):
        end.send(data)
        assert next_of(channel) == data
    end.close()
    assert next_of(channel) == b""
    channel.close()


def test_reads_grow_with_what_comes_and_shrink_again(listener: socket.socket) -> None:
    channel, end = connected(listener)
    sender = threading.Thread(target=end.sendall, args=(b"x" * (8 << 20),))
    sender.start()
    sizes: list[int] = []
    while sum(sizes) < 8 << 20:
        sizes.append(len(next_of(channel)))
    sender.join()
    assert sizes[0] <= MIN_RECV_BYTES < max(sizes) <= MAX_RECV_BYTES
    end.send(b"small")
    next_of(channel)
    end.send(b"x" * MAX_RECV_BYTES)
    assert len(next_of(channel)) <= MIN_RECV_BYTES
    channel.close()
    end.close()


def test_a_connection_takes_one_descriptor(listener: socket.socket) -> None:
    import psutil

    process = psutil.Process()
    before = process.num_fds() if hasattr(process, "num_fds") else 0
    channel, end = connected(listener)
    assert channel.receive() is None
    assert channel.is_quiet()
    after = process.num_fds() if hasattr(process, "num_fds") else 2
    assert after - before == 2  # ours, and its other end
    channel.close()
    end.close()


def test_a_connection_that_the_system_gives_up_is_no_tick(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are a TimeoutError; only one of them is over."""

    class GivenUp(socket.socket):
        def recv(self, size: int, flags: int = 0) -> bytes:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    channel = connecting(listener, GivenUp, monkeypatch)
    channel.send(b"x")
    with pytest.raises(TimeoutError, match="Connection timed out"):
        channel.receive()
    channel.close()


def test_a_connection_that_did_not_take_all_is_not_quiet(listener: socket.socket) -> None:
    channel, end = connected(listener)
    assert channel.is_quiet()
    channel.send(b"x" * (32 << 20))
    assert not channel.is_quiet()
    end.close()
    channel.close()
    assert not channel.is_quiet()


def test_a_connection_that_broke_while_sending_is_not_quiet_although_nothing_is_left_to_send(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged TLS state, for one, shows in nothing that could be read."""

    class Broken(socket.socket):
        def send(self, data: object, flags: int = 0) -> int:
            raise ssl.SSLError(1, "bad length")

    channel = connecting(listener, Broken, monkeypatch)
    assert channel.is_quiet()
    channel.send(b"x")
    assert channel.receive() is None
    assert not channel.is_quiet()
    channel.close()


def test_what_tls_has_decrypted_already_is_seen(
    listener: socket.socket, tmp_path_factory: pytest.TempPathFactory
) -> None:
    certificate: Certificate = make_certificate(tmp_path_factory.mktemp("tls"))
    channel, end = connected(listener, trusting_context(certificate), server_context(certificate))
    assert channel.receive() is None
    end.send(b"x" * (MIN_RECV_BYTES + 9))  # one record
    assert len(next_of(channel)) == MIN_RECV_BYTES
    assert not channel.is_quiet()
    assert next_of(channel) == b"x" * 9
    assert channel.is_quiet()
    channel.close()
    end.close()
