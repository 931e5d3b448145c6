"""serve/stopping.py in a process of its own: a signal at any step of waiting is heard, and holds nothing up."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from serve.stopping import SIGNALS

DEADLINE_S = 60.0
WAITS = """
import signal, sys
from serve.stopping import Stopping
number, step = int(sys.argv[1]), int(sys.argv[2])
stop, seen = Stopping(), 0
def trace(frame, event, arg):
    global seen
    seen += 1
    if seen == step:
        signal.raise_signal(number)
    return trace
sys.settrace(trace)
stop.wait(0.01) or stop.wait(0.01)
sys.settrace(None)
print(stop.wait(0), stop.given, seen >= step)
"""


def waited(number: int, step: int) -> list[bool]:
    command = [sys.executable, "-c", WAITS, str(number), str(step)]
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=True)
    return [word == b"True" for word in done.stdout.split()]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_heard_at_each_step_of_the_waiting(number: int) -> None:
    steps = 0
    while True:
        heard, given, reached = waited(number, steps + 1)
        if not reached:
            break
        steps += 1
        assert heard
        assert given
    assert steps > 5
    assert (heard, given) == (False, False)


@pytest.mark.skipif(os.name == "nt", reason="a signal from outside ends the process there")
def test_a_signal_that_came_before_is_heard_again_and_again() -> None:
    text = "from serve.stopping import *; import os, signal; s = Stopping(); os.kill(os.getpid(), signal.SIGTERM)\n"
    text += "print(s.wait(60), s.wait(60), s.given)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=DEADLINE_S, check=True)
    assert done.stdout.split() == [b"True"] * 3
