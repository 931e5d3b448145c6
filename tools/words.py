"""A command or options that were given as one line -> words, on each system as its users quote. It runs nothing."""

from __future__ import annotations

import shlex
import sys


def split_words(line: str, *, windows: bool = sys.platform == "win32") -> list[str]:
    """As a shell splits; on Windows a backslash is part of a path, and only double quotes quote.

    Raises: ValueError: a quote is not closed.
    """
    if not windows:
        return shlex.split(line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.escape, lexer.quotes, lexer.commenters = True, "", '"', ""
    return list(lexer)
