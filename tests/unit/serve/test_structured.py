"""Structured answers: the format of the request, and the verdict over the answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve.structured import MAX_REASON_CHARACTERS, FormatError, StructuredCheck, structured_check

PERSON: dict[str, object] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name"],
    "additionalProperties": False,
}


def by_schema(schema: object, name: object = "answer") -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def check_of(response_format: object) -> StructuredCheck:
    check = structured_check(response_format)
    assert check is not None
    return check


def verdicts(response_format: object, text: str) -> tuple[str | None, str | None]:
    """After "stop" and after "length": the same whole, by characters and in sevens."""
    found: set[tuple[str | None, str | None]] = set()
    for size in (len(text) or 1, 1, 7):
        check = check_of(response_format)
        for at in range(0, len(text), size):
            check.feed(text[at : at + size])
        found.add((check.verdict("stop"), check.verdict("length")))
    [both] = found
    return both


# --- the format --------------------------------------------------------------------------------------


def test_plain_text_needs_no_check() -> None:
    assert structured_check(None) is None
    assert structured_check({"type": "text"}) is None


def test_check_knows_its_name_and_schema() -> None:
    check = check_of(by_schema(PERSON, "person"))
    assert (check.name, check.schema) == ("person", PERSON)
    check = check_of({"type": "json_object"})
    assert (check.name, check.schema) == ("json_object", None)


SCHEMA = "response_format.json_schema.schema"
WRONG: dict[str, tuple[object, str, str]] = {
    "a string": ("json_object", "response_format", "expected an object"),
    "a list": ([], "response_format", "expected an object"),
    "no type": ({}, "response_format.type", "text, json_object, json_schema"),
    "a type that is none": ({"type": "xml"}, "response_format.type", "'xml'"),
    "a type that is a number": ({"type": 5}, "response_format.type", "5"),
    "a type that is a list": ({"type": ["text"]}, "response_format.type", "text"),
    "no inner object": ({"type": "json_schema"}, "response_format.json_schema", "got nothing"),
    "an inner list": ({"type": "json_schema", "json_schema": []}, "response_format.json_schema", "expected an object"),
    "no name": ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name", "name"),
    "an empty name": (by_schema({}, ""), "response_format.json_schema.name", "expected a name"),
    "a name that is a number": (by_schema({}, 5), "response_format.json_schema.name", "5"),
    "no schema": ({"type": "json_schema", "json_schema": {"name": "a"}}, SCHEMA, "got nothing"),
    "a schema that is a string": (by_schema("{}"), SCHEMA, "expected an object"),
    "a type that JSON schema has not": (by_schema({"type": "objekt"}), SCHEMA, "'objekt'"),
    "a wrong keyword value, inside": (by_schema({"properties": {"a": {"minimum": "x"}}}), SCHEMA, "a.minimum"),
    "required that is no list": (by_schema({"required": "a"}), SCHEMA, "required"),
    "a remote reference": (by_schema({"$ref": "http://127.0.0.1:9/x.json"}), SCHEMA, "outside the schema"),
    "a remote reference, inside": (
        by_schema({"properties": {"a": {"items": {"$ref": "file:///x"}}}}), SCHEMA, "$.properties.a.items.$ref",
    ),
    "a remote dynamic reference": (by_schema({"$dynamicRef": "other.json#x"}), SCHEMA, "outside the schema"),
    "a reference to nothing": (by_schema({"$ref": "#/$defs/a"}), SCHEMA, "not a part"),
    "a reference to no schema": (by_schema({"$ref": "#/type", "type": "object"}), SCHEMA, "not a part"),
    "a pattern that is none": (by_schema({"pattern": "("}), SCHEMA, "regular expression"),
    "a dangerous pattern": (by_schema({"properties": {"a": {"pattern": "(a+)+$"}}}), SCHEMA, "$.properties.a.pattern"),
    "a dangerous pattern under a property with a keyword's name": (
        by_schema({"properties": {"enum": {"pattern": "(a+)+$"}}}), SCHEMA, "$.properties.enum.pattern",
    ),
    "a dangerous pattern of keys": (by_schema({"patternProperties": {"(a+)+$": {}}}), SCHEMA, "patternProperties"),
    "a long pattern": (by_schema({"pattern": "a" * 5_000}), SCHEMA, "5000 characters"),
}  # fmt: skip


@pytest.mark.parametrize("response_format, param, message", WRONG.values(), ids=WRONG)
def test_wrong_format_is_refused_by_the_name_of_the_field(response_format: object, param: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        structured_check(response_format)
    assert caught.value.param == param
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) <= 300


def test_param_is_the_callers_name_of_the_field() -> None:
    with pytest.raises(FormatError) as caught:
        structured_check({"type": "xml"}, "text.format")
    assert caught.value.param == "text.format.type"


def test_deeply_nested_schema_is_refused() -> None:
    schema: object = {}
    for _ in range(50_000):
        schema = {"items": schema}
    with pytest.raises(FormatError, match="nested deeper"):
        structured_check(by_schema(schema))


def test_schema_is_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    for schema in (
        {"$ref": "http://127.0.0.1:9/x"},
        {"$id": "http://127.0.0.1:9/x", "properties": {"a": {"$ref": "#/$defs/none"}}},
        {"$schema": "http://127.0.0.1:9/meta", "type": "object"},
        {"$id": "http://127.0.0.1:9/x", "$ref": "#anchor"},
    ):
        try:
            check = check_of(by_schema(schema))
        except FormatError:
            continue
        check.feed('{"a": 1}')
        check.verdict("stop")


FINE: list[object] = [
    {}, PERSON, {"$defs": {"a": {"type": "object"}}, "$ref": "#/$defs/a"}, {"const": {"$ref": "http://127.0.0.1/x"}},
    {"enum": [{"pattern": "("}]}, {"properties": {"$ref": {"type": "string"}}},
    {"$defs": {"a/b~c": {}}, "properties": {"x": {"$ref": "#/$defs/a~1b~0c"}}},
    {"anyOf": [{"type": "object"}, {"type": "null"}], "description": "x"},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}, {"prefixItems": [{"type": "string"}]},
    {"prefixItems": [{}], "items": {"$ref": "#/prefixItems/0"}},
]  # fmt: skip


@pytest.mark.parametrize("schema", FINE)
def test_schemas_in_use_are_taken(schema: object) -> None:
    check = check_of(by_schema(schema))
    check.feed("{}")
    check.verdict("stop")


# --- the verdict -------------------------------------------------------------------------------------

OBJECT = {"type": "json_object"}
BY_PERSON = by_schema(PERSON)
ANSWERS: dict[str, tuple[object, str, str | None, str | None]] = {
    # the format, the answer, the reason after "stop", the reason after "length" (None: fine)
    "an object": (OBJECT, '{"a": [1, 2]}', None, None),
    "white space around": (OBJECT, '\n {"a": 1}\n\n', None, None),
    "an array for an object": (OBJECT, "[1]", "not a JSON object", "not a JSON object"),
    "an array for an object, cut": (OBJECT, "[1", "not a JSON object", "not a JSON object"),
    "a number for an object": (OBJECT, "12", "not a JSON object", "not a JSON object"),
    "cut": (OBJECT, '{"a": [1, 2', "cut off", None),
    "cut in a string": (OBJECT, '{"a": "x', "cut off", None),
    "cut in an escape": (OBJECT, '{"a": "\\u00', "cut off", None),
    "cut in a word": (OBJECT, '{"a": tru', "cut off", None),
    "nothing": (OBJECT, "", "empty", None),
    "only white space": (OBJECT, " \n", "empty", None),
    "prose": (OBJECT, "Sure! {}", "not JSON", "not JSON"),
    "a fence": (OBJECT, "```json\n{}\n```", "not JSON", "not JSON"),
    "text behind it": (OBJECT, "{} done", "after its JSON value", "after its JSON value"),
    "two values": (OBJECT, "{}{}", "after its JSON value", "after its JSON value"),
    "a key twice": (OBJECT, '{"a": 1, "a": 1', "'a' stands twice", "'a' stands twice"),
    "NaN": (OBJECT, '{"a": NaN}', "not JSON", "not JSON"),
    "Infinity": (OBJECT, '{"a": -Infinity', "not JSON", "not JSON"),
    "a raw newline in a string": (OBJECT, '{"a": "x\ny"}', "control character", "control character"),
    "a comma too many": (OBJECT, '{"a": 1,}', "not JSON", "not JSON"),
    "by the schema": (BY_PERSON, '{"name": "x", "tags": [1]}', None, None),
    "a type": (BY_PERSON, '{"name": 5}', "$.name: 5 is not of type 'string'", "$.name"),
    "an item": (BY_PERSON, '{"name": "x", "tags": [1, "b"]}', "$.tags[1]: 'b' is not", "$.tags[1]"),
    "a missing member": (BY_PERSON, "{}", "$: 'name' is a required property", "$: 'name'"),
    "a member too many": (BY_PERSON, '{"name": "x", "y": 1}', "'y' was unexpected", "'y'"),
    "against the schema, but not complete": (BY_PERSON, '{"name": 5', "cut off", None),
    "a string by a schema": (by_schema({"type": "string"}), '"x"', None, None),
    "a number by a schema": (by_schema({"type": "integer"}), "12", None, None),
    "a number that may go on": (by_schema({"minimum": 100}), "12", "less than the minimum", None),
    "a number that is over": (by_schema({"minimum": 100}), "12\n", "less than the minimum", "less than the minimum"),
    "a half number": (by_schema({"type": "number"}), "1.", "cut off", None),
    "nested too deeply": (OBJECT, '{"a":' * 1_000, "nested deeper than 128", "nested deeper than 128"),
    "a circle in the schema": (by_schema({"$ref": "#"}), "{}", "nested too deeply", "nested too deeply"),
    "a number too long to read": (OBJECT, '{"a": ' + "9" * 5_000 + "}", None, None),
    "a number too long to compare": (by_schema({}), "9" * 5_000, "cannot be read", None),
    "a reference inside": (
        by_schema({"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}),
        '{"a": "x"}', "$.a", "$.a",
    ),
    "a reference to an anchor that is not there": (
        by_schema({"$id": "http://127.0.0.1/x", "properties": {"a": {"$ref": "#none"}}}),
        '{"a": 1}', "does not contain", "does not contain",
    ),
    "a pattern": (by_schema({"properties": {"a": {"pattern": "^x-[0-9]+$"}}}), '{"a": "x-y"}', "$.a", "$.a"),
}  # fmt: skip


@pytest.mark.parametrize("response_format, text, stop, length", ANSWERS.values(), ids=ANSWERS)
def test_verdict(response_format: object, text: str, stop: str | None, length: str | None) -> None:
    for reason, expected in zip(verdicts(response_format, text), (stop, length), strict=True):
        assert (reason is None) == (expected is None), reason
        assert reason is None or (expected is not None and expected in reason)


def test_reason_is_short_whatever_the_answer() -> None:
    for text in (json.dumps({"name": ["x" * 10_000]}), '{"name": "x", "' + "k" * 10_000 + '": 1}', "x" * 10_000):
        reason, _ = verdicts(BY_PERSON, text)
        assert reason is not None and len(reason) <= MAX_REASON_CHARACTERS


def test_first_violation_is_the_verdict_even_when_more_comes() -> None:
    check = check_of(OBJECT)
    check.feed('{"a": x')
    first = check.verdict("stop")
    check.feed(' }, "b"')
    assert check.verdict("stop") == first == check.verdict("length")


def test_checks_do_not_share_anything() -> None:
    first, second = check_of(BY_PERSON), check_of(BY_PERSON)
    first.feed("oh no")
    second.feed('{"name": "x"}')
    assert first.verdict("stop") is not None
    assert second.verdict("stop") is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(max_size=3), json_values, max_size=3), st.data())
def test_every_cut_of_an_object_is_length_and_never_success(value: dict[str, object], data: st.DataObject) -> None:
    text = json.dumps(value)
    assert _verdict(OBJECT, [text], "stop") is None
    end = data.draw(st.integers(0, len(text) - 1))
    assert _verdict(OBJECT, [text[:end]], "length") is None
    assert _verdict(OBJECT, [text[:end]], "stop") is not None


def _verdict(response_format: object, pieces: Iterable[str], finished: str) -> str | None:
    check = check_of(response_format)
    for piece in pieces:
        check.feed(piece)
    return check.verdict("stop" if finished == "stop" else "length")
