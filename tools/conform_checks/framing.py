"""Framing: heads, chunks, lines and bytes of streams and bodies, and requests in forms that HTTP allows."""

from __future__ import annotations

from dataclasses import replace

from tools.conform_checks.bench import Bench, found, over
from tools.conform_checks.check import SERVER, Check, NotSeen
from tools.conform_checks.occasions import request_body
from tools.conform_checks.talk import Talk
from tools.probe.answer import BodyEnd
from tools.probe.sse import LOSSES, MEANINGS
from tools.probe.target import APIS, ROUTES, Api
from tools.probe.values import Json, as_list, as_object, shown
from tools.probe.witness import LEAST_EVENTS

FLOW_TRIES = 3
"""A busy machine makes lumps, too, but not each time."""
_LOST = tuple(f"sse: {kind}" for kind in sorted(LOSSES))
_STUMBLES = tuple(f"sse: {kind}" for kind in MEANINGS if kind not in LOSSES)


def _event_stream(bench: Bench, api: Api) -> str | None:
    talk = bench.asked(api, "short", stream=True)
    if talk.status != 200:
        raise NotSeen(f"no stream: {talk.about()}")
    return None if talk.content_type == "text/event-stream" else f"the content-type is {shown(talk.content_type)}"


def _plain_coding(bench: Bench, api: Api) -> str | None:
    return found(bench.streams(api), "compressed", "coding")


def _whole(bench: Bench, api: Api) -> str | None:
    return over(bench.streams(api), _whole_framing)


def _whole_framing(talk: Talk) -> str | None:
    if (text := talk.found("framing", "surplus")) is not None:
        return text
    if talk.reader.end is BodyEnd.CLOSE:
        return "only the end of the connection ends it: a client cannot tell its end from a cut"
    if talk.reader.end is not None and talk.reader.end.cut:
        return f"its framing ends as {talk.reader.end} {talk.reader.end_note}"
    return None


def _lines(bench: Bench, api: Api) -> str | None:
    return found(bench.streams(api), *_LOST)


def _stumbles(bench: Bench, api: Api) -> str | None:
    return found(bench.streams(api), *_STUMBLES)


def _json(bench: Bench, api: Api) -> str | None:
    talks = bench.streams(api)
    return found(talks, "not-json", "no-object") or over(talks, _characters)


def _characters(talk: Talk) -> str | None:
    text = _half(talk.event_values())
    return None if text is None else f"half a character in {shown(text)}"


def _half(value: object) -> str | None:
    """The first text in it that has half a surrogate pair. Values are as deep as a parser lets them be."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, str) and any("\ud800" <= character <= "\udfff" for character in each):
            return each
        pending += [*as_list(each), *as_object(each).values()]
    return None


def _unbuffered(bench: Bench, api: Api) -> str | None:
    head = bench.stream(api, "short").head
    assert head is not None
    control = (head.get("cache-control") or "").lower()
    if "no-cache" in control or "no-store" in control or (head.get("x-accel-buffering") or "").lower() == "no":
        return None
    return f"cache-control {shown(control)} and no x-accel-buffering: proxies may hold tokens back"


def _flows(bench: Bench, api: Api) -> str | None:
    text = None
    for number in range(FLOW_TRIES):

        def ask() -> Talk:
            return bench.start(api, "flow").join()

        talk = bench.stream(api, "flow") if not number else bench.once(("flow", api, number), ask)
        if len(talk.events) < LEAST_EVENTS:
            raise NotSeen(f"{len(talk.events)} events are too few to tell")
        text = talk.found("burst", "lumps")
        if text is None:
            return None
    return f"{FLOW_TRIES} times: {text}"


def _json_body(bench: Bench, api: Api) -> str | None:
    talk = bench.asked(api, "short", stream=False)
    if talk.status != 200:
        raise NotSeen(f"no body: {talk.about()}")
    if talk.content_type != "application/json":
        return f"the content-type is {shown(talk.content_type)}"
    if talk.reader.end is None or not talk.reader.end.whole or talk.reader.framing_faults or talk.reader.surplus:
        faults = talk.reader.framing_faults or bytes(talk.reader.surplus[:40]) or talk.reader.end_note
        return f"its framing ends as {talk.reader.end}: {shown(faults)}"
    return None if talk.value else f"it is no JSON object: {talk.about()}"


# --- requests in other forms ------------------------------------------------------------------------


def _body(bench: Bench, api: Api, *, stream: bool) -> Json:
    bench.body(api, "limit")  # it works as usual
    return request_body(api, bench.model, "limit", stream=stream)


def _http10(bench: Bench, api: Api) -> str | None:
    def ask() -> Talk:
        asked = _body(bench, api, stream=True)
        request = bench.target.post(api, asked, version="HTTP/1.0")
        return bench.send_raw(api, request, asked, name="an HTTP/1.0 request").join()

    talk = bench.once(("http/1.0", api), ask)
    if talk.status != 200:
        return f"an HTTP/1.0 request: {talk.about()}"
    if talk.reader.framing == "chunked":
        return "an HTTP/1.0 request is answered in chunks, which its client reads as text"
    if talk.telling.marker is None:
        return f"an HTTP/1.0 request is answered without an end marker: {talk.about()}"
    return None


def _chunked(bench: Bench, api: Api) -> str | None:
    def ask() -> Talk:
        asked = _body(bench, api, stream=False)
        whole = bench.target.post(api, asked, ("Transfer-Encoding", "chunked"))
        head, _, body = whole.partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
        parts = (body[:7], body[7:])
        framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        return bench.send_raw(api, b"\r\n".join(lines) + b"\r\n\r\n" + framed, asked).join()

    talk = bench.once(("chunked", api), ask)
    return None if talk.status == 200 else f"a request whose body comes in chunks: {talk.about()}"


def _continue(bench: Bench, api: Api) -> str | None:
    asked = _body(bench, api, stream=False)
    whole = bench.target.post(api, asked, ("Expect", "100-continue"))
    head, _, body = whole.partition(b"\r\n\r\n")
    with bench.send_raw(api, head + b"\r\n\r\n", asked) as talk:
        continue_s = bench.settings.continue_s
        if not talk.wait(lambda each: each.status != 0 or bool(each.reader.interim), continue_s):
            return f"Expect: 100-continue: nothing came for {continue_s:g} s"
        if not talk.status:
            talk.connection.socket.sendall(body)
            talk.join()
        return None if talk.status in (200, 417) else f"Expect: 100-continue: {talk.about()}"


def _query(bench: Bench, api: Api) -> str | None:
    def ask() -> Talk:
        asked = _body(bench, api, stream=False)
        request = replace(bench.target, query="beta=true").post(api, asked)
        return bench.send_raw(api, request, asked).join()

    talk = bench.once(("query", api), ask)
    return None if talk.status == 200 else f"{ROUTES[api]}?beta=true: {talk.about()}"


_SSE = "WHATWG HTML, server-sent events, 9.2.5"

CHECKS = (
    Check(
        "event-stream",
        "framing",
        "breach",
        "A stream that was asked for is text/event-stream.",
        f"{_SSE}; OpenAI and Anthropic API references, stream",
        APIS,
        _event_stream,
    ),
    Check(
        "uncompressed",
        "framing",
        "risk",
        "A stream is not compressed, also for a client that takes gzip: compressors hold tokens back.",
        "koboldcpp PR #1168, starlette PR #2753",
        APIS,
        _plain_coding,
    ),
    Check(
        "whole-framing",
        "framing",
        "lie",
        "A stream is framed so that a cut is seen, and ends as its framing says, with nothing after it.",
        "RFC 9112, 6.3 and 8; true-async/server #171",
        APIS,
        _whole,
    ),
    Check(
        "lines-read",
        "framing",
        "breach",
        "Every line of a stream can be read: fields of the format, UTF-8, events closed by a blank line.",
        f"{_SSE}; llama.cpp PR #16109, lemonade #2826",
        APIS,
        _lines,
    ),
    Check(
        "lines-plain",
        "framing",
        "risk",
        "A stream keeps to what every client reads: LF, no byte order mark, one line of `data: `, no bare colon.",
        f"{_SSE}; cc-switch #1787, openai-python PR #3819, openai-python #2722, mistral-vibe PR #794",
        APIS,
        _stumbles,
    ),
    Check(
        "strict-json",
        "framing",
        "breach",
        "The data of each event is one strict JSON object, with whole characters.",
        "RFC 8259; pi #6762, opencode PR #17758",
        APIS,
        _json,
    ),
    Check(
        "unbuffered",
        "framing",
        "risk",
        "The head of a stream tells caches and proxies not to hold it back.",
        "nginx, X-Accel-Buffering; rootjs PR #1231",
        APIS,
        _unbuffered,
    ),
    Check(
        "flows",
        "framing",
        "risk",
        "Tokens come as they are made, not all at once or in lumps.",
        "koboldcpp PR #1168",
        APIS,
        _flows,
    ),
    Check(
        "json-body",
        "framing",
        "breach",
        "An answer that is not streamed is application/json, framed so that a cut is seen.",
        "RFC 9112, 6.3; OpenAI and Anthropic API references",
        APIS,
        _json_body,
    ),
    Check(
        "http10",
        "framing",
        "risk",
        "An HTTP/1.0 client gets no chunks, and the end marker.",
        "RFC 9112, 6.1; dusty #163",
        SERVER,
        _http10,
    ),
    Check(
        "chunked-request",
        "framing",
        "risk",
        "A request whose body comes in chunks is read.",
        "RFC 9112, 7.1; Strata issues 893 and 894",
        SERVER,
        _chunked,
    ),
    Check(
        "expect-continue",
        "framing",
        "risk",
        "A client that waits for 100 Continue is not left waiting.",
        "RFC 9110, 10.1.1; dusty #163",
        SERVER,
        _continue,
    ),
    Check(
        "query",
        "framing",
        "risk",
        "A query string does not change the route: Claude Code sends one.",
        "Strata issues 55 and 56",
        APIS,
        _query,
    ),
)
