"""Content codings: whole, byte by byte, damaged, cut, and small bodies that become huge."""

from __future__ import annotations

import gzip
import zlib

import pytest

from engine.content_coding import PIECE_BYTES, CodingDamaged, CodingUnknown, decoder_for

TEXT = b"data: hello\n\n" * 500


def bare_deflate(data: bytes) -> bytes:
    compress = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compress.compress(data) + compress.flush()


BODIES = {
    "identity": ("identity", TEXT),
    "no coding": ("", TEXT),
    "gzip": ("gzip", gzip.compress(TEXT)),
    "x-gzip in capitals": (" X-GZIP", gzip.compress(TEXT)),
    "gzip in two members": ("gzip", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
    "deflate": ("deflate", zlib.compress(TEXT)),
    "deflate without its wrapper": ("deflate", bare_deflate(TEXT)),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_body_in_any_chunking_is_decoded(name: str, size: int) -> None:
    coding, body = BODIES[name]
    decoder = decoder_for(coding)
    pieces = [piece for i in range(0, len(body), size) for piece in decoder.feed(body[i : i + size])]
    assert b"".join(pieces) == TEXT
    assert decoder.whole


def test_text_is_there_as_soon_as_the_server_flushed_it() -> None:
    compress = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    decoder = decoder_for("gzip")
    for text in (b"data: 1\n\n", b"data: 2\n\n"):
        assert b"".join(decoder.feed(compress.compress(text) + compress.flush(zlib.Z_SYNC_FLUSH))) == text
        assert not decoder.whole
    assert b"".join(decoder.feed(compress.flush())) == b""
    assert decoder.whole


@pytest.mark.parametrize("name", ["gzip", "deflate", "deflate without its wrapper"])
def test_a_cut_body_is_not_whole_wherever_it_is_cut(name: str) -> None:
    coding, body = BODIES[name]
    for end in range(1, len(body)):
        decoder = decoder_for(coding)
        list(decoder.feed(body[:end]))
        assert not decoder.whole, end


def test_an_empty_body_is_whole() -> None:
    assert decoder_for("gzip").whole


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_damaged_bytes_are_reported(coding: str) -> None:
    with pytest.raises(CodingDamaged, match=f"the {coding} body is damaged"):
        list(decoder_for(coding).feed(b"data: this is plain text\n\n"))


def test_a_damaged_checksum_is_reported() -> None:
    body = bytearray(gzip.compress(TEXT))
    body[-6] ^= 1
    pieces: list[bytes] = []
    with pytest.raises(CodingDamaged):
        pieces.extend(decoder_for("gzip").feed(bytes(body)))
    assert b"".join(pieces) == TEXT  # what came before the damage is not lost


def test_a_small_body_that_becomes_huge_comes_in_bounded_pieces() -> None:
    bomb = gzip.compress(b"\0" * (PIECE_BYTES * 8 + 3))
    total = 0
    decoder = decoder_for("gzip")
    for piece in decoder.feed(bomb):
        assert len(piece) <= PIECE_BYTES
        total += len(piece)
    assert (total, decoder.whole) == (PIECE_BYTES * 8 + 3, True)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip"])
def test_other_codings_are_refused_by_name(coding: str) -> None:
    with pytest.raises(CodingUnknown, match=coding):
        decoder_for(coding)
