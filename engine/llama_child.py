"""The child process of the `llama` engine: llama.cpp's own HTTP server, from the wheel `xllamacpp`, on a free port.

It writes one line to stdout when the server answers, `LISTENING http://127.0.0.1:PORT context=N` (N: tokens for each
slot), everything else goes to stderr, and it ends when its stdin says anything or ends: a child whose parent is gone
does not stay. It is run by its path and imports nothing of this project, so it works from any folder.

Source: xllamacpp 2026.10.11549 (llama.cpp build 11549), seen on Linux on 2026-11-30. `Server(params)` blocks with the
interpreter's lock held until the model is loaded; port 0 hangs; a port that is taken, a file that is missing and a file
that is no GGUF all raise the same RuntimeError, and the reason is on stderr. `n_ctx` is shared by the slots (3000 over
3 slots gives 1024 each: rounded up to a multiple of 256); `/health` needs no key, everything else does.
"""

from __future__ import annotations

import argparse
import http.client
import importlib
import json
import os
import socket
import sys
from typing import Protocol, cast

KEY_VARIABLE = "STRATA_LLAMA_KEY"
"""The environment variable that holds the server's API key: arguments are readable for every user of the machine."""

CACHE_MIB = 1024
"""Memory for the prompts of former requests. llama.cpp's own default is 8 GiB, too much for a small machine."""

WARNINGS = 2
"""llama.cpp's log level: below it, every request writes lines, which would hide the last words before a death."""

EXIT_NO_WHEEL = 4
EXIT_NO_SERVER = 5
PORT_TRIES = 5


class _Server(Protocol):
    listening_address: str


class _Model(Protocol):
    path: str


class _Threads(Protocol):
    n_threads: int


class _Params(Protocol):
    """The fields of llama.cpp's parameters that are set here."""

    model: _Model
    model_alias: set[str]
    cpuparams: _Threads
    cpuparams_batch: _Threads
    n_parallel: int
    n_ctx: int
    cache_ram_mib: int
    hostnames: list[str]
    port: int
    api_keys: list[str]
    use_jinja: bool
    warmup: bool
    ui: bool
    endpoint_metrics: bool
    verbosity: int


class _Wheel(Protocol):
    """The part of `xllamacpp` that is used; the wheel has no types."""

    def CommonParams(self) -> _Params: ...
    def Server(self, params: _Params) -> _Server: ...


def main() -> int:
    """Serve until stdin ends. Blocks."""
    arguments = _arguments()
    line_out = os.dup(1)
    os.dup2(2, 1)  # llama.cpp writes to stdout too; ours must hold nothing but our line
    try:
        server = _start(arguments, os.environ.get(KEY_VARIABLE, ""))
    except ImportError as error:
        sys.stderr.write(f"xllamacpp cannot be imported ({error}); install strata-serve[llama]\n")
        return EXIT_NO_WHEEL
    if server is None:
        return EXIT_NO_SERVER
    context = _context(server.listening_address, os.environ.get(KEY_VARIABLE, ""))
    os.write(line_out, f"LISTENING {server.listening_address} context={context}\n".encode())
    sys.stdin.buffer.readline()
    os._exit(0)  # llama.cpp's threads have nothing to save, and a running answer must not delay the end


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llama_child")
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens for each slot")
    parser.add_argument("--threads", type=int, required=True, help="for computing on the CPU")
    return parser.parse_args()


def _start(arguments: argparse.Namespace, key: str) -> _Server | None:
    """A server on a free port; None (and the reason on stderr) if it cannot be had. Raises: ImportError."""
    xllamacpp = cast("_Wheel", importlib.import_module("xllamacpp"))
    for _ in range(PORT_TRIES):
        params = xllamacpp.CommonParams()
        params.model.path = arguments.model
        params.model_alias = {arguments.alias}
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
        params.n_parallel = arguments.parallel
        params.n_ctx = arguments.context * arguments.parallel
        params.cache_ram_mib = CACHE_MIB
        params.hostnames = ["127.0.0.1"]
        params.port = _free_port()
        params.api_keys = [key] if key else []
        params.use_jinja = True
        params.warmup = False  # the first request does it
        params.ui = False
        params.endpoint_metrics = False
        params.verbosity = WARNINGS
        try:
            return xllamacpp.Server(params)
        except RuntimeError as error:
            if _is_free(params.port):
                sys.stderr.write(f"llama.cpp did not start: {error}\n")
                return None
    sys.stderr.write(f"llama.cpp found its port taken {PORT_TRIES} times\n")
    return None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _context(address: str, key: str) -> int:
    """A slot's context as the server tells it, 0 if it does not: the answer shows, too, that it serves."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    try:
        connection.request("GET", "/props", headers={"Authorization": f"Bearer {key}"})
        value = json.loads(connection.getresponse().read())
        return int(value["default_generation_settings"]["n_ctx"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"llama.cpp does not tell its context: {error}\n")
        return 0
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
