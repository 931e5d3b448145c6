"""The engines that speak chat in the situations of the conformance suite: an upstream by a scripted server, a pool by
two, a managed one by a program, and llama.cpp with the real model, which cannot be told to break: its deaths and stalls
are in its own tests.
"""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from engine.api import ChatRequest
from engine.llamacpp import LlamaEngine
from engine.managed import ManagedUpstream
from engine.model import ensure_default_model
from engine.upstream import UpstreamEngine
from engine.upstream_pool import UpstreamPool
from tests.conformance.rigs import SILENCE_S, Rig, RigFactory, Situation
from tests.scripted_upstream import (
    DONE,
    LAST_CHUNK,
    Peer,
    Script,
    ScriptedUpstream,
    answer,
    chunk,
    delta,
    event,
    sse_head,
    stream,
)

# --- upstream ----------------------------------------------------------------------------------------

_TEXT = event(delta(content="He"))
_USAGE = event({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 1}})
_GOOD = stream(_TEXT, event(delta("stop")), _USAGE, DONE)


def _never_ends(peer: Peer) -> None:
    peer.send(sse_head())
    while True:
        peer.send(chunk(_TEXT))  # until the client leaves, which ends the script


def _dies_later(peer: Peer) -> None:
    peer.send(sse_head(), chunk(_TEXT))


def _silent(peer: Peer) -> None:
    peer.send(sse_head(), chunk(_TEXT))
    assert peer.wait_gone()


def _refuses(message: str) -> Script:
    return lambda peer: peer.send(answer(b'{"error": {"message": "%b"}}' % message.encode(), 400))


_SCRIPTS: Mapping[Situation, Script] = {
    "answers": _GOOD,
    "limit": stream(_TEXT, event(delta("length")), _USAGE, DONE),
    "never ends": _never_ends,
    "refuses": _refuses("a field is wrong"),
    "too long": _refuses("This model's maximum context length is 8 tokens"),
    "dies first": lambda peer: None,
    "dies later": _dies_later,
    "silent": _silent,
    "broken": stream(_TEXT, b"data: {malformed\n\n", LAST_CHUNK),
}


@contextmanager
def _upstream(situation: Situation, folder: Path) -> Generator[Rig]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    first = iter([_SCRIPTS.get(situation, _GOOD)])

    def script(peer: Peer) -> None:
        next(first, _GOOD)(peer)

    with ExitStack() as stack:
        if situation != "cannot start":
            stack.enter_context(ScriptedUpstream(script, port=port))
        engine = UpstreamEngine(f"http://127.0.0.1:{port}", silence_s=SILENCE_S, slots=2)
        stack.callback(engine.close)
        asked: list[ChatRequest] = []

        def request() -> ChatRequest:
            if situation == "cannot start" and len(asked) == 1:  # somebody has started the server meanwhile
                stack.enter_context(ScriptedUpstream(script, port=port))
            asked.append(ChatRequest({"messages": []}))
            return asked[-1]

        yield Rig(engine, request)


UPSTREAM = RigFactory("upstream", frozenset({*_SCRIPTS, "cannot start"}), _upstream)


# --- pool --------------------------------------------------------------------------------------------


@contextmanager
def _pool(situation: Situation, folder: Path) -> Generator[Rig]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports: list[int] = [one.getsockname()[1], two.getsockname()[1]]
    # the pool fails at first only where both do; what is told after a piece, or of the request, one tells alone
    firsts = iter([_SCRIPTS.get(situation, _GOOD)] * (2 if situation == "dies first" else 1))

    def script(peer: Peer) -> None:
        next(firsts, _GOOD)(peer)

    with ExitStack() as stack:

        def serve() -> None:
            for port in ports:
                stack.enter_context(ScriptedUpstream(script, port=port))

        if situation != "cannot start":
            serve()
        engines = [UpstreamEngine(f"http://127.0.0.1:{port}", silence_s=SILENCE_S, slots=1) for port in ports]
        pool = UpstreamPool({engine.url: engine for engine in engines})
        stack.callback(pool.close)
        asked: list[ChatRequest] = []

        def request() -> ChatRequest:
            if situation == "cannot start" and len(asked) == 1:  # somebody has started the servers meanwhile
                serve()
            asked.append(ChatRequest({"messages": []}))
            return asked[-1]

        yield Rig(pool, request)


POOL = RigFactory("pool", frozenset({*_SCRIPTS, "cannot start"}), _pool)


# --- managed -----------------------------------------------------------------------------------------

_WORDS: Mapping[Situation, str] = {
    "answers": "hi",
    "limit": "limit",
    "never ends": "endless",
    "refuses": "refuse",
    "too long": "too long",
    "dies first": "die first always",
    "dies later": "exit",
    "silent": "stall",
    "broken": "broken",
    "cannot start": "hi",
}
_SERVER = Path(__file__).parents[1] / "managed_server.py"


@contextmanager
def _managed(situation: Situation, folder: Path) -> Generator[Rig]:
    modes = ["exits once"] if situation == "cannot start" else []
    command = [sys.executable, "-S", str(_SERVER), "{port}", str(folder), *modes]
    engine = ManagedUpstream(command, parallel=2, silence_s=4 * SILENCE_S)  # the others' servers are in this process
    words = iter([_WORDS[situation]])

    def request() -> ChatRequest:
        return ChatRequest({"messages": [{"role": "user", "content": next(words, "hi")}]})

    try:
        yield Rig(engine, request)
    finally:
        engine.close()


MANAGED = RigFactory("managed", frozenset(_WORDS), _managed)


# --- llama -------------------------------------------------------------------------------------------

_FIELDS: Mapping[Situation, Mapping[str, object]] = {
    "answers": {},
    "limit": {"max_tokens": 2},
    "never ends": {"ignore_eos": True},
    "refuses": {"max_tokens": "many"},
    "too long": {"messages": [{"role": "user", "content": "word " * 3000}]},
    "cannot start": {},
}


@contextmanager
def _llama(situation: Situation, folder: Path) -> Generator[Rig]:
    model = ensure_default_model()
    path = model
    if situation == "cannot start":
        path = folder / "model.gguf"
        path.write_bytes(b"half a download")
    engine = LlamaEngine(path, context=1024)
    asked: list[ChatRequest] = []

    def request() -> ChatRequest:
        if situation == "cannot start" and len(asked) == 1:  # somebody has put the right file there meanwhile
            shutil.copyfile(model, path)
        messages = [{"role": "user", "content": "Say hello in one word."}]
        body: dict[str, object] = {"messages": messages, "temperature": 0, "max_tokens": 300}
        if not asked:
            body.update(_FIELDS[situation])
        asked.append(ChatRequest(body))
        return asked[-1]

    try:
        yield Rig(engine, request)
    finally:
        engine.close()


LLAMA = RigFactory("llama", frozenset(_FIELDS), _llama)
