"""Messages and their blocks → chat messages."""

from __future__ import annotations

from typing import Any

import pytest

from serve.parse.message_turns import chat_messages, split_continued

Json = dict[str, Any]


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def user(*blocks: Json) -> Json:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Json) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def result(content: Any = None, **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": "c1", "content": content, **more}


CALL: Json = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": "ö"}}
PNG: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
URL: Json = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
TOLD: Json = {"role": "tool", "tool_call_id": "c1"}


def test_the_system_prompt_comes_first_and_later_system_text_keeps_its_place() -> None:
    messages: list[Json] = [
        user(text("a")),
        {"role": "system", "content": [text("now"), text("be quick")]},
        user(text("b")),
    ]
    assert chat_messages("One.", messages) == [
        {"role": "system", "content": "One."},
        {"role": "user", "content": "a"},
        {"role": "system", "content": "now\n\nbe quick"},
        {"role": "user", "content": "b"},
    ]


def test_system_text_that_is_for_one_turn_is_gone_after_it() -> None:
    once: Json = {"role": "system", "content": "once", "clear_at": "next_user_message"}
    assert [message["role"] for message in chat_messages(None, [user(text("a")), once])] == ["user", "system"]
    assert [message["role"] for message in chat_messages(None, [once, user(text("a"))])] == ["user"]


def test_a_billing_line_is_left_out_where_it_begins_a_text() -> None:
    line = "x-anthropic-billing-header: cc_version=2.1.1; cch=36ee5;"
    for system in (f"{line}\nOne.", [text(line), text("One.")], [text(f"{line}\nOne.")]):
        assert chat_messages(system, [])[0] == {"role": "system", "content": "One."}
    assert chat_messages(line, []) == []
    kept = f"About {line}"
    assert chat_messages(kept, [])[0]["content"] == kept


def test_turns_of_one_role_that_follow_one_another_are_one() -> None:
    messages: list[Json] = [
        {"role": "user", "content": "a"},
        user(text(""), text("b")),
        {"role": "assistant", "content": "c"},
        assistant({"type": "thinking", "thinking": "hm", "signature": "s"}, text("d"), CALL),
        assistant(),
        {"role": "assistant", "content": None},
        user(result("1"), text("e")),
    ]
    assert chat_messages(None, messages) == [
        {"role": "user", "content": "a\n\nb"},
        {
            "role": "assistant",
            "content": "c\n\nd",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": "ö"}'}}],
        },
        {**TOLD, "content": "1"},
        {"role": "user", "content": "e"},
    ]


@pytest.mark.parametrize("content", ["", [], [{"type": "server_tool_use"}], [{"type": "text", "text": ""}]])
def test_a_user_message_without_text_is_a_turn_all_the_same(content: Any) -> None:
    assert chat_messages(None, [{"role": "user", "content": content}]) == [{"role": "user", "content": ""}]


def test_results_of_tools_alone_are_no_user_message() -> None:
    messages = [assistant(CALL), user(result("1"), text("")), assistant(text("x"))]
    assert [message["role"] for message in chat_messages(None, messages)] == ["assistant", "tool", "assistant"]
    assert chat_messages(None, messages[:1])[0]["content"] is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (result(), ""),
        (result([text("a"), text("b")]), "a\n\nb"),
        (result("no", is_error=False), "no"),
        (result("no such file", is_error=True), "error: no such file"),
        (result("Error: no such file", is_error=True), "Error: no such file"),
        (result("<tool_use_error>x</tool_use_error>", is_error=True), "<tool_use_error>x</tool_use_error>"),
        (result(is_error=True), "error"),
        (result([{"type": "tool_reference", "tool_name": "add"}]), "the tool 'add'"),
    ],
)
def test_a_result_says_what_the_tool_gave_and_that_it_failed(given: Json, told: str) -> None:
    assert chat_messages(None, [user(given)]) == [{**TOLD, "content": told}]


def test_images_are_parts_and_the_text_beside_them_too() -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
    ]
    assert chat_messages(None, [user(text("look"), PNG, URL)]) == [{"role": "user", "content": parts}]
    assert chat_messages(None, [user(result([text("look"), PNG, URL]))]) == [{**TOLD, "content": parts}]
    failed = chat_messages(None, [user(result([URL], is_error=True))])
    assert failed == [{**TOLD, "content": [{"type": "text", "text": "error"}, parts[2]]}]


def test_a_call_that_was_cut_is_not_told_again() -> None:
    cut: Json = {**CALL, "input": {}, "partial_json": '{"a'}
    assert chat_messages(None, [assistant(text("I add."), cut)]) == [{"role": "assistant", "content": "I add."}]


def test_the_last_text_of_the_assistant_is_split_off() -> None:
    messages = chat_messages(None, [user(text("a")), assistant(text("b"), text("c"))])
    assert split_continued(messages) == ([{"role": "user", "content": "a"}], "b\n\nc")
    assert split_continued(messages[:1]) == (messages[:1], "")
    assert split_continued([]) == ([], "")
