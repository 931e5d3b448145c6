"""One answer over a real socket: refusals, cuts, silence, cancellation."""

from __future__ import annotations

import gzip
import json
import threading
from dataclasses import replace
from typing import cast

import pytest

from engine.api import Cancel, ChatRequest
from engine.events import (
    Accepted,
    Cancelled,
    EngineEvent,
    Failed,
    FailKind,
    Finished,
    Passed,
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
from tests.unit.engine.chats import (
    ANSWER,
    ASK,
    HELLO,
    STOP,
    WHOLE,
    cut_after,
    events_of,
    failure_of,
    first,
    run,
    silent_after,
)

# --- refusals -----------------------------------------------------------------------------------------

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
        Failed(FailKind.ERR, "the upstream answered 502: 502 Bad Gateway", upstream=UpstreamError(502))),
    "empty": (
        answer(b"", 503),
        Failed(FailKind.ERR, "the upstream answered 503: Status 503", upstream=UpstreamError(503))),
    "cut": (
        head(500, content_length="100") + b'{"error": "bo',
        Failed(FailKind.ERR, 'the upstream answered 500: {"error": "bo', upstream=UpstreamError(500))),
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


# --- bad ends -----------------------------------------------------------------------------------------


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


# --- what passes --------------------------------------------------------------------------------------

STREAM = replace(ASK, form="stream")


def passing(script: Script, request: ChatRequest = STREAM, **options: object) -> list[EngineEvent]:
    with ScriptedUpstream(script) as upstream:
        return events_of(UpstreamEngine(upstream.url, **options), request)  # type: ignore[arg-type] - the engine's own


def wire_of(events: list[EngineEvent]) -> bytes:
    return b"".join(item.raw for item in events if isinstance(item, Passed | Finished))


@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_a_stream_passes_byte_for_byte(coding: str) -> None:
    pieces = WHOLE if coding == "identity" else [gzip.compress(b"".join(WHOLE))]
    events = passing(stream(*pieces, content_encoding=coding))
    assert wire_of(events) == b"".join(WHOLE)
    assert events[0] == Accepted()
    assert isinstance(events[-1], Finished)
    assert events[-1].usage == Usage(0, 2)


def test_a_whole_body_is_made_of_a_stream() -> None:
    (*_, end) = passing(stream(*WHOLE), replace(ASK, form="whole"))
    assert isinstance(end, Finished)
    body = json.loads(end.raw)
    assert (body["object"], body["choices"][0]["message"]["content"]) == ("chat.completion", "Hello")


def test_only_who_gets_the_stream_itself_decides_about_its_counts() -> None:
    options = {"stream_options": {"include_usage": False}}
    asked: list[object] = []
    with ScriptedUpstream(stream(*WHOLE)) as upstream:
        for form in ("stream", "whole", "pieces"):
            request = ChatRequest({**ASK.body, **options}, form=form)
            events_of(UpstreamEngine(upstream.url, kind="llama"), request)
            sent = upstream.requests[-1].json
            asked.append((sent["stream"], sent["stream_options"], "timings_per_token" in sent, sent["return_progress"]))
    assert asked == [(True, {"include_usage": form > 0}, form > 0, True) for form in range(3)]


def test_a_stream_that_is_called_json_is_a_stream() -> None:
    events = passing(lambda peer: peer.send(answer(b"".join(WHOLE))))
    assert wire_of(events) == b"".join(WHOLE)
    assert run(lambda peer: peer.send(answer(b"".join(WHOLE)))) == ANSWER


def test_the_headers_that_a_client_should_see_come_with_the_first_event() -> None:
    headers = {"x_request_id": "r7", "x_ratelimit_remaining_requests": "3", "openai_processing_ms": "5", "server": "s"}
    events = passing(stream(*WHOLE, **headers))
    expected = (("x-request-id", "r7"), ("x-ratelimit-remaining-requests", "3"), ("openai-processing-ms", "5"))
    assert events[0] == Accepted(expected)
    (failed,) = passing(lambda peer: peer.send(answer(b"{}", 429, retry_after="9", x_ratelimit_reset="1")))
    assert isinstance(failed, Failed)
    assert failed.upstream == UpstreamError(429, retry_after="9", headers=(("x-ratelimit-reset", "1"),))


# --- after the end marker -----------------------------------------------------------------------------

LATE = event({"error": {"message": "late"}})


@pytest.mark.parametrize("request_", [ASK, STREAM], ids=["pieces", "stream"])
@pytest.mark.parametrize("together", [True, False])
def test_an_error_after_the_end_marker_is_a_failure_if_it_comes_before_the_end_of_the_body(
    request_: ChatRequest, together: bool
) -> None:
    pieces = [*HELLO, STOP, b"".join([DONE, LATE])] if together else [*HELLO, STOP, DONE, LATE]
    events = passing(stream(*pieces), request_)
    assert events[-1] == Failed(FailKind.DIED, "the upstream failed: late", Usage(0, 2), UpstreamError(200))
    assert b"stop" not in wire_of(events)


@pytest.mark.parametrize("request_", [ASK, STREAM], ids=["pieces", "stream"])
@pytest.mark.parametrize("after", [b"", b": ping\n\n", b"data: \n\n"])
def test_nobody_waits_long_for_the_end_of_the_body_after_the_end_marker(request_: ChatRequest, after: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.send(sse_head())
        peer.send_chunks(*WHOLE)
        while after and not peer.gone.wait(0.02):
            peer.send(chunk(after))  # until the client leaves, which ends the script
        assert peer.wait_gone()

    events = passing(script, request_)
    assert isinstance(events[-1], Finished)


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_body_that_is_cut_after_the_end_marker_is_whole_all_the_same(how: str) -> None:
    sent, cue = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.send(sse_head())
        peer.send_chunks(*WHOLE)
        sent.set()
        peer.wait(cue)
        if how == "reset":
            peer.reset()

    events: list[EngineEvent] = []
    all_sent = False
    with ScriptedUpstream(script) as upstream:
        for item in UpstreamEngine(upstream.url).stream(STREAM, Cancel()):
            events.append(item)
            if all_sent:  # and by now read: a reset may overtake what was sent before it
                cue.set()
            all_sent = sent.is_set()
    assert wire_of(events) == b"".join(WHOLE)


# --- silence ------------------------------------------------------------------------------------------


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


# --- cancellation -------------------------------------------------------------------------------------


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
