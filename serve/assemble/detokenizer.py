"""Bytes of tokens to whole characters: UTF-8 decoded piece by piece. It knows no tags and no tokens."""

from __future__ import annotations

import codecs


class Detokenizer:
    """Decodes bytes as they come. A character whose bytes are not all there yet is held (at most 3 bytes); bytes
    that cannot be a character give U+FFFD at once, so no half surrogate ever comes out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """The characters that are whole now."""
        text = self._decoder.decode(data)
        held = self._decoder.getstate()[0]
        if held[:1] == b"\xed" and held[1:2] >= b"\xa0":  # half a surrogate pair: Python waits for its third byte
            text += self._decoder.decode(b"", True)
        return text

    def flush(self) -> str:
        """The end: what is held can no longer become a character."""
        return self._decoder.decode(b"", True)
