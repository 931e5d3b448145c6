"""The value of a `<parameter=KEY>` as JSON text, typed by the tool's schema, while it is being written.

It neither finds the value's end nor checks it against more than the schema's types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol, cast

_STRING_ONLY = frozenset({"string"})
_NULLABLE_STRING = frozenset({"string", "null"})
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_REF_DEPTH = 8
_TYPE_NAMES: tuple[tuple[type, str], ...] = (
    (float, "number"),
    (str, "string"),
    (dict, "object"),
    (list, "array"),
    (type(None), "null"),
)


class ValueWriter(Protocol):
    """Turns the characters of one value into pieces of JSON text."""

    def text(self, text: str) -> str:
        """The JSON text that is certain after these characters."""
        ...

    def end(self) -> str:
        """The value is whole: the rest of its JSON text."""
        ...

    def cut(self) -> str:
        """The answer ended inside the value: what came and is not written yet, left open."""
        ...


class StringWriter:
    """A string: every character is escaped as it comes."""

    def __init__(self) -> None:
        self._open = False

    def text(self, text: str) -> str:
        """The escaped characters, at the beginning with the opening quote."""
        escaped = json.dumps(text, ensure_ascii=False)[1:-1]
        return escaped if self._open else self._opened() + escaped

    def end(self) -> str:
        """The closing quote."""
        return '"' if self._open else '""'

    def cut(self) -> str:
        """Nothing: all is written."""
        return "" if self._open else self._opened()

    def _opened(self) -> str:
        self._open = True
        return '"'


class TypedWriter:
    """A value of other types: kept until its end, then written as it stands if it is JSON of one of the types (the
    words True, False and None count as JSON's), else as a string. A value that may be null or a string is written
    as a string as soon as it cannot be null."""

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types
        self._parts: list[str] = []
        self._string: StringWriter | None = None

    def text(self, text: str) -> str:
        """Nothing, until the value is certainly a string."""
        if self._string is not None:
            return self._string.text(text)
        self._parts.append(text)
        if self._types != _NULLABLE_STRING:
            return ""
        word = "".join(self._parts)  # short: it is still a beginning of "null" or "None"
        if any(null.startswith(word) for null in ("null", "None")):
            return ""
        self._string = StringWriter()
        self._parts.clear()
        return self._string.text(word)

    def end(self) -> str:
        """The value, typed."""
        if self._string is not None:
            return self._string.end()
        raw = "".join(self._parts)
        word = raw.strip()
        word = _PYTHON_WORDS.get(word, word)
        if (_type_of(word) - _STRING_ONLY) & self._types:
            return word
        return json.dumps(raw, ensure_ascii=False)

    def cut(self) -> str:
        """The value's beginning as it stands."""
        return "".join(self._parts) if self._string is None else self._string.cut()


def writer_for(parameters: Mapping[str, object], key: str) -> ValueWriter:
    """The writer for the parameter `key` of a tool whose arguments have the schema `parameters`. A parameter that is
    not declared, or whose schema names no type, is a string."""
    properties = parameters.get("properties")
    schema = cast(Mapping[str, object], properties).get(key) if isinstance(properties, Mapping) else None
    types = _types(schema, parameters, _REF_DEPTH, set())
    return StringWriter() if not types or types == _STRING_ONLY else TypedWriter(types)


def _types(schema: object, root: Mapping[str, object], depth: int, seen: set[int]) -> frozenset[str]:
    """The types that a schema names. `seen`: the ids of the schemas looked at before, so that none is twice."""
    if not isinstance(schema, Mapping) or depth == 0 or id(cast(object, schema)) in seen:
        return frozenset()
    seen.add(id(cast(object, schema)))
    fields = cast(Mapping[str, object], schema)
    named = fields.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(name for name in cast(list[object], named) if isinstance(name, str))
    if "const" in fields or "enum" in fields:
        values = fields.get("enum", [fields.get("const")])
        texts = [_dumped(value) for value in cast(list[object], values)] if isinstance(values, list) else []
        return frozenset[str]().union(*map(_type_of, texts))
    reference = fields.get("$ref")
    if isinstance(reference, str):
        return _types(_part(root, reference), root, depth - 1, seen)
    found = frozenset[str]()
    for keyword in ("anyOf", "oneOf", "allOf"):
        branches = fields.get(keyword)
        if isinstance(branches, list):
            found = found.union(*(_types(part, root, depth - 1, seen) for part in cast(list[object], branches)))
    if not found and ("properties" in fields or "additionalProperties" in fields):
        return frozenset({"object"})
    if not found and ("items" in fields or "prefixItems" in fields):
        return frozenset({"array"})
    return found


def _part(root: Mapping[str, object], reference: str) -> object:
    """What a local reference (`#/…`) names, or None."""
    part: object = root if reference.startswith("#") else None
    for step in reference.split("/")[1:]:
        part = _member(part, step.replace("~1", "/").replace("~0", "~"))
    return part


def _member(node: object, name: str) -> object:
    return cast(Mapping[str, object], node).get(name) if isinstance(node, Mapping) else None


def _dumped(value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return ""


def _type_of(text: str) -> frozenset[str]:
    """The schema types that the JSON text `text` has; none if it is not JSON."""
    try:
        value: object = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return frozenset()
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return frozenset({"integer", "number"})
    return frozenset(name for kind, name in _TYPE_NAMES if isinstance(value, kind))


def _refused(word: str) -> object:
    raise ValueError(word)
