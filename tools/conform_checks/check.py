"""What a check is: a value with the truth that it holds a server to, and the function that judges. It asks nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from tools.probe.target import APIS, Api

if TYPE_CHECKING:
    from tools.conform_checks.bench import Bench

Group = Literal[
    "endings", "grammar", "sequence", "tools", "usage", "errors", "framing", "cancel", "queue", "heartbeats", "faults"
]
GROUPS: tuple[Group, ...] = get_args(Group)
"""In the order in which they are judged: what may harm the server comes last."""
Severity = Literal["lie", "breach", "risk"]
"""`lie`: a client takes a wrong or partial answer for a good one. `breach`: against the standard, or the answer is
lost. `risk`: allowed, and known to break clients."""
Scope = Api | Literal["server"]
SCOPES: tuple[Scope, ...] = (*APIS, "server")
WITH_TOOLS: tuple[Api, ...] = ("chat", "responses", "messages")
SERVER: tuple[Scope, ...] = ("server",)

Judge = Callable[["Bench", Api], str | None]
"""What was seen that is not true, or None. Raises: NotSeen, NotThere."""


class NotSeen(Exception):
    """The server or the model gave no occasion; the text says why."""


class NotThere(Exception):
    """The server does not have what is to be judged."""


@dataclass(frozen=True, slots=True)
class Check:
    """`truth` is a sentence that holds at a truthful server; `source` is where it comes from.

    `scopes`: the APIs in which it is judged, one by one, or `("server",)`.
    """

    id: str
    group: Group
    severity: Severity
    truth: str
    source: str
    scopes: tuple[Scope, ...]
    judge: Judge


Result = Literal["passed", "failed", "not seen", "not there"]
RESULTS: tuple[Result, ...] = get_args(Result)


@dataclass(frozen=True, slots=True)
class Cell:
    """One check in one API. `text`: the evidence, or why it was not judged."""

    check: Check
    scope: Scope
    result: Result
    text: str = ""
    took_s: float = 0.0

    @property
    def untrue(self) -> bool:
        """It makes the server untruthful: a failed check that is more than a risk."""
        return self.result == "failed" and self.check.severity != "risk"
