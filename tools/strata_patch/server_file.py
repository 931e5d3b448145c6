"""The patch of `serve/server.py`: where the chat stream is, and the tree with this project's ending in it.

It reads and writes no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from tools.strata_patch import additions
from tools.strata_patch.additions import CHUNK, CHUNKS, ENDING, Style
from tools.strata_patch.source import NotUnderstood, Source
from tools.strata_patch.streaming import LOOKED_FOR, Ended, names_in, read_except
from tools.strata_patch.written import Scope, assigned, may_write, name_of

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
    scope: Scope
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
        self.classes: dict[str, cst.ClassDef] = {}
        """Those that are closed already: the bases of one come before it."""
        self.all_names = names_in([source.module])
        self._functions: list[cst.FunctionDef] = []
        self._classes: list[cst.ClassDef] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._classes.append(node)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self.classes[self._classes.pop().name.value] = original_node

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
            self._refuse(read, [ended.odd for _, ended in read])
            return
        self._refuse(read, [ended.odd or ended.doubtful for _, ended in read])
        if original_node.finalbody is not None and may_write(original_node.finalbody, scope):
            raise NotUnderstood(self._at(original_node, f"its `finally` writes something, too; {LOOKED_FOR}"))
        if not request:
            raise NotUnderstood(self._at(original_node, "looked for the request as the method's parameter `req`"))
        if [one.name.value for one in function.params.params][:1] != ["self"]:
            raise NotUnderstood(self._at(original_node, "looked for the handler as the method's parameter `self`"))
        stream = _Stream(
            original_node,
            function,
            owner,
            holder=next(one for one in (*self._functions, *self._classes) if one in self.source.module.body),
            handlers=read,
            scope=scope,
            service=self._service(function, original_node),
            is_chat="openai_chunks" in around,
        )
        self.streams.append(stream)

    def _method(self) -> cst.FunctionDef:
        """The method of the class that the walk is in, not a function within it."""
        return next((one for one in self._functions if one in _methods(self._classes[-1])), self._functions[-1])

    def _refuse(self, read: Sequence[tuple[cst.ExceptHandler, Ended]], reasons: Sequence[str]) -> None:
        for (handler, _), reason in zip(read, reasons, strict=True):
            if reason:
                raise NotUnderstood(self._at(handler, f"{reason}; {LOOKED_FOR}"))

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
        methods = {name: one for name, one in self.methods_of(owner).items() if name != ENDING}
        return Scope(functions, methods, values, constants=constants)

    def methods_of(self, owner: cst.ClassDef) -> dict[str, Function]:
        """What can be called on `self`, as far as it stands in this file."""
        bases = [self.classes[name] for one in owner.bases if (name := name_of(one.value)) in self.classes]
        found = {
            name: one for base in reversed(bases) if base is not owner for name, one in self.methods_of(base).items()
        }
        return found | _functions_of(owner.body)

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
        if (given := assigned(one)) is not None and "." not in given[0]:
            values.setdefault(given[0], []).append(given[1])
    return {name: several[0] for name, several in values.items() if len(several) == 1}


# --- the change --------------------------------------------------------------------------------------


class _Change(cst.CSTTransformer):
    """Puts everything in its place; the nodes are told by identity."""

    def __init__(self, source: Source, streams: Sequence[_Stream], finder: _Finder) -> None:
        self.notes: list[str] = []
        self._bodies = {id(one): ended.body for stream in streams for one, ended in stream.handlers if ended.body}
        self._owner = streams[0].owner
        self._holder = streams[0].holder
        self._before = streams[0].function
        self._there = _there_already(source, _functions_of(source.module), finder.methods_of(self._owner))
        self._watched = self._loops(source, streams)
        self._style = Style(streams[0].service, _model(source.module), _imported(source.module), source.module)

    def _loops(self, source: Source, streams: Sequence[_Stream]) -> set[int]:
        """The loops whose chunks are watched."""
        found: set[int] = set()
        for stream in streams:
            if CHUNKS in names_in([stream.function]):
                continue
            loop = _Loop(stream.scope)
            stream.statement.body.visit(loop)
            if loop.found is not None:
                found.add(id(loop.found))
            else:
                line = source.line_of(stream.statement)
                self.notes.append(
                    f"{source.name}:{line}: there is no `for chunk in …:` in this `try` that writes the chunk; the "
                    "closing chunk of its stream has an id of its own"
                )
        return found

    def leave_ExceptHandler(
        self, original_node: cst.ExceptHandler, updated_node: cst.ExceptHandler
    ) -> cst.ExceptHandler:
        body = self._bodies.get(id(original_node))
        return updated_node if body is None else updated_node.with_changes(body=body)

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For:
        if id(original_node) not in self._watched:
            return updated_node
        return updated_node.with_changes(iter=additions.watched(updated_node.iter))

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        if original_node is not self._owner:
            return updated_node
        added = [additions.sse_chunks(self._style)] if self._watched and CHUNKS not in self._there else []
        added += [] if ENDING in self._there else [additions.sse_error(self._style)]
        place = _place(original_node.body.body, "_sse", self._before)
        body = [*updated_node.body.body[:place], *added, *updated_node.body.body[place:]]
        return updated_node.with_changes(body=updated_node.body.with_changes(body=body))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        if CHUNK in self._there:
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


def _there_already(source: Source, functions: Mapping[str, Function], methods: Mapping[str, Function]) -> set[str]:
    """Which of the additions the file has where they belong.

    Raises: NotUnderstood: something else has such a name there.
    """
    found: set[str] = set()
    for name, there, arguments, marks in (
        (CHUNK, functions, 2, "finish_reason"),
        (ENDING, methods, 3, CHUNK),
        (CHUNKS, methods, 2, "sse_chunk"),
    ):
        if (one := there.get(name)) is None:
            continue
        if not _takes(one, arguments) or marks not in source.module.code_for_node(one):
            looked = f"looked for what this patch adds under that name, with {arguments} parameters and `{marks}` in it"
            raise NotUnderstood(f"{source.name}:{source.line_of(one)}: `{name}` is something else; {looked}")
        found.add(name)
    return found


def _takes(function: Function, arguments: int) -> bool:
    """Whether it can be called with so many arguments and no names."""
    given = [*function.params.posonly_params, *function.params.params]
    needed = sum(one.default is None for one in given)
    named = any(one.default is None for one in function.params.kwonly_params)
    return needed <= arguments <= len(given) and not named


class _Loop(cst.CSTVisitor):
    """Finds the first loop that writes what it loops over."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.found: cst.For | None = None

    def visit_For(self, node: cst.For) -> None:
        if self.found is None and isinstance(node.target, cst.Name) and may_write(node.body, self.scope):
            self.found = node if node.target.value in names_in([node.body]) else None


class _Told(cst.CSTVisitor):
    """Finds how the chunks of a function name their model."""

    def __init__(self) -> None:
        self.found: list[cst.BaseExpression] = []

    def visit_DictElement(self, node: cst.DictElement) -> None:
        if isinstance(node.key, cst.SimpleString) and node.key.evaluated_value == "model":
            self.found.append(node.value)


def _model(module: cst.Module) -> str:
    """The name of the model, of `svc` and `req`: as openai_chunks tells it."""
    chunks = _functions_of(module).get("openai_chunks")
    if isinstance(chunks, cst.FunctionDef):
        told = _Told()
        chunks.visit(told)
        local = _assigned_once(chunks.body)
        known = dict(zip([one.name.value for one in chunks.params.params], ("svc", "req"), strict=False))
        for value in told.found:
            meant = local.get(name_of(value), value)
            renamed = _Renamed(known)
            made = meant.visit(renamed)
            if isinstance(made, cst.BaseExpression) and not renamed.lost:
                return module.code_for_node(made)
    return 'getattr(svc, "model", "")'


class _Renamed(cst.CSTTransformer):
    """Gives names other ones; `lost`: there was another name."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = known
        self.lost = False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return False  # of `svc.model` only `svc` is a name; leave_Attribute sees to it

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return updated_node.with_changes(value=original_node.value.visit(self))

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        name = original_node.value
        self.lost = self.lost or name not in self.known
        return cst.Name(self.known.get(name, name))


def _imported(module: cst.Module) -> frozenset[str]:
    """The modules that the file imports under their own names."""
    return frozenset(
        name_of(alias.name)
        for one in _smalls(module)
        if isinstance(one, cst.Import)
        for alias in one.names
        if alias.asname is None
    )
