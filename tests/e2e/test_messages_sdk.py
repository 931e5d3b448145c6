"""Anthropic's client with strict response validation: it reads every outcome, and raises the cause of a failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

import anthropic
import pytest
from anthropic.types import Message, ToolUseBlock
from pydantic import BaseModel

from tests.e2e.messages_client import ADD, CALL, END, Json, rule
from tests.e2e.messages_outcomes import CONTEXT, CUT, DIES, FAILED, FINISHED, SCRIPT, Outcome
from tests.e2e.server import ServerProcess, fake_server

BY_NAME = {one.name: one for one in (*FINISHED, *CUT, *FAILED, DIES)}
ENDED = [*FINISHED, *CUT]
BROKEN = [*FAILED, DIES]
LOOP = [
    rule("it gave 2", {"text": "It is two."}, *END),
    rule("what is one more", {"text": f"I look.{CALL}"}, *END),
]


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    script = {**SCRIPT, "requests": [*LOOP, *SCRIPT["requests"]]}
    with fake_server(server_command, script, tmp_path_factory.mktemp("sdk")) as started:
        yield started


def options_of(server: ServerProcess) -> dict[str, Any]:
    return {
        "base_url": f"http://127.0.0.1:{server.port}",
        "api_key": "none",
        "max_retries": 0,
        "_strict_response_validation": True,
    }


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(**options_of(server)) as made:
        yield made


def fields_of(outcome: Outcome) -> dict[str, Any]:
    """The outcome's request as the client takes it: an older field goes into the extra body."""
    body = {name: value for name, value in outcome.body.items() if name != "stream"}
    extra = {"output_format": body.pop("output_format")} if "output_format" in body else None
    return {"extra_body": extra, **body}


def created(client: anthropic.Anthropic, **fields: Any) -> Any:
    create: Any = client.messages.create  # so many fields leave its result's type open
    return create(**fields)


def check_read(message: Message, outcome: Outcome) -> None:
    assert (message.stop_reason, message.stop_sequence) == (outcome.stop, outcome.stop_sequence)
    assert tuple(block.text for block in message.content if block.type == "text") == outcome.texts
    thinking = [block for block in message.content if block.type == "thinking"]
    assert tuple(block.thinking for block in thinking) == outcome.thinking
    assert all(block.signature for block in thinking)
    calls = [block for block in message.content if block.type == "tool_use"]
    assert len(calls) == len(outcome.calls)
    if outcome.stop == "tool_use":
        assert [call.input for call in calls] == [json.loads(arguments) for arguments in outcome.calls]
    assert message.usage.output_tokens > 0


@pytest.mark.parametrize("outcome", ENDED, ids=lambda outcome: outcome.name)
def test_the_client_reads_stream_and_body_alike(client: anthropic.Anthropic, outcome: Outcome) -> None:
    with client.messages.stream(**fields_of(outcome)) as stream:
        names = [event.type for event in stream]
        message: Any = stream.get_final_message()
        assert stream.request_id
    assert names[0] == "message_start"
    assert names[-1] == "message_stop"
    check_read(message, outcome)
    raw = [event.type for event in client.messages.create(stream=True, **fields_of(outcome))]
    assert (raw.count("message_delta"), raw[-2:]) == (1, ["message_delta", "message_stop"])
    whole = created(client, **fields_of(outcome))
    check_read(whole, outcome)
    assert whole.usage.output_tokens == message.usage.output_tokens
    if outcome not in CUT:  # there the helper completes the arguments of a call that was cut
        assert bare(whole) == bare(message)


def bare(message: Any) -> list[Json]:
    """The blocks without what differs between two equal requests, or between the client's two classes of them."""
    dumped: list[Json] = [block.model_dump() for block in message.content]
    return [{key: block[key] for key in block if key not in ("id", "parsed_output")} for block in dumped]


def test_a_call_that_was_cut_has_no_arguments_in_a_body_that_a_client_could_run_with(
    client: anthropic.Anthropic,
) -> None:
    outcome = BY_NAME["length-in-arguments"]
    whole = created(client, **fields_of(outcome))
    last = whole.content[-1]
    assert isinstance(last, ToolUseBlock)
    assert last.input == {}
    assert last.model_dump()["partial_json"] == outcome.calls[-1]


@pytest.mark.parametrize("outcome", BROKEN, ids=lambda outcome: outcome.name)
def test_the_client_raises_the_cause_in_both_modes(client: anthropic.Anthropic, outcome: Outcome) -> None:
    text = ""
    events: Any = client.messages.create(stream=True, **fields_of(outcome))
    with pytest.raises(anthropic.APIStatusError) as raised:
        for event in events:
            delta = getattr(event, "delta", None)
            text += delta.text if delta is not None and delta.type == "text_delta" else ""
    assert text == "".join(outcome.texts)
    body: Any = raised.value.body
    assert body["error"]["type"] == "api_error"
    with pytest.raises(anthropic.InternalServerError) as refused:
        client.messages.create(**fields_of(outcome))
    whole: Any = refused.value.body
    assert whole["error"].get("partial_output", "") == text
    assert refused.value.request_id == whole["request_id"]
    assert refused.value.type == "api_error"


@pytest.mark.parametrize("outcome", BROKEN, ids=lambda outcome: outcome.name)
def test_the_stream_helper_gives_no_final_message_of_a_failure(client: anthropic.Anthropic, outcome: Outcome) -> None:
    # arguments that are not even the beginning of JSON end the helper before it sees our error (seen in 2.14)
    error = ValueError if outcome.name == "no-call-where-one-is-due" else anthropic.APIStatusError
    with client.messages.stream(**fields_of(outcome)) as stream, pytest.raises(error):
        stream.get_final_message()


class Number(BaseModel):
    a: int


def test_the_clients_own_parsing_gives_structured_answers(client: anthropic.Anthropic) -> None:
    fields = fields_of(BY_NAME["json"])
    del fields["output_config"]
    assert client.messages.parse(output_format=Number, **fields).parsed_output == Number(a=1)


def test_a_request_that_is_refused_raises_with_the_field(client: anthropic.Anthropic) -> None:
    message: Json = {"role": "user", "content": "hi"}
    for stream in (True, False):
        with pytest.raises(anthropic.BadRequestError, match="temperature"):
            fields: Json = {"model": "m", "max_tokens": 5, "messages": [message], "stream": stream}
            client.messages.create(**fields, extra_body={"temperature": 9})
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve("b")


def test_models_are_listed_in_the_clients_own_form(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list(limit=20)
    assert (model.id, model.type, model.lifecycle) == ("fake", "model", "active")
    assert model.max_input_tokens == CONTEXT


def test_prompts_are_counted(client: anthropic.Anthropic) -> None:
    fields = fields_of(BY_NAME["call"])
    del fields["max_tokens"]
    counted = client.messages.count_tokens(**fields)
    message = created(client, max_tokens=100, **fields)
    cached = message.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == message.usage.input_tokens + cached


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_a_tool_is_run_and_its_result_answered_with_our_own_blocks_sent_back(
    client: anthropic.Anthropic, streamed: bool
) -> None:
    def ask(messages: list[Any]) -> Any:
        fields: dict[str, Any] = {"model": "m", "max_tokens": 200, "messages": messages, "tools": [ADD]}
        fields["thinking"] = {"type": "disabled"}
        if not streamed:
            return created(client, **fields)
        with client.messages.stream(**fields) as stream:
            return cast("Any", stream.get_final_message())

    messages: list[Any] = [{"role": "user", "content": "what is one more?"}]
    first = ask(messages)
    assert first.stop_reason == "tool_use"
    call = first.content[-1]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "it gave 2"}]}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    assert ask(messages).content[0].text == "It is two."


def test_the_asynchronous_client_reads_side_by_side(server: ServerProcess) -> None:
    async def read(client: anthropic.AsyncAnthropic, outcome: Outcome) -> Any:
        async with client.messages.stream(**fields_of(outcome)) as stream:
            return await stream.get_final_message()

    async def read_all(outcomes: list[Outcome]) -> list[Any]:
        async with anthropic.AsyncAnthropic(**options_of(server)) as client:
            messages = await asyncio.gather(*(read(client, outcome) for outcome in outcomes))
            with pytest.raises(anthropic.APIStatusError):
                await read(client, FAILED[0])
            return messages

    outcomes = [BY_NAME[name] for name in ("stop", "two-calls", "length-in-arguments")]
    for outcome, message in zip(outcomes, asyncio.run(read_all(outcomes)), strict=True):
        check_read(message, outcome)
