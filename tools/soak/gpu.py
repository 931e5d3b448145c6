"""GPU memory, read through NVIDIA's NVML where it is there. Nothing of the GPU is changed."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol, cast

MODULE = "pynvml"
HOW_TO_GET = "GPU memory needs nvidia-ml-py: pip install 'strata-serve[tools]' (from a checkout: -e '.[tools]')"


class _Memory(Protocol):
    used: int


class _Process(Protocol):
    pid: int
    usedGpuMemory: int | None


class Nvml(Protocol):
    """What is used of NVML. Source: nvidia-ml-py 13, `pynvml.py`."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...
    def nvmlDeviceGetMemoryInfo(self, handle: object) -> _Memory: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> Sequence[_Process]: ...
    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: object) -> Sequence[_Process]: ...


@dataclass(frozen=True, slots=True)
class GpuUse:
    """`tree_bytes`: what the asked processes hold; None where the driver does not say (Windows). `in_use_bytes`: of all
    devices, by whomever."""

    tree_bytes: int | None
    in_use_bytes: int


class Gpu:
    """All devices of this machine. Use `find`; close it."""

    def __init__(self, nvml: Nvml) -> None:
        """Raises: what NVML raises, where it has no driver or no device."""
        self._nvml = nvml
        nvml.nvmlInit()
        try:
            self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError:
            nvml.nvmlShutdown()
            raise

    @property
    def devices(self) -> int:
        return len(self._handles)

    def read(self, pids: AbstractSet[int]) -> GpuUse | None:
        """None: the driver did not answer."""
        try:
            in_use = sum(self._nvml.nvmlDeviceGetMemoryInfo(handle).used for handle in self._handles)
        except self._nvml.NVMLError:
            return None
        return GpuUse(self._of(pids), in_use)

    def _of(self, pids: AbstractSet[int]) -> int | None:
        """A process may be on both lists of a device, with the same bytes."""
        whole = 0
        for handle in self._handles:
            by_pid: dict[int, int] = {}
            for read in (
                self._nvml.nvmlDeviceGetComputeRunningProcesses,
                self._nvml.nvmlDeviceGetGraphicsRunningProcesses,
            ):
                try:
                    processes = read(handle)
                except self._nvml.NVMLError:
                    continue
                for process in processes:
                    if process.pid in pids and process.usedGpuMemory is None:
                        return None
                    if process.pid in pids:
                        by_pid[process.pid] = max(by_pid.get(process.pid, 0), process.usedGpuMemory or 0)
            whole += sum(by_pid.values())
        return whole

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


def find_gpu(module: str = MODULE) -> Gpu | str:
    """The GPUs of this machine, or why none is watched."""
    try:
        nvml = cast("Nvml", importlib.import_module(module))
    except ImportError:
        return HOW_TO_GET
    try:
        gpu = Gpu(nvml)
    except nvml.NVMLError as error:
        return f"no GPU that NVML knows ({error})"
    if not gpu.devices:
        gpu.close()
        return "no GPU that NVML knows"
    return gpu
