"""What is to be run for prompts that are no chats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from engine.api import CompletionRequest, Engine, EngineInfo, TokenRequest
from serve.parse.completions import parse_completions
from serve.planning import Plan, Planner
from serve.request import BadRequest, CompletionsRequest
from serve.template import ChatTemplate
from serve.tokenizer import ByteTokenizer

CONTEXT = 100


class Facts:
    """The part of an engine that is planned with."""

    def __init__(self, speaks: str = "tokens", context: int | None = CONTEXT, vocab: int | None = None) -> None:
        self.facts = EngineInfo("fake", "m", speaks, 1, context, vocab)  # type: ignore[arg-type] - the literals' values


def plan(engine: Facts | None = None, **body: Any) -> Plan:
    return plan_of(parse_completions({"prompt": "hi", **body}), engine)


def plan_of(request: CompletionsRequest, engine: Facts | None = None) -> Plan:
    made = Planner(cast("Engine", engine or Facts()), ByteTokenizer(), ChatTemplate(), {"top_k": 1, "seed": 1})
    return made.completions(request)


def tokens(made: Plan) -> TokenRequest:
    assert isinstance(made.request, TokenRequest)
    return made.request


def test_a_text_is_tokenized_as_it_is_and_token_ids_are_passed() -> None:
    assert tokens(plan(prompt="ab")).ids == (97, 98)
    assert tokens(plan(prompt="<|im_end|>a")).ids == (257, 97)
    assert tokens(plan(prompt=[1, 258])).ids == (1, 258)
    made = plan(prompt="ab", stop=["X"], temperature=0.5, seed=7)
    assert made.prompt_tokens == 2
    assert made.parse is not None
    assert (made.parse.plain, made.parse.stop, made.parse.tools, made.parse.thinking) == (True, ("X",), (), False)
    assert made.parse.end_ids == ByteTokenizer().end_ids
    assert tokens(made).sampling == {"top_k": 1, "seed": 7, "temperature": 0.5}


def test_a_list_is_planned_prompt_by_prompt() -> None:
    made = plan(prompt=["a", [98, 98], "ccc"])
    assert [tokens(one).ids for one in (made, *made.more)] == [(97,), (98, 98), (99, 99, 99)]
    assert plan(prompt=["a"]).more == ()


def test_the_limit_is_sixteen_what_is_asked_for_or_the_room() -> None:
    assert tokens(plan()).max_tokens == 16
    assert tokens(plan(prompt="x" * 90)).max_tokens == 10
    assert tokens(plan(max_tokens=98)).max_tokens == 98
    assert tokens(plan(max_tokens=-1)).max_tokens == 98
    assert tokens(plan(Facts(context=None), max_tokens=5_000)).max_tokens == 5_000
    with pytest.raises(BadRequest, match="max_tokens: 99 exceeds the 98 tokens left") as raised:
        plan(max_tokens=99)
    assert (raised.value.param, raised.value.code) == ("max_tokens", "context_length_exceeded")


def test_a_prompt_that_does_not_fit_is_refused_with_its_path() -> None:
    for prompt, param in (("x" * CONTEXT, "prompt"), (["a", "x" * CONTEXT], "prompt[1]")):
        with pytest.raises(BadRequest, match="the prompt has 100 tokens and the context only 100") as raised:
            plan(prompt=prompt)
        assert (raised.value.param, raised.value.code) == (param, "context_length_exceeded")


def test_token_ids_outside_the_vocabulary_are_refused_with_their_path() -> None:
    for prompt, param in (([1, 259], "prompt[1]"), (["a", [259]], "prompt[1][0]")):
        with pytest.raises(BadRequest, match="send ids below 259") as raised:
            plan(prompt=prompt)
        assert raised.value.param == param
    with pytest.raises(BadRequest, match="send ids below 200"):
        plan(Facts(vocab=200), prompt=[200])


@pytest.mark.parametrize(("name", "value"), [("n", 2), ("logprobs", 0), ("logit_bias", {"1": 1})])
def test_what_only_other_engines_can_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as raised:
        plan(**{name: value})
    assert raised.value.param == name
    assert plan(Facts("chat"), **{name: value}).parse is None


def test_an_engine_that_speaks_chat_gets_one_prompt_at_a_time_and_every_other_field() -> None:
    request = parse_completions({"prompt": ["a", [999_999]], "n": 2, "odd": 1, "stream": True})
    made = plan_of(replace(request, headers={"x": "y"}), Facts("chat"))
    assert made.choices == 2
    sent = [one.request for one in (made, *made.more)]
    assert sent == [
        CompletionRequest({"n": 2, "odd": 1, "prompt": prompt}, {"x": "y"}, 2) for prompt in ("a", (999_999,))
    ]
