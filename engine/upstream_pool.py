"""Several engines that speak chat as one: each request goes to the least busy one that is well, and to the next one if
it fails there before anything of the answer came.

It does not know how a member reaches its server; what a failure says about a member is `engine.pool_member`'s. After
the first piece of an answer nothing is tried again: the tokens are paid for, and the member's own ending is the truth.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import cast

from engine.api import (
    TICK_S,
    Cancel,
    ChatRequest,
    CountsPrompts,
    Engine,
    EngineError,
    EngineInfo,
    EngineRefused,
    EngineRequest,
    EngineStarting,
    EngineStatus,
    EngineStuck,
)
from engine.events import Accepted, Cancelled, EngineEvent, Failed, FailKind, Finished, Tick
from engine.pool_member import (
    Delays,
    Look,
    Member,
    candidates,
    choose,
    goes_elsewhere,
    is_its_own,
    most_telling,
    reason,
    shortened,
    wait_s,
)

log = logging.getLogger("strata.upstreams")

OTHERS_S = 2.0
"""How long `start` waits for the other members once one is there, in seconds."""
JOIN_S = 1.0


class UpstreamPool:
    """`members`: engines that speak chat, by the names that logs and `/status` call them (URLs without credentials).

    `queue_wait_s`: how long a request may wait here for a free slot, in seconds (it is the server's queue that waits
    as a rule; here it happens while a member is sick or lacks the model). `delays` are the back-off's, by `clock`.
    Thread-safe; the constructor starts nothing.

    Raises: ValueError: there is no member.
    """

    def __init__(
        self,
        members: Mapping[str, Engine],
        *,
        queue_wait_s: float = 300.0,
        delays: Delays | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not members:
            raise ValueError("a pool needs at least one engine")
        self._members = [Member(name, engine, delays or Delays()) for name, engine in members.items()]
        self._queue_wait_s = queue_wait_s
        self._clock = clock
        self._changed = threading.Condition()
        self._chosen = 0
        self._last_problem: str | None = None
        self._closed = threading.Event()
        self._lookers: set[threading.Thread] = set()

    # --- facts -------------------------------------------------------------------------------------

    @property
    def facts(self) -> EngineInfo:
        """The model is that of the first member that is there. `max_context` is the smallest known: whichever member
        a request meets, so much fits."""
        all_facts = [member.engine.facts for member in self._members]
        there = (member.engine.facts for member in self._members if member.engine.alive())
        contexts = [facts.max_context for facts in all_facts if facts.max_context is not None]
        return EngineInfo(
            "upstream",
            next(there, all_facts[0]).model,
            "chat",
            sum(facts.slots for facts in all_facts),
            min(contexts, default=None),
            models=tuple(dict.fromkeys(name for facts in all_facts for name in facts.models)),
        )

    def status(self) -> EngineStatus:
        """ "ready" if one member is; `last_death` is the latest problem of any. Does not block."""
        with self._changed:
            self._look_around()
            engines = [member.engine.status() for member in self._members]
            members = [member.status(status) for member, status in zip(self._members, engines, strict=True)]
            last_problem = self._last_problem
        states = [member.state for member in members]
        return EngineStatus(
            "ready" if "ready" in states else "starting" if "starting" in states else "unreachable",
            restarts=sum(status.restarts for status in engines),
            active=sum(member.active for member in members),
            finishing=sum(status.finishing for status in engines),
            last_death=last_problem,
            members=tuple(members),
        )

    def alive(self) -> bool:
        """Whether a member is there and well. Does not block."""
        with self._changed:
            self._look_around()
            return not self._closed.is_set() and any(member.ready for member in self._members)

    def start(self) -> None:
        """Start or ask all members at once. Blocks until one is ready (and the others, for 2 s more), or all failed.

        Raises: EngineStarting: none can be used; the message has all reasons.
        """
        with self._changed:
            looks = [member.look or self._look(member) for member in self._members]
            self._changed.wait_for(lambda: all(look.done for look in looks) or any(map(_went_well, looks)))
            if any(map(_went_well, looks)):
                self._changed.wait_for(lambda: all(look.done for look in looks), OTHERS_S)
                return
        raise EngineStarting("; ".join(dict.fromkeys(look.problem or "" for look in looks)))

    def count_prompt(self, request: ChatRequest) -> int:
        """How many tokens a chat's prompt has, by the first member that can say; see `engine.api.CountsPrompts`."""
        error: EngineError = EngineRefused("the upstreams cannot count the tokens of a prompt")
        for member in sorted(self._members, key=lambda member: not member.ready):
            if isinstance(member.engine, CountsPrompts):
                try:
                    return member.engine.count_prompt(request)
                except EngineError as refused:
                    error = refused
        raise error

    def close(self) -> None:
        """Close all members. Blocks, in bounded time; a second call does nothing.

        Raises: EngineStuck: a member's process could not be ended (the others are closed all the same).
        """
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
            lookers = list(self._lookers)
        stuck: list[str] = []
        for member in self._members:
            try:
                member.engine.close()
            except EngineStuck as error:
                stuck.append(f"{member.name}: {error}")
        for thread in lookers:
            thread.join(JOIN_S)
        if stuck:
            raise EngineStuck("; ".join(stuck))

    # --- answers -----------------------------------------------------------------------------------

    def stream(self, request: EngineRequest, cancel: Cancel) -> Iterator[EngineEvent]:
        """One answer; see `engine.api.Engine.stream`. `Accepted` comes with the first piece of the answer: until then
        another member may be asked."""
        return self._stream(request, cancel)

    def _stream(self, request: EngineRequest, cancel: Cancel) -> Generator[EngineEvent, None, None]:
        tried: list[Member] = []
        failures: list[Failed] = []
        deadline = time.monotonic() + self._queue_wait_s
        while not self._closed.is_set() and candidates(self._members, request, tried):
            member = self._take(request, tried)
            if member is None:
                if cancel.is_set():
                    yield Cancelled(cancel.by)
                    return
                if time.monotonic() >= deadline:
                    yield self._waited(tried, failures, request)
                    return
                yield Tick()
                continue
            if failures:
                _log_failure(tried[-1], failures[-1], f"asking {member.name}")
            tried.append(member)
            failed = yield from self._ask(member, request, cancel)
            if failed is None:
                return
            failures.append(failed)
            deadline = time.monotonic() + self._queue_wait_s
        if self._closed.is_set():
            yield Failed(FailKind.NOT_STARTED, "the engine is closed")
            return
        _log_failure(tried[-1], failures[-1], "no other one is left to ask")
        yield most_telling(failures, request)

    def _waited(self, tried: list[Member], failures: list[Failed], request: EngineRequest) -> Failed:
        if failures:
            _log_failure(tried[-1], failures[-1], f"no other one had a free slot within {self._queue_wait_s:g} s")
            return most_telling(failures, request)
        why = f"the request waited {self._queue_wait_s:g} s for a free slot of an upstream and was given up"
        return Failed(FailKind.QUEUE_WAIT, why)

    def _take(self, request: EngineRequest, tried: list[Member]) -> Member | None:
        """A slot of a member. None: there was none for a tick."""
        with self._changed:
            self._look_around()
            member = choose(candidates(self._members, request, tried))
            if member is None:
                self._changed.wait(TICK_S)
                return None
            self._chosen += 1
            member.take(self._chosen)
            return member

    def _ask(
        self, member: Member, request: EngineRequest, cancel: Cancel
    ) -> Generator[EngineEvent, None, Failed | None]:
        """One member's answer. Gives its failure, if nothing of it was passed on and another member may be asked."""
        episode, begun = member.episode, False
        accepted: Accepted | None = None
        answer: Generator[EngineEvent, None, None] | None = None
        try:
            answer = cast("Generator[EngineEvent, None, None]", member.engine.stream(request, cancel))
            for event in answer:
                if isinstance(event, Failed):
                    self._failed(member, episode, request, event)
                    if not begun and goes_elsewhere(event, request) and not self._closed.is_set():
                        return event
                elif begun:
                    if isinstance(event, Finished):
                        self._answered(member, episode, event)
                elif isinstance(event, Accepted):
                    accepted = event
                    yield Tick()
                    continue
                elif not isinstance(event, Tick | Cancelled):
                    begun = True
                    self._answered(member, episode, event)
                    if accepted is not None:
                        yield accepted
                yield event
        finally:
            if answer is not None:
                answer.close()
            with self._changed:
                member.leave(episode)
                self._changed.notify_all()
        return None

    # --- health ------------------------------------------------------------------------------------

    def _failed(self, member: Member, episode: int, request: EngineRequest, failed: Failed) -> None:
        if self._closed.is_set() or not is_its_own(failed, member, request):
            return
        with self._changed:
            member.fail(episode, reason(failed), self._clock(), wait_s(failed) or 0.0)
            self._last_problem = f"{member.name}: {member.problem}"
            self._changed.notify_all()

    def _answered(self, member: Member, episode: int, event: EngineEvent) -> None:
        with self._changed:
            if member.answered(episode, finished=isinstance(event, Finished)):
                log.info("%s answers again", member.name)
                self._changed.notify_all()

    def _look_around(self) -> None:
        """Have members looked at that may be usable again. Called with the lock held."""
        now_s = self._clock()
        for member in self._members:
            if not self._closed.is_set() and member.wants_look(now_s):
                self._look(member)

    def _look(self, member: Member) -> Look:
        """Begin to start or ask a member, on a thread of its own. Called with the lock held."""
        look = member.look = Look(member)
        thread = threading.Thread(target=self._look_at, args=(look, member.episode), name="upstream-look", daemon=True)
        self._lookers.add(thread)
        thread.start()
        return look

    def _look_at(self, look: Look, episode: int) -> None:
        member = look.member
        look.problem = told = "it could not be looked at"
        try:
            member.engine.start()
            look.problem = None
        except EngineError as error:
            look.problem = str(error)
            told = member.engine.status().last_death or look.problem  # without the address, which the log has
        finally:
            with self._changed:
                look.done, member.look = True, None
                self._lookers.discard(threading.current_thread())
                self._note(look, episode, told)
                self._changed.notify_all()

    def _note(self, look: Look, episode: int, told: str) -> None:
        member = look.member
        if look.problem is None:
            member.seen_well(episode, self._clock())
        elif not self._closed.is_set():
            if member.fail(episode, shortened(told), self._clock()):
                log.warning("%s cannot be used: %s", member.name, member.problem)
            self._last_problem = f"{member.name}: {member.problem}"


def _went_well(look: Look) -> bool:
    return look.done and look.problem is None


def _log_failure(member: Member, failed: Failed, then: str) -> None:
    log.warning("%s failed before it answered (%s: %s); %s", member.name, failed.kind.value, reason(failed), then)
