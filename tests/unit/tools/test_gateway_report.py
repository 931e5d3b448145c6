"""tools/gateway_report.py: a goal is reached, is not, or was not measured."""

from __future__ import annotations

import io

from rich.console import Console

from tools.gateway_load import Result, Spread
from tools.gateway_report import Case, Figures, Kind, Machine, goals, show
from tools.gateway_servers import Name


def figures(
    name: Name,
    kind: Kind,
    streams: int,
    *,
    rate: float = 0.0,
    cpu_s: float = 0.01,
    delay: Spread | None = None,
    stall_ms: float = 0.0,
    mb: int = 50,
    failed: int = 0,
) -> Figures:
    result = Result(
        streams,
        1_000,
        1.0,
        0.1,
        {"whole": streams - failed, "failed": failed, "untrue": 0},
        {"status 503": failed} if failed else {},
        delay,
        delay,
        delay,
        20.0 + stall_ms,
        stall_ms,
    )
    case = Case(kind, streams, 0.0 if kind in ("single", "burst") else 50.0)
    return Figures(name, case, result, rate, cpu_s, mb * 1_000_000, mb * 1_000_000, 1, 0.5)


def verdicts(*made: Figures) -> dict[str, bool | None]:
    return {goal.goal: goal.reached for goal in goals(made)}


def one(found: dict[str, bool | None], *words: str) -> bool | None:
    (value,) = [reached for goal, reached in found.items() if all(word in goal for word in words)]
    return value


def test_without_figures_nothing_was_measured() -> None:
    assert set(verdicts().values()) == {None}


def test_rates_are_compared_with_those_of_the_same_case() -> None:
    made = [figures("ours", "single", 32, rate=60_000), figures("nginx", "single", 32, rate=100_000)]
    found = verdicts(*made, figures("litellm", "single", 32, rate=2_100), figures("nginx", "burst", 32, rate=1_000_000))
    assert one(found, "nginx", "chunks/s, 32", "a chunk a write") is True
    assert one(found, "litellm", "chunks/s, 32", "a chunk a write") is False
    assert one(found, "nginx", "chunks/s, 32", "many chunks") is None
    assert one(found, "CPU-s", "32 unpaced", "a chunk a write") is True


def test_delays_are_what_a_server_adds_to_the_direct_ones() -> None:
    direct = figures("direct", "paced", 256, delay=Spread(0.1, 1.0, 5.0))
    nginx = figures("nginx", "paced", 256, delay=Spread(0.3, 1.5, 9.0), stall_ms=2.0)
    near = figures("ours", "paced", 256, rate=1, delay=Spread(0.6, 3.0, 9.0), stall_ms=6.5, cpu_s=0.4)
    found = verdicts(direct, nginx, near)
    assert one(found, "added delay, p50") is True  # 0.5 to 0.2
    assert one(found, "added delay, p99") is False  # 2.0 to 0.5
    assert one(found, "longest stall") is False
    assert one(found, "CPU-s", "256 streams") is True
    assert one(found, "memory") is True


def test_delays_beside_disturbed_direct_ones_say_nothing() -> None:
    direct = figures("direct", "paced", 256, delay=Spread(1.0, 9.0, 9.0))
    nginx = figures("nginx", "paced", 256, delay=Spread(0.9, 2.0, 9.0), stall_ms=2.0)
    ours = figures("ours", "paced", 256, delay=Spread(1.4, 8.0, 9.0), stall_ms=6.0)
    found = verdicts(direct, nginx, ours)
    assert one(found, "added delay, p50") is None
    assert one(found, "added delay, p99") is True  # nothing is added at all
    assert one(found, "longest stall") is True


def test_an_open_stream_that_fails_is_a_goal_not_reached() -> None:
    assert one(verdicts(figures("ours", "open", 1_000)), "open streams") is True
    assert one(verdicts(figures("ours", "open", 1_000, failed=1)), "open streams") is False


def test_all_figures_and_failures_are_shown() -> None:
    out = io.StringIO()
    made = [
        figures("direct", "paced", 32, delay=Spread(0.125, 1.0, 5.0)),
        figures("ours", "paced", 32, delay=Spread(0.5, 2.0, 7.0), stall_ms=3.25),
        figures("ours", "burst", 1, rate=123_456.0),
        figures("ours", "open", 900, failed=3),
    ]
    machine = Machine(2, 0.5, 1.5, {"ours": "--parallel 7"})
    show(made, machine, Console(file=out, width=130, color_system=None))
    text = out.getvalue()
    for word in (
        "123,456",
        "the machine was busy",
        "0.38",
        "3.25",
        "897",
        "ours, open, 900 streams: 3 × status 503",
        "--parallel 7",
    ):
        assert word in text
    assert "2 processors; load average 0.5 before, 1.5 after" in text
