"""The messages of a Messages request as chat messages: one for each turn, and one for each result of a tool.

It takes checked messages (`serve.parse.message_blocks`) and checks nothing.
"""

from __future__ import annotations

import json
import re
from typing import cast

from serve.parse.message_blocks import IMAGE, SILENT, blocks_of
from serve.request import Json

BETWEEN = "\n\n"
"""Stands between the texts that a chat message is put together from."""

_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*(?:\n|\Z)")
"""A line that Claude Code puts before its system prompt, for Anthropic's accounts. It differs in each request, so an
engine could use nothing of what it has cached of the rest. Source: claude-code issue 68900, 2026-06."""

_TELLS_ERROR = re.compile(r"\W*(?:\w+_)?error\b", re.IGNORECASE)


def chat_messages(system: str | list[Json] | None, messages: list[Json]) -> list[Json]:
    """The messages of a chat completions request. Turns of one role that follow one another become one; system text in
    mid-conversation keeps its place."""
    conversation = _Conversation()
    conversation.system(system)
    last_user = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    for i, message in enumerate(messages):
        content = message.get("content")
        if message["role"] == "user":
            conversation.user(content)
        elif message["role"] == "assistant":
            conversation.assistant(content)
        elif message.get("clear_at") != "next_user_message" or i > last_user:
            conversation.system(content)
    return conversation.messages()


def split_continued(messages: list[Json]) -> tuple[list[Json], str]:
    """Chat messages without a last one of the assistant, and its text: the answer goes on from there."""
    if not messages or messages[-1]["role"] != "assistant":
        return messages, ""
    return messages[:-1], cast("str | None", messages[-1]["content"]) or ""


class _Conversation:
    """The chat messages that are being put together. The content of the last user turn is kept as its parts."""

    def __init__(self) -> None:
        self._made: list[Json] = []
        self._parts: list[Json] = []

    def messages(self) -> list[Json]:
        self._end_user()
        return self._made

    def system(self, content: object) -> None:
        texts = [_BILLING.sub("", cast("str", block["text"])) for block in blocks_of(content)]
        if text := BETWEEN.join(filter(None, texts)):
            self._end_user()
            self._made.append({"role": "system", "content": text})

    def user(self, content: object) -> None:
        blocks = [block for block in blocks_of(content) if block["type"] not in SILENT]
        for block in blocks:
            if block["type"] == "tool_result":
                self._end_user()
                made: Json = {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result(block)}
                self._made.append(made)
            else:
                self._parts.append(block)
        if not blocks and not self._parts:
            self._parts.append({"type": "text", "text": ""})  # a turn all the same

    def assistant(self, content: object) -> None:
        self._end_user()
        reasoning: list[str] = []
        texts: list[str] = []
        calls: list[Json] = []
        for block in blocks_of(content):
            if block["type"] == "thinking":
                reasoning.append(cast("str", block["thinking"]))
            elif block["type"] == "text":
                texts.append(cast("str", block["text"]))
            elif block["type"] == "tool_use" and "partial_json" not in block:  # one that was cut has no result
                calls.append(_call(block))
        if any((*reasoning, *texts)) or calls:
            self._assistant(reasoning, texts, calls)

    def _assistant(self, reasoning: list[str], texts: list[str], calls: list[Json]) -> None:
        former: Json = self._made.pop() if self._made and self._made[-1]["role"] == "assistant" else {}
        text = _joined(former.get("content"), texts)
        calls = [*cast("list[Json]", former.get("tool_calls") or []), *calls]
        message: Json = {"role": "assistant", "content": text or (None if calls else "")}
        if thought := _joined(former.get("reasoning_content"), reasoning):
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        self._made.append(message)

    def _end_user(self) -> None:
        parts, self._parts = self._parts, []
        content = _content(parts) if parts else ""
        if content or (parts and (not self._made or self._made[-1]["role"] != "tool")):
            self._made.append({"role": "user", "content": content})


def _joined(former: object, texts: list[str]) -> str:
    return BETWEEN.join(filter(None, [cast("str | None", former) or "", *texts]))


def _content(blocks: list[Json]) -> str | list[Json]:
    """Text as one string; parts only where one is an image."""
    if all(block["type"] != IMAGE for block in blocks):
        return BETWEEN.join(filter(None, (_text(block) for block in blocks)))
    return [_image(block) if block["type"] == IMAGE else {"type": "text", "text": _text(block)} for block in blocks]


def _text(block: Json) -> str:
    if block["type"] == "tool_reference":  # every tool is told of from the start, so that the name is all there is
        return f"the tool {block['tool_name']!r}"
    return cast("str", block["text"])


def _image(block: Json) -> Json:
    source = cast("Json", block["source"])
    url = source["url"] if source["type"] == "url" else f"data:{source['media_type']};base64,{source['data']}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: Json) -> Json:
    arguments = json.dumps(block["input"], ensure_ascii=False)
    return {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": arguments}}


def _result(block: Json) -> str | list[Json]:
    """What a tool gave. Chat has no mark for a failed call, so the text says it."""
    content = _content(blocks_of(block.get("content")))
    if not block.get("is_error"):
        return content
    if isinstance(content, str):
        return content if _TELLS_ERROR.match(content) else f"error: {content}".rstrip(": ")
    return [{"type": "text", "text": "error"}, *content]
