"""Any text, any cut: the same events as whole, and every character in one channel."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.events import Cancelled, Failed, FailKind, Finished, Terminal
from serve.assemble import ParseConfig, ToolSpec
from tests.unit.serve.assemble.dialogue import LENGTH, STOP, Said, config, events, function_call, json_call, said

FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "<function=other>", "<function=",
    "</function>", "<parameter=a>", "<parameter=b>", "<parameter=", "</parameter>", "\n", "\n\n", " ", "word", "é",
    "😀", "<", "</", ">", '{"name": "f", "arguments": ', '{"name": "other"', '{"a": 1}', '"', "{", "}", "null", "nul",
    "STOP", "ST", function_call("f", a="1"), function_call("f", a="x", b="null"), function_call("other", a="1"),
    json_call("f", '{"a": 2}'), json_call("other", "{}"), "\x00", "\x1b[0m", "\u2028",
]  # fmt: skip
TOOL = ToolSpec("f", {"properties": {"b": {"type": ["string", "null"]}}})
TERMINALS: list[Terminal] = [STOP, LENGTH, Failed(FailKind.DIED, "gone"), Cancelled("client")]

texts = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3)), max_size=14).map("".join)
datas = st.one_of(
    texts.map(lambda text: text.encode("utf-8", "replace")),
    st.lists(st.sampled_from(FRAGMENTS).map(str.encode) | st.binary(max_size=4), max_size=8).map(b"".join),
)
configs = st.builds(
    config,
    thinking=st.booleans(),
    tools=st.sampled_from([(), (TOOL,)]),
    stop=st.sampled_from([(), ("STOP",), ("ST", "TOP", "\n\n")]),
)


@st.composite
def cuts(draw: st.DrawFn, of: st.SearchStrategy[bytes] = datas) -> list[bytes]:
    """Bytes in pieces at any places."""
    data = draw(of)
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=len(data) + 1)))
    return [data[start:end] for start, end in itertools.pairwise([0, *places, len(data)])]


def check_any_cut(pieces: list[bytes], parse: ParseConfig, terminal: Terminal) -> None:
    data = b"".join(pieces)
    whole = said(events([data], parse, terminal))
    assert said(events(pieces, parse, terminal)) == whole
    for _, arguments, ended in whole.calls:
        if ended:
            assert isinstance(json.loads(arguments), dict)
    check_ending(whole, terminal)
    check_characters(data.decode("utf-8", "replace"), whole, parse)
    (whole.text + whole.reasoning + "".join(arguments for _, arguments, _ in whole.calls)).encode("utf-8")


def check_ending(whole: Said, terminal: Terminal) -> None:
    """Success only where the engine said so and all calls are whole."""
    if isinstance(whole.terminal, Finished) and whole.terminal.reason != "length":
        assert terminal == STOP or whole.terminal.stop_sequence
        assert all(ended for _, _, ended in whole.calls)
        assert (whole.terminal.reason == "tool_calls") == bool(whole.calls)
    elif isinstance(whole.terminal, Failed) and whole.terminal.kind is FailKind.TOOL_CALL:
        assert terminal == STOP
    else:
        assert whole.terminal == terminal


def check_characters(text: str, whole: Said, parse: ParseConfig) -> None:
    """Text and reasoning are pieces of what was written, in its order; without tools nothing but framing is missing."""
    stopped = isinstance(whole.terminal, Finished) and whole.terminal.stop_sequence
    assert is_subsequence(whole.text, text)
    assert is_subsequence(whole.reasoning, text)
    if parse.tools or stopped:
        return
    thinks = parse.thinking or text.startswith("<think>")
    body = text.removeprefix("<think>").lstrip("\n") if text.startswith("<think>") else text
    reasoning, closed, answer = body.partition("</think>") if thinks else ("", "", body)
    assert (whole.reasoning, whole.text) == (reasoning, answer.lstrip("\n") if closed else answer)


def is_subsequence(part: str, text: str) -> bool:
    rest = iter(text)
    return all(char in rest for char in part)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cuts(), configs, st.sampled_from(TERMINALS))
def test_any_text_in_any_cut_gives_the_same_events_as_whole(
    pieces: list[bytes], parse: ParseConfig, terminal: Terminal
) -> None:
    check_any_cut(pieces, parse, terminal)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))  # so that no part comes near the suite's time limit
@settings(max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cuts(), configs, st.sampled_from(TERMINALS))
def test_any_text_in_any_cut_gives_the_same_events_as_whole_long(
    part: int, pieces: list[bytes], parse: ParseConfig, terminal: Terminal
) -> None:
    check_any_cut(pieces, parse, terminal)


values = st.text().map(lambda text: text.encode("utf-8", "replace").decode())
calls = st.lists(st.dictionaries(st.sampled_from(["a", "c", "도시"]), values, max_size=3), min_size=1, max_size=3)


def as_text(json_form: bool, arguments: dict[str, str]) -> str:
    return json_call("f", json.dumps(arguments)) if json_form else function_call("f", **arguments)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls, st.lists(st.booleans(), min_size=3, max_size=3), st.integers(1, 9), st.sampled_from(["", "\n", "\n\n"]))
def test_calls_come_back_as_they_were_written(
    written: list[dict[str, str]], forms: list[bool], size: int, between: str
) -> None:
    text = between.join(as_text(form, arguments) for form, arguments in zip(forms, written, strict=False))
    data = text.encode()
    result = said(events([data[at : at + size] for at in range(0, len(data), size)], config(tools=[TOOL])))
    assert [json.loads(arguments) for _, arguments, _ in result.calls] == written
    assert (result.text, result.terminal) == ("", Finished("tool_calls"))
