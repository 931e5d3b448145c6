"""A project small enough to be set up in seconds and without a network: `tools/dev.py`, stand-ins, local wheels.

Its build backend tells a listener that it builds and waits for leave, so that a test can stop a set-up in the middle.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DEV = Path(__file__).resolve().parents[3] / "tools" / "dev.py"
DEADLINE_S = 60.0

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "mini"
version = "1"

[project.optional-dependencies]
llama = ["mini-llama"]
test = ["mini-test"]

[tool.ruff]
line-length = 100
"""

BACKEND = '''
import os, socket, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    if "MINI_PORT" in os.environ:
        with socket.create_connection(("127.0.0.1", int(os.environ["MINI_PORT"]))) as leave:
            leave.recv(1)
    name = "mini-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("mini.pth", os.getcwd() + "\\n")
        wheel.writestr("mini-1.dist-info/METADATA", METADATA)
        wheel.writestr("mini-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("mini-1.dist-info/RECORD", "")
    return name

METADATA = """Metadata-Version: 2.1
Name: mini
Version: 1
Provides-Extra: llama
Requires-Dist: mini-llama; extra == "llama"
Provides-Extra: test
Requires-Dist: mini-test; extra == "test"
"""
'''

SERVER = """
import os, signal, sys
from importlib.util import find_spec

waits = "--wait" in sys.argv
if waits:  # blocked and waited for, so that it cannot come between two instructions
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("pid", os.getpid(), "cwd", os.getcwd(), "llama", find_spec("mini_llama") is not None, sys.argv[1:], flush=True)
if waits:
    signal.sigwait({signal.SIGTERM})
    print("told to end", flush=True)
    sys.exit(9)
sys.exit(7)
"""

FAKE_PYTEST = "import os, sys; print('pytest', os.getcwd(), sys.argv[1:]); sys.exit(5)\n"
FAKE_MODEL = "import os, sys; sys.exit('error: no model' if 'MINI_NO_MODEL' in os.environ else 0)\n"


@dataclass
class MiniProject:
    """One project folder. `index` is the only place where its pip looks."""

    root: Path
    index: Path

    def run(self, *arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `tools/dev.py` to its end."""
        return subprocess.run(
            self.command(*arguments), cwd=cwd or self.root, env=self.environment(env), capture_output=True,
            encoding="utf-8", timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    @contextmanager
    def running(self, *arguments: str, **env: str) -> Generator[subprocess.Popen[str]]:
        """Run `tools/dev.py` beside the test; killed at the end, if it still lives."""
        with subprocess.Popen(
            self.command(*arguments), cwd=self.root, env=self.environment(env), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, encoding="utf-8",
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                process.kill()

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self.root / "tools" / "dev.py"), *arguments]

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index)}
        return {**kept, **pip, "PYTHONUTF8": "1", **more}

    @property
    def stamp(self) -> Path:
        return self.root / ".venv" / "strata-setup.json"

    def offer(self, name: str, files: dict[str, str]) -> None:
        """Put a wheel into the index."""
        with zipfile.ZipFile(self.index / f"{name}-1-py3-none-any.whl", "w") as wheel:
            for path, text in files.items():
                wheel.writestr(path, text)
            info = f"{name}-1.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")

    def offer_all(self) -> None:
        self.offer("mini_llama", {"mini_llama.py": ""})
        self.offer("mini_test", {"pytest/__init__.py": "", "pytest/__main__.py": FAKE_PYTEST})


def make_project(folder: Path) -> MiniProject:
    """A project with an environment that has pip and no more, as a user may have made it (quicker than ensurepip)."""
    project = MiniProject(folder / "project", folder / "index")
    project.index.mkdir(parents=True)
    files = {
        "pyproject.toml": PYPROJECT,
        "backend.py": BACKEND,
        "serve/__init__.py": "",
        "serve/__main__.py": SERVER,
        "engine/__init__.py": "",
        "engine/model.py": FAKE_MODEL,
        "tools/dev.py": DEV.read_text(encoding="utf-8"),
    }
    for name, text in files.items():
        path = project.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    venv = project.root / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = importlib.util.find_spec("pip")
    assert pip is not None
    assert pip.origin is not None
    (site,) = venv.glob("Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages")
    shutil.copytree(Path(pip.origin).parent, site / "pip")
    return project


class Gate:
    """Where the build backend asks for leave. Use it as the port of `MINI_PORT`."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.port = str(listener.getsockname()[1])

    def wait_for_build(self) -> socket.socket:
        """Block until a build asks; closing the socket gives it leave."""
        connection, _ = self._listener.accept()
        return connection


@contextmanager
def build_gate() -> Generator[Gate]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE_S)
        yield Gate(listener)
