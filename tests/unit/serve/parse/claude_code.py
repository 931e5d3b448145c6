"""Requests as Claude Code sends them, written after their public shape (2026): a long system array that begins with its
billing line, many tools, thinking, context management, system text in mid-conversation, counts of tokens."""

from __future__ import annotations

from typing import Any

CACHED: dict[str, Any] = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;"
SYSTEM: list[dict[str, Any]] = [
    {"type": "text", "text": BILLING},
    {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", **CACHED},
    {"type": "text", "text": "You are an interactive agent.\n\n# Tone\nBe brief.\n", **CACHED},
]
READ: dict[str, Any] = {
    "name": "Read",
    "description": "Reads a file.",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "limit": {"type": "number"}},
        "required": ["file_path"],
        "additionalProperties": False,
    },
    "eager_input_streaming": True,
}
BASH: dict[str, Any] = {
    "name": "Bash",
    "description": "Runs a command.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
MCP: dict[str, Any] = {
    "name": "mcp__tracker__list",
    "description": "Lists issues.",
    "input_schema": {"type": "object", "properties": {}},
    "defer_loading": True,
}
TOOLS: list[dict[str, Any]] = [READ, {**BASH, **CACHED}, MCP, {"type": "web_search_20250305", "name": "web_search"}]
REMINDER = "<system-reminder>\nAs you answer, you can use this context.\n</system-reminder>\n"


def claude_code(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "model": "claude-opus-5-5",
        "messages": messages,
        "system": SYSTEM,
        "tools": TOOLS,
        "metadata": {
            "user_id": '{"device_id":"d","account_uuid":"","session_id":"0198c6f4-1111-7000-8000-000000000000"}'
        },
        "max_tokens": 64_000,
        "thinking": {"type": "adaptive", "display": "summarized"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "stream": True,
        **more,
    }


START: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": [{"type": "text", "text": REMINDER}, {"type": "text", "text": "read a.py and b.py", **CACHED}],
    }
]
FIRST = claude_code(START)
SECOND = claude_code(
    [
        *START,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "They want both.", "signature": "EuYBCkQYAiJA"},
                {"type": "redacted_thinking", "data": "EmwKAhgBEgy3"},
                {"type": "text", "text": "I read both."},
                {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "a.py"}},
                {"type": "tool_use", "id": "toolu_2", "name": "Read", "input": {"file_path": "b.py"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "     1\tprint(1)\n"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "is_error": True,
                    "content": "<tool_use_error>File does not exist.</tool_use_error>",
                },
                {"type": "text", "text": REMINDER, **CACHED},
            ],
        },
        {"role": "system", "content": "The user changed a.py."},
        {"role": "assistant", "content": [{"type": "text", "text": "b.py is not there."}]},
        {"role": "user", "content": "ok, go on"},
    ]
)
TITLE = claude_code(
    [{"role": "user", "content": "read a.py and b.py"}],
    system=[{"type": "text", "text": BILLING}, {"type": "text", "text": "Write a short title."}],
    tools=[],
    max_tokens=32_000,
    thinking={"type": "disabled"},
    temperature=1,
    output_config={
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {"title": {"type": "string"}},
                "required": ["title"],
                "additionalProperties": False,
            },
        }
    },
)
PROBE: dict[str, Any] = {
    "model": "claude-haiku-5-5",
    "max_tokens": 1,
    "messages": [{"role": "user", "content": "quota"}],
    "metadata": {"user_id": "u"},
}
COUNT: dict[str, Any] = {
    "model": "claude-opus-5-5",
    "messages": [{"role": "user", "content": "foo"}],
    "tools": TOOLS,
    "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14"],
}
ALL: dict[str, dict[str, Any]] = {"first": FIRST, "second": SECOND, "title": TITLE, "probe": PROBE}
