"""A server in another tree, started as Strata's users start theirs, over our fake engine.

    python -m serve.server --engine strata --config CONFIG --port PORT

It knows nothing of that server but the names of its command line, its run config and its `ready:` line.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.fake.launch import executable

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
"""The bytes that stand for themselves in a byte-level vocabulary."""

Json = dict[str, Any]


class StrataTree:
    """One server process of the tree `root`. `folder` holds its files; `config` is added to its run config. Use as a
    context manager."""

    def __init__(self, root: Path, script: Json, folder: Path, config: Mapping[str, Any]) -> None:
        self.root = root
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "script.json").write_text(json.dumps(script), encoding="utf-8")
        (folder / "state").mkdir()
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._config = {
            "exe": str(executable(folder)),
            "args": [str(folder / "script.json"), "--state", str(folder / "state")],
            "cwd": str(folder),
            "log": str(folder / "engine.log"),
            "tokenizer": str(write_tokenizer(folder / "tokenizer")),
            "model_name": "promised",
            **config,
        }
        self.port = free_port()

    def __enter__(self) -> StrataTree:
        (self.folder / "config.json").write_text(json.dumps(self._config), encoding="utf-8")
        words = ["-m", "serve.server", "--engine", "strata", "--config", str(self.folder / "config.json")]
        with (self.folder / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                [str(tree_python(self.root)), *words, "--port", str(self.port)],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "STRATA_STORE": str(self.folder / "store.db")},
            )
        threading.Thread(target=self._pump, daemon=True).start()
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _pump(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")
        self.process.stdout.close()

    def _wait_ready(self) -> None:
        end, line = time.monotonic() + START_DEADLINE_S, b""
        while not line.startswith(b"ready: "):
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"{self.root}: no `ready:` line within {START_DEADLINE_S} s{self._said()}"
                ) from None
            assert line, f"{self.root}: the server ended before it was ready{self._said()}"

    def _said(self) -> str:
        """What helps to find out why it did not start."""
        return f"; its Python: {tree_python(self.root)}; its last words:\n{self.log() or '(none)'}"

    def log(self) -> str:
        """The end of what it wrote to stderr."""
        return (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")[-2_000:]

    def cue(self, name: str) -> None:
        """Let the engine go on at its `cue` steps of this name."""
        (self.folder / "state" / f"cue-{name}").touch()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(STOP_DEADLINE_S)


def tree_python(root: Path) -> Path:
    """The interpreter of the tree's own environment, if it has one, else this one."""
    for name in (("Scripts", "python.exe"), ("bin", "python")):
        if (own := root.joinpath(".venv", *name)).exists():
            return own
    return Path(sys.executable)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_tokenizer(folder: Path) -> Path:
    """A byte-level vocabulary whose ids are the bytes; control tokens as the fake engine has them."""
    folder.mkdir()
    spare = iter(range(0x100, 0x200))
    names = [chr(byte if byte in PRINTED else next(spare)) for byte in range(256)]
    vocab = {name: number for number, name in enumerate([*names, *SPECIALS, names[0] * 2])}
    for file, value in (("vocab.json", vocab), ("token_type.json", [1] * 256 + [3] * len(SPECIALS) + [1])):
        (folder / file).write_text(json.dumps(value), encoding="ascii")  # read without an encoding by some
    (folder / "merges.txt").write_text(f"{names[0]} {names[0]}", encoding="utf-8")
    return folder
