"""What upstreams write oddly although nothing is wrong with the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.e2e.lies import COUNTS, TEXT, USAGE, call, finish, said
from tests.scripted_upstream import DONE, delta, event


def without(value: Mapping[str, Any], *path: Any) -> dict[str, Any]:
    """A copy of a chunk without the member at this path."""
    made = json.loads(json.dumps(value))
    inner = made
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return made


def each(change: Callable[[dict[str, Any]], Any]) -> tuple[bytes, ...]:
    """The good stream with every chunk changed."""
    values = [delta(role="assistant", content=""), delta(content="Hel"), delta(content="lo"), delta("stop")]
    return (*[event(change(value)) for value in values], DONE)


GOOD = (*said(), finish("stop"), DONE)
MESSAGE = {"choices": [{"message": {"content": TEXT}, "finish_reason": "stop"}]}
ODDITIES: dict[str, tuple[bytes, ...]] = {
    "nothing odd": GOOD,
    "no end marker": GOOD[:-1],
    "end marker without its line end": (*GOOD[:-1], b"data: [DONE]"),
    "the word twice": (*GOOD[:-1], finish("stop"), DONE),
    "the word twice with counts": (*GOOD[:-1], event(delta("stop") | {"usage": USAGE}), DONE),
    "the word with the text": (*said()[:-1], event(delta("stop", content="lo")), DONE),
    "the end marker twice": (*GOOD, DONE),
    "counts after the end marker": (*GOOD, event(COUNTS)),
    "blank data": tuple(piece for one in GOOD for piece in (b"data: \n\n", b"data:\n\n", one)),
    "comments as data": tuple(piece for one in GOOD for piece in (b"data: : ping\n\n", one)),
    "comments": tuple(piece for one in GOOD for piece in (b": ping\n\n", b": ping\n" + one)),
    "crlf": tuple(one.replace(b"\n", b"\r\n") for one in GOOD),
    "cr": tuple(one.replace(b"\n", b"\r") for one in GOOD),
    "crlf in two reads": tuple(half for one in GOOD for half in (one[:-2] + b"\r\n\r", b"\n")),
    "bom": (b"\xef\xbb\xbf" + GOOD[0], *GOOD[1:]),
    "bom in two reads": (b"\xef", b"\xbb\xbf" + GOOD[0], *GOOD[1:]),
    "no space": tuple(one.replace(b"data: ", b"data:") for one in GOOD),
    "ids and names": tuple(b"id: 1\nevent: message\n" + one for one in GOOD),
    "byte by byte": tuple(bytes([byte]) for byte in b"".join(GOOD)),
    "no id": each(lambda one: without(one, "id")),
    "another id in every chunk": each(lambda one: one | {"id": str(one)}),
    "no object": each(lambda one: without(one, "object")),
    "no created": each(lambda one: without(one, "created")),
    "no model": each(lambda one: without(one, "model")),
    "no index": each(lambda one: without(one, "choices", 0, "index")),
    "no finish member": each(
        lambda one: one if one["choices"][0]["finish_reason"] else without(one, "choices", 0, "finish_reason")),
    "no role": (event(delta(content="")), *GOOD[1:]),
    "no delta at the end": (*GOOD[:-2], event(without(delta("stop"), "choices", 0, "delta")), DONE),
    "delta null at the end": (
        *GOOD[:-2], event({"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}), DONE),
    "nothing but choices": each(lambda one: {"choices": [without(one["choices"][0], "index")]}),
    "empty counts in every chunk": each(lambda one: one | {"usage": dict[str, int]()}),
    "a choice too many": (*GOOD[:-2], event(delta(content="no", index=1)), *GOOD[-2:]),
    "one event": (event(MESSAGE), DONE),
    "the message again at the end": (*said(), event(MESSAGE), DONE),
}  # fmt: skip
"""Streams that say `TEXT` and end by themselves."""

BEGUN = event(delta(role="assistant", **call("", "add")))
REST = event(delta(**call('{"a": ')))
LAST = event(delta(**call("1}")))
CALLS_END = (finish("tool_calls"), DONE)
CALLS: dict[str, tuple[bytes, ...]] = {
    "right": (BEGUN, REST, LAST, *CALLS_END),
    "no role": (event(delta(**call("", "add"))), REST, LAST, *CALLS_END),
    "no index": tuple(
        event(delta(**call(text, name, index=None))) for text, name in (("", "add"), ('{"a": ', None), ("1}", None))
    ) + CALLS_END,
    "index from 1": tuple(
        event(delta(**call(text, name, index=1))) for text, name in (("", "add"), ('{"a": ', None), ("1}", None))
    ) + CALLS_END,
    "no id": (event(delta(**call("", "add", id=None))), REST, LAST, *CALLS_END),
    "no type": (event(delta(**call("", "add", type=None))), REST, LAST, *CALLS_END),
    "no arguments at first": (event(delta(**call(None, "add"))), REST, LAST, *CALLS_END),
    "everything with every piece": (
        *[event(delta(**call(text, "add"))) for text in ("", '{"a": ', "1}")], *CALLS_END),
    "arguments as an object": (
        event(delta(tool_calls=[{"function": {"name": "add", "arguments": {"a": 1}}}])), *CALLS_END),
    "two entries in one delta": (
        event(delta(tool_calls=call("", "add")["tool_calls"] + call('{"a": ')["tool_calls"])), LAST, *CALLS_END),
    "the word stop": (BEGUN, REST, LAST, finish("stop"), DONE),
    "the words tool_calls and stop": (BEGUN, REST, LAST, finish("tool_calls"), finish("stop"), DONE),
    "the word with the arguments": (BEGUN, REST, event(delta("tool_calls", **call("1}"))), DONE),
}  # fmt: skip
"""Streams that call `add` with `{"a": 1}` and end by themselves."""

ADD = event(delta(**call('{"a": 1}', "add")))
TWO_CALLS: dict[str, tuple[bytes, ...]] = {
    "right": (ADD, event(delta(**call("{}", "sub", index=1, id="call_b"))), *CALLS_END),
    "every index 0": (ADD, event(delta(**call("{}", "sub", id="call_b"))), *CALLS_END),
    "every id the same": (ADD, event(delta(**call("{}", "sub", index=1))), *CALLS_END),
    "neither index nor id": (
        event(delta(**call('{"a": 1}', "add", index=None, id=None))),
        event(delta(**call("{}", "sub", index=None, id=None))), *CALLS_END),
}  # fmt: skip

TEXTS: dict[str, tuple[bytes, str]] = {
    "half a surrogate pair": (b'"a\\ud83d"', "a\ufffd"),
    "a pair": (b'"\\ud83d\\ude00"', "😀"),
    "raw separators": ('"a\u2028b\u2029c\u0085"'.encode(), "a\u2028b\u2029c\u0085"),
    "a raw control character": (b'"\x1b[0m"', "\x1b[0m"),
    "no utf-8": (b'"a\xff"', "a\ufffd"),
}
"""A content as it is in the upstream's JSON, and what it is for a client."""


def with_text(raw: bytes) -> tuple[bytes, ...]:
    return (event(delta(role="assistant", content="|")).replace(b'"|"', raw), finish("stop"), DONE)
