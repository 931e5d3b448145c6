"""tools/soak/serving.py over real processes: a server that starts, one that never does, and one that does not end."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.server import wait_for
from tools.probe.exits import CouldNotRun
from tools.soak.serving import OurServer

DEADLINE_S = 20.0
READY = "print('ready: http://127.0.0.1:1/v1', flush=True)\n"
WORDS = "import sys; open('FILE', 'w').write(repr(sys.argv[1:]))\n"
PIDS = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, '-S', '-c', 'input()'], stdin=subprocess.PIPE)
with open('FILE.new', 'w') as file:
    file.write(f'{os.getpid()} {child.pid}')
os.replace('FILE.new', 'FILE')
"""
FOR_EVER = "import threading; threading.Event().wait(60)\n"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """Where a server of this test writes its process id and its child's: they are ended with the test."""
    path = tmp_path / "said"
    yield path
    for word in path.read_text(encoding="utf-8").split() if path.exists() else ():
        if word.isdecimal():
            with contextlib.suppress(psutil.Error):
                psutil.Process(int(word)).kill()


def command(file: Path, *parts: str) -> list[str]:
    return [sys.executable, "-c", "".join(parts).replace("FILE", file.as_posix())]


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def pids(file: Path) -> list[int]:
    wait_for(file.exists, "the pids are written", DEADLINE_S)
    return [int(word) for word in file.read_text(encoding="utf-8").split()]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "['--port', '0']"),
        ("--silence-s 1", "['--silence-s', '1', '--port', '0']"),
        ("--port 8000", "['--port', '8000']"),
        ("--port=8000 --parallel 2", "['--port=8000', '--parallel', '2']"),
    ],
)
def test_port_is_free_unless_the_options_name_one(tmp_path: Path, file: Path, options: str, words: str) -> None:
    server = OurServer(options, tmp_path / "log", command=command(file, WORDS, READY, FOR_EVER))
    assert server.url == "http://127.0.0.1:1/v1"
    assert server.end(DEADLINE_S)
    assert file.read_text(encoding="utf-8") == words


def test_server_that_is_never_ready_is_ended_with_its_engine(tmp_path: Path, file: Path) -> None:
    never = command(file, PIDS, "sys.stderr.write('loading 3 %\\n'); sys.stderr.flush()\n", FOR_EVER)
    with pytest.raises(CouldNotRun, match="the server was not ready after 3 s: loading 3 %"):
        OurServer("", tmp_path / "log", command=never, limit_s=3.0)
    wait_for(lambda: not any(map(lives, pids(file))), "nobody lives", DEADLINE_S)


def test_server_that_starts_when_the_run_is_stopped_is_ended_with_its_engine(tmp_path: Path, file: Path) -> None:
    stop = threading.Event()

    def stop_it() -> None:
        pids(file)
        stop.set()

    thread = threading.Thread(target=stop_it)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        OurServer("", tmp_path / "log", command=command(file, PIDS, FOR_EVER), stop=stop)
    thread.join()
    wait_for(lambda: not any(map(lives, pids(file))), "nobody lives", DEADLINE_S)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process without asking it")
def test_server_that_does_not_stop_is_killed_with_its_engine(tmp_path: Path, file: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    server = OurServer("", tmp_path / "log", command=command(file, deaf, PIDS, READY, FOR_EVER))
    assert server.ended is None
    assert not server.end(0.3)
    wait_for(lambda: not any(map(lives, pids(file))), "nobody lives", DEADLINE_S)
    assert server.end()


def test_server_that_ends_by_itself_says_how(tmp_path: Path, file: Path) -> None:
    code = READY + "import sys; sys.stderr.write('the disk is full'); sys.stderr.flush(); sys.exit(4)"
    server = OurServer("", tmp_path / "log", command=command(file, code))
    wait_for(lambda: server.ended is not None, "its end is seen", DEADLINE_S)
    assert server.ended == "exit status 4"
    assert server.last_words() == "the disk is full"
    assert server.end()
