"""Fault × position × stream or not over `/v1/messages`: each ending is true, what was made is told, the next works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.messages_client import ADD, CALL, END, Json, Steps, failed, request, rule, streamed
from tests.e2e.messages_grammar import MessageEnding
from tests.e2e.server import ServerProcess, fake_server, wait_for


@dataclass(frozen=True)
class Position:
    """Where the fault strikes: what was made before it, and what of that a client must have. `calls` are arguments; the
    last of them is cut where `cut` says so."""

    name: str
    made: str
    texts: tuple[str, ...] = ()
    thinking: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    cut: bool = False


POSITIONS = (
    Position("before-the-first-token", ""),
    Position("in-thinking", "Let me see", thinking=("Let me see",)),
    Position("in-text", "Hello, wor", texts=("Hello, wor",)),
    # what was held back for a call that is not one yet is released: nothing received is lost
    Position("in-a-calls-name", "Sure.<tool_call>\n<function=ad", texts=("Sure.<tool_call>\n<function=ad",)),
    Position(
        "in-the-second-calls-arguments",
        f"Sure.{CALL}\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=note>\nhal",
        texts=("Sure.",),
        calls=('{"a": 1}', '{"a": 1, "note": "hal'),
        cut=True,
    ),
    Position("after-the-last-token", "So.</think>\n\nHello.", texts=("Hello.",), thinking=("So.",)),
)


@dataclass(frozen=True)
class Fault:
    """What the engine does, the HTTP status without a stream, and what the message says; `first` is the status where
    nothing was made."""

    name: str
    steps: Steps
    status: int
    says: str = ""
    restarts: int = 1
    first: int = 0


FAULTS = (
    Fault("exit", [{"exit": 3}], 503, "exit code 3"),
    Fault("sigkill", [{"signal": "SIGKILL"}], 503, "SIGKILL"),
    Fault("silent", [{"stall": True}], 503, "0.5 s"),
    Fault("stdout-closed", [{"close_stdout": True}], 503),
    Fault("half-line", [{"half_line": "T 1"}, {"exit": 0}], 503),
    Fault(
        "fatal-err",
        [{"err": "verify: timed out at layer 18; its GPU waits were released"}, {"done": "error"}],
        503,
        "layer 18",
    ),
    Fault("damaged-line", [{"line": "T x"}], 502),
    Fault("wrong-count", [{"done": "stop", "generated": 999}], 502, "999"),
    Fault("unknown-finish", [{"done": "abort"}], 502, "abort"),
    Fault("err", [{"err": "a token id is outside the vocabulary"}], 500, "vocabulary", restarts=0, first=400),
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
def test_every_fault_at_every_position_is_an_error_event_or_status_with_the_cause(
    servers: tuple[ServerProcess, ServerProcess], fault: Fault
) -> None:
    server = servers[fault.name == "silent"]
    restarts = server.status["engine"]["restarts"]
    for position in POSITIONS:
        content = f"now {fault.name} {position.name}!"
        body = request(content, thinking=bool(position.thinking), tools=[ADD])
        status = fault.first if fault.first and not position.made else fault.status
        ending = failed(server.port, body, status)
        _check_made(ending, position)
        assert ending.error is not None
        assert fault.says in ending.error["message"]
        assert [entry["finish"] for entry in list(server.status["history"])[-2:]] == ["error", "error"]
        assert streamed(server.port, request("go on")).of("text") == ("fine",)
    assert server.status["engine"]["restarts"] - restarts == 2 * fault.restarts * len(POSITIONS)
    wait_for(server.settled, "the server is idle again")


def _check_made(ending: MessageEnding, position: Position) -> None:
    """What was made is there; a call that was cut was never stopped, so that no client runs it."""
    assert ending.of("text") == position.texts
    assert ending.of("thinking") == position.thinking
    assert ending.of("tool_use") == position.calls
    stops = [call.stopped for call in ending.calls]
    assert stops == [True] * (len(stops) - position.cut) + [False] * position.cut
