"""What an upstream is told of the thinking: the budget under its own name, if it has one, and the effort."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.e2e.apis import APIS, ROUTES, question
from tests.e2e.client import ask
from tests.e2e.gateway import Gateway, gateway
from tests.scripted_upstream import DONE, MODELS, answer, delta, event, stream

Json = dict[str, Any]
SCRIPTS = {"hi": stream(event(delta(content="Hello")), event(delta("stop")), DONE)}
OWNERS = ("llamacpp", "vllm", "somebody")
NAMES = ("reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget")


@pytest.fixture(scope="module")
def pairs(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Gateway]]:
    cards: Any = MODELS["data"]
    with ExitStack() as stack:
        found: dict[str, Gateway] = {}
        for owner in OWNERS:
            models = {**MODELS, "data": [{**cards[0], "owned_by": owner}]}
            pages = {"/v1/models": answer(json.dumps(models).encode()), "/health": answer(b"")}
            pair = gateway(server_command, tmp_path_factory.mktemp(owner), SCRIPTS, pages=pages)
            found[owner] = stack.enter_context(pair)
        yield found


def told(pair: Gateway, api: str, body: Json) -> Json:
    """What the upstream is told of the thinking."""
    assert ask(pair.port, body, path=ROUTES[api]).status == 200
    return {name: value for name, value in pair.sent.json.items() if name in (*NAMES, "reasoning_effort", "thinking")}


@pytest.mark.parametrize("stream_", [True, False], ids=["stream", "body"])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_budget_has_the_upstreams_own_name(pairs: dict[str, Gateway], api: str, stream_: bool) -> None:
    effort = {"reasoning_effort": "low"} if api == "responses" else {}
    for given in NAMES:
        body = {**question(api, stream=stream_), given: 7}
        assert told(pairs["llamacpp"], api, body) == {"reasoning_budget_tokens": 7, **effort}
        assert told(pairs["vllm"], api, body) == {"thinking_token_budget": 7, **effort}
        assert told(pairs["somebody"], api, body) == {given: 7, **effort}


@pytest.mark.parametrize("stream_", [True, False], ids=["stream", "body"])
def test_the_budget_that_agents_send_by_habit_goes_to_llama_cpp_alone(pairs: dict[str, Gateway], stream_: bool) -> None:
    body = question("messages", stream=stream_, budget=1_024)
    assert told(pairs["llamacpp"], "messages", body) == {"reasoning_budget_tokens": 1_024}
    assert told(pairs["vllm"], "messages", body) == told(pairs["somebody"], "messages", body) == {}
    none = question("messages", stream=stream_, budget=0)
    for pair in pairs.values():
        assert told(pair, "messages", none) == {"reasoning_effort": "none"}


@pytest.mark.parametrize("api", APIS)
def test_a_wrong_budget_is_refused_here(pairs: dict[str, Gateway], api: str) -> None:
    refused = ask(pairs["vllm"].port, question(api, stream=True, budget=-7), path=ROUTES[api])
    assert refused.status == 400
    assert "budget_tokens: " in refused.json["error"]["message"]
