"""Finds the `except` clauses of the chat stream that end it by hand, and rewrites them to `_sse_error`.

What the added functions look like is `additions`' job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from tools.strata_patch.additions import ENDING
from tools.strata_patch.written import (
    Hole,
    Piece,
    Scope,
    Unknown,
    assigned,
    call_of,
    joined,
    may_write,
    name_of,
    told,
    writes,
)

LOOKED_FOR = (
    "looked for an `except` of the chat stream that writes `data: {the error object}` and `data: [DONE]` "
    "with wfile.write, one after the other"
)
_BY_HAND = re.compile(r"data: ?\0(?:\r?\n){2}data: ?\[DONE\](?:\r?\n){2}")


@dataclass(frozen=True, slots=True)
class Ended:
    """One `except`, read. `body`: rewritten, if it ended the stream by hand. `odd`: it writes an ending in a way that
    is not understood; what that is. `doubtful`: the same of what may be no ending, unless others of its `try` are."""

    body: cst.BaseSuite | None = None
    odd: str = ""
    doubtful: str = ""


def text_of(pieces: Iterable[Piece]) -> str:
    """The text with a NUL for each JSON, and a SUB for what is not known."""
    return "".join(piece if isinstance(piece, str) else "\0" if isinstance(piece, Hole) else "\x1a" for piece in pieces)


def read_except(handler: cst.ExceptHandler, scope: Scope, request: str, kept: frozenset[str] = frozenset()) -> Ended:
    """What an `except` of a function does to its stream. `request`: the name of the request there; `kept`: names that
    are used outside of it."""
    reader = _Reader(request, handler, kept)
    scope = replace(scope, values=dict(scope.values))
    body = reader.suite(handler.body, scope)
    left = text_of(reader.left)
    odd, doubtful = reader.odd, ""
    if "event:" in left:
        pass
    elif "[DONE]" in left and ("\0" in left or "\x1a" in left):
        odd = odd or "it writes the error object and [DONE] in a way that is not known"
    elif re.search(r"data: ?\0", left):
        doubtful = "it writes an error object without [DONE]"
    elif "[DONE]" in left:
        doubtful = "it writes [DONE] and nothing of which an error object is known"
    elif "\x1a" in left:
        doubtful = "it writes something that could not be worked out"
    return Ended(body=body if reader.rewritten else None, odd=odd, doubtful=doubtful)


class _Reader:
    """Reads the blocks of one `except`, and rewrites those that hold a whole ending."""

    def __init__(self, request: str, handler: cst.ExceptHandler, kept: frozenset[str]) -> None:
        self.request = request
        self.handler = handler
        self.kept = kept
        self.rewritten = 0
        self.odd = ""
        self.left: list[Piece] = []
        """What is written by blocks that were not rewritten."""

    def suite(self, suite: cst.BaseSuite, scope: Scope) -> cst.BaseSuite:
        if isinstance(suite, cst.SimpleStatementSuite):
            return suite.with_changes(body=self._smalls(suite.body, self._plan([suite.body], scope), 0))
        assert isinstance(suite, cst.IndentedBlock)
        lines = [one.body if isinstance(one, cst.SimpleStatementLine) else () for one in suite.body]
        before = replace(scope, values=dict(scope.values))
        plan = self._plan(lines, scope)
        made: list[cst.BaseStatement] = []
        comments: list[cst.EmptyLine] = []
        for number, statement in enumerate(suite.body):
            if not isinstance(statement, cst.SimpleStatementLine):
                changed: cst.BaseStatement = self._compound(statement, before if not plan else scope)
            else:
                smalls = self._smalls(statement.body, plan, number)
                if not smalls:  # the line goes; what was said about it stays
                    comments += _comments(statement)
                    continue
                changed = statement if smalls == list(statement.body) else statement.with_changes(body=smalls)
            if comments:
                changed = changed.with_changes(leading_lines=[*comments, *changed.leading_lines])  # type: ignore[attr-defined]  # all statements of a block have them
                comments = []
            made.append(changed)
        return suite.with_changes(body=made, footer=[*comments, *suite.footer])

    def _compound(self, statement: cst.BaseStatement, scope: Scope) -> cst.BaseStatement:
        """The same for the blocks of `if`, `with` and `try`."""
        scope = replace(scope, values=dict(scope.values))
        match statement:
            case cst.If():
                made = statement.with_changes(body=self.suite(statement.body, scope))
                if isinstance(statement.orelse, cst.If):
                    return made.with_changes(orelse=self._compound(statement.orelse, scope))
                if statement.orelse is not None:
                    other = statement.orelse.with_changes(body=self.suite(statement.orelse.body, scope))
                    return made.with_changes(orelse=other)
                return made
            case cst.With():
                return statement.with_changes(body=self.suite(statement.body, scope))
            case cst.Try():
                handlers = [one.with_changes(body=self.suite(one.body, scope)) for one in statement.handlers]
                made = statement.with_changes(body=self.suite(statement.body, scope), handlers=handlers)
                if statement.finalbody is not None:
                    last = statement.finalbody.with_changes(body=self.suite(statement.finalbody.body, scope))
                    return made.with_changes(finalbody=last)
                return made
            case _:
                self.left += [Unknown()] if may_write(statement, scope) else []
                return statement

    def _plan(
        self, lines: Sequence[Sequence[cst.BaseSmallStatement]], scope: Scope
    ) -> Mapping[tuple[int, int], cst.BaseExpression | None]:
        """Which statements of a block change: to `_sse_error` with this error object, or (None) away."""
        found: list[tuple[tuple[int, int], tuple[Piece, ...]]] = []
        for number, line in enumerate(lines):
            for position, small in enumerate(line):
                call = call_of(small)
                ours = call is not None and name_of(call.func) == f"self.{ENDING}"
                if not ours and (pieces := writes(small, scope)):
                    found.append(((number, position), pieces))
        whole = joined(piece for _, pieces in found for piece in pieces)
        if not _BY_HAND.fullmatch(text_of(whole)):
            self.left += whole
            return {}
        (hole,) = [piece for piece in whole if isinstance(piece, Hole)]
        if hole.value is None:
            self.odd = "its error object is made inside a helper"
            return {}
        target, last = next(place for place, pieces in found if hole in pieces), found[-1][0]
        places = [(number, position) for number, line in enumerate(lines) for position in range(max(1, len(line)))]
        if set(places[places.index(target) : places.index(last) + 1]) <= {place for place, _ in found}:
            target = last
        elif isinstance(lines[last[0]][last[1]], cst.Return):
            self.odd = "it returns the write of [DONE], and does something else before it"
            return {}
        self.rewritten += 1
        plan = {place: hole.value if place == target else None for place, _ in found}
        used = names_in([lines[line][position] for line, position in plan])
        for number, line in enumerate(lines):
            for position, small in enumerate(line):
                if self._needless(small, scope, used):
                    plan[number, position] = None
        return plan

    def _needless(self, small: cst.BaseSmallStatement, scope: Scope, used: Counter[str]) -> bool:
        """Whether a statement makes the JSON text for the writes that go, and nothing else needs it."""
        if (given := assigned(small)) is None:
            return False
        name, value = given
        makes_text = any(isinstance(piece, Hole) for piece in told(value, scope))
        everywhere = names_in([self.handler.body])[name]
        return makes_text and "." not in name and name not in self.kept and everywhere == used[name] + 1

    def _smalls(
        self,
        smalls: Sequence[cst.BaseSmallStatement],
        plan: Mapping[tuple[int, int], cst.BaseExpression | None],
        number: int,
    ) -> list[cst.BaseSmallStatement]:
        made: list[cst.BaseSmallStatement] = []
        for position, small in enumerate(smalls):
            if (number, position) not in plan:
                made.append(small)
            elif (error := plan[number, position]) is not None:
                made.append(self._ending(small, error))
        if made and len(made) < len(smalls):  # the last one of a line has the line's own semicolon, or none
            made[-1] = made[-1].with_changes(semicolon=smalls[-1].semicolon)  # type: ignore[attr-defined]  # every small statement has it
        return made

    def _ending(self, small: cst.BaseSmallStatement, error: cst.BaseExpression) -> cst.BaseSmallStatement:
        # without a name for the request nothing is written; the caller sees to that
        request = cst.Name(self.request or "req")
        ending = cst.Call(cst.Attribute(cst.Name("self"), cst.Name(ENDING)), [cst.Arg(error), cst.Arg(request)])
        return small.with_changes(value=ending)


class _Names(cst.CSTVisitor):
    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def visit_Name(self, node: cst.Name) -> None:
        self.found[node.value] += 1


def names_in(nodes: Iterable[cst.CSTNode]) -> Counter[str]:
    """How often each name stands in these."""
    names = _Names()
    for node in nodes:
        node.visit(names)
    return names.found


def _comments(line: cst.SimpleStatementLine) -> list[cst.EmptyLine]:
    kept = [one for one in line.leading_lines if one.comment is not None]
    if line.trailing_whitespace.comment is not None:
        kept.append(cst.EmptyLine(comment=line.trailing_whitespace.comment, newline=line.trailing_whitespace.newline))
    return kept
