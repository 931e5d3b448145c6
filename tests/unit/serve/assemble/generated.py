"""Generated answers: dialogues as models write them, cut at any place and in any pieces, and any text whatever.

How many are made is said here: `EXAMPLES` for the suite, `LONG_EXAMPLES` for its long run.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from engine.events import Cancelled, Failed, FailKind, Terminal
from serve.assemble import ParseConfig, ToolSpec
from tests.unit.serve.assemble.dialogue import LENGTH, STOP, config, function_call, json_call

EXAMPLES = 500
LONG_EXAMPLES = 20_000
LONG_PARTS = 20
"""The long run in parts, so that none comes near the suite's time limit."""

how_many = pytest.mark.parametrize(
    "examples",
    [
        pytest.param(EXAMPLES, id="short"),
        *(
            pytest.param(
                LONG_EXAMPLES // LONG_PARTS, id=f"long-{part}", marks=[pytest.mark.long, pytest.mark.timeout(600)]
            )
            for part in range(LONG_PARTS)
        ),
    ],
)
"""A property as a test with the argument `examples`, to be given to `thorough`."""


def thorough(examples: int) -> settings:
    """The settings of a property: other examples at every run, also in CI: the parts do not repeat each other."""
    return settings(
        max_examples=examples, deadline=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow]
    )


F = ToolSpec("f", {"properties": {"b": {"type": ["string", "null"]}, "n": {"type": "integer"}}})
G = ToolSpec("g")
TERMINALS: list[Terminal] = [
    STOP, LENGTH, Failed(FailKind.DIED, "gone"), Failed(FailKind.SILENT, "quiet"), Cancelled("client"),
    Cancelled("deadline"),
]  # fmt: skip

# --- any text ----------------------------------------------------------------------------------------

FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "<function=other>", "<function=",
    "</function>", "<parameter=a>", "<parameter=b>", "<parameter=n>", "<parameter=", "</parameter>", "\n", "\n\n", " ",
    "word", "é", "😀", "<", "</", ">", "<t", "</tool", "<func", '{"name": "f", "arguments": ', '{"name": "other"',
    '{"name": ', '"arguments": ', '"name": "g"', '{"a": 1}', '{"a": "', '"', "{", "}", "[", "]", ",", ":", "\\",
    "\\u00", "null", "nul", "5", "-1.5e", "STOP", "ST",
    function_call("f", a="1"), function_call("f", a="x", b="null", n="7"),
    function_call("other", a="1"), json_call("f", '{"a": 2}'), json_call("other", "{}"), "\x00", "\x1b[0m", "\u2028",
    "<tool_call>\n<function=f>\n<parameter=a>\n", "\n</parameter>\n</function>\n</tool_call>",
]  # fmt: skip
BROKEN_BYTES = [b"\xff", b"\xc3", b"\xe4\xbd", b"\xf0\x9f\x98", b"\xed\xa0\xbd", b"\x80", b"\xc0\xaf"]

IN_JSON = [
    '"name": "f"', '"name": "other"', '"name": ', '"arguments": ', '"arguments": {"a": "x"}', '"a": 1', ", ", "}", "{",
    '"', "[", "]", ":", "\\", "\\u00", "nul", "null", "5", "-1.5e", "\n", " ", "x", "</tool_call>", "</tool", "<t", "é",
]  # fmt: skip
IN_FUNCTION = [
    "<parameter=a>", "<parameter=b>", "<parameter=n>", "<parameter=a>\n", "\n</parameter>\n", "</parameter>", "\n", " ",
    "</function>", "</tool_call>", "</parameter>\n</function>\n</tool_call>", "<tool_call>", "<function=f>", "null",
    "7", "x", "STOP", "<par", "</func", "</tool", "<tool_c", "<", "é", "</think>",
]  # fmt: skip

words = st.sampled_from(FRAGMENTS) | st.text(max_size=3)
in_json = st.lists(st.sampled_from(IN_JSON), max_size=7).map("".join)
in_function = st.lists(st.sampled_from(IN_FUNCTION), max_size=9).map("".join)
names = st.sampled_from(["f", "f", "g", "other"])
near_calls = st.one_of(
    st.tuples(st.sampled_from(["<tool_call>", "<tool_call>\n"]), words).map("".join),
    st.tuples(st.just("<tool_call>{"), in_json).map("".join),
    st.tuples(st.just('<tool_call>{"name": "'), names, st.just('", '), in_json).map("".join),
    st.tuples(st.just("<tool_call>\n<function="), names, st.just(">"), in_function).map("".join),
    st.tuples(st.just("<tool_call><function="), names, st.just(">\n<parameter=a>"), in_function).map("".join),
)
"""What begins like a call."""
soups = st.lists(st.one_of(words, near_calls), max_size=8).map("".join)

# --- dialogues as models write them ------------------------------------------------------------------

ODD = [
    "word ", "안녕", "😀", "e\u0301", "\u202e", "\u2028", "\x00", "\x1b[0m", "\r\n", "a < b", "<b>", "\n", "STO", "</",
    "{", "<think", "}",
]  # fmt: skip
IN_VALUES = [
    "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<think>", "STOP", "x ", "\n",
    f"\n{function_call('g', a='1')}\n", f"\n{json_call('f', '{}')}\n", *ODD,
]  # fmt: skip
PARAMETER_TAGS = ["</parameter>", "<parameter=a>", "</think>", "</parameter>\n</function>\n</tool_call>"]
KEYS: list[str] = ["a", "c", "도시"]

odd_texts = st.lists(st.sampled_from(ODD), max_size=5).map("".join) | st.text(max_size=8)
tags_in_values = st.lists(st.sampled_from(IN_VALUES), max_size=5).map("".join) | st.text(max_size=8)
any_tags = st.lists(st.sampled_from(IN_VALUES + PARAMETER_TAGS), max_size=5).map("".join)
"""Of the JSON form, whose strings end where JSON says; the other form's values have rules (`test_function_call`)."""


@dataclass(frozen=True)
class Written:
    """A part of an answer as it was written, and what it is."""

    text: str
    call: tuple[str, dict[str, str]] | None = None


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@st.composite
def answers(draw: st.DrawFn) -> list[Written]:
    """Texts and calls in turn."""
    parts: list[Written] = []
    values = any_tags
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from(["", "", "f", "g", "other"]))
        if not name:
            parts.append(Written(_clean(draw(odd_texts))))
            continue
        in_json = draw(st.booleans())
        if not in_json:  # a later `</parameter>` after text may as well end this value: rule 4 of `FunctionCall`
            values = odd_texts
        drawn = draw(st.lists(values if in_json else tags_in_values, max_size=len(KEYS)))
        arguments = dict(zip(KEYS, map(_clean, drawn), strict=False))
        if in_json:
            text = json_call(name, json.dumps(arguments, ensure_ascii=draw(st.booleans())))
        else:
            text = function_call(name, **arguments)
        parts.append(Written(text, None if name == "other" else (name, arguments)))
    return parts


def text_of(thought: str | None, answer: list[Written]) -> str:
    """The whole text; `thought` None: there is no thinking."""
    begun = "" if thought is None else f"{thought}</think>\n\n"
    return begun + "".join(part.text for part in answer)


@st.composite
def datas(draw: st.DrawFn) -> bytes:
    """The bytes of an answer: a dialogue cut anywhere, or any text, with or without broken characters."""
    kind = draw(st.sampled_from(["soup", "soup", "near call", "dialogue", "bytes"]))
    if kind == "bytes":
        return b"".join(draw(st.lists(st.sampled_from(FRAGMENTS).map(str.encode) | st.binary(max_size=4), max_size=8)))
    if kind in ("soup", "near call"):
        data = draw(soups if kind == "soup" else near_calls).encode("utf-8", "replace")
    else:
        thought = draw(st.none() | odd_texts)
        data = text_of(thought, draw(answers())).encode("utf-8", "replace")
        data = data[: draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))]
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.sampled_from(BROKEN_BYTES)) + data[at:]
    return data


@st.composite
def pieces(draw: st.DrawFn) -> list[bytes]:
    """The bytes of an answer in tokens: cut at any places, or all of one size."""
    data = draw(datas())
    size = draw(st.sampled_from([0, 1, 1, 2, 7]))
    if size:
        return [data[at : at + size] for at in range(0, len(data), size)]
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in itertools.pairwise([0, *places, len(data)])]


configs: st.SearchStrategy[ParseConfig] = st.builds(
    config,
    thinking=st.sampled_from([False, False, True]),
    tools=st.sampled_from([(F,), (F, G), (F, G), ()]),
    stop=st.sampled_from([(), (), (), ("STOP",), ("ST", "TOP", "\n\n"), ("</tool_call>", "é"), ("<tool", "😀")]),
)
