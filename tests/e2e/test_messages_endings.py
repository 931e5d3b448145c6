"""Every way in which a message ends: the stream and the body of a second request say the same, and it is true."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.messages_client import (
    ADD,
    CALL,
    Json,
    content_of,
    failed,
    finished,
    refused,
    request,
    send,
    streamed,
    total,
)
from tests.e2e.messages_grammar import MessageEnding
from tests.e2e.messages_outcomes import CONTEXT, CUT, DIES, FAILED, FINISHED, FULL, SCRIPT, Outcome
from tests.e2e.server import ServerProcess, fake_server


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("endings")) as started:
        yield started


def check_made(ending: MessageEnding, outcome: Outcome) -> None:
    assert ending.of("text") == outcome.texts
    assert ending.of("thinking") == outcome.thinking
    assert ending.of("tool_use") == outcome.calls
    assert all(block.name == "add" for block in ending.calls)


@pytest.mark.parametrize("outcome", [*FINISHED, *CUT], ids=lambda outcome: outcome.name)
def test_an_answer_ends_with_its_own_stop_reason_in_both_readings(server: ServerProcess, outcome: Outcome) -> None:
    ending = finished(server.port, outcome.body)
    assert (ending.stop_reason, ending.stop_sequence) == (outcome.stop, outcome.stop_sequence)
    check_made(ending, outcome)
    prompt, output, thinking = total(ending.usage)
    assert prompt > 0
    assert output > 0
    assert (thinking > 0) == bool(outcome.thinking)
    start = ending.events[0]["message"]["usage"]
    assert total(start)[0] == prompt


@pytest.mark.parametrize("outcome", [*FAILED, DIES], ids=lambda outcome: outcome.name)
def test_an_answer_that_is_not_whole_ends_with_an_error_in_both_readings(
    server: ServerProcess, outcome: Outcome
) -> None:
    ending = failed(server.port, outcome.body, outcome.status)
    check_made(ending, outcome)
    assert not ending.calls or not ending.calls[-1].stopped


def test_more_tokens_than_the_context_has_left_are_taken_and_end_as_the_limit(server: ServerProcess) -> None:
    ending = finished(server.port, {**FULL.body, "max_tokens": 100_000})
    assert ending.stop_reason == "max_tokens"
    prompt, output, _ = total(ending.usage)
    assert prompt + output == CONTEXT
    (text,) = ending.of("text")
    assert text == "x" * output


def test_a_prompt_that_does_not_fit_is_refused_in_words_that_agents_know(server: ServerProcess) -> None:
    for stream in (True, False):
        answer = send(server.port, request("x" * (CONTEXT + 1), stream=stream))
        assert answer.status == 400
        error = refused(answer)
        assert error["message"].startswith("prompt is too long: ")
        assert str(CONTEXT) in error["message"]


def test_our_own_answer_sent_back_is_taken(server: ServerProcess) -> None:
    tools: Json = {"tools": [ADD]}
    first = streamed(server.port, request("please think-and-call!", thinking=True, **tools))
    blocks = content_of(first)
    blocks[-1]["id"] = first.calls[0].id
    history = [
        {"role": "user", "content": "please think-and-call!"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": first.calls[0].id, "content": "1"}]},
    ]
    again = streamed(server.port, request(messages=history, thinking=True, **tools))
    assert again.stop_reason == "tool_use"
    assert total(again.usage)[0] > total(first.usage)[0] + len("Hm.") + len(CALL)
