"""A pool over scripted servers with a clock of the test's own; for the tests of the pool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from engine.api import Cancel, ChatRequest, MemberStatus
from engine.events import EngineEvent, Failed, Tick
from engine.pool_member import Delays
from engine.upstream import UpstreamEngine
from engine.upstream_pool import UpstreamPool
from tests.scripted_upstream import DEADLINE_S, Peer, Script, ScriptedUpstream
from tests.unit.engine.chats import ASK


@dataclass
class Clock:
    """The back-off's clock: it stands still until the test moves it."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Rig:
    """The servers, the pool over them (in their order), and its clock."""

    upstreams: list[ScriptedUpstream]
    pool: UpstreamPool
    clock: Clock = field(default_factory=Clock)

    def asked(self) -> list[int]:
        """How many requests each server got."""
        return [sum(one.method == "POST" for one in upstream.requests) for upstream in self.upstreams]

    def name(self, index: int) -> str:
        return f"{self.upstreams[index].url}/v1"

    def member(self, index: int) -> MemberStatus:
        return self.pool.status().members[index]

    def events(self, request: ChatRequest = ASK, cancel: Cancel | None = None) -> list[EngineEvent]:
        """All events of one answer but the ticks."""
        return [item for item in self.pool.stream(request, cancel or Cancel()) if not isinstance(item, Tick)]

    def failure(self, request: ChatRequest = ASK) -> Failed:
        terminal = self.events(request)[-1]
        assert isinstance(terminal, Failed), terminal
        return terminal

    def open(self, request: ChatRequest = ASK, cancel: Cancel | None = None) -> Answer:
        return Answer(self.pool.stream(request, cancel or Cancel()))

    def becomes(self, index: int, state: str) -> bool:
        """Whether the member has this state within the deadline."""
        return until(lambda: self.member(index).state == state)


class Answer:
    """One answer that is read step by step."""

    def __init__(self, items: Iterator[EngineEvent]) -> None:
        self.items = items

    def first(self, kind: type) -> EngineEvent:
        return next(item for item in self.items if isinstance(item, kind))

    def ticks(self, condition: Callable[[], bool]) -> None:
        """Read until the condition holds; only ticks may come."""
        while not condition():
            assert next(self.items) == Tick()

    def rest(self) -> list[EngineEvent]:
        return [item for item in self.items if not isinstance(item, Tick)]

    def close(self) -> None:
        self.items.close()  # type: ignore[attr-defined] - engines give generators


@contextmanager
def pool_of(
    *scripts: Script | ScriptedUpstream, slots: int = 4, silence_s: float = 60.0, queue_wait_s: float = 60.0
) -> Generator[Rig]:
    """A started pool over one server for each script."""
    clock = Clock()
    with ExitStack() as stack:
        upstreams = [one if isinstance(one, ScriptedUpstream) else ScriptedUpstream(one) for one in scripts]
        for upstream in upstreams:
            stack.enter_context(upstream)
        engines = [
            UpstreamEngine(upstream.url, slots=slots, silence_s=silence_s, who=f"upstream {number}")
            for number, upstream in enumerate(upstreams, 1)
        ]
        members = {engine.url: engine for engine in engines}
        pool = UpstreamPool(members, queue_wait_s=queue_wait_s, delays=Delays(), clock=clock)
        stack.callback(pool.close)
        pool.start()
        rig = Rig(upstreams, pool, clock)
        assert all(rig.becomes(index, "ready") for index in range(len(upstreams)))
        yield rig


def until(condition: Callable[[], bool]) -> bool:
    """Whether a state that another thread brings about came within the deadline."""
    pause = threading.Event()
    return any(condition() or pause.wait(0.02) for _ in range(int(DEADLINE_S / 0.02))) or condition()


def in_turn(*scripts: Script) -> Script:
    """One script for each request; the last one repeats."""
    lock, left = threading.Lock(), list(scripts)

    def script(peer: Peer) -> None:
        with lock:
            mine = left.pop(0) if len(left) > 1 else left[0]
        mine(peer)

    return script
