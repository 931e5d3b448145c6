"""serve/workers.py in a process of its own, which it takes over: workers that do not end, and none left to start."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO

import psutil
import pytest

from tests.e2e.server import wait_for

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it forks")

DEADLINE_S = 60.0
BEGIN = """
import errno, logging, os, signal, sys, threading
from serve.workers import Workers
logging.basicConfig(format="%(message)s", stream=sys.stdout, force=True)
say = lambda line: print(line, flush=True)
"""
STUBBORN = """
def work(number, ready):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready("up")
    threading.Event().wait(60)
    return 0
sys.exit(Workers(2, work).run(say, 0.1))
"""
NO_ROOM = """
def work(number, ready):
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    ready("up")
    stop.wait(60)
    return 0
fork, forks = os.fork, []
def limited():
    forks.append(1)
    if len(forks) == 3:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
os.fork = limited
sys.exit(Workers(2, work).run(say, 10))
"""


@contextmanager
def first(text: str) -> Generator[tuple[subprocess.Popen[str], IO[str]]]:
    """The first process, whose workers are ready."""
    with subprocess.Popen(
        [sys.executable, "-c", BEGIN + text], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as p:
        try:
            assert p.stdout is not None
            assert p.stdout.readline() == "up\n"
            yield p, p.stdout
        finally:
            p.kill()


def test_a_worker_that_does_not_end_is_killed_and_the_exit_code_says_so() -> None:
    with first(STUBBORN) as (process, said):
        children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTERM)
        assert sorted(line.rpartition("(")[0] for line in said) == ["worker 1 ", "worker 2 "]
        assert process.wait(DEADLINE_S) == 70
        assert not any(child.is_running() for child in children)


def test_a_worker_that_cannot_be_started_now_is_started_later() -> None:
    with first(NO_ROOM) as (process, said):
        lost = psutil.Process(process.pid).children()[0]
        lost.kill()
        assert "killed by signal 9 (SIGKILL)" in said.readline()
        assert said.readline().startswith("worker 1 cannot be started: ")
        wait_for(lambda: len(psutil.Process(process.pid).children()) == 2, "two run again", DEADLINE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
