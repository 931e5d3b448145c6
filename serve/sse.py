"""Server-sent events as bytes. Knows the framing only; which events there are is the encoders' business."""

from __future__ import annotations

import json
from dataclasses import dataclass

DONE = b"data: [DONE]\n\n"

KEEP_ALIVE = b": keep-alive\n"
"""A heartbeat comment. One newline: openai-python parses the empty event that a blank line would end once any `id:`
was seen, and openai-go before 3.43 dies on it."""

HEADERS = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-cache, no-transform"),
    ("X-Accel-Buffering", "no"),
)
"""Headers that keep proxies from buffering or compressing a stream. Source: nginx, ngx_http_proxy_module."""

_json = json.JSONEncoder(allow_nan=False).encode  # `json.dumps` would make an encoder for each event: twice the time


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes to send now (b"" when there is nothing new). The `last` one holds the whole ending."""

    data: bytes
    last: bool = False


def data(value: object) -> bytes:
    """One event. Its JSON has everything outside ASCII escaped, so no character of an answer (U+2028, U+0085, NUL…)
    can end a line for any reader."""
    return b"data: " + _json(value).encode("ascii") + b"\n\n"


def event(name: str, value: object) -> bytes:
    """One event with its name, an ASCII word of ours: some readers go by the name only."""
    return b"event: " + name.encode("ascii") + b"\n" + data(value)
