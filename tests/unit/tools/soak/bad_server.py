"""A chat server that is bad in one way, for tests of the soak: `bad_server.py FOLDER [MODE…]`, without a mode honest.

It imports nothing of this project. Says `ready: URL` and serves on loopback until it is ended. Behind it is an engine,
a process that answers each line with one: killed, it is dead; suspended, it hangs; a new one is started when it is
needed. It writes the ids of all processes that it starts into FOLDER/pids. Each fifth stream is the bad one.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

FOLDER, MODES = Path(sys.argv[1]), set(sys.argv[2:])
EVERY = 5
PACE_S = 0.005
LEAK_BYTES = 1 << 20
ENGINE = (
    "import os, sys, threading\nkept = []\nfor line in sys.stdin:\n    sys.stdout.write(line)\n    sys.stdout.flush()\n"
)
ENGINE_LEAKS = {
    "engine memory": "    kept.append(os.urandom(1 << 19))\n",
    "engine threads": "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n",
    "engine descriptors": "    kept.append(open(os.devnull, 'rb'))\n",
}
LASTING = "import threading; threading.Event().wait(300)"
NEVER = threading.Event()
KEPT: list[object] = []
LOCK = threading.Lock()
STATE = {"streams": 0, "running": 0}


def start(code: str, **how: int) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-S", "-c", code], text=True, encoding="utf-8", **how)  # type: ignore[call-overload] - pipes
    with (FOLDER / "pids").open("a", encoding="utf-8") as file:
        file.write(f"{process.pid}\n")
    return process


class Engine:
    """One line for one. A dead engine answers with nothing."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        code = ENGINE + "".join(line for mode, line in ENGINE_LEAKS.items() if mode in MODES)
        if "orphans" in MODES:  # the engine has a child that outlives it
            quiet = "stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL"
            child = f"subprocess.Popen([sys.executable, '-S', '-c', {LASTING!r}], {quiet}).pid"
            code = f"import subprocess, sys\nopen({str(FOLDER / 'pids')!r}, 'a').write(str({child}) + '\\n')\n" + code
        return start(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def token(self, process: subprocess.Popen[str]) -> bool:
        """Whether this life of it made one. Waits as long as the engine does."""
        with self.lock:
            if process is not self.process:
                return False
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write("token\n")
                process.stdin.flush()
                made = bool(process.stdout.readline())
            except OSError:
                made = False
            if not made:
                process.wait()
                for pipe in (process.stdin, process.stdout):
                    with contextlib.suppress(OSError):
                        pipe.close()
                self.process = self._start()
            return made


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        pass

    def page(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/status":
            queue = {"running": STATE["running"], "waiting": 0}
            self.page(200, {"engine": {"state": "ready", "pid": self.engine.process.pid}, "queue": queue})
        elif self.path == "/v1/models":
            self.page(200, {"data": [{"id": "bad", "max_model_len": 8192}]})
        else:
            self.page(404, {"error": {"message": "no such page"}})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            self.page(404, {"error": {"message": "no such API"}})
            return
        with LOCK:
            STATE["streams"] += 1
            STATE["running"] += 1
            number = STATE["streams"]
        with (FOLDER / "asked").open("a", encoding="utf-8") as file:
            file.write("stream\n")
        try:
            self.leak(number)
            self.stream(request["max_tokens"], due=number % EVERY == 0)
        except OSError:
            pass  # the client left
        finally:
            with LOCK:
                STATE["running"] -= "stuck" not in MODES

    def leak(self, number: int) -> None:
        if "memory" in MODES:
            KEPT.append(os.urandom(LEAK_BYTES))
        if "threads" in MODES:
            threading.Thread(target=NEVER.wait, daemon=True).start()
        if "descriptors" in MODES:
            KEPT.append(open(os.devnull, "rb"))  # noqa: SIM115, PTH123 - that is the leak
        if "processes" in MODES and number % EVERY == 0:
            KEPT.append(start(LASTING, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        if "dies" in MODES and number == 4 * EVERY:
            os._exit(3)

    def stream(self, limit: int, *, due: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        life = self.engine.process
        for number in range(min(limit, 40)):
            NEVER.wait(PACE_S)
            if not self.engine.token(life):
                self.died(number)
                return
            self.event({"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]})
        if due and "silent" in MODES:
            self.rfile.read(1)  # until the client leaves
        while due and "endless" in MODES:
            self.write(b": keep-alive\n")
            NEVER.wait(0.02)
        if due and "cut" in MODES:
            self.close_connection = True
            return
        if due and "echoes the key" in MODES:
            self.write(f"<key> {(self.headers['Authorization'] or '').removeprefix('Bearer ')}\n\n".encode())
        if due and "broken" in MODES:
            self.write(b"data: {not JSON\n\n")
        if not (due and "lies" in MODES):
            self.finish_with("length" if limit <= 40 and "hides limits" not in MODES else "stop", min(limit, 40))
        self.write(b"data: [DONE]\n\n")
        self.last_chunk()

    def died(self, made: int) -> None:
        if "hides deaths" in MODES:
            self.finish_with("stop", made)
            self.write(b"data: [DONE]\n\n")
        elif "cuts deaths" in MODES:
            self.close_connection = True
            return
        else:
            self.event({"error": {"message": "the engine died", "type": "server_error"}})
            self.finish_with("error", made)
            self.write(b"data: [DONE]\n\n")
        self.last_chunk()

    def finish_with(self, word: str, made: int) -> None:
        self.event({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": word}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": made}})

    def event(self, value: object) -> None:
        self.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    def write(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def last_chunk(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that left


def main() -> None:
    Handler.engine = Engine()
    server = Server(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"ready: http://127.0.0.1:{server.server_address[1]}/v1\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
