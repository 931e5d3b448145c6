"""The command line of the fake engine.

It does not play scripts. No argparse: importing it doubles the time that the program needs to start.
"""

from __future__ import annotations

import os

from .loop import Loop
from .pipes import Inbox, Outbox, write_log
from .script import ScriptError, load
from .state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_USAGE_EXIT = 2
_USAGE = """usage: python -m engine.fake [--serve] SCRIPT [--state DIR]
       python -m engine.fake --list
       python -m engine.fake --executable DIR

Speaks the engine's pipe protocol on stdin and stdout and follows SCRIPT: a JSON file, or the name of a ready script.

  --serve      accepted and ignored (a server starts every engine with it)
  --state DIR  log commands and lives there, count lives, wait for cues
  --list       print the ready scripts: name and title
  --executable DIR  write a file there that starts this program, and print its path
"""


def main(arguments: list[str]) -> NoReturn:
    """Run the program. Ends the process: 0 after QUIT or the end of stdin, 2 for a wrong script or usage, else as the
    script says."""
    try:
        if "--help" in arguments or "-h" in arguments:
            Outbox(False).raw(_USAGE.encode("ascii"))
        elif "--list" in arguments:
            _list_scripts()
        elif arguments[:1] == ["--executable"]:
            _write_executable(arguments[1:])
        else:
            _serve(arguments)
    except (ScriptError, OSError) as error:
        write_log(f"fake engine: {error}\n")
        os._exit(_USAGE_EXIT)
    except KeyboardInterrupt:
        os._exit(130)
    os._exit(0)


def _serve(arguments: list[str]) -> NoReturn:
    script_name, state_dir = _parse(arguments)
    if not os.path.isfile(script_name):  # noqa: PTH113 - pathlib takes 10 ms to import
        from .launch import script_path

        script_name = str(script_path(script_name))
    scripts = load(script_name)
    if state_dir is None and scripts.needs_state():
        raise ScriptError(f"{script_name}: it has cues or lives, which need --state DIR")
    state = State(state_dir)
    script = scripts.life(state.life)
    inbox = Inbox(lambda line: state.command(line.partition(" ")[0], line))
    Loop(script, state, inbox, Outbox(script.crlf)).live()


def _parse(arguments: list[str]) -> tuple[str, str | None]:
    names: list[str] = []
    state_dir: str | None = None
    rest = [word for word in arguments if word != "--serve"]
    while rest:
        word = rest.pop(0)
        if word == "--state":
            if not rest:
                raise ScriptError("--state needs a folder")
            state_dir = rest.pop(0)
        elif word.startswith("-"):
            raise ScriptError(f"unknown option {word!r}; see --help")
        else:
            names.append(word)
    if len(names) != 1:
        raise ScriptError(f"{len(names)} scripts given, 1 wanted; see --help")
    return names[0], state_dir


def _write_executable(folders: list[str]) -> None:
    if len(folders) != 1:
        raise ScriptError(f"{len(folders)} folders given, 1 wanted; see --help")
    from pathlib import Path

    from .launch import executable

    try:
        path = executable(Path(folders[0]))
    except (ImportError, ValueError) as error:  # Windows: the writer of batch files is not below this package
        raise ScriptError(f"--executable: {error}") from None
    Outbox(False).raw(os.fsencode(path) + b"\n")


def _list_scripts() -> None:
    from .launch import script_names, script_path

    titles = {name: load(str(script_path(name))).first.title for name in script_names()}
    width = max(len(name) for name in titles)
    Outbox(False).lines(*(f"{name:<{width}}  {title}" for name, title in titles.items()))
