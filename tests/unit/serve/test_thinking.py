"""Where the end of the thinking goes in: at the budget, unless the model was there before."""

from __future__ import annotations

import pytest

from serve.thinking import END, MAX_REST_TOKENS, ThinkingBudget
from serve.tokenizer import ByteTokenizer

CLOSING = list(b"\n</think>\n\n")
TOKENIZER = ByteTokenizer()
IM_END = TOKENIZER.specials["<|im_end|>"]


def budget(tokens: int) -> ThinkingBudget:
    return ThinkingBudget(TOKENIZER, tokens, CLOSING, TOKENIZER.end_ids)


def cut_after(limit: ThinkingBudget, tokens: bytes | list[int]) -> int | None:
    """After how many tokens the end goes in, once."""
    found = [count for count, token in enumerate(tokens, 1) if (put_in := limit.after(token)) and put_in == CLOSING]
    assert len(found) <= 1, found
    return found[0] if found else None


@pytest.mark.parametrize("tokens", [1, 2, 7, 20])
def test_the_end_goes_in_after_the_budgets_last_token(tokens: int) -> None:
    assert cut_after(budget(tokens), b"hm " * 20) == tokens


def test_thinking_that_ended_in_time_is_left_alone() -> None:
    for text in (b"so</think>\n\n" + b"an answer " * 20, b"</think>x" * 20):
        limit = budget(len(text.partition(END)[0]) + len(END))
        assert cut_after(limit, text) is None


def test_an_end_that_comes_a_token_too_late_is_cut() -> None:
    text = b"so</think> and so on"
    assert cut_after(budget(9), text) == 9


def test_an_end_token_before_the_budget_is_the_models_own_end() -> None:
    assert cut_after(budget(3), [*b"hm", IM_END, *b"more"]) is None


@pytest.mark.parametrize("character", ["é", "€", "😀"])
def test_a_character_is_not_cut(character: str) -> None:
    size = len(character.encode())
    for inside in range(1, size):
        assert cut_after(budget(2 + inside), f"hm{character}, and so on".encode()) == 2 + size


@pytest.mark.parametrize(
    "odd", [b"\xff" * 20, b"\x80" * 20, b"\xf0" * 20, b"\xe2\x82" * 10], ids=["never", "inside", "begun", "half"]
)
def test_bytes_that_are_no_text_are_cut_at_once_or_soon(odd: bytes) -> None:
    limit = budget(5)
    at = cut_after(limit, odd)
    assert at is not None
    assert 5 <= at <= 5 + MAX_REST_TOKENS == limit.within


def test_a_token_that_does_not_exist_ends_the_watch() -> None:
    assert cut_after(budget(2), [104, 9_999, 104, 104]) is None
