"""Whatever an engine or an upstream writes leaves as whole characters or U+FFFD, in JSON that every reader takes: text,
causes of failures, what is kept and resumed; and nothing of it does anything to a header, a log or a console.

That each answer is strict JSON in UTF-8 is checked at the sockets (`tests/e2e/wire.py`); here it is what they say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e import completions_client as completions
from tests.e2e.apis import APIS, hear
from tests.e2e.client import Connection, ask, chat, fetch
from tests.e2e.gateway import CHAT, Gateway
from tests.e2e.kept import check, get, make, read_chat, replay, request, text_of
from tests.e2e.relayed import BEGIN, Front, ended, fronted, message, says, wire
from tests.e2e.responses_client import ROUTE as RESPONSES
from tests.e2e.responses_grammar import check_response_stream
from tests.e2e.server import ServerProcess, fake_server
from tests.scripted_upstream import DONE, LAST_CHUNK, Peer, Script, ScriptedUpstream, delta, event, sse_head, stream
from tests.scripted_upstream import answer as http_answer

Json = dict[str, Any]
Start = Callable[..., ServerProcess]
END: list[Json] = [{"end_token": True}, {"done": "stop"}]
BYTES: dict[str, bytes] = {
    "no-utf-8": b"a\xffb",
    "overlong": b"a\xc0\xafb",
    "cut-character": b"a\xf0\x9f\x98",
    "cut-in-the-middle": b"a\xe2\x82b",
    "half-a-pair": b"a\xed\xa0\xbdb",
    "both-halves-as-bytes": b"\xed\xa0\xbd\xed\xb8\x80",
    "beyond-unicode": b"\xf4\x90\x80\x80",
    "controls": b"a\x00\x01\x07\x08\x1b[31mb\x7f",
    "line-ends": "a\r\nb\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029c".encode(),
    "framing": b"a\n\ndata: [DONE]\n\nevent: error\ndata: {}\n\n: keep-alive\n\nb",
    "whole": "é漢😀e\u0301\ufeff\uffff\ufffd".encode(),
    "quotes": b'"\\u2028\\" </script> \\ud83d',
}
ODD_CAUSE = b'no room \xff \xed\xa0\xbd \x1b[31m \x07 \xe2\x80\xa8 \xc2\x85 \xf0\x9f\x98\x80 "}\\'
ODD_WORDS = 'no room � ��� \x1b[31m \x07 \u2028 \x85 😀 "}\\'
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def rule(word: str, *steps: Json) -> Json:
    return {"match": word, "steps": list(steps)}


def raw(line: bytes) -> Json:
    return {"bytes": line.hex()}


SCRIPT: Json = {
    "requests": [
        *[rule(f"say {name}.", {"tokens": list(data)}, *END) for name, data in BYTES.items()],
        rule("then fail", {"text": "Hel"}, raw(b"ERR " + ODD_CAUSE + b"\n"), {"no_end": True}),
        rule("then die", {"text": "Hel"}, {"stderr": "\x1b[31mred\x07 \u2028 😀"}, {"exit": 3}),
    ],
    "then": "ok",
}


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("odd")) as started:
        yield started


def reference(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# --- a pipe engine -----------------------------------------------------------------------------------


@STREAMED
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", BYTES)
def test_any_bytes_are_said_as_the_characters_that_they_are(
    server: ServerProcess, name: str, api: str, stream: bool
) -> None:
    said = hear(api, server.port, f"say {name}.", stream=stream, thinking=False)
    assert (said.text, said.end) == (reference(BYTES[name]), "stop")


@pytest.mark.parametrize("name", BYTES)
def test_any_bytes_of_a_completion_too(server: ServerProcess, name: str) -> None:
    assert completions.finished(server.port, completions.request(f"say {name}.")).texts == (reference(BYTES[name]),)


@pytest.mark.parametrize("name", BYTES)
def test_what_is_kept_is_read_and_resumed_as_it_was_said(server: ServerProcess, name: str) -> None:
    made = make(server, request(f"say {name}.", store=True)).json
    assert text_of(made) == reference(BYTES[name])
    assert get(server, made["id"]).json == made
    for after in (None, 2, 4):
        events = replay(server, made["id"], after)
        assert check(events, 0 if after is None else after + 1).response == made
    kept = ask(server.port, chat(stream=False, content=f"say {name}.", store=True)).json
    message = read_chat(server, kept["id"])["choices"][0]["message"]
    assert message["content"] == kept["choices"][0]["message"]["content"] == reference(BYTES[name])


@STREAMED
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("how", ["then fail", "then die"])
def test_a_cause_with_odd_bytes_is_told(server: ServerProcess, how: str, api: str, stream: bool) -> None:
    said = hear(api, server.port, how, stream=stream, thinking=False)
    assert (said.text, said.end) == ("Hel", "error")
    assert said.error is not None
    if how == "then fail":
        assert ODD_WORDS in said.error["message"]
    else:
        assert "exit code 3" in said.error["message"]
        assert "red" in said.error["message"]
        assert said.error["message"].isprintable()


# --- an upstream -------------------------------------------------------------------------------------

TEXTS: dict[str, tuple[bytes, str]] = {
    "half a pair": (b'"a\\ud83d"', "a\ufffd"),
    "a pair": (b'"\\ud83d\\ude00"', "😀"),
    "the wrong way round": (b'"\\ude00\\ud83d"', "\ufffd\ufffd"),
    "raw separators": ('"a\u2028b\u2029c\x85d\x7f\x9b"'.encode(), "a\u2028b\u2029c\x85d\x7f\x9b"),
    "a raw control character": (b'"\x1b[0m\x00"', "\x1b[0m\x00"),
    "no utf-8": (b'"a\xffb\xed\xa0\xbd"', "a\ufffdb\ufffd\ufffd\ufffd"),
}
BODIES: dict[str, tuple[bytes, str]] = {
    "no utf-8": (b"no room \xff\xfe", "no room \ufffd\ufffd"),
    "json with half a pair": (b'{"error": {"message": "no room \\ud83d", "type": "t\\ud83d"}}', "no room \ufffd"),
    "json with controls": (b'{"error": {"message": "no room \\u0000\\u001b[31m\\r\\nX: y"}}', "no room \x00\x1b[31m"),
    "json that is no utf-8": (b'{"error": {"message": "no room \xff"}}', "no room \ufffd"),
    "json with no number": (b'{"error": {"message": "no room", "code": NaN, "param": Infinity}}', "no room"),
    "utf-16": ("no room".encode("utf-16"), "n"),
}


def play(peer: Peer) -> None:
    """The last message names the text to say, or the failure."""
    body: Any = peer.request.json
    word = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    what, _, name = word.partition(": ")
    if what == "refuse":
        peer.send(http_answer(BODIES[name][0], 500, "application/json", retry_after="\x80"))
        return
    peer.send(sse_head())
    first = event(delta(role="assistant", content="|") if "messages" in body else completion("|"))
    if what == "fail":
        peer.send_chunks(first, b"data: " + BODIES[name][0] + b"\n\n", DONE, LAST_CHUNK)
        return
    ending = event(delta("stop") if "messages" in body else completion("", "stop"))
    peer.send_chunks(first.replace(b'"|"', TEXTS[name][0]), ending, DONE, LAST_CHUNK)


def completion(text: str, word: str | None = None) -> Json:
    choice = {"index": 0, "text": text, "finish_reason": word, "logprobs": None}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}


@pytest.fixture(scope="module")
def front(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with (
        ScriptedUpstream(play) as upstream,
        ServerProcess(server_command, ["--upstream", upstream.url], tmp_path_factory.mktemp("upstream")) as server,
    ):
        yield Gateway(server, upstream)


@STREAMED
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", TEXTS)
def test_odd_text_of_an_upstream_is_said_in_every_api(front: Gateway, name: str, api: str, stream: bool) -> None:
    said = hear(api, front.port, f"say: {name}", stream=stream, thinking=False)
    assert (said.text, said.end) == (TEXTS[name][1], "stop")


@pytest.mark.parametrize("name", TEXTS)
def test_odd_text_of_an_upstreams_completion_too(front: Gateway, name: str) -> None:
    assert completions.finished(front.port, completions.request(f"say: {name}")).texts == (TEXTS[name][1],)


@STREAMED
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", BODIES)
def test_an_upstreams_odd_error_is_told(front: Gateway, name: str, api: str, stream: bool) -> None:
    route = {"chat": CHAT, "responses": RESPONSES, "messages": "/v1/messages"}[api]
    body: Json = {"model": "m", "max_tokens": 9, "stream": stream}
    body |= {"input": f"refuse: {name}"} if api == "responses" else chat(content=f"refuse: {name}", stream=stream)
    if api == "responses":
        del body["max_tokens"]
    refused = ask(front.port, body, path=route)
    assert refused.status == 500
    assert BODIES[name][1] in refused.json["error"]["message"]


@STREAMED
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", [name for name in BODIES if name.startswith("json")])
def test_an_upstreams_odd_error_in_a_stream_is_told(front: Gateway, name: str, api: str, stream: bool) -> None:
    said = hear(api, front.port, f"fail: {name}", stream=stream, thinking=False)
    assert (said.text, said.end) == ("|", "error")
    assert said.error is not None
    assert BODIES[name][1] in said.error["message"]


def relayed_script(raw_text: bytes) -> Script:
    events = [*BEGIN, *says("|"), *ended("completed", message("|"))]
    return stream(wire(events).replace(b'"|"', raw_text))


@pytest.fixture(scope="module")
def relaying(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    scripts = {name: relayed_script(given[0]) for name, given in TEXTS.items()}
    with fronted(server_command, tmp_path_factory.mktemp("relaying"), scripts) as made:
        yield made


@pytest.mark.parametrize("name", TEXTS)
def test_odd_text_of_an_upstreams_own_responses_is_said(relaying: Front, name: str) -> None:
    ending = check_response_stream(relaying.ask(name))
    assert (ending.texts, ending.status) == ([TEXTS[name][1]], "completed")
    whole = relaying.ask(name, stream=False)
    assert (whole.status, text_of(whole.json)) == (200, TEXTS[name][1])


# --- headers, logs, consoles -------------------------------------------------------------------------

FOLDED = "http://a\r\n X-Odd: b"


@pytest.mark.parametrize("value", [FOLDED, "http://a\x0bb", "http://a\tb", "http://\xe9"])
def test_a_clients_header_that_is_sent_back_makes_no_other_header(fake: Start, value: str) -> None:
    server = fake({"requests": []}, "--cors-origin", "*")
    for method in ("GET", "OPTIONS"):
        with Connection(server.port) as connection:
            head = f"{method} /health HTTP/1.1\r\nHost: x\r\nOrigin: {value}\r\nAccess-Control-Request-Method: GET\r\n"
            connection.send(f"{head}Access-Control-Request-Headers: {value}\r\n\r\n".encode("latin-1"))
            told = connection.answer()
        assert told.status in (200, 204, 400)
        assert "x-odd" not in told.headers


def test_a_clients_folded_header_reaches_an_upstream_as_one_or_not_at_all(front: Gateway) -> None:
    with Connection(front.port) as connection:
        connection.post(CHAT, chat(content="say: a pair", stream=False), "X-Title: a\r\n X-Odd: b")
        told = connection.answer()
    assert told.status in (200, 400)  # RFC 9112 §5.2: refused, or the line ends become spaces
    sent = [one.headers for one in front.upstream.requests if "x-title" in one.headers or "x-odd" in one.headers]
    assert all(headers == {**headers, "x-title": "a X-Odd: b"} and "x-odd" not in headers for headers in sent)


def test_odd_causes_of_an_upstream_forge_no_line_of_the_log(front: Gateway) -> None:
    forged = b'{"error": {"message": "x\\r\\n2026-01-01 00:00:00,000 INFO strata: all is well \\u001b[2J"}}'
    BODIES["forged"] = (forged, "all is well")
    for what in ("refuse", "fail"):
        hear("chat", front.port, f"{what}: forged", stream=False)
    lines = front.server.log().split("\n")
    assert any("all is well" in line for line in lines)
    assert all(line.isprintable() for line in lines), [line for line in lines if not line.isprintable()]
    assert not any(line.startswith("2026-01-01 00:00:00,000") for line in lines)


@pytest.mark.parametrize("form", ["text", "json"])
def test_odd_causes_and_names_do_nothing_to_a_log_on_a_console_of_one_code_page(
    fake: Start, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    forged = b"x\r2026-01-01 00:00:00,000 INFO strata: all is well \x1b[2J\x07\x9b2J \xe2\x80\xa8 \xf0\x9f\x98\x80 \xff"
    steps = [{"text": "Hel"}, raw(b"ERR " + forged + b"\n"), {"no_end": True}]
    server = fake({"requests": [steps, [{"text": "fine"}, *END]]}, "--log-format", form)
    assert ask(server.port, chat(stream=False)).status == 500
    assert ask(server.port, chat(stream=False)).json["choices"][0]["message"]["content"] == "fine"
    assert fetch(server.port, "/health")["status"] == "ok"
    log = server.log_path.read_bytes().decode("cp1252")
    assert "all is well" in log
    lines = log.replace("\r\n", "\n").split("\n")
    assert all(line.isprintable() for line in lines), [line for line in lines if not line.isprintable()]
    assert not any(line.startswith("2026-01-01 00:00:00,000 INFO strata: all is well") for line in lines)
    if form == "json":
        assert all(json.loads(line)["message"] for line in lines if line)
