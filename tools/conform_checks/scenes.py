"""The engine is killed or halted in mid-answer, once for all checks that look at it. It judges nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from tools.conform_checks.bench import Bench
from tools.conform_checks.check import NotSeen
from tools.conform_checks.occasions import OCCASIONS, Name, request_body
from tools.conform_checks.reading import read_body
from tools.conform_checks.talk import Talk
from tools.probe.exits import CouldNotRun
from tools.probe.target import Api

BEGUN = 3
"""Pieces of the answer after which the engine is touched."""
MID_BODY_S = 0.3
RECOVER_STEP_S = 0.1
STALL_FACTOR = 1.25
"""The engine stands still for so many times the longest silence that is allowed."""
GRACE_S = 2.0
"""So long pieces may still be on their way when the engine stands still, but no longer than a third of its halt."""


@dataclass(frozen=True, slots=True)
class Killed:
    """An answer whose engine was killed in its middle. `pieces`: of the answer, that had come before."""

    talk: Talk
    pieces: int
    recovered_s: float | None
    """When the server answered the next request; None: it did not in time."""


def need_kill(bench: Bench) -> Callable[[], None]:
    """Raises: NotSeen: nobody can kill the engine."""
    if bench.hand.kill is None:
        raise NotSeen("give --engine-pid PID or --kill-command CMD to kill the engine")
    if bench.hand.is_server:
        raise NotSeen("the engine is the server itself: dead, it can tell nothing")
    return bench.hand.kill


def killed_stream(bench: Bench, api: Api, name: Name = "long") -> Killed:
    """Raises: NotSeen: the answer was not there, or was over before. CouldNotRun."""
    return bench.once(("killed", api, name), lambda: _kill_stream(bench, api, name))


def _kill_stream(bench: Bench, api: Api, name: Name) -> Killed:
    kill = need_kill(bench)
    fields = {"store": True} if api == "responses" else None
    with bench.start(api, name, fields=fields) as talk:
        begun = talk.wait(_call_begun if OCCASIONS[name].tool else _text_begun, bench.settings.patience_s)
        if not begun or talk.reader.end is not None:
            raise NotSeen(f"the answer was over before the engine could be killed: {talk.about()}")
        pieces = talk.telling.token_count
        kill()
        talk.join(bench.settings.patience_s)
    return Killed(talk, pieces, recover(bench, api))


def _text_begun(talk: Talk) -> bool:
    return talk.telling.token_count >= BEGUN


def _call_begun(talk: Talk) -> bool:
    return any(len(call.arguments) >= BEGUN for call in talk.telling.calls.values())


def killed_body(bench: Bench, api: Api) -> Killed:
    """Raises: NotSeen."""
    return bench.once(("killed body", api), lambda: _kill_body(bench, api))


def _kill_body(bench: Bench, api: Api) -> Killed:
    kill = need_kill(bench)
    bench.body(api, "limit")
    with bench.send(
        api, request_body(api, bench.model, "long", stream=False), limit=OCCASIONS["long"].max_tokens
    ) as talk:
        with contextlib.suppress(NotSeen):  # without a gauge the time below is all there is
            bench.gauge.wait(lambda load: load.running > 0, bench.settings.free_s)
        if talk.wait(lambda each: each.reader.end is not None, MID_BODY_S):
            raise NotSeen(f"the answer was over before the engine could be killed: {talk.about()}")
        kill()
        talk.join(bench.settings.patience_s)
    return Killed(talk, 0, recover(bench, api))


def recover(bench: Bench, api: Api) -> float | None:
    """Ask until the server answers again; the seconds that it took, None: it did not in time."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < bench.settings.recover_s:
        asked = request_body(api, bench.model, "limit", stream=False)
        try:
            with bench.send(api, asked) as talk:
                if talk.join(bench.settings.patience_s).status == 200:
                    return time.perf_counter() - begun
        except CouldNotRun:
            pass  # it may be starting
        time.sleep(RECOVER_STEP_S)
    return None


def untouched(bench: Bench, killed: Killed, *, stream: bool) -> bool:
    """Whether the answer is as long as one whose engine nobody kills: it was over before."""
    api = killed.talk.api
    whole = bench.once(("untouched", api, stream), lambda: bench.start(api, "long", stream=stream).join())
    return _text(killed.talk) == _text(whole)


def _text(talk: Talk) -> str:
    return "".join(talk.telling.text) if talk.is_stream else read_body(talk.api, talk.value).text


# --- halted -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stalled:
    """An answer whose engine stood still in its middle, and then went on. Times are those of the talk."""

    talk: Talk
    from_s: float
    to_s: float


def stalled_stream(bench: Bench, api: Api) -> Stalled:
    """Raises: NotSeen: nobody can halt the engine, or halting it halts nothing."""
    return bench.once(("stalled", api), lambda: _stall(bench, api, STALL_FACTOR * bench.settings.quiet_s))


def given_up(bench: Bench, api: Api) -> Stalled:
    """A stream whose engine stands still until the server gives up. Raises: NotSeen."""
    most_s = bench.settings.give_up_s
    if most_s is None:
        raise NotSeen("give --give-up-s N, the time after which the server gives an engine up")
    return bench.once(("given up", api), lambda: _stall(bench, api, STALL_FACTOR * most_s + 1.0))


def _stall(bench: Bench, api: Api, for_s: float) -> Stalled:
    hand = bench.hand
    if hand.stall is None or hand.resume is None:
        raise NotSeen("give --engine-pid PID, or --stall-command and --resume-command, to halt the engine")
    if hand.is_server:
        raise NotSeen("the engine is the server itself: halted, it can tell nothing")
    with bench.start(api, "long") as talk:
        if not talk.wait(_text_begun, bench.settings.patience_s) or talk.reader.end is not None:
            raise NotSeen(f"the answer was over before the engine could be halted: {talk.about()}")
        try:
            hand.stall()
        except KeyboardInterrupt:
            hand.resume()  # it may stand still all the same
            raise
        try:
            from_s, grace_s = talk.connection.now_s(), min(GRACE_S, for_s / 3)
            talk.wait(lambda each: each.reader.end is not None, grace_s)
            pieces = talk.telling.token_count
            talk.wait(lambda each: each.reader.end is not None, for_s - grace_s)
            to_s, more = talk.connection.now_s(), talk.telling.token_count - pieces
        finally:
            hand.resume()
        talk.join(bench.settings.patience_s)
    if talk.telling.outcome is not None and to_s - from_s < for_s and not talk.telling.failed_openly:
        raise NotSeen("the answer was over before the engine was halted")
    if more:
        raise NotSeen(f"halting the engine halted nothing: {more} pieces came meanwhile")
    if talk.telling.failed_openly:
        recover(bench, api)
    return Stalled(talk, from_s, to_s)
