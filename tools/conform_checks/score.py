"""Judges a server, cell by cell, and holds what came of it: in memory, as JSON, and two of them beside each other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.conform_checks.bench import Bench
from tools.conform_checks.check import RESULTS, SCOPES, Cell, Check, NotSeen, NotThere, Result, Scope
from tools.conform_checks.table import CHECKS, Chosen
from tools.probe.exits import COULD_NOT_RUN, LIE, TRUTHFUL, CouldNotRun
from tools.probe.report import JUnitCase
from tools.probe.target import APIS
from tools.probe.values import Json, as_int, as_list, as_object, as_text, parsed

FORMAT = 1
"""Of the JSON file."""


@dataclass(frozen=True, slots=True)
class Score:
    """`server`: its URL, or a name for it. `left`: how many cells were not judged, because somebody stopped it."""

    server: str
    model: str
    cells: tuple[Cell, ...]
    left: int = 0

    def counts(self) -> Counter[Result]:
        return Counter(cell.result for cell in self.cells)

    def failed(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.result == "failed"]

    @property
    def status(self) -> int:
        """The exit status."""
        if any(cell.untrue for cell in self.cells):
            return LIE
        counts = self.counts()
        return TRUTHFUL if counts["passed"] + counts["failed"] and not self.left else COULD_NOT_RUN

    def as_json(self) -> Json:
        return {
            "format": FORMAT,
            "server": self.server,
            "model": self.model,
            "counts": {result: self.counts()[result] for result in RESULTS},
            "left": self.left,
            "checks": [
                {
                    "id": cell.check.id,
                    "api": cell.scope,
                    "group": cell.check.group,
                    "severity": cell.check.severity,
                    "truth": cell.check.truth,
                    "source": cell.check.source,
                    "result": cell.result,
                    "text": cell.text,
                    "took_s": round(cell.took_s, 3),
                }
                for cell in self.cells
            ],
        }


def judge_all(bench: Bench, cells: Chosen, each: Callable[[Check, Scope], object], name: str) -> Score:
    """Blocks: minutes on a slow server. `each` is told what is judged next. Ctrl-C ends it: what was judged until then
    is the score, and `left` says how many were not.

    Raises: CouldNotRun: the server cannot be reached, or answers in none of the APIs. KeyboardInterrupt: before the
    first result.
    """
    _need_answers(bench, {scope for _, scope in cells})
    made: list[Cell] = []
    try:
        for check, scope in cells:
            each(check, scope)
            made.append(judge(bench, check, scope))
    except KeyboardInterrupt:
        if not made:
            raise
    return Score(name, bench.model, tuple(made), len(cells) - len(made))


def _need_answers(bench: Bench, scopes: set[Scope]) -> None:
    """Without one plain answer nothing can be judged: every refusal would look like a fault.

    Raises: CouldNotRun.
    """
    silent: NotSeen | None = None
    for api in APIS:
        if api not in scopes and "server" not in scopes:
            continue
        try:
            bench.require(api)
        except NotThere:
            continue
        except NotSeen as why:
            silent = silent or why
            if bench.hangs(api):
                break  # it would take as long again for each API
        else:
            return
    if silent is not None:
        raise CouldNotRun(f"{bench.target.shown}: {silent}")
    told = "none of the APIs" if "server" in scopes else f"no API of these: {', '.join(sorted(scopes))}"
    raise CouldNotRun(f"{bench.target.shown}: the server has {told}; is this the base URL?")


def judge(bench: Bench, check: Check, scope: Scope) -> Cell:
    begun = time.perf_counter()
    result, text = _judged(bench, check, scope)
    return Cell(check, scope, result, text, time.perf_counter() - begun)


def _judged(bench: Bench, check: Check, scope: Scope) -> tuple[Result, str]:
    try:
        if scope == "server":
            api = bench.apis()[0]
        else:
            api = scope
            bench.require(api)
        text = check.judge(bench, api)
    except NotThere as why:
        return "not there", str(why)
    except (NotSeen, CouldNotRun) as why:
        return "not seen", str(why)
    return ("passed", "") if text is None else ("failed", text)


def junit(score: Score) -> list[JUnitCase]:
    return [_case(cell) for cell in score.cells]


def _case(cell: Cell) -> JUnitCase:
    name = f"{cell.check.id}/{cell.scope}"
    told = f"{cell.check.truth} {cell.text}".strip()
    if cell.untrue:
        return JUnitCase(cell.check.group, name, "failure", cell.text, told, cell.took_s)
    if cell.result in ("not seen", "not there"):
        return JUnitCase(cell.check.group, name, "skipped", f"{cell.result}: {cell.text}", told, cell.took_s)
    return JUnitCase(cell.check.group, name, "passed", detail=f"risk: {told}" if cell.text else "", took_s=cell.took_s)


# --- read again -------------------------------------------------------------------------------------


def read_score(path: Path) -> Score:
    """A score of a `--json` file. Checks that are not known here any more are left out.

    Raises: CouldNotRun: it can't be read, or is none.
    """
    try:
        value = as_object(parsed(path.read_bytes()))
    except OSError as error:
        raise CouldNotRun(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CouldNotRun(f"{path} is not JSON: {error}") from None
    if value.get("format") != FORMAT:
        raise CouldNotRun(f"{path} is no score of this conform: format {value.get('format')!r}, not {FORMAT}")
    known = {check.id: check for check in CHECKS}
    cells = [cell for each in as_list(value.get("checks")) if (cell := _cell(as_object(each), known)) is not None]
    named = as_text(value.get("server")) or path.name
    return Score(named, as_text(value.get("model")) or "", tuple(cells), as_int(value.get("left")) or 0)


def _cell(value: Json, known: dict[str, Check]) -> Cell | None:
    check = known.get(as_text(value.get("id")) or "")
    scope: Scope | None = next((scope for scope in SCOPES if scope == value.get("api")), None)
    result: Result | None = next((result for result in RESULTS if result == value.get("result")), None)
    if check is None or scope is None or result is None:
        return None
    return Cell(check, scope, result, as_text(value.get("text")) or "")


@dataclass(frozen=True, slots=True)
class Pair:
    """One cell at two servers; None: it was not judged there."""

    check: Check
    scope: Scope
    first: Cell | None
    second: Cell | None

    @property
    def differs(self) -> bool:
        """One of them fails, and the other does not."""
        return (_result(self.first) == "failed") != (_result(self.second) == "failed")

    @property
    def one_sided(self) -> bool:
        """It was judged at one of them alone."""
        judged = [_result(cell) in ("passed", "failed") for cell in (self.first, self.second)]
        return judged[0] != judged[1]

    @property
    def worse(self) -> bool:
        """The second server is untrue where the first is true."""
        return _result(self.first) == "passed" and self.second is not None and self.second.untrue


def _result(cell: Cell | None) -> Result | None:
    return cell.result if cell is not None else None


def pairs(first: Score, second: Score) -> list[Pair]:
    """In the order of the table; cells that neither has are left out."""
    mine, theirs = _by_name(first.cells), _by_name(second.cells)
    made: list[Pair] = []
    for check in CHECKS:
        for scope in check.scopes:
            cells = mine.get((check.id, scope)), theirs.get((check.id, scope))
            if cells != (None, None):
                made.append(Pair(check, scope, *cells))
    return made


def _by_name(cells: Iterable[Cell]) -> dict[tuple[str, Scope], Cell]:
    return {(cell.check.id, cell.scope): cell for cell in cells}
