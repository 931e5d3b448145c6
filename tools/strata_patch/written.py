"""What statements of a handler write to their client, worked out from the syntax tree: fixed text, and JSON of some
expression.

It runs nothing and changes nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

DEEPEST = 8
"""Helpers that call helpers; deeper ones are not read."""
OTHER_WRITES = ("wfile.writelines", ".sendall")
"""Ways to write that are seen, and not read."""
PLAIN_JSON = {"ensure_ascii", "check_circular", "allow_nan", "indent", "separators", "sort_keys"}
"""What `json.dumps` may be told: the same JSON without it. `default` and `cls` make JSON of what is none."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A place where the JSON of an expression is written. None: of one that has no meaning where the writer stands."""

    value: cst.BaseExpression | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A place where something is written that could not be worked out."""


Piece = str | Hole | Unknown
Pieces = tuple[Piece, ...]
UNKNOWN: Pieces = (Unknown(),)


@dataclass(slots=True)
class Scope:
    """What names mean at one place. `functions`: what can be called by name; `methods`: what can be called on `self`;
    `values`: names and what they stand for, with the scope where that was said (None: the same)."""

    functions: Mapping[str, cst.FunctionDef | cst.Lambda]
    methods: Mapping[str, cst.FunctionDef | cst.Lambda]
    values: dict[str, tuple[cst.BaseExpression, Scope | None]]
    outer: Scope | None = None
    """Where the helper was called, if this is the inside of one."""
    given: frozenset[str] = frozenset()
    """The parameters of the helper."""
    own: frozenset[str] = frozenset()
    """Names that the helper gives a value itself."""
    depth: int = 0
    constants: Mapping[str, cst.BaseExpression] = field(default_factory=dict[str, cst.BaseExpression])
    """Names of the module and of the class (`self.NAME`) that are given a value once."""


def name_of(node: cst.CSTNode) -> str:
    """`a.b.c` of names and attributes; "" of anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute) and (before := name_of(node.value)):
        return f"{before}.{node.attr.value}"
    return ""


def joined(pieces: Iterable[Piece]) -> Pieces:
    """The same with neighbouring texts as one."""
    made: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and made and isinstance(made[-1], str):
            made[-1] += piece
        elif piece != "":
            made.append(piece)
    return tuple(made)


# --- expressions -------------------------------------------------------------------------------------


def told(node: cst.BaseExpression, scope: Scope) -> Pieces:
    """The text or bytes that an expression stands for."""
    match node:
        case cst.SimpleString() | cst.ConcatenatedString(left=cst.SimpleString(), right=cst.SimpleString()):
            return _constant(node.evaluated_value)
        case cst.ConcatenatedString(left=left, right=right):
            return joined([*told(left, scope), *told(right, scope)])
        case cst.FormattedString():
            return joined(_formatted(node, scope))
        case cst.BinaryOperation(left=left, operator=cst.Add(), right=right):
            return joined([*told(left, scope), *told(right, scope)])
        case cst.BinaryOperation(left=left, operator=cst.Modulo(), right=right):
            values = [one.value for one in right.elements] if isinstance(right, cst.Tuple) else [right]
            return _filled(told(left, scope), r"%s", values, scope)
        case cst.Name() | cst.Attribute():
            return _named(node, scope)
        case cst.Call():
            return _called(node, scope)
        case _:
            return UNKNOWN


def _constant(value: str | bytes | None) -> Pieces:
    if value is None:
        return UNKNOWN
    return (value if isinstance(value, str) else value.decode("latin-1"),)


def _formatted(node: cst.FormattedString, scope: Scope) -> Iterable[Piece]:
    for part in node.parts:
        if isinstance(part, cst.FormattedStringText):
            text: str = ast.literal_eval(f"{node.prefix.lower().replace('f', '')}{node.quote}{part.value}{node.quote}")
            yield text.replace("{{", "{").replace("}}", "}")
        elif isinstance(part, cst.FormattedStringExpression) and part.conversion is None and part.format_spec is None:
            yield from told(part.expression, scope)
        else:
            yield Unknown()


def _filled(pattern: Pieces, mark: str, values: Sequence[cst.BaseExpression], scope: Scope) -> Pieces:
    """A text with the values where the marks are."""
    if len(pattern) != 1 or not isinstance(pattern[0], str):
        return UNKNOWN
    texts = re.split(mark, pattern[0])
    if len(texts) != len(values) + 1:
        return UNKNOWN
    made: list[Piece] = [texts[0]]
    for value, text in zip(values, texts[1:], strict=True):
        made += [*told(value, scope), text]
    return joined(made)


def _named(node: cst.Name | cst.Attribute, scope: Scope) -> Pieces:
    name = name_of(node)
    if name in scope.values:
        value, where = scope.values[name]
        return told(value, where or _without(scope, name))
    return told(scope.constants[name], scope) if name in scope.constants else UNKNOWN


def _without(scope: Scope, name: str) -> Scope:
    """The scope in which a name's own value is read: `data = data + b"…"` is not followed in a circle."""
    values = {other: value for other, value in scope.values.items() if other != name}
    return replace(scope, values=values)


def _called(node: cst.Call, scope: Scope) -> Pieces:
    name, values = name_of(node.func), [argument.value for argument in node.args]
    if name in ("json.dumps", "dumps") and values:
        told_more = [one.keyword.value if one.keyword else one.star for one in node.args[1:]]
        return (Hole(expressed(values[0], scope)),) if PLAIN_JSON.issuperset(told_more) else UNKNOWN
    if name in ("bytes", "bytearray", "str") and values:
        return told(values[0], scope)
    if isinstance(node.func, cst.Attribute):
        before, method = node.func.value, node.func.attr.value
        if method in ("encode", "decode"):
            return told(before, scope)
        if method == "format":
            return _filled(told(before, scope), r"\{\d*\}", values, scope)
        if method == "join" and len(values) == 1 and isinstance(values[0], cst.List | cst.Tuple):
            between = told(before, scope)
            made: list[Piece] = []
            for number, element in enumerate(values[0].elements):
                made += [*(between if number else ()), *told(element.value, scope)]
            return joined(made)
    return _returned(node, scope)


def _returned(node: cst.Call, scope: Scope) -> Pieces:
    """What a helper gives back that is one expression."""
    helper = helper_of(node, scope)
    inner = inside(helper, node, scope) if helper is not None else None
    if helper is None or inner is None:
        return UNKNOWN
    if isinstance(helper, cst.Lambda):
        return told(helper.body, inner)
    match helper.body:
        case cst.IndentedBlock(
            body=[*_, cst.SimpleStatementLine(body=[cst.Return(value=cst.BaseExpression() as value)])]
        ):
            return told(value, inner) if len(helper.body.body) == 1 or _plain(helper) else UNKNOWN
        case cst.SimpleStatementSuite(body=[cst.Return(value=cst.BaseExpression() as value)]):
            return told(value, inner)
        case _:
            return UNKNOWN


def _plain(helper: cst.FunctionDef) -> bool:
    """Whether there is nothing but a docstring before its last statement."""
    return isinstance(helper.body, cst.IndentedBlock) and all(
        isinstance(one, cst.SimpleStatementLine) and isinstance(one.body[0], cst.Expr)
        and isinstance(one.body[0].value, cst.SimpleString) for one in helper.body.body[:-1]
    )  # fmt: skip


# --- helpers -----------------------------------------------------------------------------------------


def helper_of(node: cst.Call, scope: Scope) -> cst.FunctionDef | cst.Lambda | None:
    """The function that a call runs, if it stands in this file."""
    name = name_of(node.func)
    if name in scope.values and isinstance(value := scope.values[name][0], cst.Lambda):
        return value
    return scope.methods.get(name.removeprefix("self.")) if name.startswith("self.") else scope.functions.get(name)


def inside(helper: cst.FunctionDef | cst.Lambda, call: cst.Call, scope: Scope) -> Scope | None:
    """The scope inside a helper that is called so; None if it cannot be told."""
    if scope.depth >= DEEPEST:
        return None
    names = [one.name.value for one in helper.params.params]
    if names[:1] == ["self"] and name_of(call.func).startswith("self."):
        names = names[1:]
    values: dict[str, tuple[cst.BaseExpression, Scope | None]] = {
        one.name.value: (one.default, None) for one in helper.params.params if one.default is not None
    }
    for number, argument in enumerate(call.args):
        if argument.star or (argument.keyword is None and number >= len(names)):
            return None
        values[argument.keyword.value if argument.keyword else names[number]] = (argument.value, scope)
    if any(name not in values for name in names):
        return None
    # a helper within the same function sees the names around it
    around = {name: (value, where or scope) for name, (value, where) in scope.values.items() if name not in values}
    return replace(
        scope,
        values={**around, **values},
        outer=scope,
        given=frozenset(values),
        own=_assigned(helper),
        depth=scope.depth + 1,
    )


class _Assigned(cst.CSTVisitor):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        if isinstance(node.target, cst.Name):
            self.names.add(node.target.value)


def _assigned(helper: cst.FunctionDef | cst.Lambda) -> frozenset[str]:
    found = _Assigned()
    helper.visit(found)
    return frozenset(found.names)


class _Names(cst.CSTTransformer):
    """Puts what a helper was called with in the place of its parameters."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.lost = False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return False  # of `e.message` only `e` is a name; leave_Attribute sees to it

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return updated_node.with_changes(value=original_node.value.visit(self))

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        name = original_node.value
        if name in self.scope.given:
            meant = self._given(name)
            self.lost = self.lost or meant is None
            return meant if meant is not None else updated_node
        self.lost = self.lost or name in self.scope.own
        return updated_node

    def _given(self, name: str) -> cst.BaseExpression | None:
        value, where = self.scope.values[name]
        if where is not None:
            return expressed(value, where)
        return value if isinstance(value, cst.SimpleString | cst.Integer) else None  # a default


def expressed(node: cst.BaseExpression, scope: Scope) -> cst.BaseExpression | None:
    """The expression as the outermost caller would write it; None if it needs what only a helper knows."""
    if scope.outer is None:
        return node
    names = _Names(scope)
    made = node.visit(names)
    return made if isinstance(made, cst.BaseExpression) and not names.lost else None


# --- statements --------------------------------------------------------------------------------------


def call_of(statement: cst.CSTNode) -> cst.Call | None:
    """The call that a statement is (`f(x)` or `return f(x)`)."""
    if isinstance(statement, cst.Expr | cst.Return) and isinstance(statement.value, cst.Call):
        return statement.value
    return None


def is_write(call: cst.Call, scope: Scope) -> bool:
    """Whether the call writes to the client: `self.wfile.write(…)`, or by another name."""
    name = name_of(call.func)
    if name in scope.values:
        name = name_of(scope.values[name][0])
    return name.endswith("wfile.write")


def writes(statement: cst.CSTNode, scope: Scope) -> Pieces:
    """What one statement writes, helpers followed; nothing: (). Notes in `scope` what it says of names."""
    if (given := assigned(statement)) is not None:
        scope.values[given[0]] = (given[1], None)
    call = call_of(statement)
    if call is None:
        return UNKNOWN if may_write(statement, scope) else ()
    if is_write(call, scope):
        return told(call.args[0].value, scope) if len(call.args) == 1 else UNKNOWN
    helper = helper_of(call, scope)
    if helper is None:
        return UNKNOWN if may_write(call, scope) else ()
    inner = inside(helper, call, scope)
    if isinstance(helper, cst.Lambda):
        body = cst.Expr(helper.body)
        return (writes(body, inner) if inner else UNKNOWN) if may_write(helper, scope) else ()
    if inner is None:
        return UNKNOWN if may_write(helper, scope) else ()
    return joined(_block(helper.body, inner))


def assigned(statement: cst.CSTNode) -> tuple[str, cst.BaseExpression] | None:
    """The name that a statement gives a value, and the value; None if it gives none, or several."""
    match statement:
        case cst.Assign(targets=[cst.AssignTarget(target=target)], value=value) if name_of(target):
            return name_of(target), value
        case cst.AnnAssign(target=target, value=cst.BaseExpression() as value) if name_of(target):
            return name_of(target), value
        case _:
            return None


def _block(body: cst.CSTNode, scope: Scope) -> Iterable[Piece]:
    """What a block writes if it runs through without a turn."""
    assert isinstance(body, cst.BaseSuite)
    for statement in body.body:
        match statement:
            case cst.SimpleStatementLine():
                for small in statement.body:
                    yield from writes(small, scope)
            case cst.BaseSmallStatement():
                yield from writes(statement, scope)
            case cst.With():
                yield from _block(statement.body, scope)
            case cst.Try() if not any(
                may_write(part, scope) for part in (*statement.handlers, statement.finalbody) if part
            ):
                yield from _block(statement.body, scope)
            case _ if may_write(statement, scope):
                yield Unknown()
            case _:
                pass


class _Write(cst.CSTVisitor):
    def __init__(self, root: cst.CSTNode, scope: Scope, depth: int) -> None:
        self.root = root
        self.scope = scope
        self.depth = depth
        self.found = False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return node is self.root  # another one writes when it is called

    def visit_Call(self, node: cst.Call) -> None:
        self.found = self.found or is_write(node, self.scope) or name_of(node.func).endswith(OTHER_WRITES)
        if not self.found and (helper := helper_of(node, self.scope)) is not None:
            self.found = self.depth >= DEEPEST or may_write(helper, self.scope, self.depth + 1)


def may_write(node: cst.CSTNode, scope: Scope, depth: int = 0) -> bool:
    """Whether something in it writes to the client, by itself or by a helper."""
    found = _Write(node, scope, depth)
    node.visit(found)
    return found.found
