"""A request inside the server, whatever API it came by, and the error of one that cannot be taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.api import SamplingValue

Json = dict[str, object]


class BadRequest(ValueError):
    """The client's mistake: `param` names the field. `status` is the HTTP status (4xx)."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generation. `max_tokens` None means up to the end of the context. `body` is the request as it came, for
    engines that speak chat themselves; the other fields are for engines that speak tokens."""

    body: Mapping[str, object]
    messages: tuple[Json, ...]
    model: str | None
    tools: tuple[Json, ...]
    tool_choice: str
    max_tokens: int | None
    stop: tuple[str, ...]
    sampling: Mapping[str, SamplingValue]
    thinking: bool
    template_kwargs: Mapping[str, object]
    response_format: object
    logprobs: bool
    stream: bool
    include_usage: bool
