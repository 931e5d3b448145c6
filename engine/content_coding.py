"""Undo the content codings of HTTP (gzip, deflate) piece by piece, with bounded memory.

It does not know HTTP messages; `br` and `zstd` are not read (nothing here asks for them).

Source: RFC 9110 §8.4.1; deflate without its zlib wrapper is what some servers send (§8.4.1.2, note).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

PIECE_BYTES = 1 << 20
"""The most that one piece holds: a small body cannot blow up to more than this at once."""

_ANY_WRAPPER = 32 + zlib.MAX_WBITS  # zlib finds out by the header: gzip or zlib


class CodingUnknown(ValueError):
    """The body is coded in a way that is not read here."""


class CodingDamaged(ValueError):
    """The body is not what its coding says."""


class Decoder(Protocol):
    """`whole` says whether the input so far is a complete body."""

    @property
    def whole(self) -> bool: ...

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The decoded pieces, each at most `PIECE_BYTES` long where the coding can grow. Raises: CodingDamaged."""
        ...


class _Identity:
    whole = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        if data:
            yield data


class _Inflate:
    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._head = b""  # a body's first byte, until the second tells a zlib header from bare deflate
        self._inflate: zlib._Decompress | None = None  # pyright: ignore[reportPrivateUsage] - zlib gives it no other name
        self._started = False

    @property
    def whole(self) -> bool:
        return not self._started or (self._inflate is not None and self._inflate.eof)

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._started = self._started or bool(data)
        data, self._head = self._head + data, b""
        more = bool(data)
        while more:
            if self._inflate is None or self._inflate.eof:  # gzip bodies may have several members
                if len(data) < 2:
                    self._head = data
                    return
                self._inflate = zlib.decompressobj(self._window(data))
            before = self._inflate.copy()
            try:
                piece = self._inflate.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                yield from _good_part(before, data)
                raise CodingDamaged(f"the {self._coding} body is damaged: {error}") from None
            data = self._inflate.unconsumed_tail or self._inflate.unused_data
            more = bool(data) or (len(piece) == PIECE_BYTES and not self._inflate.eof)
            if piece:
                yield piece

    def _window(self, data: bytes) -> int:
        bare = data[0] & 0x0F != 8 or (data[0] << 8 | data[1]) % 31 != 0  # RFC 1950 §2.2: CM and FCHECK
        return -zlib.MAX_WBITS if self._coding == "deflate" and bare else _ANY_WRAPPER


def _good_part(inflate: zlib._Decompress, data: bytes) -> Iterator[bytes]:  # pyright: ignore[reportPrivateUsage] - as above
    """What can be read of a damaged piece: zlib gives nothing of a call that meets the damage."""
    with suppress(zlib.error):
        for i in range(len(data)):
            piece = inflate.decompress(data[i : i + 1])
            if piece:
                yield piece


def decoder_for(coding: str) -> Decoder:
    """The decoder for a Content-Encoding header.

    Raises: CodingUnknown: it names another coding, or several.
    """
    name = coding.strip().lower()
    if name in ("", "identity"):
        return _Identity()
    if name in ("gzip", "x-gzip", "deflate"):
        return _Inflate(name.removeprefix("x-"))
    raise CodingUnknown(f"the answer's content-encoding {name[:80]!r} is not supported")
