"""The server as a process, as a user starts it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.client import fetch
from tests.e2e.exchanges import Writer
from tests.e2e.wire import WIRE

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
EVENT_DEADLINE_S = 20.0


class ServerProcess:
    """One server process. `command` starts it; `options` follow. Use as a context manager."""

    def __init__(self, command: Sequence[str], options: Sequence[str], folder: Path) -> None:
        self._log = (folder / "server.log").open("wb")
        self.log_path = folder / "server.log"
        self.process = subprocess.Popen(
            [*command, *options, "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={"STRATA_STORE": str(folder / "store.db"), **os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._writer: Writer = _writer_of([*command, *options])
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._pump, daemon=True).start()
        self.port = 0

    def _pump(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")
        self.process.stdout.close()

    def wait_ready(self) -> None:
        line = self._lines.get(timeout=START_DEADLINE_S)
        assert line.startswith(b"ready: "), (line, self.log())
        self.port = int(line.split()[1].split(b":")[2].split(b"/")[0])
        WIRE.listen(self.port, self._writer)

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> ServerProcess:
        try:
            self.wait_ready()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> int:
        """Stop it as a user does (SIGTERM); returns the exit code."""
        WIRE.forget(self.port)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(STOP_DEADLINE_S)
                self._log.close()
                raise AssertionError(f"the server did not stop: {self.log()}") from None
        self._log.close()
        return self.process.returncode

    @property
    def status(self) -> dict[str, Any]:
        return fetch(self.port, "/status")

    @property
    def health(self) -> dict[str, Any]:
        return fetch(self.port, "/health")

    def engine_process(self) -> psutil.Process:
        return psutil.Process(self.status["engine"]["pid"])

    def settled(self) -> bool:
        """Nothing runs, waits or finishes."""
        status = self.status
        return status["queue"]["running"] == status["queue"]["waiting"] == status["engine"]["finishing"] == 0


def _writer_of(words: Sequence[str]) -> Writer:
    given = dict(pairwise(words))
    if given.get("--engine") in ("fake", "strata"):
        return "us"
    return "its responses" if given.get("--upstream-api") == "responses" else "upstream"


def wait_for(condition: Callable[[], bool], what: str, deadline_s: float = EVENT_DEADLINE_S) -> None:
    """Wait until `condition` holds.

    Raises: AssertionError: it did not within the deadline.
    """
    event = threading.Event()
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"did not happen: {what}"
        event.wait(0.01)


def fake_server(command: Sequence[str], script: dict[str, Any], folder: Path, *options: str) -> ServerProcess:
    """A server over the fake engine with this script."""
    path = folder / "script.json"
    path.write_text(json.dumps(script), encoding="utf-8")
    return ServerProcess(command, ["--engine", "fake", "--script", str(path), *options], folder)


DEFAULT_COMMAND = (sys.executable, "-m", "serve")
