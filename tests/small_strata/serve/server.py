"""A small server in Strata's names: one engine behind a pipe, chat completions only, and streams that end by hand.

    python -m serve.server --engine strata --config strata.json --port 8095

Written for the tests of the patch; standard library only.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

IM_END = 257
BEAT_S = 1.0


class EngineDied(RuntimeError):
    """The engine ended in the middle of a request."""


class QueueWaitExpired(RuntimeError):
    """The request waited too long for its turn."""


class StructuredOutputError(RuntimeError):
    """The answer is not what the request asked for."""


class StrataEngine:
    """The engine's process, and its pipe."""

    def __init__(self, exe: str, args: list[str], cwd: str | None = None, silence_s: float = 300.0) -> None:
        self.spawn = [exe, "--serve", *args]
        self.cwd = cwd
        self.silence_s = silence_s
        self.start()

    def start(self) -> None:
        self.proc = subprocess.Popen(
            self.spawn,
            cwd=self.cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._pump, args=(self.proc, self.lines), daemon=True).start()
        for line in iter(self.lines.get, ""):
            if line.startswith("READY"):
                self.max_context = int(line.split()[1])
                return
        raise RuntimeError("the engine ended before it was ready")

    @staticmethod
    def _pump(proc: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
        assert proc.stdout is not None
        for line in proc.stdout:
            lines.put(line)
        lines.put("")
        proc.stdout.close()

    def alive(self) -> bool:
        return self.proc.poll() is None

    def close(self) -> None:
        self.proc.kill()
        self.proc.wait()
        if self.proc.stdin is not None:
            self.proc.stdin.close()

    def died(self, why: str) -> EngineDied:
        self.close()
        return EngineDied(f"the engine died ({why}, exit code {self.proc.returncode})")

    def generate(self, ids: list[int], max_new: int, cancel: threading.Event) -> Iterator[int | None]:
        """Token ids; None as a heartbeat."""
        assert self.proc.stdin is not None
        self.finish = "length"
        self.proc.stdin.write(f"GEN {max_new} {','.join(map(str, ids))}\n")
        self.proc.stdin.flush()
        since = time.monotonic()
        while True:
            try:
                line = self.lines.get(timeout=BEAT_S)
            except queue.Empty:
                if time.monotonic() - since > self.silence_s:
                    raise self.died(f"silent for {self.silence_s} s") from None
                yield None
                continue
            since = time.monotonic()
            if not line:
                self.proc.wait()
                raise self.died("its output ended")
            word, *rest = line.split()
            if word == "T" and not cancel.is_set():
                yield int(rest[0])
            elif word == "ERR" and "timed out at layer" in line:
                raise self.died(line.strip())
            elif word == "ERR":
                raise ValueError(line[4:].strip())
            elif word == "DONE":
                self.finish = rest[4]
                return


class ByteTokenizer:
    """One id for each byte."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class ChatTemplate:
    """The prompt of a conversation."""

    def __init__(self, path: Path) -> None:
        self.source = path

    def render(self, messages: list[dict[str, Any]]) -> str:
        return "".join(f"{one['role']}: {one['content']}\n" for one in messages) + "assistant: "


class Service:
    """One engine, one request at a time."""

    def __init__(
        self,
        engine: StrataEngine,
        tok: ByteTokenizer,
        template: ChatTemplate,
        model_name: str = "small",
        queue_wait_s: float = 300.0,
    ) -> None:
        self.engine, self.tok, self.template, self.model = engine, tok, template, model_name
        self.queue_wait_s = queue_wait_s
        self.turn = threading.Lock()

    def loaded(self) -> bool:
        return self.engine.alive()

    def prepare(self, req: dict[str, Any]) -> tuple[list[int], int]:
        """The prompt and how many tokens may follow."""
        ids = self.tok.encode(self.template.render(req["messages"]))
        room = self.engine.max_context - len(ids)
        asked = req.get("max_tokens")
        if room <= 0 or (asked or 0) > room:
            raise ValueError(f"the prompt ({len(ids)} tokens) does not fit into {self.engine.max_context}")
        return ids, asked or room

    def run(self, ids: list[int], max_new: int, cancel: threading.Event) -> Iterator[tuple[str, Any]]:
        """("event", text), ("ping", None), and last ("done", …)."""
        if not self.turn.acquire(timeout=self.queue_wait_s):
            raise QueueWaitExpired(f"the request waited {self.queue_wait_s} s")
        count, held = 0, b""
        try:
            if not self.engine.alive():
                self.engine.start()
            for token in self.engine.generate(ids, max_new, cancel):
                if token is None:
                    yield "ping", None
                    continue
                count += 1
                held += bytes([token]) if token < 256 else b""
                try:
                    text, held = held.decode(), b""
                except UnicodeDecodeError:
                    continue
                if text:
                    yield "event", text
        finally:
            self.turn.release()
        yield "done", {"finish": self.engine.finish, "prompt_tokens": len(ids), "completion_tokens": count}


def openai_chunks(
    svc: Service, req: dict[str, Any], ids: list[int], max_new: int, cancel: threading.Event
) -> Iterator[dict[str, Any] | None]:
    """One answer as chat chunks; None as a heartbeat."""
    cid, created = "chatcmpl-" + uuid.uuid4().hex[:24], int(time.time())

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {
            "id": cid,
            "object": "chat.completion.chunk",
            "created": created,
            "model": svc.model,
            "choices": [choice],
        }

    yield chunk({"role": "assistant", "content": ""})
    whole = ""
    for kind, x in svc.run(ids, max_new, cancel):
        if kind == "ping":
            yield None
        elif kind == "event":
            whole += x
            yield chunk({"content": x})
        else:
            if req.get("response_format", {}).get("type") == "json_object" and x["finish"] == "stop":
                check_json(whole)
            total = x["prompt_tokens"] + x["completion_tokens"]
            usage = {key: x[key] for key in ("prompt_tokens", "completion_tokens")}
            yield {**chunk({}, x["finish"]), "usage": {**usage, "total_tokens": total}}


def check_json(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        raise StructuredOutputError(f"the answer is not JSON: {text[:40]!r}") from None


def openai_collect(chunks: Iterator[dict[str, Any] | None]) -> dict[str, Any]:
    """The answer that was not streamed."""
    told = [chunk for chunk in chunks if chunk is not None]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in told)
    last = told[-1]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": last["choices"][0]["finish_reason"],
    }
    return {**last, "object": "chat.completion", "choices": [choice]}


# ------------------------------------------------------------------------------------------------ HTTP
class Answers(BaseHTTPRequestHandler):
    """What every handler needs."""

    protocol_version = "HTTP/1.0"  # a stream ends with the connection

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass

    def _json(self, code: int, obj: dict[str, Any]) -> None:
        body = json.dumps(obj).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _sse(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()


def make_handler(svc: Service) -> type[BaseHTTPRequestHandler]:
    class Handler(Answers):
        def do_GET(self) -> None:
            if self.path == "/health":
                self._json(200, {"status": "ok", "loaded": svc.loaded(), "max_context": svc.engine.max_context})
            else:
                self._json(404, {"error": {"message": "not found"}})

        def do_POST(self) -> None:
            try:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path != "/v1/chat/completions":
                    self._json(404, {"error": {"message": "not found"}})
                    return
                req = json.loads(body)
                if not isinstance(req.get("messages"), list):
                    raise ValueError("messages: send a list")
                self._openai(req)
            except ValueError as e:
                self._json(400, {"error": {"type": "invalid_request_error", "message": str(e)}})
            except StructuredOutputError as e:
                self._json(502, {"error": {"type": "structured_output_failed", "message": str(e)}})
            except (EngineDied, QueueWaitExpired) as e:  # nothing was sent yet
                self._json(503, {"error": {"type": "server_error", "message": str(e)}})

        def _openai(self, req: dict[str, Any]) -> None:
            ids, max_new = svc.prepare(req)
            cancel = threading.Event()
            chunks = openai_chunks(svc, req, ids, max_new, cancel)
            if not req.get("stream"):
                self._json(200, openai_collect(chunks))
                return
            self._sse()
            try:
                for c in chunks:
                    if c is None:
                        self.wfile.write(b": keep-alive\n\n")
                    else:
                        self.wfile.write(b"data: " + json.dumps(c, ensure_ascii=False).encode() + b"\n\n")
                    self.wfile.flush()
                self.wfile.write(b"data: [DONE]\n\n")
            except OSError:
                cancel.set()  # the client is gone
            except EngineDied as e:  # in mid-stream
                err = {"error": {"type": "server_error", "message": f"{e}; the next request restarts it"}}
                self.wfile.write(b"data: " + json.dumps(err).encode() + b"\n\ndata: [DONE]\n\n")
            except QueueWaitExpired as e:
                err = {"error": {"type": "rate_limit_error", "code": "queue_wait_timeout", "message": str(e)}}
                self.wfile.write(b"data: " + json.dumps(err).encode() + b"\n\ndata: [DONE]\n\n")
            except StructuredOutputError as e:
                code = "structured_output_failed"
                err = {"error": {"type": code, "code": code, "message": str(e)}}
                self.wfile.write(b"data: " + json.dumps(err).encode() + b"\n\ndata: [DONE]\n\n")
            except ValueError as e:  # the engine's ERR: the headers are out
                err = {"error": {"type": "server_error", "message": str(e)}}
                self.wfile.write(b"data: " + json.dumps(err).encode() + b"\n\ndata: [DONE]\n\n")

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True


def serve(svc: Service, host: str = "127.0.0.1", port: int = 8095) -> Server:
    httpd = Server((host, port), make_handler(svc))
    threading.Thread(target=httpd.serve_forever, args=(0.05,), daemon=True).start()
    return httpd


def main() -> int:
    ap = argparse.ArgumentParser()
    ap.add_argument("--engine", choices=["strata"], default="strata")
    ap.add_argument("--config", required=True)
    ap.add_argument("--port", type=int, default=8095)
    a = ap.parse_args()
    cfg = json.loads(Path(a.config).read_text(encoding="utf-8-sig"))
    engine = StrataEngine(cfg["exe"], cfg["args"], cfg.get("cwd"), float(cfg.get("engine_silence_s", 300)))
    wait_s = float(cfg.get("queue_wait_s", 300))
    svc = Service(engine, ByteTokenizer(), ChatTemplate(Path("chat_template.jinja")), queue_wait_s=wait_s)
    serve(svc, port=a.port)
    sys.stdout.write(f"ready: http://127.0.0.1:{a.port}/v1\n")
    sys.stdout.flush()
    try:
        threading.Event().wait()
    finally:
        engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
