"""A bench before the honest server, or before a liar, with times that suit tests."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from tests.unit.tools.conform_checks.honest import Honest, Lie
from tools.conform_checks.bench import Bench, Settings
from tools.conform_checks.hand import Hand
from tools.probe.secret import Secret
from tools.probe.target import parse_target

KEY = "key-of-the-tests-0123456789"
SETTINGS = Settings(quiet_s=4.0, free_s=10.0, patience_s=20.0, recover_s=10.0, give_up_s=4.0, flood=8, many=3)
"""The honest server is far from each of these limits, on a busy machine too."""
IMPATIENT = replace(SETTINGS, quiet_s=0.3, free_s=0.4, recover_s=0.3, give_up_s=0.2, continue_s=0.3)
"""A liar lies however long one waits."""


@contextmanager
def bench_of(lie: Lie | None = None, *, key: str = KEY, settings: Settings = SETTINGS) -> Generator[Bench, None, None]:
    with Honest(lie or Lie(""), key) as server:
        hand = Hand(server.kill, server.engine.stall, server.engine.resume)
        yield Bench(parse_target(server.url, Secret(key)), "m", settings, hand)
