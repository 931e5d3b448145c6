"""The engine that is any OpenAI-compatible server, started by a command of the user's as our own supervised child.

It chooses the port, looks whether the server is ready and learns what it can do. Lives and failures are
`engine.chat_child`'s. It knows no server's options and downloads nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from pathlib import PurePath
from typing import Protocol, cast
from urllib.parse import urlsplit

import psutil

from engine.api import EngineInfo, EngineStarting
from engine.chat_child import CONNECT_S, ChatChild, ServedLife
from engine.events import FailKind
from engine.supervisor import ChildSpec
from engine.upstream import SLOTS, UpstreamEngine

log = logging.getLogger("strata.managed")

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PORT = "{port}"
"""What stands in the command for the port that we choose."""
OUR_VARIABLES = "STRATA_"
"""Variables of our own environment with this prefix hold our key and our files; they are not the server's business."""

LOOK_S = 5.0
"""How long one question whether the server is ready may wait for the network, in seconds."""
PAUSES_S = (0.05, 0.1, 0.2)
"""How long to wait before the next look, in seconds; the last value repeats."""
MAX_PAGE_BYTES = 1 << 20
STOP_GRACE_S = 0.0 if sys.platform == "win32" else 5.0
"""Windows cannot ask a program without a window to end."""


class ManagedUpstream(ChatChild):
    """`command`: the program and its arguments, in which `{port}` stands for a free port of this machine, chosen for
    each life. A command without `{port}` needs `url`, the address at which the server can be reached.

    `model`, `key` and the times in seconds as in `UpstreamEngine`. `parallel`: requests at once; without it what
    llama.cpp's `/props` tells, else 64. `cwd` and `env` are the command's (ours; `env` is added to ours), `log` a file
    that its output is appended to. `start_timeout_s`: seconds until it must serve (None: as long as it lives). `who`
    names it in messages. Thread-safe; the constructor starts nothing.

    Raises: ValueError: there is no command, it has no `{port}` and no `url` is given or both, or `url` is none.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        url: str | None = None,
        model: str | None = None,
        key: str | None = None,
        parallel: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        log: str | None = None,
        silence_s: float = 300.0,
        start_timeout_s: float | None = None,
        who: str = "the upstream",
    ) -> None:
        if not command or not command[0]:
            raise ValueError("the command is empty")
        if any(PORT in word for word in command) == (url is not None):
            raise ValueError(f"the command needs either {PORT}, where the server's port belongs, or its URL beside it")
        self._command = tuple(command)
        self._url = url
        self._model = model
        self._key = key
        self._parallel = parallel
        self._cwd = cwd
        self._env = dict(env or {})
        self._log = log
        self._who = who
        name = PurePath(command[0]).name if url is None else UpstreamEngine(url).facts.model
        super().__init__(
            EngineInfo("upstream", model or name, "chat", parallel or SLOTS, None),
            silence_s=silence_s,
            start_timeout_s=start_timeout_s,
            stop_grace_s=STOP_GRACE_S,
        )

    @property
    def facts(self) -> EngineInfo:
        """`slots`, `model` and `max_context` as the server told them once it ran."""
        return self._facts

    # --- lives -------------------------------------------------------------------------------------

    def _spec(self, life: ServedLife) -> ChildSpec:
        life.key = self._key
        argv = self._command
        if self._url is None:
            life.port = _free_port()
            argv = tuple(word.replace(PORT, str(life.port)) for word in argv)
        hidden = {name: None for name in os.environ if name.startswith(OUR_VARIABLES)}
        return ChildSpec(argv, self._cwd, hidden | self._env, self._log, self._who, spoken=False)

    def _on_watch(self, number: int) -> float | None:
        life = self._lives[number]
        if life.looked_for:
            return None
        life.looked_for = True
        threading.Thread(target=self._look, args=(number, life), name=f"ready-{number}", daemon=True).start()
        return None

    def _is_worth_another(self, life: ServedLife) -> bool:
        """Another program was faster on the port that was chosen."""
        return life.port is not None and not _is_free(life.port)

    # --- ready -------------------------------------------------------------------------------------

    def _look(self, number: int, life: ServedLife) -> None:
        """The body of a thread: look until the server is ready, or the life is over."""
        try:
            server = _Server(self._address(life), life.key)
            told = ""
            for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
                why = self._not_ready(server)
                if why is None:
                    break
                if why != told:
                    log.info("%s is not ready yet: %s", self._who, why)
                    told = why
                if self._wait_over(life, pause_s):
                    return
            self._learn(server, life)
            self._supervisor.ready(number)
            self._put_away(life)  # it may have ended meanwhile
        except Exception:  # the thread's top: the life must not seem to be starting for ever
            log.exception("looking whether a server is ready failed")
            self._supervisor.kill(number, "internal error while waiting for the server", FailKind.INTERNAL)

    def _address(self, life: ServedLife) -> str:
        return self._url or f"http://127.0.0.1:{life.port}"

    def _not_ready(self, server: _Server) -> str | None:
        """Why the server does not serve yet; None if it does."""
        why = server.not_ready()
        if why is None and server.host in LOOPBACK and self._is_strangers(server.port):
            why = f"port {server.port} is another program's"
        return why

    def _is_strangers(self, port: int) -> bool:
        """Whether the port is held by a program that ran before our child did. A younger one outside the child's tree
        may still be its server: a container's, for example."""
        pid = self._supervisor.pid
        with contextlib.suppress(psutil.Error, OSError):
            began_s = psutil.Process(pid).create_time()
            holders = {
                connection.pid
                for connection in psutil.net_connections("tcp")
                if connection.status == psutil.CONN_LISTEN and cast("tuple[str, int]", connection.laddr)[1] == port
            }
            return bool(holders) and all(
                holder is not None and psutil.Process(holder).create_time() < began_s for holder in holders
            )
        return False

    def _learn(self, server: _Server, life: ServedLife) -> None:
        slots = self._parallel or server.slots() or SLOTS
        life.upstream = upstream = UpstreamEngine(
            self._address(life),
            model=self._model,
            key=life.key,
            slots=slots,
            connect_s=CONNECT_S,
            silence_s=self._silence_s,
            who=self._who,
        )
        unknown = upstream.facts.model
        try:
            upstream.start()
        except EngineStarting as error:
            log.warning("it is asked all the same: %s", error)  # a wrong key, for example
        facts = upstream.facts
        told = self._model is not None or facts.model != unknown
        self._facts = replace(facts, model=facts.model if told else self._facts.model)


class _Server:
    """A server that may be about to start. Its methods block, for `LOOK_S` or a little more."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url.strip())
        self._tls = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self._tls else 80)
        base = parts.path.rstrip("/")
        self._headers = {"Accept": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
        self._root = re.sub(r"/v\d[^/]*$", "", base)
        self._api = base if base != self._root else f"{base}/v1"

    def not_ready(self) -> str | None:
        """Why it does not serve yet; None if it does.

        llama.cpp listens while it loads, with `/v1/models` 200 and `/health` 503; others open their port when they are
        ready, or answer 503. Not every server has both pages, or wants them seen without its key. Source: as
        `engine.upstream.TELLING_HEALTH`.
        """
        try:
            status, body = self._get(f"{self._api}/models")
            if _not_now(status):
                return f"/v1/models answered {status}"
            if _owner(body) == "openai":  # LiteLLM: its /health sends a paid request to every model
                return None
            status, _ = self._get(f"{self._root}/health")
        except (OSError, http.client.HTTPException) as error:
            return f"no answer: {getattr(error, 'strerror', None) or error or type(error).__name__}"
        return f"/health answered {status}" if _not_now(status) else None

    def slots(self) -> int | None:
        """How many requests llama.cpp runs at once. Source: llama.cpp build 11549, 2026-11-30."""
        try:
            status, body = self._get(f"{self._root}/props")
            value = _fields(body).get("total_slots")
        except (OSError, http.client.HTTPException):
            return None
        return value if status == 200 and isinstance(value, int) and value > 0 else None

    def _get(self, path: str) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=LOOK_S)
        with contextlib.closing(connection):
            connection.connect()
            ends = cast("_Ends", connection.sock)
            if ends.getsockname() == ends.getpeername():  # a port of our own that met itself: nobody listens
                raise ConnectionRefusedError
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_PAGE_BYTES)


class _Ends(Protocol):
    """A socket, of which `http.client` says no type."""

    def getsockname(self) -> object: ...
    def getpeername(self) -> object: ...


def _not_now(status: int) -> bool:
    return (status >= 500 and status != http.HTTPStatus.NOT_IMPLEMENTED) or status == http.HTTPStatus.TOO_MANY_REQUESTS


def _owner(models: bytes) -> object:
    data = _fields(models).get("data")
    first = cast("list[object]", data)[0] if isinstance(data, list) and data else None
    return cast("Mapping[str, object]", first).get("owned_by") if isinstance(first, Mapping) else None


def _fields(body: bytes) -> Mapping[str, object]:
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
