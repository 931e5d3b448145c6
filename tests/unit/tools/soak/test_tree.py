"""tools/soak/tree.py over real processes: who is below, who lives on outside, what they hold, who listens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.server import wait_for
from tools.probe.exits import CouldNotRun
from tools.probe.target import parse_target
from tools.soak.tree import Tree, held_by, listener_pid

DEADLINE_S = 20.0
PARENT = """
import subprocess, sys
command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
child = subprocess.Popen(command, stdin=0, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A parent below this process, and the pid of its child; the child ends with its stdin, which is ours."""
    parent = subprocess.Popen([sys.executable, "-S", "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None and parent.stdin is not None
    yield parent, int(parent.stdout.readline())
    parent.kill()
    parent.wait(DEADLINE_S)
    parent.stdin.close()
    parent.stdout.close()


def test_processes_below_are_seen(family: tuple[subprocess.Popen[bytes], int]) -> None:
    parent, child = family
    tree = Tree(os.getpid())
    assert {parent.pid, child} <= {process.pid for process in tree.look()}
    assert tree.has(child)
    assert tree.strays() == []


def test_process_that_outlives_its_parent_is_a_stray_until_it_ends(
    family: tuple[subprocess.Popen[bytes], int],
) -> None:
    parent, child = family
    tree = Tree(parent.pid)
    assert [process.pid for process in tree.look()] == [child]
    parent.kill()
    parent.wait(DEADLINE_S)
    assert not tree.alive
    tree.look()
    (stray,) = tree.strays()
    assert stray.pid == child
    assert parent.stdin is not None
    parent.stdin.close()
    wait_for(lambda: not tree.strays(), "no strays are left", DEADLINE_S)


def test_strays_are_ended_where_they_are_ours(family: tuple[subprocess.Popen[bytes], int]) -> None:
    parent, child = family
    tree = Tree(parent.pid)
    tree.look()
    parent.kill()
    parent.wait(DEADLINE_S)
    tree.end_all()
    wait_for(
        lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE,
        "the child is over",
        DEADLINE_S,
    )
    assert tree.strays() == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no zombies")
def test_zombie_has_ended() -> None:
    """A child that has ended and that nobody waits for is no process that lives."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    tree = Tree(os.getpid())
    assert tree.has(child.pid)
    assert child.stdin is not None
    child.stdin.close()
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, "the child is over", DEADLINE_S)
    assert not tree.has(child.pid)
    assert tree.strays() == []
    child.wait(DEADLINE_S)


def test_what_processes_hold_is_added_up(family: tuple[subprocess.Popen[bytes], int]) -> None:
    parent, child = family
    alone = held_by([psutil.Process(parent.pid)])
    both = held_by([psutil.Process(parent.pid), psutil.Process(child)])
    assert alone.rss_bytes > 1 << 20
    assert both.rss_bytes > alone.rss_bytes
    assert both.threads > alone.threads >= 1
    assert both.descriptors > alone.descriptors > 0


def test_process_that_has_just_ended_holds_nothing(family: tuple[subprocess.Popen[bytes], int]) -> None:
    parent, child = family
    gone = psutil.Process(child)
    parent.kill()
    parent.wait(DEADLINE_S)
    assert parent.stdin is not None
    parent.stdin.close()
    wait_for(lambda: not gone.is_running(), "it is gone", DEADLINE_S)
    assert held_by([gone]).rss_bytes == 0


def test_server_without_a_process_is_refused_with_the_remedy() -> None:
    with pytest.raises(CouldNotRun, match="server pid 2147483000: there is no such process; --server-pid names"):
        Tree(2_147_483_000)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS tells only root who listens")
def test_listener_of_a_loopback_url_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listener_pid(parse_target(f"http://127.0.0.1:{port}/v1")) == os.getpid()
        assert listener_pid(parse_target(f"http://localhost:{port}/v1")) == os.getpid()
        assert listener_pid(parse_target(f"http://192.0.2.1:{port}/v1")) is None


def test_port_that_nobody_listens_at_has_no_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert listener_pid(parse_target(f"http://127.0.0.1:{port}/v1")) is None
