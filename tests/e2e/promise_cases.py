"""The promises of the ending contract, each with the cases that show whether a server keeps it."""

from __future__ import annotations

from typing import Any

from tests.e2e.client import Answer, Connection, ask, chat
from tests.e2e.frames import DONE, check_openai_error
from tests.e2e.grammar import check_chat_stream
from tests.e2e.messages_client import request as message_request
from tests.e2e.messages_grammar import check_message_stream
from tests.e2e.promises import (
    BEAT_S,
    DEFAULT_BEAT_S,
    MARGIN_S,
    PROMISES,
    NotThere,
    Site,
    chat_ending,
    cut,
    error_of,
    events_of,
    failed,
    health,
    promise,
    streamed,
    there,
    whole,
)
from tests.e2e.responses_client import request as response_request
from tests.e2e.responses_grammar import check_response_stream

__all__ = ["PROMISES"]

Json = dict[str, Any]
JSON_OBJECT: Json = {"response_format": {"type": "json_object"}}
ADD: Json = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
TOOLS: list[Json] = [{"type": "function", "function": ADD}]
DEATHS = ("exit-now", "fatal-now", "silent-now")

# --- chat: outcomes ------------------------------------------------------------------------------------


@promise("chat", "a finished answer says stop, then [DONE], and nothing after it; both modes agree")
def _(site: Site) -> str:
    ending = chat_ending(streamed(site.quick.port, "tell-all"))
    assert (ending.text, ending.finish, ending.order) == ("Hello", "stop", ["closing chunk", DONE]), ending.order
    (choice,) = whole(site.quick.port, "tell-all").json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello", "stop"), choice
    return "stop in both modes"


@promise("chat", "an answer cut at the token limit says length, in both modes")
def _(site: Site) -> str:
    ending = chat_ending(streamed(site.quick.port, "tell-much", max_tokens=5))
    assert (ending.text, ending.finish) == ("xxxxx", "length"), (ending.text, ending.finish)
    (choice,) = whole(site.quick.port, "tell-much", max_tokens=5).json["choices"]
    assert choice["finish_reason"] == "length", choice
    return "length in both modes"


@promise("chat", "EngineDied: error object, closing chunk with finish_reason error, [DONE]", patch=True)
def _(site: Site) -> str:
    for word in DEATHS:
        failed(streamed(site.quick.port, word))
    return "exit code 7, a fatal ERR, an engine that is silent"


@promise("chat", "ValueError (an ERR): error object, closing chunk with finish_reason error, [DONE]", patch=True)
def _(site: Site) -> str:
    for word in ("refuse-now", "err-now"):
        failed(streamed(site.quick.port, word))
    return "an ERR before the first token, and one after it"


@promise(
    "chat",
    "StructuredOutputError: error object, closing chunk with finish_reason error, [DONE]",
    patch=True,
)
def _(site: Site) -> str:
    answer = streamed(site.quick.port, "no-json", **JSON_OBJECT)
    if answer.status == 400 or chat_ending(answer).finish == "stop":
        raise NotThere("response_format is not checked")
    failed(answer)
    return "an answer that is not JSON"


@promise("chat", "QueueWaitExpired: error object, closing chunk with finish_reason error, [DONE]", patch=True)
def _(site: Site) -> str:
    server = site.patient
    with Connection(server.port) as first, Connection(server.port, timeout_s=MARGIN_S) as second:
        first.post("/v1/chat/completions", chat(content="hold-the-turn"))
        first.until(b'"H"')
        try:
            second.post("/v1/chat/completions", chat(content="tell-all"))
            answer = second.answer()
        except TimeoutError:
            raise NotThere(f"a request waits for longer than {MARGIN_S:g} s, with queue_wait_s in the config") from None
        finally:
            server.cue("free")
            first.answer()
    failed(answer)
    return "another request had the turn"


@promise("chat", "the closing chunk of a failure has the id, created and model of its stream", patch=True)
def _(site: Site) -> str:
    heads = {(one["id"], one["created"], one["model"]) for one in failed(streamed(site.quick.port, "exit-now")).chunks}
    assert len(heads) == 1, f"{len(heads)} heads in one stream: {cut(heads)}"
    return f"one head: {cut(heads.pop())}"


@promise("chat", "the closing chunk of a failure carries the same error", patch=True)
def _(site: Site) -> str:
    ending = failed(streamed(site.quick.port, "exit-now"))
    assert ending.closing is not None
    assert ending.closing.get("error") == ending.error, f"its error is {cut(ending.closing.get('error'))}"
    return cut(ending.error)


@promise("chat", "an error object in a stream has message, type, param and code")
def _(site: Site) -> str:
    for word in ("exit-now", "err-now"):
        error = chat_ending(streamed(site.quick.port, word)).error
        assert error is not None, "no error object"
        check_openai_error(error)
    return "of an engine that died, and of an ERR"


@promise("chat", "a failure tells the counts of what was made")
def _(site: Site) -> str:
    ending = chat_ending(streamed(site.quick.port, "exit-now"))
    usage = next((one["usage"] for one in ending.chunks if one.get("usage")), None)
    assert usage is not None, "no usage"
    assert usage["completion_tokens"] == 2, usage
    return cut(usage)


@promise("chat", "streams keep the grammar: role first, one choice, nothing home-made")
def _(site: Site) -> str:
    check_chat_stream(streamed(site.quick.port, "tell-all"))
    check_chat_stream(streamed(site.quick.port, "tell-much", max_tokens=5))
    return "a finished answer, and one cut at its limit"


# --- success is earned ---------------------------------------------------------------------------------


@promise("success is earned", "a tool call left open is an error, although the engine said stop")
def _(site: Site) -> str:
    if chat_ending(streamed(site.quick.port, "whole-call", tools=TOOLS)).finish != "tool_calls":
        raise NotThere("tool calls are passed on as text")
    failed(streamed(site.quick.port, "open-call", tools=TOOLS))
    assert (status := whole(site.quick.port, "open-call", tools=TOOLS).status) == 502, f"HTTP {status}"
    return "streamed and whole"


@promise("success is earned", "counts that contradict the tokens, and unknown finish words, are errors")
def _(site: Site) -> str:
    for word in ("wrong-count", "odd-word"):
        failed(streamed(site.quick.port, word))
        assert (status := whole(site.quick.port, word).status) == 502, f"{word}: HTTP {status}"
    return "DONE 7 after two tokens; DONE … abort"


# --- the cause survives, and nothing is lost -----------------------------------------------------------


@promise("the cause survives", "the error says the exit code, or the engine's own words")
def _(site: Site) -> str:
    told: list[str] = []
    for word, cause in (("exit-now", "7"), ("fatal-now", "timed out at layer 18"), ("err-now", "no tokens left")):
        error = chat_ending(streamed(site.quick.port, word)).error or {}
        told.append(str(error.get("message")))
        assert cause in told[-1], f"{word}: {cause!r} is not in {cut(told[-1])}"
    return cut(told[0])


@promise("nothing received is lost", "text made before a failure stays in its stream")
def _(site: Site) -> str:
    for word in (*DEATHS, "err-now"):
        assert (text := chat_ending(streamed(site.quick.port, word)).text) == "He", f"{word}: {text!r}"
    return "'He' in all"


@promise("nothing received is lost", "a failure that is not streamed has partial_output and usage in its error")
def _(site: Site) -> str:
    error = error_of(whole(site.quick.port, "exit-now"))
    assert error.get("partial_output") == "He", f"partial_output {error.get('partial_output')!r}"
    assert error["usage"]["completion_tokens"] == 2, error["usage"]
    return cut(error)


@promise("the next request works", "an engine that died is not loaded; the next request starts another")
def _(site: Site) -> str:
    for word in DEATHS:
        chat_ending(streamed(site.quick.port, word))
        assert health(site.quick.port)["loaded"] is False, f"{word}: loaded"
        assert chat_ending(streamed(site.quick.port, "tell-all")).text == "Hello", word
        assert health(site.quick.port)["loaded"] is True, f"{word}: not loaded"
    return "three deaths"


# --- before the first byte -----------------------------------------------------------------------------


@promise("before the first byte", "an engine that dies is 503 and an ERR in mid-answer 500 when not streamed")
def _(site: Site) -> str:
    statuses = {word: whole(site.quick.port, word).status for word in (*DEATHS, "err-now")}
    assert statuses == {**dict.fromkeys(DEATHS, 503), "err-now": 500}, statuses
    return cut(statuses)


@promise("before the first byte", "a structured answer that is none is 502 when not streamed")
def _(site: Site) -> str:
    answer = whole(site.quick.port, "no-json", **JSON_OBJECT)
    if answer.status in (200, 400):
        raise NotThere("response_format is not checked")
    assert answer.status == 502, f"HTTP {answer.status}"
    return cut(answer.body)


@promise("before the first byte", "a wrong field is 400 with message, type, param and code, in both modes")
def _(site: Site) -> str:
    for stream in (True, False):
        answer = ask(site.quick.port, {"messages": 5, "stream": stream})
        assert answer.status == 400, f"HTTP {answer.status}"
        check_openai_error(error_of(answer))
    return "messages that are no list"


@promise("before the first byte", "a prompt that does not fit is 400, context_length_exceeded, in both modes")
def _(site: Site) -> str:
    for stream in (True, False):
        answer = ask(site.quick.port, chat(content="word " * 500, stream=stream))
        assert answer.status == 400, f"HTTP {answer.status}"
        assert (code := error_of(answer).get("code")) == "context_length_exceeded", f"code {code!r}"
    return "2,500 bytes into 2,000 tokens"


# --- transport and time --------------------------------------------------------------------------------


@promise("the transport agrees", "streams are HTTP/1.1 chunked, ended as the stream is")
def _(site: Site) -> str:
    for word in ("tell-all", "exit-now"):
        answer = streamed(site.quick.port, word)
        assert answer.headers.get("transfer-encoding") == "chunked", "not chunked: a cut cannot be told from an end"
        assert answer.terminated, "the body was cut"
    return "a finished answer and a failed one"


@promise("the transport agrees", "an HTTP/1.0 client gets no chunks, and the end of the connection")
def _(site: Site) -> str:
    answer = ask(site.quick.port, chat(content="tell-all"), version="HTTP/1.0")
    assert "transfer-encoding" not in answer.headers, "chunks for HTTP/1.0"
    assert answer.closed, "the connection stays open"
    assert chat_ending(answer).order == ["closing chunk", DONE]
    return "closed after [DONE]"


@promise("no silence", "something comes while the engine is silent; a beat is one line, without a blank one")
def _(site: Site) -> str:
    within = DEFAULT_BEAT_S + MARGIN_S
    with Connection(site.patient.port, timeout_s=within) as connection:
        connection.post("/v1/chat/completions", chat(content="wait-for-cue"))
        try:
            connection.until(b": keep-alive")
        except TimeoutError:
            raise AssertionError(f"nothing within {within:g} s") from None
        finally:
            site.patient.cue("go")
        answer = connection.answer()
    assert chat_ending(answer).text == "Hello"
    assert b": keep-alive\n\n" not in answer.body, "a beat with a blank line, which some clients read as an empty event"
    return f"with heartbeat_s {BEAT_S:g}"


# --- Responses and Messages ----------------------------------------------------------------------------


def respond(site: Site, word: str, **fields: Any) -> Answer:
    return ask(site.quick.port, response_request(word, **fields), path="/v1/responses")


@promise("responses", "completed; incomplete with max_output_tokens at the limit; the terminal is last")
def _(site: Site) -> str:
    last = events_of(respond(site, "tell-all"))[-1]
    assert last.name == "response.completed", f"it ends: {last.name}"
    last = events_of(respond(site, "tell-much", max_output_tokens=20))[-1]
    assert last.name == "response.incomplete", f"it ends: {last.name}"
    assert "max_output_tokens" in last.data, "no reason"
    return "both terminals"


@promise("responses", "a failure is the event error and then response.failed, and nothing after it")
def _(site: Site) -> str:
    for word in (*DEATHS, "err-now"):
        names = [event.name for event in events_of(respond(site, word))]
        assert names[-2:] == ["error", "response.failed"], f"{word} ends: {names[-2:]}"
    return "deaths and an ERR"


@promise("responses", "streams keep the grammar")
def _(site: Site) -> str:
    for word in ("tell-all", "exit-now"):
        there(answer := respond(site, word))
        check_response_stream(answer)
    return "a finished answer and a failed one"


def message(site: Site, word: str, **fields: Any) -> Answer:
    return ask(site.quick.port, message_request(word, **fields), path="/v1/messages")


@promise("messages", "end_turn, or max_tokens at the limit, and message_stop last")
def _(site: Site) -> str:
    for word, reason, fields in (("tell-all", "end_turn", {}), ("tell-much", "max_tokens", {"max_tokens": 5})):
        events = events_of(message(site, word, **fields))
        assert events[-1].name == "message_stop", f"{word} ends: {events[-1].name}"
        assert f'"{reason}"' in events[-2].data, f"{word}: {cut(events[-2].data)}"
    return "both reasons"


@promise("messages", "a failure is the event error, and nothing after it")
def _(site: Site) -> str:
    for word in (*DEATHS, "err-now"):
        names = [event.name for event in events_of(message(site, word))]
        assert names[-1] == "error", f"{word} ends: {names[-1]}"
        assert "message_stop" not in names, f"{word}: message_stop, which is success"
    return "deaths and an ERR"


@promise("messages", "streams keep the grammar")
def _(site: Site) -> str:
    for word in ("tell-all", "exit-now"):
        there(answer := message(site, word))
        check_message_stream(answer)
    return "a finished answer and a failed one"
