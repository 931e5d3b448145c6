"""Reads `{"name": …, "arguments": {…}}` in `<tool_call>` … `</tool_call>`, and streams the arguments as written.

The arguments' text is passed on verbatim; only raw control characters in its strings, which models write and JSON
forbids, become their escapes. It does not know which tools exist.
"""

from __future__ import annotations

import json

from serve.assemble.calls import Outcome
from serve.assemble.lexer import Kind, Lexeme, split_space
from serve.json_scan import JsonScanner, skip_space


class JsonCall:
    """A `CallReader`, fed from the opening brace on."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.rest: list[Lexeme] = []
        self.plausible = False
        self.fault = ""
        self._expects = "{"  # the next thing at the object's own level: { key : value , end
        self._value: JsonScanner | None = None
        self._key = ""
        self._seen: set[str] = set()
        self._arguments: list[str] = []

    def feed(self, lexeme: Lexeme) -> Outcome:
        """Read the next lexeme: tags inside the JSON text are text."""
        if self._expects == "end":
            return self._after(lexeme)
        text, at = lexeme.raw, 0
        while at < len(text):
            if self._expects == "end":
                return self._after(Lexeme(Kind.TEXT, text[at:]))
            at = self._step(text, at)
            if self.fault:
                self.rest = [lexeme if at == 0 else Lexeme(Kind.TEXT, text[at:])]
                return Outcome.BROKEN
        return Outcome.OPEN

    def take(self) -> str:
        """The arguments' text since the last call."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def finish(self, partial: str, *, stopped: bool) -> Outcome:
        """The answer ended: a call without its closing tag stays open; half of that tag is framing."""
        if not partial or (self._expects == "end" and Kind.END_CALL.value.startswith(partial)):
            return Outcome.OPEN
        return self.feed(Lexeme(Kind.TEXT, partial))

    def _after(self, lexeme: Lexeme) -> Outcome:
        if lexeme.kind is Kind.END_CALL:
            return Outcome.CLOSED
        rest = split_space(lexeme.raw)[1] if lexeme.kind is Kind.TEXT else lexeme.raw
        if not rest:
            return Outcome.OPEN
        self.fault = "there is text between its JSON object and the closing tag"
        self.rest = [lexeme if lexeme.kind is not Kind.TEXT else Lexeme(Kind.TEXT, rest)]
        return Outcome.BROKEN

    def _step(self, text: str, at: int) -> int:
        if self._value is not None:
            return self._scan(self._value, text, at)
        at = skip_space(text, at)
        if at == len(text):
            return at
        char = text[at]
        match self._expects, char:
            case "{", "{":
                self._expects = "first key"
            case (("first key" | "key"), '"'):
                self.plausible = True
                self._start()
                return at
            case ("first key", "}") | (",", "}"):
                self._close_object()
            case ":", ":":
                self._expects = "value"
            case "value", _:
                return self._start_value(char, at)
            case ",", ",":
                self._expects = "key"
            case _:
                self.fault = "it is not a JSON object"
                return at
        return at + 1

    def _start(self) -> None:
        self._value = JsonScanner(escape_controls=True)

    def _start_value(self, char: str, at: int) -> int:
        if self._key in self._seen:
            self.fault = f"it has {self._key[:40]!r} twice"
        elif self._key == "arguments" and char != "{":
            self.fault = "its arguments are not a JSON object"
        elif self._key == "name" and char != '"':
            self.fault = "its name is not a string"
        self._seen.add(self._key)
        self._start()
        return at

    def _scan(self, value: JsonScanner, text: str, at: int) -> int:
        end = value.feed(text, at)
        in_value = self._expects == "value"
        if in_value and self._key == "arguments":
            self._arguments.append(value.take())
        if value.error is not None:
            self.fault = f"it is not JSON: {value.error}"
        if not value.done:
            return end
        self._value = None
        if not in_value:
            self._key, self._expects = json.loads(value.take()), ":"
            return end
        self._expects = ","
        if self._key == "name":
            self.name = json.loads(value.take()) or None
            if self.name is None:
                self.fault = "its name is empty"
        return end

    def _close_object(self) -> None:
        self._expects = "end"
        if self.name is None:
            self.fault = "it has no name"
        if "arguments" not in self._seen:
            self._arguments.append("{}")
