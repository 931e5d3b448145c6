"""What streams of the four APIs told: true ones are truthful, and every lie is seen as the one that it is."""

from __future__ import annotations

import pytest

from tests.scripted_upstream import DONE, event
from tests.unit.tools.probe import streams
from tests.unit.tools.probe.lies import LIES, LIMIT, RISKS, Lie
from tools.probe.answer import AnswerReader, BodyEnd, Closing, Piece
from tools.probe.target import Api
from tools.probe.witness import Verdict, Witness

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def witnessed(api: str, body: bytes, *, size: int = 1 << 20, closing: Closing | None = None) -> Witness:
    """`closing` None: the body ends cleanly."""
    assert api in ("chat", "completions", "responses", "messages")
    witness, reader = Witness(api, LIMIT, timed=False, endless=True), AnswerReader()
    reader.feed(HEAD, 0.0)
    assert reader.head is not None
    witness.begin(reader.head)
    for at in range(0, len(body), size):
        witness.feed(Piece(0.0, body[at : at + size]))
    if closing is None:
        reader.feed(b"0\r\n\r\n", 0.0)
    else:
        reader.closed(closing, 0.0)
    witness.close(reader)
    return witness


FAILED = {"ours, failed", "error and done", "responses, failed", "messages, failed"}


@pytest.mark.parametrize("size", [1, 1 << 20])
@pytest.mark.parametrize("name", streams.WHOLE)
def test_a_true_stream_is_truthful(name: str, size: int) -> None:
    api, body = streams.WHOLE[name]
    witness = witnessed(api, body, size=size)
    assert witness.telling.findings.ids("lie", "cut", "breach", "risk") == []
    assert witness.verdict is (Verdict.FAILED if name in FAILED else Verdict.TRUTHFUL)


@pytest.mark.parametrize("size", [1, 1 << 20])
@pytest.mark.parametrize("name", LIES | RISKS)
def test_a_lie_is_seen(name: str, size: int) -> None:
    lie: Lie = (LIES | RISKS)[name]
    witness = witnessed(lie.api, lie.body, size=size)
    found = {finding.id: finding for finding in witness.telling.findings.all()}
    assert lie.id in found, found
    assert found[lie.id].kind == lie.kind
    assert lie.says in found[lie.id].text
    if lie.kind == "risk":
        assert not witness.verdict.untrue, found
    else:
        assert witness.verdict.untrue


@pytest.mark.parametrize("name", RISKS | LIES)
def test_what_is_said_of_a_stream_does_not_stand_in_its_text(name: str) -> None:
    """What was made is the stream's own text, whatever is found beside it."""
    lie = (LIES | RISKS)[name]
    telling = witnessed(lie.api, lie.body).telling
    known = ("one", " two", "x", "a", "b", "The", "\x1b", "\ud83d", "")
    rest = str(telling.text)
    for word in sorted(known, key=len, reverse=True):
        rest = rest.replace(word, "")
    assert rest == "", telling.text


@pytest.mark.parametrize("closing", ["fin", "reset", "silent"])
@pytest.mark.parametrize("name", streams.WHOLE)
def test_a_stream_that_is_cut_anywhere_is_no_success(name: str, closing: Closing) -> None:
    api, body = streams.WHOLE[name]
    for at in range(0, len(body), 97):
        witness = witnessed(api, body[:at], closing=closing)
        assert witness.verdict.untrue, at
        clean = witnessed(api, body[:at])
        assert clean.verdict.untrue or clean.telling.failed_openly, (at, body[:at])


def test_a_cut_says_how_and_where() -> None:
    def first(body: bytes, closing: Closing) -> str:
        return witnessed("chat", body, closing=closing).telling.findings.all()[0].text

    assert (
        first(streams.SAID, "fin")
        == "in mid-answer the connection was closed without the last chunk, before data: [DONE]"
    )
    assert first(streams.SAID, "reset").startswith("in mid-answer the connection was reset")
    assert first(streams.SAID + streams.chunk("stop"), "fin").startswith(
        "after finish_reason 'stop' the connection was"
    )
    assert first(streams.SAID + streams.ERROR, "reset") == "an error was told, and then the connection was reset"
    whole = streams.SAID + streams.chunk("stop") + DONE
    assert first(whole, "fin").startswith("after [DONE] the connection was closed without the last chunk")
    assert first(whole, "silent") == "the connection stays open after [DONE]"


def test_an_end_that_we_did_not_wait_for_is_not_judged() -> None:
    assert witnessed("chat", streams.SAID, closing="left").verdict is Verdict.UNSEEN
    assert witnessed("chat", streams.SAID + streams.chunk("abort"), closing="left").verdict is Verdict.LIE
    assert witnessed("chat", streams.SAID + streams.chunk("stop") + DONE, closing="left").verdict is Verdict.TRUTHFUL


@pytest.mark.parametrize("name", [name for name, lie in LIES.items() if lie.id == "success-at-limit"])
def test_an_answer_that_may_have_ended_with_its_last_token_is_no_lie(name: str) -> None:
    lie = LIES[name]
    for limit, kind in ((LIMIT - 1, "lie"), (LIMIT, "risk"), (LIMIT + 1, None)):
        witness, reader = Witness(lie.api, limit, timed=False), AnswerReader()
        witness.feed(Piece(0.0, lie.body))
        reader.closed("recording", 0.0)
        witness.close(reader)
        found = {finding.id: finding.kind for finding in witness.telling.findings.all()}
        assert found.get("success-at-limit") == kind


def test_text_calls_and_counts_are_kept() -> None:
    api, body = streams.WHOLE["vllm, a call"]
    (call,) = witnessed(api, body).telling.calls.values()
    assert (call.name, call.text, call.whole) == ("write_file", '{"path": "a"}', True)
    for name in ("vllm", "messages", "responses"):
        api, body = streams.WHOLE[name]
        telling = witnessed(api, body).telling
        assert ("".join(telling.text), telling.output_tokens, telling.token_count) == ("one two", 2, 2)


def test_a_custom_tools_input_need_not_be_json() -> None:
    to = streams.Responses()
    body = to.begin() + to.event("response.custom_tool_call_input.delta", output_index=0, delta="ls -l")
    assert witnessed("responses", body + to.response("completed", "completed")).verdict is Verdict.TRUTHFUL


def test_a_refusal_in_mid_json_number_is_no_crash() -> None:
    for text in (b"9" * 5_000, b"[" * 100_000, b'{"choices": 1}', b'{"choices": [1, null, {"delta": []}]}', b"NaN"):
        assert witnessed("chat", b"data: " + text + b"\n\n" + DONE).verdict is Verdict.LIE


BEATS: dict[str, tuple[Api, bytes, str]] = {
    "comment": ("chat", b": keep-alive\n", ": keep-alive"),
    "ping event": ("messages", streams.PING, '{"type": "ping"}'),
    "empty chunk": ("chat", event({"choices": []}), '{"choices": []}'),
    "repeated in_progress": ("responses", b"", "response.in_progress"),
}


@pytest.mark.parametrize("kind", BEATS)
def test_heartbeats_are_told_by_kind_and_interval(kind: str) -> None:
    api, beat, example = BEATS[kind]
    to = streams.Responses()
    witness = Witness(api)
    witness.feed(Piece(0.0, to.begin() if api == "responses" else b""))
    for at_s in (10.0, 20.0, 40.0):
        witness.feed(Piece(at_s, beat or to.response("in_progress", "in_progress")))
    (beats,) = witness.telling.heartbeats.kinds.values()
    assert (beats.kind, beats.count, beats.intervals) == (kind, 3, 2)
    assert (beats.mean_s, beats.shortest_s, beats.longest_s) == (15.0, 10.0, 20.0)
    assert beats.example.startswith(example)


def test_an_empty_delta_is_a_heartbeat_only_where_it_breaks_a_silence() -> None:
    witness = Witness("chat")
    for at_s in (0.0, 0.1, 5.0):
        witness.feed(Piece(at_s, streams.chunk(content="")))
    assert witness.telling.heartbeats.count == 1


def test_silences_are_those_of_bytes_events_and_tokens() -> None:
    reader, witness = AnswerReader(), Witness("chat")
    reader.feed(HEAD, 1.0)
    assert reader.head is not None
    witness.begin(reader.head)
    for at_s, body in ((3.0, streams.SAID), (10.0, b": ping\n"), (18.0, streams.chunk("stop")), (18.5, DONE)):
        witness.feed(Piece(at_s, body))
    reader.feed(b"0\r\n\r\n", 19.0)
    witness.close(reader)
    assert (witness.silence.longest_s, witness.silence.since_s) == (8.0, 10.0)
    assert (witness.telling.events.longest_s, witness.telling.first_token_s) == (15.0, 3.0)
    assert reader.end is BodyEnd.TERMINATOR
