"""Messages over another OpenAI-compatible server: what it is sent, and how each of its endings is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.gateway import Gateway, gateway
from tests.e2e.lies import LIES, REFUSED, SINGLE, TEXT, call, finish
from tests.e2e.messages_client import (
    ADD,
    COUNT,
    Json,
    check_message_stream,
    failed,
    finished,
    refused,
    request,
    send,
    streamed,
    total,
)
from tests.scripted_upstream import (
    DONE,
    LAST_CHUNK,
    MODELS,
    Peer,
    Script,
    answer,
    chunk,
    delta,
    event,
    sse_head,
    stream,
)

USAGE = event(
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }
)


def says(*deltas: Json, word: str = "stop", ends: tuple[bytes, ...] = (USAGE, DONE)) -> Script:
    return stream(*(event(delta(**fields)) for fields in deltas), finish(word), *ends)


def stopped_by(key: str, value: object) -> Json:
    """A last chunk that says what ended the answer, as vLLM and SGLang do."""
    made: Json = delta("stop")
    made["choices"][0][key] = value
    return made


@dataclass(frozen=True)
class Case:
    script: Script
    stop: str = "end_turn"
    texts: tuple[str, ...] = ()
    thinking: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    fields: Json = field(default_factory=dict[str, Any])


SECOND: Json = {"index": 1, "id": "call_b"}
FORMAT: Json = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}
CASES: dict[str, Case] = {
    "text": Case(says({"content": "Hel"}, {"content": "lo"}), texts=("Hello",)),
    "thinking": Case(
        says({"reasoning_content": "Hm"}, {"reasoning_content": "m."}, {"content": "Four."}),
        texts=("Four.",),
        thinking=("Hmm.",),
    ),
    "calls": Case(
        says(
            {"reasoning_content": "Two."},
            {"content": "Both."},
            call("", "add"),
            call('{"a": '),
            call("1}"),
            call('{"a": 2}', "add", **SECOND),
            word="tool_calls",
        ),
        "tool_use",
        ("Both.",),
        ("Two.",),
        ('{"a": 1}', '{"a": 2}'),
    ),
    "calls at once": Case(  # the second one is told when the first is whole
        says(
            call('{"a"', "add"),
            call("{", "add", **SECOND),
            call(": 1"),
            call('"a": 2', index=1),
            call("}"),
            call("}", index=1),
            {"content": "Done."},
            word="tool_calls",
        ),
        "tool_use",
        ("Done.",),
        (),
        ('{"a": 1}', '{"a": 2}'),
    ),
    "text after a call": Case(
        says(call("{}", "add"), {"content": "Done."}, word="tool_calls"), "tool_use", ("Done.",), (), ("{}",)
    ),
    "nothing": Case(says()),
    **{
        f"a stop string, told as {key}": Case(
            stream(event(delta(content="one ")), event(stopped_by(key, "END")), USAGE, DONE),
            "stop_sequence",
            ("one ",),
            fields={"stop_sequences": ["X", "END"]},
        )
        for key in ("stop_reason", "matched_stop")
    },
    "a stop string that was not asked for": Case(
        stream(event(delta(content="one ")), event(stopped_by("stop_reason", "eos")), USAGE, DONE),
        "end_turn",
        ("one ",),
        fields={"stop_sequences": ["X", "END"]},
    ),
    "no end marker": Case(says({"content": "Hi"}, ends=()), texts=("Hi",)),
    "length": Case(says({"content": "Hel"}, word="length"), "max_tokens", ("Hel",)),
    "length in the thinking": Case(says({"reasoning_content": "Hm"}, word="length"), "max_tokens", (), ("Hm",)),
    "length in the arguments": Case(
        says(call("", "add"), call('{"a": '), word="length"), "max_tokens", calls=('{"a": ',)
    ),
    "length in two calls at once": Case(
        says(call('{"a"', "add"), call('{"b"', "add", **SECOND), word="length"), "max_tokens", calls=('{"a"', '{"b"')
    ),
    "content filter": Case(says({"content": "Hel"}, word="content_filter"), "refusal", ("Hel",)),
    "json cut": Case(says({"content": '{"a": '}, word="length"), "max_tokens", ('{"a": ',), fields=FORMAT),
}


def counts(peer: Peer) -> None:
    """vLLM's `/tokenize`."""
    assert peer.request.path == "/tokenize"
    assert set(peer.request.json) == {"model", "messages", "tools"}
    peer.send(answer(json.dumps({"count": 5, "max_model_len": 100, "tokens": [1] * 5}).encode()))


def refuses(status: int, message: str, **headers: str) -> Script:
    body = json.dumps({"error": {"message": message, "type": "some_error", "param": None, "code": "odd"}})
    return lambda peer: peer.send(answer(body.encode(), status, **headers))


def split(peer: Peer) -> None:
    """A whole answer, byte by byte."""
    events = (event(delta(content="Grüß")), event(delta(content="e 😀")), finish("stop"), USAGE, DONE)
    peer.send(sse_head())
    peer.send_byte_by_byte(b"".join(chunk(piece) for piece in events) + LAST_CHUNK)


SCRIPTS: dict[str, Script] = {
    **{name: case.script for name, case in CASES.items()},
    **{f"lie: {name}": lie.script(1) for name, lie in LIES.items()},
    **{name: given[0] for name, given in SINGLE.items()},
    **{f"refused: {name}": (lambda peer, raw=given[0]: peer.send(raw)) for name, given in REFUSED.items()},
    "odd number": says(call('{"a": NaN}', "add"), word="tool_calls"),
    "bad": refuses(400, "a field is wrong"),
    "busy": refuses(429, "slow down", retry_after="7"),
    "unknown model": refuses(404, "no such model"),
    "long": refuses(400, "This model's maximum context length is 8 tokens"),
    "split": split,
    "count": counts,
}


@pytest.fixture(scope="module")
def front(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("upstream")
    with gateway(server_command, folder, SCRIPTS, "--silence-s", "1", "--upstream-key", "theirs") as pair:
        yield pair


@pytest.mark.parametrize("name", CASES)
def test_each_ending_of_an_upstream_is_told_in_the_apis_words(front: Gateway, name: str) -> None:
    case = CASES[name]
    ending = streamed(front.port, request(name, tools=[ADD], **case.fields))
    assert ending.stop_reason == case.stop
    assert ending.stop_sequence == ("END" if case.stop == "stop_sequence" else None)
    assert (ending.of("text"), ending.of("thinking"), ending.of("tool_use")) == (case.texts, case.thinking, case.calls)
    if name != "no end marker":
        assert ending.usage == {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 7,
            "output_tokens_details": {"thinking_tokens": 2},
        }
    finished(front.port, request(name, tools=[ADD], **case.fields))


def test_arguments_with_a_number_that_is_none_are_not_json(front: Gateway) -> None:
    ending = failed(front.port, request("odd number", tools=[ADD]), 502)
    assert ending.error is not None
    assert "not JSON" in ending.error["message"]


@pytest.mark.parametrize("name", LIES)
def test_an_upstream_that_lies_fails_with_the_cause(front: Gateway, name: str) -> None:
    lie = LIES[name]
    ending = failed(front.port, request(f"lie: {name}", tools=[ADD]), lie.status)
    assert ending.error is not None
    assert lie.says in ending.error["message"]
    (text, *_) = ending.of("text")
    assert text.startswith(TEXT)
    assert all(not block.stopped for block in ending.calls)


@pytest.mark.parametrize("name", SINGLE)
def test_an_upstream_that_breaks_or_hangs_fails_with_the_cause(front: Gateway, name: str) -> None:
    _, _, status, says_ = SINGLE[name]
    ending = streamed(front.port, request(name))
    assert ending.error is not None
    assert says_ in ending.error["message"]
    assert send(front.port, request(name, stream=False)).status == status


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_upstream_answers_instead_of_an_answer_is_a_status(front: Gateway, name: str) -> None:
    _, status, _, says_ = REFUSED[name]
    for streams in (True, False):
        answered = send(front.port, request(f"refused: {name}", stream=streams))
        assert answered.status == status
        assert says_ in refused(answered)["message"]


def test_an_upstreams_own_refusal_keeps_its_status(front: Gateway) -> None:
    for streams in (True, False):
        bad = send(front.port, request("bad", stream=streams))
        assert (bad.status, refused(bad)["message"]) == (400, "a field is wrong")
        busy = send(front.port, request("busy", stream=streams))
        assert (busy.status, busy.headers["retry-after"]) == (429, "7")
        refused(busy)
        assert refused(send(front.port, request("unknown model", stream=streams)))["type"] == "not_found_error"
        long = send(front.port, request("long", stream=streams))
        assert long.status == 400
        assert refused(long)["message"].startswith("prompt is too long: This model's")


def test_an_upstream_is_sent_a_chat(front: Gateway) -> None:
    body = request(
        "text",
        thinking=True,
        system="Be brief.",
        tools=[{**ADD, "cache_control": {"type": "ephemeral"}}, {"type": "web_search_20250305", "name": "web_search"}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        top_k=3,
        temperature=0.5,
        metadata={"user_id": "u"},
        output_config={"effort": "high"},
        seed=7,
    )
    failed(front.port, body, 502)  # no call was made
    assert front.sent.headers["authorization"] == "Bearer theirs"
    assert "x-api-key" not in front.sent.headers
    assert front.sent.json == {
        "model": "any",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "text"}],
        "max_tokens": 3_000,
        "temperature": 0.5,
        "top_k": 3,
        "stop": ["END"],
        "seed": 7,
        "reasoning_effort": "high",
        "tools": [
            {
                "type": "function",
                "function": {"name": "add", "description": "Adds.", "parameters": ADD["input_schema"]},
            }
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_character_that_is_split_over_reads_arrives_whole(front: Gateway) -> None:
    assert finished(front.port, request("split")).of("text") == ("Grüße 😀",)


def test_a_last_message_of_the_assistant_is_refused(front: Gateway) -> None:
    history = [{"role": "user", "content": "text"}, {"role": "assistant", "content": "The"}]
    for path in ("/v1/messages", COUNT):
        answered = send(front.port, request(messages=history), path=path)
        assert answered.status == 400
        assert "assistant" in refused(answered)["message"]


def test_a_count_is_refused_where_the_upstream_has_none(front: Gateway) -> None:
    answered = send(front.port, request("text"), path=COUNT)
    assert answered.status == 400
    assert "cannot count" in refused(answered)["message"]


def test_vllm_counts_a_prompt(server_command: tuple[str, ...], tmp_path: Path) -> None:
    cards: Any = MODELS["data"]
    models = {**MODELS, "data": [{**cards[0], "owned_by": "vllm"}]}
    pages = {"/v1/models": answer(json.dumps(models).encode()), "/health": answer(b"")}
    with gateway(server_command, tmp_path, SCRIPTS, pages=pages) as pair:
        answered = send(pair.port, request("count", tools=[ADD]), path=COUNT)
        assert answered.json == {"input_tokens": 5}
        ending = check_message_stream(send(pair.port, request("text")))
        assert total(ending.usage)[0] == 9
