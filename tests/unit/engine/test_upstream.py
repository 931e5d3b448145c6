"""The upstream engine over real sockets: requests, refusals, cuts, silence, cancellation, slots and health."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import cast

import pytest

from engine.api import Cancel, ChatRequest, EngineStarting, TokenRequest
from engine.events import (
    Accepted,
    Cancelled,
    EngineEvent,
    Failed,
    FailKind,
    Finished,
    Reasoning,
    Text,
    Tick,
    UpstreamError,
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
    answer,
    chunk,
    delta,
    event,
    head,
    sse_head,
    stream,
)

ASK = ChatRequest({"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "odd": {"kept": [1]}})
HELLO = [event(delta(role="assistant", content="")), event(delta(content="Hel")), event(delta(content="lo"))]
STOP = event(delta("stop"))
WHOLE = [*HELLO, STOP, DONE]


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


# --- the request -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "path"),
    [
        ("", "/v1/chat/completions"),
        ("/", "/v1/chat/completions"),
        ("/v1", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions"),
        ("/api", "/api/v1/chat/completions"),
        ("/openai/v1", "/openai/v1/chat/completions"),
        ("/v1beta", "/v1beta/chat/completions"),
    ],
)
def test_the_base_url_is_good_with_or_without_its_version(suffix: str, path: str) -> None:
    with ScriptedUpstream(stream(*WHOLE)) as upstream:
        events_of(UpstreamEngine(upstream.url + suffix))
    assert upstream.requests[0].path == path


def test_a_stream_with_usage_is_asked_for_and_every_field_passes() -> None:
    request = ChatRequest(
        dict(ASK.body) | {"model": "theirs", "stream": False, "stream_options": {"x": 1}},
        {"X-Trace": "7", "Host": "evil"},
    )
    with ScriptedUpstream(stream(*WHOLE)) as upstream:
        events_of(UpstreamEngine(upstream.url, key="k"), request)
    (sent,) = upstream.requests
    assert sent.json == dict(request.body) | {"stream": True, "stream_options": {"x": 1, "include_usage": True}}
    assert sent.headers["authorization"] == "Bearer k"
    assert sent.headers["x-trace"] == "7"
    assert sent.headers["host"] == f"127.0.0.1:{upstream.port}"


def test_a_configured_model_replaces_the_requests() -> None:
    with ScriptedUpstream(stream(*WHOLE)) as upstream:
        events_of(UpstreamEngine(upstream.url, model="ours"), ChatRequest(dict(ASK.body) | {"model": "theirs"}))
    assert upstream.requests[0].json["model"] == "ours"


def test_only_llama_is_asked_for_progress_and_counts() -> None:
    with ScriptedUpstream(stream(*WHOLE)) as upstream:
        events_of(UpstreamEngine(upstream.url, kind="llama"))
        events_of(UpstreamEngine(upstream.url))
    assert (upstream.requests[0].json["return_progress"], upstream.requests[0].json["timings_per_token"]) == (
        True,
        True,
    )
    assert not {"return_progress", "timings_per_token"} & upstream.requests[1].json.keys()


def test_half_surrogates_of_a_client_reach_the_upstream_escaped() -> None:
    with ScriptedUpstream(stream(*WHOLE)) as upstream:
        assert isinstance(events_of(UpstreamEngine(upstream.url), ChatRequest({"x": "\ud83d"}))[-1], Finished)
    assert b'"\\ud83d"' in upstream.requests[0].body


def test_a_header_that_cannot_be_sent_is_refused() -> None:
    request = ChatRequest(ASK.body, {"X": "a\nb"})
    (failed,) = events_of(UpstreamEngine("http://127.0.0.1:1"), request)
    assert isinstance(failed, Failed)
    assert failed.kind is FailKind.REFUSED


def test_token_ids_are_not_spoken() -> None:
    (failed,) = UpstreamEngine("http://127.0.0.1:1").stream(TokenRequest([1], 1), Cancel())
    assert isinstance(failed, Failed)


# --- answers -----------------------------------------------------------------------------------------

ANSWER: list[EngineEvent] = [Accepted(), Text("Hel"), Text("lo"), Finished("stop", Usage(0, 2))]


def until_close(peer: Peer) -> None:
    peer.send(head(200, content_type="text/event-stream"), *WHOLE)


FRAMINGS: dict[str, Script] = {
    "chunked": stream(*WHOLE),
    "one chunk": stream(b"".join(WHOLE)),
    "byte by byte": lambda peer: peer.send_byte_by_byte(sse_head() + chunk(b"".join(WHOLE)) + LAST_CHUNK),
    "chunks of one byte": stream(*[bytes([byte]) for byte in b"".join(WHOLE)]),
    "length": lambda peer: peer.send(answer(b"".join(WHOLE), content_type="text/event-stream; charset=utf-8")),
    "until the connection ends": until_close,
    "crlf": stream(*[piece.replace(b"\n", b"\r\n") for piece in WHOLE]),
    "no content type": lambda peer: peer.send(head(200), *WHOLE),
    "gzip": stream(gzip.compress(b"".join(WHOLE)), content_encoding="gzip"),
    "comments": stream(b": ping\n\n", *HELLO, b": ping\n\n", STOP, b": ping\n\n", DONE),
}


@pytest.mark.parametrize("name", FRAMINGS)
def test_a_stream_in_any_framing_gives_the_same_events(name: str) -> None:
    assert run(FRAMINGS[name]) == ANSWER


def test_a_server_that_ignores_stream_is_read_whole() -> None:
    body = {"choices": [{"message": {"reasoning_content": "hm", "content": "x"}, "finish_reason": "length"}]}
    assert run(lambda peer: peer.send(answer(json.dumps(body).encode()))) == [
        Accepted(),
        Reasoning("hm"),
        Text("x"),
        Finished("length", Usage(0, 1)),
    ]


def test_events_come_as_soon_as_they_are_there() -> None:
    cues = {"Hel": threading.Event(), "lo": threading.Event()}

    def script(peer: Peer) -> None:
        peer.send(sse_head())
        peer.send_chunks(*HELLO[:2])
        peer.wait(cues["Hel"])
        peer.send_chunks(HELLO[2])
        peer.wait(cues["lo"])
        peer.send_chunks(STOP, DONE, LAST_CHUNK)

    with ScriptedUpstream(script) as upstream:
        for item in UpstreamEngine(upstream.url).stream(ASK, Cancel()):
            if isinstance(item, Text):
                cues[item.text].set()  # the script goes on only when its last event has arrived here


def test_the_end_marker_ends_the_answer_although_the_upstream_keeps_the_connection() -> None:
    def script(peer: Peer) -> None:
        peer.send(sse_head())
        peer.send_chunks(*WHOLE)
        assert peer.wait_gone()

    assert run(script) == ANSWER


def test_an_upstream_that_says_no_more_after_the_finish_word_ends_in_bounded_time() -> None:
    def script(peer: Peer) -> None:
        peer.send(sse_head())
        peer.send_chunks(*HELLO, STOP)
        assert peer.wait_gone()

    assert run(script, silence_s=0.3) == ANSWER


# --- refusals ----------------------------------------------------------------------------------------

REFUSALS: dict[str, tuple[bytes, Failed]] = {
    "bad request": (
        answer(b'{"error": {"message": "bad n", "type": "invalid_request_error", "param": "n", "code": "range"}}', 400),
        Failed(FailKind.REFUSED, "bad n", upstream=UpstreamError(400, "invalid_request_error", "range", "n"))),
    "context": (
        answer(b'{"error": {"message": "too long", "type": "exceed_context_size_error", "code": 400}}', 400),
        Failed(FailKind.CONTEXT, "too long", upstream=UpstreamError(400, "exceed_context_size_error"))),
    "busy": (
        answer(b'{"error": "slow down"}', 429, retry_after="7"),
        Failed(FailKind.REFUSED, "slow down", upstream=UpstreamError(429, retry_after="7"))),
    "down": (
        answer(b"<html><body><h1>502 Bad Gateway</h1></body></html>", 502, "text/html"),
        Failed(FailKind.DIED, "the upstream answered 502: 502 Bad Gateway", upstream=UpstreamError(502))),
    "empty": (
        answer(b"", 503),
        Failed(FailKind.DIED, "the upstream answered 503: Status 503", upstream=UpstreamError(503))),
    "cut": (
        head(500, content_length="100") + b'{"error": "bo',
        Failed(FailKind.DIED, 'the upstream answered 500: {"error": "bo', upstream=UpstreamError(500))),
    "as a stream": (
        head(400, content_type="text/event-stream") + b'{"error": {"message": "bad"}}',
        Failed(FailKind.REFUSED, "bad", upstream=UpstreamError(400))),
    "redirect": (
        head(307, location="http://elsewhere/", content_length="0"),
        Failed(FailKind.PROTOCOL, "the upstream answered 307, a redirect; give the URL of the server itself")),
    "a page": (
        answer(b"<html>log in</html>", 200, "text/html"),
        Failed(FailKind.PROTOCOL, "the upstream answered 'text/html' instead of a stream")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_not_accepted_and_keeps_what_the_upstream_said(name: str) -> None:
    data, failed = REFUSALS[name]
    assert run(lambda peer: peer.send(data)) == [failed]


def test_a_refusal_whose_body_never_ends_is_told_with_what_came() -> None:
    def script(peer: Peer) -> None:
        peer.send(head(500, content_length="1000"), b'{"error": "boom"}')
        assert peer.wait_gone()

    assert failure_of(script, silence_s=0.3).message == "the upstream answered 500: boom"


def test_a_refusal_with_an_endless_body_is_bounded() -> None:
    def script(peer: Peer) -> None:
        peer.send(head(500))
        while True:
            peer.send(b"x" * 65536)  # until the client leaves, which ends the script

    assert len(failure_of(script).message) < 400


# --- bad ends ----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("how", ["closed", "in the chunk", "reset", "clean"])
@pytest.mark.parametrize("count", range(5))
def test_a_stream_cut_at_any_event_is_finished_only_after_the_finish_word(count: int, how: str) -> None:
    script = cut_after(count, how)
    expected = [Text("Hel"), Text("lo")][: max(count - 1, 0)]
    events: list[EngineEvent] = []
    with ScriptedUpstream(script) as upstream:
        for item in UpstreamEngine(upstream.url).stream(ASK, Cancel()):
            if not isinstance(item, Tick):
                events.append(item)
            if len(events) == 1 + len(expected):  # a reset may overtake what was sent before it
                cast("threading.Event", script.seen).set()  # type: ignore[attr-defined] - see above
    *pieces, terminal = events
    assert pieces[1:] == expected
    if count == 4:
        assert terminal == Finished("stop", Usage(0, 2))
        return
    assert isinstance(terminal, Failed)
    assert terminal.kind is FailKind.DIED
    assert terminal.usage == Usage(0, len(expected))
    words = {
        "closed": "the upstream: the connection was closed in the middle of the answer",
        "in the chunk": "the upstream: the connection was closed in the middle of the answer",
        "reset": "the upstream: the connection broke: Connection reset",
        "clean": "the upstream ended the stream without a finish_reason",
    }
    assert words[how] in terminal.message


def test_no_answer_at_all() -> None:
    failed = failure_of(lambda peer: None)
    assert (failed.kind, failed.message) == (FailKind.DIED, "the upstream: the connection was closed without an answer")


def test_bad_gzip_after_good_text_is_a_failure_with_the_text_kept() -> None:
    good = gzip.compress(b"".join(HELLO))[:-8]

    def script(peer: Peer) -> None:
        peer.send(sse_head(content_encoding="gzip"))
        peer.send_chunks(good, b"\0" * 50, LAST_CHUNK)

    events = run(script)
    assert events[:3] == ANSWER[:3]
    assert isinstance(events[-1], Failed)
    assert events[-1].kind is FailKind.PROTOCOL
    assert "gzip body is damaged" in events[-1].message


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (event({"error": {"message": "gpu lost", "type": "oom"}}), FailKind.DIED, "the upstream failed: gpu lost"),
        (event({"message": "gpu lost"}, field_name=b"error: "), FailKind.DIED, "the upstream failed: gpu lost"),
        (b'{"error": {"message": "gpu lost"}}\n', FailKind.DIED, "the upstream failed: gpu lost"),
        (b"data: {oops\n\n", FailKind.PROTOCOL, "the upstream broke the protocol: its data is not JSON: '{oops'"),
        (event(delta("abort")), FailKind.PROTOCOL, "unknown finish word 'abort'"),
    ],
)
@pytest.mark.parametrize("end", [[DONE, LAST_CHUNK], [LAST_CHUNK], []])
def test_an_error_in_the_stream_is_told_however_the_stream_ends(
    data: bytes, kind: FailKind, message: str, end: list[bytes]
) -> None:
    def script(peer: Peer) -> None:
        peer.send(sse_head())
        peer.send_chunks(*HELLO, data, *end)

    events = run(script)
    assert events[:-1] == ANSWER[:-1]
    assert isinstance(events[-1], Failed)
    assert (events[-1].kind, events[-1].message) == (kind, message)


def test_an_endless_event_is_a_failure() -> None:
    def script(peer: Peer) -> None:
        peer.send(head(200, content_type="text/event-stream"), b"data: ")
        while True:
            peer.send(b"x" * (1 << 20))

    failed = failure_of(script)
    assert failed.kind is FailKind.PROTOCOL
    assert "longer than" in failed.message


# --- silence -----------------------------------------------------------------------------------------


def silent_after(*pieces: bytes, comments: bool = False) -> Script:
    def script(peer: Peer) -> None:
        peer.send(*pieces)
        if comments:
            while not peer.closing.is_set():
                peer.send(chunk(b": keep-alive\n\n"))  # until the client leaves, which ends the script
                peer.gone.wait(0.02)
        assert peer.wait_gone()

    return script


@pytest.mark.parametrize("comments", [False, True])
def test_an_upstream_without_data_is_silent_whatever_it_comments(comments: bool) -> None:
    script = silent_after(sse_head(), *[chunk(piece) for piece in HELLO], comments=comments)
    events = run(script, silence_s=0.3)
    assert events[:-1] == ANSWER[:-1]
    assert events[-1] == Failed(FailKind.SILENT, "the upstream said nothing for 0.3 s", Usage(0, 2))


def test_an_upstream_that_never_answers_is_silent() -> None:
    assert run(silent_after(), silence_s=60, first_byte_s=0.3) == [
        Failed(FailKind.SILENT, "the upstream sent nothing for 0.3 s")
    ]


def test_a_json_answer_that_never_ends_is_silent() -> None:
    script = silent_after(head(200, content_type="application/json", content_length="99"), b'{"choices"')
    assert isinstance(failed := run(script, silence_s=0.3)[-1], Failed)
    assert failed.kind is FailKind.SILENT


class Clock:
    """A monotonic clock that stands still unless the test moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def test_a_reader_that_takes_its_time_is_not_the_upstreams_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("engine.upstream_call.time", clock)
    events: list[EngineEvent] = []
    with ScriptedUpstream(stream(*WHOLE)) as upstream:
        for item in UpstreamEngine(upstream.url, silence_s=1).stream(ASK, Cancel()):
            events.append(item)
            clock.now_s += 100.0  # the reader was busy elsewhere for that long
    assert events[-1] == ANSWER[-1]


# --- cancellation ------------------------------------------------------------------------------------


def first(items: Iterator[EngineEvent], kind: type, upstream: ScriptedUpstream | None = None) -> EngineEvent:
    """The first event of a kind, after the upstream has read the request (if it is given)."""
    return next(item for item in items if isinstance(item, kind) and (upstream is None or upstream.requests))


WAITS: dict[str, tuple[Script, type]] = {
    "before the head": (silent_after(), Tick),
    "after the head": (silent_after(sse_head()), Accepted),
    "in the text": (silent_after(sse_head(), chunk(HELLO[1])), Text),
    "in a refusal": (silent_after(head(500, content_length="9")), Tick),
}


def watched(script: Script) -> tuple[Script, threading.Event]:
    gone = threading.Event()

    def watch(peer: Peer) -> None:
        try:
            script(peer)
        finally:
            gone.set()

    return watch, gone


@pytest.mark.parametrize("where", WAITS)
def test_a_cancelled_answer_ends_as_cancelled_and_the_upstream_is_left(where: str) -> None:
    script, kind = WAITS[where]
    script, gone = watched(script)
    with ScriptedUpstream(script) as upstream:
        cancel = Cancel()
        items = UpstreamEngine(upstream.url).stream(ASK, cancel)
        first(items, kind, upstream)
        cancel.cancel("operator")
        rest = [item for item in items if not isinstance(item, Tick)]
        assert gone.wait(DEADLINE_S)
    assert len(rest) == 1
    assert isinstance(rest[0], Cancelled)
    assert rest[0].by == "operator"
    assert rest[0].usage == {"after the head": Usage(), "in the text": Usage(0, 1)}.get(where)


@pytest.mark.parametrize("where", WAITS)
def test_a_closed_iterator_closes_the_connection(where: str) -> None:
    script, kind = WAITS[where]
    script, gone = watched(script)
    with ScriptedUpstream(script) as upstream:
        engine = UpstreamEngine(upstream.url)
        items = engine.stream(ASK, Cancel())
        first(items, kind, upstream)
        items.close()  # type: ignore[attr-defined] - engines give generators
        assert gone.wait(DEADLINE_S)
        assert engine.status().active == 0


def test_a_cancel_that_is_set_already_asks_nothing() -> None:
    cancel = Cancel()
    cancel.cancel("client")
    with ScriptedUpstream(stream(*WHOLE)) as upstream:
        assert events_of(UpstreamEngine(upstream.url), cancel=cancel) == [Cancelled("client")]
    assert upstream.requests == []


def test_it_ticks_while_the_upstream_is_quiet() -> None:
    with ScriptedUpstream(silent_after(sse_head())) as upstream:
        items = UpstreamEngine(upstream.url).stream(ASK, Cancel())
        first(items, Accepted)
        assert [next(items) for _ in range(3)] == [Tick()] * 3
        items.close()  # type: ignore[attr-defined] - engines give generators


# --- slots -------------------------------------------------------------------------------------------


def test_no_more_run_than_there_are_slots_and_the_next_one_ticks() -> None:
    with ScriptedUpstream(silent_after(sse_head())) as upstream:
        engine = UpstreamEngine(upstream.url, slots=1)
        one, two = engine.stream(ASK, Cancel()), engine.stream(ASK, Cancel())
        first(one, Accepted)
        assert [next(two) for _ in range(2)] == [Tick()] * 2
        assert (len(upstream.requests), engine.status().active) == (1, 1)
        one.close()  # type: ignore[attr-defined] - engines give generators
        first(two, Accepted)
        two.close()  # type: ignore[attr-defined] - engines give generators


def test_a_waiting_request_can_be_cancelled() -> None:
    with ScriptedUpstream(silent_after(sse_head())) as upstream:
        engine, cancel = UpstreamEngine(upstream.url, slots=1), Cancel()
        one, two = engine.stream(ASK, Cancel()), engine.stream(ASK, cancel)
        first(one, Accepted)
        next(two)
        cancel.cancel("deadline")
        assert list(two)[-1] == Cancelled("deadline")
        one.close()  # type: ignore[attr-defined] - engines give generators
    assert len(upstream.requests) == 1


def test_a_failed_answer_frees_its_slot() -> None:
    with ScriptedUpstream(cut_after(1, "closed")) as upstream:
        engine = UpstreamEngine(upstream.url, slots=1)
        for _ in range(3):
            assert isinstance(events_of(engine)[-1], Failed)
        upstream.chat = stream(*WHOLE)
        assert events_of(engine) == ANSWER


def test_many_answers_at_once_are_not_mixed() -> None:
    def script(peer: Peer) -> None:
        name = str(peer.request.json["name"])
        peer.send(sse_head())
        peer.send_chunks(*[event(delta(content=name)) for _ in range(20)], STOP, DONE, LAST_CHUNK)

    texts: dict[str, str] = {}
    with ScriptedUpstream(script) as upstream:
        engine = UpstreamEngine(upstream.url)

        def ask(name: str) -> None:
            items = events_of(engine, ChatRequest({"name": name}))
            texts[name] = "".join(item.text for item in items if isinstance(item, Text))

        threads = [threading.Thread(target=ask, args=(f"<{i}>",)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert texts == {f"<{i}>": f"<{i}>" * 20 for i in range(12)}


# --- reachable or not --------------------------------------------------------------------------------


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_an_upstream_that_is_not_there_is_named() -> None:
    port = unused_port()
    engine = UpstreamEngine(f"http://127.0.0.1:{port}")
    message = f"cannot connect to 127.0.0.1:{port}: Connection refused"
    assert events_of(engine) == [Failed(FailKind.NOT_STARTED, message)]
    assert (engine.alive(), engine.status().state, engine.status().last_death) == (False, "unreachable", message)
    engine.close()


def test_start_learns_the_model_and_its_context() -> None:
    with ScriptedUpstream(stream(*WHOLE)) as upstream:
        engine = UpstreamEngine(upstream.url, slots=3)
        assert (engine.facts.model, engine.facts.max_context) == (f"127.0.0.1:{upstream.port}", None)
        engine.start()
        assert (engine.facts.kind, engine.facts.model, engine.facts.max_context) == ("upstream", "m", 4096)
        assert (engine.facts.speaks, engine.facts.slots) == ("chat", 3)
        assert (engine.alive(), engine.status().state) == (True, "ready")
        engine.close()


def models(*cards: dict[str, object]) -> bytes:
    return answer(json.dumps({"data": cards}).encode())


PAGES: dict[str, tuple[dict[str, bytes], str | None, str, int | None]] = {
    "ours among several": (
        {"/v1/models": models({"id": "a", "max_model_len": 1}, {"id": "b", "max_model_len": 2})}, "b", "b", 2),
    "llama.cpp": (
        {"/v1/models": models({"id": "a", "owned_by": "llamacpp", "meta": {"n_ctx": 512}})}, None, "a", 512),
    "old llama.cpp": (
        {"/v1/models": models({"id": "a", "owned_by": "llamacpp", "meta": None}),
         "/props": answer(b'{"default_generation_settings": {"n_ctx": 256}}')}, None, "a", 256),
    "old llama.cpp that hides it": ({"/v1/models": models({"id": "a", "owned_by": "llamacpp"})}, None, "a", None),
    "no such page": ({"/v1/models": answer(b"", 404)}, "ours", "ours", None),
    "no json": ({"/v1/models": answer(b"<html>")}, "ours", "ours", None),
    "odd shapes": ({"/v1/models": answer(b'{"data": [7, {"id": 3}]}')}, "ours", "ours", None),
    "no models": ({"/v1/models": models()}, "ours", "ours", None),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_facts_of_servers_of_all_kinds(name: str) -> None:
    pages, model, known_as, context = PAGES[name]
    with ScriptedUpstream(stream(*WHOLE), pages) as upstream:
        engine = UpstreamEngine(upstream.url, model=model)
        engine.start()
        assert (engine.facts.model, engine.facts.max_context) == (known_as, context)
        engine.close()


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (answer(b'{"error": {"message": "Invalid API Key"}}', 401), "it answered 401: Invalid API Key"),
        (answer(b'{"error": {"message": "Loading model"}}', 503), "it answered 503: Loading model"),
        (b"SSH-2.0\r\n\r\n", "the answer is not HTTP"),
        (b"", "the connection was closed without an answer"),
    ],
)
def test_start_says_why_an_upstream_is_not_usable(page: bytes, reason: str) -> None:
    with ScriptedUpstream(stream(*WHOLE), {"/v1/models": page}) as upstream:
        engine = UpstreamEngine(upstream.url)
        with pytest.raises(EngineStarting) as caught:
            engine.start()
        assert f"http://127.0.0.1:{upstream.port}/v1 is not usable: {reason}" in str(caught.value)
        assert not engine.alive()
        engine.close()


def test_start_names_an_upstream_that_is_not_there() -> None:
    port = unused_port()
    with pytest.raises(EngineStarting, match=f"http://127.0.0.1:{port}/v1 is not usable: .*Connection refused"):
        UpstreamEngine(f"http://127.0.0.1:{port}").start()


def test_the_key_is_not_in_any_message() -> None:
    engine = UpstreamEngine(f"http://127.0.0.1:{unused_port()}", key="secret-key")
    with pytest.raises(EngineStarting) as caught:
        engine.start()
    assert "secret-key" not in str(caught.value) + repr(events_of(engine)) + repr(engine.status())
    engine.close()


def until(condition: Callable[[], bool]) -> bool:
    """Whether a state that another thread brings about came within the deadline."""
    pause = threading.Event()
    return any(condition() or pause.wait(0.02) for _ in range(int(DEADLINE_S / 0.02))) or condition()


def test_health_follows_an_upstream_that_comes_back_without_a_request() -> None:
    port = unused_port()
    engine = UpstreamEngine(f"http://127.0.0.1:{port}")
    assert isinstance(events_of(engine)[-1], Failed)
    assert not engine.alive()
    upstream = ScriptedUpstream(stream(*WHOLE), port=port)
    with upstream:
        assert until(engine.alive)
        assert events_of(engine) == ANSWER
        engine.close()


def test_a_closed_engine_ends_what_runs_and_takes_no_more() -> None:
    with ScriptedUpstream(silent_after(sse_head())) as upstream:
        engine = UpstreamEngine(upstream.url)
        items = engine.stream(ASK, Cancel())
        first(items, Accepted)
        engine.close()
        engine.close()
        assert list(items)[-1] == Failed(FailKind.NOT_STARTED, "the engine is closed")
        assert events_of(engine) == [Failed(FailKind.NOT_STARTED, "the engine is closed")]
        with pytest.raises(EngineStarting, match="closed"):
            engine.start()
    assert len(upstream.requests) == 1


def test_a_bad_url_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        UpstreamEngine("localhost:8000")


def test_no_thread_and_no_descriptor_is_left() -> None:
    import psutil

    process = psutil.Process()
    down: Script = lambda peer: peer.send(REFUSALS["down"][0])  # noqa: E731 - it fits the list
    scripts: list[Script] = [stream(*WHOLE), cut_after(2, "closed"), stream(*HELLO), down]
    counts: list[tuple[int, int]] = []
    for _ in range(3):
        for script in scripts:
            run(script)
        counts.append((process.num_fds() if hasattr(process, "num_fds") else 0, threading.active_count()))
    assert all(one == other for one, other in pairwise(counts)), counts
