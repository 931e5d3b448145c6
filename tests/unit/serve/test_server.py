"""A fault of ours in the middle of an answer: it is told as far as it can be, and what is kept says that it failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.api import Cancel, EngineInfo, EngineRequest, EngineStatus
from engine.events import Accepted, EngineEvent, Failed, FailKind, Finished, Text, ToolCallArgs, Usage
from serve.entries import Ended
from serve.lane import Lane
from serve.server import CATCH_UP_S, Server, serve
from serve.service import Service
from serve.store import Store
from tests.e2e.client import Connection, ask, chat, fetch
from tests.e2e.grammar import check_chat_stream

RESPONSES, CHATS = "/v1/responses", "/v1/chat/completions"
UNKNOWN_CALL = (Accepted(), Text("Hel"), ToolCallArgs(3, "{}"), Finished("stop", Usage(1, 2)))
"""A piece of a call that never began: no encoder of ours can tell it."""
NO_NUMBER = (Accepted(), Text("Hel"), Text("lo", {"a": float("nan")}), Finished("stop", Usage(1, 2)))


class WrongEngine:
    """An engine that breaks the rules of its own boundary."""

    facts = EngineInfo(kind="upstream", model="wrong", speaks="chat", slots=1, max_context=None)

    def __init__(self) -> None:
        self.events: tuple[EngineEvent, ...] = ()
        self.closed = 0

    def status(self) -> EngineStatus:
        return EngineStatus("ready")

    def alive(self) -> bool:
        return True

    def start(self) -> None:
        return

    def stream(self, request: EngineRequest, cancel: Cancel) -> Iterator[EngineEvent]:
        try:
            yield from self.events
        finally:
            self.closed += 1

    def close(self) -> None:
        return


@pytest.fixture
def engine() -> WrongEngine:
    return WrongEngine()


@pytest.fixture
def service(engine: WrongEngine, tmp_path: Path) -> Iterator[Service]:
    made = Service(engine, store=Store(tmp_path / "store.db", max_age_s=1e6, max_bytes=2**30))
    yield made
    made.shutdown()


@pytest.fixture
def port(service: Service) -> Iterator[int]:
    http: Server = serve(service, port=0)
    yield http.server_address[1]
    http.shutdown()
    http.server_close()


def internal(error: Any) -> bool:
    return (error["type"], error["code"]) == ("server_error", "internal_error") and "log" in error["message"]


def check_kept(service: Service, id_: str) -> None:
    """The record has what was made, and that it failed."""
    kept = service.runs.load(id_)
    assert kept is not None
    assert kept.entries[:2] == [Accepted(), Text("Hel")]
    ended = kept.entries[-1]
    assert isinstance(ended, Ended)
    assert isinstance(ended.terminal, Failed)
    assert ended.terminal.kind is FailKind.INTERNAL


@pytest.mark.parametrize("store", [True, False], ids=["kept", "not-kept"])
def test_a_stream_with_numbers_is_cut_and_its_record_has_failed(
    service: Service, port: int, engine: WrongEngine, store: bool
) -> None:
    engine.events = UNKNOWN_CALL
    with Connection(port) as connection:
        connection.post(RESPONSES, {"input": "hi", "stream": True, "store": store})
        answer = connection.answer()
    assert (answer.status, answer.terminated) == (200, False)
    assert b'"delta": "Hel"' in answer.body
    assert b"response.completed" not in answer.body
    assert engine.closed == 1
    assert fetch(port, "/status")["history"][-1]["cause"] == "internal_error"
    if store:
        check_kept(service, answer.body.split(b'"id": "')[1].split(b'"')[0].decode())


def test_a_body_is_500_and_its_record_has_failed(port: int, engine: WrongEngine) -> None:
    engine.events = UNKNOWN_CALL
    for path, body in ((RESPONSES, {"input": "hi"}), (CHATS, chat(stream=False, store=True))):
        answer = ask(port, body, path=path)
        assert answer.status == 500
        assert internal(answer.json["error"])
        assert fetch(port, "/status")["history"][-1]["cause"] == "internal_error"
    assert engine.closed == 2


def test_a_chat_stream_says_that_it_failed_and_its_record_too(service: Service, port: int, engine: WrongEngine) -> None:
    engine.events = NO_NUMBER
    answer = ask(port, chat(store=True))
    ending = check_chat_stream(answer)
    check_kept(service, answer.events[0]["id"])
    assert ending.error is not None
    assert internal(ending.error)
    assert (ending.content, ending.finish_reason) == ("Hel", "error")
    assert fetch(port, "/status")["history"][-1]["cause"] == "internal_error"


def test_the_next_request_is_served(port: int, engine: WrongEngine) -> None:
    engine.events = UNKNOWN_CALL
    assert ask(port, {"input": "hi"}, path=RESPONSES).status == 500
    engine.events = (Accepted(), Text("fine"), Finished("stop", Usage(1, 4)))
    assert ask(port, {"input": "hi"}, path=RESPONSES).json["status"] == "completed"


def test_a_new_connection_lets_the_streams_under_way_catch_up(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def let_catch_up(lane: Lane, limit_s: float) -> None:
        waited.append(limit_s)

    monkeypatch.setattr(Lane, "let_catch_up", let_catch_up)
    assert fetch(port, "/health")["model"] == "wrong"
    assert waited == [CATCH_UP_S]
