"""The bytes of one connection → its HTTP exchanges, and what every answer of ours must hold: its head, its framing, and
by the API its stream, whole or left, its error, its body.

It shares no code with the server, so that it cannot share its mistakes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import parse_qs, urlsplit

from tests.e2e.completions_grammar import CompletionWalk
from tests.e2e.frames import Json, check_has, check_openai_error, read_frames, strict_json
from tests.e2e.grammar import ChatWalk
from tests.e2e.messages_grammar import MessageWalk, check_error
from tests.e2e.responses_grammar import ResponseWalk

Writer = Literal["us", "upstream", "its responses"]
"""Who wrote what a server says: itself, an upstream whose chat it passes on, one whose Responses it passes on, too."""
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\x20-\x7e\x80-\xff]*")
MADE_KEYS = ("partial_output", "partial_outputs", "usage", "response_id")
"""What the error of an answer that was not streamed may say besides."""
Walk = ChatWalk | CompletionWalk | MessageWalk | ResponseWalk


@dataclass
class Asked:
    """One request. `body` is {} where it is none, or no JSON object."""

    method: str
    target: str
    body: Json = field(default_factory=dict[str, Any])

    @property
    def path(self) -> str:
        return urlsplit(self.target).path.rstrip("/")


@dataclass
class Told:
    """One answer as far as it was read. `end`: its body is whole by its framing ("whole"), was broken off by the server
    ("cut"), or nobody read further ("left")."""

    status: int
    headers: dict[str, str]
    body: bytes
    end: Literal["whole", "cut", "left"]


# --- the connection ----------------------------------------------------------------------------------


def exchanges(sent: bytes, received: bytes, *, over: bool) -> Iterator[tuple[Asked | None, Told]]:
    """The answers of a connection with their requests, None where one is not HTTP. `over`: the server closed it.

    Raises: AssertionError: an answer whose head or framing is broken.
    """
    asked = _requests(sent)
    while received:
        head, mark, rest = received.partition(b"\r\n\r\n")
        if not mark:
            return
        status, headers = _head(head)
        if status < 200:
            received = rest
            continue
        request = next(asked, None)
        told, received = _body(status, headers, rest, over, bare=request is not None and request.method == "HEAD")
        yield request, told


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    assert re.fullmatch(r"HTTP/1\.1 [1-5][0-9][0-9] [\x20-\x7e]*", first), f"not a status line: {first!r}"
    for line in lines:
        assert HEADER.fullmatch(line), f"not a header: {line!r}"
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs), f"a header twice: {lines}"
    assert not {"content-length", "transfer-encoding"} <= headers.keys(), "two framings"
    return int(first.split(" ")[1]), headers


def _body(status: int, headers: dict[str, str], rest: bytes, over: bool, *, bare: bool) -> tuple[Told, bytes]:
    broken: Literal["cut", "left"] = "cut" if over else "left"
    if bare or status in (204, 304):
        return Told(status, headers, b"", "whole"), rest
    if headers.get("transfer-encoding") == "chunked":
        body, ended, rest = _chunks(rest)
        return Told(status, headers, body, "whole" if ended else broken), rest
    if "content-length" in headers:
        length = int(headers["content-length"])
        return Told(status, headers, rest[:length], "whole" if len(rest) >= length else broken), rest[length:]
    return Told(status, headers, rest, "left"), b""  # whether it is whole cannot be told


def _chunks(rest: bytes) -> tuple[bytes, bool, bytes]:
    """What the chunks hold, whether the last one was there, what follows."""
    body, at = bytearray(), 0
    while (end := rest.find(b"\r\n", at)) >= 0:
        assert re.fullmatch(rb"[0-9a-f]+", rest[at:end]), f"not a chunk's size: {rest[at:end]!r}"
        size = int(rest[at:end], 16)
        at = end + 2
        body += rest[at : at + size]
        if len(rest) < at + size + 2:
            break
        assert rest[at + size : at + size + 2] == b"\r\n", "a chunk longer than its size"
        at += size + 2
        if size == 0:
            return bytes(body), True, rest[at:]
    return bytes(body), False, b""


def _requests(sent: bytes) -> Iterator[Asked]:
    """The requests as far as they are HTTP: tests send others, too."""
    while sent:
        head, mark, rest = sent.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if not mark or len(words) != 3 or not words[2].startswith("HTTP/1."):
            return
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body, sent = _sent_chunks(rest)
        else:
            given = headers.get("content-length", "0")
            length = int(given) if given.isdecimal() else len(rest)
            body, sent = rest[:length], rest[length:]
        try:
            value: Any = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        yield Asked(words[0], words[1], cast("Json", value) if isinstance(value, dict) else {})


def _sent_chunks(rest: bytes) -> tuple[bytes, bytes]:
    """The same for a request, in any form that the protocol has: extensions and trailers may be there."""
    body = bytearray()
    while rest:
        line, _, rest = rest.partition(b"\r\n")
        given = line.partition(b";")[0].strip()
        size = int(given, 16) if re.fullmatch(rb"[0-9a-fA-F]+", given) else 0
        if size == 0:
            while line and rest:
                line, _, rest = rest.partition(b"\r\n")
            break
        body += rest[:size]
        rest = rest[size + 2 :]
    return bytes(body), rest


# --- what an answer must hold ------------------------------------------------------------------------


def check_told(asked: Asked | None, told: Told, writer: Writer) -> None:
    """Raises: AssertionError: the answer breaks a rule."""
    kind = told.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        assert told.status == 200, f"a stream with the status {told.status}"
        assert asked is not None, "a stream that nobody asked for"
        # in Responses a reader that is ahead, or whose side is closed, is told by a comment that the server is there
        _check_stream(_walk(asked, writer), told, beats=not asked.path.startswith("/v1/messages"))
    elif kind == "application/json" and told.end == "whole" and told.body:
        value = strict_json(told.body)
        if told.status >= 400:
            _check_refusal(value, messages=asked is not None and f"{asked.path}/".startswith("/v1/messages/"))


def _check_stream(walk: Walk, told: Told, *, beats: bool) -> None:
    for event in read_frames(told.body, whole=told.end == "whole", beats=beats):
        walk.feed(event)
    if told.end == "whole":
        walk.end()
    elif told.end == "cut":
        assert not walk.closed, "a whole ending, and the body is cut"


def _walk(asked: Asked, writer: Writer) -> Walk:
    body = asked.body
    options: Any = body.get("stream_options")
    counted = bool(isinstance(options, dict) and options.get("include_usage"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] - JSON
    match asked.path.split("/")[2:]:
        case ["chat", "completions", *_]:
            return ChatWalk(body.get("n") or 1, ours=writer == "us", counted=counted)
        case ["completions"]:
            prompt: Any = body.get("prompt")
            listed = isinstance(prompt, list) and not isinstance(prompt[0], int)
            prompts = len(prompt) if listed else 1  # pyright: ignore[reportUnknownArgumentType] - JSON
            return CompletionWalk(prompts * (body.get("n") or 1), counted=counted)
        case ["messages"]:
            return MessageWalk()
        case ["responses", *_]:
            after = parse_qs(urlsplit(asked.target).query).get("starting_after")
            return ResponseWalk(0 if after is None else int(after[-1]) + 1, theirs=writer == "its responses")
        case _:
            raise AssertionError(f"a stream where there is none: {asked.target}")


def _check_refusal(value: Any, *, messages: bool) -> None:
    if messages:
        check_error(value)
        return
    check_has(value, {"error"}, "an error's body")
    assert isinstance(value["error"], dict), "an error that is no object"
    error: Json = value["error"]
    check_openai_error({name: member for name, member in error.items() if name not in MADE_KEYS})
