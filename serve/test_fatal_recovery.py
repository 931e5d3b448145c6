"""How the server ends an answer whose engine fails, on a real subprocess that speaks the pipe protocol.

    python -m unittest serve.test_fatal_recovery -v

Needs nothing beyond the runtime dependencies, and runs on Linux, macOS and Windows: the engine is an argument list
(`[python, script]`), never a shebang or a batch file.
"""

from __future__ import annotations

import http.client
import io
import json
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any, cast

from engine.api import Cancel, EngineRefused
from serve.server import (
    ByteTokenizer,
    ChatTemplate,
    EngineDied,
    EngineSilent,
    Limits,
    QueueWaitExpired,
    Service,
    StrataEngine,
    StructuredOutputError,
    died_note,
    make_handler,
    openai_error_chunk,
    serve,
)

DEADLINE_S = 20.0

FAKE = r"""
import os, sys
from pathlib import Path
state, mode = Path(sys.argv[-2]), sys.argv[-1]
first_life = not state.exists()
state.write_text("started", encoding="utf-8")
def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
log = open(str(state) + ".commands", "a", encoding="utf-8")
say("READY 4096 stop")
requests = 0
for line in sys.stdin:
    word = line.split()[0] if line.split() else ""
    log.write(word + "\n")
    log.flush()
    if word == "QUIT":
        break
    if word != "GEN":
        continue
    requests += 1
    if first_life and requests == 1:
        if mode == "fatal":
            say("ERR verify: timed out at layer 18; its GPU waits were released\nDONE 0 1 0 1 error")
            continue
        if mode == "batch":
            say("ERR verify batch: timed out at layer 18; its GPU waits were released\nDONE 0 1 0 1 error")
            continue
        if mode == "refusal":
            say("ERR a token id is outside the vocabulary")
            continue
        if mode == "exit":
            say("T 72")
            say("T 105")
            os._exit(7)
        if mode == "stall":
            say("T 72")
            continue
        if mode == "broken-json":
            say("T 123\nDONE 1 1 0 1 stop")
            continue
    say("T 90\nDONE 1 1 0 1 stop")
"""


class FatalRecovery(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.script = self.root / "engine.py"
        self.script.write_text(FAKE, encoding="utf-8")

    def engine(self, mode: str, silence_s: float = 300.0) -> StrataEngine:
        exe = [sys.executable, "-u", str(self.script)]
        engine = StrataEngine(exe, [str(self.root / "state"), mode], silence_s=silence_s)
        self.addCleanup(engine.close)
        return engine

    def service(self, engine: StrataEngine, limits: Limits | None = None) -> Service:
        template = ChatTemplate(Path(__file__).parent / "chat_template.jinja")
        return Service(engine, ByteTokenizer(), template, limits=limits)

    def run_request(self, svc: Service) -> list[tuple[str, Any]]:
        return list(svc.run([1], False, [], 8, {}, threading.Event()))

    def assert_dead(self, engine: StrataEngine) -> None:
        self.assertFalse(engine.alive(), "a fatal ERR must make the engine not alive before the next request")

    # --- Strata's raising API ------------------------------------------------------------------------

    def test_fatal_error_is_not_a_success_and_next_request_reloads(self) -> None:
        engine = self.engine("fatal")
        svc = self.service(engine)
        with self.assertRaises(EngineDied) as caught:
            self.run_request(svc)
        self.assertIn("timed out at layer 18", str(caught.exception))
        self.assert_dead(engine)
        self.assertIs(svc.engine, engine, "the failed request must not be retried")
        self.assertEqual(svc.history[-1]["finish"], "error")
        result = self.run_request(svc)
        self.assertTrue(svc.loaded())
        self.assertEqual(result[-1][0], "done")
        self.assertEqual(result[-1][1]["completion_tokens"], 1)
        self.assertEqual(svc.history[-1]["finish"], "stop")

    def test_batch_timeout_signature_ends_the_engine_too(self) -> None:
        engine = self.engine("batch")
        with self.assertRaises(EngineDied):
            list(engine.generate([1], 8, {}, threading.Event()))
        self.assert_dead(engine)

    def test_refusal_leaves_the_engine_alive(self) -> None:
        engine = self.engine("refusal")
        pid = engine.status().pid
        with self.assertRaises(ValueError) as caught:
            list(engine.generate([1], 8, {}, threading.Event()))
        self.assertIn("outside the vocabulary", str(caught.exception))
        self.assertTrue(engine.alive())
        self.assertEqual([t for t in engine.generate([1], 8, {}, threading.Event()) if t is not None], [90])
        self.assertEqual(engine.status().pid, pid)
        commands = (self.root / "state.commands").read_text(encoding="utf-8").split()
        self.assertEqual(commands, ["GEN", "GEN"], "no stale STOP")

    def test_closed_engine_refuses_without_touching_its_pipe(self) -> None:
        engine = self.engine("fatal")
        engine.close()
        with self.assertRaises(EngineDied):
            list(engine.generate([1], 8, {}, threading.Event()))
        self.assertFalse((self.root / "state.commands").read_text(encoding="utf-8").count("GEN"))

    def test_engine_that_exits_says_its_exit_code(self) -> None:
        svc = self.service(self.engine("exit"))
        with self.assertRaises(EngineDied) as caught:
            self.run_request(svc)
        self.assertIn("7", str(caught.exception))
        self.assertEqual(self.run_request(svc)[-1][1]["completion_tokens"], 1)

    def test_engine_that_stalls_is_ended_as_silent(self) -> None:
        engine = self.engine("stall", silence_s=0.3)
        svc = self.service(engine)
        with self.assertRaises(EngineSilent):
            self.run_request(svc)
        self.assert_dead(engine)
        self.assertEqual(self.run_request(svc)[-1][1]["completion_tokens"], 1)

    # --- over HTTP -----------------------------------------------------------------------------------

    def http(self, svc: Service) -> int:
        server = serve(svc, port=0)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return int(server.server_address[1])

    def get(self, port: int, path: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        self.addCleanup(connection.close)
        connection.request("GET", path)
        return cast("dict[str, Any]", json.loads(connection.getresponse().read()))

    def post(self, port: int, **fields: Any) -> tuple[int, str]:
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 8,
            "chat_template_kwargs": {"enable_thinking": False},
            **fields,
        }
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8")

    def assert_ending(self, text: str, type_: str, code: str) -> dict[str, Any]:
        """The stream ends with the error object, the closing chunk, [DONE]: nothing more, nothing else."""
        self.assertTrue(text.endswith("data: [DONE]\n\n"), text)
        events = [part.removeprefix("data: ") for part in text.strip().split("\n\n")]
        error = json.loads(events[-3])
        closing = json.loads(events[-2])
        self.assertEqual(set(error), {"error"})
        self.assertEqual((error["error"]["type"], error["error"]["code"]), (type_, code))
        self.assertTrue(error["error"]["message"])
        self.assertEqual(len(closing["choices"]), 1)
        self.assertEqual(closing["choices"][0]["delta"], {})
        self.assertIn('"finish_reason": "error"', events[-2])
        self.assertEqual(text.count('"finish_reason": "error"'), 1)
        self.assertEqual(text.count("[DONE]"), 1)
        for earlier in events[:-3]:
            self.assertIsNone(json.loads(earlier)["choices"][0]["finish_reason"])
            self.assertEqual(json.loads(earlier)["id"], closing["id"])
        return cast("dict[str, Any]", error["error"])

    def test_stream_ends_with_error_closing_chunk_done_and_next_request_works(self) -> None:
        svc = self.service(self.engine("fatal"))
        port = self.http(svc)
        status, text = self.post(port, stream=True)
        self.assertEqual(status, 200)
        error = self.assert_ending(text, "server_error", "engine_died")
        self.assertIn("timed out at layer 18", error["message"])
        self.assertFalse(self.get(port, "/health")["loaded"])
        status, text = self.post(port)
        self.assertEqual((status, json.loads(text)["usage"]["completion_tokens"]), (200, 1))
        self.assertEqual(json.loads(text)["choices"][0]["finish_reason"], "stop")
        self.assertTrue(self.get(port, "/health")["loaded"])

    def test_engine_that_exits_ends_the_stream_with_what_came_before(self) -> None:
        port = self.http(self.service(self.engine("exit")))
        _, text = self.post(port, stream=True)
        self.assert_ending(text, "server_error", "engine_died")
        self.assertIn('"content": "H"', text)
        self.assertIn('"content": "i"', text)

    def test_engine_that_stalls_ends_the_stream(self) -> None:
        port = self.http(self.service(self.engine("stall", silence_s=0.3)))
        _, text = self.post(port, stream=True)
        error = self.assert_ending(text, "server_error", "engine_died")
        self.assertIn("0.3 s", error["message"])

    def test_refusal_is_told_in_the_stream_and_as_400_without_one(self) -> None:
        port = self.http(self.service(self.engine("refusal")))
        _, text = self.post(port, stream=True)
        self.assert_ending(text, "server_error", "engine_refused")
        self.assertTrue(self.get(port, "/health")["loaded"])
        other = self.http(self.service(self.engine_in("second", "refusal")))
        status, text = self.post(other)
        self.assertEqual((status, json.loads(text)["error"]["type"]), (400, "invalid_request_error"))

    def engine_in(self, name: str, mode: str) -> StrataEngine:
        engine = StrataEngine([sys.executable, "-u", str(self.script)], [str(self.root / name), mode])
        self.addCleanup(engine.close)
        return engine

    def test_structured_answer_that_is_not_json_ends_the_stream(self) -> None:
        port = self.http(self.service(self.engine("broken-json")))
        _, text = self.post(port, stream=True, response_format={"type": "json_object"})
        self.assert_ending(text, "structured_output_failed", "structured_output_failed")
        self.assertIn('"content": "{"', text)

    def test_queue_wait_that_expires_ends_the_stream(self) -> None:
        limits = Limits(queue_wait_s=0.2, queue_grace_s=0.0)
        engine = self.engine("stall")
        svc = self.service(engine, limits)
        port = self.http(svc)
        cancel = Cancel()
        first = svc.run([1], False, [], 8, {}, cancel)
        self.assertEqual(next(first)[0], "event")  # it holds the only slot
        _, text = self.post(port, stream=True)
        self.assert_ending(text, "rate_limit_error", "queue_wait_timeout")
        first.close()  # type: ignore[attr-defined]  # a generator behind its Iterator type

    def test_a_port_that_is_served_is_not_taken_by_a_second_server(self) -> None:
        svc = self.service(self.engine("ok"))
        port = self.http(svc)
        with self.assertRaises(OSError):
            serve(svc, port=port)
        self.assertIn("loaded", self.get(port, "/health"))

    # --- the handler's own names ---------------------------------------------------------------------

    def test_sse_error_writes_the_exact_ending_for_each_exception(self) -> None:
        svc = self.service(self.engine("ok"))
        expected = {
            EngineDied("the engine stopped unexpectedly"): ("server_error", "engine_died"),
            QueueWaitExpired("the request waited 300 s"): ("rate_limit_error", "queue_wait_timeout"),
            StructuredOutputError("not JSON"): ("structured_output_failed", "structured_output_failed"),
            ValueError("bad token"): ("server_error", "engine_error"),
            EngineRefused("prompt refused"): ("server_error", "engine_refused"),
        }
        for error, (type_, code) in expected.items():
            with self.subTest(type(error).__name__):
                text = self.sse_error(svc, error)
                told = self.assert_ending(text, type_, code)
                self.assertIn(str(error), told["message"])
                self.assertEqual(len(text.strip().split("\n\n")), 3)
        given = {"error": {"message": "as given", "type": "server_error", "param": None, "code": "mine"}}
        self.assert_ending(self.sse_error(svc, given), "server_error", "mine")

    def sse_error(self, svc: Service, error: object) -> str:
        handler_class = make_handler(svc)
        handler = handler_class.__new__(handler_class)
        handler.wfile = io.BytesIO()
        handler._sse_error(cast("Any", error), {"model": "x"})  # pyright: ignore[reportPrivateUsage]  # a bare handler
        return handler.wfile.getvalue().decode("utf-8")

    def test_closing_chunk_has_no_delta_and_says_error(self) -> None:
        svc = self.service(self.engine("ok"))
        made = openai_error_chunk(svc, {"model": "x"})
        self.assertEqual(made["object"], "chat.completion.chunk")
        self.assertEqual(made["model"], svc.model)
        self.assertEqual(made["choices"], [{"index": 0, "delta": {}, "finish_reason": "error"}])
        self.assertLessEqual(abs(made["created"] - time.time()), 60)

    def test_died_note_says_that_the_next_request_restarts_it(self) -> None:
        self.assertEqual(died_note(EngineDied("exit code 1")), "exit code 1; the next request restarts it")
        self.assertEqual(died_note(EngineDied("x; the next request restarts it")), "x; the next request restarts it")


if __name__ == "__main__":
    unittest.main()
