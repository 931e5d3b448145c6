"""The bad server as a process, and the soak's own program run on it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from tools import plots
from tools.soak.__main__ import main

BAD_SERVER = Path(__file__).with_name("bad_server.py")
DEADLINE_S = 20.0


class BadServer:
    """One process; everything that it started is ended with it."""

    def __init__(self, folder: Path, *modes: str) -> None:
        self.folder = folder
        command = [sys.executable, str(BAD_SERVER), str(folder), *modes]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().decode().split()[1]

    def asked(self) -> int:
        """How many streams were asked for."""
        file = self.folder / "asked"
        return file.read_text(encoding="utf-8").count("\n") if file.exists() else 0

    def wait_asked(self, count: int) -> None:
        """Wait until so many streams were asked for."""
        event = threading.Event()
        for _ in range(round(DEADLINE_S / 0.02)):
            if self.asked() >= count:
                return
            event.wait(0.02)
        raise AssertionError(f"the server was not asked for {count} streams")

    def started(self) -> list[int]:
        return [int(line) for line in (self.folder / "pids").read_text(encoding="utf-8").split()]

    def end(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        for pid in self.started():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.create_time() >= self.folder.stat().st_ctime - 60:  # its number may be another's by now
                    process.kill()


@pytest.fixture
def bad_server(tmp_path: Path) -> Iterator[Callable[..., BadServer]]:
    """Start one: `bad_server(*modes)`; ended with the test."""
    with ExitStack() as stack:

        def start(*modes: str) -> BadServer:
            folder = tmp_path / f"server-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            server = BadServer(folder, *modes)
            stack.callback(server.end)
            return server

        yield start


class Soaked:
    """What a run said: its status, its report, and the item of each name."""

    def __init__(self, status: int, folder: Path) -> None:
        self.status = status
        self.folder = folder
        self.report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))

    @property
    def bad(self) -> dict[str, str]:
        """The items that are bad: their text, and what was seen."""
        return {
            item["name"]: "\n".join([item["text"], *item["evidence"]]) for item in self.report["items"] if item["bad"]
        }


@pytest.fixture
def soaked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Soaked]:
    """Run the soak on a server: `soaked(server, *options)`. Ends by counts; the minutes are a bound. Without plots,
    which take most of the time that it needs."""
    monkeypatch.setattr(plots, "LIBRARY", "no_such_library")

    def run(server: BadServer, *options: str) -> Soaked:
        folder = tmp_path / "report"
        whole = ["--url", server.url, "--minutes", "2", "--report", str(folder), "--grace-s", "1", "--seed", "3"]
        return Soaked(main([*whole, "--kills", "0", "--stalls", "0", "--leave", "0.1", *options]), folder)

    return run
