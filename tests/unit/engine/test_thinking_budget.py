"""A budget of thinking in the words of the server that gets it."""

from __future__ import annotations

import pytest

from engine.thinking_budget import NAMES, with_budget

Body = dict[str, object]


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_has_a_word_gets_its_own(name: str) -> None:
    body: Body = {"seed": 1, name: 7}
    assert with_budget(body, "llamacpp", None) == {"seed": 1, "reasoning_budget_tokens": 7}
    assert with_budget(body, "vllm", None) == {"seed": 1, "thinking_token_budget": 7}
    assert body == {"seed": 1, name: 7}


@pytest.mark.parametrize("owner", [None, "sglang", "openai", 5])
def test_any_other_server_gets_the_body_as_it_came(owner: object) -> None:
    body: Body = {"thinking_budget_tokens": 7, "thinking_token_budget": None}
    assert with_budget(body, owner, None) == body
    assert with_budget({"seed": 1}, owner, 7) == {"seed": 1}


def test_no_limit_is_a_word_of_llama_cpps_only() -> None:
    assert with_budget({"thinking_token_budget": -1}, "llamacpp", None) == {"reasoning_budget_tokens": -1}
    assert with_budget({"reasoning_budget_tokens": -1}, "vllm", None) == {}
    assert with_budget({"reasoning_budget_tokens": 0}, "vllm", None) == {"thinking_token_budget": 0}


def test_the_first_name_that_is_there_counts() -> None:
    body: Body = {"thinking_token_budget": 3, "thinking_budget_tokens": 2, "reasoning_budget_tokens": None}
    assert with_budget(body, "llamacpp", 9) == {"reasoning_budget_tokens": 2}


def test_a_budget_that_another_api_says_goes_to_llama_cpp_only() -> None:
    assert with_budget({}, "llamacpp", 7) == {"reasoning_budget_tokens": 7}
    assert with_budget({}, "vllm", 7) == {}
    assert with_budget({}, "llamacpp", None) == {}
