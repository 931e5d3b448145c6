"""One request from parsed to settled: plan the prompt, wait for a slot, run the engine, record how it ended.

It knows neither HTTP nor the wire form of an ending. Strata's names (`run`, `prepare`, `loaded`, `history`, `status`,
`model_for`) are kept, so that code written for Strata's `Service` can use it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal, TypeAlias, cast

from engine.api import (
    TICK_S,
    AdoptedCancel,
    Cancel,
    Engine,
    EngineError,
    NativeRequest,
    SamplingValue,
    error_of,
    failed_of,
)
from engine.events import Cancelled, Event, Failed, FailKind, Finished, Terminal, Tick, Usage
from engine.terminal import sealed
from serve.admission import Admission
from serve.assemble import assemble
from serve.choices import in_turn
from serve.lifecycle import QueueWaitExpired, StructuredOutputError
from serve.outcomes import record_of, timings_object
from serve.planning import Plan, Planner, sampling_of
from serve.request import CompletionsRequest, GenerateRequest, Json
from serve.runs import Runs
from serve.store import Store
from serve.structured import StructuredCheck
from serve.template import ChatTemplate
from serve.tokenizer import Tokenizer
from serve.verify import verified

log = logging.getLogger("strata.request")

HISTORY_LENGTH = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's times in seconds and sizes."""

    heartbeat_s: float = 10.0
    queue_wait_s: float = 300.0
    queue_grace_s: float = 1.0
    queue_max: int = 64
    drain_s: float = 30.0
    max_body_bytes: int = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the server."""

    api_key: str = ""
    cors_origins: tuple[str, ...] = ()
    trusted_origins: tuple[str, ...] = ()


Judge: TypeAlias = Callable[[Generator[Event, None, None]], Generator[Event, None, None]]
"""What puts an engine's events right and makes its terminal true. It closes what it reads."""


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class Service:
    """Thread-safe. `tokenizer` and `template` belong to an engine that speaks tokens. `relays_responses`: Responses are
    the upstream's own, passed on; nothing of them is kept here."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer | None = None,
        template: ChatTemplate | None = None,
        model_name: str | None = None,
        *,
        aliases: Sequence[str] = (),
        sampling: Mapping[str, SamplingValue] | None = None,
        limits: Limits | None = None,
        access: Access | None = None,
        store: Store | None = None,
        relays_responses: bool = False,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.template = template
        self.limits = limits or Limits()
        self.access = access or Access()
        self.aliases = tuple(aliases)
        self.relays_responses = relays_responses
        self.runs = Runs(store)
        self.history: deque[dict[str, object]] = deque(maxlen=HISTORY_LENGTH)
        self.started_at = time.time()
        self.worker: int | None = None  # its number, where several processes serve the port
        self._model_name = model_name
        self._planner = Planner(engine, tokenizer, template, dict(sampling or {}))
        self._admission = Admission(lambda: engine.facts.slots, self.limits.queue_max)
        self._active: set[Cancel] = set()
        self._idle = threading.Condition()

    # --- facts ---------------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        return self._model_name or self.engine.facts.model

    def model_for(self, req: Mapping[str, object]) -> str:
        """The model name to answer with: the one asked for if it is one of ours or of an upstream."""
        asked = req.get("model")
        return asked if isinstance(asked, str) and asked in self.models else self.model

    @property
    def models(self) -> tuple[str, ...]:
        """All names that a request can use, the default one first."""
        return tuple(dict.fromkeys((self.model, *self.aliases, *self.engine.facts.models)))

    def loaded(self) -> bool:
        """Whether the engine can serve without being started. Does not block."""
        return self.engine.alive()

    @property
    def status(self) -> dict[str, object]:
        """A snapshot for `/status`."""
        facts, engine, queue = self.engine.facts, self.engine.status(), self._admission.status()
        return {
            "model": self.model,
            "loaded": self.loaded(),
            "engine": {
                "kind": facts.kind,
                "state": engine.state,
                "pid": engine.pid,
                "slots": facts.slots,
                "max_context": facts.max_context,
                "restarts": engine.restarts,
                "active": engine.active,
                "finishing": engine.finishing,
                "last_death": engine.last_death,
                "progress": None if engine.progress is None else list(engine.progress),
                "members": [asdict(member) for member in engine.members],
            },
            "queue": {"running": queue.running, "waiting": queue.waiting, "max": self.limits.queue_max},
            "process": {"pid": os.getpid(), "worker": self.worker},
            "uptime_s": round(time.time() - self.started_at, 3),
            "history": list(self.history),
        }

    # --- one request ---------------------------------------------------------------------------------

    def answer(
        self,
        request: GenerateRequest | Plan,
        cancel: Cancel,
        request_id: str = "",
        keep: Callable[[Terminal], None] = lambda terminal: None,
    ) -> Generator[Event, None, None]:
        """The events of one answer, with exactly one terminal. Blocks as it is read; ticks at least every `TICK_S`.
        `request` may be planned already. `keep` saves the terminal before it is yielded; if it raises, the answer has
        failed.

        Raises (before the first event): BadRequest: the engine here cannot do what is asked, or it does not fit.
        """
        plan = request if isinstance(request, Plan) else self._planner.plan(request)
        return self._answer(plan, cancel, request_id, keep)

    def relay(
        self,
        request: NativeRequest,
        judge: Judge,
        cancel: Cancel,
        request_id: str = "",
        *,
        check: StructuredCheck | None = None,
        call_due: bool = False,
    ) -> Generator[Event, None, None]:
        """The events of an answer in the upstream's own API, put right by `judge` before anything is made of them;
        otherwise as `answer`. `check`, `call_due`: what the answer must be."""
        return self._answer(Plan(request, check, None, 0, call_due), cancel, request_id, judge=judge)

    def page(self, request: NativeRequest, cancel: Cancel) -> Generator[Event, None, None]:
        """The answer to a question about a response that an upstream keeps, as an engine gives it, with one terminal.
        It does not wait in the queue. Blocks as it is read; ticks at least every `TICK_S`."""
        with self._registered(cancel):
            yield from sealed(cast("Iterator[Event]", self.engine.stream(request, cancel)), cancel)

    def _answer(
        self,
        plan: Plan,
        cancel: Cancel,
        request_id: str,
        keep: Callable[[Terminal], None] = lambda terminal: None,
        judge: Judge | None = None,
    ) -> Generator[Event, None, None]:
        begun = time.monotonic()

        def settle(terminal: Terminal) -> None:
            truth = terminal
            try:
                keep(terminal)
            except EngineError as error:
                truth = failed_of(error)
                raise
            finally:
                self._record(truth, request_id, plan.prompt_tokens, time.monotonic() - begun)

        with self._registered(cancel), closing(sealed(self._events(plan, cancel, judge), cancel, settle)) as events:
            yield from events

    def _events(self, plan: Plan, cancel: Cancel, judge: Judge | None) -> Iterator[Event]:
        with self._admission.enter() as ticket:
            deadline = time.monotonic() + self.limits.queue_wait_s
            while not ticket.wait(TICK_S):
                if cancel.is_set():
                    yield Cancelled(cancel.by)
                    return
                if time.monotonic() >= deadline:
                    raise QueueWaitExpired(
                        f"the request waited {self.limits.queue_wait_s:g} s for a free engine slot and was given up"
                    )
                yield Tick()
            events = self._all_events(plan, cancel)
            if judge is not None:
                events = judge(events)
            with closing(events):
                yield from verified(events, plan.check, call_due=plan.call_due)

    def _all_events(self, plan: Plan, cancel: Cancel) -> Generator[Event, None, None]:
        if not plan.more:
            return self._engine_events(plan, cancel)
        return in_turn((partial(self._engine_events, one, cancel) for one in (plan, *plan.more)), plan.choices)

    def _engine_events(self, plan: Plan, cancel: Cancel) -> Generator[Event, None, None]:
        source = self.engine.stream(plan.request, cancel)
        if plan.parse is None or self.tokenizer is None:
            return cast("Generator[Event, None, None]", source)
        return assemble(source, self.tokenizer, plan.parse, new_call_id, plan.prompt_tokens)

    def _record(self, terminal: Terminal, request_id: str, prompt_tokens: int, took_s: float) -> None:
        record = record_of(terminal)
        usage = terminal.usage or Usage(prompt_tokens=prompt_tokens)
        self.history.append(
            {
                "id": request_id,
                "time": round(time.time(), 3),
                "finish": record.finish,
                "cause": record.cause,
                "message": record.message[:500],
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "took_s": round(took_s, 3),
            }
        )
        level = logging.WARNING if record.finish == "error" else logging.INFO
        log.log(
            level,
            "%s finish=%s cause=%s prompt_tokens=%d completion_tokens=%d took_s=%.3f%s",
            request_id or "-",
            record.finish,
            record.cause or "-",
            usage.prompt_tokens,
            usage.completion_tokens,
            took_s,
            f" message={record.message[:500]!r}" if record.message else "",
        )

    # --- prompts -------------------------------------------------------------------------------------

    def plan(self, request: GenerateRequest) -> Plan:
        """What is to be run for a request. Raises: BadRequest: as `answer` says."""
        return self._planner.plan(request)

    def plan_completions(self, request: CompletionsRequest) -> Plan:
        """The same for prompts that are no chats."""
        return self._planner.completions(request)

    def count_tokens(self, request: GenerateRequest) -> int:
        """How many tokens its prompt has. Blocks where the engine has to be asked.

        Raises: BadRequest: the engine here cannot take or count it. EngineError: it could not be asked.
        """
        return self._planner.count_tokens(request)

    def prepare(
        self,
        messages: list[Json],
        tools: list[Json] | None,
        kwargs: Mapping[str, object],
        max_new: int,
        *,
        prefill: str = "",
    ) -> tuple[list[int], bool, int]:
        """Render and tokenize: (ids, whether it starts thinking, tokens to make). `max_new` 0 or less: the rest;
        `prefill` is how the answer begins.

        Raises: BadRequest: the template refuses the messages, or the prompt and `max_new` exceed the context.
        """
        return self._planner.prepare(messages, tools, kwargs, max_new, prefill)

    # --- Strata's raising API ------------------------------------------------------------------------

    def run(
        self,
        ids: Sequence[int],
        thinking: bool,
        tools: Sequence[Json] | None,
        max_new: int,
        sampling: Mapping[str, object],
        cancel: threading.Event,
    ) -> Iterator[tuple[Literal["event", "ping", "done"], object]]:
        """One answer as Strata's tuples: ("event", Event), ("ping", None) as a heartbeat, last ("done", {...}).

        Raises: EngineDied, EngineSilent, QueueWaitExpired, StructuredOutputError, ValueError: as it ended.
        """
        ours = cancel if isinstance(cancel, Cancel) else AdoptedCancel(cancel)
        plan = self._planner.token_plan(ids, thinking, tools or (), max_new, sampling_of(sampling))
        beat = time.monotonic()
        events = self._answer(plan, ours, "")
        with closing(events):
            for event in events:
                match event:
                    case Finished() | Cancelled():
                        usage = event.usage or Usage(prompt_tokens=len(ids))
                        done = {
                            "finish": record_of(event).finish,
                            "completion_tokens": usage.completion_tokens,
                            "prompt_tokens": usage.prompt_tokens,
                            "reasoning_tokens": usage.reasoning_tokens,
                            "reused": usage.cached_tokens,
                            "timings": timings_object(usage),
                            "usage": usage,
                        }
                        yield "done", done
                    case Failed():
                        raise raised(event)
                    case Tick():
                        if time.monotonic() - beat >= self.limits.heartbeat_s:
                            beat = time.monotonic()
                            yield "ping", None
                    case _:
                        beat = time.monotonic()
                        yield "event", event

    # --- the end -------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Take no more requests, let the running ones finish for up to `drain_s`, then end them as a shutdown.
        Blocks until none is left and what is kept is on disk, in bounded time."""
        self._admission.close()
        with self._idle:
            if not self._idle.wait_for(lambda: not self._active, self.limits.drain_s):
                for cancel in self._active:
                    cancel.cancel("shutdown")
                self._idle.wait_for(lambda: not self._active, 5.0)
        self.runs.close()

    def _registered(self, cancel: Cancel) -> _Registration:
        return _Registration(self._active, self._idle, cancel)


class _Registration:
    """Keeps a request's `Cancel` among the active ones while it runs."""

    def __init__(self, active: set[Cancel], idle: threading.Condition, cancel: Cancel) -> None:
        self._active, self._idle, self._cancel = active, idle, cancel

    def __enter__(self) -> None:
        with self._idle:
            self._active.add(self._cancel)

    def __exit__(self, *_: object) -> None:
        with self._idle:
            self._active.discard(self._cancel)
            self._idle.notify_all()


def raised(failed: Failed) -> Exception:
    """The exception with Strata's name for a failure, the server's own kinds included."""
    if failed.kind is FailKind.QUEUE_WAIT:
        return QueueWaitExpired(failed.message, usage=failed.usage)
    if failed.kind is FailKind.STRUCTURED:
        return StructuredOutputError(failed.message, usage=failed.usage)
    return error_of(failed)
