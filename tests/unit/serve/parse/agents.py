"""Requests as agents send them, written after their public shapes: Codex CLI (`ResponsesApiRequest`, 2026), the
OpenAI Agents SDK 0.24 (captured), the AI SDK's OpenAI provider (as opencode uses it)."""

from typing import Any

SHELL_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "workdir": {"type": "string"}},
    "required": ["command"],
    "additionalProperties": False,
}
SHELL: dict[str, Any] = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "strict": False,
    "parameters": SHELL_PARAMETERS,
}
PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
CODEX_TOOLS: list[dict[str, Any]] = [
    SHELL,
    PATCH,
    {"type": "web_search", "external_web_access": False, "search_content_types": ["text", "image"]},
    {"type": "local_shell"},
    {"type": "image_generation", "output_format": "png"},
    {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {"type": "object"}},
    {
        "type": "namespace",
        "name": "mcp__calendar__",
        "description": "Calendar.",
        "tools": [{"type": "function", "name": "list", "parameters": {"type": "object"}, "strict": False}],
    },
]


def text(role: str, *texts: str, **more: Any) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": t} for t in texts], **more}


def codex(items: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "model": "local",
        "instructions": "You are a coding agent.",
        "input": items,
        "tools": CODEX_TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "service_tier": "priority",
        "prompt_cache_key": "0198c6f4-1111-7000-8000-000000000000",
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "abc"},
        **more,
    }


CODEX_START: list[dict[str, Any]] = [
    text("developer", "<permissions>ask first</permissions>"),
    text(
        "user", "# AGENTS.md\n", "<environment_context/>", internal_chat_message_metadata_passthrough={"turn_id": "t"}
    ),
    text("user", "list the files"),
]
CODEX_FIRST = codex(CODEX_START)
CODEX_SECOND = codex(
    [
        *CODEX_START,
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "They want a list."}],
            "content": None,
            "encrypted_content": "gAAAA",
        },
        text("assistant", "I look.", phase="commentary"),
        {"type": "function_call", "name": "exec_command", "arguments": '{"command": "ls"}', "call_id": "call_1"},
        {"type": "function_call", "name": "exec_command", "arguments": '{"command": "pwd"}', "call_id": "call_2"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a.py\nb.py"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "/tmp"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "gBBBB"},
        {
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "call_3",
            "name": "apply_patch",
            "input": "*** x",
        },
        {"type": "custom_tool_call_output", "call_id": "call_3", "output": "done"},
        {
            "type": "local_shell_call",
            "call_id": "call_4",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "timeout_ms": None, "working_directory": None, "env": None},
        },
        {"type": "function_call_output", "call_id": "call_4", "output": "a.py"},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "ghost_snapshot", "ghost_commit": {"id": "abc", "parent": None}},
        {"type": "compaction", "encrypted_content": "gCCCC"},
        text("assistant", "There are two files.", phase="final_answer"),
        text("user", "thanks"),
    ]
)
CODEX_LITE = codex(
    [
        {"type": "additional_tools", "role": "developer", "tools": [SHELL]},
        text("developer", "Be short."),
        text("user", "go"),
    ],
    instructions="",
    tools=[],
)

AGENTS_TOOLS: list[dict[str, Any]] = [
    {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
        "type": "function",
        "description": "The weather.",
    },
    {"type": "web_search", "filters": None, "user_location": None, "search_context_size": "medium"},
]
AGENTS_SECOND: dict[str, Any] = {
    "model": "m",
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "input": [
        {"content": "hi", "role": "user"},
        {
            "id": "rs_1",
            "summary": [],
            "type": "reasoning",
            "content": [{"text": "hm", "type": "reasoning_text"}],
            "status": "completed",
        },
        {
            "id": "msg_1",
            "content": [{"annotations": [], "text": "let me see", "type": "output_text", "logprobs": []}],
            "role": "assistant",
            "status": "completed",
            "type": "message",
        },
        {
            "arguments": '{"city":"Oslo"}',
            "call_id": "call_1",
            "name": "weather",
            "type": "function_call",
            "id": "fc_1",
            "status": "completed",
        },
        {"call_id": "call_1", "output": "sunny", "type": "function_call_output"},
    ],
    "instructions": "be brief",
    "metadata": {"a": "b"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "store": False,
    "temperature": 0.1,
    "text": {
        "format": {
            "type": "json_schema",
            "name": "final_output",
            "schema": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
            "strict": True,
        },
        "verbosity": "low",
    },
    "tools": AGENTS_TOOLS,
    "top_logprobs": 2,
    "truncation": "auto",
}

OPENCODE: dict[str, Any] = {
    "model": "local",
    "input": [
        {"role": "developer", "content": "You are opencode."},
        {"role": "user", "content": [{"type": "input_text", "text": "read a.py"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Reading."}]},
        {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": '{"path":"a.py"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "print(1)"},
        {"role": "user", "content": [{"type": "input_text", "text": "and now?"}]},
    ],
    "max_output_tokens": 32_000,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "medium", "summary": "auto"},
    "text": {"verbosity": "low"},
    "prompt_cache_key": "ses_1",
    "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
    "tool_choice": "auto",
    "stream": True,
}

ALL: dict[str, dict[str, Any]] = {
    "codex first": CODEX_FIRST,
    "codex second": CODEX_SECOND,
    "codex lite": CODEX_LITE,
    "agents sdk": AGENTS_SECOND,
    "opencode": OPENCODE,
}
