"""A token costs the same however long the answer is, whatever is held and whatever is nearly a tag.

Work is counted, not timed: functions called, and text kept as one string, which each token copies or reads again.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import cast

import pytest

from engine.events import Token
from serve.assemble import ParseConfig, ToolSpec, assemble
from serve.assemble.channels import Channels
from tests.unit.serve.assemble.dialogue import LENGTH, STOP, PieceTokenizer, config, function_call

TOOLS = config(tools=["f"])
THINKING = config(thinking=True, tools=["f"])
TYPED = config(tools=[ToolSpec("f", {"properties": {"o": {"type": "object"}}})])
F = function_call("f", a="1")

OPENINGS: dict[str, tuple[str, ParseConfig]] = {
    "text": ("", config(tools=["f"], stop=["STOP"])),
    "reasoning": ("", THINKING),
    "tag call": ("<tool_call>\n<function=f>\n<parameter=a>\n", TOOLS),
    "tag call, typed": ("<tool_call>\n<function=f>\n<parameter=o>\n", TYPED),
    "JSON call": ('<tool_call>\n{"name": "f", "arguments": {"a": "', TOOLS),
    "after a call": (F + " text that is held: ", TOOLS),
    "undeclared call": ("<tool_call>\n<function=other>\n<parameter=a>\n", TOOLS),
    "call in reasoning": (F, THINKING),
    "broken call": ('<tool_call>{"x" ', TOOLS),
}
WORDS = {
    "words": "word <b> </par ST",
    "brackets": "<",
    "half tags": "<tool_cal",
    "long names": "<parameter=" + "y" * 20,
    "opening lines": "\n<parameter=b>",
    "closing tags": "</parameter>",
    "ends of calls": "</parameter></function></tool_call>x",
    "openings of calls": '<tool_call>{"',
    "escapes": "\\n\n",
    "white space": " ",
    "calls": F,
}
HELD_CHARACTERS = 400
"""More than the longest tag and the longest of `WORDS`."""


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("opening, parse", OPENINGS.values(), ids=OPENINGS)
def test_nothing_that_is_read_again_grows_with_the_answer(opening: str, parse: ParseConfig, word: str) -> None:
    channels = Channels(parse, lambda: "call")
    channels.feed(opening)
    for _ in range(5 * HELD_CHARACTERS // len(word)):
        channels.feed(word)
    assert _longest_kept_string(channels) < HELD_CHARACTERS


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("opening, parse", OPENINGS.values(), ids=OPENINGS)
def test_answer_of_eight_times_the_tokens_takes_eight_times_the_steps(
    opening: str, parse: ParseConfig, word: str
) -> None:
    tokenizer = PieceTokenizer([opening.encode() or b".", word.encode()])
    for terminal in (STOP, LENGTH):
        steps: list[int] = []
        for tokens in (20, 160):
            numbers = itertools.count()
            source = iter([Token(0), *(Token(1) for _ in range(tokens)), terminal])
            answer = assemble(source, tokenizer, parse, lambda numbers=numbers: f"call_{next(numbers)}")
            steps.append(_steps_of(lambda answer=answer: list(answer)))
        assert steps[1] <= 8.3 * steps[0]


def _steps_of(work: Callable[[], object]) -> int:
    """How many functions, Python's and C's, `work` calls."""
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # its callbacks would be counted, too
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return steps


def _longest_kept_string(root: object) -> int:
    """The longest string reachable from the object. What came in pieces is kept in pieces: a long one was joined on the
    way, and would be again with each token."""
    longest, seen, todo = 0, set[int](), [root]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, str):
            longest = max(longest, len(value))
        elif isinstance(value, list | tuple):
            todo += cast("list[object]", value)
        elif type(value).__module__.startswith("serve."):
            slots: tuple[str, ...] = getattr(type(value), "__slots__", ())
            todo += [*getattr(value, "__dict__", {}).values(), *(getattr(value, name) for name in slots)]
    return longest
