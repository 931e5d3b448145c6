"""A request in an upstream's own Responses API over a real socket: what is sent, and how each answer ends."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from engine.api import Cancel, NativeRequest, TokenRequest
from engine.events import Accepted, Cancelled, EngineEvent, Failed, FailKind, Finished, Relayed, Tick, Usage
from engine.upstream import UpstreamEngine
from tests.e2e.relayed import BEGIN, ended, message, plays, response, says, sse, wire
from tests.scripted_upstream import LAST_CHUNK, Peer, Script, ScriptedUpstream, answer, chunk, sse_head

TEXT = [*BEGIN, *says("Hel", "lo"), *ended("completed", message("Hello"))]
ASK = NativeRequest("POST", "/responses", {"input": "hi", "odd": 1}, {"x-own": "yes"}, relays=True)
PAGE = NativeRequest("GET", "/responses/resp_1?include=x", names_response=True)
COUNTED = Usage(9, 7, 4, 2)


def run(
    script: Script,
    request: NativeRequest = ASK,
    pages: Mapping[str, bytes] | None = None,
    **options: object,
) -> tuple[list[EngineEvent], ScriptedUpstream]:
    with ScriptedUpstream(script, pages) as upstream:
        engine = UpstreamEngine(upstream.url, **options)  # type: ignore[arg-type] - options are the engine's own
        events: list[EngineEvent] = [event for event in engine.stream(request, Cancel()) if not isinstance(event, Tick)]
        engine.close()
    assert sum(isinstance(event, Finished | Failed | Cancelled) for event in events) == 1
    return events, upstream


def test_a_stream_is_asked_for_and_relayed() -> None:
    events, upstream = run(plays(*TEXT))
    (sent,) = upstream.requests
    assert (sent.method, sent.path, sent.headers["x-own"]) == ("POST", "/v1/responses", "yes")
    assert sent.json == {"input": "hi", "odd": 1, "stream": True}
    assert isinstance(events[0], Accepted)
    told = [one for event in events if isinstance(event, Relayed) for one in event.events]
    assert b"".join(one.raw for one in told) == wire(TEXT)
    assert events[-1] == Finished("stop", COUNTED)


def test_the_model_and_the_key_that_were_given_are_sent() -> None:
    _, upstream = run(plays(*TEXT), model="big", key="sk")
    (sent,) = upstream.requests
    assert (sent.json["model"], sent.headers["authorization"]) == ("big", "Bearer sk")


def test_the_requests_limit_and_the_servers_context_are_its_caps() -> None:
    limited = NativeRequest("POST", "/responses", {"max_output_tokens": 7}, relays=True)
    assert run(plays(*TEXT), limited)[0][-1] == Finished("length", COUNTED)
    full = [*TEXT[:-1], *ended("completed", message("Hello"), usage={"input_tokens": 4090, "output_tokens": 6})]
    with ScriptedUpstream(plays(*full)) as upstream:
        engine = UpstreamEngine(upstream.url)
        for reason in ("stop", "length"):
            terminal = list(engine.stream(ASK, Cancel()))[-1]
            assert isinstance(terminal, Finished)
            assert terminal.reason == reason
            engine.start()  # now it knows that there are 4096
        engine.close()


def test_a_page_is_given_as_it_came() -> None:
    body = json.dumps(response("queued")).encode()
    pages = {"/v1/responses/resp_1?include=x": answer(body)}
    events, upstream = run(plays(), PAGE, pages)
    assert events == [Accepted(), Finished("stop", raw=body)]
    (sent,) = upstream.requests
    assert (sent.method, sent.body) == ("GET", b"")


def test_a_question_that_is_refused_is_the_answer() -> None:
    for request in (PAGE, NativeRequest("DELETE", "/responses/resp_1"), ASK):
        script: Script = lambda peer: peer.send(answer(b'{"error": {"message": "no"}}', 404))  # noqa: E731 - one line
        (failed,) = run(script, request)[0]
        assert isinstance(failed, Failed)
        assert failed.kind is FailKind.REFUSED
        assert failed.message in ("no", "Not Found")
        assert failed.upstream is not None
        assert failed.upstream.status == 404


def silent(peer: Peer) -> None:
    peer.send(sse_head(), chunk(wire(TEXT[:4])))
    assert peer.wait_gone()


def beating(peer: Peer) -> None:
    peer.send(sse_head(), chunk(wire(BEGIN)))
    while not peer.gone.wait(0.02):
        peer.send(chunk(sse(BEGIN[1])))  # until it is left, which ends the script


@pytest.mark.parametrize("script", [silent, beating])
def test_silence_is_a_failure_also_with_heartbeats(script: Script) -> None:
    failed = run(script, silence_s=0.3)[0][-1]
    assert isinstance(failed, Failed)
    assert (failed.kind, "said nothing for 0.3 s" in failed.message) == (FailKind.SILENT, True)


def test_a_terminal_is_held_until_the_body_ends_or_nothing_more_comes() -> None:
    def late(peer: Peer) -> None:
        peer.send(sse_head(), chunk(wire(TEXT)), chunk(sse({"error": {"message": "gone"}}, "")), LAST_CHUNK)

    assert isinstance(run(late)[0][-1], Failed)

    def never(peer: Peer) -> None:
        peer.send(sse_head(), chunk(wire(TEXT)))
        assert peer.wait_gone()

    assert run(never)[0][-1] == Finished("stop", COUNTED)


def test_a_cancelled_answer_leaves_the_server_and_counts_what_was_made() -> None:
    cancel = Cancel()
    with ScriptedUpstream(silent) as upstream:
        engine = UpstreamEngine(upstream.url)
        events: list[EngineEvent] = []
        for event in engine.stream(ASK, cancel):
            events.append(event)
            if isinstance(event, Relayed):
                cancel.cancel("client")
        engine.close()
    assert events[-1] == Cancelled("client", Usage())


def test_token_ids_are_none_of_its_requests() -> None:
    engine = UpstreamEngine("http://127.0.0.1:9")
    (failed,) = engine.stream(TokenRequest((1,), 1), Cancel())
    assert isinstance(failed, Failed)
    assert failed.kind is FailKind.INTERNAL
