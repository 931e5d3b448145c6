"""`--upstream-api responses` while it runs: heartbeats, who leaves in the middle, headers, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Connection
from tests.e2e.relayed import (
    BEGIN,
    Front,
    calls,
    ended,
    fronted,
    message,
    numbered,
    plays,
    says,
    sse,
    wire,
)
from tests.e2e.responses_client import ROUTE, Json
from tests.e2e.responses_grammar import check_response_stream
from tests.e2e.server import ServerProcess, wait_for
from tests.scripted_upstream import LAST_CHUNK, Peer, Script, chunk, event, sse_head

HELLO = says("Hel", "lo")
COMPLETED = ended("completed", message("Hello"))
TEXT = [*BEGIN, *HELLO, *COMPLETED]


class Cues:
    """What the test tells the upstream, and the other way round."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.left = threading.Event()


CUES: dict[str, Cues] = {}


def cues_of(peer: Peer) -> Cues:
    return CUES[str(peer.request.json["user"])]


def begins(peer: Peer, *events: Json) -> None:
    peer.send(sse_head(), chunk(wire([*BEGIN, *events])))


def waits(peer: Peer) -> None:
    begins(peer, *HELLO[:3])
    peer.wait(cues_of(peer).go_on)
    rest = numbered(TEXT)[5:]
    peer.send_chunks(*map(sse, rest), LAST_CHUNK)


def waits_first(peer: Peer) -> None:
    peer.send(sse_head())
    peer.wait(cues_of(peer).go_on)
    peer.send_chunks(*map(sse, numbered(TEXT)), LAST_CHUNK)


def waits_to_be_left(peer: Peer) -> None:
    begins(peer, *HELLO[:3])
    assert peer.wait_gone()
    cues_of(peer).left.set()


def resets(peer: Peer) -> None:
    begins(peer, *HELLO[:3])
    peer.wait(cues_of(peer).go_on)
    peer.reset()


def holds(peer: Peer) -> None:
    """Everything but the end."""
    begins(peer, *HELLO, *calls('{"a": 1}', index=1))
    peer.wait(cues_of(peer).go_on)
    peer.send_chunks(*map(sse, numbered(ended("completed"), 13)), LAST_CHUNK)


def beats(peer: Peer) -> None:
    """Nothing but signs that the connection is open."""
    begins(peer)
    while not peer.gone.wait(0.05):
        peer.send(chunk(sse(BEGIN[1])))  # until it is left, which ends the script


def works(peer: Peer) -> None:
    """llama.cpp's progress, for longer than the silence that is allowed."""
    begins(peer)
    for done in range(30):
        peer.send(chunk(sse({**BEGIN[1], "prompt_progress": {"total": 30, "processed": done}})))
        assert not peer.closing.wait(0.05)
    peer.send_chunks(*map(sse, [*HELLO, *COMPLETED]), LAST_CHUNK)


SCRIPTS: dict[str, Script] = {
    "text": plays(*TEXT),
    "waits": waits,
    "waits first": waits_first,
    "waits to be left": waits_to_be_left,
    "resets": resets,
    "holds": holds,
    "beats": beats,
    "works": works,
    "headers": lambda peer: peer.send(
        sse_head(x_request_id="theirs", x_ratelimit_remaining_tokens="7", set_cookie="a=b"),
        *[chunk(wire(TEXT)), LAST_CHUNK],
    ),
}


@pytest.fixture
def cues(request: pytest.FixtureRequest) -> Iterator[tuple[str, Cues]]:
    name, made = request.node.name, Cues()
    CUES[name] = made
    yield name, made
    made.go_on.set()


@pytest.fixture(scope="module")
def front(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    options = ("--heartbeat-s", "0.1", "--silence-s", "1", "--queue-grace-s", "0.05")
    with fronted(server_command, tmp_path_factory.mktemp("live"), SCRIPTS, *options) as made:
        yield made


def asking(name: str, user: str = "", **fields: Any) -> Json:
    return {"input": name, "stream": True, "user": user, **fields}


# --- heartbeats --------------------------------------------------------------------------------------


def test_a_beat_is_the_response_again_with_the_next_number_and_what_follows_is_counted_on(
    front: Front, cues: tuple[str, Cues]
) -> None:
    with Connection(front.port) as connection:
        connection.post(ROUTE, asking("waits", cues[0]))
        connection.until(b'"type": "response.in_progress"')  # ours has spaces
        cues[1].go_on.set()
        ending = check_response_stream(connection.answer())
    assert (ending.status, ending.texts) == ("completed", ["Hello"])
    names = [one["type"] for one in ending.events]
    assert names.count("response.in_progress") >= 2
    assert ending.response == COMPLETED[0]["response"]


def test_what_came_is_on_the_wire_while_the_upstream_waits_and_passes_byte_for_byte(
    front: Front, cues: tuple[str, Cues]
) -> None:
    with Connection(front.port) as connection:
        connection.post(ROUTE, asking("waits", cues[0]))
        seen = connection.until(sse(numbered(TEXT)[4]))
        cues[1].go_on.set()
        assert seen.partition(b"\r\n\r\n")[2].startswith(b"%x\r\n%b\r\n" % (len(wire(TEXT[:5])), wire(TEXT[:5])))
        connection.answer()


def test_before_the_upstream_named_the_response_a_beat_is_a_comment(front: Front, cues: tuple[str, Cues]) -> None:
    with Connection(front.port) as connection:
        connection.post(ROUTE, asking("waits first", cues[0]))
        connection.until(b": keep-alive\n")
        cues[1].go_on.set()
        got = connection.answer()
    assert got.body.replace(b": keep-alive\n", b"") == wire(TEXT)


def test_an_upstream_that_only_beats_is_silent(front: Front) -> None:
    ending = check_response_stream(front.ask("beats"))
    assert ending.error is not None
    assert "said nothing for 1 s" in ending.error["message"]


def test_progress_is_a_sign_of_life(front: Front) -> None:
    ending = check_response_stream(front.ask("works"))
    assert (ending.status, ending.texts) == ("completed", ["Hello"])
    assert sum("prompt_progress" in one for one in ending.events) == 30


def test_the_end_of_an_item_is_told_with_the_next_one_or_the_end(front: Front, cues: tuple[str, Cues]) -> None:
    with Connection(front.port) as connection:
        connection.post(ROUTE, asking("holds", cues[0]))
        seen = connection.until(b'"type":"response.function_call_arguments.delta"')
        assert seen.count(b"event: response.output_item.done") == 1
        seen = connection.until(b'"type": "response.in_progress"')
        assert seen.count(b"event: response.output_item.done") == 1
        cues[1].go_on.set()
        ending = check_response_stream(connection.answer())
    assert [one["status"] for one in ending.calls] == ["completed"]


# --- who leaves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_ends_the_upstreams_work(front: Front, cues: tuple[str, Cues], streaming: bool) -> None:
    with Connection(front.port) as connection:
        connection.post(ROUTE, asking("waits to be left", cues[0], stream=streaming))
        wait_for(lambda: front.server.status["queue"]["running"] == 1, "it runs")
        if streaming:
            connection.until(b'"delta":"Hel"')
    assert cues[1].left.wait(5)
    wait_for(front.server.settled, "nothing runs")
    wait_for(lambda: front.server.status["history"][-1]["cause"] == "client_disconnect", "it is recorded")


def test_a_reset_is_told(front: Front, cues: tuple[str, Cues]) -> None:
    with Connection(front.port) as connection:
        connection.post(ROUTE, asking("resets", cues[0]))
        connection.until(b'"delta":"Hel"')
        cues[1].go_on.set()
        ending = check_response_stream(connection.answer())
    assert (ending.status, ending.texts) == ("failed", ["Hel"])
    assert ending.error is not None
    assert "the connection broke" in ending.error["message"]


def test_a_shutdown_is_told(server_command: tuple[str, ...], tmp_path: Path) -> None:
    cue = Cues()
    CUES["shutdown"] = cue
    scripts: dict[str, Script] = {"waits to be left": waits_to_be_left}
    with fronted(server_command, tmp_path, scripts, "--drain-s", "0.1") as front, Connection(front.port) as connection:
        connection.post(ROUTE, asking("waits to be left", "shutdown"))
        connection.until(b'"delta":"Hel"')
        front.server.process.terminate()
        ending = check_response_stream(connection.answer())
    assert (ending.status, ending.texts) == ("failed", ["Hel"])
    assert ending.error is not None
    assert ending.error["code"] == "server_shutdown"


# --- headers, keys, records --------------------------------------------------------------------------


def test_headers_that_matter_pass_both_ways(front: Front) -> None:
    for streaming in (True, False):
        got = front.ask("headers", "Authorization: Bearer sk-user", "OpenAI-Beta: x", "Cookie: c=d", stream=streaming)
        assert got.headers["x-request-id"] == "theirs"
        assert got.headers["x-ratelimit-remaining-tokens"] == "7"
        assert "set-cookie" not in got.headers
        sent = front.sent.headers
        assert (sent["authorization"], sent["openai-beta"]) == ("Bearer sk-user", "x")
        assert "cookie" not in sent


def test_the_key_and_the_model_that_were_given_are_the_upstreams(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    options = ("--upstream-key", "sk-ours", "--model", "big", "--api-key", "k")
    with fronted(server_command, tmp_path, SCRIPTS, *options) as front:
        assert front.ask("text", "Authorization: Bearer k", model="small").body == wire(TEXT)
        assert (front.sent.headers["authorization"], front.sent.json["model"]) == ("Bearer sk-ours", "big")
        assert front.ask("text").status == 401
        assert front.send("GET", "/resp_1").status == 401


def test_how_it_ended_is_recorded(front: Front) -> None:
    front.ask("text", max_output_tokens=7)
    last = front.server.status["history"][-1]
    assert (last["finish"], last["prompt_tokens"], last["completion_tokens"]) == ("length", 9, 7)


def test_what_is_made_is_not_kept_here(front: Front) -> None:
    front.ask("text", store=True)
    before = len(front.upstream.requests)
    assert front.send("GET", "/resp_theirs").status == 404
    assert front.upstream.requests[before].path == "/v1/responses/resp_theirs"
    assert b"resp_theirs" not in (front.server.log_path.parent / "store.db").read_bytes()


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True, "stream": True}, "stream"),
        ({"stream": "yes"}, "stream"),
        ({"max_output_tokens": "many"}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": 5}}}}, "text.format.schema"),
    ],
)
def test_what_cannot_be_passed_on_is_refused_by_its_name(front: Front, fields: Json, param: str) -> None:
    before = len(front.upstream.requests)
    got = front.ask("text", **fields)
    assert (got.status, got.json["error"]["param"]) == (400, param)
    assert param.partition(".")[0] in got.json["error"]["message"]
    assert len(front.upstream.requests) == before


def test_a_stream_of_a_response_that_is_fetched_is_refused(front: Front) -> None:
    got = front.send("GET", "/resp_1?stream=true&starting_after=3")
    assert (got.status, got.json["error"]["param"]) == (400, "stream")


def test_an_id_that_is_none_never_leaves(front: Front) -> None:
    before = len(front.upstream.requests)
    for id_ in ("..", "%2e%2e", "a%2fb", "a b", "a" * 300):
        assert front.send("GET", f"/{id_}".replace(" ", "%20")).status == 404
    assert len(front.upstream.requests) == before


# --- over a chat's routes it changes nothing ---------------------------------------------------------


def test_chats_go_on_as_before(server_command: tuple[str, ...], tmp_path: Path) -> None:
    chunk_of: Json = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    told = [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]
    raw = event({**chunk_of, "choices": told}) + b"data: [DONE]\n\n"

    def play(peer: Peer) -> None:
        assert peer.request.path == "/v1/chat/completions"
        peer.send(sse_head(), chunk(raw), LAST_CHUNK)

    from tests.scripted_upstream import ScriptedUpstream

    with (
        ScriptedUpstream(play) as upstream,
        ServerProcess(server_command, ["--upstream", upstream.url, "--upstream-api", "responses"], tmp_path) as server,
        Connection(server.port) as connection,
    ):
        connection.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "stream": True})
        assert connection.answer().body == raw
