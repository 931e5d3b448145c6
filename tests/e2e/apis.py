"""The same question to every API that chats, streamed and whole, and what each says in the same words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.e2e.client import Answer, ask
from tests.e2e.grammar import check_chat_stream
from tests.e2e.messages_grammar import check_message, check_message_stream
from tests.e2e.responses_grammar import check_response_object, check_response_stream

Json = dict[str, Any]
ROUTES = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
APIS = tuple(ROUTES)
BUDGET_FIELDS = {
    "chat": "reasoning_budget_tokens",
    "responses": "reasoning_budget_tokens",
    "messages": "thinking.budget_tokens",
}


@dataclass(frozen=True)
class Counts:
    prompt: int
    cached: int
    made: int
    reasoning: int


@dataclass(frozen=True)
class Said:
    """`end` is "stop", "length" or "error"; `timings` those of the API, where it has them."""

    thought: str
    text: str
    end: str
    counts: Counts | None
    timings: Json | None = None
    error: Json | None = None


def question(
    api: str, content: str = "hi", *, stream: bool, thinking: bool = True, budget: Any = None, most: int = 3_000
) -> Json:
    """A request of at most `most` tokens."""
    turns = [{"role": "user", "content": content}]
    own = {} if budget is None else {BUDGET_FIELDS["chat"]: budget}
    if api == "chat":
        switch = {"enable_thinking": thinking}
        body: Json = {"messages": turns, "max_tokens": most, "chat_template_kwargs": switch, **own}
        return {**body, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
    if api == "responses":
        effort = {"effort": "low" if thinking else "none"}
        return {"input": content, "max_output_tokens": most, "stream": stream, "reasoning": effort, **own}
    switch = {"type": "enabled" if thinking else "disabled"} | ({} if budget is None else {"budget_tokens": budget})
    return {"messages": turns, "max_tokens": most, "model": "any", "stream": stream, "thinking": switch}


def hear(api: str, port: int, content: str = "hi", **options: Any) -> Said:
    """The answer to a `question`, which keeps to the API's grammar."""
    extra = options.pop("fields", {})
    body = question(api, content, **options)
    return said(api, ask(port, {**body, **extra}, path=ROUTES[api]), stream=options["stream"])


def said(api: str, answer: Answer, *, stream: bool) -> Said:
    if not stream and answer.status != 200:
        return _refused(api, answer)
    if api == "chat":
        return _chat_stream(answer) if stream else _chat_body(answer.json)
    if api == "responses":
        response = check_response_stream(answer).response if stream else answer.json
        check_response_object(response)
        return _response(response)
    return _message_stream(answer) if stream else _message(answer.json)


def _refused(api: str, answer: Answer) -> Said:
    error = answer.json["error"]
    usage = error.get("usage")
    read = _of_messages if api == "messages" else _of_chat
    return Said("", error.get("partial_output", ""), "error", None if usage is None else read(usage), error=error)


# --- chat --------------------------------------------------------------------------------------------


def _chat_stream(answer: Answer) -> Said:
    ending = check_chat_stream(answer)
    timings = next((event["timings"] for event in answer.events[:-1] if "timings" in event), None)
    counts = None if ending.usage is None else _of_chat(ending.usage)
    return Said(ending.reasoning, ending.content, ending.finish_reason, counts, timings, ending.error)


def _chat_body(body: Json) -> Said:
    (choice,) = body["choices"]
    message = choice["message"]
    text = message["content"] or ""
    counts = _of_chat(body["usage"])
    return Said(message.get("reasoning_content", ""), text, choice["finish_reason"], counts, body.get("timings"))


def _of_chat(usage: Json) -> Counts:
    read: Json = usage.get("prompt_tokens_details") or {}
    made: Json = usage.get("completion_tokens_details") or {}  # llama.cpp has none
    counts = Counts(
        usage["prompt_tokens"],
        read.get("cached_tokens", 0),
        usage["completion_tokens"],
        made.get("reasoning_tokens", 0),
    )
    assert usage["total_tokens"] == counts.prompt + counts.made
    return counts


# --- Responses ---------------------------------------------------------------------------------------

_ENDS = {"completed": "stop", "incomplete": "length", "failed": "error"}


def _response(response: Json) -> Said:
    parts = {
        kind: "".join(part["text"] for item in response["output"] if item["type"] == kind for part in item["content"])
        for kind in ("reasoning", "message")
    }
    if response["status"] == "incomplete":
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    usage, counts = response["usage"], None
    if usage is not None:
        counts = Counts(
            usage["input_tokens"],
            usage["input_tokens_details"]["cached_tokens"],
            usage["output_tokens"],
            usage["output_tokens_details"]["reasoning_tokens"],
        )
        assert usage["total_tokens"] == counts.prompt + counts.made
    end = _ENDS[response["status"]]
    return Said(parts["reasoning"], parts["message"], end, counts, response.get("timings"), response["error"])


# --- Messages ----------------------------------------------------------------------------------------

_STOPS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", None: "error"}


def _message_stream(answer: Answer) -> Said:
    ending = check_message_stream(answer)
    counts = None if ending.usage is None or ending.error is not None else _of_messages(ending.usage)
    thought, text = ("".join(ending.of(kind)) for kind in ("thinking", "text"))
    return Said(thought, text, _STOPS[ending.stop_reason], counts, error=ending.error)


def _message(message: Json) -> Said:
    check_message(message)
    blocks: list[Json] = message["content"]
    thought = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    end = _STOPS[message["stop_reason"]]
    return Said(thought, text, end, _of_messages(message["usage"]), message.get("timings"))


def _of_messages(usage: Json) -> Counts:
    """Its input tokens are those that were not in the cache."""
    cached = usage["cache_read_input_tokens"]
    prompt = usage["input_tokens"] + cached + usage["cache_creation_input_tokens"]
    return Counts(prompt, cached, usage["output_tokens"], usage["output_tokens_details"]["thinking_tokens"])
