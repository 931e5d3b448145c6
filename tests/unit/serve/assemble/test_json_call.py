"""The JSON form of a call."""

from __future__ import annotations

import json

import pytest

from serve.assemble.calls import Outcome
from serve.assemble.json_call import JsonCall
from serve.assemble.lexer import Kind, Lexeme, Lexer

TAGS = frozenset(Kind) - {Kind.TEXT}


def read(text: str, size: int) -> tuple[Outcome, JsonCall, str, str]:
    """The outcome, the reader, the arguments and what was left over."""
    reader, lexer = JsonCall(), Lexer()
    arguments: list[str] = []
    outcome = Outcome.OPEN
    left: list[str] = []
    for at in range(0, len(text), size):
        lexer.feed(text[at : at + size])
        while (lexeme := lexer.next(TAGS)) is not None:
            if outcome is not Outcome.OPEN:
                left.append(lexeme.raw)
                continue
            outcome = reader.feed(lexeme)
            arguments.append(reader.take())
            left += [rest.raw for rest in reader.rest]
    return outcome, reader, "".join(arguments), "".join(left) + lexer.flush()


CLOSED = {
    "plain": ('{"name": "f", "arguments": {"a": 1}}', '{"a": 1}'),
    "compact": ('{"name":"f","arguments":{}}', "{}"),
    "white space everywhere": (' { "name" : "f" , "arguments" : { "a" : 1 } } \n', '{ "a" : 1 }'),
    "arguments before the name": ('{"arguments": {"a": [1, 2]}, "name": "f"}', '{"a": [1, 2]}'),
    "no arguments": ('{"name": "f"}', "{}"),
    "more members": ('{"id": 7, "name": "f", "x": [null, true, -1.5e3], "arguments": {}}', "{}"),
    "tags in a string": (
        '{"name": "f", "arguments": {"a": "</tool_call><tool_call><function=g></think>"}}',
        '{"a": "</tool_call><tool_call><function=g></think>"}',
    ),
    "braces and escapes in a string": (r'{"name": "f", "arguments": {"a": "}\"\\"}}', r'{"a": "}\"\\"}'),
    "a name in escapes": (r'{"name": "\u0066", "arguments": {}}', "{}"),
    "raw control characters": ('{"name": "f", "arguments": {"a": "x\n\x1b\x00"}}', '{"a": "x\\n\\u001b\\u0000"}'),
    "a number at the end": ('{"name": "f", "arguments": {"a": 12}, "n": 3}', '{"a": 12}'),
    "half a surrogate in escapes stays as written": (r'{"name":"f","arguments":{"a":"\ud83d"}}', r'{"a":"\ud83d"}'),
}


@pytest.mark.parametrize("text, arguments", CLOSED.values(), ids=CLOSED)
@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_whole_call_gives_its_arguments_as_written(text: str, arguments: str, size: int) -> None:
    outcome, reader, taken, left = read(text + "</tool_call> more", size)
    assert (outcome, reader.name, taken, left) == (Outcome.CLOSED, "f", arguments, " more")
    assert isinstance(json.loads(taken), dict)


BROKEN = {
    "no JSON": ("{name}", "name}", False, "not a JSON object"),
    "no name": ('{"a": 1} x', " x", True, "no name"),
    "an empty object": ("{} x", " x", False, "no name"),
    "an empty name": ('{"name": ""} x', "} x", True, "name is empty"),
    "a name that is no string": ('{"name": 5} x', "5} x", True, "not a string"),
    "arguments as a string": ('{"name": "f", "arguments": "{}"}', '"{}"}', True, "not a JSON object"),
    "arguments null": ('{"name": "f", "arguments": null}', "null}", True, "not a JSON object"),
    "arguments broken": ('{"name": "f", "arguments": {"a": 01}}', "1}}", True, "not JSON"),
    "two names": ('{"name": "f", "name": "g"}', '"g"}', True, "twice"),
    "a comma too many": ('{"name": "f",}', "}", True, "not a JSON object"),
    "text behind the object": ('{"name": "f"} and so on', "and so on", True, "between"),
    "another tag behind the object": ('{"name": "f"}</function>', "</function>", True, "between"),
}


@pytest.mark.parametrize("text, left, plausible, fault", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_broken_call_says_why_and_gives_back_the_rest(
    text: str, left: str, plausible: bool, fault: str, size: int
) -> None:
    outcome, reader, _, rest = read(text, size)
    assert outcome is Outcome.BROKEN
    assert (rest, reader.plausible) == (left, plausible)
    assert fault in reader.fault


def test_name_is_known_before_the_arguments_come() -> None:
    reader = JsonCall()
    reader.feed(Lexeme(Kind.TEXT, '{"name": "f"'))
    assert reader.name == "f"
    reader.feed(Lexeme(Kind.TEXT, ', "arguments": {"a": "x'))
    assert reader.take() == '{"a": "x'
    reader.feed(Lexeme(Kind.TEXT, 'y"}'))
    assert reader.take() == 'y"}'


def test_call_without_its_closing_tag_stays_open() -> None:
    reader = JsonCall()
    reader.feed(Lexeme(Kind.TEXT, '{"name": "f", "arguments": {}}'))
    assert reader.finish("</tool", stopped=True) is Outcome.OPEN
    assert reader.take() == "{}"


@pytest.mark.parametrize("text, taken", [('{"name": "f", "arguments": {"a": ', '{"a": '), ('{"name": "f"', "")])
@pytest.mark.parametrize("partial", ["<tool", "</tool_", "<"])
def test_half_a_tag_where_none_belongs_breaks_the_call_and_is_kept(text: str, taken: str, partial: str) -> None:
    reader = JsonCall()
    reader.feed(Lexeme(Kind.TEXT, text))
    assert reader.finish(partial, stopped=False) is Outcome.BROKEN
    assert reader.take() == taken
    assert reader.rest == [Lexeme(Kind.TEXT, partial)]


def test_partial_tag_at_the_end_is_part_of_a_string() -> None:
    reader = JsonCall()
    reader.feed(Lexeme(Kind.TEXT, '{"name": "f", "arguments": {"a": "x'))
    assert reader.finish("</tool", stopped=False) is Outcome.OPEN
    assert reader.take() == '{"a": "x</tool'
