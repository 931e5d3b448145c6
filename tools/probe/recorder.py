"""Keeps the raw bytes of a stream in a file while they come, without the key. It reads nothing back."""

from __future__ import annotations

from pathlib import Path

from tools.probe.answer import AnswerReader
from tools.probe.coding import Decoder
from tools.probe.exits import CouldNotRun
from tools.probe.secret import HidingBytes, Secret


class Recorder:
    """Use as a context manager; give `heard` to the connection. `leaked`: the key came in pieces or compressed, where
    it cannot be taken out; nothing is kept then. The memory it takes does not grow.

    Raises: CouldNotRun: the file cannot be written.
    """

    def __init__(self, path: Path, secret: Secret) -> None:
        self.leaked = False
        self._path = path
        self._hiding = HidingBytes(secret)
        self._reader = AnswerReader() if secret else None
        self._decoder: Decoder | None = None
        self._found = HidingBytes(secret, tail=True)
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise CouldNotRun(f"{path} cannot be written: {error.strerror}") from None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._keep(self._hiding.close())
        finally:
            self._file.close()
        self._found.close()
        self.leaked = self._found.found > 0
        if self.leaked:
            self._path.unlink(missing_ok=True)

    def heard(self, data: bytes) -> None:
        self._keep(self._hiding.feed(data))

    def _keep(self, data: bytes) -> None:
        if self.leaked:
            return
        self._look(data)
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise CouldNotRun(f"{self._path} cannot be written: {error.strerror}") from None

    def _look(self, data: bytes) -> None:
        """Reads what would be kept as a reader of the file will: without its framing and coding."""
        if self._reader is None:
            return
        for piece in self._reader.feed(data, 0.0):
            if self._decoder is None:
                head = self._reader.head
                self._decoder = Decoder(head.get("content-encoding") if head else None)
            self._found.feed(self._decoder.feed(piece.data))
        self.leaked = self._found.found > 0
