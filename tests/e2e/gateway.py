"""A server in front of a scripted upstream that does what the last message of a chat names."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.client import Answer, Connection, ask, chat
from tests.e2e.server import ServerProcess
from tests.scripted_upstream import Peer, Request, Script, ScriptedUpstream

CHAT = "/v1/chat/completions"
KEEP_ALIVE = b": keep-alive\n"


@dataclass(frozen=True)
class Gateway:
    """The running pair."""

    server: ServerProcess
    upstream: ScriptedUpstream

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def sent(self) -> Request:
        """What the upstream was sent last."""
        return [one for one in self.upstream.requests if one.method == "POST"][-1]

    def ask(self, name: str, *headers: str, **fields: Any) -> Answer:
        """Have the script of this name played."""
        return ask(self.port, plain_chat(name, **fields), *headers)

    def stored(self, id_: str) -> Answer:
        with Connection(self.port) as connection:
            connection.get(f"{CHAT}/{id_}")
            return connection.answer()


def plain_chat(name: str, **fields: Any) -> dict[str, Any]:
    """A request without fields that are ours alone."""
    body = chat(content=name, **fields)
    del body["chat_template_kwargs"]
    return body


@contextmanager
def gateway(
    command: Sequence[str],
    folder: Path,
    scripts: Mapping[str, Script],
    *options: str,
    pages: Mapping[str, bytes] | None = None,
) -> Generator[Gateway, None, None]:
    """A server over an upstream with these scripts and pages."""

    def play(peer: Peer) -> None:
        messages: Any = peer.request.json["messages"]
        scripts[messages[-1]["content"]](peer)

    with (
        ScriptedUpstream(play, pages) as upstream,
        ServerProcess(command, ["--upstream", upstream.url, *options], folder) as server,
    ):
        yield Gateway(server, upstream)


def passed_bytes(answer: Answer) -> bytes:
    """What was passed on: the body without our own heartbeats."""
    assert answer.status == 200, answer.body
    assert answer.terminated
    return answer.body.replace(KEEP_ALIVE, b"")
