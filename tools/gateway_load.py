"""The gateway benchmark's load: opens streams on a server, reads them to their ends and checks what they say.

    python -m tools.gateway_load '{"port": 8080, "streams": 32, "wanted": {"chunks": 500, "rate": 50}}'

Writes JSON lines: a `Mark` when all streams are open and one when the first of them ends, then the `Result`. Between
the marks the server carries its full load. It judges no server; one thread, one process.
"""

from __future__ import annotations

import errno
import itertools
import math
import re
import selectors
import socket
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tools.gateway_sockets import RECV_BYTES, become_quiet, now_us, ready
from tools.gateway_wire import MARK, STAMP, Wanted, request_bytes

START_EVERY_S = 0.0041
"""Between the starts of two streams: no divisor of the usual periods, so that streams do not send in step."""
LAST_BYTES = 4_096
_FINISH = re.compile(rb'"finish_reason":\s?"([a-z_]+)"')
_COUNT = re.compile(rb'"completion_tokens":\s?([0-9]+)')
_DONE = b"data: [DONE]"

Verdict = Literal["whole", "failed", "untrue"]
"""How a stream ended: with all that was sent, said so; with a word that it failed, or cut so that it shows; as if it
were whole, and it was not."""


@dataclass(frozen=True, slots=True)
class Load:
    """What to do. `deadline_s`: what has not ended so long after the start is given up. `together`: whether all streams
    start at once."""

    port: int
    streams: int
    wanted: Wanted
    deadline_s: float = 60.0
    together: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """`chunks` have come by now."""

    mark: Literal["open", "ending"]
    chunks: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Of many times in milliseconds; NaN is never among them: None where there is none."""

    p50: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True)
class Result:
    """Times of paced streams: `first` from the start to the first text; `delay` from sending to arrival; `gap` between
    two chunks of a stream; `stall` how much longer that was than between their sendings, the longest. All but the first
    are those between the marks, unless hardly anything came there; `delay_all` is that of all chunks. `cpu_s` is what
    the load itself used."""

    streams: int
    chunks: int
    took_s: float
    cpu_s: float
    verdicts: dict[Verdict, int]
    reasons: dict[str, int]
    first: Spread | None = None
    delay: Spread | None = None
    delay_all: Spread | None = None
    longest_gap_ms: float = 0.0
    longest_stall_ms: float = 0.0


def spread(times_us: list[int]) -> Spread | None:
    if not times_us:
        return None
    ordered = sorted(times_us)
    last = len(ordered) - 1
    at = [ordered[min(last, max(0, math.ceil(share * len(ordered)) - 1))] / 1_000 for share in (0.5, 0.99)]
    return Spread(at[0], at[1], ordered[-1] / 1_000)


class Stream:
    """One stream as its client reads it."""

    def __init__(self, started_us: int) -> None:
        self.started_us = started_us
        self.first_us: int | None = None
        self.chunks = 0
        self.ended: str | None = None  # what ended the reading
        self.verdict: Verdict | None = None
        self.arrivals_us: array[int] = array("q")
        self.delays_us: array[int] = array("q")
        self._head_read = False
        self._status = 0
        self._raw = b""  # not unframed yet
        self._text = b""  # of an event whose end has not come
        self._last = b""
        self._terminated = False

    def feed(self, data: bytes, at_us: int, stamped: bool) -> None:
        """The next bytes, which came at `at_us`. Raises: ValueError: they are not the framing of HTTP."""
        raw = self._raw + data
        if not self._head_read:
            head, end, rest = raw.partition(b"\r\n\r\n")
            if not end:
                self._raw = raw
                return
            self._read_head(head)
            raw = rest
        text = self._unframed(raw) if self._status == 200 else b""
        if not text:
            return
        text = self._text + text
        cut = text.rfind(b"\n\n") + 2
        events, self._text = (text[:cut], text[cut:]) if cut >= 2 else (b"", text)
        self._last = (self._last + events)[-LAST_BYTES:]
        if stamped:
            self._stamps(events, at_us)
        else:
            self.chunks += events.count(MARK)
        if self.first_us is None and self.chunks:
            self.first_us = at_us - self.started_us

    def _read_head(self, head: bytes) -> None:
        self._head_read = True
        self._status = int(head.split(b" ", 2)[1])
        if self._status == 200 and b"transfer-encoding: chunked" not in head.lower():
            raise ValueError("the stream is not chunked")
        if self._status != 200:
            self._end("failed", f"status {self._status}")

    def _unframed(self, raw: bytes) -> bytes:
        parts: list[bytes] = []
        at, length = 0, len(raw)
        while (stop := raw.find(b"\r\n", at)) >= 0:
            size = int(raw[at:stop], 16)
            end = stop + 2 + size
            if end + 2 > length:
                break
            if not size:
                self._terminated = True
                break
            parts.append(raw[stop + 2 : end])
            at = end + 2
        self._raw = raw[at:]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _stamps(self, events: bytes, at_us: int) -> None:
        for stamp in STAMP.findall(events):
            self.arrivals_us.append(at_us)
            self.delays_us.append(at_us - int(stamp))
            self.chunks += 1

    @property
    def over(self) -> bool:
        """Whether nothing more is to be read; judges the ending when it is there."""
        if self.verdict is None and self._terminated:
            self._judge()
        return self.verdict is not None

    def _judge(self) -> None:
        """The body's end is there: is all of it true?"""
        reasons = _FINISH.findall(self._last)
        count = _COUNT.findall(self._last)
        if reasons == [b"error"]:
            self._end("failed", "finish_reason error")
        elif reasons != [b"stop"]:
            self._end("untrue", f"a whole body with the finish reasons {[word.decode() for word in reasons]}")
        elif not self._last.rstrip().endswith(_DONE):
            self._end("untrue", "a whole body without the end marker")
        elif not count or int(count[-1]) != self.chunks:
            self._end("untrue", "stop, with chunks missing")
        else:
            self._end("whole", "whole")

    def cut(self, how: str) -> None:
        """The connection ended, or the time is up."""
        self._end("failed", how)

    def _end(self, verdict: Verdict, why: str) -> None:
        self.verdict, self.ended = verdict, why


@dataclass(slots=True)
class Client:
    """All streams of one load."""

    load: Load
    streams: list[Stream] = field(default_factory=list[Stream])
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(RECV_BYTES)))  # a new one costs more
    _waiting: int = 0  # streams without text
    _left: int = 0
    _marks: list[list[int]] = field(default_factory=list[list[int]])  # each stream's chunks at each mark

    def run(self) -> Result:
        load = self.load
        self._waiting = self._left = load.streams
        begun = time.monotonic()
        every_s = 0.0 if load.together else START_EVERY_S
        while self._left and (now := time.monotonic()) < begun + load.deadline_s:
            while len(self.streams) < load.streams and begun + len(self.streams) * every_s <= now:
                self._start()
            more = len(self.streams) < load.streams
            until = begun + len(self.streams) * every_s if more else begun + load.deadline_s
            for key, _ in ready(self._selector, until - time.monotonic()):
                self._serve(*key.data)
        for key in list(self._selector.get_map().values()):
            self._finish(*key.data, how=f"not ended within {load.deadline_s:g} s")
        return self._result(time.monotonic() - begun)

    def _start(self) -> None:
        stream = Stream(now_us())
        self.streams.append(stream)
        sock = socket.socket()
        sock.setblocking(False)
        code = sock.connect_ex(("127.0.0.1", self.load.port))
        self._selector.register(sock, selectors.EVENT_WRITE, (sock, stream))
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self._finish(sock, stream, f"cannot connect: {errno.errorcode.get(code, code)}")

    def _serve(self, sock: socket.socket, stream: Stream) -> None:
        try:
            if self._selector.get_key(sock).events == selectors.EVENT_WRITE:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.send(request_bytes(self.load.port, self.load.wanted))  # a few hundred bytes: all or an error
                self._selector.modify(sock, selectors.EVENT_READ, (sock, stream))
                return
            data = self._buffer[: sock.recv_into(self._buffer)].tobytes()
        except BlockingIOError:
            return
        except OSError as error:
            self._finish(sock, stream, f"the connection broke: {error.strerror}")
            return
        silent = not stream.chunks
        try:
            stream.feed(data, now_us(), self.load.wanted.rate > 0)
        except ValueError:
            self._finish(sock, stream, "the answer is not HTTP")
            return
        if silent and stream.chunks:
            self._waiting -= 1
            self._mark_open()
        if stream.over or not data:
            self._finish(sock, stream, "the body has no end")

    def _finish(self, sock: socket.socket, stream: Stream, how: str) -> None:
        self._selector.unregister(sock)
        sock.close()
        if not stream.over:
            stream.cut(how)
        self._left -= 1
        if not stream.chunks:
            self._waiting -= 1
            self._mark_open()
        if len(self._marks) == 1:
            self._mark("ending")

    def _mark_open(self) -> None:
        if not self._waiting and not self._marks:
            self._mark("open")

    def _mark(self, mark: Literal["open", "ending"]) -> None:
        counts = [stream.chunks for stream in self.streams]
        self._marks.append(counts)
        _say(Mark(mark, sum(counts), time.monotonic()))

    def _result(self, took_s: float) -> Result:
        chunks = sum(stream.chunks for stream in self.streams)
        windows = between(self._marks, [stream.chunks for stream in self.streams])
        delays = [stream.delays_us[window] for stream, window in zip(self.streams, windows, strict=True)]
        arrivals = [stream.arrivals_us[window] for stream, window in zip(self.streams, windows, strict=True)]
        verdicts = Counter(stream.verdict or "failed" for stream in self.streams)
        reasons = Counter(stream.ended or "" for stream in self.streams if stream.verdict != "whole")
        return Result(
            len(self.streams),
            chunks,
            took_s,
            time.process_time(),
            {"whole": verdicts["whole"], "failed": verdicts["failed"], "untrue": verdicts["untrue"]},
            dict(reasons),
            spread([stream.first_us for stream in self.streams if stream.first_us is not None]),
            spread(list(itertools.chain.from_iterable(delays))),
            spread(list(itertools.chain.from_iterable(stream.delays_us for stream in self.streams))),
            longest_rise_ms(arrivals),
            longest_rise_ms(delays),
        )


def between(marks: list[list[int]], counts: list[int]) -> list[slice]:
    """Of each stream's chunks those between the two marks, where each had so many; all if that is hardly any."""
    if len(marks) < 2 or sum(marks[1]) - sum(marks[0]) <= sum(counts) / 4:
        return [slice(None) for _ in counts]
    return [slice(*ends) for ends in zip(*marks, strict=True)]


def longest_rise_ms(series: Iterable[array[int]]) -> float:
    """By how much one of the microseconds is more than the one before it in its series, at most; in milliseconds."""
    rises = (after - before for times in series for before, after in itertools.pairwise(times))
    return max(rises, default=0) / 1_000


def _say(value: Mark | Result) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.flush()


def main(argv: list[str] | None = None) -> int:
    load = msgspec.json.decode((sys.argv[1:] if argv is None else argv)[0], type=Load)
    become_quiet()
    _say(Client(load).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
