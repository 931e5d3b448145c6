"""One client of a run: it asks for streams one after another, reads, leaves or dawdles as its dice say, and notes how
each ended. What a stream told is judged by the probe's witness.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tools.probe.answer import AnswerReader, BodyEnd, Piece
from tools.probe.asking import asking
from tools.probe.coding import Decoder
from tools.probe.connection import Connection
from tools.probe.exits import CouldNotRun
from tools.probe.live import AFTER_END_S, told_by
from tools.probe.target import Target
from tools.probe.telling import HOW_ENDED
from tools.probe.values import shown
from tools.probe.witness import Verdict, Witness
from tools.soak.record import UNTRUE, Ending, Evidence, Record, Seen
from tools.soak.settings import Dice, Settings, Wish

EVIDENCE_BYTES = 64 * 1024
REFUSAL_BYTES = 64 * 1024
AWAY_S = 0.5
"""A client that could not reach the server, or was refused, waits so long before it asks again."""


@dataclass(slots=True)
class _Tape:
    """The first and the last bytes of an answer, as they came."""

    begin: bytearray = field(default_factory=bytearray)
    end: bytearray = field(default_factory=bytearray)
    count: int = 0

    def hear(self, data: bytes) -> None:
        self.count += len(data)
        room = EVIDENCE_BYTES - len(self.begin)
        if room > 0:
            self.begin += data[:room]
            data = data[room:]
        self.end += data
        if len(self.end) > 2 * EVIDENCE_BYTES:
            del self.end[:-EVIDENCE_BYTES]

    def evidence(self, seen: Seen, request: bytes) -> Evidence:
        end = bytes(self.end[-EVIDENCE_BYTES:])
        return Evidence(seen, request, bytes(self.begin), end, self.count - len(self.begin) - len(end))


class Client:
    """Streams one after another, from a thread of its own, until `closing` is set; at `leaving` it leaves at once.

    `fault` is what ended the thread.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        model: str | None,
        settings: Settings,
        record: Record,
        closing: threading.Event,
        leaving: threading.Event,
    ) -> None:
        self._target = target
        self._model = model
        self._settings = settings
        self._record = record
        self._closing = closing
        self._leaving = leaving
        self._dice = Dice(settings, name)
        self._thread = threading.Thread(target=self._run, name=f"soak-{name}", daemon=True)
        self.fault: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended, within the time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                seen = self.one(self._dice.wish())
                if seen.ending in (Ending.UNREACHABLE, Ending.REFUSED):
                    self._closing.wait(AWAY_S)
        except Exception as error:  # noqa: BLE001 - a thread: who started it is told
            self.fault = error

    def one(self, wish: Wish) -> Seen:
        """One stream, noted in the record."""
        number, begun_s = self._record.begin(), self._record.now_s()
        body = asking(wish.api, self._model, wish.prompt, max_tokens=wish.max_tokens, stream=True)
        stream = _Stream(self._target, wish, self._settings, self._leaving, lambda: self._record.first_token(number))
        try:
            ending, why = stream.read(json.dumps(body).encode())
        except CouldNotRun as error:
            ending, why = Ending.UNREACHABLE, (str(error),)
        telling = stream.witness.telling
        seen = Seen(
            number,
            wish.api,
            wish.max_tokens,
            begun_s,
            self._record.now_s(),
            ending,
            stream.reader.head.status if stream.reader.head else 0,
            telling.token_count,
            telling.first_token_s,
            telling.tokens.last_s,
            stream.witness.silence.longest_s,
            telling.outcome == "finished",
            (telling.output_tokens or 0) >= wish.max_tokens,
            why,
        )
        evidence = stream.tape.evidence(seen, json.dumps(body).encode()) if ending in UNTRUE else None
        self._record.ended(seen, evidence)
        return seen


class _Stream:
    """One request, read to its end or until we leave."""

    def __init__(
        self,
        target: Target,
        wish: Wish,
        settings: Settings,
        leaving: threading.Event,
        first_token: Callable[[], object],
    ) -> None:
        self.reader = AnswerReader()
        self.witness = Witness(wish.api, wish.max_tokens, timed=False)
        self.tape = _Tape()
        self._target = target
        self._wish = wish
        self._settings = settings
        self._leaving = leaving
        self._first_token = first_token
        self._refusal = bytearray()
        self._left = wish.leave_after == 0

    def read(self, body: bytes) -> tuple[Ending, tuple[str, ...]]:
        """How it ended, and why. Raises: CouldNotRun: the server was not reached."""
        wish, reader = self._wish, self.reader
        with Connection(self._target, verify=self._settings.verify, heard=self.tape.hear) as connection:
            connection.send(self._target.post(wish.api, body))
            while reader.end is None and not self._left:
                self._read(connection)
            if self._left:
                reader.closed("left", connection.now_s())
                if wish.leaving == "reset":
                    connection.reset()
        self._begin()
        self.witness.close(reader)
        return self._ending()

    def _read(self, connection: Connection) -> None:
        """Read on, until the end, or until something changes for how."""
        settings, wish, telling = self._settings, self._wish, self.witness.telling
        ended = telling.marker is not None
        silence_s = min(settings.silence_s, AFTER_END_S) if ended else settings.silence_s
        for piece in connection.pieces(
            self.reader, silence_s=silence_s, until_s=settings.stream_limit_s, stop=self._leaving
        ):
            self._begin()
            before = telling.token_count
            self._take(piece)
            if telling.token_count and not before:
                self._first_token()
                if wish.pause_s:
                    self._leaving.wait(wish.pause_s)
            if wish.leave_after is not None and telling.token_count >= wish.leave_after:
                self._left = True
                return
            if telling.marker is not None and not ended:
                return  # with another patience

    def _begin(self) -> None:
        if self.witness.head is None and self.reader.head is not None:
            self.witness.begin(self.reader.head)

    def _take(self, piece: Piece) -> None:
        head = self.reader.head
        if head is None or head.status == 200:
            self.witness.feed(piece)
        elif len(self._refusal) < REFUSAL_BYTES:
            self._refusal += piece.data

    def _ending(self) -> tuple[Ending, tuple[str, ...]]:
        head, end = self.reader.head, self.reader.end or BodyEnd.LEFT
        if head is None or head.status != 200:
            return self._without_a_stream(end)
        verdict = self.witness.verdict
        if verdict.untrue:
            untrue = tuple(f"{finding.id}: {finding.text}" for finding in self.witness.untrue())
            silent = end is BodyEnd.SILENT and verdict is Verdict.CUT
            return (Ending.SILENT if silent else _OF_VERDICT[verdict]), untrue
        if verdict is Verdict.UNSEEN:
            return self._leave_ending()
        failed = verdict is Verdict.FAILED
        return (Ending.FAILED, (shown(self.witness.telling.error),)) if failed else (Ending.WHOLE, ())

    def _without_a_stream(self, end: BodyEnd) -> tuple[Ending, tuple[str, ...]]:
        head = self.reader.head
        if end is BodyEnd.LEFT:
            return self._leave_ending()
        if end is BodyEnd.SILENT:
            return Ending.SILENT, (self.reader.end_note,)
        if head is None or end.cut:
            where = f"in an answer with status {head.status}" if head else "without an answer"
            return Ending.CUT, (f"{HOW_ENDED[end]}, {where}",)
        told = told_by(Decoder(head.get("content-encoding")).feed(bytes(self._refusal)))
        return Ending.REFUSED, (f"status {head.status}: {shown(told)}",)

    def _leave_ending(self) -> tuple[Ending, tuple[str, ...]]:
        if self._left:
            return Ending.LEFT, ()
        if self._leaving.is_set():
            return Ending.UNFINISHED, ()
        return Ending.ENDLESS, (f"it had not ended after {self._settings.stream_limit_s:g} s",)


_OF_VERDICT = {Verdict.LIE: Ending.LIE, Verdict.CUT: Ending.CUT, Verdict.BROKEN: Ending.BROKEN}
