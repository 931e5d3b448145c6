"""Requests as agents send them to chat completions and Messages, written after their public shapes (2026): opencode by
the AI SDK's openai-compatible and Anthropic providers, Open WebUI with its background tasks."""

from typing import Any

Json = dict[str, Any]

PARAMETERS: Json = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"filePath": {"description": "Where it is.", "type": "string"}, "limit": {"type": "number"}},
    "required": ["filePath"],
    "additionalProperties": False,
}
CACHED: Json = {"cache_control": {"type": "ephemeral"}}
SYSTEM = ("You are opencode.", "<env>\n  Platform: linux\n</env>")


# --- opencode ----------------------------------------------------------------------------------------


def function(name: str, description: str, parameters: Json) -> Json:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


INVALID: Json = {"type": "object", "properties": {"tool": {"type": "string"}, "error": {"type": "string"}}}


def opencode_chat(messages: list[Json], **more: Any) -> Json:
    """By `@ai-sdk/openai-compatible`: one system message each, what is cached marked, counts asked for."""
    system = [{"role": "system", "content": text, **CACHED} for text in SYSTEM]
    return {
        "model": "local",
        "max_tokens": 2_000,
        "temperature": 0.55,
        "top_p": 1,
        "reasoning_effort": "medium",
        "messages": [*system, *messages],
        "tools": [function("read", "Reads a file.", PARAMETERS), function("invalid", "Do not use", INVALID)],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


def opencode_title(text: str) -> Json:
    """By a small model, without tools."""
    ask = {"role": "user", "content": "Generate a title for this conversation:\n"}
    body = opencode_chat([ask, {"role": "user", "content": text}], reasoning_effort="low")
    return {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}


def opencode_messages(messages: list[Json], **more: Any) -> Json:
    """By `@ai-sdk/anthropic`: the last two messages and the system text are marked as cached."""
    marked = [*messages[:-2], *map(_cached, messages[-2:])]
    return {
        "model": "local",
        "max_tokens": 18_000,
        "thinking": {"type": "enabled", "budget_tokens": 16_000},
        "system": [{"type": "text", "text": text, **CACHED} for text in SYSTEM],
        "messages": marked,
        "tools": [{"name": "read", "description": "Reads a file.", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "auto"},
        "stream": True,
        **more,
    }


def _cached(message: Json) -> Json:
    *before, last = message["content"]
    return {**message, "content": [*before, {**last, **CACHED}]}


# --- Open WebUI --------------------------------------------------------------------------------------


PATH: Json = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def open_webui(messages: list[Json], **more: Any) -> Json:
    return {
        "stream": True,
        "model": "local",
        "messages": [{"role": "system", "content": "Be helpful."}, *messages],
        "tools": [function("get_file", "Gives a file of the user.", PATH)],
        "stream_options": {"include_usage": True},
        "temperature": 0.7,
        "max_tokens": 2_000,
        **more,
    }


def open_webui_task(task: str, prompt: str) -> Json:
    """A background task, as a filter or a direct connection leaves it: what is known of the chat goes with it."""
    return {
        "model": "local",
        "messages": [{"role": "user", "content": prompt}],
        "stream": False,
        "max_completion_tokens": 1_000,
        "metadata": {
            "user_id": "u",
            "chat_id": "c",
            "session_id": None,
            "files": [],
            "features": {"web_search": False},
            "variables": {"{{USER_NAME}}": "User"},
            "task": task,
            "task_body": {"model": "local", "messages": [{"role": "user", "content": prompt}], "chat_id": "c"},
        },
    }
