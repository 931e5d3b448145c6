"""One answer, one terminal: `sealed` makes it certain, whatever the source does.

It does not decide what a terminal looks like on the wire and knows no engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

from engine.api import Cancel, failed_of
from engine.events import Cancelled, Event, Failed, FailKind, Finished, Terminal

log = logging.getLogger("strata.terminal")


def sealed(
    source: Iterator[Event], cancel: Cancel, settle: Callable[[Terminal], None] = lambda terminal: None
) -> Generator[Event, None, None]:
    """Pass on the source's events and end with exactly one terminal.

    A source that ends without one gives `Failed(CUT)` (or `Cancelled`, if that was asked for); one that raises gives
    the `Failed` of its exception; whatever follows the first terminal is not read. The source is closed and `settle`
    called once with the terminal before the reader sees it; if `settle` raises, the terminal is its `Failed`. A reader
    that leaves early settles `Cancelled`. Blocks as long as the source does.
    """
    terminal: Terminal | None = None
    settled = False
    try:
        try:
            for event in source:
                if isinstance(event, Finished | Cancelled | Failed):
                    terminal = event
                    break
                yield event
        except Exception as error:
            terminal = failed_of(error)
            if terminal.kind is FailKind.INTERNAL:
                log.exception("internal error while answering")
        if terminal is None:
            terminal = _without_terminal(cancel)
        _close(source)
        settled = True
        terminal = _settle(settle, terminal)
        yield terminal
    finally:
        if not settled:  # the reader left (GeneratorExit) before the terminal
            _close(source)
            _settle(settle, Cancelled(cancel.by))


def _without_terminal(cancel: Cancel) -> Terminal:
    if cancel.is_set():
        return Cancelled(cancel.by)
    return Failed(FailKind.CUT, "the engine ended the answer without saying how")


def _close(source: Iterator[Event]) -> None:
    close = getattr(source, "close", None)  # generators have it; other iterators need not
    if close is None:
        return
    try:
        close()
    except Exception:
        log.exception("closing the source of an answer failed")


def _settle(settle: Callable[[Terminal], None], terminal: Terminal) -> Terminal:
    try:
        settle(terminal)
    except Exception as error:
        log.exception("the outcome of an answer could not be recorded")
        return replace(failed_of(error), usage=terminal.usage)
    return terminal
