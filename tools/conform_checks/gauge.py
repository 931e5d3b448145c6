"""How many requests a server runs and how many wait, where it says so: `/status`, `/slots` or `/metrics`. It judges
nothing.

Source: llama.cpp's server README (`/slots`, `/metrics`); vLLM and SGLang, "production metrics".
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tools.conform_checks.check import NotSeen
from tools.probe.connection import fetch
from tools.probe.exits import CouldNotRun
from tools.probe.target import Target
from tools.probe.values import as_int, as_list, as_object, at, parsed

PATIENCE_S = 10.0
STEP_S = 0.02
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")


@dataclass(frozen=True, slots=True)
class Load:
    """`waiting` and `slots` are None where the server does not tell them."""

    running: int
    waiting: int | None = None
    slots: int | None = None


def _status(body: bytes) -> Load | None:
    value = parsed(body)
    running = as_int(at(value, "queue", "running"))
    if running is None:
        return None
    finishing = as_int(at(value, "engine", "finishing")) or 0
    return Load(running + finishing, as_int(at(value, "queue", "waiting")), as_int(at(value, "engine", "slots")))


def _slots(body: bytes) -> Load | None:
    slots = [as_object(slot) for slot in as_list(parsed(body))]
    if not slots or any("is_processing" not in slot for slot in slots):
        return None
    return Load(sum(slot["is_processing"] is True for slot in slots), None, len(slots))


def _metrics(body: bytes) -> Load | None:
    counts: dict[str, float] = {}
    for found in re.finditer(rb"(?m)^([\w:]+)(?:\{[^\n]*\})? ([0-9.eE+]+)", body):
        name = found[1].decode()
        counts[name] = counts.get(name, 0.0) + float(found[2])
    running = next((counts[name] for name in _RUNNING if name in counts), None)
    waiting = next((counts[name] for name in _WAITING if name in counts), None)
    return None if running is None else Load(int(running), None if waiting is None else int(waiting))


_SOURCES: tuple[tuple[str, Callable[[bytes], Load | None]], ...] = (
    ("/status", _status),
    ("/slots", _slots),
    ("/metrics", _metrics),
)


class Gauge:
    """Of one server. Each reading blocks, at most for a few seconds."""

    def __init__(self, target: Target, *, verify: bool = True) -> None:
        self._target = replace(target, base=target.base.removesuffix("/v1"))
        self._verify = verify
        self._source: tuple[str, Callable[[bytes], Load | None]] | None = None
        self._looked = False

    def load(self) -> Load:
        """Raises: NotSeen: the server has no gauge."""
        if not self._looked:
            self._looked = True
            self._source = next((source for source in _SOURCES if self._read(source) is not None), None)
        load = self._read(self._source) if self._source is not None else None
        if load is None:
            raise NotSeen("the server does not say what it runs (/status, /slots, /metrics)")
        return load

    def _read(self, source: tuple[str, Callable[[bytes], Load | None]]) -> Load | None:
        route, read = source
        try:
            request = self._target.get(route)
            answer = fetch(self._target, request, silence_s=PATIENCE_S, until_s=PATIENCE_S, verify=self._verify)
            return read(answer.body) if answer.status == 200 else None
        except (ValueError, OverflowError, CouldNotRun):
            return None

    def wait(self, enough: Callable[[Load], bool], limit_s: float) -> float | None:
        """Block until `enough` holds; the seconds that it took, None: it did not within the limit. Raises: NotSeen."""
        begun = time.perf_counter()
        pause = threading.Event()
        while True:
            if enough(self.load()):
                return time.perf_counter() - begun
            if time.perf_counter() - begun > limit_s:
                return None
            pause.wait(STEP_S)
