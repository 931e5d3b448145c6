"""Supervised children that are ended after each test, and a check that nothing of them is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import psutil
import pytest

from tests.unit.engine.supervisor.recorder import Recorder, wait_until

Make: TypeAlias = Callable[..., Recorder]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Recorder] = []

    def build(*args: str, **options: Any) -> Recorder:
        made.append(Recorder(*args, **options))
        return made[-1]

    threads, children = set(threading.enumerate()), set(psutil.Process().children())
    yield build
    for recorder in made:
        recorder.supervisor.close()
    wait_until(lambda: set(threading.enumerate()) <= threads, "no thread is left")
    assert set(psutil.Process().children()) <= children
