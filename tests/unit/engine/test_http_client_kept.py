"""Kept connections: which answers leave one, which requests use one, and what happens if it has ended meanwhile."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Generator, Iterator

import pytest

from engine.http_client import Connected, ConnectionCut, Connections, Head, HttpError, Step, exchange
from tests.scripted_upstream import DEADLINE_S, LAST_CHUNK, answer, chunk, head, sse_head
from tests.unit.engine.certificates import Certificate, make_certificate, server_context, trusting_context
from tests.unit.engine.talks import Script, Talk, TalkingServer

TICK_S = 0.02
GOOD = answer(b"good")


@pytest.fixture
def kept() -> Iterator[Connections]:
    connections = Connections()
    yield connections
    connections.close()


def ask(
    server: TalkingServer, kept: Connections | None, body: bytes = b"{}", tls: ssl.SSLContext | None = None
) -> Generator[Step, None, None]:
    return exchange(server.origin, "POST", "/x", [], body, connect_s=10.0, tick_s=TICK_S, tls=tls, kept=kept)


def text_of(steps: Generator[Step, None, None]) -> bytes:
    return b"".join(step for step in steps if isinstance(step, bytes))


def answers_all(talk: Talk) -> None:
    talk.answer_all(GOOD)


# --- reuse -------------------------------------------------------------------------------------------


def test_two_requests_share_a_connection_and_do_not_ask_to_close_it(kept: Connections) -> None:
    with TalkingServer(answers_all) as server:
        assert [text_of(ask(server, kept)) for _ in range(2)] == [b"good"] * 2
        assert len(kept) == 1
        kept.close()
    assert server.counts == [2]
    assert all("connection" not in request.headers for request in server.talks[0].requests)


def test_without_a_place_to_keep_it_the_connection_is_closed(kept: Connections) -> None:
    with TalkingServer(answers_all) as server:
        assert [text_of(ask(server, None)) for _ in range(2)] == [b"good"] * 2
    assert server.counts == [1, 1]
    assert all(talk.requests[0].headers["connection"] == "close" for talk in server.talks)


def test_an_exchange_over_a_kept_connection_has_the_same_steps(kept: Connections) -> None:
    with TalkingServer(answers_all) as server:
        for _ in range(2):
            steps = [step for step in ask(server, kept) if step is not None]
            assert isinstance(steps[1], Head)
            assert [steps[0], *steps[2:]] == [Connected(), b"good"]
        kept.close()


KEPT: dict[str, bytes] = {
    "length": GOOD,
    "refusal": answer(b"no", 404),
    "length 0": head(200, content_length="0"),
    "no content": head(204),
    "gzip": answer(gzip.compress(b"good"), content_encoding="gzip"),
    "keep-alive": answer(b"good", connection="keep-alive", keep_alive="timeout=5, max=100"),
    "after a hint": b"HTTP/1.1 103 Early Hints\r\n\r\n" + GOOD,
}


@pytest.mark.parametrize("name", KEPT)
def test_a_connection_whose_answer_ended_where_it_said_is_used_again(name: str, kept: Connections) -> None:
    with TalkingServer(lambda talk: talk.answer_all(KEPT[name])) as server:
        for _ in range(3):
            text_of(ask(server, kept))
        kept.close()
    assert server.counts == [3]


NOT_KEPT: dict[str, bytes] = {
    "a stream": sse_head() + chunk(b"data: x\n\n") + LAST_CHUNK,
    "a stream that says keep-alive": sse_head(connection="keep-alive", keep_alive="timeout=5, max=100")
    + chunk(b"data: x\n\n") + LAST_CHUNK,
    "a stream of known length": answer(b"data: x\n\n", content_type="Text/Event-Stream; charset=utf-8"),
    "chunks": head(200, content_type="application/json", transfer_encoding="chunked") + chunk(b"{}") + LAST_CHUNK,
    "close": answer(b"good", connection="x, Close"),
    "http 1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok",
    "more than the answer": GOOD + b"HTTP/1.1 200 OK\r\n",
    "a second is all it allows": answer(b"good", keep_alive="timeout=1"),
    "no time at all": answer(b"good", keep_alive="timeout=0"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_KEPT)
def test_a_connection_that_carried_a_stream_or_may_end_is_closed(name: str, kept: Connections) -> None:
    def script(talk: Talk) -> None:
        assert talk.read()
        talk.send(NOT_KEPT[name])
        assert talk.read() is None  # the client closes it; a second request would be one too many

    with TalkingServer(script) as server:
        for _ in range(2):
            text_of(ask(server, kept))
            assert len(kept) == 0
    assert server.counts == [1, 1]


def test_a_connection_is_not_kept_after_an_answer_that_was_not_read_to_its_end(kept: Connections) -> None:
    def script(talk: Talk) -> None:
        assert talk.read()
        talk.send(head(200, content_length="8"), b"half")
        assert talk.read() is None

    with TalkingServer(script) as server:
        steps = ask(server, kept)
        assert b"half" in steps
        steps.close()
        assert server.talks[0].closed.wait(DEADLINE_S)
        assert len(kept) == 0


def test_a_connection_is_not_kept_after_an_answer_whose_coding_is_damaged(kept: Connections) -> None:
    damaged = answer(gzip.compress(b"good")[:-1], content_encoding="gzip")
    with TalkingServer(lambda talk: talk.answer_all(damaged)) as server:
        with pytest.raises(ConnectionCut, match="has no end"):
            text_of(ask(server, kept))
        assert len(kept) == 0


def test_a_connection_is_not_kept_after_an_answer_that_came_before_the_request_was_sent(kept: Connections) -> None:
    answered = threading.Event()

    def script(talk: Talk) -> None:
        talk.send(answer(b"too large", 413))
        assert answered.wait(DEADLINE_S)  # the request is not read: it cannot go out as a whole

    with TalkingServer(script) as server:
        assert text_of(ask(server, kept, b"x" * (32 << 20))) == b"too large"
        assert len(kept) == 0
        answered.set()


@pytest.mark.parametrize("at", [Connected, Head])
def test_leaving_an_exchange_over_a_kept_connection_closes_it(at: type, kept: Connections) -> None:
    def script(talk: Talk) -> None:
        assert talk.read()
        talk.send(GOOD)
        if talk.read():
            talk.send(head(200, content_length="8"))
            assert talk.read() is None

    with TalkingServer(script) as server:
        text_of(ask(server, kept))
        steps = ask(server, kept)
        assert any(isinstance(step, at) for step in steps)
        steps.close()
        assert server.talks[0].closed.wait(DEADLINE_S)
    assert len(server.talks) == 1


# --- the server ends it ------------------------------------------------------------------------------


def test_a_connection_that_the_server_closed_while_it_was_idle_is_replaced(kept: Connections) -> None:
    def script(talk: Talk) -> None:
        assert talk.read()
        talk.send(GOOD)

    with TalkingServer(script) as server:
        for i in range(3):
            assert text_of(ask(server, kept)) == b"good"
            assert server.talks[i].closed.wait(DEADLINE_S)
    assert server.counts == [1, 1, 1]


def ends_at_second_request(how: str, first: bytes = b"") -> Script:
    """The first connection ends when its second request has come; the others answer all."""

    def script(talk: Talk) -> None:
        if talk.number:
            talk.answer_all(GOOD)
            return
        assert talk.read()
        talk.send(GOOD)
        assert talk.read()
        talk.send(first)
        if how == "reset":
            talk.reset()

    return script


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_request_whose_kept_connection_ends_without_a_byte_is_sent_once_more(how: str, kept: Connections) -> None:
    with TalkingServer(ends_at_second_request(how)) as server:
        assert text_of(ask(server, kept)) == b"good"
        steps = [step for step in ask(server, kept, b"[1]") if step is not None]
        assert steps[:2] == [Connected(), Connected()]
        assert steps[-1] == b"good"
        kept.close()
    assert server.counts == [2, 1]
    assert [talk.requests[-1].body for talk in server.talks] == [b"[1]"] * 2


def test_a_request_is_not_sent_a_third_time(kept: Connections) -> None:
    def script(talk: Talk) -> None:
        assert talk.read()
        if talk.number < 2:
            talk.send(GOOD)
            talk.read()

    with TalkingServer(script) as server:
        both = [ask(server, kept) for _ in range(2)]
        for steps in both:
            assert next(step for step in steps if step is not None) == Connected()
        assert [text_of(steps) for steps in both] == [b"good"] * 2
        assert len(kept) == 2  # the retry takes none of them
        with pytest.raises(ConnectionCut, match="closed without an answer"):
            text_of(ask(server, kept, b"[1]"))
        kept.close()
    assert sorted(server.counts) == [1, 1, 2]
    assert sum(request.body == b"[1]" for talk in server.talks for request in talk.requests) == 2


@pytest.mark.parametrize("first", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", head(200, content_length="9")])
def test_a_request_whose_answer_has_begun_is_not_sent_again(first: bytes, kept: Connections) -> None:
    with TalkingServer(ends_at_second_request("closed", first)) as server:
        text_of(ask(server, kept))
        with pytest.raises(ConnectionCut, match="closed"):
            text_of(ask(server, kept))
    assert server.counts == [2]


def test_a_request_over_a_new_connection_is_not_sent_again(kept: Connections) -> None:
    def script(talk: Talk) -> None:
        assert talk.read()

    with TalkingServer(script) as server, pytest.raises(ConnectionCut, match="closed without an answer"):
        text_of(ask(server, kept))
    assert server.counts == [1]


def test_a_large_request_over_a_kept_connection_that_ends_is_sent_once_more(kept: Connections) -> None:
    def script(talk: Talk) -> None:
        assert talk.read()
        talk.send(GOOD)
        if talk.number:
            talk.answer_all(GOOD)
        else:
            talk.wait_for_data()

    body = b"x" * (8 << 20)
    with TalkingServer(script) as server:
        assert text_of(ask(server, kept)) == b"good"
        assert text_of(ask(server, kept, body)) == b"good"
        kept.close()
    assert server.counts == [1, 1]
    assert server.talks[1].requests[0].body == body


# --- more of it --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_a_tls_connection_is_kept_for_those_who_trust_the_same(certificate: Certificate, kept: Connections) -> None:
    trusted, other = trusting_context(certificate), trusting_context(certificate)
    with TalkingServer(answers_all, tls=server_context(certificate)) as server:
        for context in (trusted, trusted, other, trusted):
            assert text_of(ask(server, kept, tls=context)) == b"good"
        kept.close()
    assert server.counts == [3, 1]


def test_many_threads_share_connections_and_no_answer_is_mixed_up(kept: Connections) -> None:
    def echo(talk: Talk) -> None:
        while request := talk.read():
            talk.send(answer(request.body))
            if len(talk.requests) == 7:
                return  # some end, too

    wrong: list[object] = []

    def work(name: int) -> None:
        for i in range(20):
            body = b"<%d %d>" % (name, i)
            try:
                text = text_of(ask(server, kept, body))
            except HttpError as error:
                text = str(error).encode()
            if text != body:
                wrong.append((body, text))

    with TalkingServer(echo) as server:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert not any(thread.is_alive() for thread in threads)
        assert len(kept) <= 8
        kept.close()
    assert wrong == []
    assert sum(server.counts) >= 400
    assert len(server.talks) < 400
