"""What is kept of an answer: its entries, in order, and their bytes.

An entry is an event that changes what was made or how it ended, or a heartbeat that was an event of its own. The same
entries always give the same wire events (`serve.encode`), so they are all that has to be stored. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engine.events import Accepted, Piece, Terminal


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat that has a number in the stream."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The last entry: how the answer ended, and when, in Unix seconds."""

    terminal: Terminal
    at: float


Entry: TypeAlias = Accepted | Piece | Beat | Ended


def encode(entries: Sequence[Entry]) -> bytes:
    """The entries as bytes, ASCII or UTF-8. What `decode` gives back is equal to what went in.

    Raises: ValueError: a text is not valid Unicode (half a surrogate pair).
    """
    raise NotImplementedError


def decode(data: bytes) -> list[Entry]:
    """The entries of one `encode`.

    Raises: ValueError: the bytes are not those of `encode`.
    """
    raise NotImplementedError
