"""A request in the older API over a real socket: what is sent, how it ends, and what a failure says of the server."""

from __future__ import annotations

from engine.api import Cancel, CompletionRequest
from engine.events import Accepted, Cancelled, EngineEvent, Failed, FailKind, Finished, OfChoice, Text, Tick, Usage
from engine.pool_member import Delays, Member, candidates, goes_elsewhere, is_its_own
from engine.upstream import UpstreamEngine
from tests.scripted_upstream import DONE, Peer, Script, ScriptedUpstream, answer, chunk, event, sse_head, stream

ASK = CompletionRequest({"prompt": "hi", "model": "small", "odd": 1, "stream": False}, {"x-own": "yes"})


def text(said: str, word: str | None = None, index: int = 0) -> bytes:
    return event({"choices": [{"text": said, "index": index, "finish_reason": word}]})


def run(
    script: Script, request: CompletionRequest = ASK, cancel: Cancel | None = None, **options: object
) -> tuple[list[EngineEvent], ScriptedUpstream]:
    cancel = cancel or Cancel()
    with ScriptedUpstream(script) as upstream:
        engine = UpstreamEngine(upstream.url, **options)  # type: ignore[arg-type] - options are the engine's own
        events: list[EngineEvent] = []
        for one in engine.stream(request, cancel):
            if not isinstance(one, Tick):
                events.append(one)
            if isinstance(one, Text) and one.text == "leave":
                cancel.cancel("client")
        engine.close()
    assert sum(isinstance(one, Finished | Failed | Cancelled) for one in events) == 1
    return events, upstream


def test_a_stream_with_its_counts_is_asked_for_and_read() -> None:
    events, upstream = run(stream(text("Hel"), text("lo", "stop"), DONE))
    (sent,) = upstream.requests
    assert (sent.method, sent.path, sent.headers["x-own"]) == ("POST", "/v1/completions", "yes")
    common = {"stream": True, "stream_options": {"include_usage": True}}
    assert sent.json == {"prompt": "hi", "model": "small", "odd": 1, **common}
    assert events == [Accepted(), Text("Hel"), Text("lo"), Finished("stop", Usage(0, 2))]


def test_the_model_and_the_key_that_were_given_are_sent_and_llama_cpp_is_asked_for_progress() -> None:
    _, upstream = run(stream(text("a", "stop")), model="big", key="sk", kind="llama")
    (sent,) = upstream.requests
    assert (sent.json["model"], sent.headers["authorization"]) == ("big", "Bearer sk")
    assert (sent.json["return_progress"], sent.json["timings_per_token"]) == (True, True)


def test_several_choices_are_told_apart() -> None:
    request = CompletionRequest({"prompt": "hi", "n": 2}, choices=2)
    events, _ = run(stream(text("b", "stop", 1), text("a", "length")), request)
    assert events[1:3] == [OfChoice(1, Text("b")), OfChoice(0, Text("a"))]
    assert events[-1] == Finished("length", Usage(0, 2))


def silent(peer: Peer) -> None:
    peer.send(sse_head(), chunk(text("leave" if peer.request.json["prompt"] == "leave" else "a")))
    assert peer.wait_gone()


def test_silence_is_a_failure_and_a_client_that_leaves_ends_it() -> None:
    failed = run(silent, silence_s=0.3)[0][-1]
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.usage) == (FailKind.SILENT, Usage(0, 1))
    events, _ = run(silent, CompletionRequest({"prompt": "leave"}))
    assert events[-1] == Cancelled("client", Usage(0, 1))


def refused(status: int) -> Failed:
    (failed,) = run(lambda peer: peer.send(answer(b'{"error": {"message": "no"}}', status)))[0]
    assert isinstance(failed, Failed)
    return failed


def test_a_server_without_the_older_api_is_not_taken_for_sick() -> None:
    engine = UpstreamEngine("http://127.0.0.1:9")
    member = Member("it", engine, Delays())
    assert not is_its_own(refused(404), member, ASK)
    assert not goes_elsewhere(refused(404), ASK)
    for status in (401, 503, 429):
        assert is_its_own(refused(status), member, ASK)
    for status in (503, 429):
        assert goes_elsewhere(refused(status), ASK)
    assert candidates([member], ASK, []) == [member]
    engine.close()
