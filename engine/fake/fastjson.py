"""JSON for a program that starts hundreds of times: the standard library's C parts without `re` and `enum`.

The `json` package costs about 20 ms to import, half of the whole start. Anything unusual (no C parts, a text that is
not plain JSON) goes to `json` itself, so that results and error messages are its own.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


class _Strict:
    """What the C scanner reads its settings from (the attributes of `json.JSONDecoder`)."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, object]


def _quick(text: str) -> Json:
    from _json import make_scanner  # ImportError: another Python than CPython

    # The type stub asks for the json module's own class, which is what must not be imported.
    scan: Callable[[str, int], tuple[Json, int]] = make_scanner(_Strict())  # type: ignore[arg-type] - see above
    start = len(text) - len(text.lstrip(" \t\r\n"))
    value, end = scan(text, start)
    if text[end:].strip(" \t\r\n"):
        raise ValueError("more text after the value")
    return value


def loads(text: str) -> Json:
    """The value of a JSON text.

    Raises: ValueError: it is not JSON; the message names line and column.
    """
    try:
        return _quick(text)
    except (ImportError, StopIteration, SystemError, ValueError, RecursionError):
        # SystemError: the scanner's own error class lives in the package that is not imported
        import json

        return json.loads(text)


def dumps(pairs: dict[str, str | int | float]) -> str:
    """A flat object of strings and finite numbers as one line of ASCII JSON."""
    return "{" + ", ".join(f"{_quote(key)}: {_value(value)}" for key, value in pairs.items()) + "}"


def _value(value: str | int | float) -> str:
    return _quote(value) if isinstance(value, str) else repr(value)


def _quote(text: str) -> str:
    try:
        from _json import encode_basestring_ascii
    except ImportError:
        import json

        return json.dumps(text)
    quoted: str = encode_basestring_ascii(text)
    return quoted
