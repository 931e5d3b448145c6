"""In front of an upstream with which nothing is wrong, or only its form: the client gets the upstream's own answer."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Connection
from tests.e2e.gateway import CHAT, KEEP_ALIVE, Gateway, gateway, passed_bytes, plain_chat
from tests.e2e.grammar import check_choices
from tests.e2e.lies import BODY, TEXT, USAGE, finish, said
from tests.e2e.oddities import CALLS, GOOD, ODDITIES, TEXTS, TWO_CALLS, with_text
from tests.e2e.server import wait_for
from tests.scripted_upstream import DONE, LAST_CHUNK, Peer, Script, answer, delta, event, sse_head, stream
from tests.unit.engine.passing_shapes import SHAPES, as_passed

HEADERS = {
    "x_request_id": "req-7",
    "x_ratelimit_remaining_requests": "3",
    "openai_processing_ms": "12",
    "keep_alive": "timeout=5",
    "server": "theirs",
    "set_cookie": "a=b",
}
CUES: dict[str, threading.Event] = {}


def cue(name: str) -> threading.Event:
    CUES[name] = threading.Event()
    return CUES[name]


def step_by_step(peer: Peer) -> None:
    peer.send(sse_head())
    for i, piece in enumerate(GOOD[:-1]):
        peer.send_chunks(piece)
        peer.wait(CUES[f"step {i}"])
    peer.send_chunks(DONE, LAST_CHUNK)


def slow(peer: Peer) -> None:
    peer.send(sse_head())
    peer.send_chunks(*GOOD[:2])
    peer.wait(CUES["slow"])
    peer.send_chunks(*GOOD[2:], LAST_CHUNK)


def endless(peer: Peer) -> None:
    peer.send(sse_head())
    peer.send_chunks(*GOOD[:2])
    assert peer.wait_gone()
    CUES["left"].set()


def whole(raw: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Script:
    return lambda peer: peer.send(answer(raw, status, **(headers or {})))


REFUSAL = json.dumps({"error": {"message": "slow down", "type": "rate_limit", "param": None, "code": "rl"}}).encode()
RAW_BODY = json.dumps(BODY, indent=2).encode()
TWO_BODY = {**BODY, "choices": [*BODY["choices"], {**BODY["choices"][0], "index": 1, "finish_reason": "length"}]}
SCRIPTS: dict[str, Script] = {
    **{name: stream(shape.data) for name, shape in SHAPES.items()},
    **{f"{name}, in bytes": stream(*[bytes([one]) for one in shape.data]) for name, shape in SHAPES.items()},
    **{f"{name}, zipped": stream(gzip.compress(shape.data), content_encoding="gzip") for name, shape in SHAPES.items()},
    **{f"odd: {name}": stream(*pieces) for name, pieces in ODDITIES.items()},
    **{f"calls: {name}": stream(*pieces) for name, pieces in CALLS.items()},
    **{f"two calls: {name}": stream(*pieces) for name, pieces in TWO_CALLS.items()},
    **{f"text: {name}": stream(*with_text(raw)) for name, (raw, _) in TEXTS.items()},
    "two": stream(*said(2), finish("stop", 2), DONE),
    "counted": stream(*GOOD[:-1], event({**delta(), "choices": [], "usage": USAGE}), DONE),
    "headers": stream(*GOOD, **HEADERS),
    "busy": whole(REFUSAL, 429, {"retry_after": "9", **HEADERS}),
    "body": whole(RAW_BODY, headers=HEADERS),
    "two bodies": whole(json.dumps(TWO_BODY).encode()),
    "step by step": step_by_step,
    "slow": slow,
    "endless": endless,
}


@pytest.fixture(scope="module")
def front(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with gateway(server_command, folder, SCRIPTS, "--heartbeat-s", "0.2") as made:
        yield made


def fields_of(name: str) -> dict[str, Any]:
    shape = SHAPES[name]
    fields: dict[str, Any] = {} if shape.choices == 1 else {"n": shape.choices}
    if shape.tools:
        fields["tools"] = [{"type": "function", "function": {"name": tool}} for tool in shape.tools]
    return fields | ({"stream_options": {"include_usage": True}} if shape.usage else {})


# --- as it came ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["", ", in bytes", ", zipped"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_right_stream_passes_byte_for_byte(front: Gateway, name: str, how: str) -> None:
    given = front.ask(name + how, **fields_of(name))
    assert passed_bytes(given) == as_passed(SHAPES[name].data)
    check_choices(given, SHAPES[name].choices)


@pytest.mark.parametrize("name", SHAPES)
def test_a_body_made_of_a_right_stream_has_all_that_was_said(front: Gateway, name: str) -> None:
    endings = check_choices(front.ask(name, **fields_of(name)), SHAPES[name].choices)
    made = front.ask(name, **{**fields_of(name), "stream": False})
    assert (made.status, made.json["object"]) == (200, "chat.completion")
    assert front.sent.json["stream"] is True
    options: Any = front.sent.json["stream_options"]
    assert options["include_usage"] is True
    values = [json.loads(one[6:]) for one in SHAPES[name].data.split(b"\n\n")[:-2]]
    for member in ("id", "model", "system_fingerprint", "timings"):
        told = [value[member] for value in values if value.get(member) is not None]
        assert made.json.get(member) == (told[-1] if told else None)
    usages = [value["usage"] for value in values if value.get("usage")]
    assert made.json["usage"] == usages[-1] if usages else made.json["usage"]["total_tokens"] > 0
    for choice, ending in zip(made.json["choices"], endings, strict=True):
        message = choice["message"]
        assert message["role"] == "assistant"
        assert (message["content"] or "", choice["finish_reason"]) == (ending.content, ending.finish_reason)
        assert (message.get("reasoning_content") or "") == ending.reasoning
        calls: list[Any] = message.get("tool_calls") or []
        assert [{"id": one["id"], **one["function"]} for one in calls] == ending.calls
    if name == "logprobs":
        assert [one["token"] for one in made.json["choices"][0]["logprobs"]["content"]] == ["a", "b", "c"]
    if name == "sglang":
        assert made.json["choices"][0]["matched_stop"] == 151645


def test_every_chunk_leaves_as_it_comes_and_the_last_with_the_ending(front: Gateway) -> None:
    cues = [cue(f"step {i}") for i in range(len(GOOD) - 1)]
    with Connection(front.port) as connection:
        connection.post(CHAT, plain_chat("step by step"))
        for piece, step in zip(GOOD[:-2], cues, strict=False):
            connection.until(piece)
            step.set()
        cues[-1].set()
        assert passed_bytes(connection.answer()) == b"".join(GOOD)


def test_heartbeats_are_all_that_is_added(front: Gateway) -> None:
    cue("slow")
    with Connection(front.port) as connection:
        connection.post(CHAT, plain_chat("slow"))
        while connection.until(GOOD[1]).count(KEEP_ALIVE) < 2:
            assert connection.more()
        CUES["slow"].set()
        given = connection.answer()
    assert given.body.count(KEEP_ALIVE) >= 2
    assert passed_bytes(given) == b"".join(GOOD)
    check_choices(given, 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_upstreams_work(front: Gateway, stream: bool) -> None:
    left = cue("left")
    count = len(front.upstream.requests)
    with Connection(front.port) as connection:
        connection.post(CHAT, plain_chat("endless", stream=stream))
        if stream:
            connection.until(GOOD[1])
        wait_for(lambda: len(front.upstream.requests) > count, "the upstream is asked")
    assert left.wait(10)


# --- what a client needs is put right -----------------------------------------------------------------


@pytest.mark.parametrize("name", ODDITIES)
def test_an_odd_form_is_put_right_and_the_answer_is_whole(front: Gateway, name: str) -> None:
    (ending,) = check_choices(front.ask(f"odd: {name}"), 1)
    assert (ending.content, ending.finish_reason) == (TEXT, "stop")
    made = front.ask(f"odd: {name}", stream=False).json
    (choice,) = made["choices"]
    assert (choice["message"]["content"], choice["message"]["role"], choice["finish_reason"]) == (
        TEXT,
        "assistant",
        "stop",
    )
    assert made["usage"]["completion_tokens"] >= 1
    assert all(made[member] for member in ("id", "created", "model"))


@pytest.mark.parametrize("name", ODDITIES)
def test_counts_that_are_asked_for_come_once_and_last(front: Gateway, name: str) -> None:
    given = front.ask(f"odd: {name}", stream_options={"include_usage": True})
    (ending,) = check_choices(given, 1)
    assert (ending.content, ending.finish_reason) == (TEXT, "stop")
    assert ending.usage is not None
    assert ending.usage["completion_tokens"] >= 1


@pytest.mark.parametrize("name", ODDITIES)
def test_an_answer_in_an_odd_form_is_kept_as_what_it_says(front: Gateway, name: str) -> None:
    for stream_ in (True, False):
        given = front.ask(f"odd: {name}", store=True, stream=stream_)
        if stream_:
            (ending,) = check_choices(given, 1)
            assert (ending.content, ending.finish_reason) == (TEXT, "stop")
        ids = {one["id"] for one in given.events[:-1]} if stream_ else {given.json["id"]}
        assert len(ids) == 1
        kept = front.stored(ids.pop()).json
        assert kept["choices"][0]["message"]["content"] == TEXT
        assert kept["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("store", [False, True])
def test_a_call_in_any_form_is_told_as_clients_read_it(front: Gateway, name: str, store: bool) -> None:
    given = front.ask(f"calls: {name}", store=store)
    (ending,) = check_choices(given, 1)
    (call,) = ending.calls
    assert (call["name"], json.loads(call["arguments"]), ending.finish_reason) == ("add", {"a": 1}, "tool_calls")
    made = front.ask(f"calls: {name}", store=store, stream=False).json
    bodies = [made] + ([front.stored(made["id"]).json, front.stored(given.events[0]["id"]).json] if store else [])
    for body in bodies:
        (choice,) = body["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert (call["type"], call["function"]["name"]) == ("function", "add")
        assert call["id"]
        assert json.loads(call["function"]["arguments"]) == {"a": 1}
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)


@pytest.mark.parametrize("name", TWO_CALLS)
def test_two_calls_are_told_apart(front: Gateway, name: str) -> None:
    (ending,) = check_choices(front.ask(f"two calls: {name}"), 1)
    assert [(call["name"], call["arguments"]) for call in ending.calls] == [("add", '{"a": 1}'), ("sub", "{}")]
    assert len({call["id"] for call in ending.calls}) == 2
    made: list[Any] = front.ask(f"two calls: {name}", stream=False).json["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["name"] for call in made] == ["add", "sub"]
    assert len({call["id"] for call in made}) == 2


def test_stop_after_a_call_stays_where_the_request_named_the_tool(front: Gateway) -> None:
    choice = {"type": "function", "function": {"name": "add"}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    given = front.ask("calls: the word stop", tools=tools, tool_choice=choice)
    assert passed_bytes(given) == b"".join(CALLS["the word stop"])


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_strict_readers_refuse_is_put_right(front: Gateway, name: str) -> None:
    _, expected = TEXTS[name]
    (ending,) = check_choices(front.ask(f"text: {name}"), 1)
    assert ending.content == expected
    assert front.ask(f"text: {name}", stream=False).json["choices"][0]["message"]["content"] == expected


# --- bodies -------------------------------------------------------------------------------------------


def test_two_choices_in_both_modes(front: Gateway) -> None:
    endings = check_choices(front.ask("two", n=2), 2)
    assert [(one.content, one.finish_reason) for one in endings] == [(TEXT, "stop")] * 2
    made = front.ask("two", n=2, stream=False).json
    assert [(one["index"], one["message"]["content"]) for one in made["choices"]] == [(0, TEXT), (1, TEXT)]
    assert made["usage"]["completion_tokens"] == 4


def test_the_upstreams_counts_are_the_bodys(front: Gateway) -> None:
    assert front.ask("counted", stream=False).json["usage"] == USAGE


def test_a_body_passes_byte_for_byte_to_who_wants_one_and_is_a_stream_for_who_wants_that(front: Gateway) -> None:
    assert front.ask("body", stream=False).body == RAW_BODY
    given = front.ask("body")
    (ending,) = check_choices(given, 1)
    assert (ending.content, ending.finish_reason, ending.usage) == (TEXT, "stop", USAGE)
    first = given.events[0]
    assert (first["id"], first["odd"], first["choices"][0]["odd"], first["choices"][0]["delta"]["odd"]) == (
        BODY["id"],
        [1],
        1,
        1,
    )
    counted = front.ask("body", stream_options={"include_usage": True}).events
    assert [one.get("usage") for one in counted[:-1]] == [None, USAGE]


def test_two_choices_of_a_body(front: Gateway) -> None:
    assert front.ask("two bodies", n=2, stream=False).json == TWO_BODY
    endings = check_choices(front.ask("two bodies", n=2), 2)
    assert [(one.content, one.finish_reason) for one in endings] == [(TEXT, "stop"), (TEXT, "length")]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", ["body", "odd: nothing odd"])
def test_a_kept_answer_is_found_by_the_id_that_its_client_got(front: Gateway, name: str, stream: bool) -> None:
    given = front.ask(name, store=True, stream=stream, metadata={"a": "b"})
    assert not {"store", "metadata"} & front.sent.json.keys()
    id_ = given.events[0]["id"] if stream else given.json["id"]
    assert id_ != BODY["id"]
    kept = front.stored(id_).json
    assert (kept["id"], kept["metadata"]) == (id_, {"a": "b"})
    assert kept["choices"][0]["message"]["content"] == TEXT
    if not stream and name == "body":
        assert {**given.json, "id": BODY["id"]}["odd"] == BODY["odd"]


# --- headers ------------------------------------------------------------------------------------------

SENT = (
    "Authorization: Bearer theirs",
    "X-Title: a title",
    "X-Request-Id: mine",
    "OpenAI-Organization: org",
    "traceparent: 00-1",
    "X-Api-Key: secret",
    "X-Forwarded-For: 10.0.0.1",
    "Connection: keep-alive, X-Hop",
    "X-Hop: 1",
    "Keep-Alive: 5",
    "TE: trailers",
    "Cookie: a=b",
    "Accept-Encoding: gzip",
    "Proxy-Authorization: Basic x",
)
PASSED = {
    "x-title": "a title",
    "x-request-id": "mine",
    "openai-organization": "org",
    "traceparent": "00-1",
}
GONE = {"x-hop", "x-api-key", "x-forwarded-for", "keep-alive", "te", "cookie", "proxy-authorization"}


def test_headers_of_a_client_that_matter_reach_the_upstream(front: Gateway) -> None:
    front.ask("body", *SENT)
    sent = front.sent.headers
    assert {name: sent.get(name) for name in PASSED} == PASSED
    assert sent["authorization"] == "Bearer theirs"
    assert not GONE & sent.keys()
    assert sent["host"] == f"127.0.0.1:{front.upstream.port}"
    front.ask("body")
    assert "authorization" not in front.sent.headers


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        (("--upstream-key", "ours"), "Bearer theirs", "Bearer ours"),
        (("--api-key", "door"), "Bearer door", None),
        (("--api-key", "door", "--upstream-key", "ours"), "Bearer door", "Bearer ours"),
    ],
)
def test_keys_are_not_mixed_up(
    server_command: tuple[str, ...], tmp_path: Path, options: tuple[str, ...], given: str, expected: str | None
) -> None:
    with gateway(server_command, tmp_path, SCRIPTS, *options) as made:
        assert made.ask("body", f"Authorization: {given}", "X-Title: t").status == 200
        assert (made.sent.headers.get("authorization"), made.sent.headers["x-title"]) == (expected, "t")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("name", "status"), [("headers", 200), ("body", 200), ("busy", 429)])
def test_headers_of_an_upstream_that_matter_reach_the_client(
    front: Gateway, name: str, stream: bool, status: int
) -> None:
    given = front.ask(name, stream=stream)
    assert given.status == status
    assert given.headers["x-request-id"] == "req-7"
    assert given.headers["x-ratelimit-remaining-requests"] == "3"
    assert given.headers["openai-processing-ms"] == "12"
    assert not {"keep-alive", "set-cookie"} & given.headers.keys()
    assert given.headers["server"] == "strata-serve"
    if status == 429:
        assert given.headers["retry-after"] == "9"
        assert given.json == json.loads(REFUSAL)
