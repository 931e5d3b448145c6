"""An answer whose reader waits for the bytes itself: the same events as ever, and none later than it could come."""

from __future__ import annotations

import contextlib
import gzip
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from engine.api import Cancel, ChatRequest, Inflow
from engine.channel import MIN_RECV_BYTES, Channel
from engine.events import Accepted, Cancelled, EngineEvent, Failed, FailKind, Finished, Passed, Tick
from engine.origin import Origin
from engine.upstream import UpstreamEngine
from tests.scripted_upstream import (
    DEADLINE_S,
    DONE,
    LAST_CHUNK,
    Peer,
    Script,
    ScriptedUpstream,
    chunk,
    delta,
    event,
    sse_head,
    stream,
)
from tests.unit.engine.certificates import make_certificate, server_context, trusting_context
from tests.unit.engine.chats import ASK, HELLO, STOP, WHOLE, cut_after, silent_after

NEVER_S = 3600.0
PASSING = replace(ASK, form="stream")


def together(events: Iterable[EngineEvent]) -> list[EngineEvent]:
    """Without ticks, and what passed as one: how the bytes were cut into reads is nobody's business."""
    raw, rest = b"", list[EngineEvent]()
    for item in events:
        if isinstance(item, Passed):
            raw += item.raw + item.held
        elif not isinstance(item, Tick):
            rest.append(item)
    return [Passed(raw), *rest]


class Outside:
    """Reads as one does who waits for many: it waits for the source, and asks only when something must be there, first
    by the shortcut. `on_read` is called before it waits, `on_end` at the end."""

    def __init__(
        self,
        engine: UpstreamEngine,
        request: ChatRequest = PASSING,
        *,
        looks_s: float = NEVER_S,
        on_read: Callable[[], object] = lambda: None,
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self.inflow = Inflow()
        self.cancel = Cancel()
        self.events = engine.stream(replace(request, inflow=self.inflow), self.cancel)
        self.looks_s = looks_s
        self.on_read, self.on_end = on_read, on_end
        self.waits = self.short = 0

    def read(self) -> list[EngineEvent]:
        read: list[EngineEvent] = []
        for item in self.events:
            read.append(item)
            source = self.inflow.source
            self.inflow.outside = source is not None
            if source is None or not self.inflow.drained:
                assert self.inflow.shortcut is None, "more is to be told first"
                continue
            self.wait(source)
            while self.inflow.shortcut is not None and (data := self.inflow.shortcut()):
                self.short += 1
                read.append(Passed(data))
                self.wait(source)
        self.on_end()
        return read

    def wait(self, source: int) -> None:
        self.waits += 1
        self.on_read()
        began = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            ready = selector.select(min(self.looks_s, DEADLINE_S))
        assert ready or self.looks_s < NEVER_S, "it waits although the answer had more to say"
        self.inflow.waited_s += time.monotonic() - began


def in_turn(gate: threading.Semaphore, *pieces: bytes) -> Script:
    """Each piece in a write of its own, when the one before it was read and more is waited for."""

    def script(peer: Peer) -> None:
        peer.send(sse_head() + pieces[0])
        for piece in pieces[1:]:
            assert gate.acquire(timeout=DEADLINE_S)
            with contextlib.suppress(OSError):  # its reader may know enough
                peer.send(piece)

    return script


def bytewise(peer: Peer) -> None:
    peer.send(sse_head())
    for piece in WHOLE:
        for at in range(len(piece)):
            peer.send(chunk(piece[at : at + 1]))
    peer.send(LAST_CHUNK)


SCRIPTS: dict[str, Script] = {
    "in one write": stream(b"".join(WHOLE)),
    "in events": stream(*WHOLE),
    "in bytes": bytewise,
    "compressed": stream(gzip.compress(b"".join(WHOLE)), content_encoding="gzip"),
    "large": stream(*[HELLO[1]] * 5_000, STOP, DONE),
    "closed": cut_after(2, "closed"),
    "a clean end": cut_after(2, "clean"),
    "damaged": stream(HELLO[1], b"data: {oops\n\n"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_who_waits_outside_reads_the_same_and_waits_for_nothing_that_is_there(name: str) -> None:
    with ScriptedUpstream(SCRIPTS[name]) as upstream:
        engine = UpstreamEngine(upstream.url)
        inside = together(engine.stream(PASSING, Cancel()))
        reader = Outside(engine)
        assert together(reader.read()) == inside
    assert reader.inflow.source is None


TEXTS = [event(delta(content=text)) for text in ("Hel", "lo", " w\u00f6rld", "!", "\u2028", '"', "", "end")]
WAYS: dict[str, list[bytes]] = {
    "whole": [chunk(STOP), chunk(DONE), LAST_CHUNK],
    "all at once": [chunk(TEXTS[0]) + chunk(STOP) + chunk(DONE) + LAST_CHUNK],
    "a clean end": [LAST_CHUNK],
    "a cut chunk": [chunk(TEXTS[0])[:40]],
    "a chunk in two": [chunk(TEXTS[0])[:40], chunk(TEXTS[0])[40:], chunk(TEXTS[1]), chunk(STOP) + chunk(DONE)],
    "an event in two chunks": [chunk(TEXTS[0][:30]), chunk(TEXTS[0][30:]), chunk(TEXTS[1]), chunk(STOP), chunk(DONE)],
    "two chunks": [chunk(TEXTS[0]) + chunk(TEXTS[1]), chunk(TEXTS[2]), chunk(STOP), chunk(DONE), LAST_CHUNK],
    "no text": [chunk(event(delta(refusal="no"))), chunk(TEXTS[0]), chunk(STOP), chunk(DONE), LAST_CHUNK],
    "damage": [chunk(b"data: {oops\n\n"), chunk(TEXTS[0])],
    "an error": [chunk(event({"error": {"message": "out of memory"}})), chunk(DONE), LAST_CHUNK],
    "a comment": [chunk(b": ping\n\n"), chunk(TEXTS[0]), chunk(STOP), chunk(DONE), LAST_CHUNK],
    "no HTTP": [b"oops\r\n"],
    "a chunk of another size": [b"7" + chunk(TEXTS[0])],
    "no utf-8": [chunk(TEXTS[0].replace(b"Hel", b"H\xffl")), chunk(STOP), chunk(DONE), LAST_CHUNK],
}


@pytest.mark.parametrize("name", WAYS)
def test_text_goes_by_the_shortcut_and_everything_else_is_told_after_it(name: str) -> None:
    gate = threading.Semaphore(0)
    pieces = [chunk(HELLO[0]), *map(chunk, TEXTS), *WAYS[name]]
    with ScriptedUpstream(lambda peer: peer.send(sse_head(), b"".join(pieces))) as upstream:
        inside = together(UpstreamEngine(upstream.url).stream(PASSING, Cancel()))
    with ScriptedUpstream(in_turn(gate, *pieces)) as upstream:
        reader = Outside(UpstreamEngine(upstream.url), on_read=gate.release, on_end=lambda: gate.release(len(pieces)))
        assert together(reader.read()) == inside
    assert reader.short >= len(TEXTS) - 4  # the first one is learnt from, an empty one is read, and the next ones
    assert reader.inflow.shortcut is None


def test_chunks_that_are_there_together_go_by_the_shortcut_together() -> None:
    gate = threading.Semaphore(0)
    pieces = [chunk(HELLO[0]), *map(chunk, TEXTS[:4]), b"".join(map(chunk, TEXTS[:5])), chunk(STOP), chunk(DONE)]
    with ScriptedUpstream(in_turn(gate, *pieces, LAST_CHUNK)) as upstream:
        reader = Outside(UpstreamEngine(upstream.url), on_read=gate.release, on_end=lambda: gate.release(len(pieces)))
        read = reader.read()
    assert Passed(b"".join(TEXTS[:5])) in read
    finished = read[-1]
    assert isinstance(finished, Finished)
    assert finished.usage is not None and finished.usage.completion_tokens == 9


def test_no_shortcut_where_the_text_is_wanted_as_pieces() -> None:
    gate = threading.Semaphore(0)
    pieces = [chunk(HELLO[0]), *map(chunk, TEXTS), chunk(STOP), chunk(DONE), LAST_CHUNK]
    with ScriptedUpstream(in_turn(gate, *pieces)) as upstream:
        reader = Outside(UpstreamEngine(upstream.url), replace(PASSING, pieces=True), on_read=gate.release)
        reader.read()
    assert (reader.short, reader.waits > len(TEXTS)) == (0, True)


def test_a_reset_that_the_shortcut_met_is_told_as_one() -> None:
    gate, heard = threading.Semaphore(0), threading.Event()

    def script(peer: Peer) -> None:
        in_turn(gate, chunk(HELLO[0]), *map(chunk, TEXTS))(peer)
        assert heard.wait(DEADLINE_S)
        peer.reset()

    def on_read() -> None:
        gate.release()
        if reader.waits > len(TEXTS):
            heard.set()

    with ScriptedUpstream(script) as upstream:
        reader = Outside(UpstreamEngine(upstream.url), on_read=on_read)
        failed = reader.read()[-1]
    assert isinstance(failed, Failed)
    assert (failed.kind, "the connection broke" in failed.message) == (FailKind.DIED, True)
    assert failed.usage is not None and failed.usage.completion_tokens == len(TEXTS) - 1  # one of them is empty


def test_an_upstream_that_says_nothing_is_silent_after_the_time_that_was_waited_outside() -> None:
    with ScriptedUpstream(silent_after(sse_head(), chunk(HELLO[1]))) as upstream:
        reader = Outside(UpstreamEngine(upstream.url, silence_s=0.3), looks_s=0.05)
        failed = reader.read()[-1]
    assert isinstance(failed, Failed)
    assert failed.kind is FailKind.SILENT
    assert reader.waits > 1


def test_time_that_nobody_waited_is_no_silence() -> None:
    with ScriptedUpstream(silent_after(sse_head(), chunk(HELLO[1]))) as upstream:
        inflow, cancel = Inflow(), Cancel()
        events = UpstreamEngine(upstream.url, silence_s=NEVER_S).stream(replace(PASSING, inflow=inflow), cancel)
        assert any(isinstance(item, Passed) for item in events)
        inflow.outside = True
        assert [type(next(events)) for _ in range(1_000)] == [Tick] * 1_000  # at once, each
        inflow.waited_s += NEVER_S
        assert isinstance(next(events), Failed)
        assert list(events) == []


def test_a_cancel_is_seen_when_the_reader_looks() -> None:
    with ScriptedUpstream(silent_after(sse_head(), chunk(HELLO[1]))) as upstream:
        reader = Outside(UpstreamEngine(upstream.url), looks_s=0.01)
        threading.Timer(0.1, reader.cancel.cancel, ["operator"]).start()
        last = reader.read()[-1]
    assert isinstance(last, Cancelled)
    assert last.by == "operator"


def test_a_reader_may_begin_and_end_to_wait_itself_at_any_event() -> None:
    with ScriptedUpstream(bytewise) as upstream:
        engine = UpstreamEngine(upstream.url)
        inside = together(engine.stream(PASSING, Cancel()))
        inflow = Inflow()
        read: list[EngineEvent] = []
        for number, item in enumerate(engine.stream(replace(PASSING, inflow=inflow), Cancel())):
            read.append(item)
            inflow.outside = inflow.source is not None and number % 3 == 0
        assert together(read) == inside
        assert isinstance(read[-1], Finished)
        assert isinstance(read[0], Accepted | Tick)


def test_bytes_that_only_tls_knows_of_are_said_to_be_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    certificate = make_certificate(tmp_path_factory.mktemp("tls"))
    server, client = server_context(certificate), trusting_context(certificate)
    data = b"x" * (MIN_RECV_BYTES + 1)  # one record, which is read in two
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serves_once, args=(listener, server, data), daemon=True)
        thread.start()
        channel = Channel(Origin(True, "127.0.0.1", listener.getsockname()[1], ""), client, 0.02)
        for _ in channel.connect(DEADLINE_S):
            pass
        channel.inflow = inflow = Inflow()
        channel.send(b"x")
        while (first := channel.receive()) is None:
            pass
        assert (len(first), inflow.drained) == (MIN_RECV_BYTES, False)
        assert (channel.receive(), inflow.drained) == (b"x", True)
        channel.let_go()
        assert inflow.source is None
        channel.close()
        thread.join(DEADLINE_S)


def _serves_once(listener: socket.socket, context: ssl.SSLContext, data: bytes) -> None:
    end, _ = listener.accept()
    end.settimeout(DEADLINE_S)
    with context.wrap_socket(end, server_side=True) as secure:
        secure.recv(1)
        secure.sendall(data)
        secure.recv(1)
