"""Requests that are refused: a status in both modes, never a stream; small, with the field's name; nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from serve.parse.response_fields import MOVED, REFUSED
from tests.e2e.client import Answer, Connection, fetch
from tests.e2e.responses_client import ADD, END, ROUTE, Json, finished, request, respond, rule
from tests.e2e.responses_grammar import check_response_object, check_response_stream
from tests.e2e.server import ServerProcess, fake_server
from tests.unit.serve.parse.test_responses_refusals import FIELDS, ITEMS

MAX_ERROR_BYTES = 8_192
CONTEXT = 1_000


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    script: Json = {"context": CONTEXT, "requests": [[{"text": "Fine."}, *END]]}
    with fake_server(server_command, script, tmp_path_factory.mktemp("refusals")) as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_is_run(server: ServerProcess) -> Iterator[None]:
    before = server.status["history"]
    yield
    assert server.status["history"] == before


def check_refused(answer: Answer, param: str | None, status: int = 400) -> Json:
    assert answer.status == status, answer.body[:300]
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.body) < MAX_ERROR_BYTES
    error: Json = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"].startswith(param or "the body"), error
    return error


def in_both_modes(port: int, fields: Json, param: str) -> Json:
    error: Json = {}
    for stream in (True, False):
        error = check_refused(respond(port, {"input": "hi", **fields, "stream": stream}), param)
    return error


def test_every_wrong_field_is_named_in_both_modes_on_one_connection(server: ServerProcess) -> None:
    with Connection(server.port) as connection:
        for fields, param in [*FIELDS, *ITEMS]:
            for stream in (True, False):
                connection.post(ROUTE, {"input": "hi", "stream": stream, **fields})
                check_refused(connection.answer(), param)


@pytest.mark.parametrize("name", [*REFUSED, *MOVED])
def test_a_field_of_no_use_here_is_refused_with_a_remedy(server: ServerProcess, name: str) -> None:
    error = in_both_modes(server.port, {name: "x"}, name)
    assert {**REFUSED, **MOVED}[name] in error["message"]


SCHEMAS: list[tuple[Json, str]] = [
    ({"type": "xml"}, "text.format.type"),
    ({"type": "json_schema"}, "text.format.name"),
    ({"type": "json_schema", "name": "n"}, "text.format.schema"),
    ({"type": "json_schema", "name": "n", "schema": {"type": "banana"}}, "text.format.schema"),
    ({"type": "json_schema", "name": "n", "schema": {"$ref": "http://a.example/b"}}, "text.format.schema"),
]


@pytest.mark.parametrize(("form", "param"), SCHEMAS)
def test_a_format_that_cannot_be_checked_is_refused_in_this_apis_words(
    server: ServerProcess, form: Json, param: str
) -> None:
    in_both_modes(server.port, {"text": {"format": form}}, param)


IMAGE: Json = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]}
CANNOT: list[tuple[Json, str, str | None]] = [
    ({"include": ["message.output_text.logprobs"]}, "include", None),
    ({"top_logprobs": 2}, "top_logprobs", None),
    ({"logit_bias": {"5": 1}}, "logit_bias", None),
    ({"input": [IMAGE]}, "input[0].content[0].type", None),
    ({"input": "word " * CONTEXT}, "input", "context_length_exceeded"),
    ({"max_output_tokens": CONTEXT}, "max_output_tokens", "context_length_exceeded"),
]


@pytest.mark.parametrize(("fields", "param", "code"), CANNOT, ids=[param for _, param, _ in CANNOT])
def test_what_the_engine_cannot_do_is_a_status_in_both_modes(
    server: ServerProcess, fields: Json, param: str, code: str | None
) -> None:
    assert in_both_modes(server.port, fields, param)["code"] == code


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000], ids=lambda raw: repr(raw[:4]))
def test_a_body_that_is_no_object_is_refused(server: ServerProcess, raw: bytes) -> None:
    check_refused(respond(server.port, raw), None)


def test_half_a_surrogate_pair_is_refused(server: ServerProcess) -> None:
    check_refused(respond(server.port, b'{"input": "\\ud800"}'), "input")


@pytest.mark.parametrize("kind", ["input_txt", 5, None], ids=repr)
def test_ten_thousand_bad_parts_get_a_small_answer(server: ServerProcess, kind: Any) -> None:
    parts = [{"type": kind, "text": f"part {i} of a long list"} for i in range(10_000)]
    for items in ([{"role": "user", "content": parts}], parts):
        for stream in (True, False):
            answer = respond(server.port, {"input": items, "stream": stream})
            assert answer.status == 400
            assert len(answer.body) < MAX_ERROR_BYTES
            assert b"long list" not in answer.body
            assert answer.json["error"]["param"].startswith("input[0]")


# --- a server that keeps nothing ---------------------------------------------------------------------


def test_without_a_store_what_promises_to_be_kept_is_refused_and_all_else_works(
    fake: Callable[..., ServerProcess],
) -> None:
    server = fake(
        {"requests": [rule("then fail", {"text": "Hel"}, {"exit": 3}), [{"text": "Fine."}, *END]]}, "--store", "none"
    )
    for stream in (True, False):
        for name, value in (("store", True), ("background", True)):
            error = check_refused(respond(server.port, request(stream=stream, **{name: value})), name)
            assert "--store none" in error["message"]
        error = check_refused(
            respond(server.port, request(stream=stream, previous_response_id="resp_x")), "previous_response_id"
        )
        assert error["code"] == "previous_response_not_found"
    kept_nothing: list[Json] = [{}, {"store": False}, {"store": None}, {"background": False}]
    for given in kept_nothing:
        ending = check_response_stream(respond(server.port, request(**given)))
        whole = respond(server.port, request(stream=False, **given)).json
        check_response_object(whole)
        for response in (ending.response, whole):
            assert response["store"] is False
            assert response["output"][0]["content"][0]["text"] == "Fine."
            assert fetch(server.port, f"{ROUTE}/{response['id']}")["error"]["code"] == "not_found"
    failed = respond(server.port, request("then fail", stream=False))
    assert (failed.status, failed.json["error"]["partial_output"]) == (503, "Hel")
    assert "response_id" not in failed.json["error"]


def test_a_response_that_is_not_to_be_kept_is_not(fake: Callable[..., ServerProcess]) -> None:
    server = fake({"requests": [rule("then fail", {"text": "Hel"}, {"exit": 3}), rule("tool", {"text": "x"})]})
    ending = check_response_stream(respond(server.port, request(tools=[ADD], store=False)))
    assert ending.response["store"] is False
    assert fetch(server.port, f"{ROUTE}/{ending.response['id']}")["error"]["code"] == "not_found"
    failed = respond(server.port, request("then fail", stream=False, store=False))
    assert (failed.status, failed.json["error"]["partial_output"]) == (503, "Hel")
    assert "response_id" not in failed.json["error"]
    assert finished(server.port, request(tools=[ADD])).response["store"] is True
