"""The code that the patch adds, as syntax trees in the style of the file that gets it.

Written for any Strata 0.1 or 0.2; it decides nothing about where it goes.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

CHUNK, ENDING, CHUNKS = "openai_error_chunk", "_sse_error", "_sse_chunks"
"""What is added: of the module, and two methods of the handler."""

_CHUNK = '''\
def openai_error_chunk({service}, req):
    """The closing chunk of a chat stream that failed: finish_reason "error" and no delta."""
{imports}    return {{"id": "chatcmpl-" + uuid.uuid4().hex[:24], "object": "chat.completion.chunk",
            "created": int(time.time()), "model": {model},
            "choices": [{{"index": 0, "delta": {{}}, "finish_reason": "error"}}]}}
'''

_ERROR = '''\
def _sse_error(self, err, req):
    """End a chat stream that failed: the error object, the closing chunk (finish_reason "error"), [DONE]."""
{imports}    error = err.get("error", err) if isinstance(err, dict) else err
    last = {{**openai_error_chunk({service}, req), "error": error}}
    sent = getattr(self, "sse_chunk", None) or {{}}
    last.update((key, sent[key]) for key in ("id", "created", "model") if key in sent)
    text = "".join("data: " + json.dumps(part) + "\\n\\n" for part in (err, last))
    self.wfile.write(text.encode() + b"data: [DONE]\\n\\n")
    self.wfile.flush()
'''

_CHUNKS = '''\
def _sse_chunks(self, chunks):
    """The same chunks; the closing chunk of `_sse_error` has the id, created and model of the last one."""
    self.sse_chunk = None

    def passed_on():
        for chunk in chunks:
            if isinstance(chunk, dict):
                self.sse_chunk = chunk
            yield chunk

    return passed_on()
'''


@dataclass(frozen=True, slots=True)
class Style:
    """How the file says things. `service`: the service inside a handler; `model`: the name of the model, of `svc` and
    `req`; `imported`: the modules that the file imports."""

    service: str
    model: str
    imported: frozenset[str]
    module: cst.Module


def _function(text: str, style: Style, blank_lines: int) -> cst.FunctionDef:
    config = style.module.config_for_parsing
    unit, newline = style.module.default_indent, style.module.default_newline
    lines = text.splitlines()
    for number, line in enumerate(lines):
        bare = line.lstrip(" ")
        depth, rest = divmod(len(line) - len(bare), 4)
        lines[number] = unit * depth + " " * rest + bare
    made = cst.parse_statement(newline.join(lines) + newline, config)
    assert isinstance(made, cst.FunctionDef)
    return made.with_changes(leading_lines=[cst.EmptyLine(indent=False)] * blank_lines)


def _imports(style: Style, *modules: str) -> str:
    """The line that imports what the file does not."""
    missing = [name for name in modules if name not in style.imported]
    return f"    import {', '.join(missing)}\n" if missing else ""


def error_chunk(style: Style) -> cst.FunctionDef:
    """`openai_error_chunk(svc, req)`, for the module."""
    text = _CHUNK.format(service="svc", imports=_imports(style, "time", "uuid"), model=style.model)
    return _function(text, style, 2)


def sse_error(style: Style) -> cst.FunctionDef:
    """`_sse_error(self, err, req)`, for the handler."""
    return _function(_ERROR.format(service=style.service, imports=_imports(style, "json")), style, 1)


def sse_chunks(style: Style) -> cst.FunctionDef:
    """`_sse_chunks(self, chunks)`, for the handler."""
    return _function(_CHUNKS, style, 1)


def watched(chunks: cst.BaseExpression) -> cst.Call:
    """`self._sse_chunks(chunks)`, which the loop of a stream goes through instead."""
    return cst.Call(cst.Attribute(cst.Name("self"), cst.Name(CHUNKS)), [cst.Arg(chunks)])
