"""The command line of the patch.

    python -m tools.strata_patch CHECKOUT [--check | --apply | --revert] [--force]

It reads no Python and writes no files itself.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.strata_patch import checkout
from tools.strata_patch.checkout import Change, Refused

NOTHING, WOULD_CHANGE, NOT_UNDERSTOOD, REFUSED = 0, 1, 2, 3
SERVER = "serve/server.py"
TEST = "serve/test_fatal_recovery.py"
EXITS = """\
Exit status: 0 done, or nothing to do; 1 --check would change something; 2 a file has a shape that the patch does not
know (it is left alone), or a usage error; 3 refused: not a checkout, files with changes that are not committed, or
changed since the patch."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tools.strata_patch",
        description="Lets the chat streams of a Strata checkout end truthfully when they fail: the error object, a "
        'closing chunk with finish_reason "error", [DONE].',
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("checkout", type=Path, metavar="CHECKOUT", help=f"folder with {SERVER}")
    what = made.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="print what would change, as a diff (the default)")
    what.add_argument("--apply", action="store_true", help=f"change it; {checkout.BACKUP} keeps what was there")
    what.add_argument("--revert", action="store_true", help="put back what was there before --apply, byte for byte")
    made.add_argument("--force", action="store_true", help="also change files whose changes are not committed in git")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    for stream in (sys.stdout, sys.stderr):  # source may hold what a console's code page lacks
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a text stream of the system
    given = parser().parse_args(arguments)
    try:
        if given.revert:
            names = checkout.revert(given.checkout)
            print(f"reverted: {', '.join(names) or 'nothing, all is as it was'}")
            return NOTHING
        return _patch(given.checkout, apply=given.apply, force=given.force)
    except Refused as error:
        return _fail(REFUSED, str(error))


def _patch(root: Path, *, apply: bool, force: bool) -> int:
    try:
        from tools.strata_patch.changes import changes_of
        from tools.strata_patch.source import NotUnderstood
    except ModuleNotFoundError as error:
        if error.name != "libcst":
            raise
        return _fail(REFUSED, "the patch needs libcst: python -m pip install 'strata-serve[patch]'")
    if not (root / SERVER).is_file():
        raise Refused(f"{root}: no {SERVER} in it; CHECKOUT is the folder that holds `serve`")
    try:
        changes, notes = changes_of(root, SERVER, TEST)
    except NotUnderstood as error:
        return _fail(NOT_UNDERSTOOD, f"{error}; nothing was changed")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if not changes:
        print("nothing to do")
        return NOTHING
    if not apply:
        _show(b"".join(_diff(changes)))
        return WOULD_CHANGE
    if not force:
        checkout.refuse_uncommitted(root, [change.name for change in changes])
    checkout.apply(root, changes)
    print(f"patched: {', '.join(change.name for change in changes)} (--revert puts it back)")
    return NOTHING


def _diff(changes: Iterable[Change]) -> Iterable[bytes]:
    """As `git apply` takes it, byte for byte."""
    for change in changes:
        before, after = (_lines(data) for data in (change.before, change.after))
        names = (f"a/{change.name}".encode(), f"b/{change.name}".encode())
        for line in difflib.diff_bytes(difflib.unified_diff, before, after, *names):
            yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def _lines(data: bytes) -> list[bytes]:
    """Only a line feed ends a line here, as in git."""
    return [line + b"\n" for line in data.split(b"\n")[:-1]] + ([last] if (last := data.split(b"\n")[-1]) else [])


def _show(diff: bytes) -> None:
    """On a console as text that it can have; into a file or pipe as it is."""
    if sys.stdout.isatty():
        sys.stdout.write(diff.decode("utf-8", "backslashreplace").replace("\r\n", "\n"))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(diff)


def _fail(status: int, text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return status
