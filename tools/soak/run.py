"""One run: clients, faults and the watch side by side until it is over, then what is left. It judges nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tools.probe.exits import CouldNotRun
from tools.probe.stopping import pause
from tools.probe.target import Target
from tools.soak.client import Client
from tools.soak.faults import FaultMaker, Means
from tools.soak.record import ANSWERED, AtTheEnd, FaultKind, Orphan, Record
from tools.soak.serving import OurServer
from tools.soak.settings import Settings, due_faults
from tools.soak.tree import Tree
from tools.soak.watch import Watch

TICK_S = 0.25
AWAY_LIMIT_S = 60.0
"""A server of ours that has ended, and one that nobody reached for so long, ends the run."""
LEAVE_S = 30.0
"""How long a client may take to leave."""


@dataclass(slots=True)
class Scene:
    """Who takes part. `ours`: the server that we started, if we did; `means`: how faults are made, by their kind;
    `server_may_end`: what we kill may be the server itself."""

    target: Target
    model: str | None
    watch: Watch
    tree: Tree | None = None
    ours: OurServer | None = None
    means: dict[FaultKind, Means] = field(default_factory=dict[FaultKind, Means])
    server_may_end: bool = False


def soak(
    settings: Settings, scene: Scene, record: Record, tick: Callable[[], object], stop: threading.Event
) -> AtTheEnd:
    """Run to the end; `stop` ends it early. `tick` is called some times a second. Blocks.

    Raises: CouldNotRun: a part of the run broke.
    """
    closing, leaving = threading.Event(), threading.Event()
    parts = (settings, record, closing, leaving)
    clients = [Client(f"client {n}", scene.target, scene.model, *parts) for n in range(settings.clients)]
    faults = FaultMaker(due_faults(settings), scene.means, record, scene.watch.look)
    end = AtTheEnd()
    scene.watch.start()
    faults.start()
    for client in clients:
        client.start()
    try:
        while not stop.is_set() and not _over(record, faults):
            if _gone(scene, record, end):
                break
            _check([scene.watch, faults, *clients])
            tick()
            pause(TICK_S, stop)
    finally:
        faults.stop()
        closing.set()
        _wait_for(clients, settings, leaving, tick, stop)
        scene.watch.stop()
    _check([scene.watch, faults, *clients])
    _look_around(settings, scene, record, end, tick)
    return end


def _over(record: Record, faults: FaultMaker) -> bool:
    return record.time_is_up or (record.share() >= 1.0 and faults.done.is_set())


def _gone(scene: Scene, record: Record, end: AtTheEnd) -> bool:
    """Whether the server is: our own has ended, or nobody reaches it for long."""
    if scene.ours is not None and scene.ours.ended is not None:
        end.server_ended = f"{scene.ours.ended}: {scene.ours.last_words()[-300:]}"
        return True
    if scene.tree is not None and not scene.tree.alive and not scene.server_may_end:
        end.server_ended = f"process {scene.tree.root.pid} has ended"
        return True
    answered_s = next(
        (seen.ended_s for seen in reversed(record.streams) if seen.ending in ANSWERED or seen.status), 0.0
    )
    if record.streams and record.streams[-1].ended_s - answered_s > AWAY_LIMIT_S:
        end.server_ended = f"nobody reached it for {AWAY_LIMIT_S:g} s"
        return True
    return False


def _check(parts: Sequence[Client | FaultMaker | Watch]) -> None:
    for part in parts:
        if part.fault is not None:
            raise CouldNotRun(f"a part of the run broke: {part.fault!r}") from part.fault


def _wait_for(
    clients: Sequence[Client],
    settings: Settings,
    leaving: threading.Event,
    tick: Callable[[], object],
    stop: threading.Event,
) -> None:
    """Let the streams that run come to their ends; then leave."""
    until = time.monotonic() + (0.0 if stop.is_set() else settings.stream_limit_s)
    for client in clients:
        while not client.join(TICK_S) and time.monotonic() < until and not stop.is_set():
            tick()
    leaving.set()
    for client in clients:
        if not client.join(LEAVE_S):
            raise CouldNotRun("a client hangs; this is a fault of the soak itself")


def _look_around(settings: Settings, scene: Scene, record: Record, end: AtTheEnd, tick: Callable[[], object]) -> None:
    """What is left when all clients have gone: in the queue, of the processes, and of the server that we end."""
    until = time.monotonic() + settings.grace_s
    while (queue := scene.watch.queue()) is not None and any(queue) and time.monotonic() < until:
        tick()
        time.sleep(TICK_S / 5)
    end.running, end.waiting = queue or (0, 0)
    if scene.ours is not None:
        scene.watch.look()
        end.not_stopped = not scene.ours.end()
    until = time.monotonic() + settings.grace_s
    while scene.watch.has_strays() and time.monotonic() < until:
        tick()
        time.sleep(TICK_S / 5)
    if scene.tree is not None:
        for stray in scene.tree.strays():
            record.orphan(Orphan(stray.pid, stray.name, stray.out_s))
        if scene.ours is not None:
            scene.tree.end_all()
