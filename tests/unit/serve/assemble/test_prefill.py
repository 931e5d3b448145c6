"""An answer that the prompt already begins: a tool call that is forced."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.events import (
    Accepted,
    EngineEvent,
    Event,
    Failed,
    FailKind,
    Finished,
    Terminal,
    Text,
    Tick,
    Token,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from serve.assemble import ParseConfig, ToolSpec, assemble
from serve.tokenizer import ByteTokenizer
from tests.unit.serve.assemble.dialogue import config, events, said
from tests.unit.serve.assemble.generated import EXAMPLES, TERMINALS, F, G, pieces, thorough
from tests.unit.serve.assemble.reference import expected

NAMED = "<tool_call>\n<function=f>\n"
JSON_NAMED = '<tool_call>\n{"name": "f", "arguments": '
ANY = "<tool_call>\n"


def answer(prefill: str, text: str, terminal: EngineEvent) -> list[Event]:
    tokenizer = ByteTokenizer()
    tokens = [Token(id_) for id_ in text.encode()]
    config = ParseConfig(tools=(ToolSpec("f"),), end_ids=frozenset(tokenizer.end_ids), prefill=prefill)
    made = assemble(iter([Accepted(), *tokens, terminal]), tokenizer, config, lambda: "call_1", 7)
    return [event for event in made if not isinstance(event, Tick)]


@pytest.mark.parametrize(
    ("prefill", "text"),
    [
        (NAMED, "<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
        (JSON_NAMED, '{"a": "1"}}\n</tool_call>'),
        (ANY, '{"name": "f", "arguments": {"a": "1"}}\n</tool_call>'),
    ],
    ids=["function", "json", "any"],
)
def test_the_rest_of_a_forced_call_makes_it_whole_and_counts_alone(prefill: str, text: str) -> None:
    events = answer(prefill, text, Finished("stop"))
    assert events[1] == ToolCallStart(0, "call_1", "f")
    assert "".join(event.text for event in events if isinstance(event, ToolCallArgs)) == '{"a": "1"}'
    assert events[-2] == ToolCallEnd(0)
    assert events[-1] == Finished("tool_calls", Usage(7, len(text)))


@pytest.mark.parametrize("said", ["<b>Done</b>", "<tool_call>\nis a tag", "<", "{", "<tool_call>\n<function=g>\n"])
def test_text_after_the_forced_call_is_whole_although_it_begins_as_the_prompt_did(said: str) -> None:
    call = '{"name": "f", "arguments": {"a": "1"}}\n</tool_call>'
    events = answer(ANY, f"{call}{said}", Finished("length"))
    assert "".join(event.text for event in events if isinstance(event, Text)) == said


@pytest.mark.parametrize("prefill", [NAMED, JSON_NAMED, ANY])
def test_an_engine_that_fails_before_its_first_token_made_nothing(prefill: str) -> None:
    failed = Failed(FailKind.DIED, "gone")
    assert answer(prefill, "", failed) == [Accepted(), Failed(FailKind.DIED, "gone", Usage(7))]


@pytest.mark.parametrize("prefill", [NAMED, JSON_NAMED, ANY])
def test_a_model_that_ends_its_turn_at_once_left_the_call_open(prefill: str) -> None:
    *pieces, last = answer(prefill, "", Finished("stop"))
    assert pieces == [Accepted()]
    assert isinstance(last, Failed)
    assert last.kind is FailKind.TOOL_CALL


def test_a_forced_call_cut_in_its_arguments_is_open() -> None:
    events = answer(NAMED, "<parameter=a>\n1", Finished("length"))
    assert events[1] == ToolCallStart(0, "call_1", "f")
    assert not any(isinstance(event, ToolCallEnd | Text) for event in events)
    assert events[-1] == Finished("length", Usage(7, 15))


@pytest.mark.parametrize("prefill", [NAMED, ANY])
@pytest.mark.parametrize("terminal", [Finished("stop"), Failed(FailKind.DIED, "gone")], ids=["stop", "died"])
def test_prose_instead_of_a_call_is_shown_as_the_model_wrote_it(prefill: str, terminal: EngineEvent) -> None:
    events = answer(prefill, "Sure, here", terminal)
    shown = "".join(event.text for event in events if isinstance(event, Text))
    assert shown in ("Sure, here", "")  # a named call has begun: what follows its name is arguments, or nothing
    assert shown or prefill is NAMED


@thorough(EXAMPLES)
@given(st.sampled_from([NAMED, JSON_NAMED, ANY]), pieces(), st.sampled_from(TERMINALS))
def test_any_forced_answer_is_what_prompt_and_text_say_together_without_the_prompts_own(
    prefill: str, cut: list[bytes], terminal: Terminal
) -> None:
    parse = config(tools=(F, G))
    made = said(events(cut, replace(parse, prefill=prefill), terminal))
    whole = said(events(cut and [b"".join(cut)], replace(parse, prefill=prefill), terminal))
    assert made == whole
    if not cut:
        return
    slow, _ = expected(prefill.encode() + b"".join(cut), parse, terminal)
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(slow.text, prefill, strict=False))
    begun = len(list(pairs)) if slow.order[:1] == ("Text",) else 0
    assert (made.text, made.reasoning, made.calls) == (slow.text[begun:], "", slow.calls)
    assert made.terminal == slow.terminal or isinstance(made.terminal, Failed)
