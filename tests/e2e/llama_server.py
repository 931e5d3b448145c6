"""llama.cpp's server on a given port, as `llama-server` is run by users: `llama_server.py MODEL PORT SLOTS`.

It is the wheel's server, which has no program of its own. It imports nothing of this project.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any


def main() -> None:
    model, port, slots = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"smol"}
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_parallel, params.n_ctx = slots, 4096 * slots
    params.hostnames, params.port = ["127.0.0.1"], port
    params.cache_ram_mib = 256
    params.warmup = params.ui = False
    params.verbosity = 2
    server = xllamacpp.Server(params)
    sys.stderr.write(f"serving at {server.listening_address}\n")
    sys.stderr.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
