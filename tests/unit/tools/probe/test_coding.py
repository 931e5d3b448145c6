"""tools/probe/coding.py: gzip and deflate are undone as they come; damage and cuts are told."""

from __future__ import annotations

import gzip
import zlib

import pytest

from tools.probe.coding import Decoder

TEXT = b"data: " + bytes(range(32, 127)) * 50


def bare_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(data) + made.flush()


CODED = {
    "gzip": ("gzip", gzip.compress(TEXT)),
    "gzip in two members": ("GZIP", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
    "x-gzip": ("x-gzip", gzip.compress(TEXT)),
    "deflate": ("deflate", zlib.compress(TEXT)),
    "bare deflate": ("deflate", bare_deflate(TEXT)),
    "none": (None, TEXT),
    "identity": ("identity", TEXT),
}


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
@pytest.mark.parametrize("case", CODED)
def test_a_coded_body_is_read(case: str, size: int) -> None:
    coding, data = CODED[case]
    decoder = Decoder(coding)
    made = b"".join(decoder.feed(data[at : at + size]) for at in range(0, len(data), size)) + decoder.close()
    assert made == TEXT
    assert decoder.fault is None


def test_what_was_flushed_is_read_before_the_end() -> None:
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    decoder = Decoder("gzip")
    assert decoder.feed(packer.compress(b"data: 1\n\n") + packer.flush(zlib.Z_SYNC_FLUSH)) == b"data: 1\n\n"


def test_damage_and_cuts_are_told() -> None:
    whole = gzip.compress(TEXT)
    cut = Decoder("gzip")
    cut.feed(whole[:-10])
    cut.close()
    assert cut.fault == "the gzip body was cut"
    damaged = Decoder("gzip")
    damaged.feed(whole[:-8] + b"\0" * 8)
    assert "damaged" in (damaged.fault or "")
    assert "'br'" in (Decoder("br").fault or "")
