"""A request inside the server, whatever API it came by, and the error of one that cannot be taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from engine.api import Inflow, SamplingValue

Json = dict[str, object]
Prompt: TypeAlias = str | tuple[int, ...]
"""A text, or token ids."""


class BadRequest(ValueError):
    """The client's mistake: `param` names the field. `status` is the HTTP status (4xx)."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code

    def renamed(self, names: Mapping[str, str]) -> BadRequest:
        """The same in the words of another API: the longest of `names` that `param` begins with is replaced."""
        param = self.param or ""
        for ours in sorted(names, key=len, reverse=True):
            rest = param.removeprefix(ours)
            if param.startswith(ours) and rest[:1] in ("", ".", "["):
                theirs = names[ours] + rest
                message = theirs + self.message[len(param) :] if self.message.startswith(param) else self.message
                return BadRequest(message, theirs, status=self.status, code=self.code)
        return self


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generation. `max_tokens` None means up to the end of the context. `body` is the request as it came, for
    engines that speak chat themselves; the other fields are for engines that speak tokens. `unsupported` is the (path,
    type) of the first part that is not text. `names` says what the client's API calls a field that has another name
    in chat completions, for errors. `choices`: how many answers; `form`, `headers`, `id` and `inflow`: see
    `engine.api.ChatRequest`. `store`: the answer is to be kept, with `metadata`. `at_most`: where less room than
    `max_tokens` is left, the answer ends with the room. `continued`: the text of the assistant that the answer goes
    on from; it is not in `messages`, but the last message of `body`. `effort`: how hard the model is to think, for its
    template; `thinking_budget`: with how many tokens at most (at least 1)."""

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
    unsupported: tuple[str, str] | None = None
    choices: int = 1
    form: Literal["pieces", "stream", "whole"] = "pieces"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    id: str | None = None
    inflow: Inflow | None = None
    store: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    at_most: bool = False
    continued: str = ""
    effort: str | None = None
    thinking_budget: int | None = None


@dataclass(frozen=True, slots=True)
class CompletionsRequest:
    """Texts to go on with. `listed`: the prompts came as a list, even of one. `max_tokens` None means what the engine
    does by itself, -1 up to the end of the context. `body` has the fields that engines that speak chat are sent besides
    a prompt; `choices`: how many answers to each prompt; `headers`: see `engine.api.CompletionRequest`."""

    body: Mapping[str, object]
    prompts: tuple[Prompt, ...]
    listed: bool
    max_tokens: int | None
    stop: tuple[str, ...]
    sampling: Mapping[str, SamplingValue]
    logprobs: bool
    stream: bool
    include_usage: bool
    choices: int = 1
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def where(self, number: int) -> str:
        """The path of a prompt."""
        return f"prompt[{number}]" if self.listed else "prompt"
