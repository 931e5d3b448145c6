"""All checks, in the order in which they are judged, and the choice of some of them."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from tools.conform_checks import (
    beats,
    calls,
    cancel,
    chats,
    endings,
    errors,
    faults,
    framing,
    messages,
    queueing,
    responses,
    sequence,
    usage,
)
from tools.conform_checks.check import GROUPS, SCOPES, Check, Scope
from tools.probe.exits import CouldNotRun

_MODULES = (
    *(endings, chats, responses, messages, sequence, calls, usage, errors, framing, cancel, queueing, beats, faults),
)
CHECKS: tuple[Check, ...] = tuple(
    sorted(
        (check for module in _MODULES for check in module.CHECKS),
        key=lambda check: GROUPS.index(check.group),
    )
)

Chosen = list[tuple[Check, Scope]]


def chosen(only: Sequence[str], skip: Sequence[str]) -> Chosen:
    """The cells that are judged. A word is a check's id, a group, an API, a severity, `id/api` or `group/api`; `*`
    stands for anything.

    Raises: CouldNotRun: a word names nothing, or nothing is left.
    """
    cells: Chosen = [(check, scope) for check in CHECKS for scope in check.scopes]
    for word in (*only, *skip):
        if not any(_named(word, check, scope) for check, scope in cells):
            raise CouldNotRun(
                f"{word!r} is no check, group, API or severity; --list shows the checks, groups are "
                f"{', '.join(GROUPS)}, APIs {', '.join(SCOPES)}"
            )
    left: Chosen = [
        (check, scope)
        for check, scope in cells
        if (not only or any(_named(word, check, scope) for word in only))
        and not any(_named(word, check, scope) for word in skip)
    ]
    if not left:
        raise CouldNotRun("--only and --skip leave no check")
    return left


def _named(word: str, check: Check, scope: Scope) -> bool:
    names = (check.id, check.group, check.severity, scope, f"{check.id}/{scope}", f"{check.group}/{scope}")
    return any(fnmatchcase(name, word) for name in names)
