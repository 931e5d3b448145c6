"""Fault × position × stream or not over `/v1/responses`: each ending is true, what was made is kept, the next works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.responses_client import ADD, CALL, END, Json, Steps, failed, request, rule, streamed
from tests.e2e.responses_grammar import ResponseEnding
from tests.e2e.server import ServerProcess, fake_server, wait_for


@dataclass(frozen=True)
class Position:
    """Where the fault strikes: what was made before it, and what of that a client must have. `arguments` are those of
    the call that was cut."""

    name: str
    made: str
    texts: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    thinking: bool = False
    whole_calls: int = 0
    arguments: str | None = None


POSITIONS = (
    Position("before-the-first-token", ""),
    Position("in-reasoning", "Let me see", reasoning=("Let me see",), thinking=True),
    Position("in-text", "Hello, wor", texts=("Hello, wor",)),
    # what was held back for a call that is not one yet is released: nothing received is lost
    Position("in-a-calls-name", "Sure.<tool_call>\n<function=ad", texts=("Sure.<tool_call>\n<function=ad",)),
    Position(
        "in-the-second-calls-arguments",
        f"Sure.{CALL}\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=note>\nhal",
        texts=("Sure.",),
        whole_calls=1,
        arguments='{"a": 1, "note": "hal',
    ),
    Position("after-the-last-token", "So.</think>\n\nHello.", texts=("Hello.",), reasoning=("So.",), thinking=True),
)


@dataclass(frozen=True)
class Fault:
    """What the engine does. `status` is the HTTP status without a stream, `code` our code in both modes; `first` are
    those where nothing was made."""

    name: str
    steps: Steps
    status: int
    code: str
    says: str = ""
    restarts: int = 1
    first: tuple[int, str] | None = None


FAULTS = (
    Fault("exit", [{"exit": 3}], 503, "engine_died", "exit code 3"),
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
    Fault("wrong-count", [{"done": "stop", "generated": 999}], 502, "engine_protocol", "999"),
    Fault("unknown-finish", [{"done": "abort"}], 502, "engine_protocol", "abort"),
    Fault(
        "err",
        [{"err": "a token id is outside the vocabulary"}],
        500,
        "engine_error",
        "vocabulary",
        restarts=0,
        first=(400, "engine_refused"),
    ),
)


def rules() -> list[Json]:
    found: list[Json] = []
    for fault in FAULTS:
        for position in POSITIONS:
            made: Steps = [{"text": position.made}] if position.made else []
            found.append(rule(f"now {fault.name} {position.name}!", *made, *fault.steps))
    return [*found, rule("go on", {"text": "fine"}, *END)]


@pytest.fixture(scope="module")
def servers(
    server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """A patient server, and one that ends an engine that is silent for half a second."""
    script: Json = {"requests": rules()}
    with (
        fake_server(server_command, script, tmp_path_factory.mktemp("patient")) as patient,
        fake_server(server_command, script, tmp_path_factory.mktemp("quick"), "--silence-s", "0.5") as quick,
    ):
        yield patient, quick


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_at_every_position_fails_truthfully_in_all_three_readings(
    servers: tuple[ServerProcess, ServerProcess], fault: Fault
) -> None:
    server = servers[fault.name == "silent"]
    restarts = server.status["engine"]["restarts"]
    for position in POSITIONS:
        content = f"now {fault.name} {position.name}!"
        body = request(content, thinking=position.thinking, tools=[ADD], max_output_tokens=500)
        status, code = fault.first if fault.first and not position.made else (fault.status, fault.code)
        ending = failed(server.port, body, status, code)
        _check_made(ending, position)
        assert ending.error is not None
        assert fault.says in ending.error["message"]
        assert [entry["finish"] for entry in list(server.status["history"])[-2:]] == ["error", "error"]
        assert streamed(server.port, request("go on")).texts == ["fine"]
    assert server.status["engine"]["restarts"] - restarts == 2 * fault.restarts * len(POSITIONS)
    wait_for(server.settled, "the server is idle again")


def _check_made(ending: ResponseEnding, position: Position) -> None:
    """What was made is there, marked for what it is; a call that was cut was never called done."""
    assert tuple(ending.texts) == position.texts
    assert tuple(ending.reasoning) == position.reasoning
    assert ending.response["usage"]["output_tokens"] == len(position.made.encode())
    *whole, last = [*ending.calls, None] if position.arguments is None else ending.calls
    assert [call["status"] for call in whole if call is not None] == ["completed"] * position.whole_calls
    done = [event for event in ending.events if event["type"] == "response.function_call_arguments.done"]
    assert len(done) == position.whole_calls
    if last is not None:
        assert (last["name"], last["arguments"], last["status"]) == ("add", position.arguments, "incomplete")
