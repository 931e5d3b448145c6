"""The patched code is run: whatever shape the server had, its stream ends truthfully. And what could only be patched
into something that breaks is left alone."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.tools.strata_patch.shapes import DIED, DIED_AFTER, LOOP, SHAPES, WATCHED, Shape, excepts
from tests.unit.tools.strata_patch.test_server_file import patch, refused

FOUR, FIVE = SHAPES[1], SHAPES[2]
ERRORS = {name: type(name, (RuntimeError,), {}) for name in ("EngineDied", "QueueWaitExpired", "StructuredOutputError")}
MADE = "            chunks = openai_chunks(svc, req, [1])\n"
TRY, METHOD = "            # now the answer", "        def _anthropic"


def stream_of(source: str, error: BaseException, streams: int = 1) -> list[Any]:
    """What a client of the server gets when its engine fails so after one chunk: values, and last "[DONE]"."""
    space: dict[str, Any] = dict(ERRORS)
    exec(compile(source, "server.py", "exec"), space)

    def chunks(svc: object, req: object, ids: object) -> Iterator[dict[str, Any] | None]:
        yield {"id": "of this stream", "created": 5, "model": "m", "choices": []}
        yield None
        raise error

    space["openai_chunks"] = chunks
    made = space["make_handler"](SimpleNamespace(model="m"))
    handler = made.__new__(made)
    handler.wfile, handler._sse, handler._note, handler.heads = io.BytesIO(), dict, dict, ["x"]
    handler._openai({"model": "m"})
    texts = handler.wfile.getvalue().decode().split("\n\n")
    assert texts.pop() == ""
    found = [text.removeprefix("data: ") for text in texts]
    return [text if text == "[DONE]" else json.loads(text) for text in found]


def check_failed(values: list[Any], message: str) -> None:
    """One error object, one closing chunk of the same stream with the same error, [DONE], and nothing else."""
    *chunks, error, closing, done = [value for value in values if value is not None]
    assert done == "[DONE]"
    assert [one.get("id") for one in (*chunks, closing)] == ["of this stream"] * 2
    assert message in error["error"]["message"]
    assert (closing["choices"][0]["finish_reason"], closing["error"]) == ("error", error["error"])
    assert (closing["created"], closing["model"]) == (5, "m")


@pytest.mark.parametrize("name", [*ERRORS, "ValueError"])
def test_every_failure_of_a_patched_stream_ends_it_truthfully(name: str) -> None:
    error = ERRORS.get(name, ValueError)("the cause")
    assert len(stream_of(FIVE.source, error)) == 4, "before: the chunk, the beat, the error, [DONE]"
    check_failed(stream_of(patch(FIVE.source.encode()).data.decode(), error), "the cause")


def inside_a_function(text: str) -> str:
    """The same with the `try` in a function of the method."""
    before, block, after = (
        text[: text.index(TRY)],
        text[text.index(TRY) : text.index(METHOD)],
        text[text.index(METHOD) :],
    )
    deeper = "".join("    " + line + "\n" for line in block.rstrip().split("\n"))
    return f"{before}            def answer():\n{deeper}            answer()\n\n{after}"


SOURCES: dict[str, Callable[[str], str]] = {
    "made in the try": lambda text: text.replace(MADE, "").replace(
        "                for c in", "                chunks = openai_chunks(svc, req, [1])\n                for c in"
    ),
    "in a function": inside_a_function,
    "made in the loop": lambda text: text.replace(MADE, "").replace("in chunks:", "in openai_chunks(svc, req, [1]):"),
    "after another loop": lambda text: text.replace(
        LOOP, "for head in self.heads:\n                    str(head)\n                " + LOOP
    ),
    "helper of a base class": lambda text: text.replace(
        "def make_handler",
        "class Base(BaseHTTPRequestHandler):\n    def last(self): self.wfile.write(DONE)\n\n\ndef make_handler",
    ).replace("Handler(BaseHTTPRequestHandler):", "Handler(Base):").replace(
        excepts(DIED), excepts("except EngineDied as e:\n    send({'error': {'message': str(e)}})\n    self.last()")
    ),
    "written with a note between": lambda text: text.replace(
        excepts(DIED), excepts("except EngineDied as e:\n    err = {'error': {'message': str(e)}}\n"
                               "    send(err)  # now\n"
                               "    err = self._note(error=err)\n    over()  # and over")
    ),
    "with types": lambda text: text.replace(
        excepts(DIED), excepts("except EngineDied as e:\n    err: dict = {'error': {'message': str(e)}}\n"
                               "    out: bytes = b'data: ' + json.dumps(err).encode() + b'\\n\\n'\n"
                               "    self.wfile.write(out + DONE)")
    ),
    "names like ours elsewhere": lambda text: text
        + "\n\nclass Other:\n    def _sse_error(self, text): pass\n    def openai_error_chunk(self): pass\n"
        + "\n\ndef _sse_chunks(): pass\n",
    "named arguments": lambda text: text.replace("(svc, req, [1])", "(svc=svc, req=req, ids=[1])"),
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_wherever_the_chunks_and_helpers_are_the_patched_stream_ends_truthfully(source: str) -> None:
    before = SOURCES[source](FOUR.source)
    assert before != FOUR.source
    died = ERRORS["EngineDied"]("the cause")
    assert stream_of(before, died)[-1] == "[DONE]"
    made = patch(before.encode())
    assert made.notes == ()
    assert "self._sse_chunks(" in made.data.decode()
    check_failed(stream_of(made.data.decode(), died), "the cause")
    assert patch(made.data).data == made.data


def test_comments_of_a_write_that_goes_stay() -> None:
    text = SOURCES["written with a note between"](FOUR.source)
    made = patch(text.encode()).data.decode()
    assert "                self._sse_error(err, req)  # now\n                err = self._note(error=err)\n" in made
    assert "# and over\n" in made


@pytest.mark.parametrize(
    ("told", "model"),
    [("svc.model", "svc.model"), ("svc.model_for(req)", "svc.model_for(req)"), ("req['model']", "req['model']"),
     ("svc.names[0]", "svc.names[0]"), ("'fixed'", "'fixed'"), ("len(ids)", 'getattr(svc, "model", "")')],
)  # fmt: skip
def test_the_model_is_named_as_openai_chunks_names_it(told: str, model: str) -> None:
    text = FOUR.source.replace('"model": svc.model}', f'"model": {told}}}')
    assert f'"model": {model},\n' in patch(text.encode()).data.decode()
    apart = FOUR.source.replace("    yield   {", f"    name = {told}\n    yield   {{").replace(
        ": svc.model}", ": name}"
    )
    assert f'"model": {model},\n' in patch(apart.encode()).data.decode()


# --- left alone ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clause", "what"),
    [
        ("finally:\n    self.wfile.write(DONE)", "its `finally` writes something"),
        ("finally:\n    over()", "its `finally` writes something"),
        ("except KeyError:\n    over()", "it writes [DONE] and nothing of which"),
        ("except KeyError:\n    self.wfile.write(b'data: {\"a\": 1}\\n\\ndata: [DONE]\\n\\n')", "it writes [DONE] and"),
        ("except KeyError:\n    send({'error': {}})", "without [DONE]"),
        ("except KeyError:\n    for one in [{}]:\n        send(one)\n    over()", "in a way that is not known"),
        ("except KeyError:\n    while self.x:\n        self._finish({})", "could not be worked out"),
        ("except KeyError:\n    match self.x:\n        case _:\n            send({}); over()", "could not be worked"),
        ("except KeyError:\n    self.wfile.writelines([b'data: {}', DONE])", "could not be worked out"),
        ("except KeyError:\n    self.connection.sendall(b'data: {}' + DONE)", "could not be worked out"),
        ("except KeyError:\n    sent = self.wfile.write(DONE)", "could not be worked out"),
        ("except KeyError as e:\n    self.wfile.write(b'data: ' + json.dumps({'error': e}, default=str).encode()"
         " + b'\\n\\ndata: [DONE]\\n\\n')", "in a way that is not known"),
        ("except KeyError:\n    send({})\n    self._note()\n    return over()", "it returns the write of [DONE]"),
    ],
)  # fmt: skip
def test_another_except_that_may_end_the_stream_in_its_own_way_is_told(clause: str, what: str) -> None:
    text = Shape("", excepts(DIED, clause), "").source
    compile(text, "server.py", "exec")
    assert what in refused(text)


@pytest.mark.parametrize(
    "clause",
    [
        "except KeyError:\n    self.count += 1",
        "except KeyError:\n    self._json(500, {})",
        "finally:\n    self._note()\n    chunks.close()",
    ],
)
def test_another_except_that_does_not_write_to_the_stream_stays(clause: str) -> None:
    made = patch(Shape("", excepts(DIED, clause), "").source.encode()).data.decode()
    assert excepts(DIED_AFTER, clause) in made
    assert WATCHED in made


@pytest.mark.parametrize(
    ("name", "place", "code"),
    [
        ("openai_error_chunk", "# ------", "def openai_error_chunk(message):\n    return {}\n\n\n"),
        ("openai_error_chunk", "# ------", "def openai_error_chunk(a, b):\n    return {}\n\n\n"),
        ("_sse_error", "        def _frame(", "        def _sse_error(self, text):\n            pass\n\n"),
        ("_sse_error", "        def _frame(", "        def _sse_error(self, a, b, *, c):\n            pass\n\n"),
        ("_sse_chunks", "        def _frame(", "        def _sse_chunks(self):\n            pass\n\n"),
    ],
)
def test_something_else_under_a_name_of_the_patch_is_told(name: str, place: str, code: str) -> None:
    said = refused(FOUR.source.replace(place, code + place, 1))
    assert f"`{name}` is something else; looked for what this patch adds under that name" in said


def test_a_method_without_self_is_told() -> None:
    text = FOUR.source.replace("def _openai(self, req)", "@staticmethod\n        def _openai(h, req)")
    head, tail = text[: text.index("def _openai")], text[text.index("def _openai") :]
    assert "looked for the handler as the method's parameter `self`" in refused(head + tail.replace("self.", "h."))
