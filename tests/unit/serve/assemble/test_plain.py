"""A raw text is the answer: no tag in it means anything, however it comes in tokens; stops and end tokens do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events import EngineEvent, Event, Finished, Reasoning, Text, Tick, Token, Usage
from serve.assemble import ParseConfig, assemble
from serve.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
END = TOKENIZER.specials["<|im_end|>"]
PIECES = ("<think>", "</think>", "\n", "<tool_call>", "<function=add>", "</tool_call>", '{"name": "add"}', "ß😀", " ")


def read(text: str, *, plain: bool = True, stop: tuple[str, ...] = (), ends: bool = True) -> list[Event]:
    ids = [*TOKENIZER.encode(text), *([END] if ends else [])]
    source: list[EngineEvent] = [*map(Token, ids), Finished("stop" if ends else "length")]
    config = ParseConfig(stop=stop, end_ids=frozenset({END}), plain=plain)
    made = assemble(iter(source), TOKENIZER, config, lambda: "call", 3)
    return [event for event in made if not isinstance(event, Tick)]


def said(events: list[Event]) -> str:
    assert all(isinstance(event, Text) for event in events[:-1])
    return "".join(event.text for event in events if isinstance(event, Text))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=8).map("".join), st.booleans())
def test_every_character_is_text(text: str, ends: bool) -> None:
    events = read(text, ends=ends)
    assert said(events) == text
    made = len(text.encode()) + ends
    assert events[-1] == Finished("stop" if ends else "length", Usage(3, made))


def test_a_chats_answer_that_opens_its_thinking_is_another_matter() -> None:
    assert any(isinstance(event, Reasoning) for event in read("<think>Hm", plain=False))


@pytest.mark.parametrize(("stop", "text"), [("</think>", "<think>a"), ("k>\n", "<think>a</thin"), ("X", None)])
def test_a_stop_string_ends_it_wherever_it_stands(stop: str, text: str | None) -> None:
    whole = "<think>a</think>\nb"
    events = read(whole, stop=(stop,))
    assert said(events) == (whole if text is None else text)
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.stop_sequence == (None if text is None else stop)
