"""One stream, from its bytes to a verdict: undoes the coding, reads the events, hears what they tell, notes when.

It owns no connection: whoever reads one (or a recording) feeds it. Memory grows with the text alone.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tools.probe.answer import AnswerReader, BodyEnd, Head, Piece
from tools.probe.beats import Silence
from tools.probe.chat_telling import ChatTelling
from tools.probe.coding import Decoder
from tools.probe.message_telling import MessageTelling
from tools.probe.response_telling import ResponseTelling
from tools.probe.sse import HARMLESS, MEANINGS, SseEvent, SseReader
from tools.probe.target import Api
from tools.probe.telling import UNTRUE, Finding, Telling

CLUSTER_S = 0.02
"""What comes within so short a time came together."""
LEAST_EVENTS = 20
"""Fewer events say nothing about buffering."""


def telling_of(api: Api, limit: int | None = None, *, endless: bool = False) -> Telling:
    match api:
        case "responses":
            return ResponseTelling(limit, endless=endless)
        case "messages":
            return MessageTelling(limit, endless=endless)
        case _:
            return ChatTelling(api, limit, endless=endless)


class Verdict(enum.StrEnum):
    TRUTHFUL = "truthful"
    FAILED = "failed, and said so"
    BROKEN = "broken format"
    CUT = "cut"
    LIE = "lie"
    UNSEEN = "end not seen"

    @property
    def untrue(self) -> bool:
        return self in (Verdict.BROKEN, Verdict.CUT, Verdict.LIE)


@dataclass(slots=True)
class Arrivals:
    """How the bytes came: in how many clusters, and how much of the time went by inside of them."""

    clusters: int = 0
    flowing_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    longest_gap_s: float = 0.0

    def heard(self, at_s: float) -> None:
        if self.first_s is None or at_s - self.last_s > CLUSTER_S:
            self.clusters += 1
        else:
            self.flowing_s += at_s - self.last_s
        if self.first_s is None:
            self.first_s = at_s
        else:
            self.longest_gap_s = max(self.longest_gap_s, at_s - self.last_s)
        self.last_s = at_s

    def lumps(self, events: int) -> bool:
        """Many events come at once, then none for long. A steady flow with a pause in it is none of that."""
        spread_s = 0.0 if self.first_s is None else self.last_s - self.first_s
        few = self.clusters > 1 and events >= 8 * self.clusters
        return few and spread_s >= 0.3 * (self.clusters - 1) and self.flowing_s <= 0.2 * spread_s


class Witness:
    """Feed it the head and the pieces of one streamed answer, then `close`. `timed`: the times mean something.
    `limit`, `endless`: as `Telling` has them."""

    def __init__(self, api: Api, limit: int | None = None, *, timed: bool = True, endless: bool = False) -> None:
        self.telling = telling_of(api, limit, endless=endless)
        self.sse = SseReader()
        self.silence = Silence()
        """Between two bytes of the body, from the head on."""
        self.arrivals = Arrivals()
        self.timed = timed
        self.head: Head | None = None
        self.end: BodyEnd | None = None
        self.end_s = 0.0
        self._decoder = Decoder(None)

    @property
    def coding(self) -> str:
        return self._decoder.coding

    def begin(self, head: Head) -> None:
        self.head = head
        self._decoder = Decoder(head.get("content-encoding"))
        self.silence.heard(head.at_s)
        self.telling.events.heard(head.at_s)

    def feed(self, piece: Piece) -> None:
        self.silence.heard(piece.at_s)
        self.arrivals.heard(piece.at_s)
        self._read(self._decoder.feed(piece.data), piece.at_s)

    def _read(self, data: bytes, at_s: float) -> None:
        for told in self.sse.feed(data, at_s):
            if isinstance(told, SseEvent):
                self.telling.event(told)
            else:
                self.telling.comment(told)

    def close(self, reader: AnswerReader) -> None:
        """The body ended as the reader says."""
        self.end, self.end_s = reader.end or BodyEnd.LEFT, reader.end_s
        self._read(self._decoder.close(), self.end_s)
        if self.end is not BodyEnd.LEFT:
            self.sse.close(self.end_s)
        self.silence.heard(self.end_s)  # of one that we left, it was at least so long
        self.telling.events.heard(self.end_s)
        self.telling.unreadable = self._decoder.fault is not None
        self.telling.close(self.end, self.sse.stray, self.end_s)
        self._judge_bytes(reader)
        self._judge_head()
        if self.timed:
            self._judge_times()

    def _judge_bytes(self, reader: AnswerReader) -> None:
        add = self.telling.findings.add
        for breach in self.sse.breaches.values():
            cut = breach.kind in ("open event", "open line") and self.end is not None and self.end.cut
            if not cut:  # a cut is told as one
                text = MEANINGS[breach.kind] + (f" ({breach.example})" if breach.example else "")
                where = f", byte {breach.at_byte}"
                kind = "breach" if breach.loss else "note" if breach.kind in HARMLESS else "risk"
                add(f"sse: {breach.kind}", kind, text + where, breach.at_s, breach.count)
        for fault in reader.framing_faults:
            add("framing", "breach", fault)
        if reader.surplus and self.end is not None and self.end.whole:
            add(
                "surplus", "breach", f"{len(reader.surplus)} bytes after the body's end: {bytes(reader.surplus[:40])!r}"
            )
        if self._decoder.fault is not None and not (self.end is not None and self.end.cut):
            add("coding", "breach", self._decoder.fault)

    def _judge_head(self) -> None:
        if self.head is None:
            return
        add = self.telling.findings.add
        kind = (self.head.get("content-type") or "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            add("content-type", "breach", f"content-type {kind!r} is not text/event-stream")
        if self.head.version == "HTTP/1.0":
            add("http/1.0", "risk", "an HTTP/1.0 answer: its end cannot be told from a cut, and proxies hold it back")
        if self._decoder.coding != "identity":
            add("compressed", "risk", f"content-encoding {self._decoder.coding}: compressors hold events back")

    def _judge_times(self) -> None:
        events, arrivals = self.sse.events + self.sse.comments, self.arrivals
        if events < LEAST_EVENTS or arrivals.first_s is None:
            return
        spread_s = arrivals.last_s - arrivals.first_s
        add = self.telling.findings.add
        if arrivals.first_s >= 1.0 and spread_s <= 0.05 * arrivals.first_s:
            text = f"all {events} events came at once after {arrivals.first_s:.1f} s: something holds the stream back"
            add("burst", "risk", text)
        elif arrivals.lumps(events):
            text = f"{events} events came in {arrivals.clusters} lumps: something collects them"
            add("lumps", "risk", text)

    @property
    def verdict(self) -> Verdict:
        """After `close`."""
        kinds = {finding.kind for finding in self.telling.findings.all()}
        if "lie" in kinds:
            return Verdict.LIE
        if "cut" in kinds:
            return Verdict.CUT
        if "breach" in kinds:
            return Verdict.BROKEN
        if self.end is BodyEnd.LEFT and self.telling.marker is None:
            return Verdict.UNSEEN
        return Verdict.FAILED if self.telling.failed_openly else Verdict.TRUTHFUL

    def untrue(self) -> list[Finding]:
        return [finding for finding in self.telling.findings.all() if finding.kind in UNTRUE]
