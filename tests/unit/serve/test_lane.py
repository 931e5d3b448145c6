"""Streams over real sockets that one thread carries: each as it would be alone, whatever the others do."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

import pytest

from engine.api import Inflow
from serve import lane as lane_module
from serve.delivery import ClientGone, Delivery
from serve.httpio import Peer, StreamBody
from serve.lane import LATE_STREAMS, Lane
from serve.lifecycle import BodyState
from serve.sse import KEEP_ALIVE, Frame

DEADLINE_S = 60.0
NEVER_S = 3600.0
END = b"END"

pytestmark = pytest.mark.skipif(not Lane.usable, reason="not on this system")


def tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    for end in (one, other):
        end.settimeout(DEADLINE_S)
    return one, other


class Body(StreamBody):
    """`came_back`: the stream has left the lane, before what its client has not taken is sent."""

    came_back: threading.Event

    def dont_block(self, connection: socket.socket) -> None:
        self.came_back = threading.Event()
        super().dont_block(connection)

    def block(self) -> None:
        self.came_back.set()
        super().block()


@dataclass(eq=False)
class Stream:
    """One stream: what is written to `upstream` goes to `client`, `END` ends it. `short`: how much went by a shortcut,
    which takes what begins with a letter; None: there is none."""

    lane: Lane
    beat_s: float | None = None
    inflow: Inflow = field(default_factory=Inflow)
    step: Callable[[bytes], None] = lambda data: None
    short: int | None = None
    carriers: set[str] = field(default_factory=set[str])
    returns: int = 0
    raised: BaseException | None = None

    def __post_init__(self) -> None:
        self.source, self.upstream = tcp()
        self.source.settimeout(0)
        self.connection, self.client = tcp()
        self.inflow.source = self.source.fileno()
        self.file = self.connection.makefile("wb", 0)
        self.body = Body(self.file, chunked=True)  # type: ignore[arg-type]  # not buffered, as a handler's
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.at_rest = threading.Event()
        self.steps = 0
        self.held: bytes | None = None
        if self.short is not None:
            self.inflow.shortcut = self.shortcut

    def shortcut(self) -> bytes:
        assert self.short is not None and self.held is None and self.inflow.outside
        try:
            data = self.source.recv(1 << 20)
        except BlockingIOError:
            return b""
        self.step(data)
        if data[:1].isalpha() and not data.endswith(END):
            self.short += len(data)
            return data
        self.held = data
        return b""

    def frames(self) -> Iterator[Frame]:
        while True:
            self.carriers.add(threading.current_thread().name)
            self.steps += 1
            try:
                data, self.held = self.held or self.source.recv(1 << 20), None
            except BlockingIOError:
                self.inflow.drained = True
                self.at_rest.set()
                yield Frame(b"")
                continue
            self.step(data)
            ended = data.endswith(END)
            self.inflow.drained = not ended
            if said := data.removesuffix(END):
                yield Frame(said)
            if ended:
                yield Frame(END, last=True)

    def run(self) -> None:
        self.body.open(b"")
        delivery = Delivery(self.frames(), self.body, Peer(self.connection), self.beat_s)
        try:
            while not self.lane.carry(delivery, self.inflow, self.connection):
                self.returns += 1
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.raised = error
        finally:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)

    def received(self) -> bytes:
        data = b""
        while part := self.client.recv(1 << 20):
            data += part
        return data

    def until(self, mark: bytes) -> bytes:
        data = b""
        while not data.endswith(mark):
            part = self.client.recv(1 << 20)
            assert part, data
            data += part
        return data


@pytest.fixture
def streams() -> Generator[Callable[..., Stream]]:
    lane = Lane()
    with contextlib.ExitStack() as stack:

        def start(**options: object) -> Stream:
            stream = Stream(lane, **options)  # type: ignore[arg-type]  # the fields of a stream
            for end in (stream.source, stream.upstream, stream.connection, stream.file, stream.client):
                stack.callback(end.close)
            stream.thread.start()
            return stream

        yield start


@pytest.fixture
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes, comes because bytes were there."""
    monkeypatch.setattr(lane_module, "TICK_S", NEVER_S)
    monkeypatch.setattr(lane_module, "STEP_S", NEVER_S)


@pytest.mark.usefixtures("no_ticks")
def test_many_streams_are_carried_by_one_thread_each_to_its_own_end(streams: Callable[..., Stream]) -> None:
    many = [streams() for _ in range(50)]
    for number in range(20):
        for index, stream in enumerate(many):
            stream.upstream.sendall(b"<%d:%d>" % (index, number))
        for index, stream in enumerate(many):
            stream.until(b"<%d:%d>\r\n" % (index, number))
    for stream in many:
        stream.upstream.sendall(END)
    for stream in many:
        assert stream.received() == b"3\r\nEND\r\n0\r\n\r\n"
        stream.thread.join(DEADLINE_S)
        assert (stream.raised, stream.returns, stream.carriers) == (None, 0, {"lane"})
        assert stream.body.state is BodyState.ENDED
        assert not stream.inflow.outside


@pytest.mark.usefixtures("no_ticks")
def test_text_and_end_that_come_in_one_read_go_out_at_once(streams: Callable[..., Stream]) -> None:
    stream = streams()
    stream.upstream.sendall(b"last" + END)
    assert stream.received() == b"4\r\nlast\r\n3\r\nEND\r\n0\r\n\r\n"


@pytest.mark.usefixtures("no_ticks")
def test_a_client_that_does_not_read_holds_nobody_up_and_loses_nothing(streams: Callable[..., Stream]) -> None:
    slow, quick = streams(), streams()
    size = 16 << 20
    writer = threading.Thread(target=slow.upstream.sendall, args=(b"x" * size,), daemon=True)
    writer.start()
    for number in range(100):
        quick.upstream.sendall(b"<%d>" % number)
        quick.until(b"<%d>\r\n" % number)
    reader = threading.Thread(target=lambda: (writer.join(DEADLINE_S), slow.upstream.sendall(END)), daemon=True)
    reader.start()
    got = slow.received()
    assert got.count(b"x") == size
    assert got.endswith(b"3\r\nEND\r\n0\r\n\r\n")
    slow.thread.join(DEADLINE_S)
    assert slow.raised is None
    assert slow.returns > 0
    assert (quick.returns, slow.body.state) == (0, BodyState.ENDED)


@pytest.mark.usefixtures("no_ticks")
def test_a_fault_comes_out_in_the_streams_own_thread_and_hurts_no_other(streams: Callable[..., Stream]) -> None:
    def fails(data: bytes) -> None:
        raise KeyError(data)

    broken, whole = streams(step=fails), streams()
    broken.upstream.sendall(b"x")
    broken.thread.join(DEADLINE_S)
    assert isinstance(broken.raised, KeyError)
    whole.upstream.sendall(END)
    assert whole.received() == b"3\r\nEND\r\n0\r\n\r\n"


@pytest.mark.usefixtures("no_ticks")
def test_a_source_that_is_given_up_brings_the_stream_back(streams: Callable[..., Stream]) -> None:
    gave_up = threading.Event()

    def gives_up(data: bytes) -> None:
        if not gave_up.is_set():
            stream.inflow.source = None
            gave_up.set()

    stream = Stream(Lane(), step=gives_up)
    came_back = threading.Event()

    def run() -> None:
        stream.body.open(b"")
        delivery = Delivery(stream.frames(), stream.body, Peer(stream.connection), None)
        assert stream.lane.carry(delivery, stream.inflow, stream.connection) is False
        came_back.set()

    threading.Thread(target=run, daemon=True).start()
    stream.upstream.sendall(b"x")
    assert came_back.wait(DEADLINE_S)
    assert stream.until(b"\r\nx\r\n") == b"1\r\nx\r\n"
    assert not stream.inflow.outside
    for end in (stream.source, stream.upstream, stream.connection, stream.file, stream.client):
        end.close()


@pytest.mark.usefixtures("no_ticks")
def test_streams_come_back_from_a_lane_that_fails_and_it_takes_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane = Lane()
    stream = Stream(lane)
    delivery = Delivery(stream.frames(), stream.body, Peer(stream.connection), None)

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Lane, "_arrivals", fails)
    stream.body.open(b"")
    assert lane.carry(delivery, stream.inflow, stream.connection) is False
    assert not lane.usable
    assert lane.carry(delivery, stream.inflow, stream.connection) is False
    stream.upstream.sendall(END)
    while not delivery.step():
        pass
    assert stream.until(b"0\r\n\r\n") == b"3\r\nEND\r\n0\r\n\r\n"
    for end in (stream.source, stream.upstream, stream.connection, stream.file, stream.client):
        end.close()


@pytest.mark.usefixtures("no_ticks")
def test_what_goes_by_the_shortcut_keeps_its_place_between_the_frames(streams: Callable[..., Stream]) -> None:
    many = [streams(short=0) for _ in range(20)]
    for _ in range(5):
        for stream in many:
            for text in (b"short", b"words", b"<long>", b"again"):
                stream.upstream.sendall(text)
                stream.until(text + b"\r\n")
    for stream in many:
        stream.upstream.sendall(b"text" + END)
        assert stream.received() == b"4\r\ntext\r\n3\r\nEND\r\n0\r\n\r\n"
        stream.thread.join(DEADLINE_S)
        assert (stream.raised, stream.returns, stream.carriers) == (None, 0, {"lane"})
        assert stream.short == 5 * len(b"shortwordsagain")


@pytest.mark.usefixtures("no_ticks")
def test_no_line_end_of_any_reader_goes_by_the_shortcut(streams: Callable[..., Stream]) -> None:
    stream = streams(short=0)
    for text, sent in (("a\u2028b", b"a\\u2028b"), ("c\x85", b"c\\u0085"), ("d\x7f", b"d\\u007f"), ("é", "é".encode())):
        stream.upstream.sendall(b"x" + text.encode())
        assert stream.until(sent + b"\r\n").endswith(b"\r\nx" + sent + b"\r\n")
    assert stream.short
    stream.upstream.sendall(END)
    assert stream.received() == b"3\r\nEND\r\n0\r\n\r\n"


@pytest.mark.usefixtures("no_ticks")
def test_a_slow_client_loses_nothing_of_what_goes_by_the_shortcut(streams: Callable[..., Stream]) -> None:
    slow = streams(short=0)
    size = 16 << 20
    writer = threading.Thread(target=slow.upstream.sendall, args=(b"x" * size,), daemon=True)
    writer.start()
    reader = threading.Thread(target=lambda: (writer.join(DEADLINE_S), slow.upstream.sendall(END)), daemon=True)
    reader.start()
    assert slow.body.came_back.wait(DEADLINE_S)  # it holds more than the system takes for a client that reads nothing
    got = slow.received()
    assert got.count(b"x") == size
    assert got.endswith(b"3\r\nEND\r\n0\r\n\r\n")
    slow.thread.join(DEADLINE_S)
    assert (slow.raised, slow.body.state) == (None, BodyState.ENDED)


@pytest.mark.usefixtures("no_ticks")
def test_a_fault_on_the_shortcut_comes_out_in_the_streams_own_thread(streams: Callable[..., Stream]) -> None:
    def fails(data: bytes) -> None:
        raise KeyError(data)

    broken, whole = streams(step=fails, short=0), streams(short=0)
    broken.upstream.sendall(b"x")
    broken.thread.join(DEADLINE_S)
    assert isinstance(broken.raised, KeyError)
    whole.upstream.sendall(END)
    assert whole.received() == b"3\r\nEND\r\n0\r\n\r\n"


def test_a_stream_that_never_rests_is_looked_at_now_and_then_all_the_same(
    streams: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "STEP_S", 0.05)
    stream = streams(short=0)
    deadline = time.monotonic() + DEADLINE_S
    while stream.steps < 5:
        assert time.monotonic() < deadline
        stream.upstream.sendall(b"x")
        stream.until(b"x\r\n")
    assert stream.short
    stream.upstream.sendall(END)
    assert stream.received() == b"3\r\nEND\r\n0\r\n\r\n"


def test_a_quiet_stream_gets_its_heartbeats_and_knows_how_long_it_waited(streams: Callable[..., Stream]) -> None:
    stream = streams(beat_s=0.05)
    assert stream.until(KEEP_ALIVE + b"\r\n").endswith(KEEP_ALIVE + b"\r\n")
    assert stream.inflow.waited_s > 0.0
    stream.upstream.sendall(END)
    assert stream.received().endswith(b"3\r\nEND\r\n0\r\n\r\n")


def test_a_client_that_resets_ends_its_stream_alone(streams: Callable[..., Stream]) -> None:
    gone, there = streams(), streams()
    gone.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    gone.client.close()
    gone.thread.join(DEADLINE_S)
    assert isinstance(gone.raised, ClientGone | OSError)
    there.upstream.sendall(END)
    assert there.received() == b"3\r\nEND\r\n0\r\n\r\n"


def test_who_lets_the_lane_catch_up_waits_for_all_that_are_late_and_no_longer(streams: Callable[..., Stream]) -> None:
    order: list[str] = []
    held, begun, waiter = threading.Event(), threading.Event(), threading.Thread(target=lambda: None)

    def holds(data: bytes) -> None:
        begun.set()
        assert data == END or held.wait(DEADLINE_S)

    def goes_on(data: bytes) -> None:
        nonlocal waiter
        if not order:  # the first of those that are late
            lane.let_catch_up(0.001)
            waiter = threading.Thread(target=lambda: (lane.let_catch_up(NEVER_S), order.append("waited")), daemon=True)
            waiter.start()
            waiter.join(0.2)
        order.append("late")

    first, others = streams(step=holds), [streams(step=goes_on) for _ in range(LATE_STREAMS + 1)]
    lane = first.lane
    lane.let_catch_up(NEVER_S)  # nobody is late
    for stream in (first, *others):  # each has come to the lane
        assert stream.at_rest.wait(DEADLINE_S)
    first.upstream.sendall(b"x")
    assert begun.wait(DEADLINE_S)
    for stream in others:
        stream.upstream.sendall(b"x")
    held.set()
    for stream in others:
        assert stream.until(b"x\r\n")
    waiter.join(DEADLINE_S)
    assert order == ["late"] * len(others) + ["waited"]
