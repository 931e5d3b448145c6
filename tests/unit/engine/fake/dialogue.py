"""A talk with the fake engine through real pipes: send lines, wait for lines, see how it ended."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from engine.fake.harness import FakeEngine

DEADLINE_S = 20.0


class Dialogue:
    """One running fake engine. Ended, whatever happens, when the `with` block is left."""

    def __init__(self, script: Mapping[str, object] | Path | str, state_dir: Path) -> None:
        self.fake = FakeEngine(script, state_dir)
        self.chunks: queue.Queue[bytes] = queue.Queue()
        self._rest = bytearray()
        self._log: list[bytes] = []

    def __enter__(self) -> Dialogue:
        self.process = subprocess.Popen(
            self.fake.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdout
        assert self.process.stderr
        self._threads = [
            threading.Thread(target=_pump, args=(self.process.stdout, self.chunks.put)),
            threading.Thread(target=_pump, args=(self.process.stderr, self._log.append)),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()
        for thread in self._threads:
            thread.join()

    # --- saying --------------------------------------------------------------------------------------

    def send(self, *lines: str) -> None:
        assert self.process.stdin
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
        self.process.stdin.flush()

    def gen(self, max_new: int = 4000, prompt: str = "hi") -> None:
        self.send(f"GEN {max_new} temperature=0.5 {ids_of(prompt)}")

    def end_input(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    # --- hearing -------------------------------------------------------------------------------------

    def bytes_until(self, end: bytes) -> bytes:
        """What it wrote up to and with `end`; up to the end of the stream, if that comes first."""
        while end not in self._rest:
            chunk = self.chunks.get(timeout=DEADLINE_S)
            if not chunk:
                self.chunks.put(b"")
                taken = bytes(self._rest)
                self._rest.clear()
                return taken
            self._rest += chunk
        at = self._rest.index(end) + len(end)
        taken = bytes(self._rest[:at])
        del self._rest[:at]
        return taken

    def line(self) -> str:
        """The next line; an empty text at the end of the stream."""
        return self.bytes_until(b"\n").decode("utf-8")

    def until(self, *starts: str) -> list[str]:
        """The next lines without their ends, up to one that starts so."""
        lines: list[str] = []
        while not lines or not lines[-1].startswith(starts):
            line = self.line()
            assert line, f"the stream ended after {lines}"
            lines.append(line.rstrip("\r\n"))
        return lines

    def ready(self) -> list[str]:
        return self.until("READY")

    def answer(self) -> list[str]:
        return self.until("DONE", "ERR")

    def rest(self) -> str:
        """All that is left, once stdout is closed."""
        data = b""
        while True:
            more = self.bytes_until(b"\n")
            if not more:
                return data.decode("utf-8", "replace")
            data += more

    def exit_code(self) -> int:
        return self.process.wait(DEADLINE_S)

    def log(self) -> str:
        """The whole of stderr. Only after the process and all that hold its stderr have ended."""
        self._threads[1].join(DEADLINE_S)
        return b"".join(self._log).decode("utf-8")


def _pump(pipe: IO[bytes], put: Callable[[bytes], None]) -> None:
    with pipe:
        while True:
            data = os.read(pipe.fileno(), 65536)  # what is there, at once
            put(data)
            if not data:
                return


def ids_of(text: str) -> str:
    return ",".join(str(byte) for byte in text.encode("utf-8"))


def text_of(lines: list[str], slot: int | None = None) -> str:
    """The text of the T lines (solo and admissions) or of one slot's BT lines."""
    start = "T " if slot is None else f"BT {slot} "
    ids = [int(line.removeprefix(start)) for line in lines if line.startswith(start)]
    return bytes(token for token in ids if token < 256).decode("utf-8", "replace")


def field(line: str, at: int) -> str:
    return line.split()[at]
