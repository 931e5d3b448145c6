"""Says which regular expressions of a client's JSON schema may take exponential time.

Python's `re` backtracks and cannot be interrupted, so such a pattern must not run. The check is cheap and careful
rather than exact: it refuses a repeated group that repeats something inside or has overlapping alternatives, unless a
separator between the rounds makes it harmless (`(-[a-z]+)*`). It runs no pattern on text; slow but polynomial
patterns pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_PATTERN_CHARACTERS = 1_000

_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?[:=!]|\(\?<[=!]|\(\?P?<\w+>|[\s\S]")
_REPEAT = re.compile(r"[*+?]|\{\d*(?:,\d*)?\}")
_FIXED_COUNT = re.compile(r"\{\d+\}")
_ANCHORS = frozenset({"^", "$", "\\b", "\\B", "\\A", "\\Z"})
_ASCII = "".join(map(chr, range(128)))


@dataclass(slots=True)
class _Group:
    """What is known of a group. "" stands for an atom that is not one certain character class."""

    varies: bool = False
    """Something inside is repeated a varying number of times."""
    atoms: list[str] = field(default_factory=list[str])
    """All single atoms inside, also those of inner groups."""
    firsts: list[str] = field(default_factory=lambda: [""])
    """The first atom of every alternative."""
    last: str = ""
    empty: bool = True
    """Nothing of the current alternative was read yet."""

    def add(self, atom: str) -> None:
        if self.empty:
            self.firsts[-1] = atom
        self.last, self.empty = atom, False

    def next_alternative(self) -> None:
        self.firsts.append("")
        self.empty = True


def pattern_fault(pattern: str) -> str | None:
    """Why `pattern` must not run, or None. Does not block for long, whatever the pattern."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        return f"it has {len(pattern)} characters; at most {MAX_PATTERN_CHARACTERS} are allowed"
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"it is not a regular expression ({error})"
    if _nested_repeat(pattern):
        return "it repeats a group whose rounds can be divided in many ways, which can take exponential time"
    return None


def _nested_repeat(pattern: str) -> bool:
    groups = [_Group()]
    at = 0
    while at < len(pattern):
        atom = _ATOM.match(pattern, at)
        assert atom is not None
        token, at = atom.group(), atom.end()
        if token.startswith("("):
            groups.append(_Group())
        elif token == "|":
            groups[-1].next_alternative()
        elif token not in _ANCHORS:
            closed = groups.pop() if token == ")" else None
            repeat = _REPEAT.match(pattern, at)
            if repeat is not None:
                at = repeat.end() + (pattern[repeat.end() : repeat.end() + 1] in ("?", "+"))
            if _take(groups[-1], token, closed, repeat.group() if repeat else "", pattern):
                return True
    return False


def _take(outer: _Group, token: str, closed: _Group | None, repeat: str, pattern: str) -> bool:
    """Add an atom or a closed group to the group around it. True if the closed group must not be repeated so."""
    if closed is not None and repeat and _unbounded(repeat) and _dangerous(closed, pattern):
        return True
    outer.varies |= repeat != "" and _FIXED_COUNT.fullmatch(repeat) is None
    if closed is None:
        outer.atoms.append(token)
        outer.add("" if repeat else token)
    else:
        outer.varies |= closed.varies or len(closed.firsts) > 1
        outer.atoms += closed.atoms
        outer.add(closed.atoms[0] if len(closed.atoms) == 1 and not closed.varies and not repeat else "")
    return False


def _unbounded(repeat: str) -> bool:
    if repeat in ("*", "+"):
        return True
    most = re.findall(r"\d+|,", repeat)[-1:]
    return most == [","] or (most != [] and int(most[0]) > 10)


def _dangerous(group: _Group, pattern: str) -> bool:
    """Whether the rounds of the repeated group can be divided in more than one way."""
    alphabet = _ASCII + "".join(sorted({char for char in pattern if ord(char) > 127}))
    if len(group.firsts) > 1:
        sets = [_characters(first, alphabet) for first in group.firsts]
        if any(not chars for chars in sets) or sum(map(len, sets)) > len(frozenset[str]().union(*sets)):
            return True
    if not group.varies:
        return False
    if len(group.firsts) > 1:
        return True
    return not any(_separates(edge, group, alphabet) for edge in (group.firsts[0], group.last))


def _separates(edge: str, group: _Group, alphabet: str) -> bool:
    """Whether `edge` begins or ends every round and nothing else in the group can stand for it."""
    separators = _characters(edge, alphabet)
    if not separators or group.atoms.count(edge) > 1:
        return False
    others = {atom for atom in group.atoms if atom != edge}
    return all(separators.isdisjoint(_characters(atom, alphabet)) for atom in others)


def _characters(atom: str, alphabet: str) -> frozenset[str]:
    """Those of `alphabet` that the atom matches (none for "", a group reference or an anchor)."""
    if not atom:
        return frozenset()
    return frozenset(re.findall(atom if atom != "." else r"[\s\S]", alphabet))
