"""tools/soak/gpu.py: over what NVML says, and where it is not."""

from __future__ import annotations

import sys

import pytest

from tests.unit.tools.soak.fake_nvml import FakeNvml, Process
from tools.soak.gpu import HOW_TO_GET, Gpu, GpuUse, find_gpu


def test_memory_of_our_processes_is_told_from_that_of_others() -> None:
    told = {
        "compute": [[Process(1, 100), Process(9, 500)], [Process(2, 30)]],
        "graphics": [[Process(1, 100)], [Process(3, 7)]],  # a process on both lists holds its memory once
    }
    gpu = Gpu(FakeNvml(told=told))
    assert gpu.read({1, 2, 3}) == GpuUse(137, 2000)
    assert gpu.read({4}) == GpuUse(0, 2000)


def test_driver_that_does_not_say_whose_memory_it_is_gives_none() -> None:
    """Windows, in its usual driver model."""
    gpu = Gpu(FakeNvml(told={"compute": [[Process(1, None)], []]}))
    assert gpu.read({1}) == GpuUse(None, 2000)


def test_device_without_one_of_the_lists_is_read_by_the_other() -> None:
    gpu = Gpu(FakeNvml(broken={"graphics"}, told={"compute": [[Process(1, 5)], []]}))
    assert gpu.read({1}) == GpuUse(5, 2000)


def test_device_that_fails_later_gives_nothing() -> None:
    nvml = FakeNvml()
    gpu = Gpu(nvml)
    nvml.broken.add("memory")
    assert gpu.read({1}) is None
    gpu.close()
    assert nvml.open == 0


def found(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> Gpu | str:
    monkeypatch.setitem(sys.modules, "fake_nvml", nvml)  # type: ignore[arg-type] - it has what is used of a module
    return find_gpu("fake_nvml")


def test_gpus_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = found(monkeypatch, FakeNvml())
    assert isinstance(gpu, Gpu)
    assert gpu.devices == 2


@pytest.mark.parametrize(
    ("nvml", "why"),
    [
        (FakeNvml(broken={"init"}), "no GPU that NVML knows (init failed)"),
        (FakeNvml(broken={"count"}), "no GPU that NVML knows (count failed)"),
        (FakeNvml(devices=0), "no GPU that NVML knows"),
    ],
)
def test_machine_without_gpu_says_so_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, why: str
) -> None:
    assert found(monkeypatch, nvml) == why
    assert nvml.open == 0


def test_missing_library_says_how_to_get_it() -> None:
    assert find_gpu("no_such_library") == HOW_TO_GET
