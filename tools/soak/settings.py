"""What a run is to do, and the seeded chance that decides what each client does next. It does nothing itself."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from tools.probe.target import Api
from tools.soak.record import FaultKind

Leaving = Literal["close", "reset"]
LEAVE_SHARE = 0.2
SLOW_SHARE = 0.05
SLOW_S = 3.0
"""A slow client stops reading for so long at most."""
_SUBJECTS = ("a lighthouse", "the sea", "a small town", "an old engine", "two rivers", "a winter", "the last train")
_FILLER = "The wind came from the west, and the boats stayed in the harbour until the morning. "
_FIRST_FAULT, _LAST_FAULT = 0.05, 0.9
"""Faults fall into this part of the run, so that what follows the last one is seen, too."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`minutes` bound every run; `streams`: it ends when so many have ended. `kills` and `stalls` are how many in the
    run; a stall lasts `stall_s` at most. `silence_s` and `stream_limit_s`: how long a client waits without a byte, and
    for a stream's end. `every_s`: between two samples."""

    seed: int
    apis: tuple[Api, ...]
    minutes: float = 10.0
    streams: int | None = None
    clients: int = 4
    max_tokens: int = 512
    prompt_words: int = 600
    leave_share: float = LEAVE_SHARE
    kills: int = 0
    stalls: int = 0
    stall_s: float = 30.0
    silence_s: float = 120.0
    stream_limit_s: float = 900.0
    every_s: float = 1.0
    grace_s: float = 20.0
    """How long what should be gone may take: orphans, and what the queue still has."""
    cache_mib: int = 0
    """By so much memory may grow before growth is looked at."""
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Wish:
    """One stream that a client asks for. `leave_after`: it leaves after so many tokens; 0: at once. `pause_s`: it stops
    reading for so long after the first token."""

    api: Api
    prompt: str
    max_tokens: int
    leave_after: int | None = None
    leaving: Leaving = "close"
    pause_s: float = 0.0


class Dice:
    """The chance of one client: the same seed and name give the same wishes."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._random = random.Random(f"{settings.seed} {name}")

    def wish(self) -> Wish:
        settings, chance = self._settings, self._random
        limit = round(settings.max_tokens ** chance.random())  # as many short ones as long ones, by their logarithm
        number, subject = chance.randrange(1_000_000), chance.choice(_SUBJECTS)
        words = settings.prompt_words * chance.random() ** 4  # a few are long
        filler = _FILLER * round(words / len(_FILLER.split()))
        prompt = f"{filler}Story {number}: write a long story about {subject}. Do not stop early."
        leaves = chance.random() < settings.leave_share
        leave_after = chance.randint(0, limit) if leaves else None
        leaving: Leaving = chance.choice(("close", "reset"))
        pause_s = chance.uniform(0.1, SLOW_S) if chance.random() < SLOW_SHARE else 0.0
        return Wish(chance.choice(settings.apis), prompt, limit, leave_after, leaving, pause_s)


@dataclass(frozen=True, slots=True)
class Due:
    """A fault, and at which share of the run it is due."""

    share: float
    kind: FaultKind
    for_s: float = 0.0


def due_faults(settings: Settings) -> list[Due]:
    """All faults of a run, in their order."""
    chance = random.Random(f"{settings.seed} faults")
    made = [Due(chance.uniform(_FIRST_FAULT, _LAST_FAULT), "kill") for _ in range(settings.kills)]
    for _ in range(settings.stalls):
        share, for_s = chance.uniform(_FIRST_FAULT, _LAST_FAULT), chance.uniform(0.1, 1.0) * settings.stall_s
        made.append(Due(share, "stall", round(for_s, 3)))
    return sorted(made, key=lambda due: due.share)
