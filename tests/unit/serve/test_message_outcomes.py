"""The Messages column of the table of endings: documented types only, by status before the first byte."""

from __future__ import annotations

from typing import get_args

import pytest
from anthropic.types import StopReason
from anthropic.types.shared import ErrorResponse

from engine.events import Cancelled, Failed, FailKind, Finished, FinishReason, UpstreamError, Usage
from serve import outcomes
from serve.message_wire import MessageErrorType, MessageStopReason

OVERLOADED = {FailKind.QUEUE_WAIT, FailKind.QUEUE_FULL, FailKind.SHUTDOWN}


def of_http(failed: Failed | Cancelled) -> tuple[int, str, str]:
    failure = outcomes.http_failure(failed)
    body = outcomes.message_error(failure.status, failure.error, "req_1")
    if body["error"]["type"] != "request_too_large":  # the SDK's types lack this documented one
        ErrorResponse.model_validate(body)
    return failure.status, body["error"]["type"], body["error"]["message"]


@pytest.mark.parametrize("kind", list(FailKind))
def test_every_failure_has_a_documented_type_in_both_modes(kind: FailKind) -> None:
    failed = Failed(kind, "why it failed")
    status, type_, message = of_http(failed)
    assert type_ in get_args(MessageErrorType)
    assert message.endswith("why it failed")
    expected = {400: "invalid_request_error", 429: "rate_limit_error"}.get(status, "api_error")
    assert type_ == ("overloaded_error" if kind is FailKind.SHUTDOWN else expected)
    event = outcomes.message_stream_error(failed)
    assert set(event) == {"type", "error"}
    in_stream = "overloaded_error" if kind in OVERLOADED else "api_error"
    assert event["error"]["type"] == ("invalid_request_error" if kind is FailKind.CONTEXT else in_stream)


@pytest.mark.parametrize("reason", get_args(FinishReason))
def test_a_finished_answer_has_a_documented_stop_reason(reason: FinishReason) -> None:
    stop, sequence = outcomes.message_stop(Finished(reason))
    assert stop in get_args(StopReason)
    assert stop in get_args(MessageStopReason)
    assert sequence is None


def test_statuses_of_http_and_of_upstreams_have_the_documented_types() -> None:
    for status, type_ in {401: "authentication_error", 402: "billing_error", 404: "not_found_error"}.items():
        failed = Failed(FailKind.REFUSED, "no", upstream=UpstreamError(status))
        assert of_http(failed)[:2] == (status, type_)
    for status, type_ in {405: "invalid_request_error", 413: "request_too_large", 501: "api_error"}.items():
        error = outcomes.http_error(status, "no")["error"]
        assert outcomes.message_error(status, error, "r")["error"]["type"] == type_
    assert of_http(Cancelled("shutdown"))[:2] == (503, "overloaded_error")


def test_a_prompt_that_does_not_fit_says_so_once() -> None:
    assert of_http(Failed(FailKind.CONTEXT, "9 > 8"))[2] == "prompt is too long: 9 > 8"
    assert of_http(Failed(FailKind.CONTEXT, "Prompt is too long"))[2] == "Prompt is too long"


def test_the_counts_add_up_to_the_prompt() -> None:
    usage = outcomes.message_usage(Usage(9, 7, 4, 2))
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"] == 9
    assert usage["output_tokens_details"] == {"thinking_tokens": 2}
    assert outcomes.message_usage(Usage(3, 1, 4))["input_tokens"] == 0
