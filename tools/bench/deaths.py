"""From the engine's death to the last byte of the ending, and to the first token of the next answer.

Beside them, in turns: how long the system takes to say that a killed process' pipe has ended, and how long the same
engine takes to start when nobody is between.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence

import psutil

from tools.bench.figures import CannotMeasure, Diagram, Figure, Part, Untrue, median_figure, percentile, ranked
from tools.bench.server import connect, get, post, read_until, server
from tools.probe.values import as_int, at

CHAT = "/v1/chat/completions"
SCRIPT = {"requests": [[{"text": "Hello"}, {"stall": True}]], "then": "repeat"}
BODY = {
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
    "max_tokens": 100,
    "chat_template_kwargs": {"enable_thinking": False},
}
FIRST_TOKEN, LAST_TOKEN = b'"content": "H"', b'"content": "o"'
END = b"data: [DONE]\n\n"
FAILED = b'"finish_reason": "error"'
WAITING = "import sys; sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"
PIPE = "a pipe alone"


def measure(deaths: int, command: tuple[str, ...], track: Callable[[range], Iterable[int]]) -> Part:
    """Kill the engine so many times. Raises: CannotMeasure, OSError."""
    endings: list[float] = []
    pipes: list[float] = []
    restarts: list[float] = []
    starts: list[float] = []
    with server(SCRIPT, command) as port:
        stream = _open(port)
        try:
            read_until(stream, LAST_TOKEN)
            for _ in track(range(deaths)):
                engine = _engine(port)
                words, folder = engine.cmdline(), engine.cwd()
                killed_s, ending_s = _death(stream, engine)
                stream.close()
                stream = _open(port)
                begun = read_until(stream, FIRST_TOKEN)
                restarts.append(1_000 * (time.perf_counter() - killed_s))
                if LAST_TOKEN not in begun:
                    read_until(stream, LAST_TOKEN, begun=True)
                endings.append(1_000 * ending_s)
                pipes.append(1_000 * _pipe_end_s())
                starts.append(1_000 * _start_s(words, folder))
        finally:
            stream.close()
    figures = (
        median_figure("engine's death to the end of its stream, p50", "ms", endings, pipes, PIPE),
        _ranked_figure("engine's death to the end of its stream, p99", endings, pipes, 0.99),
        _ranked_figure("engine's death to the end of its stream, longest", endings, pipes, 1.0),
        median_figure("engine's death to the next first token", "ms", restarts, starts, "the engine's start alone"),
    )
    share = "share that took no longer"
    diagrams = (
        Diagram(f"engine's death to ending, ms: {share}", "ms", (ranked("ours", endings), ranked(PIPE, pipes))),
        Diagram(
            f"engine's death to the next first token, ms: {share}",
            "ms",
            (ranked("ours", restarts), ranked("the engine's start alone", starts)),
        ),
    )
    raw = {"ending_ms": endings, "pipe_ms": pipes, "restart_ms": restarts, "start_ms": starts}
    return Part("deaths", figures, diagrams, raw)


def _ranked_figure(name: str, values: Sequence[float], beside: Sequence[float], share: float) -> Figure:
    """Without a ratio: that of two extremes is chance."""
    return Figure(name, percentile(values, share), "ms", percentile(beside, share), PIPE, count=len(values))


def _open(port: int) -> socket.socket:
    sock = connect(port)
    post(sock, CHAT, BODY)
    return sock


def _engine(port: int) -> psutil.Process:
    pid = as_int(at(get(port, "/status"), "engine", "pid"))
    if pid is None:
        raise CannotMeasure("/status does not say which process the engine is")
    return psutil.Process(pid)


def _death(stream: socket.socket, engine: psutil.Process) -> tuple[float, float]:
    """When it was killed, and how long the ending took."""
    begun = time.perf_counter()
    engine.kill()
    ending = read_until(stream, END, begun=True)
    took_s = time.perf_counter() - begun
    if FAILED not in ending:
        raise Untrue(f"the engine's death is not told: {ending[-300:]!r}")
    return begun, took_s


def _pipe_end_s() -> float:
    """From a kill to the end of the killed process' stdout, with nothing between."""
    command = [sys.executable, "-I", "-S", "-c", WAITING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        begun = time.perf_counter()
        process.kill()
        process.stdout.read()
        return time.perf_counter() - begun


def _start_s(words: Sequence[str], folder: str) -> float:
    """From the start of the engine's command to its first word."""
    begun = time.perf_counter()
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=folder, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took_s = time.perf_counter() - begun
        process.kill()
    if not line:
        raise CannotMeasure("the engine's command alone does not start")
    return took_s
