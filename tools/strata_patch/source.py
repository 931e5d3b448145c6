"""A Python file as bytes, text and syntax tree, kept byte for byte: line ends, byte order mark, encoding, white space.

It changes nothing and reads no meaning out of the tree.
"""

from __future__ import annotations

import ast
import codecs
import io
import tokenize
from dataclasses import dataclass

import libcst as cst
from libcst import metadata

BOM = codecs.BOM_UTF8


class NotUnderstood(Exception):
    """The file has another shape than what the patch knows; the text says what was looked for and what is there."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file. `name` is how messages call it."""

    name: str
    bom: bool
    encoding: str
    module: cst.Module

    def line_of(self, node: cst.CSTNode) -> int:
        """The line on which the node begins, from 1."""
        places = metadata.MetadataWrapper(self.module, unsafe_skip_copy=True).resolve(metadata.PositionProvider)
        return places[node].start.line

    def encoded(self, module: cst.Module) -> bytes:
        """The bytes of the file with this tree in it."""
        return (BOM if self.bom else b"") + module.code.encode(self.encoding)


def read_source(name: str, data: bytes) -> Source:
    """The file whose bytes are `data`.

    Raises: NotUnderstood: it is no Python that can be read and written again without a change.
    """
    bom = data.startswith(BOM)
    body = data[len(BOM) :] if bom else data
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(body).readline)
        if bom and encoding not in ("utf-8", "utf-8-sig"):
            raise NotUnderstood(f"{name}: not Python text: the byte order mark says UTF-8, the comment {encoding}")
        text = body.decode(encoding)
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise NotUnderstood(f"{name}: not Python text: {error}") from None
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError:
        raise NotUnderstood(f"{name}{_line_of_fault(text)}: not Python that can be read") from None
    source = Source(name, bom, encoding, module)
    if source.encoded(module) != data:
        raise NotUnderstood(f"{name}: cannot be kept byte for byte (odd line ends or white space)")
    return source


def _line_of_fault(text: str) -> str:
    """`:LINE`; nothing if only the tree's parser does not know the syntax, which tells no line that can be trusted."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        return f":{error.lineno}"
    return ""
