"""The requests among the commands that the fake engine gets.

It decides nothing; `loop` does.
"""

from __future__ import annotations


class Request:
    """A GEN or BGEN that waits for its turn. `slot` is None for a GEN; `fault` says what is wrong with the line."""

    __slots__ = ("fault", "ids", "max_new", "slot")

    def __init__(self, slot: int | None, max_new: int, ids: list[int], fault: str = "") -> None:
        self.fault = fault
        self.slot = slot
        self.max_new = max_new
        self.ids = ids


def parse_request(line: str) -> Request:
    """Read a command line that is not about a running request; anything but a good GEN or BGEN has a `fault`."""
    name = line.partition(" ")[0]
    if name not in ("GEN", "BGEN"):
        return Request(None, 0, [], f"unknown command: {line[:40]}")
    try:
        return _parse(line)
    except (ValueError, IndexError) as error:
        return Request(None, 0, [], f"{name}: {error}")


def _parse(line: str) -> Request:
    words = line.split()
    slot = int(words.pop(1)) if words[0] == "BGEN" else None
    if len(words) < 3 or any("=" not in pair for pair in words[2:-1]):
        raise ValueError("wants a count, key=value pairs and token ids")
    max_new = int(words[1])
    if max_new < 1:
        raise ValueError("the count is below 1")
    return Request(slot, max_new, [int(word) for word in words[-1].split(",")])
