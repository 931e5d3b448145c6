"""One engine of a pool: how busy it is, whether it may be asked now, and what its failures say about it.

It has no thread and no lock, waits for nothing and asks nobody: the pool does, under a lock of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime

from engine.api import (
    ChatRequest,
    CompletionRequest,
    Engine,
    EngineRequest,
    EngineStatus,
    MemberStatus,
    NativeRequest,
)
from engine.events import Failed, FailKind

REASON_CHARS = 200

_BROKEN = {FailKind.DIED, FailKind.ERR, FailKind.SILENT, FailKind.NOT_STARTED, FailKind.PROTOCOL, FailKind.CUT}
"""What a server did not manage, whatever the request was."""
_LATER = {408, 429}
"""It has no time for the request: another server may have."""
_ACCOUNT = {401, 402, 403}
"""It does not take its key."""
_REQUEST_TYPES = {"invalid_request_error", "BadRequestError"}
"""An error told in a stream that began with 200 has no status; these types blame the request all the same.
Source: OpenAI API reference, "errors"; vLLM's streaming error response (2026-10)."""


@dataclass(frozen=True, slots=True)
class Delays:
    """How long a member that failed is left alone, in seconds: `first_s`, doubled with each further failure in a row
    up to `most_s`."""

    first_s: float = 1.0
    most_s: float = 30.0

    def after(self, failures: int) -> float:
        """The delay after the 1st, 2nd, … failure in a row."""
        return min(self.first_s * 2.0 ** min(failures - 1, 30), self.most_s)


class Member:
    """An engine with its name in logs and `/status` (a URL without credentials). Times are the pool's clock, in
    seconds.

    A member that fails is sick. When its back-off has passed it is looked at, and if that went well it may be asked
    again, by one request at a time until one of them got a piece of an answer.
    """

    def __init__(self, name: str, engine: Engine, delays: Delays) -> None:
        self.name = name
        self.engine = engine
        self.active = 0
        self.used = 0
        """The number of the choice that last fell on it: among equals the one that waited longest is next."""
        self.episode = 0
        """Counts its illnesses. Of the requests that ran when it fell sick none can make it sicker, or well."""
        self.problem: str | None = None
        self.look: Look | None = None
        self._delays = delays
        self._failures = 0
        self._sick = False
        self._seen_well = False
        self._on_trial = False
        self._next_look_s = float("-inf")

    @property
    def slots(self) -> int:
        return max(1, self.engine.facts.slots)

    @property
    def fit(self) -> bool:
        """Whether it may be asked while others are well, too."""
        return not self._sick or (self._seen_well and not self._on_trial)

    @property
    def ready(self) -> bool:
        """Whether it is there and well. Does not block."""
        return (not self._sick or self._seen_well) and self.engine.alive()

    def status(self, own: EngineStatus) -> MemberStatus:
        """Its part of the pool's status; `own` is what the engine says of itself."""
        state = "sick" if own.state == "ready" and self._sick and not self._seen_well else own.state
        problem = None if state == "ready" else (self.problem if self._sick else None) or own.last_death
        return MemberStatus(self.name, state, self.active, self.slots, problem)

    def serves(self, model: object) -> bool | None:
        """Whether it said that it has this model; None where it lists none. Ollama's `name` is its `name:latest`."""
        names = self.engine.facts.models
        return (model in names or f"{model}:latest" in names) if names else None

    # --- asked ---------------------------------------------------------------------------------------

    def take(self, number: int) -> None:
        """A request takes a slot."""
        self.active += 1
        self.used = number
        self._on_trial = self._sick

    def leave(self, episode: int) -> None:
        """A request that began in `episode` gives its slot back."""
        self.active -= 1
        if episode == self.episode:
            self._on_trial = False

    def answered(self, episode: int, *, finished: bool = False) -> bool:
        """The first piece of an answer came, or its good end. Whether the member was sick until now."""
        if episode != self.episode:
            return False
        was_sick, self._sick = self._sick, False
        if finished:
            self._failures = 0
        return was_sick

    def fail(self, episode: int, why: str, now_s: float, wait_s: float = 0.0) -> bool:
        """It failed a request that began in `episode`, or a look. `wait_s`: what it asked for itself. Whether it was
        well until now."""
        self.problem = why
        if episode != self.episode:
            return False
        was_sick, self._sick = self._sick, True
        self.episode += 1
        self._failures += 1
        self._seen_well = self._on_trial = False
        delay_s = self._delays.after(self._failures)
        self._next_look_s = now_s + max(delay_s, min(wait_s, self._delays.most_s))
        return not was_sick

    # --- looked at -----------------------------------------------------------------------------------

    def wants_look(self, now_s: float) -> bool:
        """Whether it is time to see if it can be used (again)."""
        if self.look is not None or now_s < self._next_look_s:
            return False
        return not self._seen_well if self._sick else not self.engine.alive()

    def seen_well(self, episode: int, now_s: float) -> None:
        """A look that began in `episode` went well."""
        if episode == self.episode:
            self._seen_well = True
            self._next_look_s = now_s + self._delays.first_s


@dataclass(slots=True)
class Look:
    """One try to reach a member, or to start it. `problem` is why that failed."""

    member: Member
    done: bool = False
    problem: str | None = None


def choose(candidates: Sequence[Member]) -> Member | None:
    """The one to ask: of those that are well the least busy one with a free slot; None while their slots are full. One
    that is not known to be there comes after those that are. All are sick: a try is better than a refusal."""
    usable = [member for member in candidates if member.fit] or candidates
    free = [member for member in usable if member.active < member.slots]
    there = [member for member in free if member.engine.alive()]
    return min(there or free, key=lambda member: (member.active, member.used), default=None)


def candidates(members: Sequence[Member], request: EngineRequest, tried: Sequence[Member]) -> list[Member]:
    """Who may be asked next. If members say that they have the request's model, those that list others are left out,
    even if they are the last ones that are well: they would refuse it, or answer with another model. Those that list
    nothing come last. A model that nobody lists goes to any: many servers take every name."""
    model = _model_of(request)
    left = [member for member in members if member not in tried]
    if model and any(member.serves(model) for member in members):
        return [m for m in left if m.serves(model)] or [m for m in left if m.serves(model) is None]
    return left


def _model_of(request: EngineRequest) -> object:
    if isinstance(request, NativeRequest):
        return request.model
    return request.body.get("model") if isinstance(request, ChatRequest | CompletionRequest) else None


# --- what a failure says -----------------------------------------------------------------------------


def is_unknown_here(failed: Failed, request: EngineRequest) -> bool:
    """Whether the member says that it does not keep the response that the request names. Another one may.

    Source: OpenAI API reference, errors of Responses (2026-10); vLLM and SGLang answer 404.
    """
    if not isinstance(request, NativeRequest) or not request.names_response or failed.upstream is None:
        return False
    return failed.upstream.status == 404 or failed.upstream.code == "previous_response_not_found"


def goes_elsewhere(failed: Failed, request: EngineRequest) -> bool:
    """Whether another server may be asked, if nothing of the answer came. A refusal that blames the request would be
    the same there; so would most for a wrong key, and it should be seen."""
    if is_unknown_here(failed, request):
        return True
    if failed.kind in _BROKEN:
        return failed.upstream is None or failed.upstream.status >= 400 or failed.upstream.type not in _REQUEST_TYPES
    return failed.kind is FailKind.REFUSED and failed.upstream is not None and failed.upstream.status in _LATER


def is_its_own(failed: Failed, member: Member, request: EngineRequest) -> bool:
    """Whether the member is to blame. A refused key is its own, unless the request brought one; an unknown model (or
    page) is, unless the member told that it has other models: then the request asked for too much, and a client with a
    wrong name must not take one member after the other away from all."""
    if is_unknown_here(failed, request):
        return False
    if goes_elsewhere(failed, request):
        return True
    status = failed.upstream.status if failed.upstream is not None else 0
    if failed.kind is not FailKind.REFUSED or not isinstance(request, ChatRequest | CompletionRequest | NativeRequest):
        return False
    if status in _ACCOUNT:
        return not {"authorization", "x-api-key"} & {name.lower() for name in request.headers}
    if isinstance(request, CompletionRequest):
        return False  # not every server has the older API, and may be fine for chats
    return status == 404 and member.serves(_model_of(request)) is not False


def reason(failed: Failed) -> str:
    """The failure for logs and `/status`. What a server says of a request may quote it, or a key: of a 4xx only the
    status, type and code are told."""
    upstream = failed.upstream
    if upstream is not None and 400 <= upstream.status < 500:
        words = (f"it answered {upstream.status}", upstream.type, upstream.code)
        return " ".join(word for word in words if word)[:REASON_CHARS]
    return shortened(failed.message)


def shortened(text: str) -> str:
    """One line of it."""
    words = " ".join(text.split())
    return words if len(words) <= REASON_CHARS else words[: REASON_CHARS - 1] + "…"


def wait_s(failed: Failed) -> float | None:
    """The seconds that the server asked for by Retry-After (a number or a date)."""
    text = failed.upstream.retry_after if failed.upstream is not None else None
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def most_telling(failures: Sequence[Failed], request: EngineRequest) -> Failed:
    """The one failure that a request is answered with after all were asked: a status over silence and cuts, those over
    "cannot connect", the shortest wait over all. Where none has a status, all reasons are told. That a response is not
    known is said only if all said so."""
    failures = [failed for failed in failures if not is_unknown_here(failed, request)] or failures
    best = max(failures, key=_telling)
    if len(failures) == 1 or (best.upstream is not None and best.upstream.status >= 400):
        return best
    reasons = "; ".join(dict.fromkeys(failed.message for failed in failures))
    return replace(best, message=f"none of the {len(failures)} upstreams answered: {reasons}")


def _telling(failed: Failed) -> tuple[int, float]:
    seconds = wait_s(failed)
    if failed.upstream is not None and failed.upstream.status >= 400:
        rank = 4 if failed.upstream.status == 429 else 3
        return (rank, 0.0) if seconds is None else (5, -seconds)
    if failed.kind is FailKind.NOT_STARTED:
        return 0, 0.0
    return (1 if failed.kind is FailKind.SILENT else 2), 0.0
