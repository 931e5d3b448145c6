"""What a checker says: tables and progress for people, JSON and JUnit XML for programs. The key is in none of them.

It judges nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, TextIO
from xml.etree import ElementTree

from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.table import Table

from tools.probe.exits import COULD_NOT_RUN, CouldNotRun
from tools.probe.progress import PlainProgress, bar
from tools.probe.secret import Secret, find_secret

PIPED_WIDTH = 120
"""Columns where nobody says how many there are."""
CELL_CHARACTERS = 1_000
"""A longer foreign text is cut where people read it."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What could take hold of a terminal, or turn its text around."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _HidingStream:
    """A text stream that takes the key out of what is written to it: rich writes whole lines at once."""

    def __init__(self, stream: TextIO, secret: Secret) -> None:
        self._stream = stream
        self._secret = secret

    def write(self, text: str) -> int:
        self._stream.write(self._secret.hide(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:
        return self._stream.encoding


class _Console(Console):
    """One whose reader may leave: what is left to do (files, the exit status) is still done."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, self.file.fileno())  # so that the interpreter's own last flush is quiet, too
        os.close(sink)


def visible(text: str) -> str:
    """The text with control characters written out; line ends and tabs stay."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


class Reporter:
    """Says everything, with the key taken out. `out` is stdout, `err` stderr (progress, errors).

    Foreign text goes through `Cell`s of tables or `say`, which read no markup.
    """

    def __init__(self, secret: Secret | None = None) -> None:
        self.secret = secret or Secret()
        self.out = self._console(sys.stdout)
        self.err = self._console(sys.stderr)

    def _console(self, stream: TextIO) -> Console:
        if callable(reconfigure := getattr(stream, "reconfigure", None)):
            reconfigure(errors="replace")  # a console of an old code page
        hiding: TextIO = _HidingStream(stream, self.secret)  # pyright: ignore[reportAssignmentType] - what rich uses of a stream
        console = _Console(file=hiding, highlight=False, markup=False, emoji=False)
        if not console.is_terminal:
            console.width = max(console.width, PIPED_WIDTH)
        return console

    def say(self, text: str, style: str | None = None) -> None:
        self.out.print(visible(self.secret.hide(text)), style=style, soft_wrap=True)

    def show(self, what: RenderableType) -> None:
        self.out.print(what)

    def complain(self, text: str) -> None:
        self.err.print(visible(self.secret.hide(text)), style="red", soft_wrap=True)

    def cell(self, text: object) -> str:
        """A text for a table: without the key, which rich could break over two lines."""
        told = visible(self.secret.hide(str(text)))
        return told if len(told) <= CELL_CHARACTERS else told[: CELL_CHARACTERS - 1] + "…"

    def progress(self) -> Progress:
        """A bar on stderr that is gone afterwards; a plain line now and then where stderr is no terminal. Use as a
        context manager."""
        return bar(self.err) if self.err.is_terminal else PlainProgress(self.err)

    def write_json(self, path: Path, value: object) -> None:
        """Raises: CouldNotRun: the file can't be written."""
        self._write(path, json.dumps(self.secret.hidden_in(value), indent=1, ensure_ascii=False) + "\n")

    def write_text(self, path: Path, text: str) -> None:
        """Raises: CouldNotRun: the file can't be written."""
        self._write(path, self.secret.hide(text))

    def _write(self, path: Path, text: str) -> None:
        try:
            path.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            raise CouldNotRun(f"{path} cannot be written: {error.strerror}") from None

    def write_junit(self, path: Path, suite: str, cases: Iterable[JUnitCase]) -> None:
        """Raises: CouldNotRun: the file can't be written."""
        made = list(cases)
        counts = {word: str(sum(case.result == word for case in made)) for word in ("failure", "error", "skipped")}
        fields = {"name": suite, "tests": str(len(made)), "time": f"{sum(case.took_s for case in made):.3f}"}
        fields |= {"failures": counts["failure"], "errors": counts["error"], "skipped": counts["skipped"]}
        root = ElementTree.Element("testsuites")
        suite_element = ElementTree.SubElement(root, "testsuite", fields)
        for case in made:
            fields = {"classname": f"{suite}.{case.group}", "name": case.name, "time": f"{case.took_s:.3f}"}
            element = ElementTree.SubElement(suite_element, "testcase", {k: self._xml(v) for k, v in fields.items()})
            if case.result != "passed":
                child = ElementTree.SubElement(element, case.result, message=self._xml(case.message))
                child.text = self._xml(case.detail)
            elif case.detail:
                ElementTree.SubElement(element, "system-out").text = self._xml(case.detail)
        ElementTree.indent(root, " ")
        self._write(path, '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n")

    def _xml(self, text: str) -> str:
        return _NOT_XML.sub("\ufffd", self.secret.hide(text))


@dataclass(frozen=True, slots=True)
class JUnitCase:
    """`failure`: a lie was seen; `error`: it could not be checked."""

    group: str
    name: str
    result: Literal["passed", "failure", "error", "skipped"]
    message: str = ""
    detail: str = ""
    took_s: float = 0.0


def table(title: str | None, *columns: str) -> Table:
    """A table whose long cells fold; nothing of them is left out."""
    made = Table(title=title, title_justify="left", show_lines=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors name options, never their values: one of them may be a key."""

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        args, extra = self.parse_known_args(argv)
        if extra:
            names = [word.partition("=")[0] for word in extra if word.startswith("-")]
            self.error(f"unknown: {', '.join(names) or 'an argument too many'}; --help lists what there is")
        return args

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"(invalid \w+(?: value)?): '.*?'(?= \(|$)", r"\1", message, flags=re.DOTALL)
        self.print_usage(sys.stderr)
        self.exit(COULD_NOT_RUN, f"{self.prog}: {message}\n")


def run_checker(check: Callable[[Reporter], int], key: str | None = None, *, messages: bool = False) -> int:
    """Run a checker's body with the key that was given, or that of the environment. CouldNotRun, Ctrl-C and a fault of
    the checker's own become lines on stderr and a status."""
    reporter = Reporter()
    try:
        reporter = Reporter(find_secret(key, messages=messages))
        return check(reporter)
    except CouldNotRun as error:
        reporter.complain(f"could not check: {error}")
    except KeyboardInterrupt:
        reporter.complain("stopped")
    except Exception:  # noqa: BLE001 - handler's top: a traceback may show the key, and its status 1 would mean a lie
        reporter.complain(f"{traceback.format_exc()}could not check: a fault of the checker's own; please report it")
    return COULD_NOT_RUN
