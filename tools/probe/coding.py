"""The content coding of a body, undone as it comes: gzip and deflate. It reads no others, and says so."""

from __future__ import annotations

import zlib

READABLE = "gzip, deflate"
"""For `Accept-Encoding`: clients ask for these, too."""
_STEP_BYTES = 256
"""zlib gives nothing of a call that meets damage, so that calls are short."""


class Decoder:
    """`coding` is the answer's Content-Encoding; None: it has none.

    `fault` says what is wrong with the coded bytes; nothing comes after it.
    """

    def __init__(self, coding: str | None) -> None:
        self.coding = (coding or "identity").strip().lower()
        self.fault: str | None = None
        self._begun = b""
        self._inflate: zlib._Decompress | None = None  # pyright: ignore[reportPrivateUsage] - zlib gives it no other name
        if self.coding not in ("identity", "gzip", "x-gzip", "deflate"):
            self.fault = f"content-encoding {self.coding!r} was not asked for and cannot be read here"

    def feed(self, data: bytes) -> bytes:
        if self.coding == "identity":
            return data
        made: list[bytes] = []
        try:
            for at in range(0, len(data), _STEP_BYTES):
                if self.fault is None:
                    made.append(self._inflated(data[at : at + _STEP_BYTES]))
        except zlib.error as error:
            self.fault = f"the {self.coding} body is damaged: {error}"
        return b"".join(made)

    def _inflated(self, data: bytes) -> bytes:
        if self._inflate is None:
            self._begun = data = self._begun + data
            if len(data) < 2:
                return b""
            # deflate is zlib's form, and some send it without the two bytes of its head
            zlib_form = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            bare = self.coding == "deflate" and not zlib_form
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS if bare else 32 + zlib.MAX_WBITS)
        made = self._inflate.decompress(data)
        while self._inflate.eof and self._inflate.unused_data and self.coding != "deflate":
            rest = self._inflate.unused_data
            self._inflate = zlib.decompressobj(32 + zlib.MAX_WBITS)  # gzip may have several members
            made += self._inflate.decompress(rest)
        return made

    def close(self) -> bytes:
        """The body has ended."""
        if self.fault is not None or self.coding == "identity":
            return b""
        if self._inflate is None or not self._inflate.eof:
            self.fault = f"the {self.coding} body was cut"
        return self._inflate.flush() if self._inflate is not None else b""
