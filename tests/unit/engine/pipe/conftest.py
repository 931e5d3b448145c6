"""Rigs that are closed after each test, and a check that nothing of them is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pytest

from tests.unit.engine.pipe.rig import Rig
from tests.unit.engine.supervisor.recorder import wait_until

MakeRig: TypeAlias = Callable[..., Rig]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeRig]:
    rigs: list[Rig] = []

    def build(values: dict[str, Any], **options: Any) -> Rig:
        rigs.append(Rig(values, tmp_path / f"fake-{len(rigs)}", **options))
        return rigs[-1]

    threads, children = set(threading.enumerate()), set(psutil.Process().children())
    yield build
    for rig in rigs:
        rig.engine.close()
    wait_until(lambda: set(threading.enumerate()) <= threads, "no thread is left")
    assert set(psutil.Process().children()) <= children
