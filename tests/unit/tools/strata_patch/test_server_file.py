from __future__ import annotations

import ast

import pytest

from tests.unit.tools.strata_patch.shapes import DIED, ERR, SHAPES, WATCHED, Shape, excepts
from tools.strata_patch.server_file import Patched, patch_server
from tools.strata_patch.source import NotUnderstood, read_source

by_name = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
THREE, FIVE = SHAPES[0], SHAPES[2]


def patch(data: bytes) -> Patched:
    return patch_server(read_source("server.py", data))


def refused(text: str) -> str:
    with pytest.raises(NotUnderstood) as caught:
        patch(text.encode())
    return str(caught.value)


@by_name
def test_each_shape_ends_by_sse_error_and_all_else_stays(shape: Shape) -> None:
    ast.parse(shape.source)
    assert patch(shape.source.encode()).data.decode() == shape.patched


@by_name
def test_the_patch_of_a_patched_file_changes_nothing(shape: Shape) -> None:
    assert patch(shape.patched.encode()).data.decode() == shape.patched


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("indent", ["    ", "\t", "  "], ids=["four", "tab", "two"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["bare", "bom"])
def test_line_ends_indentation_and_byte_order_mark_stay(newline: str, indent: str, mark: bytes) -> None:
    source, patched = (mark + written(text, indent, newline) for text in (FIVE.source, FIVE.patched))
    assert patch(source).data == patched


@by_name
def test_each_shape_is_known_with_tabs_and_windows_line_ends(shape: Shape) -> None:
    assert patch(written(shape.source, "\t", "\r\n")).data == written(shape.patched, "\t", "\r\n")


def written(text: str, indent: str, newline: str) -> bytes:
    return indented(text, indent).replace("\n", newline).encode()


def indented(text: str, indent: str) -> str:
    """The same with another indentation; what is aligned within a bracket stays aligned after it."""
    lines: list[str] = []
    for line in text.split("\n"):
        bare = line.lstrip(" ")
        depth, rest = divmod(len(line) - len(bare), 4)
        lines.append(indent * depth + " " * rest + bare)
    return "\n".join(lines)


def test_another_encoding_stays() -> None:
    head = "# -*- coding: cp949 -*-\nNAME = '서버'\n"
    source, patched = ((head + text).encode("cp949") for text in (THREE.source, THREE.patched))
    assert patch(source).data == patched


def test_a_file_without_an_end_of_line_at_its_end_stays_without() -> None:
    assert patch(THREE.source.rstrip("\n").encode()).data.decode() == THREE.patched.rstrip("\n")


def test_a_new_except_of_a_patched_file_is_rewritten_alone() -> None:
    later = "except KeyError as e:\n    send({'error': {}}); over()"
    source = THREE.patched.replace("\n        def _anthropic", excepts(later) + "\n        def _anthropic")
    expected = source.replace("send({'error': {}}); over()", "self._sse_error({'error': {}}, req)")
    assert source != expected
    assert patch(source.encode()).data.decode() == expected


def test_names_that_the_server_uses_are_used() -> None:
    text = THREE.source.replace("import json, time\nimport uuid", "import json")
    text = text.replace("make_handler(svc)", "make_handler(service)").replace("(svc, req, [1])", "(service, body, [1])")
    text = text.replace("_openai(self, req)", "_openai(self, body)")
    text = text.replace("chunks(svc, req, ids)", "chunks(s, asked, ids)").replace(
        ": svc.model}", ": s.model_for(asked)}"
    )
    made = patch(text.encode()).data.decode()
    assert "openai_error_chunk(service, req)" in made  # in _sse_error, whose parameter is req
    assert "self._sse_error(err, body)" in made
    assert '"model": svc.model_for(req)' in made
    assert "    import time, uuid\n    return {" in made


def test_a_handler_that_holds_its_service_is_asked_for_it() -> None:
    text = THREE.source.replace("openai_chunks(svc, req, [1])", "openai_chunks(self.server.svc, req, [1])")
    assert "openai_error_chunk(self.server.svc, req)" in patch(text.encode()).data.decode()
    local = THREE.source.replace("chunks = openai_chunks(svc,", "svc2 = self.svc; chunks = openai_chunks(svc2,")
    assert "openai_error_chunk(self.svc, req)" in patch(local.encode()).data.decode()


def test_a_stream_without_a_loop_that_writes_is_patched_and_said() -> None:
    text = THREE.source.replace("for c in chunks:", "while (c := next(chunks)):")
    made = patch(text.encode())
    assert "self._sse_error(err, req)" in made.data.decode()
    assert WATCHED not in made.data.decode()
    assert len(made.notes) == 1
    assert "has an id of its own" in made.notes[0]


def test_a_stream_of_another_kind_is_left_alone() -> None:
    other = THREE.source.replace(
        "        def _anthropic(self, req):",
        "        def _completion(self, req):\n            try:\n                pass\n"
        + excepts(DIED)
        + "        def _anthropic(self, req):",
    )
    made = patch(other.encode()).data.decode()
    assert made.count("self._sse_error(err, req)") == 2
    assert DIED.strip().split("\n")[-1].strip() in made


# --- what is not understood ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clause", "what"),
    [
        ("except EngineDied as e:\n    send({'error': {}})", "there is none"),
        ("except EngineDied as e:\n    pass", "there is none"),
        ("except EngineDied as e:\n    over()", "there is none"),
        ("except EngineDied as e:\n    self.wfile.write(ending(e) + b'data: [DONE]\\n\\n')", "not known"),
        ("except EngineDied as e:\n    over()\n    send({'error': {}})", "not known"),
        ("except EngineDied as e:\n    send({'error': {}})\n    if self.x:\n        over()", "not known"),
        ("except EngineDied as e:\n    send({'error': {}})\n    send({'error': {}})\n    over()", "not known"),
        (DIED.strip() + "\nexcept ValueError as e:\n    send({'error': {}})", "without [DONE]"),
        (DIED.strip() + "\nfinally:\n    over()\n    self.wfile.write(b'data: [DONE]\\n\\n')", "finally"),
    ],
)
def test_what_is_not_understood_is_told_with_what_was_looked_for(clause: str, what: str) -> None:
    said = refused(Shape("", excepts(clause), "").source)
    assert what in said
    assert "looked for an `except` of the chat stream that writes `data: {the error object}`" in said
    assert said.startswith("server.py")


def test_the_line_is_told() -> None:
    shape = Shape("", excepts(DIED, "except ValueError as e:\n    send({'error': {}})"), "")
    line = next(n for n, text in enumerate(shape.source.split("\n"), 1) if "except ValueError" in text)
    assert refused(shape.source).startswith(f"server.py:{line}: it writes an error object without [DONE]")


def test_an_error_object_that_a_helper_makes_is_not_understood() -> None:
    helper = """
        def _fail(self, text):
            err = {"error": {"message": text}}
            self.wfile.write(b"data: " + json.dumps(err).encode() + b"\\n\\ndata: [DONE]\\n\\n")
"""
    clause = "except EngineDied as e:\n    self._fail(str(e))"
    text = Shape("", excepts(clause), "").source.replace("\n        def _openai", helper + "\n        def _openai")
    assert "its error object is made inside a helper" in refused(text)


def test_an_error_object_that_a_helper_only_wraps_is_written_out() -> None:
    helper = """
        def _fail(self, text, kind="server_error"):
            self.wfile.write(f'data: {json.dumps(dict(error={"message": text, "type": kind}))}\\n\\n'.encode() + DONE)
"""
    clause = "except EngineDied as e:\n    self._fail(e.text)"
    text = Shape("", excepts(clause), "").source.replace("\n        def _openai", helper + "\n        def _openai")
    made = patch(text.encode()).data.decode()
    assert 'self._sse_error(dict(error={"message": e.text, "type": "server_error"}), req)' in made


def test_two_streams_of_which_none_is_called_chat_are_not_understood() -> None:
    text = THREE.source.replace("openai_chunks(svc, req, [1])", "chunks_of(svc, req)")
    second = "        def _two(self, req):\n            try:\n                pass\n" + excepts(DIED, ERR)
    text = text.replace("        def _anthropic", second + "        def _anthropic")
    assert "looked for the one that does" in refused(text)


def test_half_of_the_patch_is_told() -> None:
    text = THREE.patched.replace("def openai_error_chunk", "def another_chunk")
    assert "`_sse_error` or `openai_error_chunk` is there without the other" in refused(text)


def test_a_service_that_is_local_is_not_understood() -> None:
    text = THREE.source.replace("chunks = openai_chunks(svc,", "for own in [svc]: chunks = openai_chunks(own,")
    assert "'own' is local" in refused(text)


def test_a_stream_without_a_request_is_not_understood() -> None:
    text = THREE.source.replace("openai_chunks(svc, req, [1])", "openai_chunks(svc)").replace(
        "_openai(self, req)", "_openai(self, asked)"
    )
    assert "parameter `req`" in refused(text)
