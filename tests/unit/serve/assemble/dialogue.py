"""Feeds a text to `assemble` in tokens of a chosen size and gives what came out, neighbours joined."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from engine.events import (
    Accepted,
    EngineEvent,
    Event,
    Finished,
    OfChoice,
    Passed,
    Progress,
    Reasoning,
    Relayed,
    Terminal,
    Text,
    Tick,
    Token,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)
from serve.assemble import ParseConfig, ToolSpec, assemble

STOP = Finished("stop")
LENGTH = Finished("length")
SIZES = (None, 1, 7)
"""Whole, byte by byte, in sevens."""
END_ID = 9_999


class PieceTokenizer:
    """A vocabulary made of the pieces of one text; `END_ID` is a control token."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        if token_id == END_ID:
            return b""
        if not 0 <= token_id < len(self._pieces):
            raise ValueError(f"no token {token_id}")
        return self._pieces[token_id]


class Source:
    """An engine's events, with whether it was closed and how many were read."""

    def __init__(self, events: Iterable[EngineEvent]) -> None:
        self._events = iter(events)
        self.closed = False
        self.read = 0

    def __iter__(self) -> Iterator[EngineEvent]:
        return self

    def __next__(self) -> EngineEvent:
        event = next(self._events)
        self.read += 1
        return event

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Said:
    """What came out: the channels, the calls and the terminal without its usage."""

    text: str
    reasoning: str
    calls: tuple[tuple[str, str, bool], ...]
    """(name, arguments, ended) by index."""
    order: tuple[str, ...]
    """The kinds of the pieces, neighbours as one."""
    terminal: Terminal | None


def config(
    *,
    thinking: bool = False,
    tools: Sequence[str | ToolSpec] = (),
    stop: Sequence[str] = (),
    end_ids: Iterable[int] = (END_ID,),
) -> ParseConfig:
    specs = tuple(ToolSpec(tool) if isinstance(tool, str) else tool for tool in tools)
    return ParseConfig(thinking=thinking, tools=specs, stop=tuple(stop), end_ids=frozenset(end_ids))


def cut(text: str | bytes, size: int | None) -> list[bytes]:
    data = text.encode() if isinstance(text, str) else text
    return [data[at : at + (size or len(data))] for at in range(0, len(data), size or len(data) or 1)]


def events(
    pieces: Sequence[bytes], parse: ParseConfig, terminal: Terminal = STOP, prompt_tokens: int = 0
) -> list[Event]:
    """Everything that `assemble` gives for these tokens."""
    source: list[EngineEvent] = [Accepted(), Progress(1, 1), *(Token(index) for index in range(len(pieces))), terminal]
    ids = (f"call_{number}" for number in itertools.count())
    return list(assemble(iter(source), PieceTokenizer(pieces), parse, lambda: next(ids), prompt_tokens))


def said(happened: Iterable[Event]) -> Said:
    """The events by channel, with the grammar of calls checked on the way."""
    text: list[str] = []
    reasoning: list[str] = []
    names: list[str] = []
    arguments: list[str] = []
    ended: list[bool] = []
    ids: set[str] = set()
    order: list[str] = []
    terminal: Terminal | None = None
    for event in happened:
        assert terminal is None, f"{event} after the terminal"
        match event:
            case Text():
                assert event.text, "an empty text"
                text.append(event.text)
            case Reasoning():
                assert event.text, "an empty reasoning"
                reasoning.append(event.text)
            case ToolCallStart():
                assert event.index == len(names), "calls are counted from 0"
                assert event.id not in ids, "ids are unique"
                ids.add(event.id)
                names.append(event.name)
                arguments.append("")
                ended.append(False)
            case ToolCallArgs():
                assert event.index == len(names) - 1, "arguments of a call that is not the open one"
                assert not ended[event.index], "arguments after the call's end"
                assert event.text, "empty arguments"
                arguments[event.index] += event.text
            case ToolCallEnd():
                assert event.index == len(names) - 1 and not ended[event.index]
                assert arguments[event.index].startswith("{"), "arguments that are no object"
                ended[event.index] = True
            case Accepted() | Progress() | Tick():
                continue
            case _:
                assert not isinstance(event, Token | Passed | Relayed | OfChoice), (
                    "token ids stay inside, and nothing passes"
                )
                terminal = event
                continue
        if not order or order[-1] != type(event).__name__:
            order.append(type(event).__name__)
    calls = tuple(zip(names, arguments, ended, strict=True))
    plain = None if terminal is None else replace(terminal, usage=None)
    return Said("".join(text), "".join(reasoning), calls, tuple(order), plain)


def tell(text: str | bytes, parse: ParseConfig, terminal: Terminal = STOP) -> Said:
    """What comes out for `text`, the same whole, byte by byte and in sevens."""
    whole, *others = (said(events(cut(text, size), parse, terminal)) for size in SIZES)
    for size, other in zip(SIZES[1:], others, strict=True):
        assert other == whole, f"in pieces of {size}"
    return whole


def function_call(tool: str, /, **parameters: str) -> str:
    """A call in the tag form, written as the models write it."""
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={tool}>\n{values}</function>\n</tool_call>"


def json_call(tool: str, arguments: str) -> str:
    """A call in the JSON form."""
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {arguments}}}\n</tool_call>'
