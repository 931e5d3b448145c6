"""Text and log probabilities that no encoder likes: what is streamed, kept and replayed is the same, without gaps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client import ask, chat
from tests.e2e.grammar import check_chat_stream
from tests.e2e.kept import Json, Stream, check, make, read, read_chat, replay, request, text_of
from tests.e2e.server import ServerProcess
from tests.scripted_upstream import DONE, LAST_CHUNK, Peer, ScriptedUpstream, delta, event, sse_head

PIECES = ("a\u0000b", "\ud83d", "\ude00", " \ud83d ", "\u2028\u2029\u0085", "\x1b[0m\x7f", "\ufeff\uffff", "e\u0301")
SAID = "a\u0000b\ufffd\ufffd \ufffd \u2028\u2029\u0085\x1b[0m\x7f\ufeff\uffffe\u0301"
HALF: Json = {"token": "\ud83d", "logprob": -0.5, "bytes": [240, 159], "top_logprobs": []}
NOT_FINITE: list[Json] = [
    {"token": "x", "logprob": number, "bytes": None, "top_logprobs": [{"token": "\udc00", "logprob": number}]}
    for number in (float("nan"), float("-inf"), float("inf"), 1e308)
]


def play(peer: Peer) -> None:
    """One chunk for each piece, with log probabilities."""
    peer.send(sse_head())
    for i, piece in enumerate(PIECES):
        made: Json = delta(content=piece)
        made["choices"][0]["logprobs"] = {"content": [HALF, NOT_FINITE[i % len(NOT_FINITE)]]}
        peer.send_chunks(event(made))
    peer.send_chunks(event(delta("stop")), DONE, LAST_CHUNK)


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with (
        ScriptedUpstream(play) as upstream,
        ServerProcess(server_command, ["--upstream", upstream.url], tmp_path_factory.mktemp("odd")) as made,
    ):
        yield made


@pytest.mark.parametrize("fields", [{}, {"include": ["message.output_text.logprobs"]}], ids=["text", "logprobs"])
@pytest.mark.parametrize("store", [True, False], ids=["kept", "not-kept"])
def test_odd_text_is_streamed_kept_and_replayed_from_every_number(
    server: ServerProcess, fields: dict[str, Any], store: bool
) -> None:
    with Stream.post(server, request("hi", store=store, **fields)) as stream:
        whole = [event.raw for event in stream.rest()]
    ending = check(stream.seen)
    assert (ending.status, ending.texts) == ("completed", [SAID])
    body = make(server, request("hi", store=store, **fields)).json
    assert (body["status"], text_of(body)) == ("completed", SAID)
    logprobs = [part["logprobs"] for item in body["output"] for part in item["content"]]
    assert bool(logprobs[0]) is bool(fields)
    assert [part["logprobs"] for item in ending.response["output"] for part in item["content"]] == logprobs
    if not store:
        return
    assert read(server, body["id"]) == body
    assert ending.response == read(server, stream.id)
    for k in range(-1, len(whole)):
        tail = replay(server, stream.id, k if k >= 0 else None)
        assert [event.raw for event in tail] == (whole[k + 1 :] or whole[-1:])


@pytest.mark.parametrize("store", [True, False], ids=["kept", "not-kept"])
def test_odd_log_probabilities_break_no_chat(server: ServerProcess, store: bool) -> None:
    body = chat(logprobs=True, top_logprobs=1, store=store)
    answer = ask(server.port, body)
    ending = check_chat_stream(answer)
    assert (ending.finish_reason, ending.content) == ("stop", SAID)
    whole = ask(server.port, {**body, "stream": False}).json
    assert whole["choices"][0]["message"]["content"] == SAID
    entries = whole["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["\ufffd", "x"] * len(PIECES)
    if store:
        (kept,), (made,) = read_chat(server, whole["id"])["choices"], whole["choices"]
        assert (kept["message"], kept["finish_reason"]) == (made["message"], made["finish_reason"])
        assert kept["logprobs"] == {"refusal": None, **made["logprobs"]}  # what the upstream leaves out passes so
