"""Connections of the upstream engine: which are used again, and that none outlives the engine."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.api import Cancel, EngineStarting
from engine.events import Accepted, EngineEvent, Failed, Finished, Text, Usage
from engine.upstream import UpstreamEngine
from tests.scripted_upstream import DEADLINE_S, LAST_CHUNK, MODELS, answer, chunk, sse_head
from tests.unit.engine.chats import ANSWER, ASK, WHOLE, events_of, first
from tests.unit.engine.talks import Talk, TalkingServer

PAGE = answer(json.dumps(MODELS).encode())
CHAT = answer(b'{"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}')
CHAT_EVENTS: list[EngineEvent] = [Accepted(), Text("x"), Finished("stop", Usage(0, 1))]
STREAM = sse_head(connection="keep-alive", keep_alive="timeout=5, max=100") + b"".join(
    [*[chunk(piece) for piece in WHOLE], LAST_CHUNK]
)


def serving(chat: bytes) -> TalkingServer:
    def script(talk: Talk) -> None:
        while request := talk.read():
            talk.send(PAGE if request.method == "GET" else chat)

    return TalkingServer(script)


def test_questions_and_whole_answers_share_a_connection() -> None:
    with serving(CHAT) as server:
        engine = UpstreamEngine(server.url)
        engine.start()
        assert [events_of(engine), events_of(engine)] == [CHAT_EVENTS] * 2
        engine.start()
        engine.close()
    assert server.counts == [4]


def test_a_refusal_leaves_the_connection_to_the_next_request() -> None:
    with serving(answer(b'{"error": {"message": "slow down"}}', 429)) as server:
        engine = UpstreamEngine(server.url)
        assert all(isinstance(events_of(engine)[-1], Failed) for _ in range(3))
        engine.close()
    assert server.counts == [3]


def test_a_stream_may_use_a_kept_connection_but_leaves_none() -> None:
    with serving(STREAM) as server:
        engine = UpstreamEngine(server.url)
        engine.start()
        assert [events_of(engine), events_of(engine)] == [ANSWER] * 2
        engine.close()
    assert server.counts == [2, 1]


def test_a_server_that_closes_after_each_answer_costs_no_request() -> None:
    def script(talk: Talk) -> None:
        request = talk.read()
        assert request
        talk.send(PAGE if request.method == "GET" else CHAT)

    with TalkingServer(script) as server:
        engine = UpstreamEngine(server.url)
        engine.start()
        assert [events_of(engine) for _ in range(5)] == [CHAT_EVENTS] * 5
        engine.close()
    assert server.counts == [1] * 6


def test_a_server_that_closes_when_the_next_chat_comes_is_asked_again_and_answers_once() -> None:
    def script(talk: Talk) -> None:
        while request := talk.read():
            if talk.number == 0 and request.method == "POST":
                return
            talk.send(PAGE if request.method == "GET" else STREAM)

    with TalkingServer(script) as server:
        engine = UpstreamEngine(server.url)
        engine.start()
        assert events_of(engine) == ANSWER
        assert engine.alive()
        engine.close()
    posts = [request.json for talk in server.talks for request in talk.requests if request.method == "POST"]
    assert server.counts == [2, 1]
    assert posts[0] == posts[1]


def test_an_answer_over_a_kept_connection_that_is_left_closes_it() -> None:
    def script(talk: Talk) -> None:
        while request := talk.read():
            talk.send(PAGE if request.method == "GET" else sse_head() + chunk(WHOLE[1]))

    with TalkingServer(script) as server:
        engine = UpstreamEngine(server.url)
        engine.start()
        items = engine.stream(ASK, Cancel())
        first(items, Text)
        items.close()  # type: ignore[attr-defined] - engines give generators
        assert server.talks[0].closed.wait(DEADLINE_S)
        engine.close()
    assert server.counts == [2]


def test_a_closed_engine_keeps_no_connection() -> None:
    with serving(CHAT) as server:
        engine = UpstreamEngine(server.url)
        engine.start()
        engine.close()
        assert server.talks[0].closed.wait(DEADLINE_S)


def test_a_closed_engine_leaves_the_connection_that_is_in_use() -> None:
    asked = threading.Event()

    def script(talk: Talk) -> None:
        assert talk.read()
        asked.set()
        assert talk.read() is None

    with TalkingServer(script) as server:
        engine = UpstreamEngine(server.url)
        with pytest.raises(EngineStarting, match="the engine is closed"), ThreadPoolExecutor(1) as executor:
            starting = executor.submit(engine.start)
            assert asked.wait(DEADLINE_S)
            engine.close()
            starting.result(DEADLINE_S)
