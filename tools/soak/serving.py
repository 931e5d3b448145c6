"""Starts our own server for a run, as a user starts it, and ends it with everything that it started."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil

from tools.probe.exits import CouldNotRun
from tools.ready_line import first_line
from tools.words import split_words

START_S = 1_800.0
"""A large model from a slow disk takes minutes."""
STOP_S = 90.0
"""The server drains running requests before it ends."""
LOG_BYTES = 800


class OurServer:
    """`python -m serve` with these options, on a free port unless they name one. Its log is the file `log`. Blocks
    until it is ready; what does not come to that is ended.

    Raises: CouldNotRun: it did not start, or was not ready within `limit_s`. KeyboardInterrupt: `stop` was set.
    """

    def __init__(
        self,
        options: str,
        log: Path,
        *,
        command: Sequence[str] = (sys.executable, "-m", "serve"),
        limit_s: float = START_S,
        stop: threading.Event | None = None,
    ) -> None:
        words = _words(options)
        whole = [*command, *words]
        if not any(word == "--port" or word.startswith("--port=") for word in words):
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
        try:
            self.url = self._url(limit_s, stop)
        except BaseException:
            self._kill_all([])
            raise

    def _url(self, limit_s: float, stop: threading.Event | None) -> str:
        try:
            words = first_line(self.process, limit_s, stop).split()
        except TimeoutError:
            raise CouldNotRun(f"the server was not ready after {limit_s:g} s: {self.last_words()}") from None
        if words[:1] != ["ready:"] or len(words) < 2:
            raise CouldNotRun(f"the server did not start: {self.last_words()}")
        return words[1]

    def last_words(self) -> str:
        return self._log.read_text("utf-8", "replace")[-LOG_BYTES:].strip() or "it wrote no log"

    @property
    def ended(self) -> str | None:
        """How it ended by itself; None: it runs."""
        code = self.process.poll()
        return None if code is None else f"exit status {code}"

    def end(self, limit_s: float = STOP_S) -> bool:
        """Stop it as a user does; whether it ended by that within the time. If not, it is killed, and so it is when
        this is interrupted."""
        children = _below(self.process.pid)
        stopped = True
        try:
            if self.process.poll() is None:
                self.process.terminate()
                self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            stopped = False
        finally:
            if self.process.poll() is None:
                self._kill_all(children)
        return stopped

    def _kill_all(self, children: list[psutil.Process]) -> None:
        for process in [*children, *_below(self.process.pid)]:
            _kill(process)
        self.process.kill()
        self.process.wait()


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
