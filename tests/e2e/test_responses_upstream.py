"""Responses over another OpenAI-compatible server: what it is sent, and how each of its endings is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.e2e.responses_client import ADD, Json, failed, finished, request, respond, streamed
from tests.e2e.responses_grammar import check_response_stream
from tests.e2e.server import ServerProcess
from tests.scripted_upstream import DONE, Peer, Script, ScriptedUpstream, answer, chunk, delta, event, sse_head, stream
from tests.unit.serve.parse.agents import AGENTS_SECOND

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


def says(*deltas: Json, finish: str | None = "stop", ends: tuple[bytes, ...] = (USAGE, DONE)) -> Script:
    """An answer of these deltas."""
    last = [event(delta(finish))] if finish else []
    return stream(*(event(delta(**fields)) for fields in deltas), *last, *ends)


def call(arguments: str, index: int = 0, **more: Any) -> Json:
    """A delta that begins a call (with `id` and `name`) or goes on with it."""
    function = {"arguments": arguments, **({"name": more.pop("name")} if "name" in more else {})}
    return {"tool_calls": [{"index": index, "type": "function", **more, "function": function}]}


@dataclass(frozen=True)
class Case:
    script: Script
    status: str = "completed"
    texts: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    calls: tuple[tuple[str, str], ...] = ()
    reason: str | None = None
    fields: Json = field(default_factory=dict[str, Any])


BEGIN = call("", id="call_a", name="add")
CASES: dict[str, Case] = {
    "text": Case(says({"content": "Hel"}, {"content": "lo"}), texts=("Hello",)),
    "reasoning": Case(
        says({"reasoning_content": "Hm"}, {"reasoning_content": "m."}, {"content": "Four."}),
        texts=("Four.",),
        reasoning=("Hmm.",),
    ),
    "calls": Case(
        says(
            {"reasoning_content": "Two."},
            {"content": "Both."},
            BEGIN,
            call('{"a": '),
            call("1}"),
            call('{"a": 2}', 1, id="call_b", name="add"),
            finish="tool_calls",
        ),
        texts=("Both.",),
        reasoning=("Two.",),
        calls=(('{"a": 1}', "completed"), ('{"a": 2}', "completed")),
    ),
    "length": Case(says({"content": "Hel"}, finish="length"), "incomplete", ("Hel",), reason="max_output_tokens"),
    "length-in-reasoning": Case(
        says({"reasoning_content": "Hm"}, finish="length"), "incomplete", (), ("Hm",), reason="max_output_tokens"
    ),
    "length-in-arguments": Case(
        says(BEGIN, call('{"a": '), finish="length"),
        "incomplete",
        calls=(('{"a": ', "incomplete"),),
        reason="max_output_tokens",
    ),
    "content-filter": Case(
        says({"content": "Hel"}, finish="content_filter"), "incomplete", ("Hel",), reason="content_filter"
    ),
    "content-filter-in-arguments": Case(
        says(BEGIN, call('{"a": '), finish="content_filter"),
        "incomplete",
        calls=(('{"a": ', "incomplete"),),
        reason="content_filter",
    ),
    "json-cut": Case(
        says({"content": '{"a": '}, finish="length"),
        "incomplete",
        ('{"a": ',),
        reason="max_output_tokens",
        fields={"text": {"format": {"type": "json_object"}}},
    ),
}


def cut(*pieces: bytes) -> Script:
    """An answer that breaks off without the end of its body."""
    return lambda peer: peer.send(sse_head(), *(chunk(piece) for piece in pieces))


HEL = event(delta(content="Hel"))
CALL_BEGUN = (event(delta(**BEGIN)), event(delta(**call('{"a": '))))
ERROR = {"error": {"message": "the GPU is gone", "type": "server_error", "code": 500}}
FAULTS: dict[str, tuple[Script, int, str, str]] = {
    "cut": (cut(HEL), 503, "engine_died", ""),
    "cut-in-arguments": (cut(*CALL_BEGUN), 503, "engine_died", ""),
    "ended-without-a-word": (stream(HEL, DONE), 503, "engine_died", ""),
    "stop-in-arguments": (stream(*CALL_BEGUN, event(delta("stop")), DONE), 502, "tool_call_incomplete", "add"),
    "calls-in-arguments": (stream(*CALL_BEGUN, event(delta("tool_calls")), DONE), 502, "tool_call_incomplete", "add"),
    "unknown-word": (stream(HEL, event(delta("abort")), DONE), 502, "engine_protocol", "abort"),
    "damaged": (stream(HEL, b"data: {malformed\n\n", DONE), 502, "engine_protocol", ""),
    "error-in-the-stream": (stream(HEL, event(ERROR), DONE), 503, "engine_died", "the GPU is gone"),
}


def refuse(status: int, message: str, **headers: str) -> Script:
    body = json.dumps({"error": {"message": message, "type": "some_error", "param": "temperature", "code": "odd"}})
    return lambda peer: peer.send(answer(body.encode(), status, **headers))


def with_logprobs(token: str) -> bytes:
    top = [{"token": token, "logprob": -0.5, "bytes": [72]}, {"token": "X", "logprob": -3.0, "bytes": None}]
    made: Any = delta(content=token)
    made["choices"][0]["logprobs"] = {
        "content": [{"token": token, "logprob": -0.5, "bytes": [72], "top_logprobs": top}]
    }
    return event(made)


PIECE = "a word and \u4e16\u754c, " * 60
SCRIPTS: dict[str, Script] = {
    **{name: case.script for name, case in CASES.items()},
    **{name: fault[0] for name, fault in FAULTS.items()},
    "bad": refuse(400, "a field is wrong"),
    "busy": refuse(429, "slow down", retry_after="7"),
    "long": refuse(400, "This model's maximum context length is 8 tokens"),
    "logprobs": stream(with_logprobs("Hel"), with_logprobs("lo"), event(delta("stop")), USAGE, DONE),
    "sunny": says({"content": '{"answer": "sunny"}'}),
    "choose": says(call('{"a": 1}', id="call_a", name="add"), finish="tool_calls"),
    "pages": says(*[{"content": PIECE}] * 100),
}
"""The last message → what the upstream does."""


def play(peer: Peer) -> None:
    messages: Any = peer.request.json["messages"]
    SCRIPTS[messages[-1]["content"]](peer)


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream(play) as started:
        yield started


@pytest.fixture(scope="module")
def port(
    server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory, upstream: ScriptedUpstream
) -> Iterator[int]:
    """The port of a server over the upstream."""
    with ServerProcess(server_command, ["--upstream", upstream.url], tmp_path_factory.mktemp("upstream")) as server:
        yield server.port


def sent_to(upstream: ScriptedUpstream) -> Any:
    """What the upstream was sent last."""
    return [one.json for one in upstream.requests if one.method == "POST"][-1]


@pytest.mark.parametrize("name", CASES)
def test_the_endings_of_an_upstream_are_told_alike_in_all_three_readings(port: int, name: str) -> None:
    case = CASES[name]
    ending = finished(port, request(name, tools=[ADD], **case.fields))
    assert ending.status == case.status
    assert ending.response["incomplete_details"] == (case.reason and {"reason": case.reason})
    assert tuple(ending.texts) == case.texts
    assert tuple(ending.reasoning) == case.reasoning
    assert tuple((one["arguments"], one["status"]) for one in ending.calls) == case.calls
    assert ending.response["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 16,
    }


@pytest.mark.parametrize("name", FAULTS)
def test_the_faults_of_an_upstream_fail_with_the_cause_and_what_was_made(port: int, name: str) -> None:
    _, status, code, cause = FAULTS[name]
    ending = failed(port, request(name, tools=[ADD]), status, code)
    assert ending.error is not None
    assert cause in ending.error["message"]
    if "arguments" in name:
        assert [(one["arguments"], one["status"]) for one in ending.calls] == [('{"a": ', "incomplete")]
        assert "response.output_item.done" not in [e["type"] for e in ending.events]
    else:
        assert ending.texts == ["Hel"]


def test_a_refusal_of_an_upstream_is_the_clients_status_in_both_modes(port: int) -> None:
    for streaming in (True, False):
        bad = respond(port, request("bad", stream=streaming))
        assert (bad.status, bad.json["error"]["code"], bad.json["error"]["param"]) == (400, "odd", "temperature")
        assert "a field is wrong" in bad.json["error"]["message"]
        busy = respond(port, request("busy", stream=streaming))
        assert (busy.status, busy.headers["retry-after"]) == (429, "7")
        too_long = respond(port, request("long", stream=streaming))
        assert (too_long.status, too_long.json["error"]["code"]) == (400, "context_length_exceeded")


def test_logprobs_are_given_where_they_are_asked_for_alike_in_all_three_readings(
    port: int, upstream: ScriptedUpstream
) -> None:
    include: Json = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    ending = finished(port, request("logprobs", **include))
    assert (sent_to(upstream)["logprobs"], sent_to(upstream)["top_logprobs"]) == (True, 2)
    (part,) = ending.response["output"][0]["content"]
    assert [(one["token"], one["logprob"], one["bytes"]) for one in part["logprobs"]] == [
        ("Hel", -0.5, [72]),
        ("lo", -0.5, [72]),
    ]
    assert [top["token"] for top in part["logprobs"][0]["top_logprobs"]] == ["Hel", "X"]
    deltas = [e["logprobs"] for e in ending.events if e["type"] == "response.output_text.delta"]
    assert [one["token"] for piece in deltas for one in piece] == ["Hel", "lo"]
    (part,) = finished(port, request("logprobs")).response["output"][0]["content"]
    assert part["logprobs"] == []
    assert "logprobs" not in sent_to(upstream)


def test_an_upstream_is_sent_the_conversation_as_a_chat(port: int, upstream: ScriptedUpstream) -> None:
    ending = check_response_stream(respond(port, {**AGENTS_SECOND, "stream": True}))
    assert ending.texts == ['{"answer": "sunny"}']
    sent = sent_to(upstream)
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "tool"]
    assistant = sent["messages"][2]
    assert (assistant["content"], assistant["reasoning_content"]) == ("let me see", "hm")
    (made,) = assistant["tool_calls"]
    assert (made["id"], made["function"]["name"]) == ("call_1", "weather")
    assert made["function"]["arguments"] == '{"city":"Oslo"}'
    assert sent["messages"][3] == {"role": "tool", "content": "sunny", "tool_call_id": "call_1"}
    assert sent["stream"] is True
    assert sent["response_format"]["json_schema"]["strict"] is True
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["weather"]
    assert (sent["temperature"], sent["reasoning_effort"]) == (0.1, "low")
    assert not {"input", "instructions", "text", "store", "include", "truncation", "reasoning"} & sent.keys()


@pytest.mark.parametrize(
    ("choice", "passed"),
    [
        ("required", "required"),
        ({"type": "function", "name": "add"}, {"type": "function", "function": {"name": "add"}}),
        ("none", "none"),
        ("auto", "auto"),
    ],
    ids=["required", "named", "none", "auto"],
)
def test_tool_choice_and_limits_are_passed_on(port: int, upstream: ScriptedUpstream, choice: Any, passed: Any) -> None:
    body = request("choose", tools=[ADD], tool_choice=choice, max_output_tokens=33, parallel_tool_calls=False)
    streamed(port, body)
    sent = sent_to(upstream)
    assert (sent["tool_choice"], sent["max_tokens"], sent["parallel_tool_calls"]) == (passed, 33, False)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "add"}], ids=["required", "named"])
def test_prose_of_an_upstream_that_was_to_call_a_tool_is_a_failure(port: int, choice: Any) -> None:
    ending = streamed(port, request("pages", tools=[ADD], tool_choice=choice))
    assert ending.status == "failed"
    assert ending.error is not None
    assert ending.error["code"] == "tool_call_incomplete"
    assert ending.texts == [PIECE * 100]


def test_no_line_holds_the_answer_more_than_once(port: int) -> None:
    raw = respond(port, request("pages", instructions="Be brief.", tools=[ADD]))
    ending = check_response_stream(raw)
    made = json.dumps(PIECE * 100)
    lines = raw.body.split(b"\n")
    whole = [line for line in lines if len(line) >= len(made)]
    assert len(whole) == 4  # of the text, its part, its item and the response
    response = len(json.dumps({**ending.response, "output": []}))
    assert max(map(len, whole)) <= len(made) + response + 500
    assert max(len(line) for line in lines if b'"delta": ' in line) <= len(json.dumps(PIECE)) + 500
