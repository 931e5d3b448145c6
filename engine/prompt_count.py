"""How servers of chat completions are asked how many tokens a prompt has: llama.cpp and vLLM; others cannot say.

It knows the questions and the answers; it owns no connection.

Source: llama.cpp tools/server/README.md (`/apply-template`, `/tokenize`; build 11549 as seen on 2026-11-30: the count
is that of the same chat's `usage`), vLLM entrypoints/serve/tokenize/protocol.py (`TokenizeChatRequest`), 2026-11.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import cast

from engine.api import EngineProtocol, EngineRefused, error_of
from engine.upstream_errors import problem_of_body, refusal

Json = Mapping[str, object]
Ask = Callable[[str, Json], tuple[int, str, bytes]]
"""POST a JSON object to a path under the server's root: status, reason, body."""

LLAMA, VLLM = "llamacpp", "vllm"
"""`owned_by` of their models."""


def count_prompt(owner: object, who: str, body: Json, ask: Ask) -> int:
    """The tokens of the prompt that the chat `body` becomes. Blocks as `ask` does.

    Raises: EngineError: it cannot count, refuses the chat, or gives no count.
    """
    if owner == LLAMA:
        prompt = _asked(ask, who, "/apply-template", body).get("prompt")
        if not isinstance(prompt, str):
            raise EngineProtocol(f"{who} gave no prompt for a chat")
        question = {"content": prompt, "add_special": True, "parse_special": True}
        tokens = _asked(ask, who, "/tokenize", question).get("tokens")
        count = len(cast("list[object]", tokens)) if isinstance(tokens, list) else None
    elif owner == VLLM:
        passed = ("model", "messages", "tools", "chat_template_kwargs")
        question = {name: body[name] for name in passed if name in body}
        count = _asked(ask, who, "/tokenize", question).get("count")
    else:
        raise EngineRefused(f"{who} cannot count the tokens of a prompt")
    if not isinstance(count, int) or isinstance(count, bool):
        raise EngineProtocol(f"{who} did not say how many tokens a prompt has")
    return count


def _asked(ask: Ask, who: str, path: str, question: Json) -> Json:
    status, reason, body = ask(path, question)
    if status in (404, 405, 501):
        raise EngineRefused(f"{who} cannot count the tokens of a prompt: it has no {path}")
    if status != 200:
        raise error_of(refusal(status, problem_of_body(body, reason), None, who))
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    return cast("Json", value) if isinstance(value, dict) else {}
