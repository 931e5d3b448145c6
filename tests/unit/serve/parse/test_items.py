"""Items as the API lists them: ids, statuses and parts in the forms that the SDK reads."""

from itertools import count
from typing import Any, get_args, get_type_hints

import pytest
from openai.types.responses import ResponseItem
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from pydantic import TypeAdapter, ValidationError

from serve.parse.items import KINDS, check_items, is_whole, with_ids
from tests.unit.serve.parse.agents import SHELL, text

ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)

BARE: dict[str, dict[str, Any]] = {
    "message": {"role": "user", "content": "hi"},
    "reasoning": {},
    "function_call": {"call_id": "c", "name": "f", "arguments": "{}"},
    "function_call_output": {"call_id": "c", "output": "x"},
    "custom_tool_call": {"call_id": "c", "name": "f", "input": "x"},
    "custom_tool_call_output": {"call_id": "c", "output": "x"},
    "local_shell_call": {"call_id": "c", "action": {"type": "exec", "command": ["ls"], "env": None}},
    "local_shell_call_output": {"call_id": "c", "output": "x"},
    "shell_call": {"call_id": "c", "action": {"commands": ["ls"]}},
    "shell_call_output": {
        "call_id": "c",
        "output": [{"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    "apply_patch_call": {"call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
    "apply_patch_call_output": {"call_id": "c", "status": "failed"},
    "additional_tools": {"tools": [SHELL, {"type": "function", "name": "bare"}]},
    "code_interpreter_call": {"container_id": "c", "code": None, "outputs": None},
    "compaction": {"encrypted_content": "x"},
    "computer_call": {"call_id": "c", "pending_safety_checks": [], "action": {"type": "screenshot"}},
    "computer_call_output": {"call_id": "c", "output": {"type": "computer_screenshot", "image_url": "x"}},
    "configuration_update": {},
    "file_search_call": {"queries": ["x"]},
    "image_generation_call": {"result": None},
    "mcp_approval_request": {"arguments": "{}", "name": "f", "server_label": "s"},
    "mcp_approval_response": {"approval_request_id": "x", "approve": False},
    "mcp_call": {"arguments": "{}", "name": "f", "server_label": "s"},
    "mcp_list_tools": {"server_label": "s", "tools": []},
    "program": {"call_id": "c", "code": "1", "fingerprint": "x"},
    "program_output": {"call_id": "c", "result": "1"},
    "tool_search_call": {"arguments": {}, "execution": "client"},
    "tool_search_output": {"tools": [], "execution": "client"},
    "web_search_call": {"action": {"type": "search", "query": "x"}},
}
LISTED = [name for name, kind in KINDS.items() if kind.needs is not None]


def listed(*items: dict[str, Any]) -> list[dict[str, Any]]:
    numbers = count(1)
    return list(with_ids(items, lambda prefix: f"{prefix}_{next(numbers)}"))


def words(hint: Any) -> set[str]:
    """The literal strings in a type."""
    return {hint} if isinstance(hint, str) else {word for inner in get_args(hint) for word in words(inner)}


def kinds_of(union: Any) -> set[str]:
    """The values of `type` in a union of the SDK's models or TypedDicts."""
    found: set[str] = set()
    for model in get_args(union):
        fields = getattr(model, "model_fields", None)
        found |= words(fields["type"].annotation if fields else get_type_hints(model)["type"])
    return found


def test_every_kind_of_the_sdk_is_taken_and_what_it_lists_we_list() -> None:
    assert kinds_of(ResponseInputItemParam) - KINDS.keys() == set()
    assert kinds_of(get_args(ResponseItem)[0]) == set(LISTED)


@pytest.mark.parametrize("kind", LISTED)
@pytest.mark.parametrize("more", [{}, {"id": None, "status": None}, {"id": 5, "status": "odd"}])
def test_an_item_gets_what_the_sdk_needs(kind: str, more: dict[str, Any]) -> None:
    item: dict[str, Any] = {"type": kind, **more, **BARE[kind]}
    check_items([item], "input")
    made = listed(item)
    ITEM.validate_python(made[0])
    assert made[0]["id"] == f"{KINDS[kind].prefix}_1"
    with pytest.raises(ValidationError):
        ITEM.validate_python({key: value for key, value in made[0].items() if key != "id"})


def test_prefixes_tell_kinds_apart() -> None:
    prefixes = [KINDS[name].prefix for name in LISTED]
    assert len(prefixes) == len(set(prefixes))


@pytest.mark.parametrize("kind", LISTED)
def test_an_item_as_the_api_lists_it_stays_as_it_is(kind: str) -> None:
    whole = listed({"type": kind, **BARE[kind]})[0]
    assert listed(whole) == [whole]


@pytest.mark.parametrize("kind", [name for name in LISTED if KINDS[name].needs])
def test_an_item_that_the_sdk_could_not_read_is_not_listed(kind: str) -> None:
    for need in KINDS[kind].needs or ():
        assert listed({"type": kind, **BARE[kind], need: None}) == []


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - set(LISTED)))
def test_a_kind_that_the_api_does_not_list_is_left_out(kind: str) -> None:
    item: dict[str, Any] = {"type": kind, "id": "x_1"}
    check_items([item], "input")
    assert listed(item) == []


def test_content_is_listed_as_parts_of_its_role() -> None:
    made = listed(
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "input_image", "image_url": "data:"}]},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": [{"type": "text", "text": "d"}, {"type": "refusal", "refusal": "no"}]},
        {"role": "assistant"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "output_text", "text": "e"}]},
    )
    for item in made:
        ITEM.validate_python(item)
    assert [item.get("content", item.get("output")) for item in made] == [
        [{"type": "input_text", "text": "a"}],
        [
            {"type": "input_text", "text": "b"},
            {"type": "input_image", "image_url": "data:", "detail": "auto"},
        ],
        [{"type": "output_text", "text": "c", "annotations": []}],
        [{"type": "output_text", "text": "d", "annotations": []}, {"type": "refusal", "refusal": "no"}],
        [{"type": "output_text", "text": "", "annotations": []}],
        [{"type": "input_text", "text": "e"}],
    ]


def test_ids_and_statuses_that_came_stay() -> None:
    item = text("assistant", "half", id="msg_x", status="incomplete")
    assert [(made["id"], made["status"]) for made in listed(item)] == [("msg_x", "incomplete")]


def test_reasoning_lists_what_can_be_read() -> None:
    item: dict[str, Any] = {
        "type": "reasoning",
        "content": [{"type": "text", "text": "so"}, {"type": "encrypted_content", "encrypted_content": "x"}],
        "encrypted_content": "y",
    }
    check_items([item], "input")
    made = listed(item)[0]
    ITEM.validate_python(made)
    assert made["content"] == [{"type": "reasoning_text", "text": "so"}]
    assert (made["summary"], made["encrypted_content"], "status" in made) == ([], "y", False)


def test_the_items_themselves_are_not_changed() -> None:
    item: dict[str, Any] = {"type": "local_shell_call", **BARE["local_shell_call"]}
    before = repr(item)
    listed(item)
    assert repr(item) == before


@pytest.mark.parametrize(("status", "whole"), [(None, True), ("completed", True), ("incomplete", False)])
def test_an_item_is_whole_unless_it_says_otherwise(status: str | None, whole: bool) -> None:
    assert is_whole({"status": status}) is whole
