"""Parameter values as JSON text, typed by the schema."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve.assemble.values import writer_for

STRING = {"type": "string"}
OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}


def schema(of_value: object, **more: object) -> Mapping[str, object]:
    return {"type": "object", "properties": {"value": of_value}, **more}


def written(parameters: Mapping[str, object], raw: str, size: int = 1) -> str:
    writer = writer_for(parameters, "value")
    pieces = [writer.text(raw[at : at + size]) for at in range(0, len(raw), size)]
    return "".join(pieces) + writer.end()


TABLE: dict[str, tuple[object, str, str]] = {
    "string": (STRING, "5", '"5"'),
    "string, quoted by the model": (STRING, '"a"', '"\\"a\\""'),
    "string, empty": (STRING, "", '""'),
    "string with control characters": (STRING, "\x1b[0m\x00\x07\n", '"\\u001b[0m\\u0000\\u0007\\n"'),
    "string beyond ASCII": (STRING, "é😀\u2028", '"é😀\u2028"'),
    "no schema": ({}, "5", '"5"'),
    "integer": ({"type": "integer"}, " 5 ", "5"),
    "integer that is none": ({"type": "integer"}, "5.5", '"5.5"'),
    "number": ({"type": "number"}, "-1.50e3", "-1.50e3"),
    "number with a plus": ({"type": "number"}, "+1", '"+1"'),
    "number NaN": ({"type": "number"}, "NaN", '"NaN"'),
    "boolean": ({"type": "boolean"}, "true", "true"),
    "boolean in Python's spelling": ({"type": "boolean"}, "False", "false"),
    "boolean that is none": ({"type": "boolean"}, "yes", '"yes"'),
    "null": ({"type": "null"}, "None", "null"),
    "object, as it stands": ({"type": "object"}, '\n{"a" :1}', '{"a" :1}'),
    "object that is an array": ({"type": "object"}, "[1]", '"[1]"'),
    "array": ({"type": "array"}, "[1, [2]]", "[1, [2]]"),
    "array, cut": ({"type": "array"}, "[1,", '"[1,"'),
    "array with a raw newline in a string": ({"type": "array"}, '["a\nb"]', '"[\\"a\\nb\\"]"'),
    "optional string": (OPTIONAL, "null", "null"),
    "optional string that begins like null": (OPTIONAL, "nullable", '"nullable"'),
    "optional string, cut null": (OPTIONAL, "nul", '"nul"'),
    "optional string, empty": (OPTIONAL, "", '""'),
    "optional string with quotes": ({"type": ["string", "null"]}, '"a"', '"\\"a\\""'),
    "string or number": ({"type": ["string", "number"]}, "5", "5"),
    "string or number, a word": ({"type": ["string", "number"]}, "five", '"five"'),
    "string or number, quoted": ({"type": ["string", "number"]}, '"5"', '"\\"5\\""'),
    "enum of strings": ({"enum": ["1", "2"]}, "1", '"1"'),
    "enum of numbers": ({"enum": [1, 2]}, "1", "1"),
    "const": ({"const": True}, "true", "true"),
    "object by its keywords": ({"properties": {}}, '{"a": 1}', '{"a": 1}'),
    "array by its keywords": ({"items": STRING}, '["a"]', '["a"]'),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, "7", "7"),
    "type that is no type": ({"type": 5}, "7", '"7"'),
    "a number too long to read": ({"type": "integer"}, "9" * 5_000, '"' + "9" * 5_000 + '"'),
    "nested too deeply to read": ({"type": "array"}, "[" * 100_000, '"' + "[" * 100_000 + '"'),
}


@pytest.mark.parametrize("of_value, raw, expected", TABLE.values(), ids=TABLE)
@pytest.mark.parametrize("size", [1, 7, 1_000_000])
def test_value_is_typed_by_its_schema(of_value: object, raw: str, expected: str, size: int) -> None:
    assert written(schema(of_value), raw, size) == expected
    json.loads(expected)


def test_value_of_an_undeclared_parameter_is_a_string() -> None:
    assert written({"type": "object", "properties": {"other": {"type": "integer"}}}, "5") == '"5"'
    assert written({}, "5") == '"5"'
    assert written({"properties": [1]}, "5") == '"5"'


def test_reference_inside_the_schema_is_followed() -> None:
    parameters = schema({"$ref": "#/$defs/count"}, **{"$defs": {"count": {"type": "integer"}}})
    assert written(parameters, "5") == "5"
    assert written(schema({"$ref": "#/$defs/none"}), "5") == '"5"'
    assert written(schema({"$ref": "https://example.invalid/x"}), "5") == '"5"'
    assert written(schema({"$ref": "#/properties/value"}), "5") == '"5"', "a circle names no type"


class Counted(dict[str, object]):
    """A schema that counts how often it is looked at."""

    looks = 0

    def get(self, key: str, default: object = None) -> object:  # pyright: ignore[reportIncompatibleMethodOverride] - one of dict's three forms
        Counted.looks += 1
        return super().get(key, default)


def test_schema_that_refers_to_itself_many_times_is_looked_at_once() -> None:
    circle = Counted({"anyOf": [{"$ref": "#/properties/value"} for _ in range(300)] + [{"type": "integer"}]})
    Counted.looks = 0
    assert written(schema(circle), "5") == "5"
    assert Counted.looks < 20, "or a request's schema costs 300 to the fourth power"


def test_string_is_written_while_it_comes() -> None:
    writer = writer_for(schema(STRING), "value")
    assert [writer.text("a"), writer.text('"'), writer.end()] == ['"a', '\\"', '"']


def test_optional_string_is_written_as_soon_as_it_is_not_null() -> None:
    writer = writer_for(schema(OPTIONAL), "value")
    assert [writer.text("n"), writer.text("u"), writer.text("t"), writer.text("s"), writer.end()] == [
        "", "", '"nut', "s", '"',
    ]  # fmt: skip


def test_value_that_is_cut_stays_open() -> None:
    string, number = writer_for(schema(STRING), "value"), writer_for(schema({"type": "number"}), "value")
    assert string.text("ab") + string.cut() == '"ab'
    assert number.text("1") + number.cut() == "1"
    assert writer_for(schema(STRING), "value").cut() == '"'


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(), st.integers(1, 5))
def test_any_string_comes_back(raw: str, size: int) -> None:
    raw = raw.encode("utf-8", "replace").decode()
    assert json.loads(written(schema(STRING), raw, size)) == raw


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text("ab<>"), st.lists, max_leaves=5))
def test_any_json_of_a_declared_type_comes_back(value: object) -> None:
    types = ["null", "boolean", "integer", "number", "array", "object"]
    result: object = json.loads(written(schema({"type": types}), json.dumps(value)))
    assert result == (json.dumps(value) if isinstance(value, str) else value)
