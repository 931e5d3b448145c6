"""What is to be run: rooms that are limits or not, prompts that are gone on from, counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from engine.api import ChatRequest, Engine, EngineInfo, EngineRefused, TokenRequest
from serve.parse.chat import parse_chat
from serve.parse.messages import parse_messages
from serve.planning import Planner
from serve.request import BadRequest, GenerateRequest
from serve.template import ChatTemplate
from serve.tokenizer import ByteTokenizer


class Facts:
    """The part of an engine that is planned with."""

    def __init__(self, speaks: str = "tokens", kind: str = "fake", context: int | None = 1_000) -> None:
        self.facts = EngineInfo(kind, "m", speaks, 1, context)  # type: ignore[arg-type] - the literals' values


class Counting(Facts):
    def __init__(self, kind: str = "upstream") -> None:
        super().__init__("chat", kind)
        self.asked: list[ChatRequest] = []

    def count_prompt(self, request: ChatRequest) -> int:
        self.asked.append(request)
        if request.body.get("seed"):
            raise EngineRefused("no")
        return 7


def planner(engine: Facts) -> Planner:
    return Planner(cast("Engine", engine), ByteTokenizer(), ChatTemplate(), {"top_k": 1})


def message(content: str = "hi", *more: dict[str, Any], **fields: Any) -> GenerateRequest:
    messages = [{"role": "user", "content": content}, *more]
    return parse_messages({"max_tokens": 10, "messages": messages, **fields})


def tokens(engine: Facts, request: GenerateRequest) -> TokenRequest:
    made = planner(engine).plan(request).request
    assert isinstance(made, TokenRequest)
    return made


def test_more_than_the_room_is_the_room_where_the_limit_is_one_at_most() -> None:
    made = tokens(Facts(), message(max_tokens=5_000))
    assert made.max_tokens == 1_000 - len(made.ids)
    assert tokens(Facts(), message(max_tokens=5)).max_tokens == 5
    assert tokens(Facts(context=None), message(max_tokens=5_000)).max_tokens == 5_000
    chat = planner(Facts())
    with pytest.raises(BadRequest, match="max_tokens: 5000 exceeds the"):
        chat.prepare([{"role": "user", "content": "hi"}], None, {}, 5_000)


def test_a_prompt_that_does_not_fit_is_refused_but_counted() -> None:
    request = message("x" * 1_000)
    with pytest.raises(BadRequest) as raised:
        planner(Facts()).plan(request)
    assert raised.value.code == "context_length_exceeded"
    assert planner(Facts()).count_tokens(request) > 1_000


def test_a_count_is_that_of_the_plan() -> None:
    for request in (message(), message(system="x"), message(tools=[{"name": "a", "input_schema": {}}])):
        plan = planner(Facts()).plan(request)
        assert planner(Facts()).count_tokens(request) == plan.prompt_tokens == len(tokens(Facts(), request).ids)


def test_the_text_that_an_answer_goes_on_from_ends_the_prompt_and_stays_text() -> None:
    last = {"role": "assistant", "content": "The <|im_end|>"}
    plan = planner(Facts()).plan(message("hi", last))
    assert isinstance(plan.request, TokenRequest)
    assert bytes(plan.request.ids[-14:]) == b"The <|im_end|>"
    assert plan.parse is not None
    assert (plan.parse.thinking, plan.parse.prefill) == (False, "")


def test_one_call_at_most_is_planned_for_engines_that_speak_tokens() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    plan = planner(Facts()).plan(message(tools=[{"name": "a", "input_schema": {}}], tool_choice=choice))
    assert plan.parse is not None
    assert plan.parse.one_call


def test_an_engine_that_speaks_chat_counts_itself_or_refuses() -> None:
    engine = Counting()
    assert planner(engine).count_tokens(message()) == 7
    assert engine.asked[0].body["messages"] == [{"role": "user", "content": "hi"}]
    with pytest.raises(EngineRefused):
        planner(engine).count_tokens(message(seed=1))
    with pytest.raises(BadRequest, match="cannot count"):
        planner(Facts("chat", "upstream")).count_tokens(message())


def test_only_llama_cpp_goes_on_from_the_assistants_message_among_those_that_speak_chat() -> None:
    request = message("hi", {"role": "assistant", "content": "The"})
    assert planner(Counting("llama")).count_tokens(request) == 7
    assert isinstance(planner(Counting("llama")).plan(request).request, ChatRequest)
    for ask in (planner(Counting()).plan, planner(Counting()).count_tokens):
        with pytest.raises(BadRequest, match="end with a user's"):
            ask(request)


# --- thinking ----------------------------------------------------------------------------------------


def chat(**fields: Any) -> GenerateRequest:
    return parse_chat({"messages": [{"role": "user", "content": "hi"}], **fields})


def test_a_budget_is_kept_by_engines_that_speak_tokens() -> None:
    limit = tokens(Facts(), chat(reasoning_budget_tokens=2)).interruption
    assert limit is not None
    assert limit.after(104) == ()
    assert bytes(limit.after(109)) == b"\n</think>\n\n"
    assert tokens(Facts(), chat()).interruption is None
    assert tokens(Facts(), chat(reasoning_budget_tokens=-1)).interruption is None


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_budget_tokens": 0},
        {"reasoning_budget_tokens": 5, "reasoning_effort": "none"},
        {
            "reasoning_budget_tokens": 5,
            "tools": [{"type": "function", "function": {"name": "add"}}],
            "tool_choice": "required",
        },
    ],
    ids=["a budget of 0", "no effort", "a call that is forced"],
)
def test_an_answer_that_does_not_think_has_no_budget(fields: dict[str, Any]) -> None:
    plan = planner(Facts()).plan(chat(**fields))
    assert plan.parse is not None
    assert plan.parse.thinking is False
    assert isinstance(plan.request, TokenRequest)
    assert plan.request.interruption is None
    assert bytes(token for token in plan.request.ids if token < 256).count(b"\n</think>\n\n") == 1


def test_an_engine_that_speaks_chat_is_told_the_budget() -> None:
    plan = planner(Facts("chat", "upstream")).plan(message(thinking={"type": "enabled", "budget_tokens": 5}))
    assert isinstance(plan.request, ChatRequest)
    assert plan.request.thinking_budget == 5
    assert "thinking" not in plan.request.body


EFFORTS = """{%- if reasoning_effort is defined and reasoning_effort not in ["low", "high"] -%}
{{ raise_exception("no such effort") }}{%- endif -%}
{%- for m in messages -%}{{ m.content }}{%- endfor -%}<{{ reasoning_effort }}>"""


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"reasoning_effort": "low"}, "<low>"),
        ({"reasoning_effort": "xhigh"}, "<>"),  # the template does not know it
        ({"reasoning_effort": "none"}, "<>"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "<high>"),
        ({}, "<>"),
    ],
)
def test_the_template_is_told_the_effort(tmp_path: Path, fields: dict[str, Any], end: str) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(EFFORTS, encoding="utf-8")
    own = Planner(cast("Engine", Facts()), ByteTokenizer(), ChatTemplate(file), {})
    made = own.plan(chat(**fields)).request
    assert isinstance(made, TokenRequest)
    assert bytes(made.ids).decode() == "hi" + end
    with pytest.raises(BadRequest, match="no such effort"):
        own.plan(chat(chat_template_kwargs={"reasoning_effort": "xhigh"}))
