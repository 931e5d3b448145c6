"""One exchange with a server, recorded: what was asked, every event with its time, how it ended. It judges nothing.

A thread of its own reads, so that whoever asked can act in mid-answer: wait for a token, kill the engine, leave.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from tools.probe.answer import AnswerReader, BodyEnd, Head, Piece
from tools.probe.coding import Decoder
from tools.probe.connection import Connection
from tools.probe.sse import SseComment, SseEvent, SseReader
from tools.probe.target import Api, Target
from tools.probe.telling import HOW_ENDED, Telling
from tools.probe.values import Json, as_object, parsed, shown
from tools.probe.witness import Witness

MAX_BODY_BYTES = 64 * 1024 * 1024
STEP_S = 0.02
JOIN_S = 30.0
"""How long the reader's thread may take to end once it was told to."""
AFTER_END_S = 10.0
"""How long a connection may stay open after the end marker."""
NO_STREAMS = ("application/json", "application/problem+json", "text/html")


@dataclass(frozen=True, slots=True)
class Told:
    """One event of a stream. `value`: its data as a JSON object; empty where it is none."""

    event: SseEvent
    value: Json

    @property
    def kind(self) -> str:
        kind = self.value.get("type")
        return kind if isinstance(kind, str) else ""


class Talk:
    """Use as a context manager, or `join` it: either way nothing is left running.

    `limit`: the tokens that were asked for. `patience_s`: it is given up after so long without a byte.

    Raises: CouldNotRun: the server cannot be reached.
    """

    def __init__(
        self,
        target: Target,
        api: Api,
        request: bytes,
        *,
        asked: Json | None = None,
        name: str = "",
        limit: int | None = None,
        patience_s: float = 120.0,
        verify: bool = True,
    ) -> None:
        self.api: Api = api
        self.limit = limit
        self.name = name
        self.asked = asked or {}
        self.reader = AnswerReader(request.partition(b" ")[0].decode("latin-1"))
        self.witness = Witness(api, limit)
        self.events: list[Told] = []
        self.comments: list[SseComment] = []
        self.raw = bytearray()
        """The body without framing and coding, up to a limit."""
        self._patience_s = patience_s
        self._sse = SseReader()
        self._decoder = Decoder(None)
        self._fault: Exception | None = None
        self._over = False
        self._news = threading.Condition()
        self._stop = threading.Event()
        self.connection = Connection(target, verify=verify)
        self.connection.send(request)
        self._thread = threading.Thread(target=self._read, name="conform-read", daemon=True)
        self._thread.start()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.leave()

    # --- the reading thread -------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while self.reader.end is None:
                self._read_on()
            with self._news:
                self._begin()
                self._take(self._decoder.close(), self.reader.end_s)
                self.witness.close(self.reader)
        except Exception as error:  # noqa: BLE001 - a thread: `leave` raises it
            self._fault = error
        finally:
            with self._news:
                self._over = True
                self._news.notify_all()

    def _read_on(self) -> None:
        """To the end, or to the end marker: what follows has less time."""
        patience_s = self._patience_s
        if (marked := self.telling.marker is not None) and self.reader.end is None:
            patience_s = min(patience_s, AFTER_END_S)
        for piece in self.connection.pieces(self.reader, silence_s=patience_s, stop=self._stop):
            with self._news:
                self._hear(piece)
                self._news.notify_all()
            if not marked and self.telling.marker is not None:
                return

    def _begin(self) -> None:
        if self.witness.head is None and self.reader.head is not None:
            self.witness.begin(self.reader.head)
            self._decoder = Decoder(self.reader.head.get("content-encoding"))

    def _hear(self, piece: Piece) -> None:
        self._begin()
        if len(self.raw) <= MAX_BODY_BYTES:
            if self.is_stream:
                self.witness.feed(piece)
            self._take(self._decoder.feed(piece.data), piece.at_s)

    def _take(self, data: bytes, at_s: float) -> None:
        self.raw += data
        for told in self._sse.feed(data, at_s) if self.is_stream else ():
            if isinstance(told, SseEvent):
                self.events.append(Told(told, _object(told.data)))
            else:
                self.comments.append(told)

    # --- acting in mid-answer -----------------------------------------------------------------------

    def wait(self, enough: Callable[[Talk], bool], limit_s: float) -> bool:
        """Block until `enough` holds (True), or the answer has ended or the time is up without it."""
        until_s = time.perf_counter() + limit_s
        with self._news:
            while not enough(self) and not self._over and time.perf_counter() < until_s:
                self._news.wait(STEP_S)  # heads and interim answers are not told
            return enough(self)

    @property
    def ended(self) -> bool:
        with self._news:
            return self._over

    def join(self, limit_s: float | None = None) -> Talk:
        """Block until the answer has ended; after `limit_s` we leave. Then the connection is closed."""
        self._thread.join(limit_s)
        return self.leave()

    def leave(self, *, reset: bool = False) -> Talk:
        """Close the connection (FIN, or RST), wherever the answer is. A second call does nothing."""
        self._stop.set()
        self._thread.join(JOIN_S)
        self.connection.reset() if reset else self.connection.close()
        if self._fault is not None:
            raise self._fault
        return self

    # --- what came ----------------------------------------------------------------------------------

    @property
    def head(self) -> Head | None:
        return self.reader.head

    @property
    def status(self) -> int:
        """0: there was no answer."""
        return self.reader.head.status if self.reader.head else 0

    @property
    def content_type(self) -> str:
        head = self.reader.head
        return (head.get("content-type") or "").partition(";")[0].strip().lower() if head else ""

    @property
    def is_stream(self) -> bool:
        return self.status == 200 and self.content_type not in NO_STREAMS and self.asked.get("stream") is True

    @property
    def telling(self) -> Telling:
        return self.witness.telling

    @property
    def value(self) -> Json:
        """The body as a JSON object; empty where it is none."""
        return _object(self.raw)

    def event_values(self) -> list[object]:
        return [each.value for each in self.events]

    def found(self, *ids: str) -> str | None:
        """The first of these findings of the witness, as evidence."""
        for finding in self.telling.findings.all():
            if finding.id in ids:
                return finding.text
        return None

    def _how_ended(self) -> str:
        end = self.reader.end
        if end is None:
            return "none yet"
        return self.reader.end_note if end is BodyEnd.SILENT else HOW_ENDED[end]

    def about(self) -> str:
        """The answer in a few words, for people."""
        if not self.status:
            return f"no answer ({self._how_ended()})"
        if 300 <= self.status < 400 and self.head is not None:
            return f"status {self.status}, which leads to {shown(self.head.get('location'))}; give that URL"
        return f"status {self.status}: {shown(bytes(self.raw[:300]).decode(errors='replace'), 160)}"


def _object(data: str | bytes | bytearray) -> Json:
    try:
        return as_object(parsed(bytes(data) if isinstance(data, bytearray) else data))
    except ValueError:
        return {}
