"""The engine dies or stands still in mid-answer: no word of success, the cause told, and the next request works."""

from __future__ import annotations

from tools.conform_checks.bench import Bench
from tools.conform_checks.check import WITH_TOOLS, Check, NotSeen
from tools.conform_checks.errors import message_of
from tools.conform_checks.occasions import OCCASIONS
from tools.conform_checks.reading import read_body
from tools.conform_checks.responses import terminal
from tools.conform_checks.scenes import (
    Killed,
    given_up,
    killed_body,
    killed_stream,
    need_kill,
    stalled_stream,
    untouched,
)
from tools.conform_checks.sequence import id_of, kept
from tools.conform_checks.talk import Talk
from tools.probe.target import APIS, Api
from tools.probe.values import as_list, as_object, as_text, at, is_json, shown

PUBLIC_CODES = ("server_error", "rate_limit_exceeded", "invalid_prompt")
"""Those of the public enum that fit. Source: OpenAI API reference, ResponseError."""


def _no_success(bench: Bench, api: Api) -> str | None:
    killed = killed_stream(bench, api)
    telling = killed.talk.telling
    if telling.outcome in ("finished", "limit", "filtered"):
        if untouched(bench, killed, stream=True):
            raise NotSeen("the answer was over before the engine was killed")
        return f"the engine was killed after {killed.pieces} pieces, and the stream ended as {telling.finish!r}"
    return killed.talk.found("no-finish", "success-after-error", "unknown-finish", "hidden-error")


def _told(bench: Bench, api: Api) -> str | None:
    talk = killed_stream(bench, api).talk
    if talk.telling.error is None:
        return f"no error where clients look; the stream ended as {talk.reader.end}, {talk.telling.finish!r}"
    return talk.found("error-form", "error-in-chunk", "error-without-cause")


def _closed(bench: Bench, api: Api) -> str | None:
    talk = killed_stream(bench, api).talk
    if talk.telling.error is None:
        raise NotSeen("no error was told")
    ids = ("cut-after-error", "no-marker-after-error", "framing", "surplus", "after-end", "error-without-cause")
    if (text := talk.found(*ids)) is not None and not (api == "messages" and talk.reader.end and talk.reader.end.whole):
        return text
    if api == "responses":
        return _response_closed(talk)
    if api == "messages":
        kinds = [each.kind for each in talk.events]
        return None if kinds[-1] == "error" else f"the last event is {kinds[-1]}, not error"
    return None if talk.telling.finish == "error" else f"the closing chunk says {talk.telling.finish!r}, not 'error'"


def _response_closed(talk: Talk) -> str | None:
    end = terminal(talk)
    if end.get("id") != id_of(talk):
        return f"the failed response has the id {shown(end.get('id'))}, the stream had {shown(id_of(talk))}"
    code = at(end, "error", "code")
    return None if code in PUBLIC_CODES else f"error.code is {shown(code)}, not one of the public ones"


def _call(bench: Bench, api: Api) -> str | None:
    killed = killed_stream(bench, api, "long call")
    talk = killed.talk
    if talk.telling.outcome in ("finished", "limit"):
        return f"the engine was killed in a tool call, and the stream ended as {talk.telling.finish!r}"
    for call in talk.telling.calls.values():
        if call.ended and not is_json(call.text):
            return f"the engine was killed in a tool call, and the call was ended: {shown(call.text[-60:])}"
    items = [as_object(item) for item in as_list(terminal(talk).get("output"))]
    for item in items:
        if item.get("type") == "function_call" and item.get("status") != "incomplete":
            return f"the engine was killed in a tool call, and the call is {shown(item.get('status'))}"
    return talk.found("cut-call-completed", "cut-arguments", "no-finish")


def _output(bench: Bench, api: Api) -> str | None:
    talk = killed_stream(bench, api).talk
    end = terminal(talk)
    if end.get("status") != "failed":
        raise NotSeen(f"the response did not fail: it is {shown(end.get('status'))}")
    text = "".join(talk.telling.text)
    told = read_body(api, end).text
    if not text:
        raise NotSeen("there was no text yet")
    return None if told == text else f"the stream had {shown(text)}, the failed response has {shown(told)}"


def _stored(bench: Bench, api: Api) -> str | None:
    talk = killed_stream(bench, api).talk
    status = kept(bench, id_of(talk)).get("status")
    return None if status == "failed" else f"the engine was killed, and the response is {shown(status)} when read again"


# --- bodies -----------------------------------------------------------------------------------------


def _body_no_success(bench: Bench, api: Api) -> str | None:
    killed = killed_body(bench, api)
    if killed.talk.status != 200:
        return None
    answer = read_body(api, killed.talk.value)
    if answer.outcome in ("failed", "cancelled"):
        return None
    most, made = OCCASIONS["long"].max_tokens, answer.counts.output
    if (answer.outcome == "limit" and made is not None and made >= most) or untouched(bench, killed, stream=False):
        raise NotSeen("the answer was over before the engine was killed")
    return f"the engine was killed, and the body says {answer.word!r} after {made} tokens"


def _body_told(bench: Bench, api: Api) -> str | None:
    talk = killed_body(bench, api).talk
    if talk.status == 200:
        raise NotSeen("the body tells no failure")
    if talk.status < 500 or message_of(api, talk.value) is None:
        return f"the engine was killed: {talk.about()}"
    return None


def _recovers(bench: Bench, api: Api) -> str | None:
    need_kill(bench)
    killed: Killed = killed_stream(bench, api)
    if killed.recovered_s is None:
        return f"{bench.settings.recover_s:g} s after the engine was killed the server answers no request"
    return None


# --- halted -----------------------------------------------------------------------------------------


def _goes_on(bench: Bench, api: Api) -> str | None:
    stalled = stalled_stream(bench, api)
    talk = stalled.talk
    if talk.telling.failed_openly:
        return None
    findings = talk.witness.untrue()
    return f"{findings[0].text}" if findings else None


def _gives_up(bench: Bench, api: Api) -> str | None:
    stalled = given_up(bench, api)
    talk = stalled.talk
    if talk.telling.failed_openly:
        return None
    if as_text(talk.telling.finish):
        return (
            f"the engine stood still for {stalled.to_s - stalled.from_s:.0f} s, and it ended as {talk.telling.finish!r}"
        )
    return f"the engine stood still for {stalled.to_s - stalled.from_s:.0f} s, and no failure was told"


_CONTRACT = "client matrix: a clean end or a word of success is taken for a whole answer"

CHECKS = (
    Check(
        "killed-no-success",
        "faults",
        "lie",
        "A stream whose engine dies never ends with a word of success, or cleanly without one.",
        f"{_CONTRACT}; vLLM #57082, Strata issue 27",
        APIS,
        _no_success,
    ),
    Check(
        "killed-told",
        "faults",
        "breach",
        "A stream whose engine dies has an error with its cause, where the API's clients look.",
        "OpenAI and Anthropic API references, errors in streams; Open WebUI #29628; client matrix",
        APIS,
        _told,
    ),
    Check(
        "killed-closed",
        "faults",
        "risk",
        "After the error the stream is closed as its API closes failed ones, and its framing ends.",
        "client matrix: loops that read the finish word, helpers that want the same response id",
        APIS,
        _closed,
    ),
    Check(
        "killed-call",
        "faults",
        "lie",
        "A tool call whose engine dies is never ended as if it were whole.",
        "vLLM #53269; client matrix: agents run such calls",
        WITH_TOOLS,
        _call,
    ),
    Check(
        "killed-output",
        "faults",
        "breach",
        "The failed response has the text that the stream has told.",
        "OpenAI API reference, response.failed",
        ("responses",),
        _output,
    ),
    Check(
        "killed-stored",
        "faults",
        "lie",
        "A response whose engine died is failed when it is read again.",
        "OpenAI API reference, retrieve a response",
        ("responses",),
        _stored,
    ),
    Check(
        "killed-body-no-success",
        "faults",
        "lie",
        "A JSON body whose engine dies is no answer of success.",
        f"{_CONTRACT}; Strata issue 27",
        APIS,
        _body_no_success,
    ),
    Check(
        "killed-body-told",
        "faults",
        "breach",
        "A JSON body whose engine dies is 5xx, with its message where clients look.",
        "OpenAI and Anthropic API references, errors",
        APIS,
        _body_told,
    ),
    Check(
        "recovers",
        "faults",
        "breach",
        "After its engine died the server answers again.",
        "Strata issues 27 and 267",
        APIS,
        _recovers,
    ),
    Check(
        "stalled-goes-on",
        "faults",
        "lie",
        "A stream whose engine stood still and went on is whole, or has failed and says so.",
        "vLLM #52852",
        APIS,
        _goes_on,
    ),
    Check(
        "stalled-gives-up",
        "faults",
        "breach",
        "A stream whose engine stands still for good fails, and says so.",
        "opencode #43519",
        APIS,
        _gives_up,
    ),
)
