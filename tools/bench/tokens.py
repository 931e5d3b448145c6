"""What a token costs as an answer grows, in each API, and what it costs that responses are kept. Answers of all lengths
are measured in turns, the same number of tokens of each, so that all see as much of what else the machine does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping

from tools.bench.figures import Curve, Diagram, Figure, Part, median_figure
from tools.bench.server import connect, post, read_to_end, read_until, server
from tools.probe.target import Api

SHORTEST = 1_000
LONGEST = 200_000
KEPT_TOKENS = 5_000
ROUTES: Mapping[Api, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
_FIRST: Mapping[Api, bytes] = {
    "chat": b'"content": "x"',
    "completions": b'"text": "x"',
    "responses": b'"delta": "x"',
    "messages": b'"text": "x"',
}
_ENDS: Mapping[Api, bytes] = {
    "chat": b'"finish_reason": "length"',
    "completions": b'"finish_reason": "length"',
    "responses": b"event: response.incomplete",
    "messages": b'"stop_reason": "max_tokens"',
}


def lengths_of(longest: int) -> list[int]:
    """From the shortest on, each four times the one before, and the longest."""
    made = [SHORTEST]
    while 4 * made[-1] < longest:
        made.append(4 * made[-1])
    return [*made, longest] if longest > SHORTEST else made


def script(longest: int) -> dict[str, object]:
    return {
        "context": 2 * longest + 1_000,
        "requests": [[{"text": "x" * (longest + 1), "burst": True}]],
        "then": "repeat",
    }


def _body(api: Api, tokens: int, keep: bool) -> dict[str, object]:
    body: dict[str, object] = {"stream": True}
    if api == "responses":
        off = {"effort": "none"}
        return body | {"input": "hi", "max_output_tokens": tokens, "store": keep, "reasoning": off}
    body["max_tokens"] = tokens
    if api == "completions":
        return body | {"prompt": "hi"}
    body["messages"] = [{"role": "user", "content": "hi"}]
    if api == "messages":
        return body | {"thinking": {"type": "disabled"}}
    return body | {"chat_template_kwargs": {"enable_thinking": False}}


def _stream_s(port: int, api: Api, tokens: int, *, keep: bool = False) -> tuple[float, float]:
    """Seconds of one stream, from the request and from the first token, to its last byte."""
    with connect(port) as sock:
        asked = time.perf_counter()
        post(sock, ROUTES[api], _body(api, tokens, keep))
        read_until(sock, _FIRST[api])
        begun = time.perf_counter()
        read_to_end(sock, _ENDS[api])
        ended = time.perf_counter()
    return ended - asked, ended - begun


def measure(
    longest: int, rounds: int, apis: tuple[Api, ...], command: tuple[str, ...], track: Callable[[range], Iterable[int]]
) -> Part:
    """Answers up to so many tokens. Raises: OSError."""
    lengths = lengths_of(longest)
    cost: dict[tuple[Api, int], list[float]] = {(api, length): [] for api in apis for length in lengths}
    with server(script(longest), command) as port:
        for api in apis:
            _stream_s(port, api, SHORTEST)
        for number in track(range(rounds)):
            for api in apis:
                for length in lengths[:: 1 if number % 2 else -1]:
                    times = max(1, longest // length)
                    took_s = sum(_stream_s(port, api, length)[1] for _ in range(times))
                    cost[api, length].append(1e6 * took_s / (times * length))
    figures: list[Figure] = []
    for api in apis:
        name = f"a token of {longest:,}, {api}"
        figures.append(median_figure(name, "µs", cost[api, longest], cost[api, SHORTEST], f"a token of {SHORTEST:,}"))
    curves = tuple(
        Curve(api, tuple((float(length), statistics.median(cost[api, length])) for length in lengths)) for api in apis
    )
    diagram = Diagram(
        "what a token costs, µs, over the answer's length", "tokens of the answer", curves, logarithmic=True
    )
    raw = {f"{api}_{length}_us": values for (api, length), values in cost.items()}
    return Part("tokens", tuple(figures), (diagram,), raw)


def measure_kept(pairs: int, longest: int, command: tuple[str, ...], track: Callable[[range], Iterable[int]]) -> Part:
    """Responses that are kept beside those that are not. Raises: OSError."""
    kept: list[float] = []
    plain: list[float] = []
    long: list[float] = []
    short: list[float] = []
    with server(script(max(longest, KEPT_TOKENS)), command) as port:
        for keep in (True, False):
            _stream_s(port, "responses", KEPT_TOKENS, keep=keep)
        for number in track(range(pairs)):
            for keep in (True, False) if number % 2 else (False, True):
                took_s = _stream_s(port, "responses", KEPT_TOKENS, keep=keep)[0]
                (kept if keep else plain).append(1_000 * took_s)
        for _ in range(max(1, pairs // 8)):
            times = longest // SHORTEST
            took_s = sum(_stream_s(port, "responses", SHORTEST, keep=True)[1] for _ in range(times))
            short.append(1e6 * took_s / (times * SHORTEST))
            long.append(1e6 * _stream_s(port, "responses", longest, keep=True)[1] / longest)
    figures = (
        median_figure(f"a response of {KEPT_TOKENS:,} tokens that is kept", "ms", kept, plain, "the same, not kept"),
        median_figure(f"a kept token of {longest:,}", "µs", long, short, f"a kept token of {SHORTEST:,}"),
    )
    raw = {"kept_ms": kept, "plain_ms": plain, "kept_long_us": long, "kept_short_us": short}
    return Part("kept", figures, (), raw)
