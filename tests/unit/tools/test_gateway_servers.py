"""tools/gateway_servers.py: what is not there says how to get it, what does not start says why, what ends is gone."""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tools.gateway_load import Client, Load
from tools.gateway_servers import (
    CannotStart,
    Choice,
    Name,
    NotThere,
    litellm_config,
    nginx_config,
    start,
    upstream,
)
from tools.gateway_wire import Wanted

nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not on PATH")


@pytest.mark.parametrize(("name", "remedy"), [("nginx", "--nginx"), ("litellm", "litellm[proxy]")])
def test_a_program_that_is_not_there_says_how_to_get_it(
    name: Name, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with upstream(tmp_path) as up, ExitStack() as stack, pytest.raises(NotThere) as missing:
        start(name, up, Choice(), tmp_path, stack)
    assert remedy in str(missing.value)


def test_a_named_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with upstream(tmp_path) as up, ExitStack() as stack, pytest.raises(NotThere, match="no-such-nginx"):
        start("nginx", up, Choice(nginx="no-such-nginx"), tmp_path, stack)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    choice = Choice(ours=f'"{sys.executable}" -c "import sys; sys.exit(\'out of luck\')"')
    with upstream(tmp_path) as up, ExitStack() as stack, pytest.raises(CannotStart, match="out of luck"):
        start("ours", up, choice, tmp_path, stack)


def test_a_command_that_cannot_run_says_so(tmp_path: Path) -> None:
    with upstream(tmp_path) as up, ExitStack() as stack, pytest.raises(CannotStart, match="ours cannot be started"):
        start("ours", up, Choice(ours="no-such-program"), tmp_path, stack)


def test_direct_is_the_upstream_which_uses_something_and_ends(tmp_path: Path) -> None:
    with upstream(tmp_path) as up, ExitStack() as stack:
        assert start("direct", up, Choice(), tmp_path, stack) is up
        assert Client(Load(up.port, 2, Wanted(3, 0.0), 20.0)).run().verdicts["whole"] == 2
        use = up.use(memory=True)
        assert (use.processes, use.cpu_s > 0, use.rss_bytes > 1_000_000) == (1, True, True)
        assert up.use().rss_bytes == 0
        pid = up.pid
    assert not psutil.pid_exists(pid)
    assert up.use().processes == 0


def test_ours_carries_the_streams_and_leaves_no_process(tmp_path: Path) -> None:
    with upstream(tmp_path) as up, ExitStack() as stack:
        ours = start("ours", up, Choice(), tmp_path, stack)
        assert Client(Load(ours.port, 4, Wanted(20, 0.0), 30.0)).run().verdicts["whole"] == 4
    assert not psutil.pid_exists(ours.pid)


@nginx
def test_nginx_carries_the_streams_and_leaves_no_process(tmp_path: Path) -> None:
    with upstream(tmp_path) as up, ExitStack() as stack:
        through = start("nginx", up, Choice(nginx_workers=2), tmp_path, stack)
        assert Client(Load(through.port, 4, Wanted(20, 0.0), 30.0)).run().verdicts["whole"] == 4
        assert through.use().processes == 3
    assert through.use().processes == 0


def test_the_configurations_name_the_upstream_and_buffer_nothing(tmp_path: Path) -> None:
    config = nginx_config(tmp_path, 8_001, 8_002, 2)
    for line in ("worker_processes 2;", "127.0.0.1:8001", "server 127.0.0.1:8002;", "proxy_buffering off;"):
        assert line in config
    assert "api_base: http://127.0.0.1:8002/v1" in litellm_config(8_002)
