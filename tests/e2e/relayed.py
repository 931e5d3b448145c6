"""An upstream with a Responses API of its own, for tests: its events, right ones and what real servers make of them."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.client import Answer, Connection
from tests.e2e.responses_client import ROUTE, Json, respond
from tests.e2e.responses_grammar import RESPONSE_KEYS
from tests.e2e.server import ServerProcess
from tests.scripted_upstream import Peer, Request, Script, ScriptedUpstream, stream

ID = "resp_theirs"
USAGE: Json = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 16,
}
RUNNING = "in_progress"


# --- objects -----------------------------------------------------------------------------------------


def response(status: str = RUNNING, output: Sequence[Json] = (), **more: Any) -> Json:
    """A response with all that the API asks for."""
    made: Json = dict.fromkeys(sorted(RESPONSE_KEYS)) | {
        "id": ID,
        "object": "response",
        "created_at": 5,
        "status": status,
        "background": False,
        "metadata": {},
        "model": "m",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "odd": {"of": "theirs"},
    }
    ended = status not in (RUNNING, "queued")
    made |= {"usage": USAGE if ended else None, "completed_at": 6 if status == "completed" else None}
    if status == "incomplete":
        made["incomplete_details"] = {"reason": "max_output_tokens"}
    return made | more


def part(text: str, kind: str = "output_text") -> Json:
    made: Json = {"type": kind, "text": text}
    return made | ({"annotations": [], "logprobs": []} if kind == "output_text" else {})


def message(text: str, status: str = "completed", id_: str = "msg_a") -> Json:
    return {"id": id_, "type": "message", "role": "assistant", "status": status, "content": [part(text)]}


def reasoning(text: str, status: str = "completed", id_: str = "rs_a") -> Json:
    return {"id": id_, "type": "reasoning", "summary": [], "content": [part(text, "reasoning_text")], "status": status}


def call(arguments: str, status: str = "completed", id_: str = "fc_a", name: str = "add") -> Json:
    return {
        "id": id_,
        "type": "function_call",
        "call_id": f"call_{id_}",
        "name": name,
        "arguments": arguments,
        "status": status,
    }


# --- events ------------------------------------------------------------------------------------------

BEGIN: list[Json] = [
    {"type": "response.created", "response": response()},
    {"type": "response.in_progress", "response": response()},
]


def spoken(item: Json, index: int = 0, *pieces: str, ends: int = 3) -> list[Json]:
    """A message or a reasoning item that says `pieces`; `ends` of its three last events are there."""
    name = "output_text" if item["type"] == "message" else "reasoning_text"
    more: Json = {"logprobs": []} if name == "output_text" else {}
    at: Json = {"item_id": item["id"], "output_index": index, "content_index": 0}
    text = "".join(pieces)
    opened: Json = {**item, "status": RUNNING, "content": []}
    events: list[Json] = [
        {"type": "response.output_item.added", "output_index": index, "item": opened},
        {"type": "response.content_part.added", **at, "part": part("", name)},
        *({"type": f"response.{name}.delta", **at, "delta": piece, **more} for piece in pieces),
    ]
    last: list[Json] = [
        {"type": f"response.{name}.done", **at, "text": text, **more},
        {"type": "response.content_part.done", **at, "part": part(text, name)},
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]
    return events + last[:ends]


def says(*pieces: str, index: int = 0, status: str = "completed", ends: int = 3, id_: str = "msg_a") -> list[Json]:
    return spoken(message("".join(pieces), status, id_), index, *pieces, ends=ends)


def thinks(*pieces: str, index: int = 0, status: str = "completed", ends: int = 3) -> list[Json]:
    return spoken(reasoning("".join(pieces), status), index, *pieces, ends=ends)


def calls(*pieces: str, index: int = 0, status: str = "completed", ends: int = 2, id_: str = "fc_a") -> list[Json]:
    item = call("".join(pieces), status, id_)
    at: Json = {"item_id": id_, "output_index": index}
    arguments = "".join(pieces)
    events: list[Json] = [
        {"type": "response.output_item.added", "output_index": index, "item": call("", RUNNING, id_)},
        *({"type": "response.function_call_arguments.delta", **at, "delta": piece} for piece in pieces),
    ]
    last: list[Json] = [
        {"type": "response.function_call_arguments.done", **at, "name": "add", "arguments": arguments},
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]
    return events + last[:ends]


def ended(status: str, *output: Json, **more: Any) -> list[Json]:
    return [{"type": f"response.{status}", "response": response(status, output, **more)}]


def numbered(events: Sequence[Json], first: int = 0) -> list[Json]:
    return [{**event, "sequence_number": first + n} for n, event in enumerate(events)]


def sse(value: Json, name: str | None = None) -> bytes:
    """One event as servers write it, without spaces in its JSON. `name`: that of its line, if it is another one."""
    name = value.get("type") if name is None else name
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


def wire(events: Sequence[Json]) -> bytes:
    return b"".join(map(sse, numbered(events)))


def plays(*events: Json) -> Script:
    """A stream of these events, numbered, each in a chunk of its own."""
    return stream(*map(sse, numbered(events)))


def bare(events: Sequence[Json]) -> list[Json]:
    """The events as llama.cpp build 11549 writes them: no numbers, no indexes, hardly a response."""
    made: list[Json] = []
    for event in events:
        kept = {
            k: v for k, v in event.items() if k not in ("sequence_number", "output_index", "content_index", "logprobs")
        }
        if "response" in kept and event["type"] in ("response.created", "response.in_progress"):
            kept["response"] = {k: event["response"][k] for k in ("id", "object", "status")}
        elif "response" in kept:
            names = ("id", "object", "created_at", "status", "model", "output")
            counts = {k: v for k, v in USAGE.items() if k != "output_tokens_details"}
            kept["response"] = {**{k: event["response"][k] for k in names}, "usage": counts, "created_at": 77}
        made.append(kept)
    return made


# --- the running pair --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Front:
    """A server in front of an upstream; the input of a request names the script that the upstream plays."""

    server: ServerProcess
    upstream: ScriptedUpstream

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def sent(self) -> Request:
        """What the upstream was sent last."""
        return [one for one in self.upstream.requests if one.path != "/v1/models"][-1]

    def ask(self, name: str, *headers: str, **fields: Any) -> Answer:
        return respond(self.port, {"input": name, "stream": True, **fields}, *headers)

    def send(self, method: str, path: str, *headers: str) -> Answer:
        """A request without a body to a path below `/v1/responses`."""
        with Connection(self.port) as connection:
            lines = [f"{method} {ROUTE}{path} HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 0", *headers]
            connection.send("\r\n".join(lines).encode() + b"\r\n\r\n")
            return connection.answer()


@contextmanager
def fronted(
    command: Sequence[str],
    folder: Path,
    scripts: Mapping[str, Script],
    *options: str,
    pages: Mapping[str, bytes] | None = None,
) -> Generator[Front, None, None]:
    def play(peer: Peer) -> None:
        scripts[_input_of(peer)](peer)

    with (
        ScriptedUpstream(play, pages) as upstream,
        ServerProcess(command, ["--upstream", upstream.url, "--upstream-api", "responses", *options], folder) as server,
    ):
        yield Front(server, upstream)


def _input_of(peer: Peer) -> str:
    """The input of a request; of one without a body its method and path."""
    if not peer.request.body:
        return f"{peer.request.method} {peer.request.path}"
    given = peer.request.json["input"]
    assert isinstance(given, str)
    return given
