"""What the checkers ask for, in the words of each API: a long text, a text that ends by itself, a long tool call.

It sends nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Literal

from tools.probe.answer import BodyEnd
from tools.probe.connection import Answer, fetch
from tools.probe.exits import CouldNotRun
from tools.probe.target import Api, Target
from tools.probe.telling import HOW_ENDED
from tools.probe.values import Json, as_list, as_text, at, parsed, shown

LONG_PROMPT = (
    "Write the numbers from 1 to 2000 in words, one on each line, in order, without leaving any out. "
    "Write nothing else, and do not stop before two thousand."
)
SHORT_PROMPT = "Say hello in one word."
TOOL_PROMPT = (
    "Save a story of at least 1000 words about a lighthouse. Call write_file with path story.txt and the story."
)
TOOL_NAME = "write_file"
_TOOL_ABOUT = "Write a text to a file."
_TOOL_SCHEMA: Json = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
}

ToolChoice = Literal["named", "required", "auto"]


def asking(
    api: Api,
    model: str | None,
    prompt: str,
    *,
    max_tokens: int | None,
    stream: bool,
    tool: ToolChoice | None = None,
    fields: Mapping[str, object] | None = None,
) -> Json:
    """A request's body. `tool`: offer `write_file`, and how it is asked for. `fields` are added, and win.

    Raises: CouldNotRun: the API has no tools.
    """
    body: Json = {"stream": stream, "temperature": 0}
    if model is not None:
        body["model"] = model
    if api == "completions":
        if tool is not None:
            raise CouldNotRun("api: completions has no tools; use chat, responses or messages")
        body["prompt"] = prompt
    elif api == "responses":
        body |= {"input": prompt, "store": False}
    else:
        body["messages"] = [{"role": "user", "content": prompt}]
    limit = "max_output_tokens" if api == "responses" else "max_tokens"
    if max_tokens is not None:
        body[limit] = max_tokens
    if stream and api in ("chat", "completions"):
        body["stream_options"] = {"include_usage": True}
    if tool is not None:
        body |= {"tools": [_tool(api)], "tool_choice": _choice(api, tool)}
    return body | dict(fields or {})


def _tool(api: Api) -> Json:
    if api == "messages":
        return {"name": TOOL_NAME, "description": _TOOL_ABOUT, "input_schema": _TOOL_SCHEMA}
    function: Json = {"name": TOOL_NAME, "description": _TOOL_ABOUT, "parameters": _TOOL_SCHEMA}
    return {"type": "function", **function} if api == "responses" else {"type": "function", "function": function}


def _choice(api: Api, choice: ToolChoice) -> object:
    if api == "messages":
        named: Json = {"type": "tool", "name": TOOL_NAME}
        return named if choice == "named" else {"type": "any" if choice == "required" else "auto"}
    if choice != "named":
        return choice
    if api == "responses":
        return {"type": "function", "name": TOOL_NAME}
    return {"type": "function", "function": {"name": TOOL_NAME}}


def first_model(
    target: Target, *, silence_s: float = 30.0, verify: bool = True, stop: threading.Event | None = None
) -> str:
    """The first of the server's `/models`.

    Raises: CouldNotRun: it cannot be reached, or lists none. KeyboardInterrupt: `stop` was set meanwhile.
    """
    request = target.get("/models")
    answer = fetch(target, request, silence_s=silence_s, until_s=2 * silence_s, verify=verify, stop=stop)
    if stop is not None and stop.is_set():
        raise KeyboardInterrupt
    try:
        models = as_list(at(parsed(answer.body), "data"))
    except ValueError:
        models = []
    name = as_text(at(models, 0, "id"))
    if name is None:
        raise CouldNotRun(f"{target.shown}/models {_without_models(answer)}")
    return name


def _without_models(answer: Answer) -> str:
    """Why there is no model, and what to do."""
    head, said = answer.reader.head, shown(answer.body[:200].decode(errors="replace"))
    if head is None:
        end = answer.reader.end or BodyEnd.NO_ANSWER
        how = answer.reader.end_note if end is BodyEnd.SILENT else HOW_ENDED[end]
        return f"gives no answer ({how}); is it a server of this kind, and is its model loaded?"
    if head.status in (401, 403):
        return f"answers with status {head.status}: {said}; give the server's key with --api-key"
    if 300 <= head.status < 400:
        return f"answers with status {head.status}, which leads to {shown(head.get('location'))}; give that URL"
    return f"lists no model (status {head.status}: {said}); name one with --model"


def adapted(body: Json, refusal: str) -> Json | None:
    """The body without what a server's refusal names: a field that only some servers and models take.

    None: it names none that could be done without.
    """
    if "max_tokens" in body and "max_completion_tokens" in refusal:
        return {name: value for name, value in body.items() if name != "max_tokens"} | {
            "max_completion_tokens": body["max_tokens"]
        }
    for name in ("stream_options", "temperature", "store"):
        if name in body and name in refusal:
            return {each: value for each, value in body.items() if each != name}
    if "tool_choice" in body and "tool_choice" in refusal:
        choice, kind = body["tool_choice"], as_text(at(body, "tool_choice", "type"))
        weaker: object = {"tool": {"type": "any"}, "any": {"type": "auto"}, "function": "required"}.get(kind or "")
        if weaker is None and choice == "required":
            weaker = "auto"
        return None if weaker is None else body | {"tool_choice": weaker}
    return None
