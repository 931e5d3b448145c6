"""What upstreams do wrong, seen in the wild: each a script, with what a client must be told."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import Any

from tests.scripted_upstream import DONE, Peer, Script, answer, chunk, delta, event, head, sse_head, stream

USAGE: dict[str, object] = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
COUNTS: dict[str, Any] = {**delta(), "choices": [], "usage": USAGE}
TEXT = "Hello"


def said(choices: int = 1) -> list[bytes]:
    """Good chunks: the role and the text of every choice."""
    made = [event(delta(index=i, role="assistant", content="")) for i in range(choices)]
    return made + [event(delta(index=i, content=piece)) for piece in ("Hel", "lo") for i in range(choices)]


def call(arguments: str | None, name: str | None = None, **more: object) -> dict[str, Any]:
    """A delta that begins a call or goes on with it."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fields: dict[str, object] = {"index": 0, "function": function}
    if name is not None:
        fields |= {"id": "call_a", "type": "function"}
    return {"tool_calls": [{key: value for key, value in (fields | more).items() if value is not None}]}


def finish(word: str, choices: int = 1) -> bytes:
    return b"".join(event(delta(word, index=i)) for i in range(choices))


@dataclass(frozen=True)
class Lie:
    """What the upstream writes after good chunks, and what is to be told: the code, the status where the answer is not
    streamed, a word of the cause. `ended`: every choice had its finish word before. `whole`: the body is framed to its
    end; `makes`: what is made of the text, where some of it can be lost on the way or is no text."""

    pieces: tuple[bytes, ...]
    code: str = "engine_died"
    status: int = 503
    says: str = ""
    ended: bool = False
    whole: bool = True

    def script(self, choices: int, closed: tuple[int, ...] = ()) -> Script:
        """`closed` are the choices that end well before it."""
        begun = [*said(choices), *[event(delta("stop", index=i)) for i in closed]]
        if self.ended:
            begun += [event(delta("stop", index=i)) for i in range(choices) if i not in closed]
        if self.whole:
            return stream(*begun, *self.pieces)
        return lambda peer: peer.send(sse_head(), *[chunk(piece) for piece in begun], *self.pieces)


ERROR = {"error": {"message": "the GPU is gone", "type": "oom", "code": "E7"}}
NO_WORD = "without a finish_reason"
CUT = "closed in the middle of the answer"
GONE = "the GPU is gone"

LIES: dict[str, Lie] = {
    "end without a word": Lie((), says=NO_WORD),
    "end marker without a word": Lie((DONE,), says=NO_WORD),
    "counts and end marker without a word": Lie((event(COUNTS), DONE), says=NO_WORD),
    "no end of the body": Lie((), says=CUT, whole=False),
    "cut in a chunk": Lie((chunk(finish("stop"))[:9],), says=CUT, whole=False),
    "no http": Lie((b"nonsense\r\n",), "engine_protocol", 502, "not HTTP", whole=False),
    "error object": Lie((event(ERROR),), says=GONE),
    "error object and end marker": Lie((event(ERROR), DONE), says=GONE),
    "error object and a good ending": Lie((event(ERROR), finish("stop"), DONE), says=GONE),
    "error object and no end of the body": Lie((chunk(event(ERROR)),), says=GONE, whole=False),
    "error text": Lie((event({"error": GONE}), DONE), says=GONE),
    "error beside the choices": Lie((event(delta("error") | ERROR), DONE), says=GONE),
    "error in the choice": Lie((event({"choices": [{"index": 0, **ERROR}]}), DONE), says=GONE),
    "flat error": Lie((event({"object": "error", "message": GONE, "code": 500}), DONE), says=GONE),
    "error field": Lie((event(ERROR["error"], field_name=b"error: "), DONE), says=GONE),
    "error event": Lie((b"event: error\n" + event(ERROR), DONE), says=GONE),
    "raw json line": Lie((json.dumps(ERROR).encode() + b"\n",), says=GONE),
    "raw json over lines": Lie((json.dumps(ERROR, indent=1).encode() + b"\n\n", DONE), says=GONE),
    "html in the stream": Lie((b"<html><body>502 Bad Gateway</body></html>\n",), says="502 Bad Gateway"),
    "text in the stream": Lie((b"Internal Server Error",), says="Internal Server Error"),
    "damaged json": Lie((b"data: {oops\n\n", DONE), "engine_protocol", 502, "oops"),
    "no object": Lie((b"data: [1]\n\n", DONE), "engine_protocol", 502, "not a JSON object"),
    "error after the word": Lie((event(ERROR), DONE), says=GONE, ended=True),
    "error after the end marker": Lie((DONE, event(ERROR)), says=GONE, ended=True),
    "error after the end marker in one write": Lie((DONE + event(ERROR),), says=GONE, ended=True),
    "error field after the end marker": Lie((DONE, b"error: " + GONE.encode() + b"\n\n"), says=GONE, ended=True),
    "raw json after the end marker": Lie((DONE, json.dumps(ERROR).encode()), says=GONE, ended=True),
    "text after the word": Lie(
        (event(delta(content="x")), DONE), "engine_protocol", 502, "more of the answer", ended=True),
    "another word": Lie((event(delta("length")), DONE), "engine_protocol", 502, "and then 'length'", ended=True),
    **{
        f"the word {word}": Lie((finish(word), DONE), "engine_protocol", 502, f"unknown finish word {word!r}")
        for word in ("abort", "cancelled", "eos_token", "timeout")
    },
    "the word error": Lie((finish("error"), DONE), says="finish_reason 'error'"),
    "tool_calls without a call": Lie((finish("tool_calls"), DONE), "engine_protocol", 502, "without a tool call"),
    **{
        f"{word} over cut arguments": Lie(
            (event(delta(**call("", "add"))), event(delta(**call('{"a": '))), finish(word), DONE),
            "tool_call_incomplete", 502, "'add' are not JSON",
        )
        for word in ("stop", "tool_calls")
    },
    "tool_calls over no arguments": Lie(
        (event(delta(**call("", "add"))), finish("tool_calls"), DONE), "tool_call_incomplete", 502, "not JSON"),
    "a call without a name": Lie(
        (event(delta(**call("{}"))), finish("tool_calls"), DONE), "tool_call_incomplete", 502, "has no name"),
    "cut in the arguments": Lie((event(delta(**call("", "add"))), event(delta(**call('{"a": ')))), says=NO_WORD),
}  # fmt: skip


def _gzip_damaged(peer: Peer) -> None:
    peer.send(sse_head(content_encoding="gzip"))
    peer.send_chunks(gzip.compress(b"".join(said()))[:-8], b"\0" * 50, b"0\r\n\r\n")


def _silent(peer: Peer) -> None:
    peer.send(sse_head(), *[chunk(piece) for piece in said()])
    assert peer.wait_gone()


def _commenting(peer: Peer) -> None:
    peer.send(sse_head(), *[chunk(piece) for piece in said()])
    while not peer.gone.wait(0.05):
        peer.send(chunk(b": ping\n\n"), chunk(b"data: : ping\n\n"))  # until the client leaves, which ends the script


SINGLE: dict[str, tuple[Script, str, int, str]] = {
    "gzip damaged": (_gzip_damaged, "engine_protocol", 502, "gzip body is damaged"),
    "silent": (_silent, "engine_died", 503, "said nothing for 1 s"),
    "silent with comments": (_commenting, "engine_died", 503, "said nothing for 1 s"),
}
"""Script, code, status, cause."""

REFUSED: dict[str, tuple[bytes, int, str, str]] = {
    "html": (answer(b"<html>log in</html>", 200, "text/html"), 502, "engine_protocol", "text/html"),
    "html with a status": (
        answer(b"<html><h1>502 Bad Gateway</h1></html>", 502, "text/html"),
        502,
        "engine_error",
        "502 Bad",
    ),
    "text with a status": (answer(b"overloaded", 503, "text/plain"), 503, "engine_error", "overloaded"),
    "json with a status": (answer(json.dumps(ERROR).encode(), 500), 500, "E7", GONE),
    "nothing": (b"", 503, "engine_died", "without an answer"),
    "a redirect": (head(302, location="/x", content_length="0"), 502, "engine_protocol", "302"),
}
"""Before the first byte: answer, status, code, cause."""


# --- one JSON body instead of a stream ----------------------------------------------------------------

BODY: dict[str, Any] = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "odd": [1],
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": TEXT, "odd": 1}, "finish_reason": "stop", "odd": 1}],
    "usage": USAGE,
}  # fmt: skip


def body(**changes: Any) -> dict[str, Any]:
    return {**BODY, "choices": [{**BODY["choices"][0], **changes}]}


def calling(arguments: str) -> dict[str, Any]:
    made = [{"id": "call_a", "type": "function", "function": {"name": "add", "arguments": arguments}}]
    return body(message={"role": "assistant", "content": TEXT, "tool_calls": made}, finish_reason="tool_calls")


BODY_LIES: dict[str, tuple[bytes, str, int, str]] = {
    "no word": (json.dumps(body(finish_reason=None)).encode(), "engine_died", 503, NO_WORD),
    "unknown word": (json.dumps(body(finish_reason="abort")).encode(), "engine_protocol", 502, "'abort'"),
    "the word error": (json.dumps(body(finish_reason="error")).encode(), "engine_died", 503, "'error'"),
    "an error beside the choices": (json.dumps({**BODY, **ERROR}).encode(), "engine_died", 503, GONE),
    "cut arguments": (json.dumps(calling('{"a": ')).encode(), "tool_call_incomplete", 502, "not JSON"),
    "no call": (json.dumps(body(finish_reason="tool_calls")).encode(), "engine_protocol", 502, "without a tool call"),
}
"""Body, code, status, cause; the text of each is `TEXT`."""
