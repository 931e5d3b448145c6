"""One chat and the scripts of servers that answer it, well and badly; for the tests of the upstream engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from engine.api import Cancel, ChatRequest
from engine.events import (
    Accepted,
    Cancelled,
    EngineEvent,
    Failed,
    Finished,
    Text,
    Tick,
    Usage,
)
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
)

ASK = ChatRequest({"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "odd": {"kept": [1]}})
HELLO = [event(delta(role="assistant", content="")), event(delta(content="Hel")), event(delta(content="lo"))]
STOP = event(delta("stop"))
WHOLE = [*HELLO, STOP, DONE]

ANSWER: list[EngineEvent] = [Accepted(), Text("Hel"), Text("lo"), Finished("stop", Usage(0, 2))]


def events_of(engine: UpstreamEngine, request: ChatRequest = ASK, cancel: Cancel | None = None) -> list[EngineEvent]:
    """All events but the ticks."""
    return [item for item in engine.stream(request, cancel or Cancel()) if not isinstance(item, Tick)]


def run(script: Script, **options: object) -> list[EngineEvent]:
    with ScriptedUpstream(script) as upstream:
        engine = UpstreamEngine(upstream.url, **options)  # type: ignore[arg-type] - options are the engine's own
        events = events_of(engine)
        engine.close()
    assert sum(isinstance(item, Finished | Failed | Cancelled) for item in events) == 1
    return events


def failure_of(script: Script, **options: object) -> Failed:
    terminal = run(script, **options)[-1]
    assert isinstance(terminal, Failed), terminal
    return terminal


def cut_after(count: int, how: str) -> Script:
    """The stream breaks after `count` of its events."""

    def script(peer: Peer) -> None:
        peer.send(sse_head())
        peer.send_chunks(*[*HELLO, STOP][:count])
        if how == "clean":
            peer.send(LAST_CHUNK)
        elif how == "in the chunk":
            peer.send(chunk(STOP)[:9])
        elif how == "reset":
            seen.wait(DEADLINE_S)
            peer.reset()

    seen = threading.Event()
    script.seen = seen  # type: ignore[attr-defined] - the test's cue
    return script


def silent_after(*pieces: bytes, comments: bool = False) -> Script:
    def script(peer: Peer) -> None:
        peer.send(*pieces)
        if comments:
            while not peer.closing.is_set():
                peer.send(chunk(b": keep-alive\n\n"))  # until the client leaves, which ends the script
                peer.gone.wait(0.02)
        assert peer.wait_gone()

    return script


def first(items: Iterator[EngineEvent], kind: type, upstream: ScriptedUpstream | None = None) -> EngineEvent:
    """The first event of a kind, after the upstream has read the request (if it is given)."""
    return next(item for item in items if isinstance(item, kind) and (upstream is None or upstream.requests))
