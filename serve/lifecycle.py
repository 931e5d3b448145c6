"""The lives of a response body and of a request's wait: states, transitions and their errors. No I/O."""

from __future__ import annotations

from enum import StrEnum

from engine.api import EngineError
from engine.events import FailKind


class QueueWaitExpired(EngineError, RuntimeError):
    """The request waited longer than `queue_wait_s` for a free engine slot."""

    kind = FailKind.QUEUE_WAIT


class StoreFailed(EngineError, RuntimeError):
    """The answer could not be saved although that was promised."""

    kind = FailKind.STORE


class Refused(EngineError, RuntimeError):
    """The server does not take the request now (queue full, shutting down); `kind` says why."""

    def __init__(self, kind: FailKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class StructuredOutputError(EngineError, ValueError):
    """The answer is not the JSON that `response_format` asked for."""

    kind = FailKind.STRUCTURED


class BodyState(StrEnum):
    """What a streamed response body has on the wire."""

    NEW = "new"
    OPEN = "open"
    TERMINATED = "terminated"
    ENDED = "ended"
    BROKEN = "broken"


BODY_TRANSITIONS: dict[BodyState, frozenset[BodyState]] = {
    BodyState.NEW: frozenset({BodyState.OPEN, BodyState.BROKEN}),
    BodyState.OPEN: frozenset({BodyState.TERMINATED, BodyState.BROKEN}),
    BodyState.TERMINATED: frozenset({BodyState.ENDED, BodyState.BROKEN}),
    BodyState.ENDED: frozenset(),
    BodyState.BROKEN: frozenset({BodyState.BROKEN}),
}
"""The final zero-length chunk is the step TERMINATED → ENDED: there is no way to it without a terminal."""


def body_step(state: BodyState, to: BodyState) -> BodyState:
    """The next state.

    Raises: RuntimeError: the table has no such step (a fault of ours).
    """
    if to not in BODY_TRANSITIONS[state]:
        raise RuntimeError(f"a response body cannot go from {state.value} to {to.value}")
    return to
