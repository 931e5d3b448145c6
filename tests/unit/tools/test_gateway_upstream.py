"""tools/gateway_upstream.py as a process: it sends what is asked for, and ends with its benchmark."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tools.gateway_load import Client, Load
from tools.gateway_wire import BLOCK_CHUNKS, STAMP, Wanted, request_bytes

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 30.0


@pytest.fixture
def process() -> Generator[subprocess.Popen[bytes], None, None]:
    command = [sys.executable, "-m", "tools.gateway_upstream"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture
def port(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    ready, said = process.stdout.readline().split()
    assert ready == b"ready:"
    return int(said)


def asked(port: int, *requests: bytes, ends: int = 1) -> bytes:
    """All that comes on one connection up to so many ends of a body."""
    data = b""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock:
        for request in requests:
            sock.sendall(request)
        while data.count(b"\r\n0\r\n\r\n") < ends:
            part = sock.recv(65_536)
            assert part, data[-300:]
            data += part
    return data


@pytest.mark.parametrize("burst", [1, 7, BLOCK_CHUNKS])
@pytest.mark.parametrize("chunks", [1, BLOCK_CHUNKS, 1_000])
def test_a_stream_without_a_rate_has_all_its_chunks(port: int, chunks: int, burst: int) -> None:
    result = Client(Load(port, 3, Wanted(chunks, 0.0, burst), DEADLINE_S, together=True)).run()
    assert result.verdicts == {"whole": 3, "failed": 0, "untrue": 0}, result.reasons
    assert result.chunks == 3 * chunks


def test_a_paced_stream_is_sent_at_its_rate_by_the_shared_clock(port: int) -> None:
    data = asked(port, request_bytes(port, Wanted(20, 200.0)))
    sent = [int(stamp) for stamp in STAMP.findall(data)]
    assert len(sent) == 20
    assert sent == sorted(sent)
    assert sent[-1] - sent[0] >= 19 * 5_000 - 5_000  # never sooner; later where the machine is busy


def test_paced_streams_end_well(port: int) -> None:
    result = Client(Load(port, 5, Wanted(10, 100.0), DEADLINE_S)).run()
    assert result.verdicts == {"whole": 5, "failed": 0, "untrue": 0}, result.reasons
    assert result.delay is not None
    assert 0 <= result.delay.p50 <= result.delay.p99 <= result.delay.longest


@pytest.mark.parametrize("rate", [0.0, 500.0])
def test_one_connection_carries_one_stream_after_another(port: int, rate: float) -> None:
    data = asked(port, *(request_bytes(port, Wanted(count, rate)) for count in (3, 4)), ends=2)
    first, second = itertools.islice(data.split(b"HTTP/1.1 200 OK"), 1, 3)
    assert (len(STAMP.findall(first)), len(STAMP.findall(second))) == (3, 4)


def test_it_names_its_model_and_no_other_page(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock:
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        data = b""
        while b"no such page" not in data:
            data += sock.recv(65_536)
    models, missing = (part for part in data.split(b"HTTP/1.1 ") if part)
    assert models.startswith(b"200 ")
    assert json.loads(models.partition(b"\r\n\r\n")[2])["data"][0]["id"] == "bench"
    assert missing.startswith(b"404 ")


def test_a_client_that_leaves_harms_no_other(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock:
        sock.sendall(request_bytes(port, Wanted(10_000, 1_000.0)))
        assert sock.recv(100)
    result = Client(Load(port, 2, Wanted(50, 500.0), DEADLINE_S)).run()
    assert result.verdicts["whole"] == 2


def test_it_ends_with_its_stdin(process: subprocess.Popen[bytes], port: int) -> None:
    assert port
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(DEADLINE_S) == 0
