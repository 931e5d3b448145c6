"""A bench before the honest server, or before a liar, with times that suit tests."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from tests.unit.tools.conform_checks.honest import Honest, Lie
from tools.conform_checks.bench import Bench, Settings
from tools.conform_checks.hand import Hand
from tools.probe.secret import Secret
from tools.probe.target import parse_target

KEY = "key-of-the-tests-0123456789"
QUIET_S = 0.6
SETTINGS = Settings(quiet_s=QUIET_S, free_s=2.0, patience_s=20.0, recover_s=0.5, give_up_s=0.6, flood=8, many=3)


@contextmanager
def bench_of(lie: Lie | None = None, *, key: str = KEY, settings: Settings = SETTINGS) -> Generator[Bench, None, None]:
    with Honest(lie or Lie(""), key) as server:
        hand = Hand(server.kill, server.engine.stall, server.engine.resume)
        yield Bench(parse_target(server.url, Secret(key)), "m", settings, hand)
