"""A Windows Python to run things in: under Wine, as `tools/dev.py wine` put it there; on Windows this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.windows import prng

ROOT = Path(__file__).resolve().parents[2]
WINDOWS = os.name == "nt"
HERE = ROOT / ".wine"
PYTHON = HERE / "python"
LINGER_S = 30

# each of them gives a Windows its own pair of code pages
LOCALES = ("system",) if WINDOWS else ("ko_KR", "ja_JP", "zh_CN", "de_DE", "en_US", "ru_RU", "tr_TR")


def shown(path: Path) -> str:
    """As a program there sees it."""
    return str(path) if WINDOWS else "Z:" + str(path).replace("/", "\\")


def environment(locale: str, packages: Sequence[Path], **more: str) -> dict[str, str]:
    """Of a program there: nothing of Python's comes from outside."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LC_", "LANG"))}
    found["PYTHONPATH"] = ";".join(shown(path) for path in packages)
    if not WINDOWS:
        found.pop("DISPLAY", None)
        found |= {
            "WINEPREFIX": str(HERE / "prefix"),
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": "mscoree,mshtml=",
            "LOCPATH": str(HERE / "locales"),
            "LC_ALL": f"{locale}.UTF-8",
        }
    return found | more


def run_python(
    locale: str,
    words: Sequence[str],
    packages: Sequence[Path],
    timeout_s: float,
    cwd: Path = ROOT,
    python: Path = PYTHON / "python.exe",
    **env: str,
) -> subprocess.CompletedProcess[bytes]:
    """Run one to its end. Its output is read by pipes: Wine 8 loses what goes to a file."""
    more = [] if WINDOWS else [HERE / "packages"]
    program = [sys.executable] if WINDOWS else ["wine", str(python)]
    return subprocess.run(
        [*program, *words], cwd=cwd, env=environment(locale, [*packages, *more], **env), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s, check=False,
    )  # fmt: skip


def lend_python(link: Path) -> None:
    """Let a folder of a test lead to the Python under Wine. On Windows the cases do it themselves."""
    if not WINDOWS:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(PYTHON, target_is_directory=True)


def prepare() -> None:
    """Keep one Wine server between the tests (it ends by itself), and give it what it lacks."""
    if WINDOWS:
        return
    if not (HERE / "prefix/drive_c/windows/system32" / prng.NAME).exists():
        (PYTHON / prng.NAME).write_bytes(prng.dll())
    env = environment("en_US", [])
    subprocess.run(["wineserver", f"-p{LINGER_S}"], env=env, stderr=subprocess.DEVNULL, check=False)
    # the services, which it starts, would keep the pipes of the first test
    null = subprocess.DEVNULL
    subprocess.run(["wine", "cmd", "/c", "ver"], env=env, stdin=null, stdout=null, stderr=null, check=False)
