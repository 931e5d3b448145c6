"""Measures how fast the server says that its engine died, and what a token costs as an answer grows.

    python -m tools.bench_endings [--deaths 200] [--json FILE]

Starts the server over its fake engine, so it measures the server alone: no model, no GPU. Prints figures; it asserts
nothing about this machine's speed. Exit status: 0 measured, 2 could not run. Loopback only, bounded, stops by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tools.fake_server import connect, percentile, post, read_until, server

CHAT = "/v1/chat/completions"
SHORT_TOKENS = 1_000
LONG_TOKENS = 50_000
REPEATS = 5


def chat(max_tokens: int) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "max_tokens": max_tokens,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def engine_pid(port: int) -> int:
    with connect(port) as sock:
        sock.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        data = b""
        while part := sock.recv(65_536):
            data += part
    return int(json.loads(data.partition(b"\r\n\r\n")[2])["engine"]["pid"])


def deaths_ms(count: int, console: Console) -> list[float]:
    """Milliseconds from the engine's SIGKILL to the last byte of the ending, `count` times."""
    took: list[float] = []
    with server({"requests": [[{"text": "Hello"}, {"stall": True}]], "then": "repeat"}) as port:
        for _ in track(range(count), "engine deaths", console=console):
            with connect(port) as sock:
                post(sock, CHAT, chat(100))
                read_until(sock, b'"content": "o"')
                pid = engine_pid(port)
                begun = time.perf_counter()
                os.kill(pid, signal.SIGKILL)
                ending = read_until(sock, b"data: [DONE]\n\n")
                took.append((time.perf_counter() - begun) * 1_000)
                if b'"finish_reason": "error"' not in ending:
                    raise RuntimeError(f"not a truthful ending: {ending!r}")
    return took


def per_token_us(port: int, tokens: int) -> float:
    """Microseconds a token of one answer, from the first content to the end."""
    with connect(port) as sock:
        post(sock, CHAT, chat(tokens))
        read_until(sock, b'"content": "x"')
        begun = time.perf_counter()
        tail = b""
        while not tail.endswith(b"0\r\n\r\n"):
            tail = (tail + sock.recv(1 << 20))[-4_096:]
        if b'"finish_reason": "length"' not in tail:
            raise RuntimeError(f"not the expected ending: {tail[-500:]!r}")
        return (time.perf_counter() - begun) * 1e6 / tokens


def token_costs() -> tuple[float, float]:
    """Median microseconds a token of short and long answers, measured in turns in one run."""
    script = {
        "context": 2 * LONG_TOKENS,
        "requests": [[{"text": "x" * (LONG_TOKENS + 1), "burst": True}]],
        "then": "repeat",
    }
    short: list[float] = []
    long: list[float] = []
    with server(script) as port:
        per_token_us(port, SHORT_TOKENS)
        for _ in range(REPEATS):
            short.append(statistics.median(per_token_us(port, SHORT_TOKENS) for _ in range(5)))
            long.append(per_token_us(port, LONG_TOKENS))
    return statistics.median(short), statistics.median(long)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench_endings", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--deaths", type=int, default=200, help="engine deaths to measure (default: 200; at most 1000)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args(argv)
    console = Console()
    try:
        took = deaths_ms(max(1, min(args.deaths, 1_000)), Console(stderr=True))
        short, long = token_costs()
    except (OSError, RuntimeError) as error:
        Console(stderr=True).print(f"could not measure: {error}", markup=False)
        return 2
    death = {"p50": percentile(took, 0.5), "p99": percentile(took, 0.99), "max": max(took)}
    figures = {
        "deaths": len(took),
        "ending_after_death_ms": death,
        "token_us": {str(SHORT_TOKENS): short, str(LONG_TOKENS): long, "ratio": long / short},
    }
    table = Table("figure", "value", title="endings")
    for name, value in death.items():
        table.add_row(f"SIGKILL to ending, {name} of {len(took)}", f"{value:.1f} ms")
    table.add_row(f"a token of {SHORT_TOKENS}", f"{short:.1f} µs")
    table.add_row(f"a token of {LONG_TOKENS}", f"{long:.1f} µs")
    table.add_row("ratio", f"{long / short:.3f}")
    console.print(table)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
