"""The engine that is another server: OpenAI chat completions (or completions) over HTTP, always streamed, or its own
Responses API.

It knows the server's address, model, slots and health. One answer is `engine.upstream_call`; bytes, framing and shapes
are below that.
"""

from __future__ import annotations

import json
import secrets
import ssl
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Literal, cast

from engine.api import (
    TICK_S,
    Cancel,
    ChatRequest,
    CompletionRequest,
    EngineInfo,
    EngineRequest,
    EngineStarting,
    EngineStatus,
    NativeRequest,
)
from engine.events import Cancelled, EngineEvent, Event, Failed, FailKind, Tick
from engine.http_client import Connections, Head, HttpError, exchange, origin_of
from engine.prompt_count import LLAMA, Ask, count_prompt
from engine.thinking_budget import with_budget
from engine.upstream_call import Call, CallPlan, call_body, call_headers, completion_body, native_body
from engine.upstream_errors import problem_of_body

SLOTS = 1_024
"""How many requests go to a server at once where nothing else is said: it has a queue of its own."""
PROBE_S = 5.0
"""How long a question about the server's health or model may take, in seconds."""
COUNT_S = 30.0
"""The same for the count of a prompt, which may be long."""
FRESH_S = {True: 10.0, False: 2.0}
"""How old news of a reachable or unreachable server may be before it is asked again, in seconds."""
MAX_PROBE_BYTES = 4 << 20

TELLING_HEALTH = ("llamacpp", "vllm")
"""Servers, by `owned_by` of their models, whose `/health` is 503 while `/v1/models` is 200: llama.cpp while it loads,
vLLM when its engine is dead. No other one is asked: LiteLLM's sends a paid request to every model, SGLang's generates.
Source: llama.cpp tools/server/server-http.cpp, vLLM entrypoints/serve/instrumentator/health.py, LiteLLM docs
proxy/health (2026-11)."""

LLAMA_FIELDS: Mapping[str, object] = {"return_progress": True}
LLAMA_EXACT: Mapping[str, object] = {"timings_per_token": True}
"""llama.cpp only: prompt progress, and exact token counts on every chunk. Other servers may refuse fields that they do
not know. Source: llama.cpp build 11549, 2026-11-30."""


class UpstreamEngine:
    """An OpenAI-compatible server at `base_url`, with or without `/v1` at its end.

    `model` replaces the request's model; without it the request's own passes. `key` is sent as bearer token. Times are
    in seconds: `connect_s` for name, TCP and TLS, `first_byte_s` (as `silence_s` where None) until the answer's status,
    `silence_s` without data. Thread-safe; the constructor does not touch the network.

    Raises: ValueError: `base_url` is not a server's URL.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        key: str | None = None,
        slots: int = SLOTS,
        kind: Literal["upstream", "llama"] = "upstream",
        connect_s: float = 10.0,
        first_byte_s: float | None = None,
        silence_s: float = 300.0,
        max_context: int | None = None,
        who: str | None = None,
    ) -> None:
        origin = origin_of(base_url)
        self._api = origin.base if _has_version(origin.base) else f"{origin.base}/v1"
        self._root = self._api.rpartition("/")[0]
        self._model = model
        self._slots = threading.BoundedSemaphore(slots)
        self._kept = Connections()
        self._plan = CallPlan(
            origin,
            f"{self._api}/chat/completions",
            key,
            connect_s,
            silence_s if first_byte_s is None else first_byte_s,
            silence_s,
            who or "the upstream",
            lambda: f"call_{secrets.token_hex(12)}",
            lambda: self._facts.model,
            ssl.create_default_context() if origin.tls else None,
            LLAMA_FIELDS if kind == "llama" else {},
            self._kept,
            LLAMA_EXACT if kind == "llama" else {},
            self._api,
            self._only_context,
        )
        self._facts = EngineInfo(kind, model or origin.authority, "chat", slots, max_context)
        self._owner: object = LLAMA if kind == "llama" else None
        self._lock = threading.Lock()
        self._active = 0
        self._contact_at_s = float("-inf")
        self._problem: str | None = "not asked yet"
        self._probing: threading.Thread | None = None
        self._closed = threading.Event()

    # --- facts -------------------------------------------------------------------------------------

    @property
    def facts(self) -> EngineInfo:
        """What is known so far; `start` (and every later look at the server's health) learns model and context."""
        return self._facts

    def status(self) -> EngineStatus:
        """By use, and by a look in the background where the news are old. Does not block."""
        ready = self.alive()
        with self._lock:
            return EngineStatus(
                "ready" if ready else "unreachable", active=self._active, last_death=None if ready else self._problem
            )

    def alive(self) -> bool:
        """Whether the server answered when it was last spoken to, and we are not closed. Does not block."""
        with self._lock:
            ready = self._problem is None
            stale = time.monotonic() - self._contact_at_s > FRESH_S[ready]
            if stale and self._probing is None and not self._closed.is_set() and not self._active:
                self._probing = threading.Thread(target=self._look_again, name="upstream-health", daemon=True)
                self._probing.start()
            return ready and not self._closed.is_set()

    def start(self) -> None:
        """Ask the server for its models. Blocks, for `connect_s` plus 5 s at most.

        Raises: EngineStarting: it cannot be reached, is not ready, or refuses the key.
        """
        if self._closed.is_set():
            raise EngineStarting("the engine is closed")
        try:
            self._probe()
        except HttpError as error:
            self._contact(str(error))
            raise EngineStarting(f"{self._plan.who} at {self.url} is not usable: {error}") from None
        self._contact(None)

    def close(self) -> None:
        """No request is taken any more, and those that run end within a tick. Does not block for long."""
        self._closed.set()
        self._kept.close()
        with self._lock:
            probing = self._probing
        if probing is not None and probing is not threading.current_thread():
            probing.join(1.0)  # a look-up of a name cannot be interrupted; the thread is a daemon

    @property
    def url(self) -> str:
        """Where its API is, without credentials."""
        origin = self._plan.origin
        return f"{'https' if origin.tls else 'http'}://{origin.authority}{self._api}"

    # --- answers -----------------------------------------------------------------------------------

    def stream(self, request: EngineRequest, cancel: Cancel) -> Iterator[EngineEvent]:
        """One answer; see `engine.api.Engine.stream`. `Accepted` comes when the server answered 200."""
        return self._stream(request, cancel)

    def _stream(self, request: EngineRequest, cancel: Cancel) -> Generator[Event, None, None]:
        if not isinstance(request, ChatRequest | CompletionRequest | NativeRequest):
            yield Failed(FailKind.INTERNAL, "this engine speaks chat, not token ids")
            return
        if self._closed.is_set():
            yield Failed(FailKind.NOT_STARTED, "the engine is closed")
            return
        if isinstance(request, NativeRequest):
            body = native_body(request, self._model)
        elif isinstance(request, CompletionRequest):
            body = completion_body(self._plan, request, self._model)
        else:
            request = replace(request, body=with_budget(request.body, self._owner, request.thinking_budget))
            body = call_body(self._plan, request, self._model)
        headers = call_headers(self._plan, request.headers)
        while not self._slots.acquire(timeout=TICK_S):
            if cancel.is_set():
                yield Cancelled(cancel.by)
                return
            yield Tick()
        try:
            with self._lock:
                self._active += 1
            yield from self._guarded(Call(self._plan, request, body, headers, cancel, self._contact))
        finally:
            with self._lock:
                self._active -= 1
            self._slots.release()

    def _guarded(self, call: Call) -> Generator[Event, None, None]:
        events = call.events()
        try:
            for event in events:
                if self._closed.is_set():
                    yield Failed(FailKind.NOT_STARTED, "the engine is closed")
                    return
                yield event
        finally:
            events.close()

    def count_prompt(self, request: ChatRequest) -> int:
        """How many tokens the prompt of a chat has; see `engine.api.CountsPrompts`."""
        body = dict(request.body) if self._model is None else {**request.body, "model": self._model}
        ask: Ask = lambda path, question: self._ask(self._root + path, question)  # noqa: E731 - one line, typed
        try:
            return count_prompt(self._owner, self._plan.who, body, ask)
        except HttpError as error:
            raise EngineStarting(f"{self._plan.who} could not be asked: {error}") from None

    def _only_context(self) -> int | None:
        """The context, where it is that of whatever model a request names."""
        return self._facts.max_context if len(self._facts.models) == 1 else None

    # --- health ------------------------------------------------------------------------------------

    def _contact(self, problem: str | None) -> None:
        with self._lock:
            self._contact_at_s = time.monotonic()
            self._problem = problem

    def _look_again(self) -> None:
        try:
            self._probe()
        except HttpError as error:
            self._contact(str(error))
        else:
            self._contact(None)
        finally:
            with self._lock:
                self._probing = None

    def _probe(self) -> None:
        """Learn models and context. Raises: HttpError: the server cannot serve now."""
        status, reason, body = self._get(f"{self._api}/models")
        if status == 401 or status >= 500:  # others have no such page, and may serve chats all the same
            raise HttpError(f"it answered {status}: {problem_of_body(body, reason).message}")
        models = _list(_json(body).get("data"))
        card = next((entry for entry in models if entry.get("id") == self._model), models[0] if models else {})
        context = _positive(card.get("max_model_len")) or _positive(_object(card.get("meta")).get("n_ctx"))
        if context is None and card.get("owned_by") == "llamacpp":
            context = self._llama_context()
        name = card.get("id")
        self._owner = card.get("owned_by") or self._owner
        self._facts = replace(
            self._facts,
            model=self._model or (name if isinstance(name, str) and name else self._facts.model),
            max_context=self._facts.max_context or context,
            models=(self._model,) if self._model else _names(models),
        )
        if card.get("owned_by") in TELLING_HEALTH:
            status, reason, body = self._get(f"{self._root}/health")
            if status == 503:
                raise HttpError(f"its /health answered 503: {problem_of_body(body, reason).message}")

    def _llama_context(self) -> int | None:
        """A slot's context, as older llama.cpp servers tell it."""
        _, _, body = self._get(f"{self._root}/props")
        return _positive(_object(_json(body).get("default_generation_settings")).get("n_ctx"))

    def _get(self, path: str) -> tuple[int, str, bytes]:
        """One short GET."""
        return self._ask(path)

    def _ask(self, path: str, question: Mapping[str, object] | None = None) -> tuple[int, str, bytes]:
        """One short GET, or a POST of the question, of which the network time beyond connecting is limited."""
        plan, head, body = self._plan, Head(0, "", {}), bytearray()
        method, limit_s = ("GET", PROBE_S) if question is None else ("POST", COUNT_S)
        headers = [("Accept", "application/json")]
        if question is not None:
            headers.append(("Content-Type", "application/json"))
        if plan.key is not None:
            headers.append(("Authorization", f"Bearer {plan.key}"))
        deadline = time.monotonic() + plan.connect_s + limit_s
        steps = exchange(
            plan.origin,
            method,
            path,
            headers,
            b"" if question is None else json.dumps(question).encode(),
            connect_s=plan.connect_s,
            tick_s=TICK_S,
            tls=plan.tls,
            kept=plan.kept,
        )
        try:
            for step in steps:
                if isinstance(step, Head):
                    head = step
                elif isinstance(step, bytes):
                    body += step
                if time.monotonic() > deadline or len(body) > MAX_PROBE_BYTES:
                    raise HttpError(f"no whole answer to {method} {path} within {plan.connect_s + limit_s:g} s")
                if self._closed.is_set():
                    raise HttpError("the engine is closed")
        finally:
            steps.close()
        return head.status, head.reason, bytes(body)


def _has_version(base: str) -> bool:
    last = base.rpartition("/")[2]
    return len(last) > 1 and last[0] == "v" and last[1].isdigit()


def _json(body: bytes) -> Mapping[str, object]:
    try:
        return _object(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def _object(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Mapping[str, object]]:
    return [_object(entry) for entry in cast("list[object]", value)] if isinstance(value, list) else []


def _names(models: list[Mapping[str, object]]) -> tuple[str, ...]:
    """Every name that a request may use; llama.cpp lists aliases beside a model's id."""
    names: dict[str, None] = {}
    for card in models:
        aliases = card.get("aliases")
        for name in (card.get("id"), *(cast("list[object]", aliases) if isinstance(aliases, list) else [])):
            if isinstance(name, str) and name:
                names[name] = None
    return tuple(names)


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
