"""The table of endings: every kind has a row, and only a finished answer gets a word of success."""

import json
from typing import get_args

import pytest
from openai.types.responses import ResponseError as SdkError
from openai.types.responses import ResponseStatus as SdkStatus
from openai.types.responses import ResponseUsage as SdkUsage

from engine.api import EngineDied, EngineSilent
from engine.events import (
    Cancelled,
    CancelledBy,
    Failed,
    FailKind,
    Finished,
    FinishReason,
    Terminal,
    Timings,
    UpstreamError,
    Usage,
)
from serve import outcomes
from serve.lifecycle import QueueWaitExpired, StructuredOutputError

SUCCESS = {"stop", "tool_calls"}


@pytest.mark.parametrize("kind", list(FailKind))
def test_every_failure_has_a_status_an_error_and_the_closing_word_error(kind: FailKind) -> None:
    failed = Failed(kind, "why it failed")
    http = outcomes.http_failure(failed)
    assert 400 <= http.status < 600
    assert http.error["message"] == "why it failed"
    assert set(outcomes.stream_error(failed)) == {"message", "type", "param", "code"}
    assert outcomes.stream_error(failed)["type"] != "invalid_request_error" or kind is FailKind.CONTEXT
    assert outcomes.chat_finish_reason(failed) == "error"
    assert outcomes.record_of(failed) == outcomes.Record("error", kind.value, "why it failed")


def test_the_table_has_no_row_too_many() -> None:
    assert set(outcomes.FAILURES) == set(FailKind)


@pytest.mark.parametrize("by", ["client", "operator", "deadline", "shutdown"])
def test_a_cancelled_answer_is_never_a_success(by: str) -> None:
    cancelled = Cancelled(by)  # type: ignore[arg-type]  # the parameters are the literal's values
    assert outcomes.chat_finish_reason(cancelled) not in SUCCESS
    assert outcomes.record_of(cancelled).finish == "cancel"


def test_shutdown_says_retry_after() -> None:
    failure = outcomes.http_failure(Cancelled("shutdown"))
    assert (failure.status, failure.error["code"], failure.retry_after) == (503, "server_shutdown", "5")


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter"])
def test_a_finished_answer_says_its_own_reason(reason: str) -> None:
    assert outcomes.chat_finish_reason(Finished(reason)) == reason  # type: ignore[arg-type]  # the literal's values


@pytest.mark.parametrize(
    ("error", "type_", "code"),
    [
        (EngineDied("x"), "server_error", "engine_died"),
        (EngineSilent("x"), "server_error", "engine_died"),
        (QueueWaitExpired("x"), "rate_limit_error", "queue_wait_timeout"),
        (StructuredOutputError("x"), "structured_output_failed", "structured_output_failed"),
        (ValueError("x"), "server_error", "engine_error"),
    ],
)
def test_stratas_exceptions_have_their_error(error: Exception, type_: str, code: str) -> None:
    told = outcomes.stream_error_of(error)
    assert (told["type"], told["code"], told["message"]) == (type_, code, "x")


def test_a_fault_of_ours_shows_no_internals() -> None:
    told = outcomes.stream_error_of(KeyError("secret"))
    assert told["code"] == "internal_error"
    assert "secret" not in told["message"]


def test_an_upstreams_own_refusal_keeps_status_type_code_and_retry_after() -> None:
    upstream = UpstreamError(429, "tokens", "rate_limited", "model", "17")
    failure = outcomes.http_failure(Failed(FailKind.REFUSED, "slow down", upstream=upstream))
    assert (failure.status, failure.retry_after) == (429, "17")
    assert failure.error == {"message": "slow down", "type": "tokens", "param": "model", "code": "rate_limited"}


def test_an_upstreams_context_overflow_gets_the_public_code() -> None:
    upstream = UpstreamError(400, "exceed_context_size_error", "400")
    failure = outcomes.http_failure(Failed(FailKind.CONTEXT, "too long", upstream=upstream))
    assert (failure.status, failure.error["code"]) == (400, "context_length_exceeded")


def test_messages_are_bounded_and_never_empty() -> None:
    assert len(outcomes.stream_error(Failed(FailKind.DIED, "x" * 100_000))["message"]) < 2_100
    assert outcomes.stream_error(Failed(FailKind.DIED, " "))["message"]


def test_usage_adds_up() -> None:
    usage = outcomes.usage_object(Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=3, reasoning_tokens=2))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] == 12
    assert usage["prompt_tokens_details"]["cached_tokens"] == 3
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2


# --- Responses ---------------------------------------------------------------------------------------

TERMINALS: list[Terminal] = [
    *(Finished(reason) for reason in get_args(FinishReason)),
    *(Cancelled(by) for by in get_args(CancelledBy)),
    *(Failed(kind, "why") for kind in FailKind),
]
PUBLIC_CODES = set(get_args(SdkError.model_fields["code"].annotation))


@pytest.mark.parametrize("terminal", TERMINALS, ids=repr)
def test_a_response_says_in_its_event_status_and_details_the_same_ending(terminal: Terminal) -> None:
    ending = outcomes.response_ending(terminal)
    assert ending.event == f"response.{ending.status}"
    assert ending.status in get_args(SdkStatus)
    assert (ending.incomplete_reason is not None) == (ending.status == "incomplete")
    assert (ending.error is not None) == (ending.status == "failed")
    assert (ending.open_item == "completed") == (ending.status == "completed")
    assert ending.calls_close == (ending.status == "incomplete")


@pytest.mark.parametrize("terminal", TERMINALS, ids=repr)
def test_only_an_engine_that_was_done_completes_a_response(terminal: Terminal) -> None:
    earned = isinstance(terminal, Finished) and terminal.reason in SUCCESS
    assert (outcomes.response_ending(terminal).status == "completed") == earned


@pytest.mark.parametrize(("reason", "told"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_a_response_cut_by_a_limit_says_which(reason: FinishReason, told: str) -> None:
    assert outcomes.response_ending(Finished(reason)).incomplete_reason == told


@pytest.mark.parametrize(
    ("by", "status"),
    [("client", "cancelled"), ("operator", "cancelled"), ("deadline", "failed"), ("shutdown", "failed")],
)
def test_a_cancel_that_nobody_asked_for_is_a_failed_response(by: CancelledBy, status: str) -> None:
    assert outcomes.response_ending(Cancelled(by)).status == status


@pytest.mark.parametrize("kind", list(FailKind))
def test_a_failed_response_has_a_public_code_and_the_cause(kind: FailKind) -> None:
    error = outcomes.response_ending(Failed(kind, "the cause")).error
    busy = kind in (FailKind.QUEUE_WAIT, FailKind.QUEUE_FULL)
    assert error == {"code": "rate_limit_exceeded" if busy else "server_error", "message": "the cause"}
    assert {"rate_limit_exceeded", "server_error"} <= PUBLIC_CODES


def test_a_response_at_shutdown_says_the_message_of_the_stream() -> None:
    shutdown = Cancelled("shutdown")
    error = outcomes.response_ending(shutdown).error
    assert error == {"code": "server_error", "message": outcomes.stream_error(shutdown)["message"]}


def test_the_message_of_a_failed_response_is_bounded_and_never_empty() -> None:
    for message in ("x" * 100_000, " "):
        error = outcomes.response_ending(Failed(FailKind.DIED, message)).error
        assert error is not None
        assert 0 < len(error["message"]) < 2_100


def test_the_running_words_agree_with_their_events() -> None:
    assert outcomes.QUEUED_EVENT == f"response.{outcomes.RESPONSE_QUEUED}" == "response.queued"
    assert outcomes.RUNNING_EVENT == f"response.{outcomes.RESPONSE_RUNNING}" == "response.in_progress"


def test_the_usage_of_a_response_has_all_five_parts_and_adds_up() -> None:
    usage = outcomes.response_usage(Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=3, reasoning_tokens=2))
    assert usage == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
    }
    SdkUsage.model_validate_json(json.dumps(usage), strict=True)


def test_the_clock_is_told_in_llama_cpps_names_and_a_rate_of_nothing_is_null() -> None:
    usage = Usage(20, 5, 16, timings=Timings(4, 100.0, 5, 80.0, 16))
    assert outcomes.timings_object(usage) == {
        "cache_n": 16,
        "prompt_n": 4,
        "prompt_ms": 100.0,
        "prompt_per_token_ms": 25.0,
        "prompt_per_second": 40.0,
        "predicted_n": 5,
        "predicted_ms": 80.0,
        "predicted_per_token_ms": 20.0,
        "predicted_per_second": 50.0,
    }
    for times in (Timings(0, 0.0, 0, 0.0), Timings(0, 0.0, 1, 0.0)):
        told = outcomes.timings_object(Usage(timings=times))
        assert told is not None
        rates = [value for name, value in told.items() if "per" in name]
        assert rates == [None] * 4
    assert outcomes.timings_object(Usage(20, 5)) is outcomes.timings_object(None) is None


def test_drafts_are_told_where_there_were_some() -> None:
    told = outcomes.timings_object(Usage(timings=Timings(1, 1.0, 9, 1.0, drafted=8, drafts_accepted=6)))
    assert told is not None
    assert (told.get("draft_n"), told.get("draft_n_accepted")) == (8, 6)
