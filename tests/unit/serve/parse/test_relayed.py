"""The few fields that are read of a request for an upstream's own Responses API."""

from __future__ import annotations

from typing import Any

import pytest

from serve.parse.relayed import parse_relayed
from serve.request import BadRequest

ADD = {"type": "function", "name": "add"}


def test_nothing_is_asked_for_but_what_is_there() -> None:
    fields = parse_relayed({"input": 5, "prompt": {"id": "p"}, "odd": [None]})
    assert (fields.stream, fields.background, fields.names_response, fields.check, fields.call_due) == (
        False, False, False, None, False,
    )  # fmt: skip
    fields = parse_relayed({"stream": None, "background": None, "max_output_tokens": None, "text": None, "tools": None})
    assert not fields.stream


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_what_an_upstream_keeps_is_named(name: str) -> None:
    assert parse_relayed({name: "x"}).names_response
    assert parse_relayed({"conversation": {"id": "x"}}).names_response


@pytest.mark.parametrize(
    ("body", "due"),
    [
        ({"tool_choice": "required", "tools": [ADD]}, True),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": "required", "tools": [ADD, {"type": "web_search"}]}, False),
        ({"tool_choice": "auto", "tools": [ADD]}, False),
        ({"tool_choice": {"type": "function", "name": "add"}}, True),
        ({"tool_choice": {"type": "web_search"}}, False),
    ],
)
def test_a_function_must_be_called_where_nothing_else_can_be(body: dict[str, Any], due: bool) -> None:
    assert parse_relayed(body).call_due is due


def test_formats_that_can_be_checked_are() -> None:
    def check(form: object) -> Any:
        return parse_relayed({"text": {"format": form}}).check

    assert check({"type": "text"}) is None
    assert check({"type": "grammar", "definition": "x"}) is None
    assert check("odd") is None
    made = check({"type": "json_object"})
    made.feed("[]")
    assert made.verdict("stop") is not None
    made = check({"type": "json_schema", "name": "n", "schema": {"type": "object", "required": ["a"]}, "strict": True})
    made.feed('{"a": 1}')
    assert made.verdict("stop") is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stream": 1}, "stream"),
        ({"background": "yes"}, "background"),
        ({"max_output_tokens": 1.5}, "max_output_tokens"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"model": ["m"]}, "model"),
        ({"background": True, "stream": True}, "stream"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": 5}}}}, "text.format.schema"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse_relayed(body)
    assert raised.value.param == param
    assert raised.value.message.startswith(param)
