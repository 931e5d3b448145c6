"""One stream on its way to its client: frames, heartbeats between them, and a look now and then whether it is there.

It knows no API and makes no frame. Who carries it on is the handler's thread, or a `serve.lane`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from serve import sse
from serve.httpio import Peer, StreamBody

PEER_CHECK_S = 0.25
"""How often is looked whether the client is still there, in seconds: a look costs as much as a chunk."""


class ClientGone(Exception):
    """The client left before the answer was whole."""


class Delivery:
    """After `beat_s` without a byte `beat` is sent; None where the frames hold the heartbeats. One thread at a time
    may use it."""

    __slots__ = ("_beat", "_beat_s", "_checked", "_frames", "_peer", "_sent", "begun", "body")

    def __init__(
        self,
        frames: Iterator[sse.Frame],
        body: StreamBody,
        peer: Peer,
        beat_s: float | None,
        beat: bytes = sse.KEEP_ALIVE,
    ) -> None:
        self.body = body
        self.begun = False
        """Whether a frame with bytes was sent."""
        self._frames = frames
        self._peer = peer
        self._beat_s = beat_s
        self._beat = beat
        self._sent = self._checked = time.monotonic()

    def step(self) -> bool:
        """Send the next frame, or what is due without one; whether it was the last. Blocks as the frames and the
        body do.

        Raises: ClientGone, OSError: the client is gone. RuntimeError: the frames ended without a terminal.
        """
        frame = next(self._frames, None)
        if frame is None:
            raise RuntimeError("a stream's frames ended without a terminal")
        if frame.last:
            self.body.finish(frame.data)
            return True
        now = time.monotonic()
        if frame.data:
            self.body.write(frame.data)
            self._sent = now
            self.begun = True
        elif self._beat_s is not None and now - self._sent >= self._beat_s:
            self._send_beat(now)
        if now - self._checked >= PEER_CHECK_S:
            self._checked = now
            was_half_closed = self._peer.half_closed
            if self._peer.gone():
                raise ClientGone
            if self._peer.half_closed and not was_half_closed:
                self._send_beat(now)  # the probe that shows whether the client only half-closed
        return False

    def pass_on(self, data: bytes, now: float) -> None:
        """Send somebody else's events that came past the frames (`engine.api.Inflow.shortcut`), `now` on the monotonic
        clock. Blocks as the body does.

        Raises: OSError: the client is gone.
        """
        self.body.write(sse.without_line_ends(data))
        self._sent = now

    def _send_beat(self, now: float) -> None:
        self.body.write(self._beat)
        self._sent = now
