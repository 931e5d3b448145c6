"""Requests that no server can serve, and what became of them. It judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tools.conform_checks.bench import Bench
from tools.conform_checks.check import NotSeen
from tools.conform_checks.occasions import request_body
from tools.conform_checks.talk import Talk
from tools.probe.connection import fetch
from tools.probe.exits import CouldNotRun
from tools.probe.target import Api
from tools.probe.values import Json, as_int, at, parsed

MOST_CONTEXT = 262_144
"""A prompt for more room is not sent: it would cost too much."""
BAD_PARTS = 2_000
INPUTS: Mapping[Api, str] = {"chat": "messages", "completions": "prompt", "responses": "input", "messages": "messages"}

Bad = Callable[[Api, Json], Json | bytes]


def _without_input(api: Api, body: Json) -> Json:
    return {name: value for name, value in body.items() if name != INPUTS[api]}


def _limit_text(api: Api, body: Json) -> Json:
    return body | {"max_output_tokens" if api == "responses" else "max_tokens": "many"}


def _bad_format(api: Api, body: Json) -> Json:
    form: Json = {"type": "json_schema"}
    return body | ({"text": {"format": form}} if api == "responses" else {"response_format": form})


def _bad_tool(api: Api, body: Json) -> Json:
    return body | {"tools": [{"description": "no name"} if api == "messages" else {"type": "function"}]}


def _many_parts(api: Api, body: Json) -> Json:
    turn: Json = {"role": "user", "content": [{"type": "no such part"}] * BAD_PARTS}
    return body | {INPUTS[api]: [turn]}


BAD: Mapping[str, Bad] = {
    "not JSON": lambda api, body: b'{"model": "m", "stream": false, ',
    "not an object": lambda api, body: b'["' + INPUTS[api].encode() + b'"]',
    "a wrong type": lambda api, body: body | {INPUTS[api]: {"text": 5}},
    "nothing to answer": _without_input,
    "a limit that is no number": _limit_text,
    "a malformed format": _bad_format,
    "a malformed tool": _bad_tool,
    "many bad parts": _many_parts,
}
PLAIN = ("not JSON", "not an object", "a wrong type", "nothing to answer", "a limit that is no number")
"""Those that every API can be sent."""


def refused(bench: Bench, api: Api, name: str, *, stream: bool = False) -> Talk:
    """The answer to a bad request; asked once. Raises: CouldNotRun: the server cannot be reached any more."""

    def ask() -> Talk:
        body = BAD[name](api, request_body(api, bench.model, "limit", stream=stream))
        return bench.send(api, body, name=name + (" in a stream" if stream else "")).join()

    return bench.once(("refused", api, name, stream), ask)


def plain(bench: Bench, api: Api) -> list[Talk]:
    """The answers to the plain ones, whatever they are."""
    return [refused(bench, api, name) for name in PLAIN]


# --- a prompt that is too long ----------------------------------------------------------------------

_ROOMS = ("max_model_len", "context_length", "max_context_length", "context_window", "max_input_tokens")


def context(bench: Bench) -> int:
    """The model's room in tokens. Raises: NotSeen: nobody tells."""
    if bench.settings.context is not None:
        return bench.settings.context
    return bench.once("context", lambda: _told_context(bench))


def _told_context(bench: Bench) -> int:
    try:
        answer = fetch(
            bench.target, bench.target.get("/models"), silence_s=30, until_s=30, verify=bench.settings.verify
        )
        model = at(parsed(answer.body), "data", 0)
    except (ValueError, CouldNotRun):
        model = None
    told = [as_int(at(model, name)) for name in _ROOMS] + [as_int(at(model, "meta", "n_ctx"))]
    room = next((value for value in told if value), None)
    if room is None:
        raise NotSeen("the server does not tell its context; give --context N")
    if room > MOST_CONTEXT:
        raise NotSeen(f"a prompt above {room} tokens would cost too much; --context N sends it all the same")
    return room


def too_long(bench: Bench, api: Api, *, stream: bool) -> Talk:
    """The answer to a prompt that does not fit. Raises: NotSeen: the context is not known."""
    room = context(bench)

    def ask() -> Talk:
        words = "hello " * (room + room // 4 + 200)
        value: object = [{"role": "user", "content": words}] if api in ("chat", "messages") else words
        body = request_body(api, bench.model, "limit", stream=stream) | {INPUTS[api]: value}
        return bench.send(api, body, name=f"a prompt of more than {room} tokens").join()

    return bench.once(("too long", api, stream), ask)
