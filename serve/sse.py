"""Server-sent events as bytes. Knows the framing only; which events there are is the encoders' business."""

from __future__ import annotations

import json

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


def data(value: object) -> bytes:
    """One event. `json.dumps` escapes everything outside ASCII, so no character of an answer (U+2028, U+0085, NUL…)
    can end a line for any reader."""
    return b"data: " + json.dumps(value, allow_nan=False).encode("ascii") + b"\n\n"
