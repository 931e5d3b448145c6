"""What batch files do on Windows: a program that runs there, under Wine or on a real one, and judges each case.

    python -m tests.windows.cases [FOLDER] [PYTHON_FOLDER]

One line a case, and the sum. FOLDER (default: a new one) is where it writes; its `py` may lead to a Python already,
else it is made to lead to ours. Some cases show more on a real Windows only; they say so in `REAL_ONLY`.
"""

from __future__ import annotations

import sys

if sys.platform != "win32":
    raise SystemExit("tests.windows.cases runs in a Windows Python; under Wine, tests/windows/test_cases.py starts it")

import ctypes
import json
import os
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from engine.batchfile import Launcher, LauncherError, batch_command, short_path_of, write_launcher
from engine.fake.builders import grandchild, stall, stop_reading_stdin, text
from engine.fake.harness import FakeEngine
from engine.pipe import StrataEngine

DEADLINE_S = 60.0
ODD = "한글😀(x86) & ^ !"
HOSTILE = [
    "", " ", 'say "hi"', "%PATH%", "%PATH:~0,3%", "100%", "!x!", "^", "a&b", "a|b<c>d", '"&echo PWNED', "C:\\dir\\",
    "line\nfeed", "\t", "한글", "日本語", "é", "ş", "😀", "\ud800", "-c", "a" * 9000,
]  # fmt: skip
FORWARDED = ["more", "", "a b", "x&y^|<>()", "é한", "C:\\d e\\"]
MODES = {"inherit": 0, "no-window": subprocess.CREATE_NO_WINDOW, "detached": subprocess.DETACHED_PROCESS}
NATIVE = {949: "한글", 932: "日本語", 936: "中文", 950: "中文", 1250: "ž", 1251: "Привет", 1252: "é", 1254: "ş"}
SCRIPT = """
import ctypes, json, os, sys
told = {"argv": sys.argv, "cwd": os.getcwd(), "added": os.environ.get("ST_ADDED"), "path": sys.path[0],
    "page": ctypes.windll.kernel32.GetConsoleOutputCP()}
with open(os.environ["ST_REPORT"], "w", encoding="ascii") as file:
    json.dump(told, file)
if "wait" in sys.argv:
    sys.stdin.read()
    with open(os.environ["ST_REPORT"] + ".after", "w", encoding="ascii") as file:
        file.write("lived")
sys.exit(5)
"""
WINE = hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")
ACP, OEMCP = ctypes.windll.kernel32.GetACP(), ctypes.windll.kernel32.GetOEMCP()


class Place:
    """One case's files: `odd` has every character that ever broke a batch file, `root` has none."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.plain = root / "cases" / name
        self.odd = root / ODD / name
        for folder in (self.plain, self.odd):
            folder.mkdir(parents=True)
        self.script = self.write(self.odd / f"실행 {ODD}.py", SCRIPT)
        self.report = self.plain / "report.json"
        self.near = root / ODD / "py" / "python.exe"  # in an odd folder, seen from there by an ASCII name

    def write(self, path: Path, content: str) -> str:
        path.write_text(content, encoding="utf-8")
        return str(path)

    def launcher(self, bat: Path, args: Sequence[str] = (), script: str | None = None, **options: Any) -> Launcher:
        options.setdefault("python", str(self.near))
        return write_launcher(str(bat), script or self.script, args, **options)

    def run(self, command: str | list[str], mode: str = "inherit", **env: str) -> tuple[int, bytes]:
        """Its exit code and all that it said."""
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE_S,
            check=False, creationflags=MODES[mode], env={**os.environ, "ST_REPORT": str(self.report), **env},
        )  # fmt: skip
        return done.returncode, done.stdout

    def told(self) -> dict[str, Any]:
        return json.loads(self.report.read_text(encoding="ascii"))

    def arrived(self, code: tuple[int, bytes], args: Sequence[str], script: str | None = None) -> None:
        """The script was run with exactly these arguments, and its exit code came back."""
        equal(code[0], 5, f"exit code; it said {code[1]!r:.300}")
        equal(self.told()["argv"], [script or self.script, *args], "argv")


def equal(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: found {found!a:.400}, wanted {wanted!a:.400}")


Case = Callable[[Place], None]
CASES: dict[str, Case] = {}
REAL_ONLY: set[str] = set()


def case(name: str, real_only: bool = False) -> Callable[[Case], Case]:
    def added(run: Case) -> Case:
        CASES[name] = run
        if real_only:
            REAL_ONLY.add(name)
        return run

    return added


# --- ours --------------------------------------------------------------------------------------------


def launch(place: Place, route: str, mode: str) -> None:
    folder = place.odd / "작업"
    folder.mkdir()
    named = {"python_env": "ST_PYTHON"} if route == "python-env" else {}
    bat = place.odd / f"시작 {ODD}.bat"
    made = place.launcher(bat, HOSTILE, cwd=str(folder), env={"ST_ADDED": "값é😀%PATH%"}, **named)
    equal(made.route, route, "route")
    place.arrived(
        place.run(batch_command(str(bat), FORWARDED), mode, ST_PYTHON=str(place.near)), [*HOSTILE, *FORWARDED]
    )
    told = place.told()
    equal(told["cwd"], str(folder), "cwd")
    equal(told["added"], "값é😀%PATH%", "environment")
    equal(told["path"], str(place.odd), "sys.path[0]")


for _route in ("python-env", "relative"):
    for _mode in MODES:
        case(f"{_route} {_mode}")(lambda place, route=_route, mode=_mode: launch(place, route, mode))


@case("without cmd")
def _(place: Place) -> None:
    made = place.launcher(place.odd / "시작.bat", HOSTILE)
    place.arrived(place.run([*made.argv, *HOSTILE]), [*HOSTILE, *HOSTILE])


@case("python-env not set")
def _(place: Place) -> None:
    bat = place.odd / "시작.bat"
    place.launcher(bat, python_env="ST_NOT_SET")
    code, said = place.run(batch_command(str(bat)))
    equal((code, place.report.exists()), (9009, False), "exit code, report")
    equal(b"ST_NOT_SET is not set: it names the Python that starts this program" in said, True, f"said {said!r}")


@case("variable")
def _(place: Place) -> None:
    """A Python below a folder that the environment names, for a batch file in another place."""
    bat = place.plain / "start.bat"
    base = str(place.root / ODD)
    made = place.launcher(bat, HOSTILE, environ={"LOCALAPPDATA": base}, short_path=None)
    if made.route == "relative":
        raise AssertionError("the odd folder is no longer odd")
    equal(made.route, "variable", "route")
    place.arrived(place.run(batch_command(str(bat)), LOCALAPPDATA=base), HOSTILE)


@case("short name")
def _(place: Place) -> None:
    """Where the volume has short names (Windows may be told to make none) they work; else it is refused."""
    bat = place.plain / "start.bat"
    short = short_path_of(str(place.near))
    try:
        made = place.launcher(bat, HOSTILE, environ={})
    except LauncherError as error:
        equal(error.reason, "no-ascii-route", "reason")
        equal(short is None or not short.isascii(), True, f"no short name {short!a}")
        return
    equal(made.route, "short", "route")
    place.arrived(place.run(batch_command(str(bat))), HOSTILE)


@case("delayed expansion")
def _(place: Place) -> None:
    """`cmd /v:on` changes neither an argument nor the path of Python."""
    python = place.root / "py!x!" / "python.exe"
    bat = place.plain / "start.bat"
    args = ["!x!", "!PATH!", "a!"]
    made = place.launcher(bat, args, python=str(python))
    equal(made.route, "ascii", "route")
    place.arrived(place.run(f'cmd.exe /d /v:on /c ""{bat}""', x="broken"), args)


@case("another program")
def _(place: Place) -> None:
    """Its output is the caller's, its code that of an access violation."""
    bat = place.odd / "시작.bat"
    code = "import os, sys; print(ascii(sys.argv[1:]), flush=True); os._exit(-1073741819)"
    place.launcher(bat, ["-c", code, *HOSTILE[:-1]], script=str(place.near))
    found, said = place.run(batch_command(str(bat), FORWARDED))
    equal(found & 0xFFFFFFFF, 0xC0000005, f"exit code; it said {said!r:.300}")
    equal(said.decode("ascii").strip(), ascii([*HOSTILE[:-1], *FORWARDED]), "argv")


@case("by hand")
def _(place: Place) -> None:
    """The program takes paths as seen from where the user stands."""
    names = ["시작.bat", Path(place.script).name]
    made = subprocess.run(
        [sys.executable, "-m", "engine.batchfile", "--python", "..\\py\\python.exe", *names, "--x", "é"],
        cwd=place.odd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=DEADLINE_S,
        check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    equal(made.returncode, 0, f"exit code; it said {made.stdout!r:.300}")
    equal(b"warning" in made.stdout, False, f"it said {made.stdout!r:.300}")
    place.arrived(place.run(batch_command(str(place.odd / "시작.bat"), ["ş"])), ["--x", "é", "ş"])


@case("by hand with a path that is not there")
def _(place: Place) -> None:
    """It is written all the same, and said."""
    made = subprocess.run(
        [sys.executable, "-m", "engine.batchfile", "--cwd", "none", "new.bat", "실행.py"], cwd=place.odd,
        capture_output=True, stdin=subprocess.DEVNULL, timeout=DEADLINE_S, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    equal(
        (made.returncode, (place.odd / "new.bat").exists()), (0, True), f"exit code, file; it said {made.stderr!r:.300}"
    )
    lines = made.stderr.decode("utf-8").splitlines()
    equal([line.split(": '")[0] for line in lines], ["warning: script", "warning: cwd"], "warnings")
    equal(all(line.endswith(" is not there") for line in lines), True, f"{lines!r}")


@case("an engine in a batch file")
def _(place: Place) -> None:
    """The fake engine as one file, in a path that lists do not quote; ended with everything below cmd."""
    folder = place.root / "a&b(c)" / "엔진"
    fake = FakeEngine({"requests": [[text("hi")]]}, folder)
    engine = StrataEngine(str(fake.executable()), fake.args)
    try:
        equal(list(engine.generate([1], 8)), [104, 105], "tokens")
        (pid,) = fake.pids()
        running = psutil.Process(pid)
    finally:
        engine.close()
    running.wait(DEADLINE_S)


SERVER = """
import sys
from engine.pipe import StrataEngine
stream = StrataEngine(sys.argv[1], sys.argv[2:]).generate([1], 8)
next(stream)
print("up", flush=True)
sys.stdin.read()
"""


@case("a server that is killed takes its engine and what that started with it")
def _(place: Place) -> None:
    """By the job object: nobody is left to say anything to an engine that hangs, and its child never had a pipe."""
    fake = FakeEngine({"requests": [[grandchild(60), text("h"), stop_reading_stdin(), stall()]]}, place.odd / "엔진")
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(fake.executable()), *fake.args], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        assert server.stdout is not None
        equal(server.stdout.readline().strip(), b"up", "the server's word")
        below = psutil.Process(server.pid).children(recursive=True)
        (pid,) = fake.pids()
        found = [one.pid for one in below]
        equal(pid in found and len(found) > 1, True, f"the engine {pid} and its child are in {found}")
    finally:
        server.kill()
        server.wait(DEADLINE_S)
    for one in below:
        one.wait(DEADLINE_S / 3)  # before they would end by themselves


# --- what callers get wrong --------------------------------------------------------------------------


@case("a list does not quote a&b")
def _(place: Place) -> None:
    bat = place.root / "a&b" / "start.bat"
    bat.parent.mkdir()
    made = place.launcher(bat, ["x"], environ={}, short_path=None, python=str(place.root / "py!x!" / "python.exe"))
    equal(len(made.warnings), 1, "warnings")
    place.run([str(bat), "y"])
    equal(place.report.exists(), False, "a list started it")
    place.arrived(place.run(f'"{bat}" {subprocess.list2cmdline(["y"])}'), ["x", "y"])
    place.arrived(place.run(batch_command(str(bat), ["z"])), ["x", "z"])


@case("ending cmd leaves the program")
def _(place: Place) -> None:
    bat = place.odd / "시작.bat"
    place.launcher(bat, ["wait"])
    with subprocess.Popen(
        batch_command(str(bat)), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "ST_REPORT": str(place.report)},
    ) as process:  # fmt: skip
        while not place.report.exists():  # it is up
            threading.Event().wait(0.02)
            if process.poll() is not None:
                raise AssertionError(f"ended with {process.returncode}")
        below = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        process.wait(DEADLINE_S)
    for child in below:  # stdin is closed: what lives, ends now, and says so
        child.wait(DEADLINE_S)
    equal(Path(f"{place.report}.after").exists(), True, "the program outlived cmd")


# --- how it was done before --------------------------------------------------------------------------


def old_batch(place: Place, name: str, encoding: str) -> int:
    """A batch file with the paths in it, in one encoding."""
    script = place.write(place.plain / f"{name}.py", SCRIPT)
    python = place.root / "py!x!" / "python.exe"
    bat = place.plain / "old.bat"
    bat.write_bytes(f'@"{python}" "{script}" %*\r\n@exit /b %errorlevel%\r\n'.encode(encoding))
    return place.run(batch_command(str(bat)), "no-window")[0]  # a console of its own, with the page that is usual


@case("UTF-8 in the batch file fails")
def _(place: Place) -> None:
    equal(old_batch(place, "한글", "utf-8") == 5, OEMCP == 65001, "it worked")
    equal(place.report.exists(), OEMCP == 65001, "it was started")


@case("the ANSI code page in the batch file fails where cmd has another")
def _(place: Place) -> None:
    if ACP not in NATIVE:
        return
    equal(old_batch(place, NATIVE[ACP], "mbcs") == 5, ACP == OEMCP, f"it worked, with {ACP} and {OEMCP}")


# --- a real Windows only -----------------------------------------------------------------------------


@case("percent signs in folders", real_only=True)
def _(place: Place) -> None:
    """Of Python (by path, relative, by variable); Wine expands them once more."""
    for base, name, variable in (
        (place.plain, "a.bat", None),
        (place.odd, "b.bat", None),
        (place.plain, "c.bat", "ST_PYTHON"),
    ):
        bat, folder = base / name, base / "100%PATH%"
        folder.mkdir(exist_ok=True)
        junction(folder / "py")
        python = str(folder / "py" / "python.exe")
        place.launcher(bat, HOSTILE, python=python, python_env=variable)
        place.arrived(place.run(batch_command(str(bat)), ST_PYTHON=python), HOSTILE)
        place.report.unlink()


@case("UTF-8 for one line", real_only=True)
def _(place: Place) -> None:
    """With a console it works and its code page is what it was; without one it is code 1 and nothing is started."""
    bat = place.plain / "start.bat"
    made = place.launcher(bat, HOSTILE, environ={}, short_path=None, allow_chcp=True)
    equal(made.route, "chcp", "route")
    place.arrived(place.run(batch_command(str(bat)), "no-window"), HOSTILE)
    equal(place.told()["page"], OEMCP, "code page that Python sees")
    place.report.unlink()
    equal(place.run(batch_command(str(bat)), "detached")[0], 1, "exit code without a console")
    equal(place.report.exists(), False, "started without a console")


# --- running them ------------------------------------------------------------------------------------


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def junction(link: Path) -> None:
    """Let a folder lead to our Python's, unless it does already (Wine makes no junctions: there it is given)."""
    if not link.exists():
        import _winapi

        _winapi.CreateJunction(sys.base_prefix, str(link))


@contextmanager
def root_folder() -> Generator[Path]:
    if len(sys.argv) > 1:
        yield Path(sys.argv[1])
        return
    with tempfile.TemporaryDirectory(prefix="strata-cases-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


def main() -> int:
    """Run every case; the exit code is 1 if one failed."""
    for stream in (sys.stdout, sys.stderr):
        if callable(reconfigure := getattr(stream, "reconfigure", None)):
            reconfigure(errors="backslashreplace")
    failed = 0
    names = [name for name in CASES if not (WINE and name in REAL_ONLY)]
    with root_folder() as root:
        (root / ODD).mkdir(parents=True, exist_ok=True)
        junction(root / ODD / "py")
        junction(root / "py!x!")
        for number, name in enumerate(names):
            try:
                CASES[name](Place(root, f"{number}"))
                say(f"ok {name}")
            except Exception as error:  # noqa: BLE001 - a case may fail in any way, and the next one is run
                failed += 1
                say(f"FAILED {name}: {''.join(traceback.format_exception_only(error))!a}")
    say(f"code pages: {ACP} {OEMCP}{' under Wine' if WINE else ''}")
    say(f"{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
