"""Starts what the gateway benchmark compares, each as processes of its own in front of one upstream, and reads what
they use.

The upstream itself ("direct"), ours, nginx as a plain pass-through, LiteLLM's proxy. All listen on loopback and are
ended with the benchmark. It sends them nothing but a question whether they are there, and measures no time.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from tools.gateway_sockets import free_port
from tools.ready_line import first_line

Name = Literal["direct", "ours", "nginx", "litellm"]
NAMES: tuple[Name, ...] = ("direct", "ours", "nginx", "litellm")
START_S = 120.0
STOP_S = 60.0
LOG_BYTES = 600
HOW_TO_GET: Mapping[Name, str] = {
    "nginx": "nginx is not on PATH: install it (no service is needed), or name it with --nginx",
    "litellm": "litellm is not on PATH: make an environment of its own for it (python -m venv DIR; "
    "DIR/bin/pip install 'litellm[proxy]') and name it with --litellm DIR/bin/litellm",
}


class CannotStart(RuntimeError):
    """A server did not start. The message says which, and the end of its log."""


class NotThere(RuntimeError):
    """A program to compare with is not installed. The message says how to get it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is started beside the upstream: programs (None: the one on PATH), and options for ours."""

    nginx: str | None = None
    nginx_workers: int = 1
    litellm: str | None = None
    ours: str = f'"{sys.executable}" -m serve'
    ours_options: str = "--parallel 2000"


@dataclass(frozen=True, slots=True)
class Use:
    """What a server's processes have used and hold now. `pss` counts shared pages by share; 0 where the system does not
    say."""

    cpu_s: float
    rss_bytes: int
    pss_bytes: int
    processes: int


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `pid`: the first of its processes."""

    name: Name
    port: int
    pid: int
    about: str

    def use(self, memory: bool = False) -> Use:
        """What its processes used; memory only where asked for, because it takes the system milliseconds."""
        cpu_s, rss, pss, count = 0.0, 0, 0, 0
        for process in _tree(self.pid):
            try:
                times = process.cpu_times()
                cpu_s += times.user + times.system
                count += 1
                if memory:
                    rss += process.memory_info().rss
                    pss += process.memory_full_info().pss if sys.platform == "linux" else 0
            except psutil.Error:
                continue
        return Use(cpu_s, rss, pss, count)


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


# --- processes ---------------------------------------------------------------------------------------


@contextmanager
def _process(
    command: Sequence[str], folder: Path, name: str, *, env: Mapping[str, str] | None = None, says_port: bool = False
) -> Generator[subprocess.Popen[bytes], None, None]:
    """A process with its log in the folder; its stdin stays open, its whole tree is ended in the end."""
    with (folder / f"{name}.log").open("wb") as log:
        said = subprocess.PIPE if says_port else log
        everything = {**os.environ, **(env or {})}
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=log, env=everything)
        except OSError as error:
            raise CannotStart(f"{name} cannot be started: {error.strerror}") from None
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    children = _tree(process.pid)[1:]
    process.terminate()
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for left in psutil.wait_procs(children, timeout=1.0)[1]:
        left.kill()


def _log_end(folder: Path, name: str) -> str:
    return (folder / f"{name}.log").read_text("utf-8", "replace")[-LOG_BYTES:].strip()


def _said_port(process: subprocess.Popen[bytes], folder: Path, name: str) -> int:
    """The port in a process's first line, `ready: PORT` or `ready: http://host:PORT/…`."""
    try:
        line = first_line(process, START_S).split()
    except TimeoutError:
        raise CannotStart(f"{name} was not ready after {START_S:g} s: {_log_end(folder, name)}") from None
    if len(line) < 2 or line[0] != "ready:":
        raise CannotStart(f"{name} did not start: {_log_end(folder, name)}")
    return int(line[1].rpartition(":")[2].partition("/")[0])


def _wait_port(process: subprocess.Popen[bytes], port: int, folder: Path, name: str) -> None:
    """Wait until something listens there."""
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as sock:
            sock.settimeout(1.0)
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise CannotStart(f"{name} did not start: {_log_end(folder, name)}")


# --- the servers -------------------------------------------------------------------------------------


@contextmanager
def upstream(folder: Path) -> Generator[Server, None, None]:
    """The scripted upstream."""
    with _process([sys.executable, "-m", "tools.gateway_upstream"], folder, "upstream", says_port=True) as process:
        yield Server("direct", _said_port(process, folder, "upstream"), process.pid, "the upstream itself")


def start(name: Name, up: Server, choice: Choice, folder: Path, stack: ExitStack) -> Server:
    """Start a server in front of the upstream; the stack ends it.

    Raises: NotThere, CannotStart.
    """
    match name:
        case "direct":
            return up
        case "ours":
            return stack.enter_context(_ours(up.port, choice, folder))
        case "nginx":
            return stack.enter_context(_nginx(up.port, choice, folder))
        case "litellm":
            return stack.enter_context(_litellm(up.port, choice, folder))


@contextmanager
def _ours(upstream_port: int, choice: Choice, folder: Path) -> Generator[Server, None, None]:
    command = [*shlex.split(choice.ours), "--upstream", f"http://127.0.0.1:{upstream_port}", "--port", "0"]
    command += ["--store", "none", *shlex.split(choice.ours_options)]
    with _process(command, folder, "ours", says_port=True) as process:
        port = _said_port(process, folder, "ours")
        yield Server("ours", port, process.pid, choice.ours_options or "no options")


@contextmanager
def _nginx(upstream_port: int, choice: Choice, folder: Path) -> Generator[Server, None, None]:
    program = _found("nginx", choice.nginx)
    port = free_port()
    home = folder / "nginx"
    home.mkdir()
    config = home / "nginx.conf"
    config.write_text(nginx_config(home, port, upstream_port, choice.nginx_workers), encoding="utf-8")
    log = str(folder / "nginx.log")
    with _process([program, "-e", log, "-p", str(home), "-c", str(config)], folder, "nginx") as process:
        _wait_port(process, port, folder, "nginx")
        yield Server("nginx", port, process.pid, f"{choice.nginx_workers} worker(s), proxy_buffering off")


def nginx_config(home: Path, port: int, upstream_port: int, workers: int) -> str:
    """A plain pass-through: nothing buffered, connections to the upstream kept, no access log."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "\n    ".join(f'{kind}_temp_path "{(home / kind).as_posix()}";' for kind in kinds)
    as_root = sys.platform != "win32" and os.geteuid() == 0
    user = "user root;\n" if as_root else ""  # its workers could not enter our folder as somebody else
    return f"""{user}worker_processes {workers};
worker_rlimit_nofile 8192;
daemon off;
pid "{(home / "nginx.pid").as_posix()}";
events {{ worker_connections 4096; }}
http {{
    access_log off;
    {folders}
    upstream behind {{ server 127.0.0.1:{upstream_port}; keepalive 256; }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            proxy_pass http://behind;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


@contextmanager
def _litellm(upstream_port: int, choice: Choice, folder: Path) -> Generator[Server, None, None]:
    program = _found("litellm", choice.litellm)
    port = free_port()
    config = folder / "litellm.yaml"
    config.write_text(litellm_config(upstream_port), encoding="utf-8")
    command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    env = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # prices from its own package: nothing is fetched
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # loopback, and an upstream of ours
    }
    with _process(command, folder, "litellm", env=env) as process:
        _wait_port(process, port, folder, "litellm")
        yield Server("litellm", port, process.pid, "as it is installed, 1 worker")


def litellm_config(upstream_port: int) -> str:
    return f"""model_list:
  - model_name: bench
    litellm_params:
      model: openai/bench
      api_base: http://127.0.0.1:{upstream_port}/v1
      api_key: none
litellm_settings:
  num_retries: 0
  request_timeout: 600
"""


def _found(name: Name, given: str | None) -> str:
    program = shutil.which(given or name)
    if program is None:
        raise NotThere(f"{given!r} is no program" if given else HOW_TO_GET[name])
    return program
