"""What a stream told its client, in words that fit all four APIs, and what of it is not true.

`Telling` holds what the APIs share: errors, tool calls, the judgement over the end. It reads no bytes and has no clock.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tools.probe.answer import BodyEnd
from tools.probe.beats import BeatKind, Heartbeats, Silence
from tools.probe.said import Said
from tools.probe.sse import SseComment, SseEvent
from tools.probe.target import Api
from tools.probe.values import Json, as_object, as_text, is_json, parsed, shown

FindingKind = Literal["lie", "cut", "breach", "risk", "note"]
"""`lie`: a client takes it for what it is not. `cut`: it ended, and nobody said why. `breach`: against the standard.
`risk`: allowed, and known to break clients. `note`: good to know."""
UNTRUE: frozenset[FindingKind] = frozenset({"lie", "cut", "breach"})
KINDS: tuple[FindingKind, ...] = ("lie", "cut", "breach", "risk", "note")

Outcome = Literal["finished", "limit", "filtered", "failed", "cancelled"]
"""What the stream said of its end. Only `finished` is a success."""

FALSE_LIFE_S = 60.0
"""So long nothing but heartbeats is told; opencode and Codex give up after 300 s."""
MOST_HIDDEN = 20
_HALF = re.compile("[\ud800-\udfff]")
_TROUBLE = re.compile(
    r"\b(error|exception|traceback|failed|failure|aborted|out of memory|timed? ?out)\b", re.IGNORECASE
)


@dataclass(slots=True)
class Finding:
    """`id` is stable; `at_s` is None where no time is known."""

    id: str
    kind: FindingKind
    text: str
    at_s: float | None = None
    count: int = 1


class Findings:
    """In the order of their weight. A finding of the same id is counted; the first one's text stays."""

    def __init__(self) -> None:
        self._by_id: dict[str, Finding] = {}

    def add(self, id_: str, kind: FindingKind, text: str, at_s: float | None = None, count: int = 1) -> None:
        if id_ in self._by_id:
            self._by_id[id_].count += count
        else:
            self._by_id[id_] = Finding(id_, kind, text, at_s, count)

    def all(self) -> list[Finding]:
        return sorted(self._by_id.values(), key=lambda finding: KINDS.index(finding.kind))

    def ids(self, *kinds: FindingKind) -> list[str]:
        """Their ids, of these kinds or of all."""
        return [finding.id for finding in self.all() if not kinds or finding.kind in kinds]


@dataclass(slots=True)
class Call:
    """A tool call as it was told. `ended`: the stream said that it is whole. `free`: its input is any text."""

    name: str = ""
    arguments: Said = field(default_factory=Said)
    ended: bool = False
    empty_is_whole: bool = False
    free: bool = False

    @property
    def text(self) -> str:
        return "".join(self.arguments)

    @property
    def whole(self) -> bool:
        """Its arguments are JSON. Of those that are too long to be kept it is not known, and taken for granted."""
        text = self.text
        if self.free or self.arguments.full:
            return True
        return self.empty_is_whole if not text.strip() else is_json(text)


class Telling(abc.ABC):
    """One stream. Feed it events and comments in their order, then `close`.

    `limit`: the tokens that were asked for at most, if they were. `endless`: what was asked for cannot be whole within
    them, so that an answer of just so many was cut; else it may have ended by itself with its last token.
    """

    MARKER: str
    """What ends a good stream of this API."""
    FINISH: str
    """Where this API says how the answer ended."""

    def __init__(self, api: Api, limit: int | None = None, *, endless: bool = False) -> None:
        self.api: Api = api
        self.limit = limit
        self.endless = endless
        self.findings = Findings()
        self.heartbeats = Heartbeats()
        self.events = Silence()
        """Between two events, from the head to the end: comments are none."""
        self.tokens = Silence()
        self.text = Said()
        self.reasoning = Said()
        self.calls: dict[object, Call] = {}
        self.finish: str | None = None
        """The word for how it ended, as it was written."""
        self.outcome: Outcome | None = None
        self.marker: str | None = None
        """The end marker, once it came."""
        self.marker_s: float | None = None
        self.error: str | None = None
        """The error that was told where clients see it."""
        self.hidden: list[str] = []
        """Errors that were told where no client looks; the first of them."""
        self.output_tokens: int | None = None
        self.first_event_s: float | None = None
        self.first_token_s: float | None = None
        self.event_count = 0
        self.token_count = 0
        self.unreadable = False
        """The rest was in a coding that could not be undone."""
        self.news_s = 0.0
        """When something came last that is no heartbeat; 0: when the request was sent."""
        self.beats_alone_s = 0.0
        """The longest time with heartbeats alone, once the answer had begun and before it ended."""
        self._is_news = False
        self._quiet_s = 0.0
        """How long no event had come before this one."""

    # --- what comes ---------------------------------------------------------------------------------

    def event(self, event: SseEvent) -> None:
        self.event_count += 1
        last_s = self.events.last_s if self.event_count > 1 else None
        self._quiet_s = 0.0 if last_s is None else event.at_s - last_s
        self.events.heard(event.at_s)
        if self.first_event_s is None:
            self.first_event_s = event.at_s
        self._is_news = True
        self._event(event)
        if self._is_news:
            self.news_s = event.at_s
        if self.marker is not None and self.marker_s is None:
            self.marker_s = event.at_s

    @abc.abstractmethod
    def _event(self, event: SseEvent) -> None: ...

    def comment(self, comment: SseComment) -> None:
        if _TROUBLE.search(comment.text):
            self._hide(f"in a comment: {shown(comment.text)}")
        if self.marker is not None:
            self._beat_after_end(comment.at_s)
        else:
            self._beat("comment", ": " + comment.text, comment.at_s)

    def _beat(self, kind: BeatKind, example: str, at_s: float) -> None:
        self._is_news = False
        self.heartbeats.beat(kind, example[:80], at_s)
        if self.token_count and self.outcome is None:
            self.beats_alone_s = max(self.beats_alone_s, at_s - self.news_s)

    def _hide(self, text: str) -> None:
        """An error that no client sees."""
        if len(self.hidden) < MOST_HIDDEN:
            self.hidden.append(text)

    def _beat_after_end(self, at_s: float) -> None:
        self._is_news = False
        self.findings.add("beat-after-end", "risk", "a heartbeat after the end: it says that the answer goes on", at_s)

    def _token(self, text: str, into: Said, at_s: float) -> None:
        """Something that the model made."""
        self.heartbeats.other()
        self.tokens.heard(at_s)
        self.token_count += 1
        if self.first_token_s is None:
            self.first_token_s = at_s
        into.append(text)
        if not text.isascii():
            self._judge_characters(text, at_s)

    def _judge_characters(self, text: str, at_s: float) -> None:
        if _HALF.search(text):
            told = f"half of a surrogate pair in the text: Python's clients cannot send it on: {shown(text)}"
            self.findings.add("lone-surrogate", "risk", told, at_s)
        if "\ufffd" in text:
            told = f"a replacement mark in the text: was a character split over two tokens? {shown(text)}"
            self.findings.add("replacement-mark", "note", told, at_s)

    def _json(self, event: SseEvent) -> Json | None:
        """The event's data; None: it is no JSON object, which is said."""
        try:
            value = parsed(event.data)
        except ValueError as error:
            self.findings.add("not-json", "breach", f"data is not JSON ({error}): {shown(event.data)}", event.at_s)
            return None
        if not isinstance(value, dict):
            self.findings.add("no-object", "breach", f"data is not a JSON object: {shown(event.data)}", event.at_s)
            return None
        return as_object(value)  # pyright: ignore[reportUnknownArgumentType] - JSON

    def _told_error(self, message: str, at_s: float) -> None:
        self.heartbeats.other()
        if self.error is None:
            self.error = message
        if self.outcome == "finished":
            self.findings.add(
                "error-after-success",
                "lie",
                f"{self.FINISH} {self.finish!r}, and then an error: {shown(message)}",
                at_s,
            )

    def _finished(self, word: str, outcome: Outcome, at_s: float) -> None:
        self.heartbeats.other()
        self.finish, self.outcome = word, outcome
        if outcome == "finished" and self.error is not None:
            text = f"an error, and then {self.FINISH} {word!r}: {shown(self.error)}"
            self.findings.add("success-after-error", "lie", text, at_s)

    # --- the end ------------------------------------------------------------------------------------

    def close(self, end: BodyEnd, stray: Sequence[str], at_s: float) -> None:
        """The body ended so. `stray`: lines that were no fields, which is where some servers put their errors."""
        lost = [line for line in stray if _TROUBLE.search(line) or (self.outcome is None and line.lstrip()[:1] in "{<")]
        for line in lost:
            self._hide(f"outside the format: {shown(line)}")
        if self.beats_alone_s >= FALSE_LIFE_S:
            text = (
                f"nothing but heartbeats for {self.beats_alone_s:.0f} s in mid-answer: they hide an engine that is dead"
            )
            self.findings.add("false-life", "risk", text, at_s)
        self._judge_end(end, at_s)
        self._judge_calls(at_s)
        self._judge_limit(at_s)
        if self.hidden and self.error is None and self.outcome != "failed":
            text = f"an error where no client sees it, {self.hidden[0]}"
            self.findings.add("hidden-error", "lie", text, at_s, len(self.hidden))

    def _judge_end(self, end: BodyEnd, at_s: float) -> None:
        add = self.findings.add
        how = HOW_ENDED[end]
        told = self.outcome is not None or self.error is not None
        if self.marker is not None:
            if not told:
                add("no-finish", "lie", f"{self.marker} without any {self.FINISH}: clients take it for finished", at_s)
            if end is BodyEnd.SILENT:
                add("open-after-end", "breach", f"the connection stays open after {self.marker}", at_s)
            elif end.cut:
                add("cut-after-end", "breach", f"after {self.marker} {how}: HTTP clients call that an error", at_s)
        elif end is BodyEnd.LEFT:
            add("left", "note", "we left before the end, so that it was not seen", at_s)
        elif end.cut and self.error is not None:
            add("cut-after-error", "breach", f"an error was told, and then {how}", at_s)
        elif end.cut:
            where = "in mid-answer" if self.outcome is None else f"after {self.FINISH} {self.finish!r}"
            add("cut", "cut", f"{where} {how}, before {self.MARKER}", at_s)
        elif self.unreadable:
            pass  # its coding is what is told
        elif end is BodyEnd.RECORDING and self.error is None:
            where = "in mid-answer" if self.outcome is None else f"after {self.FINISH} {self.finish!r}"
            text = f"{where} {how}, before {self.MARKER}; it does not say whether the connection was cut or just ended"
            add("recording-ends", "cut", text, at_s)
        elif not told:
            nothing = "no event at all" if not self.event_count else f"no {self.FINISH} and no {self.MARKER}"
            add("no-finish", "lie", f"{how} with {nothing}: clients take it for finished", at_s)
        elif self.error is not None and self.outcome in (None, "failed"):
            add("no-marker-after-error", "risk", f"an error was told, and then {how} without {self.MARKER}", at_s)
        else:
            add("no-marker", "lie", f"{how} without {self.MARKER}", at_s)

    def _judge_calls(self, at_s: float) -> None:
        if self.outcome != "finished":
            return
        for call in self.calls.values():
            if not call.whole:
                text = f"{self.FINISH} {self.finish!r} over a call of {call.name!r} whose arguments are not JSON: "
                self.findings.add("cut-arguments", "lie", text + shown(call.text[-60:]), at_s)

    def _judge_limit(self, at_s: float) -> None:
        made = self.output_tokens
        if self.limit is None or made is None:
            return
        if self.outcome == "finished" and made >= self.limit:
            text = f"{self.FINISH} {self.finish!r} after {made} tokens, and {self.limit} were asked for at most"
            kind: FindingKind = "lie" if self.endless or made > self.limit else "risk"
            self.findings.add("success-at-limit", kind, text, at_s)
        elif self.outcome == "limit" and made < self.limit:
            text = f"{self.FINISH} {self.finish!r} after {made} of {self.limit} tokens: is the context full?"
            self.findings.add("limit-early", "note", text, at_s)

    @property
    def failed_openly(self) -> bool:
        """The stream said that the answer failed."""
        return self.outcome == "failed" or self.error is not None


HOW_ENDED = {
    BodyEnd.LENGTH: "the body ended cleanly",
    BodyEnd.TERMINATOR: "the body ended cleanly",
    BodyEnd.NO_BODY: "there is no body",
    BodyEnd.CLOSE: "the connection was closed",
    BodyEnd.NO_TERMINATOR: "the connection was closed without the last chunk",
    BodyEnd.SHORT: "the connection was closed before Content-Length was reached",
    BodyEnd.RESET: "the connection was reset",
    BodyEnd.TLS_CUT: "the connection ended without TLS's close",
    BodyEnd.FRAMING: "the framing broke",
    BodyEnd.NO_ANSWER: "the connection ended without an answer",
    BodyEnd.SILENT: "nothing came any more",
    BodyEnd.LEFT: "we left",
    BodyEnd.RECORDING: "the recording ends",
}


def error_message(value: object) -> str | None:
    """The message of an error object as clients read it: a `message` that is a text."""
    message = as_text(as_object(value).get("message"))
    return message or None
