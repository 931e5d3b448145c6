"""Asks a server what the checks judge, each thing once, and keeps the answers. It judges nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from tools.conform_checks.check import NotSeen, NotThere
from tools.conform_checks.gauge import Gauge
from tools.conform_checks.hand import Hand
from tools.conform_checks.occasions import SAMPLES, Name, has, limit_of, request_body
from tools.conform_checks.reading import BodyAnswer, read_body
from tools.conform_checks.talk import Talk
from tools.probe.answer import BodyEnd
from tools.probe.asking import adapted
from tools.probe.target import APIS, Api, Target
from tools.probe.values import Json, as_text, at

T = TypeVar("T")
NOT_THERE = (404, 405, 501)
KEYLESS = (401, 403)
FULL = 429
ADAPTABLE = (400, 422)
MOST_ADAPTED = 4
REST_S = 180.0
"""How long something of before may still run."""
FULL_S = 60.0
"""How long a server that is full is asked again."""
FULL_STEP_S = 1.0
"""Between two times, where it says no other."""
_LEAST_STEP_S = 0.1


@dataclass(frozen=True, slots=True)
class Settings:
    """`quiet_s`: the longest silence that clients and proxies bear. `free_s`: how soon a request that nobody waits for
    must be let go. `patience_s`: an answer is given up after so long without a byte. `recover_s`: how long an engine
    may take to come back. `give_up_s`: how long the server waits for an engine that stands still, if it was told.
    `parallel`: requests that run at once, `context`: the model's room in tokens; None: the server is asked. `flood`:
    how many requests at once fill its queue; 0: it is not filled. `many`: how many run side by side. `continue_s`: how
    long a client waits for 100 Continue: curl waits 1 s, others for ever."""

    quiet_s: float = 30.0
    free_s: float = 5.0
    patience_s: float = 120.0
    recover_s: float = 120.0
    give_up_s: float | None = None
    parallel: int | None = None
    context: int | None = None
    flood: int = 0
    many: int = 4
    continue_s: float = 5.0
    verify: bool = True


@dataclass(slots=True)
class Bench:
    """One server under check. Not for several threads. Everything blocks."""

    target: Target
    model: str
    settings: Settings = field(default_factory=Settings)
    hand: Hand = field(default_factory=Hand)
    gauge: Gauge = field(init=False)
    _kept: dict[object, object] = field(default_factory=dict[object, object])

    def __post_init__(self) -> None:
        self.gauge = Gauge(self.target, verify=self.settings.verify)

    def once(self, key: object, make: Callable[[], T]) -> T:
        """What `make` gives, or raises as NotSeen or NotThere; made at the first call with this key."""
        if key not in self._kept:
            try:
                self._kept[key] = make()
            except (NotSeen, NotThere) as why:
                self._kept[key] = why
        kept = self._kept[key]
        if isinstance(kept, NotSeen | NotThere):
            raise kept
        return cast("T", kept)

    # --- which APIs there are -----------------------------------------------------------------------

    def require(self, api: Api) -> None:
        """Raises: NotThere: the server does not have this API. NotSeen: it answers no plain request."""
        self.once(("there", api), lambda: self._look(api))

    def _look(self, api: Api) -> None:
        talk = self._short(api)
        named = as_text(at(talk.value, "error", "code")) or ""
        if talk.status in NOT_THERE and "model" not in named:
            raise NotThere(f"{api}: {talk.about()}")
        if talk.status in KEYLESS:
            raise NotSeen(f"{api}: {talk.about()}; give the server's key with --api-key")
        if _hung(talk):
            raise NotSeen(f"{api}: {talk.about()}; --patience-s N waits longer")
        if not (_answered(talk) or _answered(self.asked(api, "short", stream=False))):
            raise NotSeen(f"{api}: a plain request is not answered: {talk.about()}")

    def hangs(self, api: Api) -> bool:
        """Whether a plain request had no answer for as long as we wait."""
        return _hung(self._short(api))

    def _short(self, api: Api) -> Talk:
        return self.once(("asked", api, "short", True), lambda: self.start(api, "short").join())

    def apis(self) -> list[Api]:
        """Those that answer. Raises: NotThere: the server has none. NotSeen: it answers in none."""
        found: list[Api] = []
        silent: NotSeen | None = None
        for api in APIS:
            try:
                self.require(api)
            except NotThere:
                continue
            except NotSeen as why:
                silent = silent or why
                continue
            found.append(api)
        if not found:
            raise silent or NotThere("the server has none of the APIs")
        return found

    # --- answers ------------------------------------------------------------------------------------

    def start(self, api: Api, name: Name, *, stream: bool = True, fields: Mapping[str, object] | None = None) -> Talk:
        """Ask on an occasion; the answer may still be coming. Not kept: whoever starts it joins or leaves it.

        Raises: CouldNotRun: the server cannot be reached.
        """
        if not has(api, name):
            raise NotThere(f"{api} has nothing for {name!r}")
        asked = request_body(api, self.model, name, stream=stream, fields=fields)
        return self._adapted(api, asked, f"{'stream' if stream else 'body'} of {name!r}", limit_of(api, name))

    def _adapted(self, api: Api, asked: Json, name: str, limit: int) -> Talk:
        """Without the fields that this server refuses and that can be done without."""
        for _ in range(MOST_ADAPTED):
            talk = self._let_in(api, asked, name, limit)
            if talk.status not in ADAPTABLE:
                return talk
            talk.join()
            fewer = adapted(asked, as_text(at(talk.value, "error", "message")) or "")
            if fewer is None:
                return talk
            asked = fewer
        return self._let_in(api, asked, name, limit)

    def _let_in(self, api: Api, asked: Json, name: str, limit: int) -> Talk:
        """The answer, whose head has come. A server that is full, with what was left a moment ago or by others, is
        asked again; one that stays full is not waited for a second time."""
        begun = time.perf_counter()
        while True:
            talk = self.send(api, asked, name=name, limit=limit)
            talk.wait(lambda each: each.status != 0, self.settings.patience_s)
            if talk.status != FULL or "full" in self._kept:
                return talk
            left_s = FULL_S - (time.perf_counter() - begun)
            if left_s <= 0:
                self._kept["full"] = True
                return talk
            talk.join()
            time.sleep(min(left_s, _retry_after_s(talk)))

    def send(
        self, api: Api, body: Json | bytes, *, name: str = "", limit: int | None = None, headers: Mapping[str, str] = {}
    ) -> Talk:
        """Any request to the route of an API. Raises: CouldNotRun: the server cannot be reached."""
        asked: Json = {} if isinstance(body, bytes) else body
        return self.send_raw(api, self.target.post(api, body, *headers.items()), asked, name=name, limit=limit)

    def send_raw(self, api: Api, request: bytes, asked: Json, *, name: str = "", limit: int | None = None) -> Talk:
        settings = self.settings
        return Talk(
            self.target,
            api,
            request,
            asked=asked,
            name=name,
            limit=limit,
            patience_s=settings.patience_s,
            verify=settings.verify,
        )

    def asked(self, api: Api, name: Name, *, stream: bool) -> Talk:
        """The answer on an occasion, whatever it is; asked once."""
        return self.once(("asked", api, name, stream), lambda: self.start(api, name, stream=stream).join())

    def stream(self, api: Api, name: Name) -> Talk:
        """The stream on an occasion. Raises: NotSeen: the server refuses it, or sends none."""
        talk = self.asked(api, name, stream=True)
        if not talk.is_stream:
            raise NotSeen(f"no stream of {name!r}: {talk.about()}")
        return talk

    def body(self, api: Api, name: Name) -> BodyAnswer:
        """The JSON body on an occasion, read. Raises: NotSeen: the server refuses it, or sends none."""
        return read_body(api, self.body_value(api, name))

    def body_value(self, api: Api, name: Name) -> Json:
        talk = self.asked(api, name, stream=False)
        if talk.status != 200 or not talk.value:
            raise NotSeen(f"no body of {name!r}: {talk.about()}")
        return talk.value

    def streams(self, api: Api, names: Iterable[Name] = SAMPLES) -> list[Talk]:
        """Those of these occasions that there are. Raises: NotSeen: there is none."""
        return self._some([lambda name=name: self.stream(api, name) for name in names if has(api, name)])

    def bodies(self, api: Api, names: Iterable[Name] = SAMPLES) -> list[tuple[Name, Json]]:
        """As `streams`."""
        return self._some([lambda name=name: (name, self.body_value(api, name)) for name in names if has(api, name)])

    @staticmethod
    def _some(makers: list[Callable[[], T]]) -> list[T]:
        made: list[T] = []
        last: NotSeen | None = None
        for make in makers:
            try:
                made.append(make())
            except NotSeen as why:
                last = why
        if not made:
            raise last or NotSeen("there is no such occasion")
        return made

    # --- what the server is like --------------------------------------------------------------------

    def slots(self) -> int:
        """How many requests run at once. Raises: NotSeen: nobody says."""
        given = self.settings.parallel or self.gauge.load().slots
        if given is None:
            raise NotSeen("nobody says how many requests run at once; give --parallel N")
        return given

    def at_rest(self) -> None:
        """Block until nothing runs. Raises: NotSeen: others use the server, or it has no gauge."""
        rest_s = self.settings.free_s if "busy" in self._kept else REST_S
        if self.gauge.wait(lambda load: not load.running and not load.waiting, rest_s) is None:
            self._kept["busy"] = True
            raise NotSeen("the server is never at rest: others use it, or something of before still runs")


def _answered(talk: Talk) -> bool:
    """It is a stream or a JSON body, whatever it says."""
    return talk.status == 200 and (talk.is_stream or bool(talk.value))


def _hung(talk: Talk) -> bool:
    return not talk.status and talk.reader.end is BodyEnd.SILENT


def _retry_after_s(talk: Talk) -> float:
    told = (talk.head.get("retry-after") if talk.head is not None else None) or ""
    return max(float(told), _LEAST_STEP_S) if told.strip().isdecimal() else FULL_STEP_S


def over(
    talks: Iterable[Talk], judge: Callable[[Talk], str | None], having: Callable[[Talk], object] = lambda talk: True
) -> str | None:
    """The first evidence of the talks that have what is judged, with its talk's name. Raises: NotSeen: none has it."""
    judged = [talk for talk in talks if having(talk)]
    if not judged:
        raise NotSeen("no stream has what is judged here")
    for talk in judged:
        if (text := judge(talk)) is not None:
            return f"{talk.name}: {text}"
    return None


def worse(talk: Talk, alone: Talk) -> str | None:
    """What is untrue in a stream and was not in one of the same kind. Both have ended."""
    known = {finding.id for finding in alone.witness.untrue()}
    for finding in talk.witness.untrue():
        if finding.id not in known:
            return finding.text
    if talk.telling.failed_openly and not alone.telling.failed_openly:
        return f"it failed: {talk.telling.error}"
    return None


def found(talks: Iterable[Talk], *ids: str) -> str | None:
    """The first of these findings of the witnesses."""
    return over(talks, lambda talk: talk.found(*ids))
