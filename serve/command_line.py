"""A command as one line of text -> its words, by the rules of the system that it will run on.

It starts nothing and knows no shell: no variables, no pipes, no patterns.
"""

from __future__ import annotations

import sys


def split_command(line: str) -> tuple[str, ...]:
    """The words of a command line, as a POSIX shell quotes them; on Windows as `CommandLineToArgvW` does.

    Raises: ValueError: a quote has no end (Windows minds none).
    """
    if not line.strip():
        return ()  # Windows would give the name of our own program
    if sys.platform == "win32":
        return _split_windows(line.strip())
    import shlex

    return tuple(shlex.split(line))


if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _split = ctypes.WinDLL("shell32", use_last_error=True).CommandLineToArgvW
    _split.argtypes = (wintypes.LPCWSTR, ctypes.POINTER(ctypes.c_int))
    _split.restype = ctypes.POINTER(wintypes.LPWSTR)
    _free = ctypes.WinDLL("kernel32").LocalFree
    _free.argtypes = (wintypes.HLOCAL,)
    _free.restype = wintypes.HLOCAL

    def _split_windows(line: str) -> tuple[str, ...]:
        count = ctypes.c_int()
        words = _split(line, ctypes.byref(count))
        if not words:
            raise ValueError(f"Windows cannot split it: {ctypes.WinError(ctypes.get_last_error())}")
        try:
            return tuple(words[i] or "" for i in range(count.value))
        finally:
            _free(words)
