"""Streams of chat completions and of completions -> what they told.

Source: OpenAI API reference, "chat.completion.chunk" and "text_completion"; what clients do with each: measured over 21
of them, autumn 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tools.probe.sse import SseEvent
from tools.probe.telling import Call, Outcome, Telling, error_message
from tools.probe.values import Json, as_int, as_list, as_object, as_text, shown

DONE = "[DONE]"
WORDS: Mapping[str, Outcome] = {
    "stop": "finished",
    "tool_calls": "finished",
    "function_call": "finished",
    "length": "limit",
    "content_filter": "filtered",
    "error": "failed",
}
BEAT_S = 0.5
"""A heartbeat breaks a silence; what comes sooner is none."""
_THOUGHTS = ("reasoning_content", "reasoning")
_QUIET = frozenset({"content", "reasoning_content", "reasoning", "refusal", "tool_calls"})


class ChatTelling(Telling):
    """`api`: which of the two."""

    MARKER = "data: [DONE]"
    FINISH = "finish_reason"

    def __init__(
        self, api: Literal["chat", "completions"] = "chat", limit: int | None = None, *, endless: bool = False
    ) -> None:
        super().__init__(api, limit, endless=endless)
        self.words: dict[int, str] = {}
        """By choice."""
        self._roles: set[int] = set()

    def _event(self, event: SseEvent) -> None:
        if event.data.strip() == DONE:
            if self.marker is not None:
                self.findings.add("two-markers", "risk", "the end marker came twice", event.at_s)
            self.marker = DONE
            return
        if not event.data.strip():
            self._beat("empty chunk", "data:", event.at_s)
            return
        chunk = self._json(event)
        if self.marker is not None:
            counts = chunk is not None and not as_list(chunk.get("choices")) and not chunk.get("error")
            id_, kind = ("counts-after-end", "risk") if counts else ("after-end", "lie")
            self.findings.add(id_, kind, f"more came after {DONE}: {shown(event.data)}", event.at_s)
        if chunk is None:
            if event.name == "error":
                self._hide(f"in an event whose data is not JSON: {shown(event.data)}")
            return
        self._error_in(chunk, event)
        self._usage(chunk, event.at_s)
        choices = as_list(chunk.get("choices"))
        for choice in choices:
            self._choice(as_object(choice), event)
        if not choices and not any(chunk.get(name) for name in ("usage", "error", "message", "detail")):
            self._beat("empty chunk", event.data, event.at_s)

    # --- errors -------------------------------------------------------------------------------------

    def _error_in(self, chunk: Json, event: SseEvent) -> None:
        error = chunk.get("error")
        if error:
            self._error(error, event, beside=bool(as_list(chunk.get("choices"))))
        elif "choices" not in chunk and (text := self._flat_error(chunk, event)) is not None:
            self._hide(f"not under `error`: {shown(text)}")

    def _flat_error(self, chunk: Json, event: SseEvent) -> str | None:
        if event.name == "error" or chunk.get("object") == "error" or "detail" in chunk:
            return as_text(chunk.get("message")) or as_text(chunk.get("detail")) or event.data
        return None

    def _error(self, error: object, event: SseEvent, *, beside: bool) -> None:
        message = error_message(error)
        if message is None:
            text = f"the error has no `message` text, so that clients lose the cause: {shown(error)}"
            self.findings.add("error-form", "breach", text, event.at_s)
        if beside and self.error is None:
            text = "an error only beside `choices`: AI SDK and hand-written loops lose its cause"
            self.findings.add("error-in-chunk", "risk", text, event.at_s)
        self._told_error(message or as_text(error) or shown(error), event.at_s)

    # --- choices ------------------------------------------------------------------------------------

    def _usage(self, chunk: Json, at_s: float) -> None:
        usage = chunk.get("usage")
        tokens = as_int(as_object(usage).get("completion_tokens"))
        if tokens is not None:
            self.output_tokens = tokens
        if usage == {}:
            self.findings.add("empty-usage", "risk", "usage {} in a chunk: Zed stops there", at_s)
        if usage and "choices" not in chunk:
            text = "a chunk of usage without `choices`: typed clients stop, and loops that read choices[0]"
            self.findings.add("usage-without-choices", "risk", text, at_s)

    def _choice(self, choice: Json, event: SseEvent) -> None:
        index = as_int(choice.get("index")) or 0
        if hidden := choice.get("error"):
            self._hide(f"in a choice: {shown(error_message(hidden) or hidden)}")
        self._form(choice, event)
        made = self._delta(index, choice, event)
        word = choice.get("finish_reason")
        if made and index in self.words:
            text = f"{self.FINISH} {self.words[index]!r}, and then more of the answer: {shown(event.data)}"
            self.findings.add("after-finish", "lie", text, event.at_s)
        if word == "":
            text = 'finish_reason "" before the end: it is null until then'
            self.findings.add("empty-finish", "risk", text, event.at_s)
        elif word is not None:
            self._word(index, as_text(word), word, event)
        elif not made and self._is_beat(choice):
            self._beat("empty chunk", event.data, event.at_s)

    def _form(self, choice: Json, event: SseEvent) -> None:
        """What typed clients want of every chunk."""
        add = self.findings.add
        if "finish_reason" not in choice:
            add(
                "no-finish-key",
                "risk",
                "a choice without finish_reason (null until the end): typed clients stop",
                event.at_s,
            )
        if self.api == "completions":
            return
        if not isinstance(choice.get("delta"), dict):
            add("no-delta", "risk", "a choice without a `delta` object: clients stop with a type error", event.at_s)
        elif "role" in as_object(choice["delta"]) and not as_object(choice["delta"])["role"]:
            add("empty-role", "risk", "a role that is empty or null: typed clients refuse the chunk", event.at_s)

    def _is_beat(self, choice: Json) -> bool:
        """A chunk without text. One that comes at once is a token without a text, or a role."""
        if self._quiet_s < BEAT_S:
            return False
        if self.api == "completions":
            return not as_text(choice.get("text"))
        delta = as_object(choice.get("delta"))
        return all(not delta[name] for name in delta if name in _QUIET) and not set(delta) - _QUIET

    def _word(self, index: int, word: str | None, raw: object, event: SseEvent) -> None:
        outcome = WORDS.get(word or "")
        if outcome is None:
            text = (
                f"finish_reason {shown(raw)} is no word of the standard: strict clients stop, others take it for stop"
            )
            self.findings.add("unknown-finish", "lie", text, event.at_s)
            outcome = "failed" if self.error is not None else "cancelled"
        before = self.words.get(index)
        if before is not None:
            same = before == word
            text = f"finish_reason {before!r}, and then {word!r}"
            self.findings.add("finish-again" if same else "finish-twice", "risk" if same else "lie", text, event.at_s)
        if word == "error" and self.error is None:
            text = "finish_reason 'error' before any error object: no client shows a cause"
            self.findings.add("error-without-cause", "risk", text, event.at_s)
        self.words[index] = word or shown(raw)
        self._finished(self.words[index], outcome, event.at_s)

    def _delta(self, index: int, choice: Json, event: SseEvent) -> bool:
        """Whether it has anything of the answer."""
        if self.api == "completions":
            text = as_text(choice.get("text"))
            if text:
                self._token(text, self.text, event.at_s)
            return bool(text)
        delta = as_object(choice.get("delta")) or as_object(choice.get("message"))
        if delta.get("role") is not None:
            self._roles.add(index)
        made = False
        for name in ("content", "refusal"):
            if text := as_text(delta.get(name)):
                self._token(text, self.text, event.at_s)
                made = True
        thought = next((text for name in _THOUGHTS if (text := as_text(delta.get(name)))), None)
        if thought:
            self._token(thought, self.reasoning, event.at_s)
            made = True
        calls = [as_object(call) for call in as_list(delta.get("tool_calls"))]
        if len(calls) > len({as_int(call.get("index")) for call in calls}):
            text = "two pieces of one tool call in one chunk: some clients keep the last one alone"
            self.findings.add("call-twice-in-chunk", "risk", text, event.at_s)
        for call in calls:
            made = self._call(index, call, event) or made
        if legacy := as_object(delta.get("function_call")):
            made = self._call(index, {"index": -1, "function": legacy}, event)
        if made and index not in self._roles:
            self._roles.add(index)
            text = "the first delta has no role: openai-node's helper and LangChain JS break"
            self.findings.add("no-role", "risk", text, event.at_s)
        return made

    def _call(self, choice: int, told: Json, event: SseEvent) -> bool:
        index = as_int(told.get("index"))
        if index is None:
            text = "a piece of a tool call without an index: openai-python's helper stops with a TypeError"
            self.findings.add("call-without-index", "risk", text, event.at_s)
            index = len(self.calls) if told.get("id") else max(0, len(self.calls) - 1)
        function = as_object(told.get("function"))
        name = as_text(function.get("name")) or ""
        if (choice, index) not in self.calls and index >= 0 and not as_text(told.get("id")):
            text = "the first piece of a tool call has no id: clients drop the call, or show it as text"
            self.findings.add("call-without-id", "risk", text, event.at_s)
        call = self.calls.setdefault((choice, index), Call())
        if name and call.name:
            text = f"the name {name!r} again in a later piece of its call: openai-python's helper doubles it"
            self.findings.add("call-name-again", "risk", text, event.at_s)
        call.name = call.name or name
        self._token(as_text(function.get("arguments")) or "", call.arguments, event.at_s)
        return True

    def _judge_calls(self, at_s: float) -> None:
        super()._judge_calls(at_s)
        if not self.calls and "tool_calls" in self.words.values():
            text = "finish_reason 'tool_calls' without a tool call"
            self.findings.add("no-call", "lie", text, at_s)
