"""How each kind of engine is brought into each situation of the conformance suite.

A new kind adds one `RigFactory` to `RIGS`; a situation that cannot be made with it is left out of its `situations`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from engine.api import Engine, EngineRequest, TokenRequest
from engine.events import FailKind
from engine.fake.harness import FakeEngine
from engine.pipe import StrataEngine

Situation: TypeAlias = Literal[
    "answers", "limit", "never ends", "refuses", "too long", "errs", "dies first", "dies later", "silent", "broken",
    "cannot start",
]  # fmt: skip
"""What the engine does with the first request; all later ones it answers well."""

EXPECTED: Mapping[Situation, frozenset[FailKind]] = {
    "refuses": frozenset({FailKind.REFUSED}),
    "too long": frozenset({FailKind.CONTEXT}),
    "errs": frozenset({FailKind.ERR}),
    "dies first": frozenset({FailKind.DIED}),
    "dies later": frozenset({FailKind.DIED}),
    "silent": frozenset({FailKind.SILENT}),
    "broken": frozenset({FailKind.PROTOCOL}),
    "cannot start": frozenset({FailKind.NOT_STARTED}),
}
"""The failures that are true for a situation."""

SILENCE_S = 0.5


@dataclass(frozen=True)
class Rig:
    """One engine in one situation. `request` is a new request for it."""

    engine: Engine
    request: Callable[[], EngineRequest]


@dataclass(frozen=True)
class RigFactory:
    """One kind of engine. `make(situation, folder)` is a context that closes what it made."""

    name: str
    situations: frozenset[Situation]
    make: Callable[[Situation, Path], AbstractContextManager[Rig]]


# --- pipe --------------------------------------------------------------------------------------------

_PIPE_STEPS: dict[Situation, list[dict[str, Any]]] = {
    "answers": [{"progress": True}, {"text": "Hello"}],
    "limit": [{"text": "x", "repeat": 10_000}],
    "never ends": [{"text": "x", "repeat": 1_000_000, "pace_s": 0.001}],
    "refuses": [{"err": "a token id is outside the vocabulary"}],
    "too long": [{"err": "prompt exceeds context"}],
    "errs": [{"text": "He"}, {"err": "sampler: no candidate is left"}],
    "dies first": [{"exit": 7}],
    "dies later": [{"text": "He"}, {"stderr": "the GPU is gone"}, {"exit": 7}],
    "silent": [{"text": "He"}, {"stall": True}],
    "broken": [{"text": "He"}, {"line": "T malformed"}],
}


@contextmanager
def _pipe(situation: Situation, folder: Path, batch_slots: int) -> Generator[Rig]:
    good: list[Any] = [{"text": "Hello"}]
    later: dict[str, Any] = {"requests": [good]}
    if situation == "cannot start":
        first: dict[str, Any] = {"start": [{"exit": 3}]}
    else:
        first = {"requests": [_PIPE_STEPS[situation], good]}
    script = {"context": 1_000_000, "batch_slots": batch_slots, "lives": [first, later]}
    fake = FakeEngine(script, folder)
    engine = StrataEngine(fake.exe, fake.args, lazy=True, kind="fake", silence_s=SILENCE_S, stop_grace_s=2.0)
    max_tokens = 20 if situation == "limit" else 100_000
    try:
        yield Rig(engine, lambda: TokenRequest([65, 66], max_tokens))
    finally:
        engine.close()


def pipe_rig(name: str, batch_slots: int) -> RigFactory:
    return RigFactory(
        name,
        frozenset({*_PIPE_STEPS, "cannot start"}),
        lambda situation, folder: _pipe(situation, folder, batch_slots),
    )


RIGS: list[RigFactory] = [pipe_rig("pipe", 0), pipe_rig("pipe-batch", 2)]
