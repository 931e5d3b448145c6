"""A real `strata --serve` on CUDA, if STRATA_CONFIG names its run config."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.client import Connection, ask, chat
from tests.e2e.grammar import check_chat_stream
from tests.e2e.server import ServerProcess

CONFIG = os.environ.get("STRATA_CONFIG", "")
LOAD_S = 1_800.0  # a big model is read from a disk

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.timeout(3 * LOAD_S),
    pytest.mark.skipif(not CONFIG, reason="set STRATA_CONFIG to a Strata run config to test a real engine"),
]


def test_the_real_engine_answers_dies_and_answers_again(server_command: tuple[str, ...], tmp_path: Path) -> None:
    with ServerProcess(server_command, ["--config", CONFIG], tmp_path) as server:
        first = check_chat_stream(ask(server.port, chat(max_tokens=20)))
        assert first.finish_reason in ("stop", "length")
        with Connection(server.port) as connection:
            connection.post("/v1/chat/completions", chat(content="Tell me a very long story.", max_tokens=2000))
            connection.until(b'"delta": {"content": "')
            server.engine_process().kill()
            ending = check_chat_stream(connection.answer())
        assert ending.error is not None
        assert ending.error["code"] == "engine_died"
        with Connection(server.port, timeout_s=LOAD_S) as connection:  # nothing comes while the engine loads again
            connection.post("/v1/chat/completions", chat(stream=False, max_tokens=5))
            assert connection.answer().status == 200
