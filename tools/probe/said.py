"""What a model has made, piece by piece, in about the memory of its text, up to a limit that is told."""

from __future__ import annotations

from collections.abc import Iterator

MOST_CHARACTERS = 16 * 1024 * 1024
_PIECES = 1_000
"""So many are put together into one: small ones take ten times their text."""


class Said:
    """Append and iterate, as with a list of texts; where one piece ends is not kept. Its length is the number of
    pieces. `full`: the rest was left out."""

    __slots__ = ("_blocks", "_characters", "_count", "_pieces", "full")

    def __init__(self) -> None:
        self.full = False
        self._count = 0
        self._characters = 0
        self._blocks: list[str] = []
        self._pieces: list[str] = []

    def append(self, text: str) -> None:
        if not text:
            return
        self._count += 1
        if self.full:
            return
        self._characters += len(text)
        if self._characters > MOST_CHARACTERS:
            self.full = True
            return
        self._pieces.append(text)
        if len(self._pieces) >= _PIECES:
            self._blocks.append("".join(self._pieces))
            self._pieces.clear()

    def __iter__(self) -> Iterator[str]:
        yield from self._blocks
        yield from self._pieces

    def __len__(self) -> int:
        return self._count

    def __str__(self) -> str:
        return "".join(self)
