"""Fault × position × stream or not: each ending is true, what was made is kept, and the next request works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.client import ask, chat
from tests.e2e.grammar import check_chat_stream
from tests.e2e.server import ServerProcess, wait_for

Steps = list[dict[str, Any]]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "note": {"type": "string"}}},
        },
    }
]
OK: Steps = [{"text": "fine"}, {"end_token": True}, {"done": "stop"}]


@dataclass(frozen=True)
class Position:
    """Where the fault strikes: what was made before it, and what of that a client must have."""

    name: str
    made: str
    content: str = ""
    reasoning: str = ""
    thinking: bool = False
    open_call: bool = False


POSITIONS = (
    Position("before-the-first-token", ""),
    Position("in-reasoning", "Let me see", reasoning="Let me see", thinking=True),
    Position("in-text", "Hello, wor", content="Hello, wor"),
    # what was held back for a call that is not one yet is released: nothing received is lost
    Position(
        "in-a-tool-calls-name",
        "Sure.<tool_call>\n<function=ad",
        content="Sure.<tool_call>\n<function=ad",
        open_call=True,
    ),
    Position(
        "in-a-tool-calls-arguments",
        "Sure.<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=note>\nhal",
        content="Sure.",
        open_call=True,
    ),
    Position("after-the-last-token", "Hello.", content="Hello."),
)


@dataclass(frozen=True)
class Fault:
    """What the engine does. `status` is the HTTP status without a stream, `code` the error code of the stream."""

    name: str
    steps: Steps
    status: int
    code: str
    says: str = ""
    restarts: int = 1


FAULTS = (
    Fault("exit", [{"exit": 3}], 503, "engine_died", "3"),
    Fault("sigkill", [{"signal": "SIGKILL"}], 503, "engine_died", "SIGKILL"),
    Fault("sigsegv", [{"signal": "SIGSEGV"}], 503, "engine_died", "SIGSEGV"),
    Fault("silent", [{"stall": True}], 503, "engine_died", "0.5 s"),
    Fault("stdout-closed", [{"close_stdout": True}], 503, "engine_died"),
    Fault("half-line", [{"half_line": "T 1"}, {"exit": 0}], 503, "engine_died"),
    Fault(
        "fatal-err",
        [{"err": "verify: timed out at layer 18; its GPU waits were released"}, {"done": "error"}],
        503,
        "engine_died",
        "layer 18",
    ),
    Fault("damaged-line", [{"line": "T x"}], 502, "engine_protocol"),
    Fault("wrong-count", [{"done": "stop", "generated": 99}], 502, "engine_protocol", "99"),
    Fault("unknown-finish", [{"done": "abort"}], 502, "engine_protocol", "abort"),
    Fault("err", [{"err": "a token id is outside the vocabulary"}], 500, "engine_error", "vocabulary", restarts=0),
)


def steps_of(position: Position, fault: Fault) -> Steps:
    made: Steps = [{"text": position.made}] if position.made else []
    return [*made, *fault.steps]


def surviving(fault: Fault) -> dict[str, Any]:
    """One life: each position's fault, then a good answer."""
    return {"requests": [steps for position in POSITIONS for steps in (steps_of(position, fault), OK)]}


def restarting(fault: Fault) -> dict[str, Any]:
    """Each life answers the request that restarted it, then fails at the next position."""
    lives = [{"requests": [OK, steps_of(position, fault)]} for position in POSITIONS]
    lives[0]["requests"] = lives[0]["requests"][1:]
    return {"requests": [], "lives": [*lives, {"requests": [OK]}]}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_at_every_position_ends_truthfully(
    fake: Callable[..., ServerProcess], fault: Fault, stream: bool
) -> None:
    script = surviving(fault) if fault.restarts == 0 else restarting(fault)
    server = fake(script, "--silence-s", "0.5")
    for position in POSITIONS:
        body = chat(stream=stream, thinking=position.thinking, tools=TOOLS, max_tokens=500)
        answer = ask(server.port, body)
        if stream:
            _check_stream(answer, position, fault)
        else:
            _check_whole(answer, position, fault)
        assert server.status["history"][-1]["finish"] == "error"
        good = ask(server.port, chat(stream=False))
        assert good.status == 200, good.body
        assert good.json["choices"][0]["finish_reason"] == "stop"
    assert server.status["engine"]["restarts"] == fault.restarts * len(POSITIONS)
    wait_for(server.settled, "the server is idle again")


def _check_stream(answer: Any, position: Position, fault: Fault) -> None:
    ending = check_chat_stream(answer)
    assert ending.finish_reason == "error"
    assert ending.error is not None
    expected = fault.code if position.made or fault.code != "engine_error" else "engine_refused"
    assert ending.error["code"] == expected
    assert fault.says in ending.error["message"]
    assert ending.content == position.content
    assert ending.reasoning == position.reasoning
    assert ending.usage is not None
    assert ending.usage["completion_tokens"] == len(position.made.encode())
    for call in ending.calls:
        assert position.open_call
        assert call["name"] == "add"


def _check_whole(answer: Any, position: Position, fault: Fault) -> None:
    refusal = fault.code == "engine_error" and not position.made
    assert answer.status == (400 if refusal else fault.status)
    error = answer.json["error"]
    assert error["code"] == ("engine_refused" if refusal else fault.code)
    assert fault.says in error["message"]
    assert error.get("partial_output", "") == position.content
