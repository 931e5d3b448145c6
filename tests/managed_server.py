"""A server for tests of managed upstreams: a program that does what the text of a request says.

Run by its path: `managed_server.py PORT FOLDER [MODE…]`. It imports nothing of this project. In the folder it appends
its process id to `lives` and those of its children to `grandchildren`, one a line, and finds its cues, which are files.
Modes: `loading` (503 everywhere until the cue `go`), `like-llama` (503 on /health only until then), `no-health`,
`no-models`, `litellm`, `slots`, `wants-key`, `exits`, `exits once`, `grandchild`, `silent-output`, `deaf`.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

PORT, FOLDER, MODES = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
NEVER, CLOSING, CLOSED = threading.Event(), threading.Event(), threading.Event()
SLOTS = 3
REFUSALS = {"refuse": "a field is wrong", "too long": "This model's maximum context length is 8 tokens"}


def note(name: str, text: object) -> None:
    with (FOLDER / name).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def first_time(name: str) -> bool:
    """Whether this is the first call with this name in all lives."""
    try:
        (FOLDER / f"once-{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def cued(name: str) -> bool:
    return (FOLDER / name).exists()


def say(text: str, fd: int) -> None:
    os.write(fd, f"{text}\n".encode())


def die(code: int, last_words: str) -> NoReturn:
    say(last_words, 2)
    os._exit(code)


class Handler(http.server.BaseHTTPRequestHandler):
    """The pages, and chat completions as event streams that end with the connection."""

    @classmethod
    def serve(cls, connection: socket.socket, address: tuple[str, int]) -> None:
        with connection, contextlib.suppress(OSError):  # a client may leave
            cls(connection, address, None)  # type: ignore[arg-type] - it never looks at its server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        pass

    def do_GET(self) -> None:
        note("asked", self.path)
        loading = ("loading" in MODES or ("like-llama" in MODES and self.path == "/health")) and not cued("go")
        if loading:
            self.answer(503, {"error": {"message": "Loading model"}})
        elif self.path == "/health" and "no-health" not in MODES:
            self.answer(200, {"status": "ok"})
        elif self.path == "/props" and "slots" in MODES:
            self.answer(200, {"total_slots": SLOTS})
        elif self.path == "/v1/models" and "wants-key" in MODES and self.headers["Authorization"] != "Bearer k":
            self.answer(401, {"error": {"message": "wrong key"}})
        elif self.path == "/v1/models" and "no-models" not in MODES:
            owner = "openai" if "litellm" in MODES else "llamacpp" if "like-llama" in MODES else "tests"
            self.answer(200, {"data": [{"id": "tiny", "owned_by": owner, "max_model_len": 4096}]})
        else:
            self.answer(404, {"error": {"message": "no such page"}})

    def answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = request["messages"][-1]["content"]
        note("asked", text)
        if text in REFUSALS:
            self.answer(400, {"error": {"message": REFUSALS[text], "type": "invalid_request_error"}})
            return
        if text == "stall first":
            NEVER.wait()
        if text == "die first always" or (text == "die first" and first_time("die")):
            die(5, "no answer at all")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.act(text)

    def act(self, text: str) -> None:
        self.piece(os.environ.get("SHOWN", "-") if text == "environment" else "He")
        if text == "exit":
            say("the model says goodbye", 1)
            die(3, "the GPU is gone")
        if text == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "stall" or (text == "stall once" and first_time("stall")):
            NEVER.wait()
        if text == "close port" and first_time("close"):
            CLOSING.set()
            CLOSED.wait()
        while text == "endless":
            self.piece("x")
            NEVER.wait(0.01)
        if text == "broken":
            self.wfile.write(b"data: {malformed\n\n")
        if text in ("cut", "broken"):
            return
        self.piece(self.headers.get("Authorization", "no key") if text == "key" else "llo")
        end = "length" if text == "limit" else "stop"
        self.event({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": end}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 2}})
        self.wfile.write(b"data: [DONE]\n\n")

    def piece(self, text: str) -> None:
        self.event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})

    def event(self, value: object) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())


def child() -> None:
    """A child that lives as long as it is let, and keeps nothing of ours open."""
    nowhere = subprocess.DEVNULL
    code = "import threading; threading.Event().wait(300)"
    started = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=nowhere, stdout=nowhere, stderr=nowhere)
    note("grandchildren", started.pid)


def main() -> None:
    note("environment", json.dumps(sorted(os.environ)))
    note("stdin", repr(sys.stdin.read()))
    if "grandchild" in MODES:
        child()
    note("lives", os.getpid())
    if "exits" in MODES or ("exits once" in MODES and first_time("exit")):
        die(7, "the model is damaged")
    if "deaf" in MODES:
        NEVER.wait()
    if "silent-output" in MODES:
        for fd in (1, 2):
            os.close(fd)
    serve()
    NEVER.wait()


def serve() -> None:
    try:
        listener = socket.create_server(("127.0.0.1", PORT))
    except OSError as error:
        die(1, f"cannot listen: {error.strerror}")
    with listener:
        listener.settimeout(0.05)
        while not CLOSING.is_set():
            with contextlib.suppress(TimeoutError):
                connection, address = listener.accept()
                connection.settimeout(None)
                threading.Thread(target=Handler.serve, args=(connection, address), daemon=True).start()
    CLOSED.set()


if __name__ == "__main__":
    main()
