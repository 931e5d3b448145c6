"""Fault × position × stream or not over `/v1/completions`: each ending is true, and what was made is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.completions_client import END, Json, Steps, failed, request, rule, streamed
from tests.e2e.server import ServerProcess, fake_server, wait_for

TAGS = "<think>Let me</think>\n\n<tool_call>\n<function=ad"
POSITIONS = {"before-the-first-token": "", "in-text": "Hello, wor", "in-what-looks-like-a-call": TAGS}


@dataclass(frozen=True)
class Fault:
    """What the engine does, status and code without a stream, and what the message says; `first`: status and code where
    nothing was made."""

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
        0,
        (400, "engine_refused"),
    ),
)


def rules() -> list[Json]:
    found: list[Json] = []
    for fault in FAULTS:
        for name, text in POSITIONS.items():
            made: Steps = [{"text": text}] if text else []
            found.append(rule(f"now {fault.name} {name}!", *made, *fault.steps))
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
def test_every_fault_at_every_position_is_an_error_ending_or_status_with_the_cause(
    servers: tuple[ServerProcess, ServerProcess], fault: Fault
) -> None:
    server = servers[fault.name == "silent"]
    restarts = server.status["engine"]["restarts"]
    for name, text in POSITIONS.items():
        status, code = fault.first if fault.first and not text else (fault.status, fault.code)
        ending = failed(server.port, request(f"now {fault.name} {name}!"), status, code)
        assert ending.error is not None
        assert fault.says in ending.error["message"]
        assert ending.texts == (text,)
        assert ending.finish_reasons == ("error",)
        assert ending.usage is not None
        assert ending.usage["completion_tokens"] == len(text)
        assert [entry["finish"] for entry in list(server.status["history"])[-3:]] == ["error"] * 3
        assert streamed(server.port, request("go on")).texts == ("fine",)
    assert server.status["engine"]["restarts"] - restarts == 3 * fault.restarts * len(POSITIONS)
    wait_for(server.settled, "the server is idle again")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_at_the_second_of_three_prompts_leaves_the_first_whole_and_the_third_empty(
    servers: tuple[ServerProcess, ServerProcess], fault: Fault
) -> None:
    server = servers[fault.name == "silent"]
    prompts = ["go on", f"now {fault.name} in-text!", "go on"]
    ending = failed(server.port, request(prompts), fault.status, fault.code)
    assert ending.texts == ("fine", "Hello, wor", "")
    assert ending.finish_reasons == ("stop", "error", "error")
    assert ending.usage is not None
    assert ending.usage["prompt_tokens"] == len("".join(prompts[:2]))
    assert ending.usage["completion_tokens"] == len("fine") + 1 + len("Hello, wor")
