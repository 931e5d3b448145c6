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
        """Every form of the key overwritten in its length, so that lengths written in the bytes stay true."""
        for form in self._forms:
            data = data.replace(form.encode(), b"*" * len(form))
        return data

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


def find_secret(given: str | None, *, messages: bool) -> Secret:
    """The key of `--api-key`, else the environment's: Anthropic's first for its API.

    Raises: CouldNotRun: it cannot be sent.
    """
    if given is not None:
        return Secret(given)
    names = reversed(ENVIRONMENT) if messages else ENVIRONMENT
    return Secret(next((key for name in names if (key := os.environ.get(name, "").strip())), ""))
