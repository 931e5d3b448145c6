"""What our server adds until the first token: the same requests to a scripted upstream, through us and directly, in
turns.
"""

from __future__ import annotations

import shlex
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from tools.bench.figures import CannotMeasure, Diagram, Figure, Part, Untrue, ranked, ratio_of
from tools.bench.server import ACCEPTED, connect, read_to_end
from tools.gateway_servers import CannotStart, Choice, start, upstream
from tools.gateway_wire import MARK, Wanted, request_bytes

WANTED = Wanted(2, 0.0)
WARM_UP = 5


def measure(pairs: int, command: tuple[str, ...], track: Callable[[range], Iterable[int]]) -> Part:
    """So many pairs of requests. Raises: CannotMeasure, OSError."""
    direct: list[float] = []
    ours: list[float] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        try:
            up = stack.enter_context(upstream(Path(folder)))
            server = start("ours", up, Choice(ours=shlex.join(command)), Path(folder), stack)
        except CannotStart as error:
            raise CannotMeasure(str(error)) from None
        for _ in range(WARM_UP):
            _first_ms(up.port)
            _first_ms(server.port)
        for number in track(range(pairs)):
            # whoever comes second in a pair has it a little easier: take turns
            for port, made in ((up.port, direct), (server.port, ours))[:: 1 if number % 2 else -1]:
                made.append(_first_ms(port))
    added = [through - alone for through, alone in zip(ours, direct, strict=True)]
    against = "the upstream alone"
    figures = (
        Figure(
            "request to first token",
            statistics.median(ours),
            "ms",
            statistics.median(direct),
            against,
            ratio_of(ours, direct),
            pairs,
        ),
        Figure("request to first token, added by us", statistics.median(added), "ms", count=pairs),
    )
    curves = (ranked("through us", ours), ranked(against, direct))
    diagram = Diagram("request to first token, ms: share that took no longer", "ms", curves)
    return Part("first-token", figures, (diagram,), {"ours_ms": ours, "direct_ms": direct})


def _first_ms(port: int) -> float:
    with connect(port) as sock:
        begun = time.perf_counter()
        sock.sendall(request_bytes(port, WANTED))
        data = b""
        while MARK not in data:
            part = sock.recv(65_536)
            if not part:
                kind = Untrue if data.startswith(ACCEPTED) else CannotMeasure
                raise kind(f"a stream ended before its first token: {data[-200:]!r}")
            data += part
        took_s = time.perf_counter() - begun
        if not data.endswith(b"0\r\n\r\n"):
            read_to_end(sock)
    return 1_000 * took_s
