"""What is to be run for a request: the prompt, its room in the context, how the answer is read and checked.

It asks the engine for nothing but its facts, and to count a prompt. Strata's form of a prompt (`prepare`) is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from engine.api import (
    ChatRequest,
    CompletionRequest,
    CountsPrompts,
    Engine,
    EngineRequest,
    SamplingValue,
    TokenRequest,
)
from engine.events import FailKind
from serve.assemble import ParseConfig, ToolSpec
from serve.parse.completion_fields import DEFAULT_MAX_TOKENS
from serve.parse.fields import SAMPLING_KEYS, tool_name
from serve.request import BadRequest, CompletionsRequest, GenerateRequest, Json, Prompt
from serve.structured import FormatError, StructuredCheck, structured_check
from serve.template import ChatTemplate, encode_prompt, forced_call, thinking_end
from serve.thinking import ThinkingBudget
from serve.tokenizer import Tokenizer

NO_LIMIT_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run. `parse` is None for engines that speak chat; `call_due`: the answer must be a tool call.
    `more`: what is to be run after it, one by one, for the request's other prompts, with `choices` answers to each."""

    request: EngineRequest
    check: StructuredCheck | None
    parse: ParseConfig | None
    prompt_tokens: int
    call_due: bool = False
    more: tuple[Plan, ...] = ()
    choices: int = 1


class Planner:
    """Thread-safe. `tokenizer` and `template` belong to an engine that speaks tokens; `sampling` are the values where
    a request says none."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer | None,
        template: ChatTemplate | None,
        sampling: Mapping[str, SamplingValue],
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._template = template
        self._sampling = sampling

    def plan(self, request: GenerateRequest) -> Plan:
        """What is to be run for a request.

        Raises: BadRequest: the engine here cannot do what is asked, or it does not fit.
        """
        try:
            return self._chat_plan(request)
        except BadRequest as error:
            raise error.renamed(request.names) from None

    def count_tokens(self, request: GenerateRequest) -> int:
        """How many tokens its prompt has. Blocks where the engine has to be asked.

        Raises: BadRequest: the engine here cannot take or count it. EngineError: it could not be asked.
        """
        if self._engine.facts.speaks == "tokens":
            return len(self._encoded(request)[0])
        self._check_continued(request)
        if not isinstance(self._engine, CountsPrompts):
            raise BadRequest("this engine cannot count the tokens of a prompt; count them where its model runs")
        return self._engine.count_prompt(ChatRequest(request.body, request.headers))

    def _chat_plan(self, request: GenerateRequest) -> Plan:
        try:
            check = structured_check(request.response_format)
        except FormatError as error:
            raise BadRequest(str(error), error.param) from None
        if self._engine.facts.speaks == "chat":
            self._check_continued(request)
            pieces = check is not None or request.store
            inflow = None if pieces else request.inflow  # what may take long has a thread of its own
            budget = request.thinking_budget
            chat = ChatRequest(request.body, request.headers, request.form, pieces, request.id, inflow, budget)
            return Plan(chat, check, None, 0, _is_forced(request))
        if request.choices > 1:
            raise BadRequest(f"n: {request.choices} is not supported by this engine; send 1 or leave it out", "n")
        if request.logprobs:
            raise BadRequest("logprobs: this engine gives no logprobs; leave them out", "logprobs")
        if request.body.get("logit_bias"):
            raise BadRequest("logit_bias: not supported by this engine; leave the field out", "logit_bias")
        ids, thinking, tools, prefill = self._encoded(request)
        max_new = self._room(len(ids), request.max_tokens or 0, request.at_most)
        one_call = request.body.get("parallel_tool_calls") is False
        plan = self.token_plan(ids, thinking, tools, max_new, request.sampling, request.stop, check, prefill, one_call)
        return self._with_budget(plan, request.thinking_budget) if thinking else plan

    def _with_budget(self, plan: Plan, budget: int | None) -> Plan:
        """The plan of an answer that thinks, with `budget` tokens at most (None: any number)."""
        if budget is None:
            return plan
        assert self._tokenizer is not None
        assert self._template is not None
        assert isinstance(plan.request, TokenRequest)
        closing = self._tokenizer.encode(thinking_end(self._template), parse_special=True)
        interruption = ThinkingBudget(self._tokenizer, budget, closing, self._tokenizer.end_ids)
        return replace(plan, request=replace(plan.request, interruption=interruption))

    # --- completions ---------------------------------------------------------------------------------

    def completions(self, request: CompletionsRequest) -> Plan:
        """What is to be run for prompts that are no chats.

        Raises: BadRequest: the engine here cannot do what is asked, or a prompt does not fit.
        """
        if self._engine.facts.speaks == "tokens":
            _check_tokens_can(request)
        plans = [
            self._completion(request, prompt, request.where(number)) for number, prompt in enumerate(request.prompts)
        ]
        return replace(plans[0], more=tuple(plans[1:]), choices=request.choices)

    def _completion(self, request: CompletionsRequest, prompt: Prompt, where: str) -> Plan:
        if self._engine.facts.speaks == "chat":
            body = {**request.body, "prompt": prompt}
            return Plan(CompletionRequest(body, request.headers, request.choices), None, None, 0)
        tokenizer = self._tokenizer
        assert tokenizer is not None
        # what spells a control token is one, as in other servers: who wants a turn to end writes it
        ids = tokenizer.encode(prompt, parse_special=True) if isinstance(prompt, str) else list(prompt)
        if not isinstance(prompt, str):
            self._check_ids(ids, where)
        limit = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        try:
            room = self._room(len(ids), limit, at_most=request.max_tokens is None)
        except BadRequest as error:
            raise error.renamed({"messages": where}) from None
        plan = self.token_plan(ids, False, (), room, request.sampling, request.stop)
        assert plan.parse is not None
        return replace(plan, parse=replace(plan.parse, plain=True))

    def _check_ids(self, ids: Sequence[int], where: str) -> None:
        assert self._tokenizer is not None
        limit = min(self._tokenizer.vocab_size, self._engine.facts.vocab_limit or self._tokenizer.vocab_size)
        for i, token_id in enumerate(ids):
            if token_id >= limit:
                raise BadRequest(
                    f"{where}[{i}]: {token_id} is not a token id of this model; send ids below {limit}", f"{where}[{i}]"
                )

    def _check_continued(self, request: GenerateRequest) -> None:
        """llama.cpp goes on from a last message of the assistant; other servers may begin a new turn after it."""
        if request.continued and self._engine.facts.kind != "llama":
            raise BadRequest(
                "messages: the last one is the assistant's, and this engine cannot go on from it; end with a user's",
                "messages",
            )

    def _encoded(self, request: GenerateRequest) -> tuple[list[int], bool, tuple[Json, ...], str]:
        """The prompt's ids, whether the answer starts thinking, the tools that the model is told of, and how the
        answer begins."""
        if (part := request.unsupported) is not None:
            raise BadRequest(f"{part[0]}: {part[1]!r} is not supported by this engine; send text", part[0])
        tools = () if request.tool_choice == "none" else request.tools
        prefill = self._prefill(request)
        thinking = request.thinking and not prefill and not request.continued
        kwargs = {**request.template_kwargs, "enable_thinking": thinking}
        render = partial(self._ids, list(request.messages), list(tools), prefill=prefill, continued=request.continued)
        if thinking and request.effort is not None:
            try:
                return render({"reasoning_effort": request.effort, **kwargs}), thinking, tools, prefill
            except BadRequest:
                pass  # a template that does not know the level: it is a wish, and agents send it with every request
        return render(kwargs), thinking, tools, prefill

    def _prefill(self, request: GenerateRequest) -> str:
        """How an answer that must be a tool call begins: the model is put into the middle of one."""
        if not _is_forced(request) or self._template is None:
            return ""
        name = request.tool_choice.partition(":")[2]
        if not name and len(request.tools) == 1:
            name = tool_name(request.tools[0])
        return forced_call(self._template, name or None)

    def token_plan(
        self,
        ids: Sequence[int],
        thinking: bool,
        tools: Sequence[Json],
        max_new: int,
        sampling: Mapping[str, SamplingValue],
        stop: tuple[str, ...] = (),
        check: StructuredCheck | None = None,
        prefill: str = "",
        one_call: bool = False,
    ) -> Plan:
        assert self._tokenizer is not None
        parse = ParseConfig(
            thinking=thinking,
            tools=tuple(_tool_spec(tool) for tool in tools),
            stop=stop,
            end_ids=frozenset(self._tokenizer.end_ids),
            prefill=prefill,
            one_call=one_call,
        )
        tokens = TokenRequest(tuple(ids), max_new, {**self._sampling, **sampling})
        return Plan(tokens, check, parse, len(ids), call_due=bool(prefill))

    def prepare(
        self,
        messages: list[Json],
        tools: list[Json] | None,
        kwargs: Mapping[str, object],
        max_new: int,
        prefill: str = "",
    ) -> tuple[list[int], bool, int]:
        """Render and tokenize: (ids, whether it starts thinking, tokens to make). `max_new` 0 or less: the rest;
        `prefill` is how the answer begins.

        Raises: BadRequest: the template refuses the messages, or the prompt and `max_new` exceed the context.
        """
        ids = self._ids(messages, tools, kwargs, prefill)
        thinking = kwargs.get("enable_thinking") is not False
        return ids, thinking, self._room(len(ids), max_new)

    def _ids(
        self,
        messages: list[Json],
        tools: list[Json] | None,
        kwargs: Mapping[str, object],
        prefill: str = "",
        continued: str = "",
    ) -> list[int]:
        if self._template is None or self._tokenizer is None:
            raise BadRequest("this engine takes chats, not token ids")
        try:
            return encode_prompt(
                self._template, self._tokenizer, messages, tools or None, kwargs, prefill, continued=continued
            )
        except ValueError as error:
            raise BadRequest(f"messages: {error}", "messages") from None

    def _room(self, prompt_tokens: int, max_new: int, at_most: bool = False) -> int:
        """How many tokens the answer may have: `max_new`, or what is left where that is 0 or less; what is left at
        most with `at_most`."""
        context = self._engine.facts.max_context
        if context is None:  # not started yet: the engine itself will say
            return max_new if max_new > 0 else NO_LIMIT_TOKENS
        room = context - prompt_tokens
        if room <= 0:
            raise BadRequest(
                f"messages: the prompt has {prompt_tokens} tokens and the context only {context}; send a shorter one",
                "messages",
                code=FailKind.CONTEXT.value,
            )
        if max_new > room and not at_most:
            raise BadRequest(
                f"max_tokens: {max_new} exceeds the {room} tokens left; send at most {room}",
                "max_tokens",
                code=FailKind.CONTEXT.value,
            )
        return min(max_new, room) if max_new > 0 else room


def sampling_of(req: Mapping[str, object]) -> dict[str, SamplingValue]:
    """The sampling values in a request body or in the pipe protocol's own names; others are ignored."""
    names = {**SAMPLING_KEYS, **{key: key for key in SAMPLING_KEYS.values()}}
    found: dict[str, SamplingValue] = {}
    for name, key in names.items():
        value = req.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[key] = value
    return found


def _check_tokens_can(request: CompletionsRequest) -> None:
    if request.choices > 1:
        raise BadRequest(f"n: {request.choices} is not supported by this engine; send 1 or leave it out", "n")
    if request.logprobs:
        raise BadRequest("logprobs: this engine gives no logprobs; leave them out", "logprobs")
    if request.body.get("logit_bias"):
        raise BadRequest("logit_bias: not supported by this engine; leave the field out", "logit_bias")


def _is_forced(request: GenerateRequest) -> bool:
    """Whether the answer must be a tool call."""
    return request.tool_choice not in ("auto", "none")


def _tool_spec(tool: Json) -> ToolSpec:
    function = cast("Json", tool["function"]) if "function" in tool else tool  # Strata passes the bare function
    name = tool_name({"function": function})
    return ToolSpec(name, cast("Json", function.get("parameters") or {}))
