"""Kept answers seen from outside: streams read event by event, to be cut anywhere and taken up again; the engine's
cues; the store's file. It shares no code with the server.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
import struct
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from tests.e2e.client import DEADLINE_S, Answer, Connection, ask
from tests.e2e.responses_grammar import ResponseEnding, check_response_stream
from tests.e2e.server import ServerProcess, wait_for

Json = dict[str, Any]
Steps = list[Json]

RESPONSES = "/v1/responses"
CHATS = "/v1/chat/completions"
END: Steps = [{"end_token": True}, {"done": "stop"}]
RUNNING = ("queued", "in_progress")
PARAMETERS: Json = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS: list[Json] = [{"type": "function", "name": "add", "parameters": PARAMETERS}]
CALL = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"


def rules(**matches: Steps) -> Json:
    """A script that answers a prompt by the word in it."""
    entries = [{"match": word.replace("_", "-"), "steps": steps} for word, steps in matches.items()]
    return {"requests": entries, "then": "ok"}


def request(content: str = "hi", *, thinking: bool = False, **fields: Any) -> Json:
    return {"input": content, **({} if thinking else {"reasoning": {"effort": "none"}}), **fields}


# --- one event after the other -----------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """One event as it was on the wire, without the blank line behind it."""

    raw: bytes

    @property
    def json(self) -> Any:
        (line,) = [line for line in self.raw.split(b"\n") if line.startswith(b"data: ")]
        return json.loads(line.removeprefix(b"data: "))

    @property
    def type(self) -> str:
        return self.json["type"]

    @property
    def number(self) -> int:
        return self.json["sequence_number"]


class Stream:
    """An answer of events on a connection of its own, read one by one. `over`: its body ended as its framing says."""

    def __init__(self, port: int, timeout_s: float = DEADLINE_S) -> None:
        self.connection = Connection(port, timeout_s)
        self.status = 0
        self.seen: list[Event] = []
        self.comments = 0
        self.over = False
        self.cut = False
        self._buffer = b""

    @classmethod
    def post(cls, server: ServerProcess, body: Json, path: str = RESPONSES) -> Stream:
        made = cls(server.port)
        made.connection.post(path, {**body, "stream": True})
        return made

    @classmethod
    def resume(cls, server: ServerProcess, id_: str, after: int | None = None) -> Stream:
        made = cls(server.port)
        cursor = "" if after is None else f"&starting_after={after}"
        made.connection.get(f"{RESPONSES}/{id_}?stream=true{cursor}")
        return made

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def head(self) -> None:
        """Read the head of the answer."""
        line = self.connection.take_line()
        assert line is not None, "closed without an answer"
        self.status = int(line.split()[1])
        while self.connection.take_line():
            pass

    def next(self) -> Event | None:
        """The next event; None when the body is over, or cut."""
        if not self.status:
            self.head()
            assert self.status == 200, self.connection.take(4_096)
        while b"\n\n" not in self._buffer:
            part = None if self.over or self.cut else self._chunk()
            if part is None:
                return None
            self._buffer += part
        block, _, self._buffer = self._buffer.partition(b"\n\n")
        while block.startswith(b": "):
            comment, _, block = block.partition(b"\n")
            assert comment == b": keep-alive"
            self.comments += 1
        event = Event(block)
        self.seen.append(event)
        return event

    def _chunk(self) -> bytes | None:
        line = self.connection.take_line()
        size = -1 if line is None else int(line, 16)
        part = b"" if size < 0 else self.connection.take(size + 2)
        if len(part) < size + 2:
            self.cut = True
            return None
        self.over = size == 0
        return None if self.over else part[:-2]

    def take(self, count: int) -> list[Event]:
        """The first `count` events, fewer where it ends before."""
        while len(self.seen) < count and self.next() is not None:
            pass
        return self.seen[:count]

    def until(self, mark: str) -> Event:
        """Read up to the event that holds `mark`."""
        while (event := self.next()) is not None:
            if mark.encode() in event.raw:
                return event
        raise AssertionError(f"ended without {mark!r}: {self.seen[-3:]}")

    def rest(self) -> list[Event]:
        """Read to the end, which has to be a true one; all of its events."""
        while self.next() is not None:
            pass
        assert self.over, f"the stream was cut after {self.seen[-2:]}"
        assert self._buffer == b""
        return self.seen

    def leave(self) -> None:
        """Close both directions (FIN)."""
        with contextlib.suppress(OSError):
            self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.connection.sock.close()

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        reset(self.connection.sock)

    @property
    def id(self) -> str:
        """The response's id, from its first event."""
        return self.take(1)[0].json["response"]["id"]


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def check(events: list[Event], first_number: int = 0) -> ResponseEnding:
    """Check the grammar of a stream that was read, perhaps with some cuts."""
    body = b"".join(event.raw + b"\n\n" for event in events)
    answer = Answer(200, {"content-type": "text/event-stream"}, body, terminated=True)
    return check_response_stream(answer, first_number=first_number)


def replay(server: ServerProcess, id_: str, after: int | None = None) -> list[Event]:
    with Stream.resume(server, id_, after) as stream:
        return stream.rest()


# --- single requests ---------------------------------------------------------------------------------


def call(server: ServerProcess, method: str, path: str, *headers: str) -> Answer:
    """A request without a body."""
    with Connection(server.port) as connection:
        connection.send("\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers]).encode() + b"\r\n\r\n")
        return connection.answer()


def make(server: ServerProcess, body: Json, path: str = RESPONSES) -> Answer:
    return ask(server.port, body, path=path)


def get(server: ServerProcess, id_: str, what: str = "") -> Answer:
    return call(server, "GET", f"{RESPONSES}/{id_}{what}")


def read(server: ServerProcess, id_: str) -> Json:
    """A kept response."""
    answer = get(server, id_)
    assert answer.status == 200, answer.body
    return answer.json


def read_chat(server: ServerProcess, id_: str) -> Json:
    answer = call(server, "GET", f"{CHATS}/{id_}")
    assert answer.status == 200, answer.body
    return answer.json


def ended(server: ServerProcess, id_: str) -> Json:
    """A kept response, once it has ended."""
    wait_for(lambda: read(server, id_)["status"] not in RUNNING, f"{id_} ends")
    return read(server, id_)


def text_of(response: Json) -> str:
    """What was said: the texts of all messages."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


# --- the engine and the store's file -----------------------------------------------------------------


_folders: WeakKeyDictionary[ServerProcess, Path] = WeakKeyDictionary()


def _folder(server: ServerProcess) -> Path:
    """The folder through which the engine is spoken to: the same for all of its lives."""
    if server not in _folders:
        command = server.engine_process().cmdline()
        _folders[server] = Path(command[command.index("--state") + 1])
    return _folders[server]


def cue(server: ServerProcess, name: str) -> None:
    """Let the engine go on at its step `cue` of this name, from now on."""
    (_folder(server) / f"cue-{name}").touch()


def uncue(server: ServerProcess, name: str) -> None:
    """Let the engine wait there again."""
    (_folder(server) / f"cue-{name}").unlink(missing_ok=True)


def wait_reached(server: ServerProcess, name: str) -> None:
    """Wait until the engine has come to its step `reached` of this name."""
    mark = _folder(server) / f"reached-{name}"
    wait_for(mark.exists, f"the engine reaches {name!r}")


def unreach(server: ServerProcess, name: str) -> None:
    """Forget that the engine was there."""
    (_folder(server) / f"reached-{name}").unlink(missing_ok=True)


def commands(server: ServerProcess) -> list[str]:
    """The names of the commands that the engine got."""
    lines = (_folder(server) / "commands.jsonl").read_text(encoding="utf-8").splitlines()
    return [str(json.loads(line)["raw"]).split()[0] for line in lines]


def calm(server: ServerProcess, file: Path | None = None) -> None:
    """End what a test has left running, so that the next one finds the engine free."""
    with opened(file or file_of(server)) as link:
        left = link.execute("SELECT id FROM records WHERE ended_at IS NULL AND background").fetchall()
    for (id_,) in left:
        call(server, "POST", f"{RESPONSES}/{id_}/cancel")
    wait_for(server.settled, "nothing runs")


def file_of(server: ServerProcess) -> Path:
    """The store's file of a server that was given none by name."""
    return server.log_path.with_name("store.db")


@contextlib.contextmanager
def opened(file: Path) -> Generator[sqlite3.Connection]:
    """The store's file beside the server: the test's own connection."""
    link = sqlite3.connect(file, timeout=10.0, isolation_level=None)
    try:
        yield link
    finally:
        link.close()


def kept_ids(file: Path, prefix: str = "") -> list[str]:
    """The ids of all records in the file, oldest first."""
    with opened(file) as link:
        rows = link.execute("SELECT id FROM records ORDER BY key").fetchall()
    return [id_ for (id_,) in rows if id_.startswith(prefix)]


def saved_entries(file: Path, id_: str) -> int:
    """How many of its entries are on disk."""
    with opened(file) as link:
        query = "SELECT coalesce(sum(count), 0) FROM segments JOIN records ON record = key WHERE id = ?"
        return int(link.execute(query, (id_,)).fetchone()[0])


def bytes_on_disk(file: Path) -> bytes:
    """All that the store has on disk: the file, its log, and what lies beside it."""
    return b"".join(path.read_bytes() for path in sorted(file.parent.glob(f"{file.name}*")))
