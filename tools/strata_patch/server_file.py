"""The patch of `serve/server.py`: where the chat stream is, and the tree with this project's ending in it.

It reads and writes no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from tools.strata_patch import additions
from tools.strata_patch.additions import Style
from tools.strata_patch.source import NotUnderstood, Source
from tools.strata_patch.streaming import ENDING, LOOKED_FOR, Ended, names_in, read_except
from tools.strata_patch.written import Scope, name_of

CHUNK = "openai_error_chunk"
Function = cst.FunctionDef | cst.Lambda


@dataclass(frozen=True, slots=True)
class Patched:
    """The bytes with the patch, and what is to be said about it."""

    data: bytes
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Stream:
    """One `try` that ends a stream, and its `except` clauses."""

    statement: cst.Try
    function: cst.FunctionDef
    owner: cst.ClassDef
    holder: cst.CSTNode
    """The statement of the module that has all of it."""
    handlers: list[tuple[cst.ExceptHandler, Ended]]
    service: str
    is_chat: bool


def patch_server(source: Source) -> Patched:
    """The file with the patch; the same bytes if it has it already.

    Raises: NotUnderstood: the stream's ending is not where or what it was expected to be.
    """
    finder = _Finder(source)
    source.module.visit(finder)
    streams = _chat_only(source, finder)
    if not streams:
        if finder.names[ENDING] and finder.names[CHUNK]:
            return Patched(source.encoded(source.module))
        raise NotUnderstood(_nothing(source, finder))
    owners = {id(stream.owner): stream.owner for stream in streams}
    if len(owners) != 1:
        raise NotUnderstood(f"{source.name}: chat streams of {len(owners)} classes; {LOOKED_FOR} in one class")
    change = _Change(source, streams, finder)
    made = source.module.visit(change)
    assert isinstance(made, cst.Module)
    return Patched(source.encoded(made), tuple(change.notes))


def _chat_only(source: Source, finder: _Finder) -> list[_Stream]:
    """The streams to rewrite: those of chat."""
    chat = [stream for stream in finder.streams if stream.is_chat]
    if chat or len({id(stream.function) for stream in finder.streams}) <= 1:
        return chat or finder.streams
    lines = ", ".join(str(source.line_of(stream.statement)) for stream in finder.streams)
    raise NotUnderstood(
        f"{source.name}: several functions end a stream by hand (lines {lines}) and none calls openai_chunks; "
        "looked for the one that does"
    )


def _nothing(source: Source, finder: _Finder) -> str:
    there = (
        f"; `{ENDING}` or `{CHUNK}` is there without the other" if finder.names[ENDING] or finder.names[CHUNK] else ""
    )
    return f"{source.name}: {LOOKED_FOR}; there is none{there}"


class _Finder(cst.CSTVisitor):
    """Finds the streams. What was said on the way down is what a name means there."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.streams: list[_Stream] = []
        self.names: Counter[str] = Counter()
        """Functions and methods of the file."""
        self.all_names = names_in([source.module])
        self._functions: list[cst.FunctionDef] = []
        self._classes: list[cst.ClassDef] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._classes.append(node)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self._classes.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.names[node.name.value] += 1
        self._functions.append(node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._functions.pop()

    def leave_Try(self, original_node: cst.Try) -> None:
        if not self._classes or not self._functions or self._functions[-1].name.value == ENDING:
            return
        function, owner = self._method(), self._classes[-1]
        request = _request_name(function) or ""
        scope = self._scope(original_node, function, owner)
        inside, around = names_in([original_node]), names_in([function])
        kept = frozenset(name for name in around if around[name] > inside[name])
        read = [(one, read_except(one, scope, request, kept)) for one in original_node.handlers]
        if not any(ended.body is not None for _, ended in read):
            self._refuse_odd(read)
            return
        self._check(original_node, read)
        if not request:
            raise NotUnderstood(self._at(original_node, "looked for the request as the method's parameter `req`"))
        stream = _Stream(
            original_node,
            function,
            owner,
            holder=next(one for one in (*self._functions, *self._classes) if one in self.source.module.body),
            handlers=read,
            service=self._service(function, original_node),
            is_chat="openai_chunks" in around,
        )
        self.streams.append(stream)

    def _method(self) -> cst.FunctionDef:
        """The method of the class that the walk is in, not a function within it."""
        return next((one for one in self._functions if one in _methods(self._classes[-1])), self._functions[-1])

    def _refuse_odd(self, read: Sequence[tuple[cst.ExceptHandler, Ended]]) -> None:
        """An `except` that writes [DONE] after something is the ending of a stream, or looks too much like one."""
        for handler, ended in read:
            if ended.odd and not ended.odd.endswith("without [DONE]"):
                raise NotUnderstood(self._at(handler, f"{ended.odd}; {LOOKED_FOR}"))

    def _check(self, node: cst.Try, read: Sequence[tuple[cst.ExceptHandler, Ended]]) -> None:
        for handler, ended in read:
            if ended.odd:
                raise NotUnderstood(self._at(handler, f"{ended.odd}; {LOOKED_FOR}"))
        if node.finalbody is not None and "[DONE]" in self.source.module.code_for_node(node.finalbody):
            raise NotUnderstood(self._at(node, f"its `finally` writes [DONE], too; {LOOKED_FOR}"))

    def _at(self, node: cst.CSTNode, what: str) -> str:
        return f"{self.source.name}:{self.source.line_of(node)}: {what}"

    def _scope(self, node: cst.Try, function: cst.FunctionDef, owner: cst.ClassDef) -> Scope:
        functions: dict[str, Function] = {}
        constants: dict[str, cst.BaseExpression] = {}
        values: dict[str, tuple[cst.BaseExpression, Scope | None]] = {}
        for suite in (self.source.module, *(one.body for one in self._functions[:-1])):
            functions |= _functions_of(suite)
            constants |= _assigned_once(suite)
        constants |= {f"self.{name}": value for name, value in _assigned_once(owner.body).items()}
        functions |= _functions_of(function.body)
        values |= {name: (value, None) for name, value in _assigned_once(function.body).items()}
        methods = {name: one for name, one in _functions_of(owner.body).items() if name != ENDING}
        return Scope(functions, methods, values, constants=constants)

    def _service(self, function: cst.FunctionDef, node: cst.Try) -> str:
        """How the handler names its service: as the call of openai_chunks does."""
        call = _Call("openai_chunks")
        function.visit(call)
        name = name_of(call.found.args[0].value) if call.found is not None and call.found.args else "svc"
        local = _assigned_once(function.body).get(name)
        name = name_of(local) if local is not None else name
        outer = {parameter.name.value for one in self._functions for parameter in one.params.params}
        inner = {parameter.name.value for parameter in function.params.params}
        known = name.startswith("self.") or (name in outer - inner) or name in _assigned_once(self.source.module)
        if not known:
            raise NotUnderstood(
                self._at(node, f"looked for the service that its handler uses; {name or 'it'!r} is local")
            )
        return name


class _Call(cst.CSTVisitor):
    def __init__(self, name: str) -> None:
        self.name = name
        self.found: cst.Call | None = None

    def visit_Call(self, node: cst.Call) -> None:
        if self.found is None and name_of(node.func) == self.name:
            self.found = node


def _methods(owner: cst.ClassDef) -> Sequence[cst.CSTNode]:
    return owner.body.body


def _request_name(function: cst.FunctionDef) -> str | None:
    call = _Call("openai_chunks")
    function.visit(call)
    if call.found is not None and len(call.found.args) > 1 and isinstance(call.found.args[1].value, cst.Name):
        return call.found.args[1].value.value
    names = [one.name.value for one in function.params.params]
    return next((name for name in ("req", "request", "body") if name in names), None)


def _smalls(suite: cst.Module | cst.BaseSuite) -> list[cst.CSTNode]:
    found: list[cst.CSTNode] = []
    for statement in suite.body:
        found += statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]
    return found


def _functions_of(suite: cst.Module | cst.BaseSuite) -> dict[str, Function]:
    """The functions that a block defines, and its names for lambdas."""
    found: dict[str, Function] = {}
    for one in _smalls(suite):
        if isinstance(one, cst.FunctionDef):
            found[one.name.value] = one
    for name, value in _assigned_once(suite).items():
        if isinstance(value, cst.Lambda):
            found[name] = value
    return found


def _assigned_once(suite: cst.Module | cst.BaseSuite) -> dict[str, cst.BaseExpression]:
    """Names that a block gives one value."""
    values: dict[str, list[cst.BaseExpression]] = {}
    for one in _smalls(suite):
        if isinstance(one, cst.Assign) and len(one.targets) == 1 and isinstance(one.targets[0].target, cst.Name):
            values.setdefault(one.targets[0].target.value, []).append(one.value)
    return {name: several[0] for name, several in values.items() if len(several) == 1}


# --- the change --------------------------------------------------------------------------------------


class _Change(cst.CSTTransformer):
    """Puts everything in its place; the nodes are told by identity."""

    def __init__(self, source: Source, streams: Sequence[_Stream], finder: _Finder) -> None:
        self.notes: list[str] = []
        self._bodies = {id(one): ended.body for stream in streams for one, ended in stream.handlers if ended.body}
        self._names = finder.names
        self._owner = streams[0].owner
        self._holder = streams[0].holder
        self._before = streams[0].function
        self._watched = self._loops(source, streams)
        model = "svc.model_for(req)" if finder.all_names["model_for"] else "svc.model"
        self._style = Style(streams[0].service, model, _imported(source.module), source.module)

    def _loops(self, source: Source, streams: Sequence[_Stream]) -> dict[int, str]:
        """The statements before which the stream's chunks are watched, and the name of the chunks."""
        found: dict[int, str] = {}
        for stream in streams:
            if "_sse_chunks" in names_in([stream.function]):
                continue
            loop = _Loop()
            stream.statement.body.visit(loop)
            if loop.name:
                found[id(stream.statement)] = loop.name
            else:
                line = source.line_of(stream.statement)
                self.notes.append(
                    f"{source.name}:{line}: there is no `for … in chunks:` in this `try`; the closing chunk of its "
                    "stream has an id of its own"
                )
        return found

    def leave_ExceptHandler(
        self, original_node: cst.ExceptHandler, updated_node: cst.ExceptHandler
    ) -> cst.ExceptHandler:
        body = self._bodies.get(id(original_node))
        return updated_node if body is None else updated_node.with_changes(body=body)

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        made: list[cst.BaseStatement] = []
        for before, after in zip(original_node.body, updated_node.body, strict=True):
            if (name := self._watched.get(id(before))) is not None:
                made.append(additions.watched(name, self._style))
            made.append(after)
        return updated_node if len(made) == len(updated_node.body) else updated_node.with_changes(body=made)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        if original_node is not self._owner:
            return updated_node
        added = [additions.sse_chunks(self._style)] if self._watched and not self._names["_sse_chunks"] else []
        added += [] if self._names[ENDING] else [additions.sse_error(self._style)]
        place = _place(original_node.body.body, "_sse", self._before)
        body = [*updated_node.body.body[:place], *added, *updated_node.body.body[place:]]
        return updated_node.with_changes(body=updated_node.body.with_changes(body=body))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        if self._names[CHUNK]:
            return updated_node
        place = _place(original_node.body, "openai_chunks", self._holder)
        body = [*updated_node.body[:place], additions.error_chunk(self._style), *updated_node.body[place:]]
        return updated_node.with_changes(body=body)


def _place(body: Sequence[cst.CSTNode], after: str, before: cst.CSTNode) -> int:
    """Where something new goes: after the function of that name, else before that statement."""
    for number, one in enumerate(body):
        if isinstance(one, cst.FunctionDef) and one.name.value == after:
            return number + 1
    return next(number for number, one in enumerate(body) if one is before)


class _Loop(cst.CSTVisitor):
    """Finds the first loop over a name that sends something."""

    def __init__(self) -> None:
        self.name = ""

    def visit_For(self, node: cst.For) -> None:
        if not self.name and isinstance(node.iter, cst.Name):
            self.name = node.iter.value


def _imported(module: cst.Module) -> frozenset[str]:
    """The modules that the file imports under their own names."""
    return frozenset(
        name_of(alias.name)
        for one in _smalls(module)
        if isinstance(one, cst.Import)
        for alias in one.names
        if alias.asname is None
    )
