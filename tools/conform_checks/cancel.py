"""Clients that leave: their request is let go soon, in every way of leaving, and the next one is served whole."""

from __future__ import annotations

import time

from tools.conform_checks.bench import Bench, worse
from tools.conform_checks.check import SERVER, Check, NotSeen, NotThere
from tools.conform_checks.occasions import request_body
from tools.conform_checks.sequence import get, id_of, kept
from tools.probe.exits import CouldNotRun
from tools.probe.target import APIS, ROUTES, Api
from tools.probe.values import as_object, parsed, shown

MARGIN_S = 0.5
"""How much longer than a left answer lived an answer must go on when nobody leaves."""


def lasting(bench: Bench, api: Api, least_s: float) -> None:
    """Block until it is known that the long answer goes on for so many seconds when nobody leaves.

    Raises: NotSeen: it ends sooner, so that nobody can tell whether leaving ended it.
    """
    longest: dict[Api, float] = bench.once("lasting", dict[Api, float])
    if longest.get(api, 0.0) >= least_s:
        return
    begun = time.perf_counter()
    with bench.start(api, "long") as talk:
        if talk.wait(lambda each: each.reader.end is not None, least_s):
            took_s = time.perf_counter() - begun
            raise NotSeen(f"the long answer ends by itself after {took_s:.1f} s: too short to tell")
    longest[api] = least_s


def _stream(bench: Bench, api: Api) -> str | None:
    return _left_stream(bench, api, reset=False)


def _reset(bench: Bench, api: Api) -> str | None:
    return _left_stream(bench, api, reset=True)


def _left_stream(bench: Bench, api: Api, *, reset: bool) -> str | None:
    bench.stream(api, "short")
    bench.at_rest()
    begun = time.perf_counter()
    with bench.start(api, "long") as talk:
        if not talk.wait(lambda each: each.telling.token_count > 0, bench.settings.patience_s):
            raise NotSeen(f"the long answer did not begin: {talk.about()}")
        talk.leave(reset=reset)
    return _let_go(bench, api, begun, "was reset" if reset else "was closed")


def _body(bench: Bench, api: Api) -> str | None:
    bench.body(api, "short")
    bench.at_rest()
    begun = time.perf_counter()
    asked = request_body(api, bench.model, "long", stream=False)
    with bench.send(api, asked) as talk:
        if bench.gauge.wait(lambda load: load.running > 0, bench.settings.free_s) is None:
            raise NotSeen(f"the request was never seen running: {talk.about()}")
    return _let_go(bench, api, begun, "was closed before the body came")


def _let_go(bench: Bench, api: Api, begun: float, how: str) -> str | None:
    took_s = bench.gauge.wait(lambda load: not load.running, bench.settings.free_s)
    if took_s is None:
        return f"{bench.settings.free_s:g} s after the connection {how} the request still runs"
    lasting(bench, api, time.perf_counter() - begun + MARGIN_S)
    return None


def _half_closed(bench: Bench, api: Api) -> str | None:
    bench.body(api, "limit")
    asked = request_body(api, bench.model, "limit", stream=False)
    with bench.send(api, asked) as talk:
        talk.connection.end_sending()
        talk.join()
    return None if talk.status == 200 and talk.value else f"a client that ended only its sending got {talk.about()}"


def _next(bench: Bench, api: Api) -> str | None:
    bench.stream(api, "short")
    with bench.start(api, "long") as left:
        if not left.wait(lambda each: each.telling.token_count > 0, bench.settings.patience_s):
            raise NotSeen(f"the long answer did not begin: {left.about()}")
    talk, alone = bench.start(api, "short").join(), bench.stream(api, "short")
    if not talk.is_stream:
        return f"the request after one that was left: {talk.about()}"
    if (text := worse(talk, alone)) is not None:
        return f"the answer after one that was left: {text}"
    if alone.telling.outcome == "finished" and talk.telling.outcome != "finished":
        return f"after one that was left the same request ended as {talk.telling.finish!r}"
    return None


def _by_api(bench: Bench, api: Api) -> str | None:
    fields = {"store": True, "background": True}
    with bench.start(api, "long", fields=fields) as talk:
        if not talk.is_stream:
            raise NotThere(f"no background streams: {talk.join().about()}")
        talk.wait(lambda each: each.telling.token_count > 0, bench.settings.patience_s)
        id_ = id_of(talk)
        ended = talk.ended
        answer = get(bench, f"{ROUTES['responses']}/{id_}/cancel", "POST")
        if ended:
            raise NotSeen("the response ended before it could be cancelled")
        if answer.status in (404, 405, 501):
            raise NotThere(f"responses are not cancelled: POST answers {answer.status}")
        told = _status(answer.body)
        if not talk.wait(lambda each: each.reader.end is not None, bench.settings.free_s):
            return f"{bench.settings.free_s:g} s after it was cancelled its stream goes on"
    again = kept(bench, id_).get("status")
    if told != "cancelled" or again != "cancelled":
        return f"it was cancelled; the answer to that says {shown(told)}, and read again it is {shown(again)}"
    return None


def _status(body: bytes) -> object:
    try:
        return as_object(parsed(body)).get("status")
    except ValueError as error:
        raise CouldNotRun(f"the answer to a cancel is no JSON: {error}") from None


CHECKS = (
    Check(
        "left-stream",
        "cancel",
        "breach",
        "A stream whose client closes the connection is let go: the engine stops.",
        "llama.cpp #24496, FreeToken PR #222",
        APIS,
        _stream,
    ),
    Check(
        "left-reset",
        "cancel",
        "breach",
        "A stream whose connection is reset is let go.",
        "llama.cpp #24496",
        APIS,
        _reset,
    ),
    Check(
        "left-body",
        "cancel",
        "breach",
        "A request for a JSON body whose client leaves is let go, although nothing is written meanwhile.",
        "llama.cpp #24496",
        APIS,
        _body,
    ),
    Check(
        "half-closed",
        "cancel",
        "risk",
        "A client that ends only its sending gets its answer.",
        "RFC 9112, 9.6; llama.cpp #24496",
        SERVER,
        _half_closed,
    ),
    Check(
        "next-whole",
        "cancel",
        "lie",
        "The request after one that was left is answered whole.",
        "SGLang PR #36552",
        APIS,
        _next,
    ),
    Check(
        "cancelled",
        "cancel",
        "lie",
        "A background response that is cancelled ends soon, says so, and is cancelled when it is read again.",
        "OpenAI API reference, cancel a response",
        ("responses",),
        _by_api,
    ),
)
