"""Server-sent events as bytes. Knows the framing only; which events there are is the encoders' business."""

from __future__ import annotations

import json
import re
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


_LINE_ENDS = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]")


def without_line_ends(events: bytes) -> bytes:
    """Events that somebody else wrote, in UTF-8 and JSON, with what `data` escapes of them where a reader could take it
    for the end of a line: DEL, the C1 controls (U+0085) and U+2028, U+2029. In JSON they stand in strings only.

    Source: `str.splitlines`, by which httpx's `iter_lines` goes.
    """
    if (not events.isascii() and (b"\xe2\x80" in events or b"\xc2" in events)) or b"\x7f" in events:
        return _LINE_ENDS.sub(lambda found: b"\\u%04x" % ord(found[0].decode("utf-8")), events)
    return events


def event(name: str, value: object) -> bytes:
    """One event with its name, an ASCII word of ours: some readers go by the name only."""
    return b"event: " + name.encode("ascii") + b"\n" + data(value)
