"""Counts: the upstream's own where it gives them, and one for each delta that said something."""

from __future__ import annotations

from collections.abc import Mapping

from engine.events import Progress, Reasoning, Text, ToolCallArgs, Usage
from engine.token_counts import AnswerCounts, TokenCounts, usage_json


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


def test_who_told_what_of_a_choice_is_known() -> None:
    made = TokenCounts()
    assert (made.is_told, made.has_usage, made.made) == (True, False, 0)
    made.add([Text("a")])
    assert (made.is_told, made.has_usage, made.made) == (False, False, 1)
    made.read({"timings": {"predicted_n": 1}})
    assert (made.is_told, made.has_usage) == (True, False)
    made.read({"usage": {"completion_tokens": 1}})
    assert (made.is_told, made.has_usage) == (True, True)


def told(completion: int) -> dict[str, dict[str, object]]:
    return {"usage": {"prompt_tokens": 5, "completion_tokens": completion}}


def test_an_only_choice_has_all_that_is_told() -> None:
    made = AnswerCounts(1)
    made.add_texts(3, reasoning=False)
    assert made.usage(final=False) == Usage(0, 3)
    made.read(told(2), [(0, {"finish_reason": "stop"})])
    assert (made.usage(final=False), made.usage(final=True)) == (Usage(5, 3), Usage(5, 2))
    last = told(4)
    made.read(last)
    assert made.usage(final=True) == Usage(5, 4)
    assert made.together(last["usage"]) is last["usage"]


def test_what_choices_made_is_added_up_and_their_prompt_is_one() -> None:
    made = AnswerCounts(3)
    for index in (0, 2):
        made.of(index).add([Text("a")])
        made.of(index).add([Reasoning("b")])
        made.of(index).progress(Progress(4, 9))
    assert made.usage(final=False) == made.usage(final=True) == Usage(9, 4, 0, 2)


def test_a_usage_behind_the_end_of_a_choice_is_its_own_while_others_go_on_and_after_that() -> None:
    made = AnswerCounts(2)
    first, second = told(2), told(3)
    made.read({}, [(1, {"finish_reason": "stop"})])
    made.read(first)
    assert made.together(first["usage"]) is first["usage"]
    made.read({}, [(0, {"finish_reason": "stop"})])
    made.read(second)
    assert made.together(second["usage"]) == {"prompt_tokens": 5, "completion_tokens": 5}
    assert made.usage(final=True) == Usage(5, 5)
    made.read(told(9))  # not behind an end: of all
    assert made.usage(final=True) == Usage(5, 9)


def test_a_usage_behind_the_last_end_is_of_all_where_others_had_none() -> None:
    made = AnswerCounts(2)
    for index in (0, 1):
        made.of(index).add_texts(4, reasoning=False)
        made.read({}, [(index, {"finish_reason": "stop"})])
    made.read(told(7))
    assert made.usage(final=True) == Usage(5, 7)


def test_choices_that_were_not_asked_for_do_not_count() -> None:
    made = AnswerCounts(2)
    made.read(told(2), [(0, {})])
    made.read(told(50), [(2, {"finish_reason": "stop"})])
    made.read(told(60), [(-1, {})])
    assert made.usage(final=False) == Usage(5, 2)


def test_the_counts_as_json() -> None:
    assert usage_json(Usage(5, 4, 3, 2)) == {
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
