"""Four agents at work, as their public sources have them: what each sends, what it keeps of an answer and sends back,
and what it does after an answer that was cut or failed. None of their code is here, and none of their texts.

Each has one conversation. `say`, `ask`, `result` are the loop of every agent; `carry_on` is what it does by itself
after a turn that was no success.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.e2e.client import ask
from tests.e2e.gateway import CHAT
from tests.e2e.grammar import check_chat_stream
from tests.e2e.messages_client import ROUTE as MESSAGES
from tests.e2e.messages_client import content_of
from tests.e2e.messages_grammar import MessageEnding, check_message, check_message_stream
from tests.e2e.responses_client import ROUTE as RESPONSES
from tests.e2e.responses_grammar import check_response_stream
from tests.unit.serve.parse import agents, chat_agents, claude_code

Json = dict[str, Any]
How = Literal["answered", "calls", "cut", "failed"]


@dataclass
class Turn:
    """What came of one request. `calls`: id, name and arguments of those that the agent would run."""

    text: str
    how: How
    calls: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    error: str = ""


class Agent:
    """One conversation. `tool` and `key`: the tool that reads a file, and the argument that names it."""

    tool = ""
    key = ""

    def __init__(self) -> None:
        self.history: list[Json] = []
        self.sent: list[Json] = []

    def body(self) -> Json:
        """The next request."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """The user says something."""
        self.history.append({"role": "user", "content": text})

    def ask(self, port: int) -> Turn:
        """Send the conversation; what came is kept as the agent keeps it."""
        body = self.body()
        self.sent.append(json.loads(json.dumps(body)))
        return self.read(port, body)

    def read(self, port: int, body: Json) -> Turn:
        raise NotImplementedError

    def result(self, call: tuple[str, str, str], text: str) -> None:
        """What the tool gave."""
        raise NotImplementedError

    def carry_on(self, port: int) -> Turn:
        """Go on after a turn that was cut or failed, without the user."""
        raise NotImplementedError


# --- Claude Code -------------------------------------------------------------------------------------


class ClaudeCode(Agent):
    """Keeps the blocks; asks again without a stream where one failed; has an answer that was cut gone on with."""

    tool, key = "Read", "file_path"
    path = f"{MESSAGES}?beta=true"
    headers = (
        "anthropic-version: 2023-06-01",
        "anthropic-beta: claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
        "anthropic-dangerous-direct-browser-access: true",
        "x-api-key: none",
        "x-app: cli",
        "x-stainless-helper-method: stream",
    )

    def body(self) -> Json:
        return claude_code.claude_code(self.history, max_tokens=2_000)

    def say(self, text: str) -> None:
        self.history.append({"role": "user", "content": [{"type": "text", "text": text, **claude_code.CACHED}]})

    def read(self, port: int, body: Json) -> Turn:
        ending = check_message_stream(ask(port, body, *self.headers, path=self.path))
        if ending.error is not None:
            return Turn("".join(ending.of("text")), "failed", error=ending.error["message"])
        self.keep(ending)
        calls = [(block.id, block.name, block.text) for block in ending.calls]
        return Turn("".join(ending.of("text")), _how(ending.stop_reason), calls)

    def keep(self, ending: MessageEnding) -> None:
        ids = iter([block.id for block in ending.calls])
        blocks = content_of(ending)
        self.history.append({"role": "assistant", "content": [
            {**block, "id": next(ids)} if block["type"] == "tool_use" else block for block in blocks]})  # fmt: skip

    def result(self, call: tuple[str, str, str], text: str) -> None:
        block = {"type": "tool_result", "tool_use_id": call[0], "content": [{"type": "text", "text": text}]}
        self.history.append({"role": "user", "content": [block]})

    def carry_on(self, port: int) -> Turn:
        if self.history[-1]["role"] == "user":  # nothing came of it: once more, as a whole
            whole = ask(port, {**self.body(), "stream": False}, *self.headers, path=self.path)
            assert whole.status == 200, whole.body
            check_message(whole.json)
            content = whole.json["content"]
            self.history.append({"role": "assistant", "content": content})
            return Turn("".join(block.get("text", "") for block in content), _how(whole.json["stop_reason"]))
        cut = [block for block in self.history[-1]["content"] if block["type"] == "tool_use"]
        blocks: list[Json] = [
            {"type": "tool_result", "tool_use_id": block["id"], "is_error": True, "content": "the input is missing"}
            for block in cut
        ]
        blocks.append({"type": "text", "text": "You were cut off. Resume where you were."})
        self.history.append({"role": "user", "content": blocks})
        return self.ask(port)


class OpencodeMessages(ClaudeCode):
    """opencode with the AI SDK's Anthropic provider: forgets an answer that failed, and the user goes on."""

    tool, key = "read", "filePath"
    path = MESSAGES
    headers = (
        "anthropic-version: 2023-06-01",
        "anthropic-beta: interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14",
        "x-api-key: none",
    )

    def body(self) -> Json:
        return chat_agents.opencode_messages(self.history)

    def say(self, text: str) -> None:
        self.history.append({"role": "user", "content": [{"type": "text", "text": text}]})

    def carry_on(self, port: int) -> Turn:
        cut = [block for block in self.history[-1]["content"] if block["type"] == "tool_use"]
        for block in cut:
            block["name"] = "invalid"
            self.result((block["id"], "", ""), "the arguments are not JSON")
        if not cut:
            self.say("go on")
        return self.ask(port)


# --- Codex -------------------------------------------------------------------------------------------


class Codex(Agent):
    """Keeps each item when it is done; runs every call that is; asks again after anything but `response.completed`."""

    tool, key = "exec_command", "command"
    headers = (
        "Accept: text/event-stream",
        "Authorization: Bearer none",
        "originator: codex_cli_rs",
        "session_id: 0198c6f4-1111-7000-8000-000000000000",
        "x-codex-turn-metadata: {}",
    )

    def body(self) -> Json:
        return agents.codex([*agents.CODEX_START[:-1], *self.history])

    def say(self, text: str) -> None:
        self.history.append(agents.text("user", text))

    def read(self, port: int, body: Json) -> Turn:
        ending = check_response_stream(ask(port, body, *self.headers, path=RESPONSES))
        done = [event["item"] for event in ending.events if event["type"] == "response.output_item.done"]
        self.history += map(self.kept, done)
        calls = [(one["call_id"], one["name"], one["arguments"]) for one in done if one["type"] == "function_call"]
        how: How = "answered"
        if ending.status != "completed":
            how = "cut" if ending.status == "incomplete" else "failed"
        elif calls:
            how = "calls"
        return Turn("".join(ending.texts), how, calls, ending.error["message"] if ending.error else "")

    def kept(self, item: Json) -> Json:
        """Without ids and states. Reasoning that can be read is not sent back, only the encrypted one: here none."""
        if item["type"] == "reasoning":
            return {"type": "reasoning", "summary": item["summary"], "encrypted_content": item.get("encrypted_content")}
        if item["type"] == "message":
            parts = [{"type": part["type"], "text": part["text"]} for part in item["content"]]
            return {"type": "message", "role": item["role"], "content": parts}
        return {name: item[name] for name in ("type", "name", "arguments", "call_id")}

    def result(self, call: tuple[str, str, str], text: str) -> None:
        self.history.append({"type": "function_call_output", "call_id": call[0], "output": text})

    def carry_on(self, port: int) -> Turn:
        answered = {item["call_id"] for item in self.history if item["type"] == "function_call_output"}
        for item in list(self.history):
            if item["type"] == "function_call" and item["call_id"] not in answered:
                self.result((item["call_id"], "", ""), "failed to parse function arguments: EOF while parsing")
        return self.ask(port)


class Verbatim(Codex):
    """An agent that sends the items back as they came, as the API's guide does."""

    def kept(self, item: Json) -> Json:
        return item


# --- chat --------------------------------------------------------------------------------------------


class OpencodeChat(Agent):
    """opencode with the AI SDK's openai-compatible provider: forgets an answer that failed, and the user goes on."""

    tool, key = "read", "filePath"
    headers = ("Authorization: Bearer none", "User-Agent: opencode/1.0 ai-sdk/openai-compatible/2.0")
    keeps_failed = False

    def body(self) -> Json:
        return chat_agents.opencode_chat(self.history)

    def read(self, port: int, body: Json) -> Turn:
        ending = check_chat_stream(ask(port, body, *self.headers, path=CHAT))
        assert ending.usage is not None
        failed = ending.error is not None
        if not failed or self.keeps_failed:
            self.history.append(self.kept(ending.content, ending.reasoning, [] if failed else ending.calls))
        calls = [(one["id"], one["name"], one["arguments"]) for one in ending.calls]
        how = "failed" if failed else _how(ending.finish_reason)
        return Turn(ending.content, how, calls, ending.error["message"] if ending.error else "")

    def kept(self, text: str, reasoning: str, calls: list[dict[str, str]]) -> Json:
        made: Json = {"role": "assistant", "content": text}
        if reasoning:
            made["reasoning_content"] = reasoning
        if calls:
            made["tool_calls"] = [
                {
                    "id": one["id"],
                    "type": "function",
                    "function": {"name": one["name"], "arguments": self.arguments(one)},
                }
                for one in calls
            ]
        return made

    def arguments(self, call: dict[str, str]) -> str:
        """They are read, and written again; what is not JSON is a call of its tool `invalid`."""
        try:
            return json.dumps(json.loads(call["arguments"]), separators=(",", ":"))
        except ValueError as error:
            return json.dumps({"tool": call["name"], "error": str(error)})

    def result(self, call: tuple[str, str, str], text: str) -> None:
        self.history.append({"role": "tool", "tool_call_id": call[0], "content": text})

    def carry_on(self, port: int) -> Turn:
        calls: list[Json] = self.history[-1].get("tool_calls") or []
        for call in calls:
            self.result((call["id"], "", ""), "the arguments are not JSON")
        if not calls:
            self.say("go on")
        return self.ask(port)


class OpenWebUI(OpencodeChat):
    """Keeps what came of an answer that failed, and shows it; the user goes on. Calls are sent back as they came."""

    tool, key = "get_file", "path"
    headers = ("Authorization: Bearer none", "X-OpenWebUI-Chat-Id: c")
    keeps_failed = True

    def body(self) -> Json:
        return chat_agents.open_webui(self.history)

    def kept(self, text: str, reasoning: str, calls: list[dict[str, str]]) -> Json:
        made = super().kept(text, reasoning, calls)
        if calls:
            made["content"] = text or None
        return made

    def arguments(self, call: dict[str, str]) -> str:
        return call["arguments"]


def _how(word: str | None) -> How:
    words: dict[str | None, How] = {"tool_use": "calls", "tool_calls": "calls", "max_tokens": "cut", "length": "cut"}
    return words.get(word, "answered")


AGENTS: tuple[type[Agent], ...] = (ClaudeCode, Codex, Verbatim, OpencodeChat, OpencodeMessages, OpenWebUI)
