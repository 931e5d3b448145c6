"""What a server writes into an event stream that is no event: kept, because it may be the cause of its failure.

It decides no ending and knows no API.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from engine.sse_codec import SseEvent, SseItem, SseOdd
from engine.upstream_errors import Problem, problem_in, problem_of_body

MAX_CHARS = 8192
"""How much of it is kept."""


class OddLines:
    """Those of one stream. Not thread-safe."""

    def __init__(self) -> None:
        self._text = ""

    def keep(self, item: SseOdd) -> Problem | None:
        """Note a line; gives the error that it tells by itself."""
        self._text = f"{self._text}{_line(item)}\n"[:MAX_CHARS]
        return problem_of_body(item.value.encode(), "") if item.field == "error" else _problem_in_text(item.value)

    @property
    def problem(self) -> Problem | None:
        """The error that all lines together tell."""
        return _problem_in_text(self._text) if self._text else None

    @property
    def note(self) -> str:
        """The lines, for a message that needs a cause; "" if there were none."""
        return f"; it wrote: {problem_of_body(self._text.encode(), '').message!r}" if self._text.strip() else ""

    def at_cut(self, pending: Iterable[SseItem]) -> tuple[Problem | None, bool]:
        """The error that is told by `pending`, what a stream's decoder had left when the stream broke off, and whether
        it looks like one, whole or not."""
        problem: Problem | None = None
        fragments = ""
        for item in pending:
            if isinstance(item, SseEvent) and item.name == "error":
                problem = problem or problem_of_body(item.data.encode(), "no reason given")
            elif isinstance(item, SseEvent):
                fragments += f"{item.data}\n"
            elif isinstance(item, SseOdd):
                fragments += f"{_line(item)}\n"
        problem = problem or _problem_in_text(fragments) or _problem_in_text(self._text + fragments)
        return problem, problem is not None or "err" in (fragments + self._text).lower()


def _line(item: SseOdd) -> str:
    return f"{item.field}: {item.value}" if item.field else item.value


def _problem_in_text(text: str) -> Problem | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        return problem_in(json.loads(text))
    except (ValueError, RecursionError):
        return None
