"""`--upstream-api responses`: an upstream's own Responses stream passes as it came, and what lies in it is repaired."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.e2e.relayed import (
    BEGIN,
    ID,
    USAGE,
    Front,
    bare,
    call,
    calls,
    ended,
    fronted,
    message,
    numbered,
    plays,
    reasoning,
    response,
    says,
    sse,
    thinks,
    wire,
)
from tests.e2e.responses_client import Json
from tests.e2e.responses_grammar import ResponseEnding, check_response_object, check_response_stream
from tests.e2e.server import wait_for
from tests.scripted_upstream import LAST_CHUNK, Peer, Script, answer, chunk, head, sse_head, stream

HELLO = says("Hel", "lo")
ADD = calls('{"a": ', "1}")
KEEPALIVE: list[Json] = [{"type": "keepalive", "message": "still here"}]
SEARCH: list[Json] = [
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {"id": "ws_1", "type": "web_search_call", "status": "in_progress"},
    },
    {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "ws_1"},
    {
        "type": "response.output_item.done",
        "output_index": 0,
        "item": {"id": "ws_1", "type": "web_search_call", "status": "completed"},
    },
]
RIGHT: dict[str, list[Json]] = {
    "text": [*BEGIN, *HELLO, *ended("completed", message("Hello"))],
    "all kinds": [
        *BEGIN,
        *thinks("Hm", "m."),
        *says("Both.", index=1),
        *calls('{"a": 1}', index=2),
        *calls('{"a": ', "2}", index=3, id_="fc_b"),
        *ended("completed", reasoning("Hmm."), message("Both."), call('{"a": 1}'), call('{"a": 2}', id_="fc_b")),
    ],
    "new ids at the end": [*BEGIN, *HELLO, *ended("completed", message("Hello", id_="msg_other"))],
    "unknown events": [
        *BEGIN,
        *KEEPALIVE,
        *SEARCH,
        *says("\u4e16", "\U0001f642", index=1),
        *KEEPALIVE,
        *ended("completed", SEARCH[2]["item"], message("\u4e16\U0001f642")),
    ],
    "cut and told": [*BEGIN, *says("Hel", status="incomplete"), *ended("incomplete", message("Hel", "incomplete"))],
    "cut in a call and told": [
        *BEGIN,
        *calls('{"a": ', status="incomplete"),
        *ended("incomplete", call('{"a": ', "incomplete")),
    ],
    "filtered": [
        *BEGIN,
        *says("Hel", status="incomplete"),
        *ended("incomplete", message("Hel", "incomplete"), incomplete_details={"reason": "content_filter"}),
    ],
    "nothing": [*BEGIN, *ended("completed")],
    "vllm thinks": [
        *BEGIN,
        *[{**e, "type": e["type"].replace("content_part", "reasoning_part")} for e in thinks("Hm", "m.")],
        *says("Hi", index=1),
        *ended("completed", reasoning("Hmm.", id_="rs_other"), message("Hi", id_="msg_other")),
    ],
}
"""Streams with nothing wrong in them, each also a script."""

CUT = {"max_output_tokens": 7}  # what the usage counts
ERROR: Json = {"message": "the GPU is gone", "type": "oom", "code": "E7"}
GONE = "the GPU is gone"
NO_END = "without a terminal event"


@dataclass(frozen=True)
class Case:
    """A stream that has something wrong, and what is to be told of it. `fields` are those of the request."""

    script: Script
    status: str
    texts: tuple[str, ...] = ("Hello",)
    calls: tuple[tuple[str, str], ...] = ()
    reason: str | None = None
    code: str | None = None
    http: int = 503
    says: str = ""
    fields: Json = field(default_factory=dict[str, Any])
    reasoning: tuple[str, ...] = ()


def limited(*events: Json, **more: Any) -> Case:
    fields: Json = {"reason": "max_output_tokens", "fields": CUT, **more}
    return Case(plays(*events), "incomplete", **fields)


def fails(*events: Json, code: str = "engine_died", **more: Any) -> Case:
    return Case(plays(*events), "failed", code=code, **more)


def raw(*pieces: bytes, code: str = "engine_died", **more: Any) -> Case:
    """Good events, and then these bytes."""
    return Case(stream(wire([*BEGIN, *says("Hel", "lo", ends=0)]), *pieces), "failed", code=code, **more)


COMPLETED = ended("completed", message("Hello"))
CUT_CALL = calls('{"a": ')
LIMITED: dict[str, Case] = {
    "completed at the limit": limited(*BEGIN, *HELLO, *COMPLETED),
    "completed at the response's own limit": limited(
        *BEGIN, *HELLO, *ended("completed", message("Hello"), max_output_tokens=7), fields={}
    ),
    "completed at the end of the context": limited(
        *BEGIN,
        *HELLO,
        *ended("completed", message("Hello"), usage={**USAGE, "input_tokens": 4089, "total_tokens": 4096}),
        fields={},
    ),
    "completed says incomplete": limited(
        *BEGIN,
        *HELLO,
        {"type": "response.completed", "response": response("incomplete", [message("Hello")])},
        fields={},
    ),
    "incomplete says completed": limited(
        *BEGIN,
        *HELLO,
        {"type": "response.incomplete", "response": response("completed", [message("Hello")])},
    ),
    "incomplete without a reason at the limit": limited(
        *BEGIN, *HELLO, *ended("incomplete", message("Hello"), incomplete_details=None)
    ),
    "the reason of the example": limited(
        *BEGIN, *HELLO, *ended("incomplete", message("Hello"), incomplete_details={"reason": "max_tokens"}), fields={}
    ),
    "left open at the limit": limited(*BEGIN, *says("Hel", "lo", ends=0), *ended("completed", message("Hello"))),
    "cut in thinking": limited(
        *BEGIN, *thinks("Hm"), *ended("completed", reasoning("Hm")), texts=(), reasoning=("Hm",)
    ),
    "cut behind thinking": limited(
        *BEGIN,
        *thinks("Hm"),
        *says("Hello", index=1),
        *ended("completed", reasoning("Hm"), message("Hello")),
        reasoning=("Hm",),
    ),
    "cut call called completed": limited(
        *BEGIN, *CUT_CALL, *ended("completed", call('{"a": ')), texts=(), calls=(('{"a": ', "incomplete"),)
    ),
    "a whole call before the cut one": limited(
        *BEGIN,
        *calls('{"a": 1}'),
        *calls('{"a": ', index=1, id_="fc_b"),
        *ended("completed", call('{"a": 1}'), call('{"a": ', id_="fc_b")),
        texts=(),
        calls=(('{"a": 1}', "completed"), ('{"a": ', "incomplete")),
    ),
    "a cut call left open": limited(
        *BEGIN, *calls('{"a": ', ends=0), *ended("completed"), texts=(), calls=(('{"a": ', "incomplete"),)
    ),
    "vllm": limited(
        *BEGIN,
        *HELLO,
        {"type": "response.completed", "response": response("incomplete", [message("Hello", id_="msg_other")])},
    ),
    "llama.cpp": Case(
        stream(*map(sse, bare([*BEGIN, *HELLO, *COMPLETED]))),
        "incomplete",
        reason="max_output_tokens",
        fields=CUT,
    ),
}
COMPLETE: dict[str, Case] = {
    "no numbers": Case(stream(*map(sse, [*BEGIN, *HELLO, *COMPLETED])), "completed"),
    "numbers from 1": Case(stream(*map(sse, numbered([*BEGIN, *HELLO, *COMPLETED], 1))), "completed"),
    "numbers with gaps": Case(
        stream(*[sse({**one, "sequence_number": 3 * n}) for n, one in enumerate([*BEGIN, *HELLO, *COMPLETED])]),
        "completed",
    ),
    "llama.cpp as it is": Case(stream(*map(sse, bare([*BEGIN, *HELLO, *COMPLETED]))), "completed"),
    "llama.cpp thinks and calls": Case(
        stream(
            *map(
                sse,
                bare(
                    [
                        *BEGIN,
                        *[e for e in thinks("Hm", ends=0) if "part" not in e],
                        *says("Hello", index=1, ends=0),
                        *calls('{"a": ', "1}", index=2, ends=0),
                        thinks("Hm")[-1],
                        *says("Hello", index=1)[-3:],
                        calls('{"a": 1}', index=2)[-1],
                        *ended("completed", reasoning("Hm"), message("Hello"), call('{"a": 1}')),
                    ]
                ),
            )
        ),
        "completed",
        calls=(('{"a": 1}', "completed"),),
        reasoning=("Hm",),
    ),
    "no created": Case(plays(*HELLO, *COMPLETED), "completed"),
    "created alone": Case(plays(BEGIN[0], *HELLO, *COMPLETED), "completed"),
    "created twice": Case(plays(BEGIN[0], *BEGIN, *HELLO, *COMPLETED), "completed"),
    "no done events": Case(plays(*BEGIN, *says("Hel", "lo", ends=0), *COMPLETED), "completed"),
    "an item's end alone": Case(plays(*BEGIN, *says("Hel", "lo", ends=0), HELLO[-1], *COMPLETED), "completed"),
    "no part": Case(plays(*BEGIN, *[e for e in HELLO if "part" not in e], *COMPLETED), "completed"),
    "no deltas": Case(plays(*BEGIN, *[e for e in HELLO if "delta" not in e], *COMPLETED), "completed"),
    "deltas alone": Case(plays(*BEGIN, *[e for e in HELLO if "delta" in e], *COMPLETED), "completed"),
    "the end alone": Case(plays(*BEGIN, *COMPLETED), "completed"),
    "an empty end": Case(plays(*BEGIN, *HELLO, *ended("completed")), "completed"),
    "a call without its end": Case(
        plays(*BEGIN, *calls('{"a": 1}', ends=0), *ended("completed", call('{"a": 1}'))),
        "completed",
        (),
        (('{"a": 1}', "completed"),),
    ),
    "arguments at the end alone": Case(
        plays(*BEGIN, *calls(ends=0), calls('{"a": 1}')[-1], *ended("completed", call('{"a": 1}'))),
        "completed",
        (),
        (('{"a": 1}', "completed"),),
    ),
    "one json body": Case(
        lambda peer: peer.send(answer(json.dumps(response("completed", [message("Hello")])).encode())), "completed"
    ),
    "names by the event line alone": Case(
        stream(*[sse({k: v for k, v in e.items() if k != "type"}, e["type"]) for e in [*BEGIN, *HELLO, *COMPLETED]]),
        "completed",
    ),
    "no event lines": Case(stream(*[sse(e, "") for e in numbered([*BEGIN, *HELLO, *COMPLETED])]), "completed"),
    "crlf and bom": Case(
        stream(b"\xef\xbb\xbf" + wire([*BEGIN, *HELLO, *COMPLETED]).replace(b"\n", b"\r\n")), "completed"
    ),
    "a chat's end mark": Case(stream(wire([*BEGIN, *HELLO, *COMPLETED]), b"data: [DONE]\n\n"), "completed"),
    "idle lines": Case(
        stream(wire(BEGIN), b": ping\n\n", b"data:\n\n", b"data: : ping\n\n", *map(sse, [*HELLO, *COMPLETED])),
        "completed",
    ),
    "a byte at a time": Case(
        lambda peer: (
            peer.send(sse_head()),
            [peer.send(chunk(bytes([b]))) for b in wire(RIGHT["text"])],
            peer.send(LAST_CHUNK),
        )[0],  # type: ignore[func-returns-value]  # one after the other
        "completed",
    ),
    "completed twice": Case(plays(*BEGIN, *HELLO, *COMPLETED, *COMPLETED), "completed"),
    "no end of the body": Case(
        lambda peer: peer.send(sse_head(), chunk(wire([*BEGIN, *HELLO, *COMPLETED]))), "completed"
    ),
}
OPEN = says("Hel", "lo", ends=0)


def silent(peer: Peer) -> None:
    peer.send(sse_head(), chunk(wire([*BEGIN, *OPEN])))
    assert peer.wait_gone()


def commenting(peer: Peer) -> None:
    peer.send(sse_head(), chunk(wire([*BEGIN, *OPEN])))
    while not peer.gone.wait(0.05):
        peer.send(chunk(b": ping\n\n"), chunk(b"data: : ping\n\n"))  # until the client leaves, which ends the script


FAILING: dict[str, Case] = {
    "no terminal": fails(*BEGIN, *OPEN, says=NO_END),
    "no terminal behind a whole item": fails(*BEGIN, *HELLO, says=NO_END),
    "no terminal behind a whole call": fails(
        *BEGIN, *ADD, texts=(), calls=(('{"a": 1}', "incomplete"),), says=NO_END
    ),
    "no terminal in a call": fails(*BEGIN, *calls('{"a": ', ends=0), texts=(), calls=(('{"a": ', "incomplete"),)),
    "end mark without a terminal": raw(b"data: [DONE]\n\n", says=NO_END),
    "no end of the body": Case(
        lambda peer: peer.send(sse_head(), chunk(wire([*BEGIN, *OPEN]))),
        "failed",
        code="engine_died",
        says="closed in the middle",
    ),
    "no http": Case(
        lambda peer: peer.send(sse_head(), chunk(wire([*BEGIN, *OPEN])), b"nonsense\r\n"),
        "failed",
        code="engine_protocol",
        http=502,
        says="not HTTP",
    ),
    "error event": raw(sse({**ERROR, "type": "error", "param": None}), says=GONE),
    "error event, nested": raw(sse({"type": "error", "error": ERROR}), says=GONE),
    "chat's error": raw(sse({"error": ERROR}, ""), says=GONE),
    "chat's error and end mark": raw(sse({"error": ERROR}, ""), b"data: [DONE]\n\n", says=GONE),
    "error text": raw(sse({"error": GONE}, ""), says=GONE),
    "error line": raw(b"error: " + json.dumps(ERROR).encode() + b"\n\n", says=GONE),
    "error event, no json": raw(b"event: error\ndata: the GPU is gone\n\n", says=GONE),
    "raw json": raw(json.dumps({"error": ERROR}).encode() + b"\n", says=GONE),
    "html": raw(b"<html><body>502 Bad Gateway</body></html>\n", says="502 Bad Gateway"),
    "failed": fails(*BEGIN, *OPEN, *ended("failed", error={"code": "server_error", "message": GONE}), says=GONE),
    "failed without a reason": fails(*BEGIN, *OPEN, *ended("failed"), says="no reason"),
    "failed called completed": fails(
        *BEGIN, *HELLO, {"type": "response.completed", "response": response("failed", error=ERROR)}, says=GONE
    ),
    "completed with an error": fails(*BEGIN, *HELLO, *ended("completed", message("Hello"), error=ERROR), says=GONE),
    "failed after completed": fails(*BEGIN, *HELLO, *COMPLETED, *ended("failed", error=ERROR), says=GONE),
    "error after completed": Case(
        stream(wire([*BEGIN, *HELLO, *COMPLETED]), sse({"error": ERROR}, "")), "failed", code="engine_died", says=GONE
    ),
    "more after completed": fails(
        *BEGIN, *HELLO, *COMPLETED, HELLO[2], code="engine_protocol", http=502, says="after its end"
    ),
    "more of an item that was done": fails(
        *BEGIN, *HELLO, HELLO[2], *COMPLETED, code="engine_protocol", http=502, says="more of an item"
    ),
    "another status": fails(
        *BEGIN, *HELLO, {"type": "response.completed", "response": response("aborted")},
        code="engine_protocol", http=502, says="'aborted'",
    ),
    "completed and still running": fails(
        *BEGIN, *HELLO, {"type": "response.completed", "response": response(RUNNING := "in_progress")},
        code="engine_protocol", http=502, says=RUNNING,
    ),
    "a home-made reason": fails(
        *BEGIN, *HELLO, *ended("incomplete", message("Hello"), incomplete_details={"reason": "tired"}),
        code="engine_protocol", http=502, says="tired",
    ),
    "incomplete without a reason": fails(
        *BEGIN, *HELLO, *ended("incomplete", message("Hello"), incomplete_details=None),
        code="engine_protocol", http=502, says="without a reason",
    ),
    "completed with an item that is not": fails(
        *BEGIN, *says("Hel", "lo", status="incomplete"), *COMPLETED, code="engine_protocol", http=502, says="incomplete"
    ),
    "cut call called completed": fails(
        *BEGIN, *CUT_CALL, *ended("completed", call('{"a": ')),
        texts=(), calls=(('{"a": ', "incomplete"),), code="tool_call_incomplete", http=502, says="'add'",
    ),
    "cut call before a whole one": fails(
        *BEGIN, *CUT_CALL, *calls('{"a": 1}', index=1, id_="fc_b"),
        *ended("completed", call('{"a": '), call('{"a": 1}', id_="fc_b")),
        texts=(), calls=(('{"a": ', "incomplete"), ('{"a": 1}', "incomplete")), code="tool_call_incomplete", http=502,
    ),
    "arguments told in two ways": fails(
        *BEGIN, *calls('{"a": ', ends=0), calls('{"b": 1}')[-1], *ended("completed", call('{"b": 1}')),
        texts=(), calls=(('{"a": ', "incomplete"),), code="tool_call_incomplete", http=502,
    ),
    "a call that never began": fails(
        *BEGIN, *HELLO, ADD[1], code="engine_protocol", http=502, says="never began"
    ),
    "no json": raw(b"data: {oops\n\n", code="engine_protocol", http=502, says="oops"),
    "no object": raw(b"data: [1]\n\n", code="engine_protocol", http=502, says="not a JSON object"),
    "no type": raw(b'data: {"a": 1}\n\n', code="engine_protocol", http=502, says="without a type"),
    "a type with a line end": raw(sse({"type": "a\nb"}, ""), code="engine_protocol", http=502, says="type"),
    "a delta that is no text": raw(
        sse({**HELLO[2], "delta": 5}), code="engine_protocol", http=502, says="no text"
    ),
    "not the json that was asked for": fails(
        *BEGIN, *HELLO, *COMPLETED, code="structured_output_failed", http=502, says="not JSON",
        fields={"text": {"format": {"type": "json_object"}}},
    ),
    "prose where a call is due": fails(
        *BEGIN, *HELLO, *COMPLETED, code="tool_call_incomplete", http=502, says="tool_choice",
        fields={"tools": [{"type": "function", "name": "add"}], "tool_choice": "required"},
    ),
    "one json body that lies": Case(
        lambda peer: peer.send(answer(json.dumps(response("completed", [call('{"a": ')])).encode())),
        "failed", (), (('{"a": ', "incomplete"),), code="tool_call_incomplete", http=502,
    ),
    "silence": Case(silent, "failed", code="engine_died", says="said nothing for 1 s"),
    "silence with comments": Case(commenting, "failed", code="engine_died", says="said nothing for 1 s"),
}  # fmt: skip


REFUSED: dict[str, tuple[bytes, int, str, str]] = {
    "html page": (answer(b"<html>log in</html>", 200, "text/html"), 502, "engine_protocol", "text/html"),
    "400": (answer(json.dumps({"error": {**ERROR, "param": "top_p"}}).encode(), 400), 400, "E7", GONE),
    "500": (answer(json.dumps({"error": ERROR}).encode(), 500), 500, "E7", GONE),
    "too long": (
        answer(b'{"error": {"message": "maximum context length is 8 tokens"}}', 400),
        400, "context_length_exceeded", "8 tokens",
    ),
    "nothing at all": (b"", 503, "engine_died", "without an answer"),
    "a redirect": (head(302, location="/x", content_length="0"), 502, "engine_protocol", "302"),
}  # fmt: skip
REPAIRED = {**LIMITED, **COMPLETE}
SCRIPTS: dict[str, Script] = {
    **{name: plays(*events) for name, events in RIGHT.items()},
    **{f"repaired: {name}": case.script for name, case in REPAIRED.items()},
    **{f"failing: {name}": case.script for name, case in FAILING.items()},
    **{name: (lambda peer, given=given: peer.send(given[0])) for name, given in REFUSED.items()},
}


@pytest.fixture(scope="module")
def front(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with fronted(server_command, tmp_path_factory.mktemp("relayed"), SCRIPTS, "--silence-s", "1") as made:
        yield made


@pytest.mark.parametrize("name", RIGHT)
def test_a_stream_with_nothing_wrong_passes_byte_for_byte(front: Front, name: str) -> None:
    got = front.ask(name, seed=1, odd={"x": 1})
    assert (got.status, got.terminated) == (200, True)
    assert got.body == wire(RIGHT[name])
    assert front.sent.path == "/v1/responses"
    assert front.sent.json == {"input": name, "stream": True, "seed": 1, "odd": {"x": 1}}


@pytest.mark.parametrize("name", RIGHT)
def test_one_body_is_the_response_that_the_stream_ends_with(front: Front, name: str) -> None:
    got = front.ask(name, stream=False)
    assert got.status == 200
    assert got.json == RIGHT[name][-1]["response"]
    assert front.sent.json["stream"] is True  # so that a client who leaves ends it


def check_told(ending: ResponseEnding, case: Case) -> None:
    assert ending.status == case.status
    assert ending.response["incomplete_details"] == (case.reason and {"reason": case.reason})
    assert tuple(ending.texts) == case.texts
    assert tuple(ending.reasoning) == case.reasoning
    assert tuple((one["arguments"], one["status"]) for one in ending.calls) == case.calls


@pytest.mark.parametrize("name", REPAIRED)
def test_what_is_wrong_is_put_right_in_stream_and_body(front: Front, name: str) -> None:
    case = REPAIRED[name]
    ending = check_response_stream(front.ask(f"repaired: {name}", **case.fields))
    check_told(ending, case)
    made = [item["status"] for item in ending.response["output"]]
    assert made[:-1] == ["completed"] * (len(made) - 1)
    assert made[-1] == ("completed" if case.status == "completed" else "incomplete")
    assert ending.response["id"] == ID or name == "no created"
    assert ending.response["usage"]["output_tokens"] == 7
    whole = front.ask(f"repaired: {name}", stream=False, **case.fields)
    assert whole.status == 200
    check_response_object(whole.json)
    assert untimed(whole.json) == untimed(ending.response)


def untimed(given: Json) -> Json:
    """Without what is ours where the upstream says nothing."""
    return {**given, "id": "", "created_at": 0, "completed_at": given["completed_at"] and 0}


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_is_told_with_its_cause_and_what_was_made(front: Front, name: str) -> None:
    case = FAILING[name]
    got = front.ask(f"failing: {name}", **case.fields)
    ending = check_response_stream(got)
    check_told(ending, case)
    assert ending.error is not None
    assert ending.error["code"] == case.code
    assert case.says in ending.error["message"]
    assert ending.response["id"] == ID
    assert [one["status"] for one in ending.response["output"]][-1:] == (
        ["incomplete"] if ending.response["output"] else []
    )
    whole = front.ask(f"failing: {name}", stream=False, **case.fields)
    assert (whole.status, whole.json["error"]["code"]) == (case.http, case.code)
    assert case.says in whole.json["error"]["message"]
    assert whole.json["error"].get("partial_output", "") == "".join(case.texts)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("streaming", [True, False])
def test_a_refusal_is_a_status_in_both_modes(front: Front, name: str, streaming: bool) -> None:
    _, status, code, why = REFUSED[name]
    got = front.ask(name, stream=streaming)
    assert (got.status, got.json["error"]["code"]) == (status, code)
    assert why in got.json["error"]["message"]


def test_after_all_of_it_the_server_is_well(front: Front) -> None:
    assert front.ask("text").body == wire(RIGHT["text"])
    wait_for(front.server.settled, "the server is idle again")
    assert "internal error" not in front.server.log()
