"""A request body: bytes → one JSON object, or a `BadRequest` that says where it is wrong. Knows no API."""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar, cast

import msgspec

from serve.request import BadRequest, Json

T = TypeVar("T")

MAX_DEPTH = 100
"""Deepest nesting of a request; a tool schema seldom passes 20."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def json_object(body: bytes) -> Json:
    """The object in `body`.

    Raises: BadRequest: not JSON, not an object, too deep, half surrogates, numbers out of range.
    """
    try:
        value: object = msgspec.json.decode(body)
    except RecursionError:
        raise BadRequest(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _explained(body, error) from None
    if not isinstance(value, dict):
        raise BadRequest(f"the body must be a JSON object, not {_kind(value)}")
    if (path := too_deep(cast("Json", value))) is not None:
        raise BadRequest(f"{path}: nested deeper than {MAX_DEPTH} levels", path)
    return cast("Json", value)


def convert(value: object, type_: type[T], prefix: str = "") -> T:
    """`value` as a msgspec struct; unknown fields are ignored.

    Raises: BadRequest: a field has the wrong type or is out of range; `param` is its path under `prefix`.
    """
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise field_error(str(error), prefix) from None


def field_error(message: str, prefix: str = "") -> BadRequest:
    """msgspec's "… - at `$.a.b`" → "a.b: …"."""
    what, _, where = message.partition(" - at `")
    path = prefix + where.rstrip("`").removeprefix("$")
    path = path.removeprefix(".").replace("[...]", "")
    missing = re.match(r"Object missing required field `([^`]+)`", what)
    if missing:
        path = f"{path}.{missing[1]}".removeprefix(".")
        return BadRequest(f"{path}: required", path)
    what = (what[:1].lower() + what[1:]).replace("`", "")
    return BadRequest(f"{path}: {what}"[:300] if path else what[:300], path or None)


def _kind(value: object) -> str:
    names: dict[type, str] = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return next((name for kind, name in names.items() if type(value) is kind), "null")


def too_deep(value: Json) -> str | None:
    """The top-level field that nests too deep. Iterative: it must not recurse on what it is to refuse."""
    for key, item in value.items():
        level: list[object] = [item]
        for _ in range(MAX_DEPTH):
            level = [child for node in level for child in _children(node)]
            if not level:
                break
        else:
            return key[:80]
    return None


def _children(node: object) -> list[object]:
    if isinstance(node, dict):
        return [v for v in cast("Json", node).values() if isinstance(v, dict | list)]
    if isinstance(node, list):
        return [v for v in cast("list[object]", node) if isinstance(v, dict | list)]
    return []


def _explained(body: bytes, error: Exception) -> BadRequest:
    """msgspec names no field for half surrogates and huge numbers; Python's slower reader lets us find them."""
    try:
        value: Any = json.loads(body)
    except RecursionError:
        return BadRequest(f"the body is nested deeper than {MAX_DEPTH} levels")
    except UnicodeDecodeError:
        return BadRequest("the body is not valid UTF-8")
    except ValueError as why:
        return BadRequest(f"the body is not valid JSON: {str(why)[:200]}" if body else "the body is empty")
    found = _find_bad_leaf(value)
    if found is None:
        return BadRequest(f"the body is not valid JSON: {str(error)[:200]}")
    path, what = found
    return BadRequest(f"{path}: {what}", path)


def _find_bad_leaf(value: Any) -> tuple[str, str] | None:
    todo: list[tuple[str, Any]] = [("", value)]
    while todo:
        path, node = todo.pop()
        if isinstance(node, dict):
            for key, item in cast("Json", node).items():
                if _SURROGATE.search(key):
                    return path or "body", "a key holds half a surrogate pair"
                todo.append((f"{path}.{key[:80]}".removeprefix("."), item))
        elif isinstance(node, list):
            todo.extend((f"{path}[{i}]", item) for i, item in enumerate(cast("list[Any]", node)))
        elif isinstance(node, str) and _SURROGATE.search(node):
            return path, "the text holds half a surrogate pair (an escape \\ud800 to \\udfff without its other half)"
        elif _out_of_range(node):
            return path, "the number is out of range"
    return None


def _out_of_range(node: object) -> bool:
    if isinstance(node, float):
        return not math.isfinite(node)
    return isinstance(node, int) and not -(2**63) <= node < 2**64
