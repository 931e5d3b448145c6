"""tools/probe/recorder.py: the bytes as they came, without the key, also while they come."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.scripted_upstream import LAST_CHUNK, chunk, sse_head
from tools.probe.exits import CouldNotRun
from tools.probe.recorder import Recorder
from tools.probe.secret import Secret

KEY = "sk-0123456789abcdef0123456789abcdef"
ECHO = f'data: {{"error": {{"message": "wrong key {KEY}"}}}}\n\n'.encode()


def record(path: Path, *pieces: bytes, key: str = KEY) -> Recorder:
    with Recorder(path, Secret(key)) as recorder:
        for piece in pieces:
            recorder.heard(piece)
            assert key.encode() not in path.read_bytes() or not key
    return recorder


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_the_key_is_overwritten_while_it_comes_and_the_framing_stays_true(size: int, tmp_path: Path) -> None:
    data = sse_head(x_key=KEY) + chunk(b"data: 1\n\n") + chunk(ECHO) + LAST_CHUNK + KEY.encode()
    recorder = record(tmp_path / "a", *[data[at : at + size] for at in range(0, len(data), size)])
    assert not recorder.leaked
    assert (tmp_path / "a").read_bytes() == data.replace(KEY.encode(), b"*" * len(KEY))


def test_without_a_key_the_bytes_are_as_they_came(tmp_path: Path) -> None:
    record(tmp_path / "a", b"\xff\0", ECHO, key="")
    assert (tmp_path / "a").read_bytes() == b"\xff\0" + ECHO


LEAKS = {
    "over two chunks": sse_head() + chunk(ECHO[:40]) + chunk(ECHO[40:]) + LAST_CHUNK,
    "byte by byte": sse_head() + b"".join(chunk(bytes([byte])) for byte in ECHO) + LAST_CHUNK,
    "compressed": sse_head(content_encoding="gzip") + chunk(gzip.compress(ECHO)) + LAST_CHUNK,
    "as the last bytes": sse_head() + chunk(KEY[:20].encode()) + chunk(KEY[20:].encode()),
}


@pytest.mark.parametrize("name", LEAKS)
@pytest.mark.parametrize("size", [5, 1 << 20])
def test_a_key_that_cannot_be_taken_out_leaves_no_file(name: str, size: int, tmp_path: Path) -> None:
    data = LEAKS[name]
    recorder = record(tmp_path / "a", *[data[at : at + size] for at in range(0, len(data), size)])
    assert recorder.leaked
    assert not (tmp_path / "a").exists()


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(CouldNotRun, match="cannot be written"):
        Recorder(tmp_path / "none" / "a", Secret())
