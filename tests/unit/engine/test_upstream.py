"""The upstream engine: requests, answers, slots, health."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest

from engine.api import Cancel, ChatRequest, EngineStarting, TokenRequest
from engine.events import (
    Accepted,
    Cancelled,
    Failed,
    FailKind,
    Finished,
    Reasoning,
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
    first,
    run,
    silent_after,
)

# --- the request --------------------------------------------------------------------------------------


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


# --- answers ------------------------------------------------------------------------------------------


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


# --- slots --------------------------------------------------------------------------------------------


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


# --- reachable or not ---------------------------------------------------------------------------------


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


NAMES: dict[str, tuple[bytes, str | None, tuple[str, ...]]] = {
    "several": (models({"id": "a"}, {"id": "b"}, {"id": "a"}), None, ("a", "b")),
    "aliases": (models({"id": "a", "aliases": ["x", "y", 7, ""]}), None, ("a", "x", "y")),
    "a configured one replaces every name": (models({"id": "a"}, {"id": "b"}), "b", ("b",)),
    "odd shapes": (answer(b'{"data": [7, {"id": 3, "aliases": "x"}]}'), None, ()),
    "no such page": (answer(b"", 404), None, ()),
}


@pytest.mark.parametrize("name", NAMES)
def test_facts_name_the_models_that_a_request_may_use(name: str) -> None:
    page, model, expected = NAMES[name]
    with ScriptedUpstream(stream(*WHOLE), {"/v1/models": page}) as upstream:
        engine = UpstreamEngine(upstream.url, model=model)
        assert engine.facts.models == ()
        engine.start()
        assert engine.facts.models == expected
        engine.close()


@pytest.mark.parametrize(("owner", "asked"), [("llamacpp", True), ("vllm", True), ("openai", False), (None, False)])
def test_health_is_asked_only_where_it_says_more_than_the_models(owner: str | None, asked: bool) -> None:
    pages = {
        "/base/v1/models": models({"id": "a", "owned_by": owner, "meta": {"n_ctx": 512}}),
        "/base/health": answer(b'{"error": {"message": "Loading model"}}', 503),
    }
    with ScriptedUpstream(stream(*WHOLE), pages) as upstream:
        engine = UpstreamEngine(f"{upstream.url}/base/v1")
        if asked:
            with pytest.raises(EngineStarting, match="not usable: its /health answered 503: Loading model"):
                engine.start()
        else:
            engine.start()
        assert (engine.alive(), engine.facts.models) == (not asked, ("a",))
        upstream.pages["/base/health"] = answer(b"", 404)
        engine.start()
        assert engine.alive()
        engine.close()
    assert ("/base/health" in [request.path for request in upstream.requests]) is asked


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
        assert engine.alive()
        engine.close()
        engine.close()
        assert not engine.alive()
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
    down: Script = lambda peer: peer.send(answer(b"down", 502))  # noqa: E731 - it fits the list
    scripts: list[Script] = [stream(*WHOLE), cut_after(2, "closed"), stream(*HELLO), down]
    counts: list[tuple[int, int]] = []
    for _ in range(3):
        for script in scripts:
            run(script)
        counts.append((process.num_fds() if hasattr(process, "num_fds") else 0, threading.active_count()))
    assert all(one == other for one, other in pairwise(counts)), counts
