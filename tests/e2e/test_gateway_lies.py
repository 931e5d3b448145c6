"""In front of an upstream that lies: streamed or not, kept or not, for one choice or two, each ending is true."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client import Answer, Connection
from tests.e2e.gateway import CHAT, Gateway, gateway, plain_chat
from tests.e2e.grammar import check_choices
from tests.e2e.lies import BODY, BODY_LIES, GONE, LIES, REFUSED, SINGLE, TEXT, USAGE, body, said
from tests.e2e.server import wait_for
from tests.scripted_upstream import Peer, Script, answer, chunk, sse_head

RESETS: list[threading.Event] = []


def reset(peer: Peer) -> None:
    cue = threading.Event()
    RESETS.append(cue)
    peer.send(sse_head(), *[chunk(piece) for piece in said()])
    peer.wait(cue)
    peer.reset()


def whole(raw: bytes) -> Script:
    return lambda peer: peer.send(answer(raw))


SECOND = {**BODY["choices"][0], "index": 1}
SCRIPTS: dict[str, Script] = {
    **{f"{name}|1": lie.script(1) for name, lie in LIES.items()},
    **{f"{name}|2": lie.script(2) for name, lie in LIES.items()},
    **{f"{name}|2 closed": lie.script(2, (1,)) for name, lie in LIES.items()},
    **{name: given[0] for name, given in SINGLE.items()},
    **{f"body: {name}": whole(given[0]) for name, given in BODY_LIES.items()},
    **{name: (lambda peer, raw=given[0]: peer.send(raw)) for name, given in REFUSED.items()},
    "reset": reset,
    "cut body": lambda peer: peer.send(answer(json.dumps(BODY).encode())[:-5]),
    "two, one without a word": whole(
        json.dumps({**BODY, "choices": [*BODY["choices"], {**SECOND, "finish_reason": None}]}).encode()
    ),
    "two, one with cut arguments": whole(
        json.dumps(
            {
                **BODY,
                "choices": [
                    *BODY["choices"],
                    {
                        **SECOND,
                        "message": {
                            "role": "assistant",
                            "content": None,
                            "tool_calls": [
                                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
                            ],
                        },
                        "finish_reason": "tool_calls",
                    },
                ],
            }
        ).encode()
    ),
    "good": whole(json.dumps(body()).encode()),
}


@pytest.fixture(scope="module")
def front(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("lies")
    with gateway(server_command, folder, SCRIPTS, "--silence-s", "1") as made:
        yield made


def check_stream(given: Answer, code: str, says: str, finishes: tuple[str, ...] = ("error",)) -> None:
    endings = check_choices(given, len(finishes))
    assert [ending.content for ending in endings] == [TEXT] * len(finishes)
    assert tuple(ending.finish_reason for ending in endings) == finishes
    for ending in endings:
        if ending.finish_reason == "error":
            assert ending.error is not None
            assert (ending.error["code"], ending.error["type"]) == (code, "server_error")
            assert says in ending.error["message"]
        assert ending.usage is not None
        assert ending.usage["completion_tokens"] >= 2 * len(finishes)
    heads = {(one["id"], one["model"], one["created"]) for one in given.events[:-1] if one.get("choices")}
    assert heads == {("chatcmpl-1", "m", 1)}


def check_whole(given: Answer, code: str, status: int, says: str) -> None:
    assert given.status == status
    error = given.json["error"]
    assert (error["code"], error["type"]) == (code, "server_error")
    assert says in error["message"]
    assert error["partial_output"] == TEXT
    assert error["usage"]["completion_tokens"] >= 2


@pytest.mark.parametrize("name", LIES)
def test_a_lie_in_a_stream_is_told_with_its_cause_and_the_text_is_kept(front: Gateway, name: str) -> None:
    lie = LIES[name]
    check_stream(front.ask(f"{name}|1"), lie.code, lie.says)
    counted = front.ask(f"{name}|1", stream_options={"include_usage": True})
    check_stream(counted, lie.code, lie.says)
    assert counted.events[-2]["choices"] == []


@pytest.mark.parametrize("name", LIES)
def test_a_lie_in_a_stream_is_a_status_where_one_body_is_wanted(front: Gateway, name: str) -> None:
    lie = LIES[name]
    check_whole(front.ask(f"{name}|1", stream=False), lie.code, lie.status, lie.says)


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_kept_as_what_it_was(front: Gateway, name: str) -> None:
    lie = LIES[name]
    streamed = front.ask(f"{name}|1", store=True)
    (ending,) = check_choices(streamed, 1)
    assert (ending.content, ending.finish_reason) == (TEXT, "error")
    id_ = streamed.events[0]["id"]
    kept = front.stored(id_).json
    assert (kept["id"], kept["error"]) == (id_, ending.error)
    assert kept["choices"][0]["finish_reason"] == "error"
    assert kept["choices"][0]["message"]["content"] == TEXT
    assert kept["error"]["code"] == lie.code
    check_whole(front.ask(f"{name}|1", stream=False, store=True), lie.code, lie.status, lie.says)


@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_two_choices_closes_those_that_are_open(front: Gateway, name: str) -> None:
    lie = LIES[name]
    # where both had a word the first one's is out, and the last one's was held: that one tells it
    both = ("stop", "error") if lie.ended else ("error", "error")
    if name in ("text after the word", "another word"):
        both = ("stop", "error")
    check_stream(front.ask(f"{name}|2", n=2), lie.code, lie.says, both)
    check_stream(front.ask(f"{name}|2 closed", n=2), lie.code, lie.says, ("error", "stop"))
    check_whole(front.ask(f"{name}|2", n=2, stream=False), lie.code, lie.status, lie.says)
    check_whole(front.ask(f"{name}|2 closed", n=2, stream=False), lie.code, lie.status, lie.says)


@pytest.mark.parametrize("name", SINGLE)
def test_damage_and_silence_are_told(front: Gateway, name: str) -> None:
    _, code, status, says = SINGLE[name]
    check_stream(front.ask(name), code, says)
    check_whole(front.ask(name, stream=False), code, status, says)


def test_a_reset_is_told(front: Gateway) -> None:
    with Connection(front.port) as connection:
        connection.post(CHAT, plain_chat("reset"))
        connection.until(b'"lo"')  # a reset may overtake what was sent before it
        RESETS[-1].set()
        check_stream(connection.answer(), "engine_died", "the connection broke")


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("stream", [True, False])
def test_a_refusal_is_a_status_in_both_modes(front: Gateway, name: str, stream: bool) -> None:
    _, status, code, says = REFUSED[name]
    for fields in ({}, {"store": True}, {"n": 2}):
        given = front.ask(name, stream=stream, **fields)
        error = given.json["error"]
        assert (given.status, error["code"]) == (status, code)
        assert says in error["message"]
        assert set(error) == {"message", "type", "param", "code"}


# --- one JSON body ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BODY_LIES)
@pytest.mark.parametrize("store", [False, True])
def test_a_body_that_lies_is_told_in_both_modes(front: Gateway, name: str, store: bool) -> None:
    raw, code, status, says = BODY_LIES[name]
    streamed = front.ask(f"body: {name}", store=store)
    (ending,) = check_choices(streamed, 1)
    assert (ending.content, ending.finish_reason) == (TEXT, "error")
    assert ending.error is not None
    assert ending.error["code"] == code
    assert says in ending.error["message"]
    assert json.loads(raw)["usage"] == USAGE
    assert (ending.usage or {})["completion_tokens"] == USAGE["completion_tokens"]
    if store:
        assert front.stored(streamed.events[0]["id"]).json["choices"][0]["finish_reason"] == "error"
    error = front.ask(f"body: {name}", stream=False, store=store)
    assert (error.status, error.json["error"]["code"]) == (status, code)
    assert error.json["error"]["partial_output"] == TEXT


@pytest.mark.parametrize("name", ["two, one without a word", "two, one with cut arguments"])
def test_a_body_with_one_good_choice_of_two(front: Gateway, name: str) -> None:
    endings = check_choices(front.ask(name, n=2), 2)
    assert [ending.finish_reason for ending in endings] == ["stop", "error"]
    assert endings[0].content == TEXT
    error: Any = front.ask(name, n=2, stream=False).json["error"]
    assert "(choice 1)" in error["message"]


def test_a_body_that_is_cut_is_told(front: Gateway) -> None:
    (ending,) = check_choices(front.ask("cut body"), 1)
    assert ending.error is not None
    assert "closed in the middle" in ending.error["message"]
    assert front.ask("cut body", stream=False).status == 503


def test_after_all_of_it_the_server_is_well(front: Gateway) -> None:
    assert front.ask("good", stream=False).json == BODY
    wait_for(front.server.settled, "the server is idle again")
    assert GONE in front.server.log()
    assert "internal error" not in front.server.log()
