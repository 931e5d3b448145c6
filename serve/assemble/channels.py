"""Divides an answer's text into reasoning, answer and tool calls.

Where each character goes depends on the text alone, never on how it is cut into pieces. Tags, the newlines right after
`<think>` and `</think>` and the white space around calls are framing; every other character comes out exactly once.
The rules:

- A `<tool_call>` of a declared tool is a call, streamed from its name on. One of an undeclared tool is text once it
  is whole; text that only mentions `<tool_call>` is text at once.
- A call that breaks before its tool is known is held to its closing tag and then shown as text; the answer goes on.
- Inside the reasoning a `<tool_call>` is held, because only the end tells what it was: `</think>` makes it reasoning,
  the model's own end of its turn makes whole calls of declared tools calls. `</think>` always ends the reasoning.
- A call that broke, or is open at the model's own end, is a fault. One that was cut (the token limit, a failure) is
  left open; with no name yet it is dropped at the token limit, and given as text before a failure.

It knows no tokens, no stop strings and no endings but these three kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Literal, TypeAlias

from engine.events import Piece, Reasoning, Text, ToolCallArgs, ToolCallEnd, ToolCallStart
from serve.assemble.calls import CallReader, Outcome
from serve.assemble.config import ParseConfig, ToolSpec
from serve.assemble.function_call import FunctionCall
from serve.assemble.json_call import JsonCall
from serve.assemble.lexer import Kind, Lexeme, Lexer, split_space

Ending: TypeAlias = Literal["stop", "length", "failed"]
"""How the answer ended: by the model itself, at the token limit, or in any other way."""

MAX_SHOWN_CHARACTERS = 200
"""How much of a call that never became one its fault shows."""


class _State(Enum):
    START = "nothing was read"
    REASONING = "in the reasoning"
    ANSWER = "in the answer"
    HEAD = "after <tool_call>"
    CALL = "in a call"
    BROKEN = "after a broken call: what follows belongs to it"


@dataclass(frozen=True, slots=True)
class Fault:
    """A call that came up to here is not whole, so the model's own end of this answer is no success. `message` says
    which one and why."""

    message: str


@dataclass(frozen=True, slots=True)
class _HeldCall:
    """A whole call of a declared tool inside the reasoning."""

    raw: str
    name: str
    arguments: str


_CALL_TAGS = frozenset(Kind) - {Kind.TEXT, Kind.THINK, Kind.END_THINK}
_END_CALL = frozenset({Kind.END_CALL})


def _text_tags(*, thinking: bool, tools: bool) -> dict[_State, frozenset[Kind]]:
    call = {Kind.CALL} if tools else set[Kind]()
    return {
        _State.START: frozenset(call | ({Kind.THINK, Kind.END_THINK} if thinking else {Kind.THINK})),
        _State.REASONING: frozenset(call | {Kind.END_THINK}),
        _State.ANSWER: frozenset(call),
        _State.BROKEN: frozenset(),
    }


class Channels:
    """The text of one answer, fed in pieces. `feed` and `finish` give the events that are certain by then."""

    def __init__(self, config: ParseConfig, new_call_id: Callable[[], str]) -> None:
        self._thinking = config.thinking
        self._tools = {tool.name: tool for tool in config.tools}
        self._new_call_id = new_call_id
        self._text_tags = _text_tags(thinking=config.thinking, tools=bool(config.tools))
        self._lexer = Lexer()
        self._state = _State.ANSWER if config.plain else _State.START
        self._home = _State.ANSWER  # where the call that is read was opened
        self._skip_newlines = False
        self._gap: list[str] | None = None  # white space after a call, while nothing else followed
        self._raw: list[str] = []  # the call that is read, as long as it may be text
        self._reader: CallReader | None = None
        self._live = False  # the call that is read is certain and streamed
        self._index = -1
        self._held: list[str | _HeldCall] = []  # reasoning from the first whole call on
        self._fault: str | None = None  # told at the end, unless the reasoning ends: then it was only a thought
        self._settled = False
        self._out: list[Piece | Fault] = []

    @property
    def in_reasoning(self) -> bool:
        """Whether the next character belongs to the reasoning, as far as is known."""
        if self._state is _State.START:
            return self._thinking
        return (self._home if self._state in (_State.HEAD, _State.CALL) else self._state) is _State.REASONING

    def feed(self, text: str) -> list[Piece | Fault]:
        """Read the next piece of text."""
        self._lexer.feed(text)
        while (lexeme := self._lexer.next(self._tags())) is not None:
            self._read(lexeme)
        return self._taken()

    def finish(self, ending: Ending) -> list[Piece | Fault]:
        """The answer ended: everything held, and the fault in its calls if the model ended it itself."""
        partial = self._lexer.flush()
        self._settled = ending == "stop"
        while self._state in (_State.HEAD, _State.CALL):
            partial = self._finish_call(ending, partial)
        if partial:
            self._read(Lexeme(Kind.TEXT, partial))
        if self._state is _State.BROKEN:
            self._finish_broken(ending)
        self._finish_held(ending)
        if ending == "stop" and self._fault is not None:
            self._out.append(Fault(self._fault))
        return self._taken()

    def _taken(self) -> list[Piece | Fault]:
        out, self._out = self._out, []
        return _joined(out)

    # --- text ----------------------------------------------------------------------------------------------------

    def _tags(self) -> frozenset[Kind]:
        """The tags that mean something now."""
        if self._state in (_State.HEAD, _State.CALL):
            return _CALL_TAGS if self._home is _State.ANSWER else _CALL_TAGS | {Kind.END_THINK}
        if self._state is _State.BROKEN and not self._live:
            return _END_CALL
        return self._text_tags[self._state]

    def _read(self, lexeme: Lexeme) -> None:
        match self._state:
            case _State.START:
                self._read_first(lexeme)
            case _State.REASONING | _State.ANSWER:
                self._read_text(lexeme)
            case _State.HEAD:
                self._read_head(lexeme)
            case _State.CALL:
                self._read_call(lexeme)
            case _State.BROKEN:
                self._read_broken(lexeme)

    def _read_all(self, lexemes: Iterable[Lexeme]) -> None:
        for lexeme in lexemes:
            self._read(lexeme)

    def _read_first(self, lexeme: Lexeme) -> None:
        opened = lexeme.kind is Kind.THINK
        self._state = _State.REASONING if self._thinking or opened else _State.ANSWER
        self._skip_newlines = opened
        if not opened:
            self._read(lexeme)

    def _read_text(self, lexeme: Lexeme) -> None:
        if lexeme.kind is Kind.END_THINK and self._state is _State.REASONING:
            self._end_reasoning()
        elif lexeme.kind is Kind.CALL and self._tools:
            self._home, self._state = self._state, _State.HEAD
            self._raw = [*(self._gap or ()), lexeme.raw]
            self._gap = None
            self._skip_newlines = False
        else:
            text = lexeme.raw
            if self._skip_newlines:
                text = text.lstrip("\n")
                self._skip_newlines = not text
            if self._gap is not None:
                space, rest = split_space(text)
                self._gap.append(space)
                if not rest:
                    return
                text, self._gap = "".join(self._gap) + rest, None
            self._say(text)

    def _say(self, text: str) -> None:
        """Text of the state's own channel."""
        if not text:
            return
        if self._state is _State.ANSWER:
            self._out.append(Text(text))
        elif self._held:
            self._held.append(text)
        else:
            self._out.append(Reasoning(text))

    def _end_reasoning(self) -> None:
        for item in self._held:
            self._out.append(Reasoning(item if isinstance(item, str) else item.raw))
        self._held.clear()
        self._fault = None
        self._state = _State.ANSWER
        self._skip_newlines = True

    # --- calls ---------------------------------------------------------------------------------------------------

    def _read_head(self, lexeme: Lexeme) -> None:
        if lexeme.kind is Kind.FUNCTION:
            tool = self._tools.get(lexeme.name)
            tool = tool or ToolSpec(lexeme.name)
            self._reader = FunctionCall(tool.name, tool.parameters, settled=self._settled)
            self._state = _State.CALL
            self._live = False
            self._raw.append(lexeme.raw)
            self._go_live()
            return
        space, rest = split_space(lexeme.raw) if lexeme.kind is Kind.TEXT else ("", lexeme.raw)
        if space:
            self._raw.append(space)
        if not rest:
            return
        if rest.startswith("{"):
            self._reader = JsonCall()
            self._state = _State.CALL
            self._live = False
            self._read_call(Lexeme(Kind.TEXT, rest))
        else:
            self._not_a_call([lexeme if lexeme.kind is not Kind.TEXT else Lexeme(Kind.TEXT, rest)])

    def _not_a_call(self, rest: Iterable[Lexeme]) -> None:
        self._state = self._home
        self._say("".join(self._raw))
        self._leave_call()
        self._read_all(rest)

    def _read_call(self, lexeme: Lexeme) -> None:
        if lexeme.kind is Kind.END_THINK and self._home is _State.REASONING:
            self._not_a_call([lexeme])
            return
        if not self._live:
            self._raw.append(lexeme.raw)
        reader = self._must_read()
        outcome = reader.feed(lexeme)
        self._go_live()
        self._stream_arguments()
        self._settle(outcome)

    def _must_read(self) -> CallReader:
        assert self._reader is not None, "in a call without a reader"
        return self._reader

    def _go_live(self) -> None:
        """Start the call as soon as it is certainly one."""
        name = self._must_read().name
        if self._live or name is None or name not in self._tools or self._home is _State.REASONING:
            return
        self._live = True
        self._raw = []
        self._start_call(name)

    def _start_call(self, name: str) -> None:
        self._index += 1
        self._out.append(ToolCallStart(self._index, self._new_call_id(), name))

    def _stream_arguments(self) -> None:
        if self._live:
            self._say_arguments(self._must_read().take())

    def _say_arguments(self, text: str) -> None:
        if text:
            self._out.append(ToolCallArgs(self._index, text))

    def _end_call(self) -> None:
        self._out.append(ToolCallEnd(self._index))

    def _settle(self, outcome: Outcome) -> None:
        if outcome is Outcome.CLOSED:
            self._call_closed()
        elif outcome is Outcome.BROKEN:
            self._call_broken()

    def _call_closed(self) -> None:
        reader = self._must_read()
        raw = self._raw_of_call()
        self._state = self._home
        if self._live:
            self._end_call()
            self._gap = []
        elif self._home is _State.REASONING and reader.name in self._tools:
            self._held.append(_HeldCall(raw, str(reader.name), reader.take()))
        else:
            self._say(raw)
        self._leave_call()
        self._read_all(reader.rest)

    def _call_broken(self) -> None:
        reader = self._must_read()
        nameless = self._home is _State.ANSWER and reader.name is None and reader.plausible
        if reader.name in self._tools:
            self._fault = self._fault or self._fault_of(reader.fault)
        if self._live or nameless:
            self._raw = [] if self._live else [self._raw_of_call()]
            self._state = _State.BROKEN
        else:
            raw = self._raw_of_call()
            self._state = self._home
            self._say(raw)
            self._leave_call()
        self._read_all(reader.rest)

    def _raw_of_call(self) -> str:
        """The call as it was written, without what does not belong to it."""
        raw = "".join(self._raw)
        return raw[: len(raw) - sum(len(lexeme.raw) for lexeme in self._must_read().rest)]

    def _leave_call(self) -> None:
        self._raw = []
        self._reader = None

    def _read_broken(self, lexeme: Lexeme) -> None:
        if self._live:
            self._say_arguments(lexeme.raw)
            return
        self._raw.append(lexeme.raw)
        if lexeme.kind is Kind.END_CALL:
            fault = Fault(self._fault_of(self._must_read().fault))
            self._not_a_call([])
            self._out.append(fault)

    # --- the end -------------------------------------------------------------------------------------------------

    def _finish_call(self, ending: Ending, partial: str) -> str:
        """End the call that is being read; its closing may give text that begins another one. Returns `partial` if
        that was not part of this one."""
        reader = self._reader if self._state is _State.CALL else None
        if reader is None and partial and not _may_be_function(partial):
            self._not_a_call([])
            return partial
        if not self._live or reader is None:
            self._raw.append(partial)
        if reader is not None:
            outcome = reader.finish(partial, stopped=ending == "stop")
            self._go_live()
            self._stream_arguments()
            if outcome is not Outcome.OPEN:
                unread = self._take_back(reader, partial) if outcome is Outcome.CLOSED else ""
                self._settle(outcome)
                return unread
        self._leave_open(reader.name if reader is not None else None, ending, live=self._live and reader is not None)
        return ""

    def _take_back(self, reader: CallReader, partial: str) -> str:
        """`partial`, if it came after the end of the call: it may begin a tag of the next one."""
        if not partial or not reader.rest:
            return ""
        reader.rest.pop()
        if not self._live:
            self._raw.pop()
        return partial

    def _leave_open(self, name: str | None, ending: Ending, *, live: bool) -> None:
        """The answer ended in a call."""
        if not (self._home is _State.REASONING and name is not None and name not in self._tools):
            self._fault = self._fault or self._fault_of("it was not closed before the answer ended")
        self._state = self._home
        dropped = self._home is _State.ANSWER and (ending == "stop" or (ending == "length" and name is None))
        if not live and not dropped:
            self._say("".join(self._raw))
        self._leave_call()

    def _finish_broken(self, ending: Ending) -> None:
        if self._live:
            return
        self._fault = self._fault or self._fault_of(self._must_read().fault)
        if ending == "failed":
            self._out.append(Text("".join(self._raw)))

    def _fault_of(self, what: str) -> str:
        name = self._reader.name if self._reader is not None else None
        if name is not None and (self._live or self._home is _State.REASONING):
            return f"tool call {name[:80]!r} is not whole: {what}"
        return f"a tool call is not whole: {what}: {''.join(self._raw)[:MAX_SHOWN_CHARACTERS]!r}"

    def _finish_held(self, ending: Ending) -> None:
        """Whole calls in reasoning that was never closed."""
        if ending != "stop":
            for item in self._held:
                self._out.append(Reasoning(item if isinstance(item, str) else item.raw))
            return
        for between, run in groupby(self._held, lambda item: isinstance(item, str)):
            text = "".join(item for item in run if isinstance(item, str))
            if between and not text.isspace():
                self._out.append(Reasoning(text))
        for item in self._held:
            if isinstance(item, _HeldCall):
                self._start_call(item.name)
                self._say_arguments(item.arguments)
                self._end_call()


def _may_be_function(partial: str) -> bool:
    """Whether what came after a <tool_call> may be a <function=NAME>."""
    return Kind.FUNCTION.value.startswith(partial) or partial.startswith(Kind.FUNCTION.value)


def _joined(pieces: list[Piece | Fault]) -> list[Piece | Fault]:
    """The pieces with neighbours of one channel as one."""
    if len(pieces) < 2:
        return pieces
    return [piece for channel, run in groupby(pieces, _channel) for piece in _as_one(channel, list(run))]


def _channel(piece: Piece | Fault) -> tuple[type[Piece | Fault], int]:
    return type(piece), piece.index if isinstance(piece, ToolCallStart | ToolCallArgs | ToolCallEnd) else -1


def _as_one(channel: tuple[type[Piece | Fault], int], run: list[Piece | Fault]) -> list[Piece | Fault]:
    kind, index = channel
    text = "".join(piece.text for piece in run if isinstance(piece, Text | Reasoning | ToolCallArgs))
    if kind is Text:
        return [Text(text)]
    if kind is Reasoning:
        return [Reasoning(text)]
    return [ToolCallArgs(index, text)] if kind is ToolCallArgs else run
