"""Measures what it costs that responses are kept: the same streams with `store` true and false, in turns.

    python -m tools.bench_store [--pairs 40] [--json FILE]

Starts the server over its fake engine, so it measures the server alone: no model, no GPU. Prints figures; it asserts
nothing about this machine's speed. Exit status: 0 measured, 2 could not run. Loopback only, bounded, stops by itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tools.fake_server import connect, post, read_until, server

PATH = "/v1/responses"
TOKENS = 5_000
SHORT_TOKENS = 1_000
LONG_TOKENS = 50_000
LONG_REPEATS = 5
SCRIPT: dict[str, Any] = {
    "context": 2 * LONG_TOKENS,
    "requests": [[{"text": "x" * (LONG_TOKENS + 1), "burst": True}]],
    "then": "repeat",
}


def stream_s(port: int, tokens: int, store: bool) -> tuple[float, float]:
    """Seconds from the request, and from the first token, to the last byte of one stream."""
    body = {
        "input": "hi",
        "stream": True,
        "store": store,
        "max_output_tokens": tokens,
        "reasoning": {"effort": "none"},
    }
    with connect(port) as sock:
        asked = time.perf_counter()
        post(sock, PATH, body)
        read_until(sock, b'"delta": "x"')
        begun = time.perf_counter()
        tail = b""
        while not tail.endswith(b"0\r\n\r\n"):
            tail = (tail + sock.recv(1 << 20))[-4_096:]
        ended = time.perf_counter()
    if b'"max_output_tokens": %d' % tokens not in tail or b'"sequence_number": %d}' % (tokens + 7) not in tail:
        raise RuntimeError(f"not the expected ending: {tail[-500:]!r}")
    return ended - asked, ended - begun


def measure(pairs: int, console: Console) -> dict[str, Any]:
    plain: list[float] = []
    kept: list[float] = []
    short: list[float] = []
    long: list[float] = []
    with server(SCRIPT) as port:
        for store in (True, False):
            stream_s(port, TOKENS, store)
        for i in track(range(pairs), "pairs of streams", console=console):
            # whoever comes second in a pair has it a little easier: take turns
            for store in (True, False) if i % 2 else (False, True):
                (kept if store else plain).append(stream_s(port, TOKENS, store)[0])
        for _ in track(range(LONG_REPEATS), "long streams", console=console):
            # as many tokens on both sides, so both see as much of what else the machine does
            turns = LONG_TOKENS // SHORT_TOKENS
            short.append(sum(stream_s(port, SHORT_TOKENS, True)[1] for _ in range(turns)) / LONG_TOKENS)
            long.append(stream_s(port, LONG_TOKENS, True)[1] / LONG_TOKENS)
    ratios = [with_store / without for with_store, without in zip(kept, plain, strict=True)]
    short_us, long_us = statistics.median(short) * 1e6, statistics.median(long) * 1e6
    growth = statistics.median([of_long / of_short for of_short, of_long in zip(short, long, strict=True)])
    return {
        "pairs": pairs,
        "tokens": TOKENS,
        "stream_ms": {
            "store_false": statistics.median(plain) * 1_000,
            "store_true": statistics.median(kept) * 1_000,
        },
        "ratio": statistics.median(ratios),
        "kept_token_us": {str(SHORT_TOKENS): short_us, str(LONG_TOKENS): long_us, "ratio": growth},
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench_store", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40, help="pairs of streams to measure (default: 40; at most 1000)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args(argv)
    try:
        figures = measure(max(1, min(args.pairs, 1_000)), Console(stderr=True))
    except (OSError, RuntimeError) as error:
        Console(stderr=True).print(f"could not measure: {error}", markup=False)
        return 2
    stream, token = figures["stream_ms"], figures["kept_token_us"]
    table = Table("figure", "value", title="keeping responses")
    table.add_row(f"a stream of {TOKENS} tokens, store: false", f"{stream['store_false']:.1f} ms")
    table.add_row("the same, store: true", f"{stream['store_true']:.1f} ms")
    table.add_row("median of the pairs' ratios", f"{figures['ratio']:.3f}")
    table.add_row(f"a kept token of {SHORT_TOKENS}", f"{token[str(SHORT_TOKENS)]:.1f} µs")
    table.add_row(f"a kept token of {LONG_TOKENS}", f"{token[str(LONG_TOKENS)]:.1f} µs")
    table.add_row("median of those pairs' ratios", f"{token['ratio']:.3f}")
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
