"""Streams of Anthropic's Messages API -> what they told. Source: Anthropic API reference, "Streaming Messages"."""

from __future__ import annotations

from collections.abc import Mapping

from tools.probe.sse import SseEvent
from tools.probe.telling import Call, Outcome, Telling, error_message
from tools.probe.values import Json, as_int, as_object, as_text, at, shown

REASONS: Mapping[str, Outcome] = {
    "end_turn": "finished",
    "tool_use": "finished",
    "stop_sequence": "finished",
    "pause_turn": "finished",
    "max_tokens": "limit",
    "model_context_window_exceeded": "limit",
    "refusal": "filtered",
}


class MessageTelling(Telling):
    MARKER = "event: message_stop"
    FINISH = "stop_reason"

    def __init__(self, limit: int | None = None, *, endless: bool = False) -> None:
        super().__init__("messages", limit, endless=endless)
        self._open: dict[int | None, str] = {}
        self._started = False

    def _event(self, event: SseEvent) -> None:
        if event.data.strip() == "[DONE]":
            self.findings.add(
                "done-marker", "note", "[DONE] on a Messages stream, which has no such marker", event.at_s
            )
            return
        value = self._json(event)
        if value is None:
            if event.name == "error":
                self._hide(f"in an event whose data is not JSON: {shown(event.data)}")
            return
        kind = as_text(value.get("type")) or ""
        if not kind and "error" in value:
            self._hide(f"in another API's form: {shown(error_message(value['error']) or event.data)}")
            return
        if not event.named:
            text = f"no `event:` line ({kind}): Anthropic's SDKs do not see such an event"
            self.findings.add("no-event-line", "lie" if kind == "error" else "breach", text, event.at_s)
        elif event.name != kind:
            text = f"the line `event: {event.name}` stands over the type {kind!r}"
            self.findings.add("event-name", "breach", text, event.at_s)
        if kind == "ping":
            self._ping(event)
            return
        self._after_end(kind, event)
        self._take(kind, value, event)

    def _ping(self, event: SseEvent) -> None:
        if self.marker is not None:
            self._beat_after_end(event.at_s)
        else:
            self._beat("ping event", event.data, event.at_s)

    def _after_end(self, kind: str, event: SseEvent) -> None:
        if self.error is not None and kind in ("message_delta", "message_stop"):
            text = f"{kind} after an error: clients take the answer for finished"
            self.findings.add("success-after-error", "lie", text, event.at_s)
        elif self.marker is not None:
            self.findings.add("after-end", "lie", f"{kind} after {self.marker}", event.at_s)

    def _take(self, kind: str, value: Json, event: SseEvent) -> None:
        match kind:
            case "message_start":
                self._start(value, event)
            case "content_block_start":
                self._block(value, event)
            case "content_block_delta":
                self._delta(value, event)
            case "content_block_stop":
                index = as_int(value.get("index"))
                self._open.pop(index, None)
                if index in self.calls:
                    self.calls[index].ended = True
            case "message_delta":
                self._reason(value, event)
            case "message_stop":
                self._stop(event)
            case "error":
                error = value.get("error")
                message = error_message(error)
                if message is None:
                    text = f"the error has no message: {shown(event.data)}"
                    self.findings.add("error-form", "breach", text, event.at_s)
                self._told_error(message or shown(error), event.at_s)
                self.marker = self.marker or "error"  # nothing follows it, message_stop neither
            case _:
                self.findings.add("unknown-event", "note", f"an event of type {kind!r}", event.at_s)

    def _start(self, value: Json, event: SseEvent) -> None:
        if self._started:
            self.findings.add("two-starts", "lie", "a second message_start", event.at_s)
        self._started = True
        missing = [
            name for name in ("id", "type", "role", "model", "content", "usage") if at(value, "message", name) is None
        ]
        if missing:
            text = f"message_start without {', '.join(missing)}: SDKs and Claude Code stop or retry"
            self.findings.add("start-incomplete", "breach", text, event.at_s)
        absent = [name for name in ("stop_reason", "stop_sequence") if name not in as_object(value.get("message"))]
        if absent and not missing:
            text = f"message_start without {' and '.join(absent)} (null): Claude Code asks again and again"
            self.findings.add("start-without-stop", "risk", text, event.at_s)

    def _block(self, value: Json, event: SseEvent) -> None:
        index = as_int(value.get("index"))
        block = as_object(value.get("content_block"))
        kind = as_text(block.get("type")) or "?"
        if self._open:
            self.findings.add("blocks-overlap", "breach", "a block starts before the last one stopped", event.at_s)
        self._open[index] = kind
        if kind == "tool_use":
            self.calls[index] = Call(as_text(block.get("name")) or "", empty_is_whole=True)
        if self.outcome is not None:
            text = f"stop_reason {self.finish!r}, and then another block"
            self.findings.add("after-finish", "lie", text, event.at_s)

    def _delta(self, value: Json, event: SseEvent) -> None:
        index = as_int(value.get("index"))
        delta = as_object(value.get("delta"))
        if index not in self._open:
            self.findings.add("delta-outside", "breach", "a delta outside of any block", event.at_s)
        if self.outcome is not None:
            text = f"stop_reason {self.finish!r}, and then more of the answer: {shown(event.data)}"
            self.findings.add("after-finish", "lie", text, event.at_s)
        if (text := as_text(delta.get("partial_json"))) is not None:
            call = self.calls.setdefault(index, Call(empty_is_whole=True))
            self._token(text, call.arguments, event.at_s)
        elif text := as_text(delta.get("text")):
            self._token(text, self.text, event.at_s)
        elif text := as_text(delta.get("thinking")):
            self._token(text, self.reasoning, event.at_s)

    def _reason(self, value: Json, event: SseEvent) -> None:
        tokens = as_int(at(value, "usage", "output_tokens"))
        if tokens is not None:
            self.output_tokens = tokens
        reason = as_text(at(value, "delta", "stop_reason"))
        if reason is None:
            return
        outcome = REASONS.get(reason)
        if outcome is None:
            text = f"stop_reason {reason!r} is no word of the standard: some clients take it for end_turn"
            self.findings.add("unknown-finish", "lie", text, event.at_s)
            outcome = "failed" if reason == "error" else "cancelled"
        if self.finish is not None and self.finish != reason:
            self.findings.add("finish-twice", "lie", f"stop_reason {self.finish!r}, and then {reason!r}", event.at_s)
        self._finished(reason, outcome, event.at_s)
        if reason == "tool_use" and not self.calls:
            self.findings.add("no-call", "lie", "stop_reason 'tool_use' without a tool_use block", event.at_s)

    def _stop(self, event: SseEvent) -> None:
        self.heartbeats.other()
        self.marker = "message_stop"
        if not self._started:
            self.findings.add("stop-without-start", "breach", "message_stop without message_start", event.at_s)
        if self._open and self.outcome == "finished":
            text = f"stop_reason {self.finish!r} over a {next(iter(self._open.values()))} block that was not closed"
            self.findings.add("open-block", "lie", text, event.at_s)
