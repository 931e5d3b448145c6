"""Streams of the Responses API -> what they told. Source: OpenAI API reference, "Streaming events" of Responses."""

from __future__ import annotations

from collections.abc import Mapping

from tools.probe.answer import BodyEnd
from tools.probe.sse import SseEvent
from tools.probe.telling import Call, Outcome, Telling, error_message
from tools.probe.values import Json, as_int, as_list, as_object, as_text, at, is_json, shown

STATUSES: Mapping[str, Outcome] = {
    "completed": "finished",
    "incomplete": "limit",
    "failed": "failed",
    "cancelled": "cancelled",
}
REASONS: Mapping[str, Outcome] = {"max_output_tokens": "limit", "content_filter": "filtered"}


class ResponseTelling(Telling):
    MARKER = "response.completed, .incomplete or .failed"
    FINISH = "status"

    def __init__(self, limit: int | None = None, *, endless: bool = False) -> None:
        super().__init__("responses", limit, endless=endless)
        self.response: Json = {}
        """The one of the terminal event."""
        self._number: int | None = None
        self._id: str | None = None
        self._created = False
        self._quiet = False

    def _event(self, event: SseEvent) -> None:
        if event.data.strip() == "[DONE]":
            self.findings.add(
                "done-marker", "note", "[DONE] on a Responses stream, which has no such marker", event.at_s
            )
            return
        value = self._json(event)
        if value is None:
            return
        kind = as_text(value.get("type")) or ""
        if not kind:
            text = f"an event without a type: clients drop it or stop: {shown(event.data)}"
            self.findings.add("no-type", "breach", text, event.at_s)
            if "error" in value:
                self._hide(f"in another API's form: {shown(error_message(value['error']) or event.data)}")
            return
        if event.name != kind:
            what = f"the line `event: {event.name}`" if event.named else "no `event:` line"
            self.findings.add("event-name", "breach", f"{what} stands over the type {kind!r}", event.at_s)
        self._sequence(value, event)
        if self.marker is not None:
            self.findings.add("after-end", "lie", f"{kind} after {self.marker}", event.at_s)
        self._take(kind, value, event)

    def _sequence(self, value: Json, event: SseEvent) -> None:
        number = as_int(value.get("sequence_number"))
        if number is None:
            text = f"{value.get('type')} has no sequence_number: strict clients stop, and nobody can resume"
            self.findings.add("no-sequence-number", "breach", text, event.at_s)
        elif self._number is not None and number != self._number + 1:
            text = f"sequence_number {number} follows {self._number}"
            self.findings.add("sequence-gap", "breach", text, event.at_s)
        elif self._number is None and number:
            text = f"the first sequence_number is {number}, not 0: clients that resume miss events"
            self.findings.add("sequence-start", "risk", text, event.at_s)
        self._number = number if number is not None else self._number

    def _take(self, kind: str, value: Json, event: SseEvent) -> None:
        name = kind.removeprefix("response.")
        self._same_id(value, event)
        if kind == "error":
            nested = error_message(value.get("error"))
            message = nested or as_text(value.get("message"))
            if nested is None:
                text = "the error event has no nested `error` object: openai-python hands it on as an ordinary event"
                self.findings.add("error-form", "risk", text, event.at_s)
            self._told_error(message or event.data, event.at_s)
        elif name in STATUSES and kind != name:
            self._terminal(name, as_object(value.get("response")), event)
        elif name in ("created", "in_progress", "queued"):
            if self._created and name != "created":
                self._progress(name, event)
            self._created = True
        elif name.endswith(".delta"):
            self._delta(name, value, event)
        else:
            self.heartbeats.other()
            self._item(name, value, event)

    def _progress(self, name: str, event: SseEvent) -> None:
        """The first `in_progress` belongs to every stream; each one more is a heartbeat."""
        if self._quiet or name == "queued":
            self._beat("repeated in_progress", f"response.{name}", event.at_s)
        self._quiet = True

    def _same_id(self, value: Json, event: SseEvent) -> None:
        id_ = as_text(at(value, "response", "id"))
        if id_ is not None and self._id is not None and id_ != self._id:
            text = f"the response's id was {self._id!r} and is now {id_!r}: openai's helpers stop, and hide the cause"
            self.findings.add("id-changes", "risk", text, event.at_s)
        self._id = self._id or id_

    def _delta(self, name: str, value: Json, event: SseEvent) -> None:
        text = as_text(value.get("delta")) or ""
        key = value.get("output_index")
        lacking = [each for each in ("output_index", "item_id") if value.get(each) is None]
        if lacking:
            told = f"response.{name} without {' and '.join(lacking)}: typed clients drop it"
            self.findings.add("delta-without-item", "risk", told, event.at_s)
        if "arguments" in name:
            self._token(text, self._call(key).arguments, event.at_s)
        elif name.startswith("custom_tool_call_input"):
            call = self._call(key)
            call.free = True
            self._token(text, call.arguments, event.at_s)
        elif name.startswith("reasoning"):
            self._token(text, self.reasoning, event.at_s)
        elif text:
            self._token(text, self.text, event.at_s)

    def _call(self, key: object) -> Call:
        return self.calls.setdefault(key if isinstance(key, int) else -1, Call())

    def _item(self, name: str, value: Json, event: SseEvent) -> None:
        item = as_object(value.get("item"))
        if item.get("type") == "function_call":
            call = self._call(value.get("output_index"))
            call.name = call.name or as_text(item.get("name")) or ""
            if name == "output_item.done":
                self._call_done(item, call, event)
        if name == "function_call_arguments.done":
            told, call = as_text(value.get("arguments")), self._call(value.get("output_index"))
            if told is not None and call.arguments and not call.arguments.full and told != call.text:
                text = f"the arguments at the end are not those of the deltas: {shown(told)}"
                self.findings.add("done-differs", "lie", text, event.at_s)
            elif told is not None and not call.arguments:
                call.arguments.append(told)

    def _call_done(self, item: Json, call: Call, event: SseEvent) -> None:
        arguments = as_text(item.get("arguments"))
        if not call.arguments and arguments:
            call.arguments.append(arguments)
        call.ended = item.get("status") == "completed"
        if call.ended and not is_json(arguments or ""):
            text = f"the call of {call.name!r} is done and completed, and its arguments are not JSON: "
            self.findings.add("cut-call-completed", "lie", text + shown((arguments or "")[-60:]), event.at_s)

    def _judge_end(self, end: BodyEnd, at_s: float) -> None:
        super()._judge_end(end, at_s)
        if "comment" in self.heartbeats.kinds and "repeated in_progress" not in self.heartbeats.kinds:
            text = "heartbeats are comments alone: Codex does not see them and gives up after 300 s"
            self.findings.add("comment-beats", "risk", text)

    def _terminal(self, status: str, response: Json, event: SseEvent) -> None:
        self.marker = f"response.{status}"
        self.response = response
        outcome = STATUSES[status]
        inner = as_text(response.get("status"))
        if inner != status:
            text = f"the event says {status}, the response in it {inner!r}"
            self.findings.add("status-contradicts", "lie", text, event.at_s)
        reason = as_text(at(response, "incomplete_details", "reason"))
        if status == "incomplete":
            outcome = REASONS.get(reason or "", "limit")
            if reason not in REASONS:
                text = f"incomplete with the reason {reason!r}: only max_output_tokens and content_filter are known"
                self.findings.add("unknown-reason", "risk", text, event.at_s)
        self.output_tokens = as_int(at(response, "usage", "output_tokens"))
        if status == "failed":
            self.error = self.error or error_message(response.get("error"))
            if self.error is None:
                text = "response.failed without an error: LangChain JS takes it for finished"
                self.findings.add("error-without-cause", "risk", text, event.at_s)
        self._finished(status, outcome, event.at_s)
        if status == "completed":
            self._judge_completed(response, reason, event)

    def _judge_completed(self, response: Json, reason: str | None, event: SseEvent) -> None:
        add = self.findings.add
        if reason is not None:
            add("status-contradicts", "lie", f"completed, with incomplete_details {reason!r}", event.at_s)
        if response.get("error") is not None:
            add("status-contradicts", "lie", f"completed, with an error: {shown(response['error'])}", event.at_s)
        for item in map(as_object, as_list(response.get("output"))):
            if item.get("status") in ("incomplete", "in_progress"):
                text = f"completed, with a {item.get('type')} that is {item.get('status')}"
                add("status-contradicts", "lie", text, event.at_s)
