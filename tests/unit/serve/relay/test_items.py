"""The items of a relayed response: what was said of each, and the events that are missing."""

from __future__ import annotations

import pytest

from serve.relay.items import Item, Part, emptied, fields, is_object, objects, with_lists
from tests.e2e.responses_client import Json


def call(*pieces: str, written: str | None = None, done: str | None = None) -> Item:
    item = Item("fc", 1, "function_call", {"id": "fc", "type": "function_call", "call_id": "c", "name": "add"})
    item.pieces += pieces
    item.written = written
    item.done = None if done is None else {**item.added, "arguments": done, "status": "completed"}
    return item


@pytest.mark.parametrize(
    ("item", "arguments", "broken"),
    [
        (call('{"a":', "1}"), '{"a":1}', False),
        (call('{"a":'), '{"a":', True),
        (call(), "", True),
        (call(written="{}"), "{}", False),
        (call("{", written="{}"), "{}", True),
        (call("{}", done='{"a":'), '{"a":', True),
        (call("{}", written="{}", done="{}"), "{}", False),
        (call("[1]"), "[1]", True),
        (call('{"a":NaN}'), '{"a":NaN}', True),
        (call('{"a":' * 5000), '{"a":' * 5000, True),
    ],
    ids=range(10),
)
def test_a_call_is_whole_if_all_tellings_of_its_arguments_are_an_object(
    item: Item, arguments: str, broken: bool
) -> None:
    assert (item.arguments, item.is_broken_call) == (arguments, broken)


def test_a_cut_call_has_the_arguments_that_the_client_has_already() -> None:
    item = call("{", written='{"a": 1}', done='{"a": 1}')
    assert item.value("incomplete") == {**item.added, "arguments": "{", "status": "incomplete"}
    assert item.value(None)["arguments"] == '{"a": 1}'
    item.done = None
    assert item.value("incomplete")["arguments"] == "{"


def test_an_item_without_its_end_is_what_its_pieces_say() -> None:
    item = Item("m", 0, "message", {"id": "m", "type": "message", "role": "assistant", "content": []})
    part = item.parts["content", 0] = Part("output_text", "content_part", 0, {"type": "output_text", "odd": 1})
    part.pieces += ["Hel", "lo"]
    part.annotations.append({"type": "x"})
    item.parts["content", 1] = Part("refusal", "content_part", 1, {}, ["No"])
    made = item.value("incomplete")
    assert made["content"] == [
        {"type": "output_text", "odd": 1, "text": "Hello", "annotations": [{"type": "x"}], "logprobs": []},
        {"type": "refusal", "refusal": "No"},
    ]
    assert (made["status"], item.text) == ("incomplete", "HelloNo")
    custom = Item("c", 0, "custom_tool_call", {"id": "c", "type": "custom_tool_call"}, pieces=["ls ", "-l"])
    assert custom.value(None)["input"] == "ls -l"
    code = Item("c", 0, "code_interpreter_call", {"type": "code_interpreter_call"}, written="1+1")
    assert code.value(None)["code"] == "1+1"


@pytest.mark.parametrize(
    ("name", "family", "texts"),
    [
        ("output_text", "content_part", ["output_text.done", "content_part.done"]),
        ("reasoning_text", "reasoning_part", ["reasoning_text.done", "reasoning_part.done"]),
        (
            "reasoning_summary_text",
            "reasoning_summary_part",
            ["reasoning_summary_text.done", "reasoning_summary_part.done"],
        ),
    ],
)
def test_a_part_is_ended_by_the_events_of_its_kind_once(name: str, family: str, texts: list[str]) -> None:
    item = Item("m", 3, "reasoning", {"id": "m", "type": "reasoning"})
    part = Part(name, family, 2, {}, ["x"])
    made = item.part_endings(part)
    assert [one["type"] for one in made] == [f"response.{text}" for text in texts]
    index = "summary_index" if "summary" in name else "content_index"
    assert all((one["item_id"], one["output_index"], one[index]) == ("m", 3, 2) for one in made)
    assert made[0]["text"] == fields(made[1]["part"])["text"] == "x"
    assert item.part_endings(part) == []
    half = Part(name, family, 2, {}, ["x"], text_done=True)
    assert [one["type"] for one in item.part_endings(half)] == [f"response.{texts[1]}"]


def test_a_text_has_the_lists_that_its_deltas_said() -> None:
    said = Part("output_text", "content_part", 0, {}, ["x"], [{"token": "x"}], [{"type": "note"}])
    lists = {"logprobs": [{"token": "x"}], "annotations": [{"type": "note"}]}
    none: Json = {"logprobs": [], "annotations": []}
    odd: list[Json] = [{}, {"logprobs": None}, {"logprobs": None, "annotations": None}, {"annotations": {}}]
    for given in odd:
        text: Json = {"type": "output_text", "text": "x", **given}
        assert with_lists(text, said) == {**text, **lists}
        assert with_lists(text, None) == {**text, **none}
    own: Json = {"type": "output_text", "text": "x", **none}
    assert with_lists(own, said) is own
    other = {"type": "refusal", "refusal": "x"}
    assert with_lists(other, said) is other


def test_an_item_gets_the_lists_of_its_texts_and_stays_itself_where_it_has_them() -> None:
    item = Item("m", 0, "message", {"id": "m", "type": "message"})
    item.parts["content", 1] = Part("output_text", "content_part", 1, {}, ["x"], [{"token": "x"}])
    parts: list[object] = [{"type": "refusal", "refusal": "No"}, {"type": "output_text", "text": "x"}, 7]
    told = {"type": "message", "content": parts, "odd": None}
    right = {"type": "output_text", "text": "x", "annotations": [], "logprobs": [{"token": "x"}]}
    assert item.with_lists(told) == {**told, "content": [parts[0], right, 7]}
    sames: list[Json] = [{"content": [right]}, {"content": [7]}, {"content": []}, {"content": None}, {}]
    for same in sames:
        assert item.with_lists(same) is same


def test_an_item_begins_without_what_it_says() -> None:
    given = {"type": "function_call", "arguments": "{}", "name": "f", "status": "completed"}
    assert emptied(given) == {**given, "arguments": "", "status": "in_progress"}
    thought: dict[str, object] = {"type": "reasoning", "summary": [{}], "content": [{}], "encrypted_content": "x"}
    assert emptied(thought) == {**thought, "summary": [], "content": [], "status": "in_progress"}


def test_json_of_any_kind_is_read() -> None:
    assert [is_object(text) for text in ("{}", ' {"a": [1]} ', "1", "", "{}{}", '{"a": Infinity}')] == [
        True, True, False, False, False, False,
    ]  # fmt: skip
    assert (fields([]), fields({"a": 1}), objects({}), objects([{"a": 1}, 5])) == ({}, {"a": 1}, [], [{"a": 1}, {}])
