"""A stand-in for NVIDIA's library, with what is used of it."""

from __future__ import annotations

from dataclasses import dataclass, field


class NvmlError(Exception):
    pass


@dataclass
class Process:
    pid: int
    usedGpuMemory: int | None


@dataclass
class Memory:
    used: int


@dataclass
class FakeNvml:
    """Two devices. `broken`: the calls that fail."""

    devices: int = 2
    broken: set[str] = field(default_factory=set[str])
    told: dict[str, list[list[Process]]] = field(default_factory=dict[str, list[list[Process]]])
    open: int = 0
    NVMLError: type[Exception] = NvmlError

    def _call(self, name: str) -> None:
        if name in self.broken:
            raise NvmlError(f"{name} failed")

    def nvmlInit(self) -> None:
        self._call("init")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._call("count")
        return self.devices

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> Memory:
        self._call("memory")
        return Memory(1000)

    def _processes(self, kind: str, handle: object) -> list[Process]:
        self._call(kind)
        assert isinstance(handle, int)
        return self.told.get(kind, [[], []])[handle]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[Process]:
        return self._processes("compute", handle)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: object) -> list[Process]:
        return self._processes("graphics", handle)
