"""Where the fake engine and its ready scripts are, and the command line or the file that starts it.

It starts nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
SCRIPTS_DIR = _HERE / "scripts"
EXECUTABLE = "fake-engine"


def exe() -> list[str]:
    """The program with the options that make Python start fastest: no site-packages, nothing from the environment."""
    python = sys.executable
    if sys.platform == "win32":  # a venv's python.exe is a launcher: the engine would be its child, under another pid
        python = getattr(sys, "_base_executable", None) or python
    return [python, "-I", "-S", str(_HERE / "__main__.py")]


def args(script: Path, state_dir: Path | None = None) -> list[str]:
    """The arguments after `--serve`. Without a state folder every life is the first and nothing is logged."""
    state = [] if state_dir is None else ["--state", str(state_dir)]
    return [str(script), *state]


def argv(script: Path, state_dir: Path | None = None) -> list[str]:
    """The whole command line, as a server builds it from `exe`, `--serve` and `args`."""
    return [*exe(), "--serve", *args(script, state_dir)]


def executable(folder: Path) -> Path:
    """Write one file that starts the program, for a server that takes a path and no argument list: a batch file on
    Windows, a shell script elsewhere. Made anew each time; blocks for the disk.

    Raises: OSError: it cannot be written; ValueError: a path that no batch file can have.
    """
    python, *options, main = exe()
    if sys.platform == "win32":
        from engine.batchfile import write_launcher  # not at the top: the program itself needs neither

        path = folder.resolve() / f"{EXECUTABLE}.bat"
        write_launcher(str(path), main, python=python, python_args=options)
        return path
    import shlex

    path = folder.resolve() / EXECUTABLE
    path.write_bytes(os.fsencode(f'#!/bin/sh\nexec {shlex.join([python, *options, main])} "$@"\n'))
    path.chmod(0o755)
    return path


def script_names() -> list[str]:
    """The names of the ready scripts, sorted."""
    return sorted(path.stem for path in SCRIPTS_DIR.glob("*.json"))


def script_path(name: str | Path) -> Path:
    """The file of a script: a path as it is, or the bare name of a ready script ("exit-1").

    Raises: FileNotFoundError: there is neither; the message lists the ready scripts.
    """
    path = Path(name)
    shipped = SCRIPTS_DIR / f"{path.name}.json"
    if path.is_file():
        return path
    if str(path) == path.name and shipped.is_file():
        return shipped
    raise FileNotFoundError(f"no script {str(name)!r}; ready scripts: {', '.join(script_names())}")
