"""Clients that note everything they got until the server was killed, and what the records must say afterwards."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.e2e.client import chat
from tests.e2e.kept import CHATS, RESPONSES, Event, Json, Stream, check, read, read_chat, replay, request, text_of
from tests.e2e.server import ServerProcess

Kind = Literal["stream", "whole", "background", "background-stream", "chat"]
KINDS: tuple[Kind, ...] = ("stream", "background-stream", "chat", "background", "whole")

KEPT_AFTER_S = 1.0
"""What was made so long ago is on disk."""
CLOSING = {
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "error",
    "response.failed",
}
"""What a record that was cut gets instead of the events that were not saved."""


class Hiccups:
    """Measures on a thread of its own how late this machine wakes it, at worst, in seconds."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Hiccups:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(0.01):
            now = time.monotonic()
            self.worst_s = max(self.worst_s, now - before - 0.01)
            before = now


@dataclass
class Client:
    """One request and what came of it. `stream` makes it again and again until the server is gone."""

    kind: Kind
    prompt: str
    id: str | None = None
    got: list[tuple[float, Event]] = field(default_factory=list[tuple[float, Event]])
    whole: Json | None = None
    """What it was told at the end, if it came so far: a response, a chat completion, or None."""

    @property
    def body(self) -> Json:
        if self.kind == "chat":
            return chat(content=self.prompt, store=True)
        background = self.kind.startswith("background")
        return request(self.prompt, stream=self.kind.endswith("stream"), background=background)

    def run(self, server: ServerProcess) -> None:
        """Ends when the answer does, or with the server."""
        try:
            stream = Stream(server.port)
            with stream:
                stream.connection.post(CHATS if self.kind == "chat" else RESPONSES, self.body)
                self._read(stream)
        except (OSError, AssertionError):  # closed without an answer, or refused: the server is gone
            return

    def _read(self, stream: Stream) -> None:
        if self.kind in ("background", "whole"):
            answer = stream.connection.answer()
            if answer.terminated and answer.status == 200:
                self.id = answer.json["id"]
                self.whole = answer.json if self.kind == "whole" else None
            return
        while (event := stream.next()) is not None:
            self.got.append((time.monotonic(), event))
            if self.id is None:
                self.id = event.json["id"] if self.kind == "chat" else event.json["response"]["id"]
        if stream.over and self.kind != "chat":
            self.whole = self.got[-1][1].json["response"]

    def text(self, until_s: float) -> str:
        """The text that it had at this moment."""
        return "".join(_delta(event, self.kind) for at, event in self.got if at <= until_s)


def _delta(event: Event, kind: Kind) -> str:
    if kind == "chat":
        if event.raw == b"data: [DONE]":
            return ""
        chunk = json.loads(event.raw.removeprefix(b"data: "))
        return "".join(choice["delta"].get("content", "") for choice in chunk.get("choices", []))
    return event.json["delta"] if event.type == "response.output_text.delta" else ""


def check_record(server: ServerProcess, id_: str, whole_text: str) -> str:
    """What a record says after the server that made it was killed; its text.

    Raises: AssertionError: it lies.
    """
    if id_.startswith("chatcmpl"):
        return _check_chat(read_chat(server, id_), whole_text)
    response = read(server, id_)
    ending = check(replay(server, id_))
    assert ending.response == response
    text = text_of(response)
    if response["status"] == "completed":
        assert text == whole_text, "completed, and it is not whole"
        return text
    assert ending.error is not None, response["status"]
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert ending.error["code"] == "server_lost"
    assert whole_text.startswith(text)
    return text


def _check_chat(body: Json, whole_text: str) -> str:
    (choice,) = body["choices"]
    text: str = choice["message"]["content"]
    if choice["finish_reason"] == "stop":
        assert text == whole_text, "stop, and it is not whole"
        assert "error" not in body
        return text
    assert (choice["finish_reason"], body["error"]["code"]) == ("error", "server_lost")
    assert whole_text.startswith(text)
    return text


def check_client(server: ServerProcess, client: Client, whole_text: str, killed_s: float, slack_s: float) -> str:
    """Compare what a client got with its record; the text that the record had to have."""
    assert client.id is not None
    text = check_record(server, client.id, whole_text)
    needed = client.text(killed_s - KEPT_AFTER_S - slack_s)
    assert text.startswith(needed), f"{len(text)} of {len(needed)} characters that were made long before the kill"
    if client.kind == "chat":
        done = bool(client.got) and client.got[-1][1].raw == b"data: [DONE]"
        assert not done or text == whole_text
        return needed
    if client.whole is not None:
        assert read(server, client.id) == client.whole, "the record is not what its client was told"
    if client.got:
        _check_replay([event for _, event in client.got], replay(server, client.id))
    return needed


def _check_replay(sent: list[Event], kept: list[Event]) -> None:
    """The replay is what was sent, as far as it was saved; then the end of what was lost."""
    same = 0
    while same < min(len(sent), len(kept)) and sent[same].raw == kept[same].raw:
        same += 1
    if same < len(sent):
        rest = [event.type for event in kept[same:]]
        assert set(rest) <= CLOSING, f"the record differs from what was sent: {rest}"


def newest(values: list[Any], seen: set[Any]) -> list[Any]:
    """Those that were not seen before."""
    fresh = [value for value in values if value not in seen]
    seen.update(fresh)
    return fresh
