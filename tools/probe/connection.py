"""One connection to a server: raw bytes out, an answer in, with the time of each read.

It follows no redirects, uses no proxy of the environment and asks nothing twice. Each function blocks, at most as long
as its limits say.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tools.probe.answer import AnswerReader, Closing, Head, Piece
from tools.probe.coding import Decoder
from tools.probe.exits import CouldNotRun
from tools.probe.target import Target

CONNECT_S = 10.0
SILENCE_S = 300.0
RECV_BYTES = 1 << 16
SLICE_S = 0.2
"""The longest wait of one read, so that a word to stop and Ctrl-C are seen."""
MAX_BODY_BYTES = 256 * 1024 * 1024


class Connection:
    """Use as a context manager. `opened_s`: how long it took, TLS included. One request at a time, one thread.

    `verify=False` takes any certificate. `heard` gets every byte that comes, framing included.

    Raises: CouldNotRun: it cannot be reached, or its certificate is not trusted.
    """

    def __init__(
        self,
        target: Target,
        *,
        connect_s: float = CONNECT_S,
        verify: bool = True,
        heard: Callable[[bytes], object] | None = None,
    ) -> None:
        self.target = target
        self.sent_s = 0.0
        self._heard = heard
        begun = time.perf_counter()
        try:
            raw = socket.create_connection((target.host, target.port), connect_s)
            try:
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.socket = _secured(raw, target, verify=verify) if target.scheme == "https" else raw
            except BaseException:
                raw.close()
                raise
        except ssl.SSLCertVerificationError as error:
            why = f"the certificate of {target.shown} is not trusted: {error.verify_message}; --insecure takes it"
            raise CouldNotRun(why) from None
        except ssl.SSLError as error:
            why = f"{target.shown} does not speak TLS as we do: {error.reason}; if it speaks none, use http://"
            raise CouldNotRun(why) from None
        except (OSError, UnicodeError) as error:
            why = f"{target.shown} cannot be reached: {error}; is the server running, and the port right?"
            raise CouldNotRun(why) from None
        self.opened_s = time.perf_counter() - begun

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Break it: the server gets RST, not FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def end_sending(self) -> None:
        """Half-close: the server reads the end, and may go on answering."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def send(self, data: bytes, *, limit_s: float = 60.0) -> None:
        """Send the request; times of the answer count from its end. A server that is gone is seen when reading."""
        self.socket.settimeout(limit_s)
        with contextlib.suppress(OSError):
            self.socket.sendall(data)
        self.sent_s = time.perf_counter()

    def now_s(self) -> float:
        """Seconds since the request was sent."""
        return time.perf_counter() - self.sent_s

    def pieces(
        self,
        reader: AnswerReader,
        *,
        silence_s: float = SILENCE_S,
        until_s: float | None = None,
        stop: threading.Event | None = None,
    ) -> Iterator[Piece]:
        """The body's pieces until it ends; then `reader.end` says how. Gives up after `silence_s` without a byte, and
        leaves at `until_s` (seconds since the request was sent) or when `stop` is set. May be called again to go on."""
        heard_s = self.now_s()
        while reader.end is None:
            data, closing, note = self._receive()
            at_s = self.now_s()
            if data:
                heard_s = at_s
                if self._heard is not None:
                    self._heard(data)
                yield from reader.feed(data, at_s)
            elif closing is not None:
                reader.closed(closing, at_s, note)
            if (stop is not None and stop.is_set()) or (until_s is not None and at_s >= until_s):
                reader.closed("left", at_s)
            elif at_s - heard_s >= silence_s:
                reader.closed("silent", at_s, f"nothing came for {silence_s:g} s")

    def _receive(self) -> tuple[bytes, Closing | None, str]:
        """One read of at most `SLICE_S`: bytes, or what ended the connection, or neither."""
        try:
            self.socket.settimeout(SLICE_S)
            data = self.socket.recv(RECV_BYTES)
        except (TimeoutError, ssl.SSLWantReadError):
            return b"", None, ""
        except ssl.SSLEOFError as error:
            return b"", "tls", str(error.reason or error)
        except OSError as error:
            return b"", "reset", error.strerror or str(error)
        return data, None if data else "fin", ""

    def head(
        self, reader: AnswerReader, *, silence_s: float = SILENCE_S, stop: threading.Event | None = None
    ) -> tuple[Head | None, list[Piece]]:
        """Read until the head is there, with what came of the body in the same read. None: there is no answer."""
        heard_s = self.now_s()
        pieces: list[Piece] = []
        while reader.head is None and reader.end is None:
            data, closing, note = self._receive()
            at_s = self.now_s()
            if data:
                heard_s = at_s
                if self._heard is not None:
                    self._heard(data)
                pieces = reader.feed(data, at_s)
            elif closing is not None:
                reader.closed(closing, at_s, note)
            elif stop is not None and stop.is_set():
                reader.closed("left", at_s)
            elif at_s - heard_s >= silence_s:
                reader.closed("silent", at_s, f"nothing came for {silence_s:g} s")
        return reader.head, pieces


def _secured(raw: socket.socket, target: Target, *, verify: bool) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    # Without this a connection that is cut reads as one that ended
    return context.wrap_socket(raw, server_hostname=target.host, suppress_ragged_eofs=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer that was not read as a stream. `body` is without framing and coding."""

    reader: AnswerReader
    body: bytes
    fault: str | None

    @property
    def status(self) -> int:
        """0: there was no answer."""
        return self.reader.head.status if self.reader.head else 0


def fetch(
    target: Target,
    request: bytes,
    *,
    silence_s: float = SILENCE_S,
    until_s: float | None = None,
    verify: bool = True,
    stop: threading.Event | None = None,
) -> Answer:
    """One request on a connection of its own, read to its end.

    Raises: CouldNotRun: the server cannot be reached.
    """
    with Connection(target, verify=verify) as connection:
        reader = AnswerReader(request.partition(b" ")[0].decode("latin-1"))
        connection.send(request)
        body = bytearray()
        for piece in connection.pieces(reader, silence_s=silence_s, until_s=until_s, stop=stop):
            body += piece.data
            if len(body) > MAX_BODY_BYTES:
                reader.closed("left", piece.at_s, f"more than {MAX_BODY_BYTES} bytes")
    decoder = Decoder(reader.head.get("content-encoding") if reader.head else None)
    made = decoder.feed(bytes(body))
    return Answer(reader, made + decoder.close(), decoder.fault)
