"""Checks that an answer is the JSON which the request's `response_format` asked for.

`structured_check` reads the format and refuses a wrong one; a `StructuredCheck` follows the answer and gives the
verdict. It never repairs, completes or changes an answer, fetches no schema and decides no ending.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Literal, cast
from urllib.parse import unquote

import referencing.exceptions
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry

from serve.json_scan import JsonScanner
from serve.patterns import pattern_fault

MAX_REASON_CHARACTERS = 200
MAX_DEPTH = 128
"""The deepest nesting of a schema or an answer."""
_DATA_KEYWORDS = frozenset({"const", "default", "enum", "examples"})
_NAME_KEYWORDS = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_TYPES = ("text", "json_object", "json_schema")


class FormatError(ValueError):
    """A `response_format` that cannot be followed. `param` is the path of the field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class StructuredCheck:
    """Follows one answer. `schema` None asks for any JSON object. Not thread-safe; never blocks."""

    def __init__(self, schema: Mapping[str, object] | bool | None, name: str) -> None:
        self.schema = schema
        self.name = name
        self._validator = None if schema is None else _validator(schema)
        self._scanner = JsonScanner(unique_keys=True, max_depth=MAX_DEPTH)
        self._parts: list[str] = []
        self._fault: str | None = None

    def feed(self, text: str) -> None:
        """Read the next piece of the answer's text."""
        if self._fault is not None:
            return
        self._parts.append(text)
        at = self._scanner.feed(text)
        if self._scanner.error is not None:
            self._fault = f"the answer is not JSON: {self._scanner.error}"
        elif self.schema is None and self._scanner.first not in ("", "{"):
            self._fault = "the answer is not a JSON object"
        elif self._scanner.done and text[at:].strip(" \t\n\r"):
            self._fault = "the answer has text after its JSON value"

    def verdict(self, finished: Literal["stop", "length"]) -> str | None:
        """Why the answer is not what was asked for, or None. After "length" an answer that was cut is fine as long
        as nothing in it is wrong already. The reason has at most `MAX_REASON_CHARACTERS` characters."""
        reason = self._fault or self._ending(finished)
        return None if reason is None else _cut(reason)

    def _ending(self, finished: Literal["stop", "length"]) -> str | None:
        whole = self._scanner.done or (finished == "stop" and self._scanner.could_end)
        if whole:
            return self._violation()
        if finished == "length":
            return None
        return "the answer is cut off: its JSON is not complete" if self._scanner.first else "the answer is empty"

    def _violation(self) -> str | None:
        if self._validator is None:
            return None
        try:
            errors = self._validator.iter_errors(json.loads("".join(self._parts)))
            error = next(iter(errors), None)
        except RecursionError:
            return "the answer or its schema is nested too deeply to be checked"
        except referencing.exceptions.Unresolvable as unresolved:
            return f"the schema refers to {unresolved.ref!r}, which it does not contain"
        except ValueError as too_long:  # a number with more digits than Python reads
            return f"the answer cannot be read: {too_long}"
        return None if error is None else f"{error.json_path}: {error.message}"


def structured_check(response_format: object, param: str = "response_format") -> StructuredCheck | None:
    """The check for a request's `response_format` as JSON values; None where plain text is asked for.

    `param` is the path of the field in the request, for the error.

    Raises: FormatError: it has a wrong shape, or a schema that cannot be checked here.
    """
    if response_format is None:
        return None
    fields = _object(response_format, param)
    kind = fields.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredCheck(None, "json_object")
    if kind != "json_schema":
        raise FormatError(f"{param}.type", f"{param}.type: {_shown(kind)} is not one of {', '.join(_TYPES)}")
    inner = _object(fields.get("json_schema"), f"{param}.json_schema")
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        where = f"{param}.json_schema.name"
        raise FormatError(where, f"{where}: expected a name, got {_shown(name)}")
    where = f"{param}.json_schema.schema"
    schema = _object(inner.get("schema"), where)
    _check_schema(schema, where)
    return StructuredCheck(schema, name)


def _object(value: object, param: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise FormatError(param, f"{param}: expected an object, got {_shown(value)}")
    return cast(Mapping[str, object], value)


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:80]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARACTERS else text[: MAX_REASON_CHARACTERS - 1] + "…"


# --- the schema --------------------------------------------------------------------------------------


def _validator(schema: Mapping[str, object] | bool) -> Validator:
    # an empty registry without a retriever: a reference can only name something inside the schema
    kind = validator_for(schema, default=Draft202012Validator)
    return kind(schema, registry=Registry())


def _check_schema(schema: Mapping[str, object], param: str) -> None:
    try:
        references = _check_keywords(schema, param)
        _validator(schema).check_schema(cast(dict[str, object], schema))
    except SchemaError as error:
        raise FormatError(param, _cut(f"{param}: not a JSON schema: {error.json_path}: {error.message}")) from None
    except RecursionError:
        raise FormatError(param, f"{param}: nested too deeply") from None
    for reference in sorted(references):
        if not _names_a_part(schema, reference):
            raise FormatError(param, _cut(f"{param}: {reference[:80]!r} is not a part of the schema"))


def _check_keywords(schema: Mapping[str, object], param: str) -> set[str]:
    """Refuse what must not be used, and give the local references that a pointer can check."""
    references: set[str] = set()
    moved_root = False
    for path, key, value in _keywords(schema, param, "$", MAX_DEPTH):
        if key in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(value, str):
            if not value.startswith("#"):
                raise FormatError(param, _cut(f"{param}: {path}: {value[:80]!r} is outside the schema; inline it"))
            references.add(value)
        elif key == "pattern" and isinstance(value, str):
            _check_pattern(value, param, path)
        elif key == "patternProperties" and isinstance(value, Mapping):
            for pattern in cast(Mapping[str, object], value):
                _check_pattern(pattern, param, path)
        moved_root |= key in ("$id", "$anchor", "$dynamicAnchor")
    return set() if moved_root else references


def _keywords(
    node: object, param: str, path: str, depth: int, *, names: bool = False
) -> Iterator[tuple[str, str, object]]:
    """(path, keyword, value) of every keyword. With `names` the keys of `node` itself are names, not keywords."""
    if depth == 0:
        raise FormatError(param, f"{param}: nested deeper than {MAX_DEPTH}")
    if isinstance(node, list):
        for index, item in enumerate(cast(list[object], node)):
            yield from _keywords(item, param, f"{path}[{index}]", depth - 1)
    if not isinstance(node, Mapping):
        return
    for key, value in cast(Mapping[str, object], node).items():
        if not names:
            yield f"{path}.{key}", key, value
            if key in _DATA_KEYWORDS:
                continue
        yield from _keywords(value, param, f"{path}.{key}", depth - 1, names=not names and key in _NAME_KEYWORDS)


def _check_pattern(pattern: str, param: str, path: str) -> None:
    fault = pattern_fault(pattern)
    if fault is not None:
        raise FormatError(param, _cut(f"{param}: {path}: the pattern {pattern[:80]!r} cannot be used: {fault}"))


def _names_a_part(schema: Mapping[str, object], reference: str) -> bool:
    """Whether a `#/…` pointer (RFC 6901, percent-encoded) leads somewhere."""
    node: object = schema
    for step in unquote(reference).split("/")[1:]:
        node = _member(node, step.replace("~1", "/").replace("~0", "~"))
    return isinstance(node, Mapping | bool) and (reference == "#" or reference.startswith("#/"))


def _member(node: object, name: str) -> object:
    if isinstance(node, Mapping):
        return cast(Mapping[str, object], node).get(name)
    if isinstance(node, list) and name.isdecimal():
        return next(iter(cast(list[object], node)[int(name[:9]) :]), None)
    return None
