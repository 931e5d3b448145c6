"""Many at once: each gets its own whole answer; who waits hears so, is served, or is refused with a time."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from tools.conform_checks.bench import Bench, worse
from tools.conform_checks.check import SERVER, Check, NotSeen
from tools.conform_checks.errors import message_of
from tools.conform_checks.occasions import request_body
from tools.conform_checks.talk import Talk
from tools.probe.target import APIS, Api
from tools.probe.values import as_text, at, shown

REFUSED = (429, 503)
WAITS_S = 0.5
"""Who has no token after this, while others run, waits."""


def _id(talk: Talk) -> str | None:
    for each in talk.events:
        for path in (("id",), ("response", "id"), ("message", "id")):
            if (id_ := as_text(at(each.value, *path))) is not None:
                return id_
    return None


def _side_by_side(bench: Bench, api: Api) -> str | None:
    alone = bench.stream(api, "limit")

    def ask() -> list[Talk]:
        with ExitStack() as stack:
            talks = [stack.enter_context(bench.start(api, "limit")) for _ in range(bench.settings.many)]
            return [talk.join() for talk in talks]

    talks = [talk for talk in bench.once(("many", api), ask) if talk.is_stream]
    if len(talks) < 2:
        raise NotSeen(f"{len(talks)} of {bench.settings.many} requests at once were answered")
    for talk in talks:
        if (text := worse(talk, alone)) is not None:
            return f"one of {len(talks)} at once: {text}"
    ids = [_id(talk) for talk in talks]
    return None if len(set(ids)) == len(ids) else f"answers at once share an id: {shown(ids)}"


@contextmanager
def _all_slots_taken(bench: Bench, api: Api) -> Generator[list[Talk], None, None]:
    """Long answers run in every slot, and are left at the end. Raises: NotSeen."""
    slots = bench.slots()
    bench.at_rest()
    with ExitStack() as stack:
        talks = [stack.enter_context(bench.start(api, "long")) for _ in range(slots)]
        for talk in talks:
            if not talk.wait(lambda each: each.telling.token_count > 0, bench.settings.patience_s):
                raise NotSeen(f"{slots} long answers do not run at once: {talk.about()}")
        yield talks


def _running(talks: list[Talk]) -> bool:
    return not any(talk.ended for talk in talks)


def _heard(bench: Bench, api: Api) -> str | None:
    bench.stream(api, "short")
    quiet_s = bench.settings.quiet_s
    with _all_slots_taken(bench, api) as talks, bench_stream(bench, api) as waiting:
        heard = waiting.wait(lambda each: each.reader.first_byte_s is not None or not _running(talks), quiet_s)
        if waiting.telling.token_count or not _running(talks):
            raise NotSeen("nothing had to wait long enough")
        if not heard:
            return f"a stream that waits for its turn heard nothing for {quiet_s:g} s"
        if waiting.status != 200:
            raise NotSeen(f"who has to wait is refused: {waiting.about()}")
    return None


def bench_stream(bench: Bench, api: Api) -> Talk:
    """A short stream that may have to wait: nothing is adapted, so that nothing blocks here."""
    asked = {**bench.stream(api, "short").asked}
    return bench.send(api, asked, name="waiting stream")


def _served(bench: Bench, api: Api) -> str | None:
    bench.stream(api, "short")
    with _all_slots_taken(bench, api) as talks:
        waiting = bench_stream(bench, api)
        began_early = waiting.wait(lambda each: each.telling.token_count > 0, WAITS_S)
        still = _running(talks)
        for talk in talks:
            talk.leave()
    waiting.join()
    if began_early or not still:
        raise NotSeen("nothing had to wait")
    if waiting.status in REFUSED:
        raise NotSeen(f"who has to wait is refused: {waiting.about()}")
    if waiting.status != 200:
        return f"a stream that waited got {waiting.about()}"
    text = worse(waiting, bench.stream(api, "short"))
    return None if text is None else f"a stream that waited: {text}"


def _left(bench: Bench, api: Api) -> str | None:
    bench.body(api, "short")
    free_s = bench.settings.free_s
    with _all_slots_taken(bench, api) as talks:
        if bench.gauge.load().waiting is None:
            raise NotSeen("the server does not say who waits")
        with bench.send(api, request_body(api, bench.model, "limit", stream=False)):
            if bench.gauge.wait(lambda load: bool(load.waiting), free_s) is None:
                raise NotSeen("nothing had to wait")
        gone = bench.gauge.wait(lambda load: not load.waiting, free_s)
        if gone is None and _running(talks):
            return f"{free_s:g} s after a waiting client left its request still waits"
        if not _running(talks):
            raise NotSeen("the long answers ended too soon to tell")
    return None


def _full(bench: Bench, api: Api) -> str | None:
    flood = bench.settings.flood
    if not flood:
        raise NotSeen("give --flood N to fill the queue with N requests")
    asked = {**bench.stream(api, "short").asked, **request_body(api, bench.model, "long", stream=True)}
    with ExitStack() as stack:
        talks = [stack.enter_context(bench.send(api, asked)) for _ in range(flood)]
        for talk in talks:
            talk.wait(lambda each: each.status != 0, min(2.0, bench.settings.quiet_s))
        refused = [talk for talk in talks if talk.status >= 400]
        for talk in refused:
            talk.join()
    with contextlib.suppress(NotSeen):  # what comes next is not to be refused for what was left here
        bench.at_rest()
    if not refused:
        raise NotSeen(f"{flood} requests did not fill the queue")
    for talk in refused:
        head = talk.head
        if talk.status not in REFUSED or head is None or head.get("retry-after") is None:
            return f"a request too many: {talk.about()}, Retry-After {shown(head.get('retry-after') if head else None)}"
        if message_of(api, talk.value) is None:
            return f"a request too many is told where no client looks: {talk.about()}"
    return None


CHECKS = (
    Check(
        "side-by-side",
        "queue",
        "lie",
        "Requests at once get whole answers of their own.",
        "vLLM #52852",
        APIS,
        _side_by_side,
    ),
    Check(
        "waiting-heard",
        "queue",
        "breach",
        "A stream that waits for its turn hears something: Node's clients give up after silence, and ask again.",
        "openhanako #2517, remnic #2148, localharness #62",
        APIS,
        _heard,
    ),
    Check(
        "waiting-served",
        "queue",
        "breach",
        "A stream that waited is served whole.",
        "openhanako #2517",
        APIS,
        _served,
    ),
    Check(
        "waiting-left",
        "queue",
        "breach",
        "A request whose client leaves while it waits is taken out of the queue.",
        "openhanako #2517",
        SERVER,
        _left,
    ),
    Check(
        "queue-full",
        "queue",
        "breach",
        "A request too many is refused with 429 or 503, Retry-After, and a message.",
        "OpenAI API reference, errors; opencode #33006",
        SERVER,
        _full,
    ),
)
