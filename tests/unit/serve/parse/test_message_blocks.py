"""Which roles and content blocks are taken, and the paths of their faults."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from anthropic.types import ContentBlockParam
from anthropic.types.beta import BetaContentBlockParam

from serve.parse.message_blocks import SILENT, check_messages, check_system, first_image
from serve.request import BadRequest

IMAGE: dict[str, Any] = {"type": "image", "source": {"type": "url", "url": "http://x/"}}
TAKEN = {"text", "image", "thinking", "tool_use", "tool_result"}
REFUSED = {"document", "search_result", "compaction", "tool_addition", "tool_removal"}


def user(block: Any) -> dict[str, Any]:
    return {"role": "user", "content": [block]}


def assistant(block: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [block]}


def kinds_of(union: Any) -> set[str]:
    annotations = [str(getattr(member, "__annotations__", {}).get("type", "")) for member in get_args(union)]
    return {kind for annotation in annotations for kind in re.findall(r"Literal\[['\"](\w+)", annotation)}


def test_every_kind_of_the_api_is_taken_silent_or_refused() -> None:
    assert kinds_of(ContentBlockParam) | kinds_of(BetaContentBlockParam) == TAKEN | REFUSED | SILENT


@pytest.mark.parametrize("kind", sorted(SILENT))
def test_blocks_of_another_servers_tools_are_taken(kind: str) -> None:
    check_messages([assistant({"type": kind}), user({"type": kind})])


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_what_cannot_be_told_is_refused_by_its_type(kind: str) -> None:
    with pytest.raises(BadRequest) as raised:
        check_messages([user({"type": kind})])
    assert raised.value.param == "messages[0].content[0].type"
    assert repr(kind) in raised.value.message


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({}, "role"),
        ({"role": "developer", "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 5}, "content"),
        (user("x"), "content[0]"),
        (user({}), "content[0].type"),
        (user({"type": 5}), "content[0].type"),
        (user({"type": "text"}), "content[0].text"),
        (user({"type": "thinking", "thinking": "x"}), "content[0].type"),
        (user({"type": "tool_use", "id": "a", "name": "b", "input": {}}), "content[0].type"),
        (assistant({"type": "tool_result", "tool_use_id": "x"}), "content[0].type"),
        (assistant(IMAGE), "content[0].type"),
        (assistant({"type": "thinking"}), "content[0].thinking"),
        (assistant({"type": "tool_use", "id": "a", "name": "b"}), "content[0].input"),
        (assistant({"type": "tool_use", "id": "a", "name": "", "input": {}}), "content[0].name"),
        (assistant({"type": "tool_use", "name": "b", "input": {}}), "content[0].id"),
        (user({"type": "image"}), "content[0].source"),
        (user({"type": "image", "source": {"type": "file", "file_id": "f"}}), "content[0].source.type"),
        (user({"type": "image", "source": {"type": "x"}}), "content[0].source.type"),
        (user({"type": "image", "source": {"type": "url"}}), "content[0].source.url"),
        (user({"type": "image", "source": {"type": "base64", "data": "x"}}), "content[0].source.media_type"),
        (user({"type": "image", "source": {"type": "base64", "media_type": "image/png"}}), "content[0].source.data"),
        (user({"type": "tool_result"}), "content[0].tool_use_id"),
        (user({"type": "tool_result", "tool_use_id": "a", "is_error": "x"}), "content[0].is_error"),
        (
            user({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "document"}]}),
            "content[0].content[0].type",
        ),
        ({"role": "system", "content": [IMAGE]}, "content[0].type"),
    ],
)
def test_a_fault_is_refused_with_its_path(message: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        check_messages([{"role": "user", "content": "x"}, message])
    assert raised.value.param == f"messages[1].{param}"
    assert raised.value.message.startswith(f"messages[1].{param}: ")


def test_a_system_prompt_is_text() -> None:
    check_system(None)
    check_system("x")
    check_system([{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}])
    with pytest.raises(BadRequest, match=r"system\[0\].type"):
        check_system([IMAGE])


def test_the_first_image_is_found_also_in_a_result() -> None:
    nested = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x"}, IMAGE]}
    assert first_image([user({"type": "text", "text": "x"})]) is None
    assert first_image([{"role": "assistant"}, user(IMAGE)]) == "messages[1].content[0].type"
    assert first_image([user(nested)]) == "messages[0].content[0].content[1].type"
