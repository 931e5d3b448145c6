"""Lies about errors, framing, clients that leave, the queue, heartbeats, and an engine that dies or stands still."""

from __future__ import annotations

from collections.abc import Iterator

from tests.unit.tools.conform_checks.edits import (
    after,
    change,
    instead,
    is_end,
    is_error,
    of,
    only,
    swap,
    swap_reply,
    until,
    with_status,
    without,
)
from tests.unit.tools.conform_checks.honest import Frames, Lie, Reply
from tests.unit.tools.conform_checks.honest_engine import Ask, Json
from tests.unit.tools.conform_checks.honest_wire import BEAT, Frame

FAULT = with_status(500, of_=400)
CHATS = ("chat", "completions")


def _is_refusal(ask: Ask, reply: Reply) -> bool:
    return reply.status == 400


def _refuses_stream(ask: Ask, reply: Reply) -> bool:
    return reply.status == 400 and ask.stream


def _has_null(ask: Ask, reply: Reply) -> bool:
    return None in ask.value.values()


def _has_query(ask: Ask, reply: Reply) -> bool:
    return "beta" in ask.query


def _long_winded(ask: Ask, reply: Reply) -> Reply:
    if reply.status == 400:
        reply.value["error"]["message"] *= 2_000
    return reply


def _repeats_key(ask: Ask, reply: Reply) -> Reply:
    if reply.status == 401:
        reply.value["error"]["message"] = f"wrong: {ask.headers.get('authorization')}"
    return reply


ERRORS = (
    *(
        Lie(check, reply=FAULT)
        for check in ("bad-json", "bad-object", "bad-type", "bad-missing", "bad-limit", "bad-format", "bad-tool")
    ),
    Lie("bad-type", reply=instead(_is_refusal, 200, {"choices": []}), apis=("chat",)),
    Lie("error-told", reply=instead(_is_refusal, 400, {"detail": "no"}), says="no message where clients look:"),
    Lie(
        "error-told",
        reply=instead(_is_refusal, 400, b"<p>no", Content_Type="text/html"),
        apis=("chat",),
        says="an error as",
    ),
    Lie("error-full", reply=swap_reply(('"type": "invalid_request_error", ', "")), says="the error has no"),
    Lie("refused-stream", reply=instead(_refuses_stream, 200, b"data: {}\n\n", Content_Type="text/event-stream")),
    Lie("too-long", reply=FAULT),
    Lie("too-long-stream", reply=FAULT),
    Lie("too-long-code", reply=swap_reply(('"context_length_exceeded"', "null")), says="the code is"),
    Lie("error-bounded", reply=_long_winded, says="bad parts are answered with"),
    Lie(
        "unknown-route",
        reply=instead(lambda ask, reply: reply.status == 404, 404, b"<p>no", Content_Type="text/html"),
        says="without a message where clients look:",
    ),
    Lie("wrong-method", reply=with_status(200, of_=405)),
    Lie("key-refused", reply=with_status(500, of_=401)),
    Lie("key-hidden", reply=_repeats_key, says="the refusal repeats the key:"),
    Lie("nulls", reply=instead(_has_null, 400, {"error": {"message": "null is no number"}}), says="as null:"),
    Lie("alive", traits={"survives": False}, says="after bad requests:"),
)


def _without(name: str, head: dict[str, str]) -> dict[str, str]:
    return {each: value for each, value in head.items() if each != name}


def _no_body(ask: Ask, reply: Reply) -> Reply:
    return Reply(reply.status, reply.value, {"Content-Type": "text/html"})


def _longer(ask: Ask, reply: Reply) -> Reply:
    return Reply(reply.status, reply.value, reply.fields | {"Content-Length": "100000"})


FRAMING = (
    Lie("event-stream", head=lambda ask, head: head | {"Content-Type": "text/plain"}, says="the content-type is"),
    Lie("uncompressed", head=lambda ask, head: head | {"Content-Encoding": "gzip"}),
    *(
        Lie("whole-framing", traits={"ends": ends}, says=says)
        for ends, says in (
            ("cut", "its framing ends as no terminator"),
            ("close", "only the end of the connection ends it: a client cannot tell its end from a cut"),
            ("surplus", ""),
        )
    ),
    Lie("lines-read", raw=lambda ask, data: data.replace(b"data:", b"error:")),
    Lie("lines-read", raw=lambda ask, data: data.replace(b"Hello", b"\xff\xfe"), apis=("chat",)),
    Lie("lines-plain", raw=lambda ask, data: data.replace(b"\n", b"\r\n")),
    Lie("lines-plain", raw=lambda ask, data: b"\xef\xbb\xbf" + data, apis=("chat",)),
    Lie("strict-json", raw=lambda ask, data: data.replace(b"null", b"NaN")),
    Lie("strict-json", frames=swap(("one ", "\\ud83d")), says="half a character in"),
    Lie(
        "unbuffered",
        head=lambda ask, head: _without("Cache-Control", head),
        says="and no x-accel-buffering: proxies may hold tokens back",
    ),
    Lie("flows", traits={"collects_s": 1.05}, apis=("chat",)),
    Lie("json-body", reply=_no_body, says="the content-type is"),
    Lie("json-body", reply=_longer, apis=("chat",), says="its framing ends as"),
    Lie(
        "http10",
        traits={"knows_http10": False},
        says="an HTTP/1.0 request is answered in chunks, which its client reads as text",
    ),
    Lie("chunked-request", traits={"reads_chunks": False}, says="a request whose body comes in chunks:"),
    Lie("expect-continue", traits={"continues": False}, says="Expect: 100-continue: nothing came for"),
    Lie("query", reply=instead(_has_query, 404, {"error": {"message": "no such route"}})),
)

DEAF = {"frees": False}


def _cancels(ask: Ask) -> bool:
    return ask.path.endswith("/cancel")


def _says_completed(ask: Ask, reply: Reply) -> Reply:
    return swap_reply(('"cancelled"', '"completed"'))(ask, reply) if _cancels(ask) else reply


CANCEL = (
    Lie("left-stream", traits=DEAF, says="s after the connection"),
    Lie("left-reset", traits=DEAF, says="s after the connection"),
    Lie("left-body", traits=DEAF, says="s after the connection"),
    Lie("half-closed", traits={"half_close_is_fine": False}, says="a client that ended only its sending got"),
    Lie("next-whole", engine={"haunted": True}, says="the answer after one that was left:"),
    Lie("cancelled", reply=_says_completed, says="it was cancelled; the answer to that says"),
)


def _one_id(value: Json) -> None:
    for inside in (value, value.get("response"), value.get("message")):
        if isinstance(inside, dict) and "id" in inside:
            inside["id"] = "same"


def _no_time(ask: Ask, reply: Reply) -> Reply:
    return Reply(reply.status, reply.value, _without("Retry-After", reply.fields))


QUEUE = (
    Lie("side-by-side", frames=change(lambda frame: True, _one_id), says="answers at once share an id:"),
    Lie("waiting-heard", traits={"early": False}, says="a stream that waits for its turn heard nothing for"),
    Lie("waiting-served", engine={"serves_waiting": False}, says="a stream that waited:"),
    Lie("waiting-left", traits=DEAF, says="s after a waiting client left its request still waits"),
    Lie("queue-full", reply=_no_time, says="a request too many:"),
    Lie("queue-full", reply=with_status(400, of_=429), says="a request too many:"),
)


def _bad_beats(ask: Ask, data: bytes) -> bytes:
    if data.startswith(b": "):
        return b":\n"
    if data.startswith(b"event: response.in_progress"):
        return b": keep-alive\n"
    return b"event: ping\ndata: \n\n" if data.startswith(b"event: ping") else data


PATIENT = {"silence_s": 60.0}

HEARTBEATS = (
    Lie("beats", traits={"beats": False}, engine=PATIENT, says="s without a byte while the engine stood still, and"),
    Lie("beat-form", raw=_bad_beats, engine=PATIENT),
    Lie("beat-last", frames=after(is_end, BEAT)),
    Lie("beat-last", frames=after(is_end, Frame("ping", {"type": "ping"})), apis=("messages",)),
)


def _is_beat(frame: Frame) -> bool:
    return frame == BEAT or frame.kind == "ping"


def cut_at_beat(ask: Ask, frames: Frames) -> Iterator[Frame]:
    """It is over with the first heartbeat after the opening."""
    opened = 0
    for frame in frames:
        opened += frame.kind == "response.in_progress"
        if _is_beat(frame) or opened > 1:
            return
        yield frame


def _silent_failure(ask: Ask, frames: Frames) -> Iterator[Frame]:
    def without_error(value: Json) -> None:
        value["response"]["error"] = None

    return change(of("response.failed"), without_error)(ask, without(is_error)(ask, frames))


def _read_again(ask: Ask, reply: Reply) -> Reply:
    return swap_reply(('"failed"', '"in_progress"'))(ask, reply) if ask.method == "GET" else reply


def _no_output(value: Json) -> None:
    value["response"]["output"] = []


SHORT = {"pieces": 120, "pace_s": 0.003}
DIES_WELL = {"death": "finished", **SHORT}
STOP = Frame("message_stop", {"type": "message_stop"})

FAULTS = (
    Lie("killed-no-success", engine=DIES_WELL, says="pieces, and the stream ended as"),
    Lie(
        "killed-no-success", engine={"death": "limit", **SHORT}, apis=("chat",), says="pieces, and the stream ended as"
    ),
    Lie("killed-no-success", frames=only(lambda ask: ask.limit > 1000, _silent_failure), apis=("messages",)),
    Lie("killed-told", frames=_silent_failure, says="no error where clients look; the stream ended as"),
    Lie("killed-closed", frames=until(is_error), apis=(*CHATS, "responses")),
    Lie("killed-closed", frames=after(is_error, STOP), apis=("messages",), says="the last event is"),
    Lie("killed-call", engine=DIES_WELL, says="the engine was killed in a tool call, and the stream ended as"),
    Lie("killed-output", frames=change(of("response.failed"), _no_output), says=", the failed response has"),
    Lie("killed-stored", reply=_read_again, says="the engine was killed, and the response is"),
    Lie("killed-body-no-success", engine=DIES_WELL, says="the engine was killed, and the body says"),
    Lie(
        "killed-body-told",
        reply=instead(lambda ask, reply: reply.status == 500, 500, {"detail": "oh"}),
        says="the engine was killed:",
    ),
    Lie("recovers", traits={"recovers": False}, says="s after the engine was killed the server answers no request"),
    Lie("stalled-goes-on", frames=cut_at_beat, engine=PATIENT),
    Lie("stalled-gives-up", engine=PATIENT, says="the engine stood still for"),
)

MORE_LIES = (*ERRORS, *FRAMING, *CANCEL, *QUEUE, *HEARTBEATS, *FAULTS)
