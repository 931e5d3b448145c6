"""What to do about a stream, in one line: the likeliest cause of the worst that was seen.

It guesses from times and heads, and says so; it judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from tools.probe.answer import AnswerReader, BodyEnd
from tools.probe.witness import Verdict, Witness

LIMITS: Mapping[float, str] = {
    30.0: "the default of many load balancers",
    60.0: "the default of nginx's proxy_read_timeout and of AWS load balancers",
    100.0: "Cloudflare's",
    120.0: "a usual one",
    240.0: "Azure's",
    300.0: "a usual one",
    600.0: "a usual one",
    3_600.0: "a usual one",
}
"""Seconds after which proxies give up."""
NEAR = 0.02
"""A time that is so near to a limit was probably ended by it."""
LONG_SILENCE_S = 25.0
IDLE_S = 5.0
"""A cut after so long a silence is an idle limit."""
MAYBE_IDLE_S = 1.0
"""And after this it may be one, if there was no such silence before."""

_CALLS = "do not run such calls: check that arguments are JSON before use, and report it to the server"
_LIES: Mapping[str, str] = {
    "hidden-error": 'no client sees this error: the server must send it as `data: {"error": {"message": …}}`',
    "no-finish": "the server (or a proxy) ends a failed stream as if it were whole: report it, and until then put a "
    "gateway in front that tells the truth",
    "no-marker": "a proxy ended the stream, or the server forgets its end marker: ask the server directly to tell",
    "cut-arguments": _CALLS,
    "cut-call-completed": _CALLS,
    "success-at-limit": "compare the output tokens with the limit yourself, or put a gateway in front that does",
    "status-contradicts": "trust the worse of the two, and report it to the server",
    "unknown-finish": "treat this word as a failure, and report it to the server",
}


def limit_near(took_s: float) -> str | None:
    """The limit of proxies that this time is near to."""
    for limit_s, whose in LIMITS.items():
        if abs(took_s - limit_s) <= max(0.5, NEAR * limit_s):
            return f"{limit_s:g} s, {whose}"
    return None


def on_refusal(status: int, took_s: float, *, has_key: bool) -> str:
    """What to do about a request that got no stream after so long; "" where nobody knows. `status` 0: no answer."""
    limit = limit_near(took_s) if took_s >= IDLE_S else None
    if status in (0, 408, 502, 504, 524) and limit is not None:
        return f"after {took_s:.1f} s: probably a limit of a proxy ({limit}); raise it, or have the server begin sooner"
    match status:
        case 401 | 403:
            return "is it the right key?" if has_key else "give the key with --api-key or in OPENAI_API_KEY"
        case 404 | 405:
            return "is the path right (…/v1), and does this server have this API?"
        case 429:
            return "the server is busy: ask again later"
        case 502 | 504:
            return f"after {took_s:.1f} s: what stands in front does not reach the server, or gave it up"
        case 503:
            return "it loads its model, is busy, or is going down: ask again later"
        case 0:
            return f"after {took_s:.1f} s: look at the server's log"
        case _:
            return ""


def advice(witness: Witness, reader: AnswerReader) -> str:
    """One line. After the witness was closed."""
    for rule in (_of_the_cut, _of_lies, _of_the_way, _of_silence):
        if (line := rule(witness, reader)) is not None:
            return line
    if witness.verdict is Verdict.UNSEEN:
        return "nothing wrong so far: give it more --minutes, or lower --max-tokens, to see the end"
    if witness.verdict is Verdict.FAILED:
        return "the server failed and said so: look for the cause there"
    if witness.telling.findings.ids("risk"):
        return "nothing untrue, but some clients stumble over what is called a risk here: report it to the server"
    return "nothing to do"


def _of_the_cut(witness: Witness, reader: AnswerReader) -> str | None:
    end = reader.end
    cuts = witness.telling.findings.ids("cut")
    if not cuts:
        return None
    if "recording-ends" in cuts:
        return "save it with curl's last word, which tells a cut from an end: `curl -sSNi URL -d … > FILE 2>&1`"
    if end is BodyEnd.SILENT and witness.telling.outcome is not None:
        return f"the answer is over, and {witness.telling.MARKER} never came: clients wait on; report it to the server"
    if end is BodyEnd.SILENT:
        return "the server hangs, or a proxy holds the rest back: look at the server, and limit its silence"
    if end is BodyEnd.FRAMING:
        return f"the framing broke ({reader.end_note}): something on the way rewrites the body; ask the server directly"
    if not witness.timed:
        return f"cut ({reader.end_note or end}): look at the server's log, then at the idle limits of the proxies"
    quiet_s = reader.end_s - witness.arrivals.last_s
    if quiet_s >= IDLE_S:
        limit = limit_near(quiet_s) or f"{quiet_s:.0f} s"
        return (
            f"cut after {quiet_s:.1f} s of silence: raise the proxy's idle limit ({limit}), or send heartbeats sooner"
        )
    if quiet_s >= max(MAYBE_IDLE_S, 2 * witness.arrivals.longest_gap_s):
        return (
            f"cut after {quiet_s:.1f} s of silence, the longest of all: probably a short idle limit of a proxy; "
            "ask the server directly, and if it is cut there, too, look at its log"
        )
    if (limit := limit_near(reader.end_s)) is not None:
        return f"cut in mid-flow after {reader.end_s:.1f} s in all: probably a limit on whole requests ({limit})"
    if end is BodyEnd.RESET:
        return "reset in mid-flow: the server's process died; look at its log and the kernel's (out of memory)"
    return "cut in mid-flow: the server's handler failed or its process died; look at its log"


def _of_lies(witness: Witness, reader: AnswerReader) -> str | None:
    findings = witness.telling.findings
    found = findings.ids("lie")
    for id_, line in _LIES.items():
        if id_ in found:
            return line
    if "coding" in findings.ids():
        return "nobody can read this body: switch compression off for text/event-stream, at the server and proxies"
    if found:
        return "the stream contradicts itself: take the worse of what it says, and report it to the server"
    if "sse: unknown field" in findings.ids():
        return "lines that are no fields of the format are lost: something writes into the stream past its framing"
    if findings.ids("breach"):
        return "the server breaks the format or the framing: report it, with the recording of --save"
    return None


def _of_the_way(witness: Witness, reader: AnswerReader) -> str | None:
    """What stands between."""
    found = witness.telling.findings.ids()
    head = witness.head
    held_back = "burst" in found or "lumps" in found
    if "compressed" in found:
        return "switch compression (gzip) off for text/event-stream, at the server and proxies: it holds tokens back"
    if held_back and head is not None and head.get("x-accel-buffering") is None:
        return "buffered on the way: `proxy_buffering off` in nginx, or have the server send `X-Accel-Buffering: no`"
    if held_back:
        return "buffered on the way although X-Accel-Buffering is set: ask the server directly, then each proxy in turn"
    if "http/1.0" in found:
        return "have the proxy speak HTTP/1.1 (`proxy_http_version 1.1` in nginx): with 1.0 a cut looks like an end"
    return None


def _of_silence(witness: Witness, reader: AnswerReader) -> str | None:
    if not witness.timed:
        return None
    if "false-life" in witness.telling.findings.ids():
        return (
            "heartbeats went on while nothing was made: a dead engine looks alive so; limit the silence of the engine"
        )
    first_s = reader.first_byte_s or 0.0
    if first_s >= max(LONG_SILENCE_S, witness.silence.longest_s):
        return (
            f"not a byte for {first_s:.0f} s: many proxies give up at 60 s; have the server send head and heartbeats "
            "while the prompt is read and while one waits in its queue"
        )
    if witness.silence.longest_s < LONG_SILENCE_S:
        return None
    line = f"silent for {witness.silence.longest_s:.0f} s: "
    if not witness.telling.heartbeats.count:
        return (
            line + "many proxies cut at 30 or 60 s; have the server send heartbeats, or raise the proxies' idle limits"
        )
    return line + "send heartbeats more often: many proxies cut at 30 or 60 s"
