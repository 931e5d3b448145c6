"""The tag form of a call: where a value ends although it may contain the format's own tags."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.events import Failed, FailKind, Finished
from serve.assemble import ToolSpec
from tests.unit.serve.assemble.dialogue import LENGTH, STOP, Said, config, function_call, json_call, tell

WRITE = config(tools=["write", "f"])
CLOSE = "</parameter>\n</function>\n</tool_call>"
TWO_CALLS = function_call("f", a="1", b="x\ny") + "\n" + function_call("f", c="2")


def arguments(said: Said) -> dict[str, object]:
    """The arguments of the only call, which must be whole, with nothing beside it."""
    assert said.text == "" and said.reasoning == ""
    [(_, text, ended)] = said.calls
    assert ended and said.terminal == Finished("tool_calls")
    return json.loads(text)


VALUES = {
    "plain": "hello",
    "empty": "",
    "lines": "one\n\ntwo\n",
    "newlines at both ends": "\n\nx\n\n",
    "a closing tag in the text": "use </parameter> to close",
    "all closing tags in a row": f"before\n{CLOSE}\nafter",
    "all closing tags at its end": f"before\n{CLOSE}",
    "all closing tags, twice": f"{CLOSE}\n{CLOSE}\nx",
    "closing tags on one line": "a</parameter></function></tool_call>b",
    "a whole example": f"Like this:\n{function_call('g', a='1')}\ndone",
    "only a whole example": function_call("g", a="1"),
    "two examples in a row": f"Like this:\n{TWO_CALLS}\ndone",
    "an example of itself": f"Like this:\n{function_call('write', path='p', content='c')}",
    "an example on one line": "<tool_call><function=f><parameter=a>1</parameter></function></tool_call> is one",
    "an example without parameters": function_call("f"),
    "an example in JSON": json_call("f", '{"a": 1}'),
    "an opening tag in a sentence": "write <parameter=path> first",
    "an opening tag on a line of its own": "it opens with\n<parameter=path>\nand so on",
    "an example in an example": f"x\n<parameter=a>\n{function_call('f', b='1')}\n</parameter>\ny",
    "the key again": "</parameter>\n<parameter=content>\nx\n</parameter>",
    "a template's think tags": "<think>\nx\n</think>\n",
    "a tag that is cut": "x </param",
    "control characters": "\x1b[0m\x00\x07\r\n",
    "beyond ASCII": "안녕 😀 \u2028 é",
    "a lone bracket": "a < b",
    "JSON": '{"a": ["</parameter>"]}',
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_value_arrives_byte_for_byte(value: str) -> None:
    assert arguments(tell(function_call("write", path="p", content=value), WRITE)) == {"path": "p", "content": value}


# an unpaired opening tag at the start of a line pairs with the value's own end, unless the turn ends there
PAIRED = {name: value for name, value in VALUES.items() if name != "an opening tag on a line of its own"}


@pytest.mark.parametrize("value", PAIRED.values(), ids=PAIRED)
def test_value_in_the_middle_arrives_too(value: str) -> None:
    said = tell(function_call("write", content=value, path="p"), WRITE)
    assert arguments(said) == {"content": value, "path": "p"}


@pytest.mark.parametrize("value", PAIRED.values(), ids=PAIRED)
def test_value_of_the_first_of_two_calls_arrives(value: str) -> None:
    said = tell(function_call("write", content=value) + "\n" + function_call("f", a="1"), WRITE)
    assert [(name, json.loads(text), ended) for name, text, ended in said.calls] == [
        ("write", {"content": value}, True),
        ("f", {"a": "1"}, True),
    ]
    assert (said.text, said.terminal) == ("", Finished("tool_calls"))


FRAGMENTS = [
    CLOSE, TWO_CALLS, function_call("write", content="x"), json_call("f", "{}"), "</parameter>", "</function>", "\n",
    "</tool_call>", "<tool_call>", "<function=f>", "a <parameter=b> c", " ", "text", "<", "é", "</think>", "\n\n",
]  # fmt: skip


OWN_END = re.compile(r"</parameter>\s*</function>\s*</tool_call>\s*<tool_call>")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join))
def test_value_with_whole_examples_and_any_closing_tags_arrives(value: str) -> None:
    # what a value may not hold: its own end, exactly as a model writes it (see the rules in the module)
    if OWN_END.search(value):
        return
    assert arguments(tell(function_call("write", content=value), WRITE)) == {"content": value}


def test_call_without_parameters_has_an_empty_object() -> None:
    said = tell("<tool_call>\n<function=f>\n</function>\n</tool_call>", WRITE)
    assert said.calls == (("f", "{}", True),)


def test_parameters_are_typed_by_the_schema() -> None:
    properties = {"n": {"type": "integer"}, "on": {"type": "boolean"}, "list": {"type": "array"}}
    parse = config(tools=[ToolSpec("f", {"type": "object", "properties": properties})])
    said = tell(function_call("f", n="5", on="True", list="[1, 2]", extra="7"), parse)
    assert said.calls == (("f", '{"n": 5, "on": true, "list": [1, 2], "extra": "7"}', True),)


def test_arguments_are_streamed_while_the_value_is_written() -> None:
    said = tell("<tool_call>\n<function=write>\n<parameter=path>\na.txt\nmore", WRITE, LENGTH)
    assert said.calls == (("write", '{"path": "a.txt\\nmore', False),)


TAILS = {
    "text after a call": (
        function_call("f", a="1") + "\nDone.", (("f", '{"a": "1"}', True),), "\nDone.",
    ),
    "text between calls": (
        function_call("f", a="1") + " and " + function_call("f", b="2"),
        (("f", '{"a": "1"}', True), ("f", '{"b": "2"}', True)), " and ",
    ),
    "text after every call": (
        function_call("f", a="1") + "x" + function_call("f", b="2") + "y" + function_call("f", c="3") + "z",
        (("f", '{"a": "1"}', True), ("f", '{"b": "2"}', True), ("f", '{"c": "3"}', True)), "xyz",
    ),
    "a call in JSON after text": (
        function_call("f", a="1") + "x" + json_call("write", "{}"),
        (("f", '{"a": "1"}', True), ("write", "{}", True)), "x",
    ),
    "a cut tag after a call": (
        function_call("f", a="1") + "\n<tool_c", (("f", '{"a": "1"}', True),), "\n<tool_c",
    ),
}  # fmt: skip


@pytest.mark.parametrize("written, calls, text", TAILS.values(), ids=TAILS)
def test_text_after_a_call_is_answer_when_the_turn_ends(
    written: str, calls: tuple[tuple[str, str, bool], ...], text: str
) -> None:
    said = tell(written, WRITE)
    assert (said.calls, said.text, said.terminal) == (calls, text, Finished("tool_calls"))


OPEN_AFTER_TEXT = {
    "half a closing tag": ("<tool_call>\n<function=f>\n</function>\n</tool", ""),
    "a bracket": ("<tool_call>\n<function=f>\n</function>\n<", ""),
    "half a tag that is none": ("<tool_call>\n<function=f>\n</function>\n</para", "</para"),
    "half a value's tag": ("<tool_call>\n<function=f>\n<parameter=a>\nx\n</para", '{"a": "x\\n</para'),
    "half a tag in JSON": ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_c', "{}"),
}


@pytest.mark.parametrize("written, arguments", OPEN_AFTER_TEXT.values(), ids=OPEN_AFTER_TEXT)
def test_second_call_after_text_is_as_open_as_a_first_one(written: str, arguments: str) -> None:
    for before, calls in (("", ()), (function_call("f", a="1") + " and ", (("f", '{"a": "1"}', True),))):
        said = tell(before + written, WRITE)
        assert said.calls == (*calls, ("f", arguments, False))
        assert isinstance(said.terminal, Failed) and said.terminal.kind is FailKind.TOOL_CALL


CUT = {
    "after the opening tag of a parameter": ("<parameter=a>", '{"a": "'),
    "in a value": ("<parameter=a>\nfoo", '{"a": "foo'),
    "after a newline of a value": ("<parameter=a>\nfoo\n", '{"a": "foo\\n'),
    "in a closing tag": ("<parameter=a>\nfoo\n</para", '{"a": "foo\\n</para'),
    "after the closing tag of a value": ("<parameter=a>\nfoo\n</parameter>\n", '{"a": "foo"'),
    "in the tag after a value": ("<parameter=a>\nfoo\n</parameter>\n</func", '{"a": "foo"'),
    "after </function>": ("<parameter=a>\nfoo\n</parameter>\n</function>\n", '{"a": "foo"'),
    "in </tool_call>": ("<parameter=a>\nfoo\n</parameter>\n</function>\n</tool_", '{"a": "foo"'),
    "before any parameter": ("\n", ""),
    "in an example in a value": (
        "<parameter=a>\n<parameter=b>\n1\n</parameter>\n", '{"a": "<parameter=b>\\n1\\n</parameter>\\n',
    ),
    "in a tag that is none after a value": (
        "<parameter=a>\nfoo\n</parameter>\n<func", '{"a": "foo\\n</parameter>\\n<func',
    ),
    "in a tag that is none after </function>": (
        "<parameter=a>\nfoo\n</parameter>\n</function>\n</par", '{"a": "foo\\n</parameter>\\n</function>\\n</par',
    ),
    "in a next parameter": ("<parameter=a>\nfoo\n</parameter>\n<parameter=b", '{"a": "foo"'),
    "in a tag that is none before any parameter": ("<tool_c", "<tool_c"),
    "in the tag after a whole example in a value": (
        "<parameter=a>\n" + function_call("g", b="1") + "\n<tool_c",
        '{"a": "<tool_call>\\n<function=g>\\n<parameter=b>\\n1\\n</parameter>\\n</function>\\n</tool_call>\\n<tool_c',
    ),
    "in text that may be the value": (
        "<parameter=a>\nfoo\n</parameter>\n</function>\n</tool_call>\nmore",
        '{"a": "foo\\n</parameter>\\n</function>\\n</tool_call>\\nmore',
    ),
}  # fmt: skip


@pytest.mark.parametrize("body, written", CUT.values(), ids=CUT)
@pytest.mark.parametrize("terminal", [LENGTH, Failed(FailKind.DIED, "gone")], ids=["length", "died"])
def test_call_that_was_cut_stays_open(body: str, written: str, terminal: Finished | Failed) -> None:
    said = tell("<tool_call>\n<function=f>\n" + body, WRITE, terminal)
    assert (said.calls, said.text, said.terminal) == ((("f", written, False),), "", terminal)


def test_model_that_ends_in_the_middle_of_a_call_is_a_failure_that_names_it() -> None:
    for body, _ in CUT.values():
        if "more" in body:
            continue
        said = tell("<tool_call>\n<function=f>\n" + body, WRITE, STOP)
        assert isinstance(said.terminal, Failed) and said.terminal.kind is FailKind.TOOL_CALL
        assert "'f'" in said.terminal.message
        assert said.text == "" and not said.calls[0][2]


BROKEN = {
    "text instead of a parameter": "<tool_call><function=f>hello</function></tool_call>",
    "text instead of the closing tag": "<tool_call><function=f></function>hello",
    "a second function": "<tool_call><function=f><function=f></function></tool_call>",
    "no </function>": "<tool_call><function=f></tool_call>",
}


@pytest.mark.parametrize("written", BROKEN.values(), ids=BROKEN)
def test_broken_call_is_a_failure_and_never_answer_text(written: str) -> None:
    said = tell(written, WRITE)
    assert isinstance(said.terminal, Failed) and said.terminal.kind is FailKind.TOOL_CALL
    assert said.text == ""
    assert [ended for _, _, ended in said.calls] == [False]
