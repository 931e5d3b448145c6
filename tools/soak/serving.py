"""Starts our own server for a run, as a user starts it, and ends it with everything that it started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from tools.probe.exits import CouldNotRun
from tools.words import split_words

STOP_S = 90.0
"""The server drains running requests before it ends."""
LOG_BYTES = 800


class OurServer:
    """`python -m serve` with these options, on a free port unless they name one. Its log is the file `log`.

    Raises: CouldNotRun: it did not start.
    """

    def __init__(self, options: str, log: Path, *, command: list[str] | None = None) -> None:
        whole = [*(command or [sys.executable, "-m", "serve"]), *_words(options)]
        if "--port" not in whole:
            whole += ["--port", "0"]
        # Ctrl-C is for the run, which ends the server in its time
        group = subprocess.CREATE_NEW_PROCESS_GROUP if sys.platform == "win32" else 0
        self._log = log
        try:
            with log.open("wb") as file:
                self.process = subprocess.Popen(
                    whole,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    creationflags=group,
                    start_new_session=sys.platform != "win32",
                )
        except OSError as error:
            raise CouldNotRun(f"the server cannot be started: {error}") from None
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode("utf-8", "replace").split()
        if line[:1] != ["ready:"] or len(line) < 2:
            self.end()
            raise CouldNotRun(f"the server did not start: {self.last_words()}")
        self.url = line[1]

    def last_words(self) -> str:
        return self._log.read_text("utf-8", "replace")[-LOG_BYTES:].strip() or "it wrote no log"

    @property
    def ended(self) -> str | None:
        """How it ended by itself; None: it runs."""
        code = self.process.poll()
        return None if code is None else f"exit status {code}"

    def end(self, limit_s: float = STOP_S) -> bool:
        """Stop it as a user does; whether it ended by that within the time. If not, it is killed."""
        children = _below(self.process.pid)
        stopped = True
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(limit_s)
            except subprocess.TimeoutExpired:
                stopped = False
                for process in [*children, *_below(self.process.pid)]:
                    _kill(process)
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return stopped


def _words(options: str) -> list[str]:
    try:
        return split_words(options)
    except ValueError as error:
        raise CouldNotRun(f"serve: {options!r:.80}: {error}") from None


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return
