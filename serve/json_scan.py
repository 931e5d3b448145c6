"""Reads one JSON value (RFC 8259, strictly) piece by piece, in time linear in the text.

It says at every character whether the text so far can still become JSON. It builds no values, knows no schema and
repairs nothing; what follows the value is the caller's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_HEX = frozenset("0123456789abcdefABCDEF")
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_NUMBER: dict[str, tuple[tuple[str, str], ...]] = {
    # state: (characters, next state); a character with no entry ends the number
    "start": (("-", "minus"), ("0", "zero"), ("123456789", "int")),
    "minus": (("0", "zero"), ("123456789", "int")),
    "zero": ((".", "dot"), ("eE", "e")),
    "int": (("0123456789", "int"), (".", "dot"), ("eE", "e")),
    "dot": (("0123456789", "frac"),),
    "frac": (("0123456789", "frac"), ("eE", "e")),
    "e": (("+-", "sign"), ("0123456789", "exp")),
    "sign": (("0123456789", "exp"),),
    "exp": (("0123456789", "exp"),),
}
_NUMBER_NEXT = {state: {c: to for chars, to in row for c in chars} for state, row in _NUMBER.items()}
_NUMBER_ENDS = frozenset({"zero", "int", "frac", "exp"})


class JsonScanner:
    """One JSON value, fed in pieces of any size.

    `escape_controls` accepts raw control characters inside strings (many models write raw newlines) and gives them
    as JSON escapes in `take`. `unique_keys` refuses an object that has one key twice. `max_depth` limits nesting.
    """

    def __init__(self, *, escape_controls: bool = False, unique_keys: bool = False, max_depth: int = 128) -> None:
        self.error: str | None = None
        """Why the text is not JSON, once that is certain."""
        self.done = False
        """The value is whole. A number at the top level is whole only when something follows it."""
        self.first = ""
        """The value's first character; it says the type."""
        self._escape_controls = escape_controls
        self._unique_keys = unique_keys
        self._max_depth = max_depth
        self._state: Callable[[str, int], int] = self._value
        self._open: list[str] = []  # "{" and "[" that are not closed yet
        self._keys: list[set[str]] = []
        self._key: list[str] | None = None  # the raw text of the key that is being read
        self._in_key = False
        self._number = "start"
        self._literal = ""
        self._literal_at = 0
        self._hex_left = 0
        self._before = 0  # characters read by earlier calls of feed
        self._start = 0
        self._out: list[str] = []
        self._copied = 0  # up to here the piece is in _out

    @property
    def in_string(self) -> bool:
        """Whether the next character belongs to a string."""
        return self._state in (self._string, self._escape, self._hex)

    @property
    def could_end(self) -> bool:
        """Whether the text so far is a whole value."""
        if self.done:
            return True
        return not self._open and self._state == self._number_part and self._number in _NUMBER_ENDS

    def feed(self, text: str, start: int = 0) -> int:
        """Read from `start` on. Returns the index of the first character that is not part of the value: the length
        of `text`, unless the value ended or `error` was set (then the index of the offending character)."""
        at = self._copied = self._start = start
        end = len(text)
        while at < end and not self.done and self.error is None:
            at = self._state(text, at)
        if at > self._copied:
            self._out.append(text[self._copied : at])
        self._before += at - start
        return at

    def take(self) -> str:
        """The text read since the last call, as it came (but see `escape_controls`)."""
        text = "".join(self._out)
        self._out.clear()
        return text

    # --- states: each reads at least one character, or fails, or changes the state -------------------------------

    def _fail(self, message: str, at: int) -> int:
        self.error = f"{message} at character {self._before + at - self._start}"
        return at

    def _value(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at == len(text):
            return at
        char = text[at]
        self.first = self.first or char
        if char in "{[":
            return self._enter(char, at)
        if char == '"':
            self._state = self._string
            return at + 1
        if char in _LITERALS:
            self._literal, self._literal_at = _LITERALS[char], 0
            self._state = self._literal_part
            return at
        if char in _NUMBER_NEXT["start"]:
            self._number = "start"
            self._state = self._number_part
            return at
        return self._fail("expected a value", at)

    def _enter(self, char: str, at: int) -> int:
        if len(self._open) == self._max_depth:
            return self._fail(f"nested deeper than {self._max_depth}", at)
        self._open.append(char)
        self._keys.append(set())
        self._state = self._first_key if char == "{" else self._first_item
        return at + 1

    def _first_key(self, text: str, at: int) -> int:
        return self._key_or(text, at, "}")

    def _next_key(self, text: str, at: int) -> int:
        return self._key_or(text, at, "")

    def _key_or(self, text: str, at: int, closer: str) -> int:
        at = skip_space(text, at)
        if at == len(text):
            return at
        if text[at] == '"':
            self._in_key = True
            self._key = [] if self._unique_keys else None
            self._state = self._string
            return at + 1
        if closer and text[at] == closer:
            return self._leave(at)
        return self._fail("expected a key in quotes", at)

    def _first_item(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at == len(text):
            return at
        if text[at] == "]":
            return self._leave(at)
        self._state = self._value
        return at

    def _colon(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            return self._fail("expected ':'", at)
        self._state = self._value
        return at + 1

    def _after_value(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at == len(text):
            return at
        in_object = self._open[-1] == "{"
        if text[at] == ",":
            self._state = self._next_key if in_object else self._value
            return at + 1
        if text[at] == ("}" if in_object else "]"):
            return self._leave(at)
        return self._fail("expected ',' or '}'" if in_object else "expected ',' or ']'", at)

    def _leave(self, at: int) -> int:
        self._open.pop()
        self._keys.pop()
        self._value_ended()
        return at + 1

    def _value_ended(self) -> None:
        if self._open:
            self._state = self._after_value
        else:
            self.done = True

    def _string(self, text: str, at: int) -> int:
        run = _PLAIN.match(text, at)
        if run is not None:
            self._note_key(run.group())
            return run.end()
        char = text[at]
        if char == '"':
            return self._string_ended(at)
        if char == "\\":
            self._note_key(char)
            self._state = self._escape
            return at + 1
        if not self._escape_controls:
            return self._fail(f"a raw control character {char!r} in a string", at)
        escaped = json.dumps(char)[1:-1]
        self._out.append(text[self._copied : at] + escaped)
        self._copied = at + 1
        self._note_key(escaped)
        return at + 1

    def _string_ended(self, at: int) -> int:
        if not self._in_key:
            self._value_ended()
            return at + 1
        self._in_key = False
        self._state = self._colon
        if self._key is not None:
            key: str = json.loads('"' + "".join(self._key) + '"')
            self._key = None
            if key in self._keys[-1]:
                return self._fail(f"the key {key[:40]!r} stands twice in one object", at)
            self._keys[-1].add(key)
        return at + 1

    def _note_key(self, raw: str) -> None:
        if self._key is not None:
            self._key.append(raw)

    def _escape(self, text: str, at: int) -> int:
        char = text[at]
        if char == "u":
            self._hex_left = 4
            self._state = self._hex
        elif char in '"\\/bfnrt':
            self._state = self._string
        else:
            return self._fail(f"an unknown escape {char!r}", at)
        self._note_key(char)
        return at + 1

    def _hex(self, text: str, at: int) -> int:
        if text[at] not in _HEX:
            return self._fail("expected four hexadecimal digits", at)
        self._note_key(text[at])
        self._hex_left -= 1
        if self._hex_left == 0:
            self._state = self._string
        return at + 1

    def _literal_part(self, text: str, at: int) -> int:
        if text[at] != self._literal[self._literal_at]:
            return self._fail(f"expected {self._literal!r}", at)
        self._literal_at += 1
        if self._literal_at == len(self._literal):
            self._value_ended()
        return at + 1

    def _number_part(self, text: str, at: int) -> int:
        state = _NUMBER_NEXT[self._number].get(text[at])
        if state is not None:
            self._number = state
            return at + 1
        if self._number not in _NUMBER_ENDS:
            return self._fail("a number that is not whole", at)
        self._value_ended()
        return at


def skip_space(text: str, at: int) -> int:
    """The index of the first character from `at` on that is not JSON's white space."""
    run = _SPACE.match(text, at)
    assert run is not None
    return run.end()
