"""Claude Code's requests over the fake engine: each is answered, and a conversation goes on with our own blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.messages_client import CALL, COUNT, END, ROUTE, Json, content_of, get, rule, send
from tests.e2e.messages_grammar import MessageEnding, check_message, check_message_stream
from tests.e2e.server import ServerProcess, fake_server
from tests.unit.serve.parse import claude_code

HEADERS = (
    "anthropic-version: 2023-06-01",
    "anthropic-beta: claude-code-20250219,interleaved-thinking-2025-05-14",
    "x-api-key: none",
    "x-app: cli",
)
READ = CALL.replace("add", "Read").replace("=a>\n1", "=file_path>\na.py")
SCRIPT: Json = {
    "requests": [
        rule("is one line", {"text": "Done.</think>\n\nThere it is."}, *END),
        rule("ok, go on", {"text": "</think>"}, {"echo": True, "find": "system[\\s\\S]*"}, *END),
        rule("short title", {"text": '{"title": "Read two files"}'}, *END),
        rule("read a.py", {"text": f"I look.</think>\n\nI read it.{READ}"}, *END),
        rule("quota", {"text": "#"}, *END),
    ]
}


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("claude")) as started:
        yield started


def ask(server: ServerProcess, body: dict[str, Any]) -> MessageEnding:
    return check_message_stream(send(server.port, {**body, "stream": True}, *HEADERS, path=f"{ROUTE}?beta=true"))


def test_a_session_begins_runs_a_tool_and_goes_on(server: ServerProcess) -> None:
    assert get(server.port, "/", *HEADERS).status == 200
    assert get(server.port, "/v1/models?limit=1000", *HEADERS).status == 200
    quota = send(server.port, claude_code.PROBE, *HEADERS, path=f"{ROUTE}?beta=true")
    check_message(quota.json)
    assert quota.json["stop_reason"] == "max_tokens"
    title = ask(server, claude_code.TITLE)
    assert title.of("text") == ('{"title": "Read two files"}',)
    counted = send(server.port, claude_code.COUNT, *HEADERS, path=f"{COUNT}?beta=true")
    assert counted.json["input_tokens"] > 0

    first = ask(server, claude_code.FIRST)
    assert first.stop_reason == "tool_use"
    assert [block.kind for block in first.blocks] == ["thinking", "text", "tool_use"]
    assert first.of("tool_use") == ('{"file_path": "a.py"}',)
    said = content_of(first)
    said[-1]["id"] = first.calls[0].id
    result = {
        "type": "tool_result",
        "tool_use_id": first.calls[0].id,
        "content": [{"type": "text", "text": "is one line"}],
    }
    history = [*claude_code.START, {"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
    last = ask(server, claude_code.claude_code(history))
    assert last.stop_reason == "end_turn"
    assert last.of("text") == ("There it is.",)


def test_a_long_history_is_told_in_its_order(server: ServerProcess) -> None:
    # without tools the echo's calls are text
    (told,) = ask(server, {**claude_code.SECOND, "tool_choice": {"type": "none"}}).of("text")
    places = [
        told.index(text)
        for text in (
            "You are Claude Code",
            "You are an interactive agent",
            "<system-reminder>",
            "read a.py and b.py",
            "I read both.",
            "<function=Read>",
            "b.py\n</parameter>",
            "print(1)",
            "<tool_use_error>File",
            "The user changed a.py.",
            "b.py is not there.",
            "ok, go on",
        )
    ]
    assert places == sorted(places)
    assert "billing" not in told
