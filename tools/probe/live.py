"""One streamed answer of a server, witnessed from the request to the end of the connection. It judges nothing."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tools.probe.advice import on_refusal
from tools.probe.answer import AnswerReader, Piece
from tools.probe.coding import Decoder
from tools.probe.connection import SILENCE_S, Connection
from tools.probe.exits import CouldNotRun
from tools.probe.target import Api, Target
from tools.probe.telling import HOW_ENDED
from tools.probe.values import Json, as_text, at, parsed, shown
from tools.probe.witness import Witness

AFTER_END_S = 10.0
"""How long a connection may stay open after the end marker, heartbeats or not."""
AFTER_FINISH_S = 60.0
"""How long the end marker may keep one waiting after the finish word, heartbeats or not."""
NO_STREAM = frozenset({"application/json", "text/html"})
"""Types of an answer that is none."""
REFUSAL_BYTES = 64 * 1024
REFUSAL_S = 10.0


class Refused(CouldNotRun):
    """The server began no stream. `status` 0: it gave no answer; `told` is what it said."""

    def __init__(self, text: str, status: int = 0, told: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.told = told


@dataclass(frozen=True, slots=True)
class Seen:
    """A stream that was read; the witness is closed."""

    witness: Witness
    reader: AnswerReader
    connect_s: float


def watch(
    target: Target,
    api: Api,
    body: Json,
    *,
    limit: int | None = None,
    endless: bool = False,
    silence_s: float = SILENCE_S,
    until_s: float | None = None,
    verify: bool = True,
    heard: Callable[[bytes], object] | None = None,
    each: Callable[[Witness], object] | None = None,
    stop: threading.Event | None = None,
) -> Seen:
    """Ask, and read to the end. Blocks: at most `until_s` seconds, and `silence_s` without a byte.

    `limit`: the tokens asked for; `endless`: no whole answer fits into them. `heard` gets every raw byte, `each` the
    witness after every read.

    Raises: Refused: no stream began. CouldNotRun: the server cannot be reached.
    """
    with Connection(target, verify=verify, heard=heard) as connection:
        reader = AnswerReader()
        witness = Witness(api, limit, endless=endless)
        connection.send(target.post(api, body))
        head, pieces = connection.head(reader, silence_s=min(silence_s, until_s or silence_s), stop=stop)
        if head is None:
            how = HOW_ENDED[reader.end] if reader.end else "no answer"
            raise Refused(f"{target.shown}: {how}{_note(reader)}{hint(target, 0, reader.end_s)}")
        kind = (head.get("content-type") or "").partition(";")[0].strip().lower()
        if head.status != 200 or kind in NO_STREAM:
            raise _refusal(target, connection, reader, pieces)
        witness.begin(head)
        _hear(witness, pieces, each)
        while reader.end is None:
            patience_s = min(silence_s, _after(witness)[0])
            for piece in connection.pieces(reader, silence_s=patience_s, until_s=until_s, stop=stop):
                _hear(witness, [piece], each)
                after_s, since_s, what = _after(witness)
                if piece.at_s - since_s >= after_s:
                    reader.closed("silent", piece.at_s, f"{after_s:g} s after {what} it still goes on")
                if after_s < patience_s:
                    break
    witness.close(reader)
    return Seen(witness, reader, connection.opened_s)


def _after(witness: Witness) -> tuple[float, float, str]:
    """How long to go on without what is still due, since when, and after what."""
    telling = witness.telling
    if telling.marker_s is not None:
        return AFTER_END_S, telling.marker_s, "the end marker"
    if telling.outcome is not None:
        return AFTER_FINISH_S, telling.news_s, f"{telling.FINISH} {telling.finish!r}"
    return math.inf, 0.0, ""


def _hear(witness: Witness, pieces: list[Piece], each: Callable[[Witness], object] | None) -> None:
    for piece in pieces:
        witness.feed(piece)
        if each is not None:
            each(witness)


def _note(reader: AnswerReader) -> str:
    return f" ({reader.end_note})" if reader.end_note else ""


def _refusal(target: Target, connection: Connection, reader: AnswerReader, pieces: list[Piece]) -> Refused:
    head = reader.head
    assert head is not None
    body = bytearray(b"".join(piece.data for piece in pieces))
    for piece in connection.pieces(reader, silence_s=REFUSAL_S, until_s=connection.now_s() + REFUSAL_S):
        body += piece.data
        if len(body) > REFUSAL_BYTES:
            break
    told = told_by(Decoder(head.get("content-encoding")).feed(bytes(body)))
    kind = head.get("content-type")
    what = f"status {head.status}" if head.status != 200 else f"{kind} instead of a stream"
    if 300 <= head.status < 400:
        what += f", which leads to {shown(head.get('location'))}; give that URL"
    what += f": {shown(told, 300)}{hint(target, head.status, head.at_s)}"
    return Refused(f"{target.shown} answered with {what}", head.status, told)


def hint(target: Target, status: int, took_s: float) -> str:
    """What to do about a refusal, to be put after its text."""
    what = on_refusal(status, took_s, has_key=bool(target.secret))
    return f"; {what}" if what else ""


def told_by(body: bytes) -> str:
    """What an error's body says: its message, or the body as it is."""
    try:
        value = parsed(body)
    except ValueError:
        return body.decode(errors="replace")
    for path in (("error", "message"), ("error",), ("message",), ("detail",)):
        if (text := as_text(at(value, *path))) is not None:
            return text
    return body.decode(errors="replace")
