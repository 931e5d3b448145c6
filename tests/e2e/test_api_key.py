"""With an API key no route answers without it, and an id of something kept is no second key: nobody can guess one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest

from serve.server import Handler
from tests.e2e.client import Answer, Connection, ask, chat
from tests.e2e.kept import CHATS, RESPONSES, Json, file_of, kept_ids, request, rules
from tests.e2e.messages_client import ROUTE as MESSAGES
from tests.e2e.messages_client import refused as check_refused
from tests.e2e.server import ServerProcess, fake_server

KEY = "a-key-of-ours"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
ELSEWHERE = (
    "/v1",
    "/v1/",
    "/v1/nothing",
    "/responses",
    "//",
    "/v1/responses/",
    "/v1/responses/a/b/c",
    "/%2e%2e/x",
    "*",
)
WRONG = (
    (),
    ("Authorization: Bearer wrong",),
    ("Authorization: Bearer",),
    ("Authorization: Basic " + KEY,),
    (f"Authorization: Bearer {KEY}x",),
    (f"Authorization: Bearer {KEY[:-1]}",),
    ("x-api-key: ",),
    ("x-api-key: \u00e9",),
    (f"x-api-key: {KEY.upper()}",),
)
IDS = 60
RANDOM_CHARACTERS = 32


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("key")
    options = ("--api-key", KEY, "--drain-s", "0.1", "--cors-origin", "http://good.example")
    with fake_server(server_command, rules(), folder, *options) as made:
        yield made


def send(server: ServerProcess, method: str, path: str, *headers: str, body: bytes = b"") -> Answer:
    with Connection(server.port) as connection:
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers]
        connection.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        if method != "HEAD":
            return connection.answer()
        connection.until(b"\r\n\r\n")
        line = connection.take_line()
        assert line is not None
        return Answer(int(line.split()[1]), {}, b"", terminated=True)


def paths(id_: str) -> list[str]:
    """Every route there is, with the id of something that exists."""
    return [re.sub(r"\{\w+\}", id_, route.path) for route in Handler.routes]


def check_unauthorized(answer: Answer, method: str, path: str = "") -> None:
    assert answer.status == 401, answer.body
    if method == "HEAD":
        return
    if path.startswith(MESSAGES):
        check_refused(answer, "authentication_error")
        return
    error = answer.json["error"]
    assert set(answer.json) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert KEY not in answer.body.decode()


def test_no_route_and_no_method_answers_without_the_key(server: ServerProcess) -> None:
    made = make_with_key(server)
    bodies: list[Json] = [request("hi"), chat(stream=False)]
    before = kept_ids(file_of(server))
    all_paths = [*paths(made["id"]), f"{RESPONSES}/{made['id']}?stream=true", *ELSEWHERE]
    for path, method in itertools.product(all_paths, METHODS):
        check_unauthorized(send(server, method, path), method, path)
        if method == "POST":
            for body in bodies:
                check_unauthorized(ask(server.port, body, path=path), method, path)
    for headers, path in itertools.product(WRONG, paths(made["id"])):
        check_unauthorized(send(server, "GET", path, *headers), "GET", path)
    assert kept_ids(file_of(server)) == before, "something was made or deleted"


def make_with_key(server: ServerProcess) -> Json:
    answer = ask(server.port, request("hi"), f"Authorization: Bearer {KEY}", path=RESPONSES)
    assert answer.status == 200
    return answer.json


def test_with_the_key_every_route_answers(server: ServerProcess) -> None:
    response = make_with_key(server)
    completion = ask(server.port, chat(stream=False, store=True), f"x-api-key: {KEY}").json
    for route in sorted(Handler.routes, key=lambda route: "DELETE" in route.actions):
        id_ = completion["id"] if route.path.startswith(CHATS) else response["id"]
        for method in sorted(route.actions, key=lambda method: (method == "DELETE", method)):
            path = re.sub(r"\{\w+\}", id_, route.path)
            answer = send(server, method, path, f"Authorization: Bearer {KEY}", body=b"{}" if method == "POST" else b"")
            assert answer.status in (200, 400), (method, path, answer.body)
    assert send(server, "GET", "/v1/nothing", f"Authorization: Bearer {KEY}").status == 404


def test_a_browser_asks_without_the_key_what_it_may_do_and_learns_no_more(server: ServerProcess) -> None:
    asks = ("Origin: http://good.example", "Access-Control-Request-Method: POST")
    answer = send(server, "OPTIONS", RESPONSES, *asks)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "http://good.example"
    assert (
        send(server, "OPTIONS", RESPONSES, "Origin: http://bad.example", asks[1]).headers.get(
            "access-control-allow-origin"
        )
        is None
    )


def test_ids_are_long_random_and_in_no_order(server: ServerProcess) -> None:
    key = f"Authorization: Bearer {KEY}"
    found: list[tuple[str, Any]] = []
    for _ in range(IDS // 2):
        response = ask(server.port, request("hi", store=False), key, path=RESPONSES).json
        found += [("resp_", response["id"]), ("msg_", response["output"][0]["id"])]
        found.append(("chatcmpl-", ask(server.port, chat(stream=False), key).json["id"]))
    for prefix in ("resp_", "msg_", "chatcmpl-"):
        ids = [id_.removeprefix(prefix) for kind, id_ in found if kind == prefix]
        assert len(set(ids)) == len(ids) == IDS // 2
        secrets = [id_[:RANDOM_CHARACTERS] for id_ in ids]
        assert all(re.fullmatch(r"[0-9A-Za-z]{32}", secret) for secret in secrets)
        assert ids != sorted(ids)
        for place in range(RANDOM_CHARACTERS):
            assert len({secret[place] for secret in secrets}) > 4, f"character {place} hardly changes"
        prefixes = {secret[:8] for secret in secrets}
        assert len(prefixes) == len(secrets), "they share their beginning, as a clock's do"
