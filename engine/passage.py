"""The quick way for a stream in which nothing changes but the text: many chunks at once, by their bytes.

Most chunks of an answer differ only in the string of their `delta`. A `Passage` is learnt from one chunk that was read
in full; as long as what follows is the same but for that string, it says what an equal chunk said, so it needs no
reading. Whatever is different goes the long way. Pure; the cost is a few scans of the bytes at the speed of C.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

Channel: TypeAlias = Literal["content", "reasoning_content", "reasoning"]
CHANNELS: tuple[Channel, ...] = ("content", "reasoning_content", "reasoning")

_PREFIX = b"data: "
_END = b"\n\n"
# A JSON string's inside in bytes: whole escapes, and of half surrogate pairs only whole pairs.
_STRING = re.compile(
    rb'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    rb"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))*"
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_JSON_STRING = r'"(?:[^"\\]|\\.)*"'


class Passage:
    """Chunks that say nothing but more text in `channel` of the only choice."""

    def __init__(self, channel: Channel, before: bytes, after: bytes) -> None:
        self.channel = channel
        self._before = before
        self._after = after
        self._between = after + before

    def texts(self, block: bytes) -> list[bytes] | None:
        """The JSON strings' insides, in order, if the block is whole chunks of this kind and nothing else."""
        if not block.startswith(self._before) or not block.endswith(self._after):
            return None
        # the separator holds a bare quote, so it cannot stand inside a text
        texts = block[len(self._before) : -len(self._after)].split(self._between)
        joined = b"".join(texts)
        plain = b'"' not in joined and b"\\" not in joined and _CONTROL.search(joined) is None
        if not plain and not all(_STRING.fullmatch(text) for text in texts):
            return None
        if not joined.isascii():
            try:
                joined.decode("utf-8")
            except UnicodeDecodeError:
                return None
            if any(text and text[0] & 0xC0 == 0x80 for text in texts):  # a character split over two chunks
                return None
        return texts


def learn(raw: bytes, chunk: Mapping[str, object], delta: Mapping[str, object]) -> Passage | None:
    """The passage of a chunk that was read in full, as it came (`raw`: one event), if its only choice says nothing but
    a text that can be found in its bytes."""
    channel: Channel | None = None
    for name in CHANNELS:
        if channel is None and isinstance(delta.get(name), str) and delta[name]:
            channel = name
    if channel is None or not raw.startswith(_PREFIX) or not raw.endswith(_END):
        return None
    if any(value not in (None, "") for name, value in delta.items() if name not in (channel, "role")):
        return None
    if "usage" in chunk and chunk["usage"] is not None:
        return None  # it counts: each one differs, and has to be read
    text = raw.decode("utf-8")
    found = list(re.finditer(rf'"{channel}":\s?({_JSON_STRING})', text))
    if len(found) != 1 or json.loads(found[0][1]) != delta[channel]:
        return None
    start, end = found[0].span(1)
    return Passage(channel, text[: start + 1].encode(), text[end - 1 :].encode())
