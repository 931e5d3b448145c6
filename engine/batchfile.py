r"""A Windows batch file that starts one program and works whatever the code pages, user names, paths and arguments are.

    python -m engine.batchfile start.bat run.py --any arguments

The batch file is ASCII, which every code page of cmd reads as the same text. It only starts Python on a second ASCII
file beside it, the sidecar, which holds paths, arguments, folder and environment as Python literals. What cannot be
written so is refused with the character and the reason; nothing is replaced.

It does not protect what a caller of the batch file adds to its command line: cmd reads `"`, `%NAME%` and, outside of
quotes, `& | < > ^` in it (`batch_command` quotes what can be quoted). Started in quotes by its bare name, through PATH,
a batch file does not find its sidecar: cmd tells it the caller's folder as its own. Ending the process of a batch file
ends cmd, not the program. Where an argument list can be given, give one: the program's own, or `Launcher.argv`, which
leaves cmd out.
"""

from __future__ import annotations

import argparse
import ntpath
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict, Unpack, cast

from engine.windows_paths import LauncherError, cmd_path, cut, device, fold, named_char, plain, relative, windows_path

Route: TypeAlias = Literal["python-env", "ascii", "relative", "variable", "short", "chcp"]

BATCH_SUFFIXES = (".bat", ".cmd")
PYTHON_SUFFIXES = (".py", ".pyw", ".pyz")
FOLDER_VARIABLES = ("LOCALAPPDATA", "APPDATA", "USERPROFILE", "ProgramFiles", "ProgramData")
LINE_CHARS = 8000  # cmd reads 8191; the rest is for what %~dp0, %* and a variable become
COMMAND_CHARS = 32_767  # of CreateProcess
UNQUOTED_BREAKS = "&^,;=()"  # where cmd ends an unquoted program name

_BACKSLASH = "\\"
_ON_WINDOWS = os.name == "nt"
_NUL = named_char("\0")


@dataclass(frozen=True, slots=True)
class Launcher:
    """The two files, as bytes. `route` says how the batch file finds Python; `argv` starts the same without cmd;
    `warnings` are for whoever calls the batch file."""

    bat: bytes
    sidecar_name: str
    sidecar: bytes
    route: Route
    argv: list[str]
    warnings: tuple[str, ...] = ()


class Options(TypedDict, total=False):
    """The keywords of `render_launcher`."""

    python: str
    python_args: Sequence[str]
    python_env: str | None
    cwd: str | None
    env: Mapping[str, str | None] | None
    forward_args: bool
    environ: Mapping[str, str]
    short_path: Callable[[str], str | None] | None
    allow_chcp: bool


# --- the two files -----------------------------------------------------------------------------------


def render_launcher(
    bat: str,
    script: str,
    args: Sequence[str] = (),
    *,
    python: str = sys.executable,
    python_args: Sequence[str] = (),
    python_env: str | None = None,
    cwd: str | None = None,
    env: Mapping[str, str | None] | None = None,
    forward_args: bool = True,
    environ: Mapping[str, str] = os.environ,
    short_path: Callable[[str], str | None] | None = None,
    allow_chcp: bool = False,
) -> Launcher:
    """What to write for the batch file `bat`. Pure: all paths are absolute Windows paths, on any system.

    `script` ending in .py, .pyw or .pyz runs in `python`, started with `python_args` (`-X`, `-I` and the like); any
    other program is started from there and waited for. The exit code is passed on. `cwd` and `env` are set before (None
    takes a variable out); what Python itself reads at its start comes too late there and belongs into `python_args`.
    With `forward_args` the arguments of the batch file come after `args`.

    How the batch file names Python: by the variable `python_env`, which the caller sets; else by its path, if that is
    ASCII; by its place relative to the batch file; below a folder that `environ` names; by what `short_path` says; with
    `allow_chcp` in UTF-8, which needs a console.

    Raises: LauncherError.
    """
    batch, program, interpreter = cmd_path("bat", bat), windows_path("script", script), cmd_path("python", python)
    folder = None if cwd is None else windows_path("cwd", cwd)
    _check_batch(batch)
    _check_program(program, args)
    _check_changes(env or {})
    _check_options(python_args)
    name = _sidecar_name(batch)
    sidecar_path = ntpath.join(ntpath.dirname(batch), name)
    if fold(program) == fold(sidecar_path):
        raise LauncherError("bad-path", f"script: {cut(program)} is where the sidecar goes; rename one of them")
    if python_env is not None:
        route, shown = _by_variable(python_env)
    else:
        route, shown = _route(interpreter, batch, environ, short_path, allow_chcp)
    before = _chcp_lines(interpreter) if route == "chcp" else _unset_lines(python_env)
    words = [f'"{shown}"', *python_args, f'"%~dp0{_doubled(name)}"', *(["%*"] if forward_args else [])]
    lines = [
        "@setlocal EnableExtensions DisableDelayedExpansion", *before, f"@{' '.join(words)}", "@exit /b %errorlevel%"
    ]  # fmt: skip
    _check_lines(lines)
    return Launcher(
        bat="".join(line + "\r\n" for line in lines).encode("utf-8"),
        sidecar_name=name,
        sidecar=_sidecar(program, args, folder, env or {}, forward_args).encode("ascii"),
        route=route,
        argv=[interpreter, *python_args, sidecar_path],
        warnings=_warnings(batch),
    )


def _sidecar_name(batch: str) -> str:
    stem = ntpath.splitext(ntpath.basename(batch))[0]
    if not plain(stem):
        stem = f"launcher-{zlib.crc32(stem.encode('utf-8', 'surrogatepass')):08x}"
    return f"{stem}.launch.py"


def _sidecar(
    program: str, args: Sequence[str], cwd: str | None, env: Mapping[str, str | None], forward_args: bool
) -> str:
    added = {name: value for name, value in env.items() if value is not None}
    removed = [name for name, value in env.items() if value is None]
    given = " + sys.argv[1:]" if forward_args else ""
    in_python = program.lower().endswith(PYTHON_SUFFIXES)
    needed = ["os", "sys", "runpy"] if in_python else ["os", "sys", "signal", "subprocess"]
    lines = ["# Written by engine.batchfile to start one program; made anew rather than changed by hand."]
    lines += [f"import {name}" for name in sorted(needed)]
    if added:
        lines += [f"os.environ.update({added!a})"]
    lines += [f"os.environ.pop({name!a}, None)" for name in removed]
    if cwd is not None:
        lines += [f"os.chdir({cwd!a})"]
    lines += [f"command = [{program!a}] + {list(args)!a}{given}"]
    if in_python:
        lines += [
            "sys.argv[:] = command",
            # isolated, Python puts no script's folder there, and the first entry is its own library
            "if not getattr(sys.flags, 'safe_path', sys.flags.isolated):",
            f"    sys.path[0] = {ntpath.dirname(program)!a}",
            "runpy.run_path(command[0], run_name='__main__')",
        ]
    else:
        lines += [
            "signal.signal(signal.SIGINT, lambda number, frame: None)  # Ctrl-C reaches the program, too",
            "code = subprocess.call(command, close_fds=False)",
            "sys.exit(code - (1 << 32) if code >= 1 << 31 else code)  # an exception's code is above what exit takes",
        ]
    return "\n".join(lines) + "\n"


# --- writing and calling it --------------------------------------------------------------------------


def write_launcher(
    bat: str, script: str, args: Sequence[str] = (), *, into: Path | None = None, **options: Unpack[Options]
) -> Launcher:
    """Write the two files beside each other: at `bat`, or, made for another machine, into the folder `into` (nothing of
    this one counts then). The sidecar is first, so that no batch file lacks it. Blocks for the disk.

    Raises: LauncherError; OSError: a file cannot be written.
    """
    launcher = _rendered(bat, script, args, into, options)
    if into is None and not _ON_WINDOWS:
        raise LauncherError("not-windows", f"bat: {cut(bat)} is no path of this system; name a folder to write into")
    _write(launcher, _target(bat, into))
    return launcher


def _rendered(bat: str, script: str, args: Sequence[str], into: Path | None, options: Options) -> Launcher:
    if into is None:
        options.setdefault("short_path", short_path_of)
    else:
        options.setdefault("environ", {})
    return render_launcher(bat, script, args, **options)


def _write(launcher: Launcher, target: Path) -> None:
    target.with_name(launcher.sidecar_name).write_bytes(launcher.sidecar)
    target.write_bytes(launcher.bat)


def _target(bat: str, into: Path | None) -> Path:
    name = ntpath.basename(bat)
    if into is None or _ON_WINDOWS:
        return Path(bat) if into is None else into / name
    try:  # file names here are bytes, whatever this process takes them for
        return into / os.fsdecode(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        odd = named_char(name[error.start])
        raise LauncherError("not-windows", f"bat: {cut(bat)} has {odd}; a file of this system cannot") from None


def short_path_of(path: str) -> str | None:
    """The 8.3 name of an existing file; None where there is none (the volume makes none, or this is not Windows)."""
    if sys.platform != "win32":
        return None
    import ctypes

    ask = ctypes.WinDLL("kernel32").GetShortPathNameW
    ask.argtypes = (ctypes.c_wchar_p, ctypes.c_wchar_p, ctypes.c_uint32)
    ask.restype = ctypes.c_uint32
    buffer = ctypes.create_unicode_buffer(COMMAND_CHARS)
    if not 0 < ask(path, buffer, len(buffer)) < len(buffer):
        return None
    try:
        return buffer.value if os.path.samefile(buffer.value, path) else None  # noqa: PTH121 - may have a lone surrogate
    except OSError:
        return None


def batch_command(bat: str, args: Sequence[str] = ()) -> str:
    """The command line, for `subprocess.Popen` as one string, that starts a batch file with exactly these arguments:
    a list would leave `&` and the like unquoted, and cmd would run what follows.

    Raises: LauncherError: an argument that cmd changes although it is quoted; too many for one line.
    """
    words = [bat, *args]
    advice = "use Launcher.argv, which leaves cmd out"
    for number, word in enumerate(words):
        odd = next((char for char in word if char in '"\0\r\n'), None)
        if odd is not None:
            field = f"args[{number - 1}]" if number else "bat"
            raise LauncherError(
                "unsafe-arg", f"{field}: {cut(word)} has {named_char(odd)}; cmd cannot have it; {advice}"
            )
    if sum(word.count("%") for word in words) > 1:
        raise LauncherError("unsafe-arg", f"args: two '%'; cmd expands what is between them, quoted or not; {advice}")
    # a backslash before the closing quote would quote it for the program
    line = " ".join(f'"{word}{(len(word) - len(word.rstrip(_BACKSLASH))) * _BACKSLASH}"' for word in words)
    if len(line) > LINE_CHARS:
        raise LauncherError(
            "too-long", f"args: they make a line of {len(line)} characters; cmd can read {LINE_CHARS}; {advice}"
        )
    return line


# --- how Python is named -----------------------------------------------------------------------------


def _by_variable(name: str) -> tuple[Route, str]:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
        raise LauncherError("bad-env", f"python_env: {cut(name)} is not a name of ASCII letters, digits and _")
    return "python-env", f"%{name}%"


def _unset_lines(python_env: str | None) -> list[str]:
    if python_env is None:
        return []
    told = f"{python_env} is not set: it names the Python that starts this program"
    return [f"@if not defined {python_env} (echo {told} 1>&2& exit /b 9009)"]


def _route(
    python: str,
    batch: str,
    environ: Mapping[str, str],
    short_path: Callable[[str], str | None] | None,
    allow_chcp: bool,
) -> tuple[Route, str]:
    if plain(python):
        return "ascii", _doubled(python)
    seen = relative(python, ntpath.dirname(batch))
    if seen is not None and plain(seen):
        return "relative", f"%~dp0{_doubled(seen)}"
    if (below := _below_variable(python, environ)) is not None:
        return "variable", below
    short = short_path(python) if short_path is not None else None
    if short is not None and plain(short):
        return "short", _doubled(cmd_path("short_path", short))
    if allow_chcp and not any("\ud800" <= char <= "\udfff" for char in python):
        return "chcp", "%_p%"
    odd = named_char(next(char for char in python if not plain(char)))
    advice = "which a batch file cannot hold for every code page; set python_env, or use a Python in an ASCII folder"
    raise LauncherError("no-ascii-route", f"python: {cut(python)} has {odd}, {advice}")


def _below_variable(path: str, environ: Mapping[str, str]) -> str | None:
    known = {name.upper(): value for name, value in environ.items()}
    for name in FOLDER_VARIABLES:
        folder = known.get(name.upper(), "")
        try:
            rest = relative(path, cmd_path(name, folder))
        except LauncherError:  # the user's environment is what it is: not set, or no folder
            continue
        if rest is not None and not rest.startswith("..\\") and plain(rest):
            return f"%{name}%\\{_doubled(rest)}"
    return None


def _chcp_lines(python: str) -> list[str]:
    """UTF-8 for one line; the code page is what it was before Python starts."""
    chcp = r'"%SystemRoot%\System32\chcp.com"'
    return [
        "@echo off",
        'set "_cp="',
        f'for /f "tokens=2 delims=:." %%a in (\'{chcp}\') do set "_cp=%%a"',  # German ends the number with a dot
        f"{chcp} 65001 >nul || exit /b 1",
        f'set "_p={_doubled(python)}"',
        f"if defined _cp {chcp} %_cp% >nul",
    ]


# --- what is refused ---------------------------------------------------------------------------------


def _check_batch(batch: str) -> None:
    if not batch.lower().endswith(BATCH_SUFFIXES):
        raise LauncherError("bad-path", f"bat: {cut(batch)} does not end in .bat or .cmd; Windows would not run it")
    if named := device(ntpath.basename(batch)):
        raise LauncherError("bad-path", f"bat: {cut(batch)} is the device {named} for Windows; give it another name")
    if batch.count("%") > 1:
        advice = "cmd takes what is between them for a variable, quoted or not; use a path without"
        raise LauncherError("unsafe-batch-path", f"bat: {cut(batch)} has two '%'; {advice}")


def _check_program(program: str, args: Sequence[str]) -> None:
    if program.lower().endswith(BATCH_SUFFIXES):
        advice = "is a batch file, to which arguments cannot be given safely; give the program that it starts"
        raise LauncherError("batch-program", f"script: {cut(program)} {advice}")
    for number, arg in enumerate(args):
        if "\0" in arg:
            raise LauncherError("nul-in-arg", f"args[{number}]: {cut(arg)} has {_NUL}, which ends every argument")
    length = len(subprocess.list2cmdline([program, *args]))
    if not program.lower().endswith(PYTHON_SUFFIXES) and length >= COMMAND_CHARS:
        advice = f"Windows takes {COMMAND_CHARS - 1}; give fewer arguments, or a file"
        raise LauncherError("too-long", f"args: they make a command of {length} characters; {advice}")


def _check_changes(env: Mapping[str, str | None]) -> None:
    seen: dict[str, str] = {}
    for name, value in env.items():
        if (other := seen.setdefault(name.upper(), name)) != name:
            raise LauncherError("bad-env", f"env: {cut(other)} and {cut(name)} are one variable on Windows; give one")
        if not name or "=" in name or "\0" in name:
            raise LauncherError("bad-env", f"env: {cut(name)} is no variable's name; give one without '=' and NUL")
        if value is not None and "\0" in value:
            raise LauncherError("bad-env", f"env[{cut(name)}]: {cut(value)} has {_NUL}, which ends every value")


def _check_options(options: Sequence[str]) -> None:
    for option in options:
        if not re.fullmatch(r"[A-Za-z0-9_=.,:-]+", option, re.ASCII):
            advice = "is more than ASCII letters, digits and '_=.,:-'; set it in the script"
            raise LauncherError("bad-option", f"python_args: {cut(option)} {advice}")
    words = iter(options)
    for word in words:
        if word in ("-X", "-W", "--check-hash-based-pycs"):
            next(words, None)
        elif not re.fullmatch(r"-[XW].+|-[bBdEiIOPqRsStuvx]+", word):
            advice = "is no option before a script; Python would not start the one that is given"
            raise LauncherError("bad-option", f"python_args: {cut(word)} {advice}")


def _check_lines(lines: Sequence[str]) -> None:
    longest = max(map(len, lines))
    if longest > LINE_CHARS:
        advice = f"cmd can read {LINE_CHARS}; give a shorter path or fewer options of Python"
        raise LauncherError("too-long", f"python: it makes a line of {longest} characters; {advice}")


def _warnings(batch: str) -> tuple[str, ...]:
    found = [char for char in UNQUOTED_BREAKS if char in batch]
    if not found or " " in batch:
        return ()
    return (f"bat: {cut(batch)} has {' '.join(found)} and no space: argument lists do not quote it; start it with the "
            "string that batch_command gives, or with Launcher.argv",)  # fmt: skip


def _doubled(text: str) -> str:
    return text.replace("%", "%%")


# --- by hand -----------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engine.batchfile",
        usage="%(prog)s [options] BAT SCRIPT [ARG ...]",
        description="Write a Windows batch file that starts SCRIPT with the ARGs in every locale. Its second file, "
        "NAME.launch.py, has to stay beside it.",
    )
    parser.add_argument("bat", metavar="BAT", help="the batch file to write (.bat or .cmd)")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file (.py, .pyw, .pyz), or a program")
    parser.add_argument("args", metavar="ARG", nargs=argparse.REMAINDER, help="its first arguments, dashes and all")
    parser.add_argument("--python", metavar="FILE", help="the Python to start (default: this one)")
    parser.add_argument(
        "--python-arg", metavar="OPTION", action="append", default=[], help="one for Python: --python-arg=-I"
    )
    parser.add_argument("--python-env", metavar="NAME", help="the environment variable that will name the Python")
    parser.add_argument("--cwd", metavar="FOLDER", help="the program's working folder (default: the caller's)")
    parser.add_argument(
        "--env", metavar="NAME=VALUE", action="append", default=[], help="set for it; NAME alone: taken out"
    )
    parser.add_argument("--no-forward", action="store_true", help="take no arguments of the batch file")
    parser.add_argument("--allow-chcp", action="store_true", help="if nothing else helps, switch the console to UTF-8")
    parser.add_argument(
        "--into",
        metavar="FOLDER",
        type=_folder,
        help="write here; all paths, --python too, are those of another machine",
    )
    parser.add_argument("--force", action="store_true", help="replace a batch file that is there")
    return parser


def _utf8(word: str) -> str:
    """A word of the command line. On POSIX it is bytes: UTF-8, although this process may run as if all was ASCII."""
    return word if _ON_WINDOWS else os.fsencode(word).decode("utf-8", "surrogateescape")


def _folder(word: str) -> Path:
    """A folder of this system, of a word that `_utf8` made."""
    return Path(word if _ON_WINDOWS else os.fsdecode(word.encode("utf-8", "surrogateescape")))


def _change(text: str) -> tuple[str, str | None]:
    name, given, value = text.partition("=")
    return name, value if given else None


def _made(options: argparse.Namespace) -> list[str]:
    """Write the files; the lines to tell."""
    into = cast("Path | None", options.into)
    if into is None and not _ON_WINDOWS:
        raise LauncherError(
            "not-windows", "bat: this is no Windows; for another machine give --into FOLDER and --python"
        )
    if into is not None and options.python is None:
        raise LauncherError("bad-path", "python: this one is not on the machine that the files are for; give --python")
    local = os.path.abspath if into is None else str
    bat, script, python = local(options.bat), local(options.script), local(options.python or sys.executable)
    cwd = None if options.cwd is None else local(options.cwd)
    made: Options = {
        "python": python,
        "python_args": options.python_arg,
        "python_env": options.python_env,
        "cwd": cwd,
        "env": dict(map(_change, options.env)),
        "forward_args": not options.no_forward,
        "allow_chcp": options.allow_chcp,
    }
    launcher = _rendered(bat, script, options.args, into, made)
    target = _target(bat, into)
    files = (target, target.with_name(launcher.sidecar_name))
    for path in files:  # the sidecar of another batch file, .cmd instead of .bat, would be the same
        if path.exists() and not options.force:
            raise LauncherError("bad-path", f"bat: {cut(path.name)} is there already; --force replaces it")
    if into is None:
        for field, place in (("script", script), ("python", python), ("cwd", cwd)):
            if place is not None and not Path(place).exists():
                sys.stderr.write(f"warning: {field}: {cut(place)} is not there\n")
    _write(launcher, target)
    for warning in launcher.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    return [_utf8(str(path)) for path in files]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one by hand. Prints the two files; the exit code is 1 if it cannot be, 2 for wrong usage."""
    for stream in (sys.stdout, sys.stderr):  # an old console has not all characters of a path
        if callable(reconfigure := getattr(stream, "reconfigure", None)):
            reconfigure(errors="backslashreplace")
    options = _parser().parse_args([_utf8(word) for word in sys.argv[1:]] if arguments is None else arguments)
    try:
        lines = _made(options)
    except (LauncherError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
