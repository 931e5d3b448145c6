"""Any text, any cut: the same as whole, and what the slow reading of the rules says."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from engine.events import Failed, FailKind, Finished, Terminal
from serve.assemble import ParseConfig
from tests.unit.serve.assemble.dialogue import Said, config, events, said
from tests.unit.serve.assemble.generated import (
    TERMINALS,
    F,
    G,
    Written,
    answers,
    configs,
    how_many,
    odd_texts,
    pieces,
    text_of,
    thorough,
)
from tests.unit.serve.assemble.reference import expected


def check_ending(whole: Said, terminal: Terminal, parse: ParseConfig) -> None:
    """Success only where the engine said so and all calls are whole."""
    if isinstance(whole.terminal, Finished) and whole.terminal.reason != "length":
        assert terminal == Finished("stop") or whole.terminal.stop_sequence
        assert all(ended for _, _, ended in whole.calls)
        assert (whole.terminal.reason == "tool_calls") == bool(whole.calls)
    elif isinstance(whole.terminal, Failed) and whole.terminal.kind is FailKind.TOOL_CALL:
        assert terminal == Finished("stop") or parse.stop
    else:
        assert whole.terminal == terminal


def is_subsequence(part: str, text: str) -> bool:
    rest = iter(text)
    return all(char in rest for char in part)


def without_words(terminal: Terminal | None) -> Terminal | None:
    """A broken call's message is for people: only its kind is compared."""
    broken = isinstance(terminal, Failed) and terminal.kind is FailKind.TOOL_CALL
    return Failed(FailKind.TOOL_CALL, "") if broken else terminal


@how_many
def test_any_text_in_any_cut_comes_out_as_the_rules_say(examples: int) -> None:
    @thorough(examples)
    @given(pieces(), configs, st.sampled_from(TERMINALS))
    def check(cut: list[bytes], parse: ParseConfig, terminal: Terminal) -> None:
        data = b"".join(cut)
        whole = said(events([data], parse, terminal))
        assert said(events(cut, parse, terminal)) == whole
        check_ending(whole, terminal, parse)
        assert is_subsequence(whole.reasoning + whole.text, data.decode("utf-8", "replace"))
        for _, arguments, ended in whole.calls:
            assert not ended or isinstance(json.loads(arguments), dict)
        slow, told = expected(data, parse, terminal)
        assert without_words(whole.terminal) in (slow.terminal, told)
        assert (whole.text, whole.reasoning, whole.calls) == (slow.text, slow.reasoning, slow.calls)
        assert whole.order == slow.order

    check()


@how_many
def test_any_dialogue_comes_out_as_it_was_written(examples: int) -> None:
    @thorough(examples)
    @given(st.none() | odd_texts, answers(), st.integers(1, 9))
    def check(thought: str | None, answer: list[Written], size: int) -> None:
        data = text_of(thought, answer).encode("utf-8", "replace")
        tokens = [data[at : at + size] for at in range(0, len(data), size)]
        made = said(events(tokens, config(thinking=thought is not None, tools=(F, G))))
        calls = [part.call for part in answer if part.call is not None]
        assert [(name, json.loads(text)) for name, text, _ in made.calls] == calls
        assert made.terminal == Finished("tool_calls" if calls else "stop")

    check()
