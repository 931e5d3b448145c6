"""Managed upstreams that are closed after each test, and a check that nothing of them is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.unit.engine.managed_rig import Make, Rig, gone, wait_for


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Rig] = []

    def build(*modes: str, **options: Any) -> Rig:
        made.append(Rig(tmp_path / f"rig-{len(made)}", *modes, **options))
        return made[-1]

    threads, children = set(threading.enumerate()), set(psutil.Process().children())
    yield build
    for rig in made:
        rig.engine.close()
    wait_for(lambda: set(threading.enumerate()) <= threads)
    assert set(psutil.Process().children()) <= children
    assert all(gone(pid) for rig in made for pid in [*rig.pids(), *rig.grandchildren()])
