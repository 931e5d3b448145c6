"""The conversations of agents over the default engine with the real model: every request of theirs gets an answer, with
output in it that was made over another engine of ours, also where it was cut in the middle of a call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agents import AGENTS, Agent
from tests.e2e.server import ServerProcess, fake_server
from tests.e2e.test_agents import FIRST, LAST, SECOND, script_of

Json = dict[str, Any]
pytestmark = pytest.mark.llama
FEW = 24
"""Tokens an answer: what is said does not matter."""


@pytest.fixture(scope="module")
def llama(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(server_command, ["--context", "8192"], tmp_path_factory.mktemp("llama")) as started:
        yield started


def talked(kind: type[Agent], port: int) -> list[Json]:
    """The requests of two conversations: with calls, the last of which was cut; with an answer that was cut."""
    agent = kind()
    agent.say(FIRST)
    turn = agent.ask(port)
    for result in (SECOND, LAST):
        agent.result(turn.calls[0], result)
        turn = agent.ask(port)
    agent.say("cut a call")
    assert agent.ask(port).how == "cut"
    assert agent.carry_on(port).text == "I see."
    other = kind()
    other.say("at length")
    assert other.ask(port).how == "cut"
    assert other.carry_on(port).text == "The rest."
    return agent.sent + other.sent


@pytest.mark.parametrize("kind", AGENTS, ids=lambda agent: agent.__name__)
def test_every_request_of_a_conversation_is_answered(
    kind: type[Agent], llama: ServerProcess, server_command: tuple[str, ...], tmp_path: Path
) -> None:
    with fake_server(server_command, script_of(kind), tmp_path) as fake:
        requests = talked(kind, fake.port)
    assert len(requests) == 7
    agent = kind()
    for body in requests:
        name = "max_output_tokens" if "input" in body else "max_tokens"
        turn = agent.read(llama.port, {**body, name: FEW})
        assert turn.how in ("answered", "cut", "calls"), json.dumps(body)
