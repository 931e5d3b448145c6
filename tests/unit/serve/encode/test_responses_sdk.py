"""The openai client reads the bytes of every outcome, as a program would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx2
import openai
import pytest

from engine.events import Cancelled, Failed, FailKind, Finished, Terminal
from serve import outcomes, sse
from tests.unit.serve.encode.response_streams import POSITIONS, USAGE, Position, encode, ended, head

ENDED = [Finished("stop", USAGE), Finished("length", USAGE), Finished("content_filter", USAGE)]
FAILED = [Failed(FailKind.DIED, "exit code 3", USAGE), Failed(FailKind.QUEUE_WAIT, "waited"), Cancelled("shutdown")]


# `serve.verify` lets no cut call into a completed response
CASES = [
    pytest.param(position, terminal, id=f"{position.name}-{terminal.reason}")
    for position in POSITIONS
    for terminal in ENDED
    if terminal.reason != "stop" or all(position.items[index][0] != "function_call" for index in position.open)
]


def stream_of(position: Position, terminal: Terminal) -> bytes:
    _, events = encode(head(), [*position.entries, ended(terminal)])
    return b"".join(sse.event(event["type"], event) for event in events)


class Reader:
    """A client of a server that answers with the bytes given to `read`."""

    def __init__(self, strict: bool) -> None:
        self._body = b""
        self.client = openai.OpenAI(
            api_key="x",
            base_url="http://127.0.0.1/v1",
            max_retries=0,
            http_client=httpx2.Client(transport=httpx2.MockTransport(self._answer)),
            _strict_response_validation=strict,
        )

    def _answer(self, _: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=self._body)

    def read(self, body: bytes, helper: bool) -> Iterator[Any]:
        """The events as the client gives them."""
        self._body = body
        if helper:
            with self.client.responses.stream(model="m", input="hi") as events:
                yield from events
        else:
            with self.client.responses.create(model="m", input="hi", stream=True) as events:
                yield from events


@pytest.fixture(scope="module", params=[False, True], ids=["lax", "strict"])
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    made = Reader(strict=request.param)
    with closing(made.client):
        yield made


@pytest.mark.parametrize("helper", [False, True], ids=["plain", "helper"])
@pytest.mark.parametrize(("position", "terminal"), CASES)
def test_the_client_sees_the_text_and_how_it_ended(
    reader: Reader, position: Position, terminal: Finished, helper: bool
) -> None:
    seen = [*reader.read(stream_of(position, terminal), helper)]
    ending = outcomes.response_ending(terminal)
    assert (seen[-1].type, seen[-1].response.status) == (ending.event, ending.status)
    said = [event.delta for event in seen if event.type == "response.output_text.delta"]
    assert "".join(said) == "".join(text for kind, text in position.items if kind == "message")
    assert [event.sequence_number for event in seen] == list(range(len(seen)))


@pytest.mark.parametrize("helper", [False, True], ids=["plain", "helper"])
@pytest.mark.parametrize("terminal", FAILED, ids=lambda terminal: outcomes.stream_error(terminal)["code"])
@pytest.mark.parametrize("position", POSITIONS, ids=lambda position: position.name)
def test_the_client_raises_the_cause_of_a_failure(
    reader: Reader, position: Position, terminal: Failed | Cancelled, helper: bool
) -> None:
    error = outcomes.stream_error(terminal)
    with pytest.raises(openai.APIError) as raised:
        list(reader.read(stream_of(position, terminal), helper))
    assert raised.value.message == error["message"]
    assert (raised.value.type, raised.value.code) == (error["type"], error["code"])


def test_the_event_of_a_cancel_is_unknown_to_the_client_and_never_a_success(reader: Reader) -> None:
    body = stream_of(POSITIONS[3], Cancelled("operator"))
    seen: list[Any] = []
    if reader.client._strict_response_validation:  # pyright: ignore[reportPrivateUsage]  # no public name
        with pytest.raises(openai.APIResponseValidationError):
            seen.extend(reader.read(body, helper=False))
    else:
        seen.extend(reader.read(body, helper=False))
        assert (seen[-1].type, seen[-1].response["status"]) == ("response.cancelled", "cancelled")
    assert "response.completed" not in {event.type for event in seen}
