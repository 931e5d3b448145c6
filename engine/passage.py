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
_SPEAKING = (*CHANNELS, "refusal", "tool_calls", "function_call")
"""The members of a delta that say something."""
_TELLING = ("error", "usage", "prompt_progress")
"""The members of a chunk that have to be read each time."""

MAX_BYTES = 16384
"""The longest event that is learnt from: what comes in such pieces is not worth it."""
_PREFIX = b"data: "
_END = b"\n\n"
# A JSON string's inside in bytes: whole escapes, and of half surrogate pairs only whole pairs.
_STRING = (
    rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    rb"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))*+"
)
_ONE = re.compile(_STRING)
_STRINGS = re.compile(_STRING + rb"(?:\n" + _STRING + rb")*+")  # a line each
_JSON_STRING = r'"(?:[^"\\]|\\.)*+"'
_MEMBER = {name: re.compile(rf'"{name}":\s?({_JSON_STRING})') for name in CHANNELS}
_MARK = '\u2603 \\ " mark'
"""A text that is put into a chunk to see what it becomes: with escapes, and no text of anybody's."""


class Passage:
    """Chunks that say nothing but more text in `channel` of the only choice."""

    __slots__ = ("_after", "_before", "_between", "channel")

    def __init__(self, channel: Channel, before: bytes, after: bytes) -> None:
        self.channel = channel
        self._before = before
        self._after = after
        self._between = after + before

    def said(self, block: bytes) -> int | None:
        """How many texts the block has that are not empty, if it is whole chunks of this kind and nothing else; see
        `texts`. Quickest where it is one chunk."""
        start, end = len(self._before), len(block) - len(self._after)
        if end > start and block.startswith(self._before) and block.endswith(self._after):
            if _ONE.fullmatch(block, start, end) is not None and block.isascii():
                return 1
            texts = self.texts(block)
            return None if texts is None else len(texts) - texts.count(b"")
        return 0 if block == self._before + self._after else None

    def texts(self, block: bytes) -> list[bytes] | None:
        """The JSON strings' insides, in order, if the block is whole chunks of this kind and nothing else."""
        before, after = self._before, self._after
        if not block.startswith(before) or not block.endswith(after) or len(block) < len(before) + len(after):
            return None
        # the separator holds a line end, so it cannot stand inside a text
        texts = block[len(before) : -len(after)].split(self._between)
        joined = b"\n".join(texts)
        if joined.count(b"\n") != len(texts) - 1 or _STRINGS.fullmatch(joined) is None:
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
    """The passage of a chunk that was read in full, as it came (`raw`: one event, in UTF-8), if its only choice, with
    this delta, says nothing but a text that can be found in its bytes."""
    spoken: list[Channel] = [name for name in CHANNELS if isinstance(delta.get(name), str) and delta[name]]
    channel = spoken[0] if spoken else None
    if len(raw) > MAX_BYTES or channel is None or not raw.startswith(_PREFIX) or not raw.endswith(_END):
        return None
    if any(delta.get(name) for name in _SPEAKING if name != channel) or any(chunk.get(name) for name in _TELLING):
        return None
    text = raw.decode("utf-8")
    found = list(_MEMBER[channel].finditer(text))
    if len(found) != 1:
        return None
    start, end = found[0].span(1)
    before, after = text[: start + 1], text[end - 1 :]
    if not _is_place_of(channel, before, after, chunk):
        return None
    return Passage(channel, before.encode(), after.encode())


def _is_place_of(channel: Channel, before: str, after: str, chunk: Mapping[str, object]) -> bool:
    """Whether the text between the two is the delta's, and nothing else in the chunk depends on it: the name may stand
    in other members, too, or twice."""
    marked = json.loads(f"{before}{json.dumps(_MARK)[1:-1]}{after}"[len(_PREFIX) :])
    choice = marked["choices"][0]
    if choice["delta"].get(channel) != _MARK:
        return False
    choice["delta"][channel] = _delta(chunk)[channel]
    return marked == chunk


def _delta(chunk: Mapping[str, object]) -> Mapping[str, object]:
    choices = chunk["choices"]
    assert isinstance(choices, list)
    return choices[0]["delta"]  # pyright: ignore[reportUnknownVariableType] - JSON that was read before
