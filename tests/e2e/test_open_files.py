"""A server under the usual soft limit for open files, which its streams would reach."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.server import fake_server


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells another process's limits")
def test_the_soft_limit_for_open_files_is_raised_as_far_as_the_hard_one_allows(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    script = {"requests": [[{"text": "hi"}]], "then": "repeat"}
    command = ("sh", "-c", 'ulimit -S -n 256 && ulimit -H -n 4096 && exec "$0" "$@"', *server_command)
    with fake_server(command, script, tmp_path) as server:
        assert psutil.Process(server.process.pid).rlimit(psutil.RLIMIT_NOFILE) == (4096, 4096)
