"""Whatever a server sends instead of what its API says: every check judges, none falls over it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.tools.conform_checks.honest import Frames, Lie, Reply
from tests.unit.tools.conform_checks.honest_engine import Ask
from tests.unit.tools.conform_checks.honest_wire import Frame
from tests.unit.tools.conform_checks.rig import SETTINGS, bench_of
from tools.conform_checks.check import Group
from tools.conform_checks.score import judge
from tools.conform_checks.table import CHECKS
from tools.probe.values import as_list, as_object, as_text

ODD: tuple[Any, ...] = (None, True, -1, 1e300, "", "x", [], {}, [[]], {"type": 5}, [None], "response.completed")
PURE: tuple[Group, ...] = ("endings", "grammar", "sequence", "tools", "usage", "errors", "framing")
SEEDS = (0, 1, 3)
RARELY = 0.04


class Confused:
    """Puts odd values in the place of others, at random."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def value(self, value: Any) -> Any:
        if self._random.random() < RARELY:
            return self._random.choice(ODD)
        if told := as_object(value):
            named = {name: self.value(each) for name, each in told.items()}
            return {name: each for name, each in named.items() if self._random.random() > RARELY}
        if items := as_list(value):
            return [self.value(each) for each in items]
        return value

    def frames(self, ask: Ask, frames: Frames) -> Iterator[Frame]:
        for frame in frames:
            odd = self.value(json.loads(json.dumps(frame.value)))
            yield Frame(frame.name, as_object(odd) or as_text(odd) or (None if odd is None else json.dumps(odd)))

    def reply(self, ask: Ask, reply: Reply) -> Reply:
        if ask.path == "/status":
            return reply
        return Reply(reply.status, self.value(json.loads(json.dumps(reply.value))) or {}, reply.fields)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_check_falls_over_odd_values(seed: int) -> None:
    confused = Confused(seed)
    settings = replace(SETTINGS, continue_s=0.2)
    with bench_of(Lie("", frames=confused.frames, reply=confused.reply), settings=settings) as bench:
        for check in CHECKS:
            if check.group in PURE:
                for scope in check.scopes:
                    judge(bench, check, scope)
