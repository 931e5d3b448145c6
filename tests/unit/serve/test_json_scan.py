"""JSON, piece by piece, against the standard library."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve.json_scan import JsonScanner, skip_space


def scan(text: str, size: int = 1, **options: bool) -> tuple[JsonScanner, int]:
    """The scanner and how many characters it took."""
    scanner = JsonScanner(**options)
    taken = 0
    for at in range(0, len(text), size):
        piece = text[at : at + size]
        read = scanner.feed(piece)
        taken += read
        if read < len(piece):
            break
    return scanner, taken


WHOLE = [
    "{}", "[]", '""', "true", "false", "null", "[ ]", "{ }", '{"a":1}', ' \n{"a" : [1, -2.5e+3, "x", {"b": null}]}',
    '"\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9"', '"é😀\u2028"', "[[[]]]", '{"":""}', '"\\ud83d"', "[0, -0, 0.1, 1e5, 1E-5]",
]  # fmt: skip


@pytest.mark.parametrize("text", WHOLE)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_value_is_done_at_its_last_character(text: str, size: int) -> None:
    scanner, taken = scan(text + "  x", size)
    assert (scanner.done, scanner.error, taken) == (True, None, len(text))
    assert scanner.could_end
    assert scanner.take() == text
    assert scanner.first == text.strip()[0]


@pytest.mark.parametrize("text", ["0", "-1", "12.5", "1e5", "-0.0E-7"])
def test_number_could_end_and_is_done_when_something_follows(text: str) -> None:
    scanner, taken = scan(text)
    assert (scanner.done, scanner.could_end, taken) == (False, True, len(text))
    scanner, taken = scan(text + " ")
    assert (scanner.done, taken) == (True, len(text))


@pytest.mark.parametrize(
    "text", ["", " ", "{", '{"a', '{"a"', '{"a":', '{"a":1', "[1,", '"', '"\\', '"\\u00', "tru", "-", "1.", "1e", "1e+"]
)
def test_beginning_of_a_value_is_neither_wrong_nor_whole(text: str) -> None:
    scanner, _ = scan(text)
    assert (scanner.done, scanner.could_end, scanner.error) == (False, False, None)


WRONG = {
    "not a value": ("x", 0, "expected a value"),
    "NaN": ("NaN", 0, "expected a value"),
    "Infinity": ("Infinity", 0, "expected a value"),
    "a sign": ("+1", 0, "expected a value"),
    "single quotes": ("{'a': 1}", 1, "key in quotes"),
    "a comma before the end of an object": ('{"a": 1,}', 8, "key in quotes"),
    "a comma before the end of an array": ("[1,]", 3, "expected a value"),
    "no colon": ('{"a" 1}', 5, "':'"),
    "no comma": ("[1 2]", 3, "',' or ']'"),
    "no comma in an object": ('{"a": 1 "b"}', 8, "',' or '}'"),
    "the wrong bracket": ("[1}", 2, "',' or ']'"),
    "a leading zero": ("[01]", 2, "',' or ']'"),
    "a number without digits": ("[-]", 2, "number"),
    "a number without a fraction": ("[1.]", 3, "number"),
    "a half word": ("[trux]", 4, "'true'"),
    "an escape": ('"\\x"', 2, "escape"),
    "hexadecimal digits": ('"\\u00g0"', 5, "hexadecimal"),
    "a raw newline": ('"a\nb"', 2, "control character"),
    "NUL": ('"\x00"', 1, "control character"),
    "a comment": ("[1 /* x */]", 3, "',' or ']'"),
    "a byte order mark": ("\ufeff{}", 0, "expected a value"),
    "a space that is not JSON's": ("\u00a0{}", 0, "expected a value"),
}


@pytest.mark.parametrize("text, at, reason", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_wrong_character_is_named_with_its_place(text: str, at: int, reason: str, size: int) -> None:
    scanner, taken = scan(text, size)
    assert scanner.error is not None and reason in scanner.error
    assert scanner.error.endswith(f"at character {at}")
    assert (taken, scanner.done, scanner.could_end) == (at, False, False)


def test_raw_control_characters_become_escapes_where_allowed() -> None:
    for size in (1, 2, 100):
        scanner, _ = scan('{"a\n": "x\ty\x1b\x00z",\n "b": 1}', size, escape_controls=True)
        assert scanner.take() == '{"a\\n": "x\\ty\\u001b\\u0000z",\n "b": 1}'
        assert scanner.done


def test_key_twice_in_one_object_is_refused_where_asked() -> None:
    for text in ('{"a": 1, "a": 2}', '{"x": {"a": 1, "\\u0061": 2}}'):
        for size in (1, 100):
            scanner, _ = scan(text, size, unique_keys=True)
            assert scanner.error is not None and "'a' stands twice" in scanner.error
            assert scan(text, size)[0].done
    assert scan('{"a": {"a": [{"a": 1}, {"a": 1}]}, "b": "a"}', unique_keys=True)[0].done


def test_nesting_is_limited() -> None:
    scanner = JsonScanner(max_depth=3)
    scanner.feed("[[[1], [2]]]")
    assert scanner.done
    scanner = JsonScanner(max_depth=3)
    scanner.feed('[{"a": [[')
    assert scanner.error is not None and "deeper than 3" in scanner.error


def test_strings_know_that_they_are_open() -> None:
    scanner = JsonScanner()
    states = [(scanner.feed(char), scanner.in_string)[1] for char in '{"a":"\\u0041"}']
    assert states == [False, True, True, False, False, *[True] * 7, False, False]


def test_reading_can_begin_anywhere_in_a_text() -> None:
    scanner = JsonScanner()
    assert scanner.feed('xx{"a":1}yy', 2) == 9
    assert scanner.take() == '{"a":1}'
    assert skip_space("x \n y", 1) == 4


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(json_values, st.booleans(), st.integers(1, 9))
def test_all_json_is_taken_and_all_its_beginnings_are_beginnings(value: object, ascii_only: bool, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    scanner, taken = scan(text + "\n", size, unique_keys=True)
    assert (scanner.done, taken) == (True, len(text))
    for end in range(len(text)):
        assert scan(text[:end], size)[0].error is None


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text('{}[]":,0123.eE+-tfn \\u"abx', max_size=14), st.integers(1, 5))
def test_it_agrees_with_the_standard_library(text: str, size: int) -> None:
    try:
        json.loads(text, parse_constant=lambda word: (_ for _ in ()).throw(ValueError(word)))
        valid = True
    except ValueError:
        valid = False
    scanner, taken = scan(text, size)
    whole = scanner.error is None and scanner.could_end and not text[taken:].strip(" \t\n\r")
    assert whole == valid
