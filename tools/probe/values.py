"""JSON of strangers, looked at without trust: each look gives the value in its type, or None. It judges nothing."""

from __future__ import annotations

import json
from typing import TypeGuard

Json = dict[str, object]

SHOWN = 80
"""How many characters of a foreign value are shown."""


def parsed(text: str | bytes) -> object:
    """Strict JSON. Raises: ValueError: it is none, nested too deeply, or not UTF-8."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


def is_json(text: str) -> bool:
    try:
        parsed(text)
    except ValueError:
        return False
    return True


def _is_object(value: object) -> TypeGuard[Json]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def as_object(value: object) -> Json:
    """The object; an empty one where it is none."""
    return value if _is_object(value) else {}


def as_list(value: object) -> list[object]:
    return value if _is_list(value) else []


def as_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def as_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def at(value: object, *path: str | int) -> object:
    """What stands under these names and indexes; None where there is nothing."""
    for step in path:
        if isinstance(step, str):
            value = as_object(value).get(step)
        else:
            items = as_list(value)
            value = items[step] if -len(items) <= step < len(items) else None
    return value


def shown(value: object, length: int = SHOWN) -> str:
    """A foreign value as a text for people, cut."""
    text = repr(value)
    return text if len(text) <= length else text[: length - 1] + "…"
