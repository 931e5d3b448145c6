"""Chunks joined to one body: texts, calls, logprobs and whatever else servers add."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from engine.chat_body import ChatBody, json_bytes
from engine.events import Usage

HEAD: dict[str, Any] = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
COUNTED = Usage(3, 2)


def chunk(delta: Any, finish: Any = None, index: int = 0, choice: Any = None, **more: Any) -> dict[str, Any]:
    choices: list[Any] = [{"index": index, "delta": delta, "finish_reason": finish, **(choice or {})}]
    return {**HEAD, "choices": choices, **more}


def body(*chunks: dict[str, Any], usage: Usage = COUNTED) -> Any:
    made = ChatBody()
    for one in chunks:
        made.add(one)
    raw = made.json(usage)
    assert raw.isascii()
    return json.loads(raw)


FIRST = chunk({"role": "assistant", "content": ""})


def test_texts_are_joined_and_the_form_is_that_of_a_body() -> None:
    made = body(FIRST, chunk({"content": "Hel"}), chunk({"content": "lo \u2028😀"}), chunk({}, "stop"))
    assert made == {
        "id": "c1",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello \u2028😀", "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def test_the_upstreams_own_usage_stays_as_it_is() -> None:
    told = {"prompt_tokens": 9, "completion_tokens": 1, "odd": {"a": 1}}
    assert body(FIRST, chunk({}, "stop", usage=None), {**HEAD, "choices": [], "usage": told})["usage"] == told
    assert body(FIRST, chunk({}, "stop", usage={}))["usage"]["total_tokens"] == 5


def test_unknown_members_are_kept_wherever_they_stand() -> None:
    made = body(
        chunk(
            {"role": "assistant", "content": "", "audio": {"id": "a", "data": "x"}},
            system_fingerprint="fp",
            timings=None,
        ),
        chunk(
            {"content": "x", "details": [{"n": 1}]}, choice={"token_ids": [1], "stop_reason": None}, timings={"n": 1}
        ),
        chunk({"details": [{"n": 2}], "audio": {"data": "y"}}, choice={"token_ids": [2, 3]}, timings={"n": 2}),
        chunk({}, "stop", choice={"stop_reason": 7}, system_fingerprint="fp"),
    )
    assert (made["system_fingerprint"], made["timings"]) == ("fp", {"n": 2})
    (choice,) = made["choices"]
    assert (choice["token_ids"], choice["stop_reason"]) == ([1, 2, 3], 7)
    assert choice["message"]["details"] == [{"n": 1}, {"n": 2}]
    assert choice["message"]["audio"] == {"id": "a", "data": "xy"}


def test_a_role_in_every_chunk_is_one_role() -> None:
    made = body(*[chunk({"role": "assistant", "content": text}) for text in "ab"], chunk({"role": None}, "stop"))
    assert made["choices"][0]["message"] == {"role": "assistant", "content": "ab", "refusal": None}


def test_reasoning_is_beside_the_text_and_an_answer_without_text_is_empty() -> None:
    made = body(
        chunk({"role": "assistant", "content": None, "reasoning_content": "h"}),
        chunk({"reasoning_content": "m"}, "length"),
    )
    message = made["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "")


def call(index: int, arguments: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({} if name is None else {"name": name})}
    return {
        "index": index,
        **({} if name is None else {"id": f"call_{index}", "type": "function"}),
        "function": function,
        **more,
    }


def test_calls_are_joined_by_index_and_lose_it() -> None:
    made = body(
        FIRST,
        chunk({"tool_calls": [call(0, "", "add", odd=1)]}),
        chunk({"tool_calls": [call(0, '{"a": '), call(1, "{", "sub")]}),
        chunk({"tool_calls": [call(1, "}"), call(0, "1}")], "content": None}),
        chunk({"tool_calls": None}, "tool_calls"),
    )
    message = made["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "call_0", "type": "function", "odd": 1, "function": {"arguments": '{"a": 1}', "name": "add"}},
        {"id": "call_1", "type": "function", "function": {"arguments": "{}", "name": "sub"}},
    ]


@pytest.mark.parametrize("function", [{"name": "add"}, {"name": "add", "arguments": None}], ids=["none", "null"])
def test_a_call_whose_arguments_never_began_has_empty_ones(function: dict[str, Any]) -> None:
    begun = {"index": 0, "id": "call_0", "type": "function", "function": function}
    made = body(FIRST, chunk({"tool_calls": [begun]}), chunk({}, "length"))
    assert made["choices"][0]["message"]["tool_calls"] == [
        {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": ""}}
    ]


def test_a_name_in_pieces_and_a_legacy_call_are_joined() -> None:
    made = body(
        FIRST,
        chunk({"tool_calls": [call(0, "", "we")]}),
        chunk({"tool_calls": [{"index": 0, "function": {"name": "ather"}}]}),
    )
    assert made["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": ""}
    made = body(
        FIRST,
        chunk({"function_call": {"name": "f", "arguments": ""}}),
        chunk({"function_call": {"arguments": "{}"}}, "function_call"),
    )
    assert made["choices"][0]["message"]["function_call"] == {"name": "f", "arguments": "{}"}


def test_logprobs_are_joined_and_what_was_given_is_not_changed() -> None:
    def probs(token: str) -> dict[str, Any]:
        return {"logprobs": {"content": [{"token": token}], "refusal": None}}

    given = [chunk({"content": text}, choice=probs(text)) for text in "ab"]
    made = body(FIRST, *given, chunk({}, "stop", choice={"logprobs": None}))
    assert made["choices"][0]["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}], "refusal": None}
    assert given[0]["choices"][0]["logprobs"] == probs("a")["logprobs"]


def test_two_choices_are_two_and_in_order() -> None:
    made = body(
        chunk({"role": "assistant", "content": "x"}, index=1),
        chunk({"role": "assistant", "content": "a"}),
        chunk({"content": "y"}, "length", index=1),
        chunk({"content": "b"}, "stop"),
    )
    assert [(one["index"], one["message"]["content"], one["finish_reason"]) for one in made["choices"]] == [
        (0, "ab", "stop"),
        (1, "xy", "length"),
    ]


def test_json_is_what_every_reader_takes() -> None:
    assert json_bytes({"a": [math.inf, -math.inf, math.nan, 1.5]}) == b'{"a": [null, -9999.0, null, 1.5]}'
    assert json_bytes("\u2028\ud83d\ude00") == b'"\\u2028\\ud83d\\ude00"'
