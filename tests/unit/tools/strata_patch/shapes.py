"""Servers with a chat stream that ends by hand, in the shapes that people write, and the same after the patch.

Written after the public description of the shape; nothing of it is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

ADDED_CHUNK = '''

def openai_error_chunk(svc, req):
    """The closing chunk of a chat stream that failed: finish_reason "error" and no delta."""
    return {"id": "chatcmpl-" + uuid.uuid4().hex[:24], "object": "chat.completion.chunk",
            "created": int(time.time()), "model": svc.model,
            "choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}
'''

ADDED_METHODS = '''
        def _sse_chunks(self, chunks):
            """The same chunks; the closing chunk of `_sse_error` has the id, created and model of the last one."""
            self.sse_chunk = None

            def passed_on():
                for chunk in chunks:
                    if isinstance(chunk, dict):
                        self.sse_chunk = chunk
                    yield chunk

            return passed_on()

        def _sse_error(self, err, req):
            """End a chat stream that failed: the error object, the closing chunk (finish_reason "error"), [DONE]."""
            error = err.get("error", err) if isinstance(err, dict) else err
            last = {**openai_error_chunk(svc, req), "error": error}
            sent = getattr(self, "sse_chunk", None) or {}
            last.update((key, sent[key]) for key in ("id", "created", "model") if key in sent)
            text = "".join("data: " + json.dumps(part) + "\\n\\n" for part in (err, last))
            self.wfile.write(text.encode() + b"data: [DONE]\\n\\n")
            self.wfile.flush()
'''

LOOP, WATCHED = "for c in chunks:", "for c in self._sse_chunks(chunks):"

SERVER = '''"""A server.\t"""
import json, time
import uuid
from http.server import BaseHTTPRequestHandler

DONE = b"data: [DONE]\\n\\n"


def openai_chunks(svc, req, ids):
    yield   {{"id": "x", "model": svc.model}}   # odd   spacing stays
{chunk}

# ---------------------------------------------------------------- HTTP
def make_handler(svc):
    class Handler(BaseHTTPRequestHandler):
        FRAME = "data: %s\\n\\n"

        def _json(self, code, obj):
            body = json.dumps(obj).encode()
            self.send_response(code)
            self.wfile.write(body)

        def _sse(self):
            self.send_response(200)
            self.end_headers()
{methods}
        def _frame(self, text):
            return ("data: " + text + "\\n\\n").encode()

        def _put(self, obj):
            """One event."""
            self.wfile.write(self._frame(json.dumps(obj)))

        def _finish(self, obj):
            try:
                self._put(obj)
                self.wfile.write(DONE)
            except OSError:
                pass

        def _openai(self, req):
            chunks = openai_chunks(svc, req, [1])
            send = lambda obj: self.wfile.write(b"data: " + json.dumps(obj).encode() + b"\\n\\n")

            def over():
                self.wfile.write(DONE)
            self._sse()
            # now the answer   \n            try:
                {loop}
                    send(c)
                self.wfile.write(DONE)
            except OSError:
                chunks.close()          # the client is gone
{excepts}
        def _anthropic(self, req):
            try:
                pass
            except EngineDied as e:
                err = {{"type": "error"}}
                self.wfile.write(b"event: error\\ndata: " + json.dumps(err).encode() + b"\\n\\n")
    return Handler
'''


@dataclass(frozen=True)
class Shape:
    """`before` and `after`: the `except` clauses, indented as in the file."""

    name: str
    before: str
    after: str

    @property
    def source(self) -> str:
        return SERVER.format(chunk="", methods="", loop=LOOP, excepts=self.before)

    @property
    def patched(self) -> str:
        return SERVER.format(chunk=ADDED_CHUNK, methods=ADDED_METHODS, loop=WATCHED, excepts=self.after)


def excepts(*clauses: str) -> str:
    """The clauses at the depth of the `try`."""
    return "".join(
        "            " + line + "\n" if line else "\n" for clause in clauses for line in clause.strip("\n").split("\n")
    )


DIED = """
except EngineDied as e:                  # in mid-stream
    err = {"error": {"type": "server_error",   "message": f"{e}; the next request restarts it"}}
    self.wfile.write(b"data: " + json.dumps(err).encode() + b"\\n\\ndata: [DONE]\\n\\n")   # and over
"""
DIED_AFTER = """
except EngineDied as e:                  # in mid-stream
    err = {"error": {"type": "server_error",   "message": f"{e}; the next request restarts it"}}
    self._sse_error(err, req)   # and over
"""
NOTED = """
except StructuredOutputError as e:
    err = {"error": {"type": "structured_output_failed", "message": str(e)}}
    self._note(error=err["error"])
    self.wfile.write(b"data: " + json.dumps(err).encode() + b"\\n\\ndata: [DONE]\\n\\n")
"""
NOTED_AFTER = NOTED.replace(
    'self.wfile.write(b"data: " + json.dumps(err).encode() + b"\\n\\ndata: [DONE]\\n\\n")', "self._sse_error(err, req)"
)
ERR = """
except ValueError as e:
    err = {"error": {"type": "server_error",
                     "message": str(e)}}   # the headers are out
    self.wfile.write(b"data: " + json.dumps(err, ensure_ascii=False).encode("utf-8")
                     + b"\\n\\ndata: [DONE]\\n\\n")
"""
ERR_AFTER = """
except ValueError as e:
    err = {"error": {"type": "server_error",
                     "message": str(e)}}   # the headers are out
    self._sse_error(err, req)
"""
WAIT = """
except QueueWaitExpired as e:
    self.wfile.write(f"data: {json.dumps({'error': {'message': str(e)}})}\\n\\n".encode())
    self.wfile.write(b"data: [DONE]\\n\\n")
    self.wfile.flush()
"""
WAIT_AFTER = """
except QueueWaitExpired as e:
    self._sse_error({'error': {'message': str(e)}}, req)
    self.wfile.flush()
"""


def _one(name: str, body: str, after: str, head: str = "except EngineDied as e:") -> Shape:
    """One clause with this body."""

    def clause(text: str) -> str:
        return head + "\n" + "\n".join("    " + line if line else "" for line in text.strip("\n").split("\n"))

    return Shape(name, excepts(clause(body)), excepts(clause(after)))


SHAPES = [
    Shape("three", excepts(DIED, ERR), excepts(DIED_AFTER, ERR_AFTER)),
    Shape("four", excepts(DIED, NOTED, ERR), excepts(DIED_AFTER, NOTED_AFTER, ERR_AFTER)),
    Shape("five", excepts(DIED, WAIT, NOTED, ERR), excepts(DIED_AFTER, WAIT_AFTER, NOTED_AFTER, ERR_AFTER)),
    Shape(
        "several exceptions, one line",
        excepts('except (EngineDied, QueueWaitExpired) as e: self._put({"error": {"message": str(e)}}); over()'),
        excepts('except (EngineDied, QueueWaitExpired) as e: self._sse_error({"error": {"message": str(e)}}, req)'),
    ),
    Shape(
        "one line with a flush after it",
        excepts("except EngineDied as e: err = {'error': {}}; send(err); self.wfile.write(DONE) ; self.wfile.flush()"),
        excepts("except EngineDied as e: err = {'error': {}}; self._sse_error(err, req) ; self.wfile.flush()"),
    ),
    _one("helpers", "err = {'error': {}}\nsend(err)\nover()", "err = {'error': {}}\nself._sse_error(err, req)"),
    _one("a helper around a helper", "self._finish({'error': {}})", "self._sse_error({'error': {}}, req)"),
    _one("a returned write", "send({'error': {}})\nreturn over()", "return self._sse_error({'error': {}}, req)"),
    _one(
        "an alias of the write",
        "w = self.wfile.write\nw(self.FRAME.encode() % json.dumps({'error': {}}).encode())\nw(DONE)",
        "w = self.wfile.write\nself._sse_error({'error': {}}, req)",
    ),
    _one(
        "format, join and bytes",
        'text = "data: {}\\n\\n".format(json.dumps({"error": {}}))\n'
        'self.wfile.write(b"".join([bytes(text, "utf-8"), DONE]))',
        'self._sse_error({"error": {}}, req)',
    ),
    _one(
        "text made first, with comments",
        "err = {'error': {}}\n# as text\npayload = json.dumps(err).encode()  # bytes\n\n"
        'self.wfile.write(b"data: " + payload + b"\\r\\n\\r\\n")\n# the end\nself.wfile.write(DONE)',
        "err = {'error': {}}\n# as text\n# bytes\n# the end\nself._sse_error(err, req)",
    ),
    _one(
        "text that is used again stays",
        'payload = json.dumps({"error": {}})\nself.wfile.write(f"data: {payload}\\n\\n".encode() + DONE)\nlog(payload)',
        'payload = json.dumps({"error": {}})\nself._sse_error({"error": {}}, req)\nlog(payload)',
    ),
    _one(
        "nested try",
        "try:\n    send({'error': {}})\n    over()\nexcept OSError:  # gone, too\n    pass",
        "try:\n    self._sse_error({'error': {}}, req)\nexcept OSError:  # gone, too\n    pass",
    ),
    _one(
        "a branch that answers otherwise",
        "if self.started:\n    send({'error': {}})\n    over()\nelse:\n    self._json(503, {'error': {}})",
        "if self.started:\n    self._sse_error({'error': {}}, req)\nelse:\n    self._json(503, {'error': {}})",
    ),
    _one(
        "two branches",
        "if e.fatal:\n    send({'error': 1})\n    over()\nelif e.slow:\n    self._finish({'error': 2})\n"
        "else:\n    send({'error': 3}); over()",
        "if e.fatal:\n    self._sse_error({'error': 1}, req)\nelif e.slow:\n    self._sse_error({'error': 2}, req)\n"
        "else:\n    self._sse_error({'error': 3}, req)",
    ),
    _one(
        "with a lock",
        "with self.lock:\n    send({'error': {}})\n    over()",
        "with self.lock:\n    self._sse_error({'error': {}}, req)",
    ),
]
"""Shapes that are rewritten."""
