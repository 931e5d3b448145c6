r"""Absolute Windows paths as text, on any system: checked, compared, refused with the character and the reason.

It looks at no disk. Only ASCII letters are compared in either case: two names that Windows would match beyond that are
taken for different ones, and never different ones for the same.
"""

from __future__ import annotations

import ntpath
import re
import string
from typing import Literal, TypeAlias

Reason: TypeAlias = Literal[
    "bad-env",
    "bad-option",
    "bad-path",
    "batch-program",
    "no-ascii-route",
    "not-windows",
    "nul-in-arg",
    "relative-path",
    "too-long",
    "unsafe-arg",
    "unsafe-batch-path",
]

CMD_PATH_CHARS = 259  # its limit of 260 counts the NUL
VERBATIM = "\\\\?\\"

_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class LauncherError(ValueError):
    """No batch file can do this; `reason` is for programs, the text for people."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason: Reason = reason


def windows_path(field: str, path: str) -> str:
    r"""The path with `\` only, normalised; one that begins with `\\?\` is as it is. `field` is for the errors.

    Raises: LauncherError: it is not absolute, or no file can have it.
    """
    shown = cut(path)
    path = path.replace("/", "\\")
    named = without_verbatim(path)
    drive, rest = ntpath.splitdrive(named)
    if named.startswith("\\\\.\\"):
        raise LauncherError("bad-path", f"{field}: {shown} names a device; give a path that begins with a drive")
    odd = next((char for char in drive[2:] + rest if char in '"<>|?*:' or char < " "), None)
    if odd is not None:
        raise LauncherError("bad-path", f"{field}: {shown} has {named_char(odd)}, which no Windows path can have")
    if path != named and not _whole(drive):
        raise LauncherError("bad-path", f"{field}: {shown} names a device; give a path that begins with a drive")
    if not _whole(drive) or not rest.startswith("\\"):
        advice = "is not an absolute Windows path; give it from its drive on"
        raise LauncherError("relative-path", f"{field}: {shown} {advice}")
    return path if path != named else ntpath.normpath(path)


def cmd_path(field: str, path: str) -> str:
    r"""As `windows_path`, for cmd, which cannot use `\\?\`.

    Raises: LauncherError: also where it needs that, being too long without.
    """
    named = without_verbatim(windows_path(field, path))
    if len(named) > CMD_PATH_CHARS and path.replace("/", "\\").startswith(VERBATIM):
        advice = f"has {len(named)} characters, and cmd can use {CMD_PATH_CHARS}; give a shorter path"
        raise LauncherError("bad-path", f"{field}: {cut(path)} {advice}")
    return ntpath.normpath(named)


def without_verbatim(path: str) -> str:
    r"""The path without `\\?\`; `\\?\UNC\server` is `\\server`."""
    if not path.startswith(VERBATIM):
        return path
    rest = path[len(VERBATIM) :]
    return "\\\\" + rest[4:] if rest[:4].upper() == "UNC\\" else rest


def relative(path: str, folder: str) -> str | None:
    """The path as seen from the folder; None on another drive."""
    (drive, rest), (other, base) = ntpath.splitdrive(path), ntpath.splitdrive(folder)
    if fold(drive) != fold(other):
        return None
    to, start = rest.strip("\\").split("\\"), [part for part in base.strip("\\").split("\\") if part]
    same = 0
    while same < min(len(to) - 1, len(start)) and fold(to[same]) == fold(start[same]):
        same += 1
    return "\\".join([".."] * (len(start) - same) + to[same:])


def device(name: str) -> str:
    """The device that Windows takes a file name for, whatever its folder and suffix; "" if it is none."""
    stem = re.split(r"[.:]", name, maxsplit=1)[0].rstrip(" ").upper()
    return stem if re.fullmatch(r"CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(COM|LPT)[1-9\u00b9\u00b2\u00b3]", stem) else ""


def _whole(drive: str) -> bool:
    return re.fullmatch(r"[A-Za-z]:|\\\\[^\\]+\\[^\\]+", drive) is not None


# --- text --------------------------------------------------------------------------------------------


def fold(text: str) -> str:
    """Equal for texts that differ in the case of ASCII letters only."""
    return text.translate(_LOWER)


def plain(text: str) -> bool:
    """Whether all of it is printable ASCII."""
    return all(" " <= char <= "~" for char in text)


def named_char(char: str) -> str:
    """A character for an error: itself and its number."""
    return f"the character {char!r} (U+{ord(char):04X})"


def cut(text: str) -> str:
    """A foreign value for an error."""
    return f"{text!r:.80}"
