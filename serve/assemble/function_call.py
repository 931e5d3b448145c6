"""Reads `<function=NAME>` `<parameter=KEY>` … in `<tool_call>` … `</tool_call>`, and streams the arguments as JSON.

A value may contain the call format's own tags (a file that documents it), and nothing in the format escapes them.
These rules find the value's end while it streams:

1. One newline after `<parameter=KEY>` and one before `</parameter>` are framing; all other characters are the value.
2. A `<parameter=…>` inside a value, at the start of a line or right after a `>`, opens an inner parameter, which
   the next `</parameter>` closes: whole example calls inside a value are part of it.
3. Any other `</parameter>` ends the value only if (white space and) a `<parameter=NEW-KEY>` follows, or
   `</function>` and `</tool_call>` and then a next `<tool_call>` or the end of the turn.
4. If text follows that `</tool_call>`, only the rest of the turn can tell: if another unpaired `</parameter>` comes,
   all up to there was the value; if the turn ends without, the call ended and the rest is text. Until then it is held.
5. The end of the model's turn right after `</parameter>` `</function>` `</tool_call>` always ends the call.

It does not know which tools exist. What it holds is bounded by the answer itself; each lexeme is read at most twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum

from serve.assemble.calls import Outcome
from serve.assemble.lexer import Kind, Lexeme, split_space
from serve.assemble.values import ValueWriter, writer_for


class _State(Enum):
    BODY = "before the first parameter"
    EMPTY = "after </function> of a call without parameters"
    VALUE = "in a value"
    AFTER_PARAMETER = "after </parameter>"
    AFTER_FUNCTION = "after </parameter> </function>"
    AFTER_CALL = "after </parameter> </function> </tool_call>"
    TAIL = "in text after a closed call, or still in the value"


_NEXT_TAGS: dict[_State, tuple[Kind, ...]] = {
    _State.BODY: (Kind.PARAMETER, Kind.END_FUNCTION),
    _State.EMPTY: (Kind.END_CALL,),
    _State.AFTER_PARAMETER: (Kind.PARAMETER, Kind.END_FUNCTION),
    _State.AFTER_FUNCTION: (Kind.END_CALL,),
}
"""Where only a tag may follow: which ones."""


class FunctionCall:
    """A `CallReader`, made from the `<function=NAME>` lexeme. `settled`: the whole turn is known and has no unpaired
    `</parameter>` later on, so rule 4 needs no holding."""

    def __init__(self, name: str, parameters: Mapping[str, object], *, settled: bool = False) -> None:
        self.name: str | None = name
        self.rest: list[Lexeme] = []
        self.plausible = True
        self.fault = ""
        self._parameters = parameters
        self._settled = settled
        self._state = _State.BODY
        self._keys: set[str] = set()
        self._value = _Value(writer_for(parameters, ""))
        self._depth = 0  # inner parameters that are open in the value
        self._inner = False  # the </parameter> in _held closed an inner one
        self._held: list[Lexeme] = []  # read, and perhaps still the value
        self._tail_from = 0  # where in _held the text after the call begins
        self._tail_depth = 0
        self._line_start = False
        self._out: list[str] = []

    def feed(self, lexeme: Lexeme) -> Outcome:
        """Read the next lexeme."""
        match self._state:
            case _State.BODY | _State.EMPTY:
                return self._in_body(lexeme)
            case _State.VALUE:
                return self._in_value(lexeme)
            case _State.TAIL:
                return self._in_tail(lexeme)
            case _:
                return self._after(lexeme)

    def take(self) -> str:
        """The arguments' JSON text since the last call."""
        text = "".join(self._out)
        self._out.clear()
        return text

    def finish(self, partial: str, *, stopped: bool) -> Outcome:
        """The answer ended. A call that rule 4 holds is closed only by the model's own end (`stopped`): an answer
        that was cut there may have been cut inside the value."""
        next_is_cut = self._state is _State.AFTER_CALL and not self._inner and Kind.CALL.value.startswith(partial)
        if partial and next_is_cut and not stopped:
            self._held.append(Lexeme(Kind.TEXT, partial))  # a next call was cut: this one is over
            return self._close(with_tail=True)
        if partial and not self._is_framing(partial):
            outcome = self.feed(Lexeme(Kind.TEXT, partial))
            if outcome is not Outcome.OPEN:
                return outcome
        if self._state is _State.AFTER_CALL and (stopped or not self._inner):
            return self._close(with_tail=False)
        if self._state is _State.TAIL and stopped:
            return self._close(with_tail=True)
        if self._state in (_State.AFTER_PARAMETER, _State.AFTER_FUNCTION) and not self._inner:
            self._out.append(self._value.end())
            self._state = _State.BODY
        elif self._state not in (_State.BODY, _State.EMPTY):
            self._literal()
            self._out.append(self._value.cut())
        return Outcome.OPEN

    def _is_framing(self, partial: str) -> bool:
        """Whether the beginning of a tag is that of one which belongs here, and not the beginning of text."""
        tags = () if self._inner else _NEXT_TAGS.get(self._state, ())
        return any(tag.value.startswith(partial) or partial.startswith(tag.value) for tag in tags)

    # --- outside a value -----------------------------------------------------------------------------------------

    def _in_body(self, lexeme: Lexeme) -> Outcome:
        if lexeme.kind is Kind.TEXT:
            rest = split_space(lexeme.raw)[1]
            if not rest:
                return Outcome.OPEN
            lexeme = Lexeme(Kind.TEXT, rest)
        elif lexeme.kind is Kind.PARAMETER and self._state is _State.BODY:
            return self._open_value(lexeme.name)
        elif lexeme.kind is Kind.END_FUNCTION and self._state is _State.BODY:
            self._state = _State.EMPTY
            return Outcome.OPEN
        elif lexeme.kind is Kind.END_CALL and self._state is _State.EMPTY:
            self._out.append("{}")
            return Outcome.CLOSED
        self.fault = f"expected {'a parameter' if self._state is _State.BODY else 'its closing tag'}"
        self.rest = [lexeme]
        return Outcome.BROKEN

    def _open_value(self, key: str) -> Outcome:
        self._out.append(("{" if not self._keys else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        self._keys.add(key)
        self._value = _Value(writer_for(self._parameters, key))
        self._depth = 0
        self._inner = False
        self._line_start = True
        self._state = _State.VALUE
        return Outcome.OPEN

    # --- in a value ----------------------------------------------------------------------------------------------

    def _in_value(self, lexeme: Lexeme) -> Outcome:
        if lexeme.kind is Kind.END_PARAMETER:
            self._inner = self._depth > 0
            self._depth -= self._inner
            self._held = [lexeme]
            self._state = _State.AFTER_PARAMETER
            return Outcome.OPEN
        if lexeme.kind is Kind.PARAMETER and self._line_start:
            self._depth += 1
        self._out.append(self._value.text(lexeme.raw))
        self._note_line(lexeme.raw)
        return Outcome.OPEN

    def _note_line(self, raw: str) -> None:
        written = raw.rstrip(" \t")
        if written:
            self._line_start = written[-1] in "\n>"

    def _literal(self) -> None:
        """What is held was the value's own text."""
        for lexeme in self._held:
            self._out.append(self._value.text(lexeme.raw))
            self._note_line(lexeme.raw)
        self._held = []
        self._state = _State.VALUE

    def _after(self, lexeme: Lexeme) -> Outcome:
        """After a </parameter> that may end the value."""
        if lexeme.kind is Kind.TEXT:
            space, rest = split_space(lexeme.raw)
            if space:
                self._held.append(Lexeme(Kind.TEXT, space))
            if not rest:
                return Outcome.OPEN
            lexeme = Lexeme(Kind.TEXT, rest)
        match self._state, lexeme.kind:
            case _State.AFTER_PARAMETER, Kind.PARAMETER if not self._inner and lexeme.name not in self._keys:
                self._out.append(self._value.end())
                self._held = []
                return self._open_value(lexeme.name)
            case _State.AFTER_PARAMETER, Kind.END_FUNCTION:
                self._state = _State.AFTER_FUNCTION
            case _State.AFTER_FUNCTION, Kind.END_CALL:
                self._state = _State.AFTER_CALL
                self._tail_from = len(self._held) + 1
            case _State.AFTER_CALL, kind if not self._inner:
                return self._after_call(kind, lexeme)
            case _:
                self._literal()
                return self.feed(lexeme)
        self._held.append(lexeme)
        return Outcome.OPEN

    # --- after the call, perhaps ---------------------------------------------------------------------------------

    def _after_call(self, kind: Kind, lexeme: Lexeme) -> Outcome:
        if kind is Kind.CALL or self._settled:
            self._held.append(lexeme)
            return self._close(with_tail=True)
        self._state = _State.TAIL
        self._tail_depth = 0
        self._line_start = True
        return self._in_tail(lexeme)

    def _in_tail(self, lexeme: Lexeme) -> Outcome:
        if lexeme.kind is Kind.END_PARAMETER:
            if self._tail_depth == 0:
                self._literal()
                return self._in_value(lexeme)
            self._tail_depth -= 1
        elif lexeme.kind is Kind.PARAMETER and self._line_start:
            self._tail_depth += 1
        self._held.append(lexeme)
        self._note_line(lexeme.raw)
        return Outcome.OPEN

    def _close(self, *, with_tail: bool) -> Outcome:
        self._out.append(self._value.end() + "}")
        self.rest = self._held[self._tail_from :] if with_tail else []
        self._held = []
        return Outcome.CLOSED


class _Value:
    """A writer without the framing newlines: one at the beginning, one at the end."""

    def __init__(self, writer: ValueWriter) -> None:
        self._writer = writer
        self._begun = False
        self._newline = ""  # the last character, while it may be framing

    def text(self, text: str) -> str:
        """More of the value as written."""
        if not self._begun and text:
            self._begun = True
            text = text.removeprefix("\n")
        if not text:
            return ""
        text = self._newline + text
        self._newline = "\n" if text.endswith("\n") else ""
        text = text.removesuffix("\n")
        return self._writer.text(text) if text else ""

    def end(self) -> str:
        """The value is whole."""
        return self._writer.end()

    def cut(self) -> str:
        """The value is not whole: nothing of it was framing at its end."""
        kept = self._writer.text(self._newline) if self._newline else ""
        self._newline = ""
        return kept + self._writer.cut()
