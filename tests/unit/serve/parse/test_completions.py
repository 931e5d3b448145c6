"""Completions requests: prompts in all their forms, what is passed on, and what is refused by name."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from openai.types.completion_create_params import CompletionCreateParamsStreaming

from serve.parse.completion_fields import MOVED, NO_EFFECT, REFUSED, SUPPORTED
from serve.parse.completions import parse_completions
from serve.request import BadRequest


def refused(param: str, **body: Any) -> str:
    with pytest.raises(BadRequest) as raised:
        parse_completions({"prompt": "hi", **body})
    assert raised.value.param == param
    assert raised.value.status == 400
    assert raised.value.message.startswith(param)
    return raised.value.message


def test_every_field_of_the_api_is_in_exactly_one_table() -> None:
    tables: list[set[str]] = [
        {name.partition(".")[0] for name in table} for table in (SUPPORTED, {*NO_EFFECT}, {*REFUSED}, {*MOVED})
    ]
    tables[1].discard("stream_options")  # some of its members are in each
    every = {name for table in tables for name in table}
    assert set(get_type_hints(CompletionCreateParamsStreaming)) <= every
    assert sum(map(len, tables)) == len(every)


@pytest.mark.parametrize(
    ("prompt", "prompts", "paths"),
    [
        ("hi", ("hi",), ["prompt"]),
        ([1, 2], ((1, 2),), ["prompt"]),
        (["hi"], ("hi",), ["prompt[0]"]),
        ([[1, 2]], ((1, 2),), ["prompt[0]"]),
        (["a", "b"], ("a", "b"), ["prompt[0]", "prompt[1]"]),
        ([[0], "b", [2**31 - 1]], ((0,), "b", (2**31 - 1,)), ["prompt[0]", "prompt[1]", "prompt[2]"]),
    ],
)
def test_a_prompt_is_a_text_or_token_ids_or_a_list_of_them(prompt: Any, prompts: Any, paths: list[str]) -> None:
    request = parse_completions({"prompt": prompt})
    assert request.prompts == prompts
    assert [request.where(i) for i in range(len(prompts))] == paths


BAD_PROMPTS: list[tuple[Any, str]] = [
    (None, "prompt"),
    (1, "prompt"),
    (True, "prompt"),
    ("", "prompt"),
    ([], "prompt"),
    ({"text": "hi"}, "prompt"),
    ([None], "prompt[0]"),
    (["a", ""], "prompt[1]"),
    (["a", []], "prompt[1]"),
    (["a", 1], "prompt[1]"),
    ([1, "a"], "prompt[1]"),
    ([[1, "a"]], "prompt[0][1]"),
    ([[1, -1]], "prompt[0][1]"),
    ([[1, 2**31]], "prompt[0][1]"),
    ([[1, True]], "prompt[0][1]"),
    ([1, 1.0], "prompt[1]"),
    ([True], "prompt[0]"),
    (["a"] * 1025, "prompt"),
]


@pytest.mark.parametrize(("prompt", "param"), BAD_PROMPTS)
def test_what_is_no_prompt_is_refused_with_its_path(prompt: Any, param: str) -> None:
    refused(param, prompt=prompt)


def test_a_missing_prompt_is_required() -> None:
    with pytest.raises(BadRequest, match="prompt: required"):
        parse_completions({})


def test_the_fields_are_read_and_the_rest_is_passed_on() -> None:
    request = parse_completions(
        {
            "prompt": "hi",
            "model": "m",
            "max_tokens": 5,
            "temperature": 0.5,
            "seed": 3,
            "presence_penalty": 1,
            "stop": "X",
            "n": 2,
            "logprobs": 0,
            "logit_bias": {"1": 1},
            "user": "u",
            "odd": [1],
            "echo": False,
            "suffix": "",
            "best_of": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    assert request.body == {
        "model": "m",
        "max_tokens": 5,
        "temperature": 0.5,
        "seed": 3,
        "presence_penalty": 1,
        "stop": "X",
        "n": 2,
        "logprobs": 0,
        "logit_bias": {"1": 1},
        "user": "u",
        "odd": [1],
    }
    assert request.sampling == {"temperature": 0.5, "seed": 3, "penalty_present": 1}
    assert (request.max_tokens, request.stop, request.choices) == (5, ("X",), 2)
    assert (request.logprobs, request.stream, request.include_usage) == (True, True, True)


def test_what_is_left_out_or_null_asks_for_nothing() -> None:
    nulls: Any = dict.fromkeys((*REFUSED, *MOVED, "n", "stream", "stop", "logprobs"))
    bodies: list[Any] = [{"prompt": "hi"}, {"prompt": "hi", **nulls}]
    for body in bodies:
        request = parse_completions(body)
        assert (request.max_tokens, request.stop, request.choices, request.sampling) == (None, (), 1, {})
        assert (request.logprobs, request.stream, request.include_usage) == (False, False, False)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        *[("echo", value) for value in (True, 1, "yes")],
        *[("suffix", value) for value in ("x", 1, ["x"])],
        *[("best_of", value) for value in (2, 0, "1")],
        *[(name, [1]) for name in MOVED],
        ("n", 0),
        ("n", 129),
        ("n", "x"),
        ("max_tokens", 0),
        ("max_tokens", -2),
        ("max_tokens", 1.5),
        ("logprobs", -1),
        ("logprobs", 21),
        ("logprobs", True),
        ("logit_bias", [1]),
        ("temperature", 2.1),
        ("top_p", -1),
        ("stop", 1),
        ("stream", "yes"),
        ("stream_options", True),
        ("model", 1),
    ],
)
def test_what_is_not_supported_or_wrong_is_refused_by_name(param: str, value: Any) -> None:
    refused(param, **{param: value})


def test_several_answers_to_several_prompts_have_a_limit_together() -> None:
    assert parse_completions({"prompt": ["a"] * 64, "n": 2}).choices == 2
    assert "in all" in refused("n", prompt=["a"] * 65, n=2)
    assert len(parse_completions({"prompt": ["a"] * 1024}).prompts) == 1024
