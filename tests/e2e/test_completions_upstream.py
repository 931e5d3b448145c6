"""Completions over another OpenAI-compatible server: what it is sent, and how each of its endings is told."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Connection
from tests.e2e.completions_client import ROUTE, Json, failed, finished, refused, request, send, streamed, total
from tests.e2e.completions_grammar import check_completion, check_completion_stream
from tests.e2e.lies import GONE, LIES, REFUSED, TEXT, Lie, said
from tests.e2e.oddities import ODDITIES, TEXTS
from tests.e2e.server import ServerProcess, wait_for
from tests.scripted_upstream import (
    DONE,
    LAST_CHUNK,
    Peer,
    Script,
    ScriptedUpstream,
    answer,
    chunk,
    event,
    head,
    sse_head,
    stream,
)

COUNTS: Json = {"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
USAGE = event({"choices": [], "usage": COUNTS})
_EVENT = re.compile(rb"(data: ?)(\{.*\})")


def as_completion(raw: bytes) -> bytes:
    """Chunks of a chat as those of a completion; anything else as it is."""
    return _EVENT.sub(lambda found: found[1] + _chunk_as_completion(found[2]), raw)


def _chunk_as_completion(raw: bytes) -> bytes:
    try:
        value: Any = json.loads(raw)
    except ValueError:
        return raw
    choices = value.get("choices")
    if not choices or not any("delta" in choice for choice in choices):
        return raw
    for choice in choices:
        delta: Json = choice.pop("delta", None) or {}
        choice["text"] = delta.get("content") or ""
    return json.dumps({**value, "object": "text_completion"}, ensure_ascii=True).encode()


def text(said_: str, word: str | None = None, index: int = 0, **fields: Any) -> bytes:
    """One chunk."""
    choice: Json = {"text": said_, "index": index, "logprobs": None, "finish_reason": word, **fields}
    return event({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})


def lying(lie: Lie) -> Script:
    begun = [as_completion(piece) for piece in said()]
    if lie.ended:
        begun.append(text("", "stop"))
    pieces = [as_completion(piece) for piece in lie.pieces]
    if lie.whole:
        return stream(*begun, *pieces)
    return lambda peer: peer.send(sse_head(), *[chunk(piece) for piece in begun], *lie.pieces)


TEXT_LIES = {name: lie for name, lie in LIES.items() if "argument" not in name and "a call without" not in name}
"""Those that need no call."""
TEXT_ODDITIES = {
    name: pieces
    for name, pieces in ODDITIES.items()
    if not any(word in name for word in ("delta", "one event", "the message", "byte by byte", "reads", "bom", "cr"))
}
LOGPROBS: Json = {"tokens": ["Hel"], "token_logprobs": [-0.5], "top_logprobs": [{"Hel": -0.5}], "text_offset": [0]}
MORE: Json = {"tokens": ["lo"], "token_logprobs": [-0.1], "top_logprobs": [{"lo": -0.1}], "text_offset": [3]}


@dataclass(frozen=True)
class Case:
    script: Script
    texts: tuple[str, ...] = (TEXT,)
    reasons: tuple[str, ...] = ("stop",)
    counts: tuple[int, int] | None = (9, 7)
    fields: Json = field(default_factory=dict[str, Any])


def one_body(value: Json) -> Script:
    return lambda peer: peer.send(answer(json.dumps(value).encode()))


WHOLE: Json = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "m",
    "choices": [{"text": TEXT, "index": 0, "finish_reason": "stop"}],
    "usage": COUNTS,
}
TWO: Json = {"n": 2}
PER_CHOICE = [
    event(
        {
            "choices": [{"text": "", "index": i, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": made},
        }
    )
    for i, made in ((1, 3), (0, 4))
]
CASES: dict[str, Case] = {
    "right": Case(stream(text("Hel"), text("lo"), text("", "stop"), USAGE, DONE)),
    "the word with the text": Case(stream(text("Hel"), text("lo", "stop"), USAGE, DONE)),
    "length": Case(stream(text(TEXT), text("", "length"), USAGE, DONE), reasons=("length",)),
    "content filter": Case(stream(text(TEXT), text("", "content_filter"), USAGE, DONE), reasons=("content_filter",)),
    "nothing": Case(stream(text("", "stop"), USAGE, DONE), ("",)),
    "no counts": Case(stream(text("Hel"), text("lo"), text("", "stop"), DONE), counts=(0, 2)),
    "no end marker": Case(stream(text("Hel"), text("lo"), text("", "stop"), USAGE)),
    "null at first": Case(stream(b"data: null\n\n", text(TEXT), text("", "stop"), USAGE, DONE)),
    "a choice too many": Case(stream(text(TEXT), text("no", "stop", 1), text("", "stop"), USAGE, DONE)),
    "one body": Case(one_body(WHOLE)),
    "two": Case(
        stream(text("a"), text("b", None, 1), text("", "length", 1), text("A"), text("", "stop"), USAGE, DONE),
        ("aA", "b"),
        ("stop", "length"),
        fields=TWO,
    ),
    "two with counts of each": Case(
        stream(text("b", None, 1), text("a"), *PER_CHOICE, DONE), ("a", "b"), ("stop", "stop"), fields=TWO
    ),
    "two in one body": Case(
        one_body({**WHOLE, "choices": [*WHOLE["choices"], {"text": "b", "index": 1, "finish_reason": "length"}]}),
        (TEXT, "b"),
        ("stop", "length"),
        fields=TWO,
    ),
}


@dataclass(frozen=True)
class Broken:
    """An answer of two choices that fails: what of it is told."""

    pieces: tuple[bytes, ...]
    reasons: tuple[str, str]
    code: str = "engine_died"
    status: int = 503
    says: str = ""


BROKEN: dict[str, Broken] = {
    "one without a word": Broken((text("", "stop", 1), DONE), ("error", "stop"), says="without a finish_reason"),
    "the other without a word": Broken((text("", "stop"), DONE), ("stop", "error"), says="(choice 1)"),
    "both without a word": Broken((), ("error", "error"), says="without a finish_reason"),
    "one with an odd word": Broken(
        (text("", "stop"), text("", "abort", 1), DONE), ("stop", "error"), "engine_protocol", 502, "'abort'"
    ),
    "an error while one is open": Broken(
        (text("", "stop", 1), event({"error": {"message": GONE}}), DONE), ("error", "stop"), says=GONE
    ),
    "an error after both": Broken(
        (text("", "stop", 1), text("", "stop"), event({"error": {"message": GONE}}), DONE),
        ("error", "error"),
        says=GONE,
    ),
}
RESETS: list[threading.Event] = []


def reset(peer: Peer) -> None:
    cue = threading.Event()
    RESETS.append(cue)
    peer.send(sse_head(), chunk(text("Hel")), chunk(text("lo")))
    peer.wait(cue)
    peer.reset()


def stay(peer: Peer) -> None:
    peer.send(sse_head(), chunk(text("Hel")))
    assert peer.wait_gone()


def split(peer: Peer) -> None:
    """A whole answer, byte by byte."""
    raw = '{"choices": [{"text": "Grüße 😀", "index": 0, "finish_reason": "stop"}]}'.encode()
    peer.send(sse_head())
    peer.send_byte_by_byte(b"".join(chunk(piece) for piece in (b"data: " + raw + b"\n\n", DONE)) + LAST_CHUNK)


def refuses(status: int, message: str, **headers: str) -> Script:
    body = json.dumps({"error": {"message": message, "type": "some_error", "param": None, "code": "odd"}})
    return lambda peer: peer.send(answer(body.encode(), status, **headers))


SCRIPTS: dict[str, Script] = {
    **{name: case.script for name, case in CASES.items()},
    **{f"lie: {name}": lying(lie) for name, lie in TEXT_LIES.items()},
    **{f"odd: {name}": stream(*map(as_completion, pieces)) for name, pieces in TEXT_ODDITIES.items()},
    **{
        f"text: {name}": stream(text("|").replace(b'"|"', raw), text("", "stop"), DONE)
        for name, (raw, _) in TEXTS.items()
    },
    **{f"broken: {name}": stream(text("a"), text("b", None, 1), *one.pieces) for name, one in BROKEN.items()},
    **{f"refused: {name}": (lambda peer, raw=given[0]: peer.send(raw)) for name, given in REFUSED.items()},
    "bytes": split,
    "reset": reset,
    "stay": stay,
    "silent": lambda peer: (peer.send(sse_head(), chunk(text("Hel"))), peer.wait_gone(), None)[-1],
    "a chat": stream(*said(), DONE),
    "no text": stream(text("Hel"), event({"choices": [{"text": 7, "index": 0}]}), DONE),
    "logprobs": stream(text("Hel", logprobs=LOGPROBS), text("lo", logprobs=MORE), text("", "stop"), DONE),
    "headers": stream(text(TEXT, "stop"), DONE, x_request_id="up-1"),
    "busy": refuses(429, "slow down", retry_after="7"),
    "bad": refuses(400, "a field is wrong"),
    "long": refuses(400, "This model's maximum context length is 8 tokens"),
    "no such page": lambda peer: peer.send(answer(b'{"detail": "Not Found"}', 404)),
}


class Front:
    """A server over upstreams that do what the prompt names."""

    def __init__(self, server: ServerProcess, upstreams: list[ScriptedUpstream]) -> None:
        self.server, self.upstreams = server, upstreams
        self.port = server.port

    @property
    def sent(self) -> Any:
        """What the first upstream was sent last."""
        return [one for one in self.upstreams[0].requests if one.method == "POST"][-1]


def play(peer: Peer) -> None:
    assert peer.request.path == ROUTE
    prompt: Any = peer.request.json["prompt"]
    SCRIPTS["right" if isinstance(prompt, list) else prompt](peer)


@pytest.fixture(scope="module")
def front(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("upstream")
    with (
        ScriptedUpstream(play) as upstream,
        ServerProcess(
            server_command, ["--upstream", upstream.url, "--silence-s", "1", "--upstream-key", "theirs"], folder
        ) as server,
    ):
        yield Front(server, [upstream])


@pytest.mark.parametrize("name", CASES)
def test_each_ending_of_an_upstream_is_told_as_it_is(front: Front, name: str) -> None:
    case = CASES[name]
    ending = finished(front.port, request(name, **case.fields))
    assert (ending.texts, ending.finish_reasons) == (case.texts, case.reasons)
    assert total(ending.usage) == case.counts


@pytest.mark.parametrize("name", TEXT_LIES)
def test_an_upstream_that_lies_fails_with_the_cause_and_the_text_is_kept(front: Front, name: str) -> None:
    lie = TEXT_LIES[name]
    ending = failed(front.port, request(f"lie: {name}"), lie.status, lie.code)
    assert ending.error is not None
    assert lie.says in ending.error["message"]
    assert ending.texts == (TEXT,)
    assert ending.usage is not None
    assert ending.usage["completion_tokens"] >= 2


@pytest.mark.parametrize("name", BROKEN)
def test_of_several_choices_those_that_ended_well_say_so_where_another_failed(front: Front, name: str) -> None:
    one = BROKEN[name]
    ending = failed(front.port, request(f"broken: {name}", n=2), one.status, one.code)
    assert ending.error is not None
    assert one.says in ending.error["message"]
    assert (ending.texts, ending.finish_reasons) == (("a", "b"), one.reasons)


@pytest.mark.parametrize("name", TEXT_ODDITIES)
def test_an_odd_stream_that_is_right_is_an_answer(front: Front, name: str) -> None:
    ending = finished(front.port, request(f"odd: {name}"))
    assert (ending.texts, ending.finish_reasons) == ((TEXT,), ("stop",))


@pytest.mark.parametrize("name", TEXTS)
def test_odd_texts_leave_as_valid_json(front: Front, name: str) -> None:
    assert finished(front.port, request(f"text: {name}")).texts == (TEXTS[name][1],)


def test_a_character_that_is_split_over_reads_arrives_whole(front: Front) -> None:
    assert finished(front.port, request("bytes")).texts == ("Grüße 😀",)


def test_a_reset_and_silence_fail_with_the_cause(front: Front) -> None:
    with Connection(front.port) as connection:
        connection.post(ROUTE, request("reset"))
        connection.until(b'"text": "lo"')
        RESETS[-1].set()
        ending = check_completion_stream(connection.answer())
    assert ending.error is not None
    assert (ending.texts, ending.error["code"]) == ((TEXT,), "engine_died")
    silent = failed(front.port, request("silent"), 503, "engine_died")
    assert silent.error is not None
    assert "said nothing for 1 s" in silent.error["message"]
    assert silent.texts == ("Hel",)


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_upstream_answers_instead_of_an_answer_is_a_status(front: Front, name: str) -> None:
    _, status, code, says = REFUSED[name]
    for streams in (True, False):
        error = refused(send(front.port, request(f"refused: {name}", stream=streams)), status=status)
        assert error["code"] == code
        assert says in error["message"]


def test_an_upstreams_own_refusal_keeps_its_status(front: Front) -> None:
    for streams in (True, False):
        assert refused(send(front.port, request("bad", stream=streams)))["message"] == "a field is wrong"
        busy = send(front.port, request("busy", stream=streams))
        assert (busy.status, busy.headers["retry-after"]) == (429, "7")
        assert refused(send(front.port, request("long", stream=streams)))["code"] == "context_length_exceeded"
        refused(send(front.port, request("no such page", stream=streams)), status=404)


def test_chunks_of_a_chat_and_texts_that_are_none_break_the_protocol(front: Front) -> None:
    assert failed(front.port, request("a chat"), 502, "engine_protocol").texts == ("",)
    assert failed(front.port, request("no text"), 502, "engine_protocol").texts == ("Hel",)


def test_log_probabilities_pass_and_are_joined_in_a_body(front: Front) -> None:
    ending = streamed(front.port, request("logprobs", logprobs=1))
    assert ending.logprobs == [LOGPROBS, MORE]
    body = send(front.port, request("logprobs", logprobs=1, stream=False)).json
    assert check_completion(body).logprobs == [{name: [*LOGPROBS[name], *MORE[name]] for name in LOGPROBS}]


def test_an_upstream_is_sent_one_prompt_at_a_time_a_stream_is_asked_for_and_unknown_fields_pass(front: Front) -> None:
    fields: Json = {
        "temperature": 0.5,
        "stop": ["X"],
        "n": 1,
        "logprobs": 2,
        "logit_bias": {"1": 2},
        "user": "u",
        "odd": [1],
    }
    ignored: Json = {"echo": False, "suffix": None, "best_of": 1}
    assert finished(front.port, request([[1, 2], "right"], **fields, **ignored)).texts == (TEXT, TEXT)
    two = [one for one in front.upstreams[0].requests if one.method == "POST"][-2:]
    for sent, prompt in zip(two, ([1, 2], "right"), strict=True):
        assert sent.headers["authorization"] == "Bearer theirs"
        common = {"stream": True, "stream_options": {"include_usage": True}, "model": "any", "max_tokens": 500}
        assert sent.json == {**common, **fields, "prompt": prompt}


def test_an_upstreams_own_limit_counts_where_the_request_has_none(front: Front) -> None:
    body = request("right")
    del body["max_tokens"]
    finished(front.port, body)
    assert "max_tokens" not in front.sent.json


def test_headers_of_an_upstream_that_matter_reach_the_client(front: Front) -> None:
    for streams in (True, False):
        assert send(front.port, request("headers", stream=streams)).headers["x-request-id"] == "up-1"


def test_a_client_that_leaves_is_left_by_the_upstream_too(front: Front) -> None:
    for streams in (True, False):
        with Connection(front.port) as connection:
            connection.post(ROUTE, request("stay", stream=streams))
            wait_for(lambda: front.server.status["engine"]["active"] == 1, "it runs")
        wait_for(lambda: front.server.status["engine"]["active"] == 0, "it was let go", 5)


FIRST: dict[str, Script] = {
    "refused": lambda peer: peer.send(answer(b"{}", 503)),
    "busy": lambda peer: peer.send(answer(b"{}", 429)),
    "ended early": stream(),
    "cut early": lambda peer: peer.send(sse_head()),
    "html": lambda peer: peer.send(head(200, content_type="text/html", content_length="2") + b"hi"),
}


def test_before_the_first_piece_another_upstream_is_asked_and_after_it_none(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    asked: list[int] = []

    def bad(peer: Peer) -> None:
        asked.append(1)
        prompt: Any = peer.request.json["prompt"]
        FIRST.get(prompt, lying(LIES["end without a word"]))(peer)

    def good(peer: Peer) -> None:
        asked.append(2)
        CASES["right"].script(peer)

    for name in (*FIRST, "in mid-answer"):
        with ExitStack() as stack:
            urls = [stack.enter_context(ScriptedUpstream(script)).url for script in (bad, good)]
            folder = tmp_path / name
            folder.mkdir()
            options = [option for url in urls for option in ("--upstream", url)]
            server = stack.enter_context(ServerProcess(server_command, options, folder))
            asked.clear()
            ending = streamed(server.port, request([name, name]))
            if name in FIRST:
                assert asked == [1, 2, 2]
                assert (ending.texts, ending.error) == ((TEXT, TEXT), None)
                assert "failed before it answered" in server.log()
            else:
                assert asked == [1]
                assert ending.finish_reasons == ("error", "error")
                assert ending.texts == (TEXT, "")
