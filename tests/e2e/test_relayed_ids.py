"""`--upstream-api responses`: responses that an upstream keeps are its own, one upstream or several."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.client import Answer
from tests.e2e.relayed import BEGIN, ID, USAGE, Front, call, ended, fronted, message, plays, response, says, wire
from tests.e2e.responses_client import Json
from tests.e2e.responses_grammar import check_response_object, check_response_stream
from tests.e2e.server import ServerProcess, wait_for
from tests.scripted_upstream import Peer, Script, ScriptedUpstream, answer, head, sse_head

TEXT = [*BEGIN, *says("Hel", "lo"), *ended("completed", message("Hello"))]
NOT_FOUND = answer(b'{"error": {"message": "no such response", "type": "invalid_request_error", "param": "id"}}', 404)


def raw(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def page(value: Json) -> bytes:
    return answer(raw(value), x_request_id="theirs")


QUEUED = response("queued", background=True)
WHOLE = response("completed", [message("Hello")])
ITEMS: Json = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
DELETED: Json = {"id": ID, "object": "response", "deleted": True}
CANCELLED = response("cancelled", background=True)
KEPT: dict[str, Json] = {
    "whole": WHOLE,
    "queued": QUEUED,
    "cancelled": CANCELLED,
    "incomplete": response("incomplete", [message("Hel", "incomplete")]),
    "failed": response("failed", error={"code": "server_error", "message": "gone"}),
}
LYING: dict[str, tuple[Json, str]] = {
    "at the limit": (response("completed", [message("Hello")], max_output_tokens=7), "incomplete"),
    "cut call": (response("completed", [call('{"a": ')]), "failed"),
    "cut call at the limit": (response("completed", [call('{"a": ')], max_output_tokens=7), "incomplete"),
    "an error": (response("completed", [message("Hello")], error={"code": "oom", "message": "gone"}), "failed"),
    "cut item": (response("completed", [message("Hel", "incomplete")]), "failed"),
}


def kept_pages() -> dict[str, bytes]:
    pages = {f"/v1/responses/{name.replace(' ', '_')}": page(value) for name, value in KEPT.items()}
    pages |= {f"/v1/responses/{name.replace(' ', '_')}": page(value) for name, (value, _) in LYING.items()}
    pages["/v1/responses/whole?include=x&include=y"] = page(WHOLE)
    pages["/v1/responses/whole/input_items?limit=5&order=asc"] = page(ITEMS)
    pages["/v1/responses/text"] = answer(b"<html>oops</html>", 200, "text/html")
    pages["/v1/responses/broken"] = answer(b'{"id": ', 200)
    return pages


SCRIPTS: dict[str, Script] = {
    "text": plays(*TEXT),
    "later": lambda peer: peer.send(page(QUEUED)),
    "DELETE /v1/responses/whole": lambda peer: peer.send(page(DELETED)),
    "DELETE /v1/responses/other": lambda peer: peer.send(NOT_FOUND),
    "POST /v1/responses/queued/cancel": lambda peer: peer.send(page(CANCELLED)),
}


@pytest.fixture(scope="module")
def front(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with fronted(server_command, tmp_path_factory.mktemp("ids"), SCRIPTS, pages=kept_pages()) as made:
        yield made


# --- one upstream ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEPT)
def test_a_response_that_is_fetched_passes_byte_for_byte(front: Front, name: str) -> None:
    got = front.send("GET", f"/{name}", "Authorization: Bearer sk-user")
    assert (got.status, got.body, got.headers["x-request-id"]) == (200, raw(KEPT[name]), "theirs")
    assert front.sent.headers["authorization"] == "Bearer sk-user"


@pytest.mark.parametrize("name", LYING)
def test_a_response_that_is_fetched_and_says_completed_has_to_be(front: Front, name: str) -> None:
    given, status = LYING[name]
    got = front.send("GET", f"/{name.replace(' ', '_')}")
    assert (got.status, got.json["status"], got.json["id"]) == (200, status, ID)
    check_response_object(got.json)
    assert [item["status"] for item in got.json["output"]] == ["incomplete"]
    assert got.json["usage"] == USAGE
    assert got.json["odd"] == given["odd"]


def test_queries_items_delete_and_cancel_pass(front: Front) -> None:
    assert front.send("GET", "/whole?include=x&include=y").body == raw(WHOLE)
    assert front.send("GET", "/whole/input_items?limit=5&order=asc").body == raw(ITEMS)
    assert front.send("DELETE", "/whole").body == raw(DELETED)
    assert (front.sent.method, front.sent.path, front.sent.body) == ("DELETE", "/v1/responses/whole", b"")
    assert front.send("POST", "/queued/cancel").body == raw(CANCELLED)


def test_what_the_upstream_does_not_know_is_its_answer(front: Front) -> None:
    got = front.send("DELETE", "/other")
    assert got.status == 404
    assert got.json["error"]["message"] == "no such response"
    assert front.send("GET", "/other").status == 404


def test_a_page_that_is_none_is_told(front: Front) -> None:
    for id_, why in (("text", "text/html"), ("broken", "no JSON")):
        got = front.send("GET", f"/{id_}")
        assert (got.status, got.json["error"]["code"]) == (502, "engine_protocol")
        assert why in got.json["error"]["message"]


def test_a_background_response_is_the_upstreams(front: Front) -> None:
    got = front.ask("later", background=True, stream=False)
    assert (got.status, got.body) == (200, raw(QUEUED))
    assert front.sent.json == {"input": "later", "background": True, "stream": False}


# --- several upstreams -------------------------------------------------------------------------------


class Pair:
    def __init__(self, server: ServerProcess, upstreams: list[ScriptedUpstream]) -> None:
        self.upstreams = upstreams
        self.front = Front(server, upstreams[0])

    def asked(self) -> list[int]:
        """How often each was asked for what is no health."""
        return [sum(one.path != "/v1/models" for one in upstream.requests) for upstream in self.upstreams]


@contextmanager
def pair(command: tuple[str, ...], folder: Path, first: Script, second: Script, **pages: bytes) -> Generator[Pair]:
    """Two upstreams; the pages are the second one's."""
    theirs = {f"/v1/responses/{name}": value for name, value in pages.items()}
    with ScriptedUpstream(first) as one, ScriptedUpstream(second, theirs) as two:
        options = ["--upstream", one.url, "--upstream", two.url, "--upstream-api", "responses"]
        with ServerProcess(command, options, folder) as server:
            members = lambda: [one["state"] for one in server.status["engine"]["members"]]  # noqa: E731 - one word
            wait_for(lambda: members() == ["ready", "ready"], "both are there")
            yield Pair(server, [one, two])


def refuses(status: int, **error: str) -> Script:
    body = json.dumps({"error": {"message": "not here", **error}}).encode()
    return lambda peer: peer.send(answer(body, status))


def loses(peer: Peer) -> None:
    peer.send(sse_head())
    peer.reset()


@pytest.mark.parametrize("fault", [refuses(503), refuses(429), loses], ids=["503", "429", "reset"])
@pytest.mark.parametrize("streaming", [True, False])
def test_what_fails_before_the_first_event_is_asked_of_the_next(
    server_command: tuple[str, ...], tmp_path: Path, fault: Script, streaming: bool
) -> None:
    with pair(server_command, tmp_path, fault, plays(*TEXT)) as both:
        got = both.front.ask("text", stream=streaming)
        assert got.status == 200
        assert got.body == wire(TEXT) if streaming else got.json == TEXT[-1]["response"]
        assert both.asked() == [1, 1]


def test_what_fails_after_the_first_event_is_told(server_command: tuple[str, ...], tmp_path: Path) -> None:
    with pair(server_command, tmp_path, plays(*BEGIN), plays(*TEXT)) as both:
        ending = check_response_stream(both.front.ask("text"))
        assert ending.status == "failed"
        assert ending.error is not None
        assert ending.error["message"].startswith("upstream 1 ended the stream")
        assert both.asked() == [1, 0]


def test_an_id_goes_to_the_upstream_that_knows_it(server_command: tuple[str, ...], tmp_path: Path) -> None:
    def second(peer: Peer) -> None:
        given = peer.request
        peer.send(page(DELETED if given.method == "DELETE" else CANCELLED))

    first: Script = lambda peer: peer.send(NOT_FOUND)  # noqa: E731 - one word
    with pair(server_command, tmp_path, first, second, whole=page(WHOLE)) as both:
        for _ in range(2):
            assert both.front.send("GET", "/whole").body == raw(WHOLE)
        assert both.front.send("POST", "/whole/cancel").body == raw(CANCELLED)
        assert both.front.send("DELETE", "/whole").body == raw(DELETED)
        assert both.front.send("GET", "/other").status == 404
        states = [one["state"] for one in both.front.server.status["engine"]["members"]]
        assert states == ["ready", "ready"]  # to know nothing is no illness


@pytest.mark.parametrize(
    "unknown", [refuses(404), refuses(400, code="previous_response_not_found")], ids=["404", "OpenAI's"]
)
def test_what_goes_on_from_a_response_goes_to_the_upstream_that_keeps_it(
    server_command: tuple[str, ...], tmp_path: Path, unknown: Script
) -> None:
    with pair(server_command, tmp_path, unknown, plays(*TEXT)) as both:
        assert both.front.ask("text", previous_response_id=ID).body == wire(TEXT)
        assert both.asked() == [1, 1]
        assert both.front.ask("text").body == wire(TEXT) or both.asked() == [2, 1]


def test_that_nobody_knows_an_id_is_said_only_if_all_said_so(server_command: tuple[str, ...], tmp_path: Path) -> None:
    def asked(first: Script, second: Script, folder: str) -> Answer:
        (tmp_path / folder).mkdir()
        with pair(server_command, tmp_path / folder, first, second) as both:
            return both.front.ask("text", previous_response_id=ID)

    assert asked(refuses(404), refuses(404), "none").status == 404
    broken = asked(refuses(404), refuses(503), "one")
    assert (broken.status, "not here" in broken.json["error"]["message"]) == (503, True)
    assert asked(lambda peer: peer.send(head(302, location="/", content_length="0")), refuses(404), "odd").status == 502
