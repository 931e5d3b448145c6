"""The API key: where it comes from, and the one place that takes it out of everything that is shown or written.

Servers echo keys in their errors, so that whatever leaves a checker goes through `Secret.hide`.
"""

from __future__ import annotations

import base64
import json
import os
import re
import urllib.parse
from collections.abc import Mapping
from typing import TypeVar, cast

from tools.probe.exits import CouldNotRun

HIDDEN = "***"
ENVIRONMENT = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
_SHORTEST = 8
"""A shorter key, or beginning of one, could stand in any word; such a key is hidden where it is a word by itself."""

T = TypeVar("T")


class Secret:
    """A key, or none. Its `repr` does not tell it; `expose()` is for the request's head alone."""

    __slots__ = ("_forms", "_key", "_word")

    def __init__(self, key: str = "") -> None:
        """Raises: CouldNotRun: it cannot stand in a request's head."""
        key = key.strip()
        if not key.isascii() or not key.isprintable():
            raise CouldNotRun("api key: it has characters that cannot be sent in a head; use printable ASCII")
        self._key = key
        forms = {key, json.dumps(key)[1:-1], urllib.parse.quote(key, safe=""), repr(key)[1:-1]}
        forms.add(base64.b64encode(key.encode()).decode())
        self._word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(key)}(?![A-Za-z0-9])") if key else None
        self._forms = sorted((form for form in forms if form), key=len, reverse=True) if key else []

    def __bool__(self) -> bool:
        return bool(self._key)

    def __repr__(self) -> str:
        return f"Secret({HIDDEN if self._key else ''})"

    def expose(self) -> str:
        return self._key

    def hide(self, text: str) -> str:
        """The text without the key, in any form in which a server may echo it."""
        if len(self._key) < _SHORTEST:
            return self._word.sub(HIDDEN, text) if self._word else text
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        if self._key[:_SHORTEST] in text:  # one that was cut for showing
            for length in range(len(self._key) - 1, 2 * _SHORTEST - 1, -1):
                text = text.replace(self._key[:length], HIDDEN)
        return text

    def hide_bytes(self, data: bytes) -> bytes:
        """The bytes with every form of the key overwritten in its length, so that lengths written in them stay true."""
        hiding = HidingBytes(self)
        return hiding.feed(data) + hiding.close()

    def forms(self) -> list[bytes]:
        """The ways in which it may be written, the longest first."""
        return [form.encode() for form in self._forms]

    def hidden_in(self, value: T) -> T:
        """The value with the key taken out of every text in it, names included. Mappings and lists are gone into."""
        return cast("T", self._walk(value))

    def _walk(self, value: object) -> object:
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[object, object]", value).items()
            long = len(self._key) >= _SHORTEST  # a short one may be a name of ours
            return {self._walk(name) if long else name: self._walk(item) for name, item in items}
        if isinstance(value, list | tuple):
            return [self._walk(item) for item in cast("list[object]", value)]
        return value


class HidingBytes:
    """Takes the key out of bytes as they come; holds back what may become one. `found`: how often it stood there.

    A form of the key, or its beginning if that is long enough to tell, is overwritten in its length.
    """

    def __init__(self, secret: Secret, *, tail: bool = False) -> None:
        """`tail`: its last characters are looked for, too."""
        self.found = 0
        self._forms = secret.forms()
        if tail and self._forms:
            self._forms.append(secret.expose().encode()[-_SHORTEST:])
        self._held = bytearray()
        self._before = b""
        """The last byte that was given out."""

    def feed(self, data: bytes) -> bytes:
        self._held += data
        return self._given(final=False)

    def close(self) -> bytes:
        """What was held back."""
        return self._given(final=True)

    def _given(self, *, final: bool) -> bytes:
        keep = len(self._held)
        for form in self._forms:
            keep = min(keep, self._overwrite(form, final=final))
        given = bytes(self._held[:keep])
        del self._held[:keep]
        self._before = given[-1:] or self._before
        return given

    def _overwrite(self, form: bytes, *, final: bool) -> int:
        """Where something begins that may go on as this form; the end, if nothing does."""
        held, least, at = self._held, min(len(form), 2 * _SHORTEST), 0
        alone = len(form) < _SHORTEST
        while (at := held.find(form[:1], at)) >= 0:
            length = _common(held, at, form)
            end = at + length
            if end == len(held) and not final:
                return at
            if length >= least and not (alone and (self._in_word(at - 1) or self._in_word(end))):
                held[at:end] = b"*" * length
                self.found += 1
            at += 1
        return len(held)

    def _in_word(self, at: int) -> bool:
        byte = bytes(self._held[at : at + 1]) if at >= 0 else self._before
        return byte.isascii() and byte.isalnum()


def _common(data: bytearray, at: int, form: bytes) -> int:
    """How many bytes from here on are the form's."""
    length = 0
    while length < len(form) and at + length < len(data) and data[at + length] == form[length]:
        length += 1
    return length


def find_secret(given: str | None, *, messages: bool) -> Secret:
    """The key of `--api-key`, else the environment's: Anthropic's first for its API.

    Raises: CouldNotRun: it cannot be sent.
    """
    if given is not None:
        return Secret(given)
    names = reversed(ENVIRONMENT) if messages else ENVIRONMENT
    return Secret(next((key for name in names if (key := os.environ.get(name, "").strip())), ""))
