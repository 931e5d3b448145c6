"""What the two readers of a tool call have in common. It reads nothing itself."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from serve.assemble.lexer import Lexeme


class Outcome(Enum):
    """How far a call was read."""

    OPEN = "open"
    """More is to come."""
    CLOSED = "closed"
    """The closing tag came and the arguments are a JSON object."""
    BROKEN = "broken"
    """It can no longer become a call."""


class CallReader(Protocol):
    """Reads one tool call after its `<tool_call>`."""

    name: str | None
    """The tool's name, once it is known."""
    rest: list[Lexeme]
    """After CLOSED and BROKEN: what came and does not belong to the call."""
    plausible: bool
    """Whether what came looks like a call at all, and not like text about calls."""
    fault: str
    """After BROKEN: what is wrong, in words."""

    def feed(self, lexeme: Lexeme) -> Outcome:
        """Read the next lexeme."""
        ...

    def take(self) -> str:
        """The arguments' JSON text since the last call."""
        ...

    def finish(self, partial: str, *, stopped: bool) -> Outcome:
        """The answer ended, by the model's own decision if `stopped`. `partial` is text that the lexer held."""
        ...
