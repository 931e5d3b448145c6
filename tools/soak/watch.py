"""Reads at regular moments what the server's processes, its GPU and its queue hold. It makes no load."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import psutil

from tools.probe.connection import fetch
from tools.probe.exits import CouldNotRun
from tools.probe.target import Target
from tools.probe.values import Json, as_int, as_object, as_text, at, parsed
from tools.soak.gpu import Gpu
from tools.soak.record import Orphan, Record, Sample, SeriesName, Watched
from tools.soak.settings import Settings
from tools.soak.tree import Tree, held_by

STATUS_S = 5.0
SAMPLES_OF_STREAMS = 100
"""Where a run ends after so many streams, so many samples are taken by their count, too: a fast machine has some."""
LASTING_S = 30.0
"""A process that lived outside of the tree for so long is an orphan, even if it ends later."""


@dataclass(frozen=True, slots=True)
class Status:
    """What of a `/status` like ours is used."""

    engine_pid: int | None = None
    running: int | None = None
    waiting: int | None = None


class StatusPage:
    """The server's `/status`, beside the routes of its APIs. Servers that have none are asked once."""

    def __init__(self, target: Target, *, verify: bool) -> None:
        self._target = replace(target, base="")
        self._verify = verify
        self.there = self.read() is not None

    def read(self) -> Status | None:
        """Blocks for some seconds at most. None: it did not answer, or not as ours does."""
        try:
            request = self._target.get("/status")
            answer = fetch(self._target, request, silence_s=STATUS_S, until_s=STATUS_S, verify=self._verify)
            value = as_object(parsed(answer.body)) if answer.status == 200 else Json()
        except (CouldNotRun, ValueError):
            return None
        if as_text(at(value, "engine", "state")) is None:
            return None
        running, waiting = as_int(at(value, "queue", "running")), as_int(at(value, "queue", "waiting"))
        return Status(as_int(at(value, "engine", "pid")), running, waiting)


class Watch:
    """Samples into the record, from a thread of its own. `tree`, `page` and `gpu` are None where there is none.

    `fault` is what ended the thread.
    """

    def __init__(
        self, settings: Settings, record: Record, *, tree: Tree | None, page: StatusPage | None, gpu: Gpu | None
    ) -> None:
        self._settings = settings
        self._record = record
        self._tree = tree
        self._page = page
        self._gpu = gpu
        self._looking = threading.Lock()  # the tree is for one thread at a time, and faults look at it, too
        self._stop = threading.Event()
        self._lives: list[int] = []
        self._thread = threading.Thread(target=self._run, name="soak-watch", daemon=True)
        self.fault: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            step = max(1, self._record.wanted // SAMPLES_OF_STREAMS) if self._record.wanted else 0
            while not self._stop.is_set():
                self.take()
                if step:
                    self._record.wait_streams(len(self._record.streams) + step, self._settings.every_s)
                else:
                    self._stop.wait(self._settings.every_s)
        except Exception as error:  # noqa: BLE001 - a thread: who started it is told
            self.fault = error

    def take(self) -> None:
        """One sample."""
        at_s, share, streams = self._record.now_s(), self._record.share(), len(self._record.streams)
        values: dict[SeriesName, float] = {}
        status = self._page.read() if self._page is not None else None
        if status is not None and status.running is not None and status.waiting is not None:
            values["running"], values["waiting"] = status.running, status.waiting
        pids: set[int] = set()
        if self._tree is not None:
            below = self.look()
            pids = {self._tree.root.pid, *(process.pid for process in below)}
            self._take_processes(values, below)
        if self._gpu is not None and (use := self._gpu.read(pids)) is not None:
            values["GPU memory in use"] = use.in_use_bytes
            if use.tree_bytes is not None and pids:
                values["GPU memory of the tree"] = use.tree_bytes
        self._record.sample(Sample(at_s, share, streams, self._life(status), values))

    def _take_processes(self, values: dict[SeriesName, float], below: list[psutil.Process]) -> None:
        assert self._tree is not None
        ours, theirs = held_by([self._tree.root]), held_by(below)
        if not ours.rss_bytes:
            return  # the server has ended
        values["server memory"], values["server threads"] = ours.rss_bytes, ours.threads
        values["processes"] = 1 + len(below)
        if ours.descriptors >= 0:
            values["server descriptors"] = ours.descriptors
        if below:
            values["engine memory"], values["engine threads"] = theirs.rss_bytes, theirs.threads
            if theirs.descriptors >= 0:
                values["engine descriptors"] = theirs.descriptors

    def _life(self, status: Status | None) -> int:
        """By the engine's pid where it is known, else by the kills that were made."""
        if self._page is None or not self._page.there:
            return self._record.kills
        if status is not None and status.engine_pid is not None and self._lives[-1:] != [status.engine_pid]:
            self._lives.append(status.engine_pid)
        return len(self._lives)

    def look(self) -> list[psutil.Process]:
        """Look at the tree; who stays outside of it for long is an orphan. Any thread."""
        if self._tree is None:
            return []
        with self._looking:
            below = self._tree.look()
            for stray in self._tree.strays():
                if stray.out_s >= min(LASTING_S, self._settings.grace_s):
                    self._record.orphan(Orphan(stray.pid, stray.name, stray.out_s))
        return below

    def has_strays(self) -> bool:
        if self._tree is None:
            return False
        with self._looking:
            self._tree.look()
            return bool(self._tree.strays())

    def engine_pid(self) -> int | None:
        """What `/status` says, if that process is below the server: pids of a container mean other processes here."""
        status = self._page.read() if self._page is not None else None
        pid = status.engine_pid if status is not None else None
        if pid is None or not any(process.pid == pid for process in self.look()):
            return None
        return pid

    def queue(self) -> tuple[int, int] | None:
        """Running and waiting; None: not known."""
        status = self._page.read() if self._page is not None else None
        if status is None or status.running is None or status.waiting is None:
            return None
        return status.running, status.waiting


def watched(tree: Tree | None, page: StatusPage | None, gpu: Gpu | str, target: Target) -> Watched:
    """What is watched, in words."""
    facts: list[str] = []
    missing: list[str] = []
    if tree is not None:
        facts.append(f"process {tree.root.pid} ({tree.name}) and those below it")
    else:
        missing.append("memory, threads, descriptors, orphans: the server's process is not known; give --server-pid")
    if page is not None and page.there:
        facts.append("queue and engine, by /status")
    else:
        missing.append("queue: the server has no /status like ours")
    if isinstance(gpu, str):
        missing.append(f"GPU memory: {gpu}")
    else:
        facts.append(f"memory of {gpu.devices} GPU(s), by NVML")
    return Watched(target.shown, tuple(facts), tuple(missing))
