"""Counts: the upstream's own where it gives them, and one for each delta that said something."""

from __future__ import annotations

from collections.abc import Mapping

from engine.events import Progress, Reasoning, Text, ToolCallArgs, Usage
from engine.token_counts import TokenCounts, usage_json


def counts(*chunks: Mapping[str, object]) -> TokenCounts:
    made = TokenCounts()
    for chunk in chunks:
        made.read(chunk)
    return made


def test_deltas_count_where_nothing_is_told() -> None:
    made = counts()
    made.add([Text("a")])
    made.add([Reasoning("b")])
    made.add([Reasoning("c"), Text("d")])
    made.add([ToolCallArgs(0, "{}")])
    made.add_texts(3, reasoning=False)
    made.add_texts(2, reasoning=True)
    assert made.usage(final=False) == made.usage(final=True) == Usage(0, 9, 0, 3)


def test_what_is_told_before_the_end_is_no_upper_limit() -> None:
    told = {"usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    made = counts(told)
    made.add_texts(4, reasoning=False)
    assert made.usage(final=False) == Usage(5, 4)
    assert made.usage(final=True) == Usage(5, 2)


def test_timings_are_exact_at_any_time() -> None:
    made = counts({"timings": {"cache_n": 3, "prompt_n": 4, "predicted_n": 6}})
    made.add_texts(9, reasoning=False)
    assert made.usage(final=False) == Usage(7, 6, 3)


def test_progress_says_how_long_the_prompt_is() -> None:
    made = counts()
    made.progress(Progress(4, 9))
    assert made.usage(final=False) == Usage(9, 0)


def test_the_counts_as_json() -> None:
    assert usage_json(Usage(5, 4, 3, 2)) == {
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
