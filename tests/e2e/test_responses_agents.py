"""The OpenAI Agents SDK on this server: its loop runs tools, goes on from kept responses and from our items sent back,
and raises with the cause where an answer was cut or failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import openai
import pytest
from agents import (
    Agent,
    ModelBehaviorError,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai.types.shared import Reasoning
from pydantic import BaseModel

from tests.e2e.client import fetch
from tests.e2e.responses_client import CALL, END, ROUTE, Json, rule
from tests.e2e.server import ServerProcess, fake_server

T = TypeVar("T")

TWO = CALL.replace("1", "2")
SCRIPT: Json = {
    "requests": [  # the first that fits: so the last turn of a conversation comes first
        rule("say it again", {"text": "You asked: "}, {"echo": True, "find": "what is one|both of them"}, *END),
        rule("result of 2", {"text": "</think>Both are there."}, *END),
        rule("result of 1", {"text": "So.</think>\n\nIt is one."}, *END),
        rule("what is one", {"text": f"Hm.</think>\n\nI look.{CALL}"}, *END),
        rule("both of them", {"text": f"</think>{CALL}\n{TWO}"}, *END),
        rule("as json", {"text": '</think>{"a": 1}'}, *END),
        rule("not json", {"text": "</think>Sure!"}, *END),
        rule("at length", {"text": "</think>" + "word " * 30}, *END),
        rule("then die", {"text": "</think>Hel"}, {"exit": 3}),
    ]
}


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    set_tracing_disabled(True)
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("agents")) as started:
        yield started


@function_tool
def add(a: int) -> str:
    """Gives the result."""
    return f"result of {a}"


class Number(BaseModel):
    a: int


def with_agent(server: ServerProcess, use: Callable[[Agent[Any]], Awaitable[T]], **fields: Any) -> T:
    """Run `use` with an agent whose model is this server's, read strictly."""

    async def run() -> T:
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{server.port}/v1",
            api_key="none",
            max_retries=0,
            _strict_response_validation=True,
        ) as client:
            settings = ModelSettings(reasoning=Reasoning(effort="low"), **fields.pop("settings", {}))
            model = OpenAIResponsesModel("fake", client)
            return await use(Agent("helper", tools=[add], model=model, model_settings=settings, **fields))

    return asyncio.run(run())


async def ask(agent: Agent[Any], given: Any, streamed: bool, **more: Any) -> Any:
    """One run of the agent's loop; its result."""
    config = RunConfig(tracing_disabled=True)
    if not streamed:
        return await Runner.run(agent, given, run_config=config, **more)
    result = Runner.run_streamed(agent, given, run_config=config, **more)
    async for _ in result.stream_events():
        pass
    return result


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_a_tool_is_run_and_its_result_answered(server: ServerProcess, streamed: bool) -> None:
    result = with_agent(server, lambda agent: ask(agent, "what is one?", streamed))
    assert result.final_output == "It is one."
    kinds = [item.type for item in result.new_items]
    assert kinds == [
        "reasoning_item",
        "message_output_item",
        "tool_call_item",
        "tool_call_output_item",
        "reasoning_item",
        "message_output_item",
    ]
    first, last = result.raw_responses
    assert first.usage.output_tokens > 0
    assert fetch(server.port, f"{ROUTE}/{last.response_id}")["status"] == "completed"
    *_, output = fetch(server.port, f"{ROUTE}/{last.response_id}/input_items?order=asc")["data"]
    assert (output["type"], output["output"]) == ("function_call_output", "result of 1")


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_parallel_calls_are_all_run(server: ServerProcess, streamed: bool) -> None:
    result = with_agent(server, lambda agent: ask(agent, "both of them", streamed))
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert outputs == ["result of 1", "result of 2"]
    assert result.final_output == "Both are there."


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_a_conversation_goes_on_from_the_kept_response_and_from_its_items_sent_back(
    server: ServerProcess, streamed: bool
) -> None:
    async def talk(agent: Agent[Any]) -> tuple[Any, Any, Any]:
        first = await ask(agent, "what is one?", streamed)
        kept = await ask(agent, "say it again", streamed, previous_response_id=first.last_response_id)
        again: list[Any] = [*first.to_input_list(), {"role": "user", "content": "say it again"}]
        return first, kept, await ask(agent, again, streamed)

    first, kept, sent = with_agent(server, talk, settings={"store": True})
    assert first.final_output == "It is one."
    for result in (kept, sent):
        assert result.final_output is not None
        (response,) = result.raw_responses
        assert [item.content[0].text for item in response.output] == ["You asked: what is one"]
    # the last turn of both was told the same: the same count of tokens says so
    assert kept.raw_responses[0].usage.input_tokens == sent.raw_responses[0].usage.input_tokens


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_the_loop_itself_goes_on_from_kept_responses(server: ServerProcess, streamed: bool) -> None:
    result = with_agent(server, lambda agent: ask(agent, "what is one?", streamed, auto_previous_response_id=True))
    assert result.final_output == "It is one."
    first, last = result.raw_responses
    assert fetch(server.port, f"{ROUTE}/{last.response_id}")["previous_response_id"] == first.response_id


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_a_structured_answer_beside_tools_is_parsed_and_one_that_fails_raises(
    server: ServerProcess, streamed: bool
) -> None:
    result = with_agent(server, lambda agent: ask(agent, "as json", streamed), output_type=Number)
    assert result.final_output == Number(a=1)
    with pytest.raises((ModelBehaviorError, openai.APIError), match="JSON"):
        with_agent(server, lambda agent: ask(agent, "not json", streamed), output_type=Number)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_an_answer_cut_at_the_limit_is_no_final_output(server: ServerProcess, streamed: bool) -> None:
    with pytest.raises(ModelBehaviorError, match="max_output_tokens"):
        with_agent(server, lambda agent: ask(agent, "at length", streamed), settings={"max_tokens": 30})


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_an_engine_that_dies_raises_with_the_cause(server: ServerProcess, streamed: bool) -> None:
    with pytest.raises((ModelBehaviorError, openai.APIError), match="exit code 3"):
        with_agent(server, lambda agent: ask(agent, "then die", streamed))
