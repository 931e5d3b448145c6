"""tools/ready_line.py over real processes: what is said first, what says nothing, and what says too much."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tools.ready_line import first_line

DEADLINE_S = 20.0
Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python code with its output as a pipe; ended with the test."""
    with ExitStack() as stack:

        def run(code: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-S", "-c", code]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.callback(end, process)
            return process

        yield run


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(DEADLINE_S)
    assert process.stdin is not None
    process.stdin.close()


def test_first_line_is_told_while_the_process_runs(start: Start) -> None:
    process = start("print('ready: hellö', flush=True); input()".encode().decode())
    assert first_line(process, DEADLINE_S).split() == ["ready:", "hellö"]
    assert process.poll() is None


def test_output_that_ends_without_a_line_is_empty(start: Start) -> None:
    assert first_line(start("pass"), DEADLINE_S) == ""


def test_process_that_says_nothing_is_waited_for_no_longer_than_the_limit(start: Start) -> None:
    with pytest.raises(TimeoutError, match=r"it said nothing for 0\.3 s"):
        first_line(start("input()"), 0.3)


def test_waiting_ends_when_it_is_told_to(start: Start) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        first_line(start("input()"), DEADLINE_S, stop)


def test_process_that_goes_on_talking_does_not_wait_for_a_reader(start: Start) -> None:
    process = start("print('ready:'); print('x' * (1 << 20), flush=True)")
    assert first_line(process, DEADLINE_S).strip() == "ready:"
    assert process.wait(DEADLINE_S) == 0
