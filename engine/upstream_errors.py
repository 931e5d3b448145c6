"""What an OpenAI-compatible server says when it cannot answer, in every shape seen -> one problem, one `Failed`.

It reads JSON values and bodies; it does not read streams and decides no wire form of ours.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from engine.events import Failed, FailKind, UpstreamError

MESSAGE_CHARS = 2000
"""The longest message that is passed on."""
TEXT_CHARS = 300
"""The longest piece of a body that is not JSON."""

_SURROGATES = re.compile("[\ud800-\udfff]")
_TAGS = re.compile(r"<(script|style|head)\b.*?</\1\s*>|<!--.*?-->|<[^>]{0,1000}>", re.DOTALL | re.IGNORECASE)

# Source (2026-10): llama.cpp build 11549 answers 400 "request (2031 tokens) exceeds the available context size (512
# tokens), try increasing it" of type exceed_context_size_error; OpenAI "This model's maximum context length is …" with
# code context_length_exceeded; vLLM the same words, or "… longer than the maximum model length of …"; SGLang "The input
# (… tokens) is longer than the model's context length"; Anthropic "prompt is too long".
_CONTEXT_CODES = {"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"}
_CONTEXT_WORDS = re.compile(
    r"maximum context length|max_model_len|maximum model length|prompt is too long"
    r"|(exceed|longer than|larger than|too (long|large) for|overflow)\w*\b.{0,80}\bcontext"
    r"|context (length|window|size|limit)\b.{0,40}\b(exceed|too small|overflow)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as an upstream tells it. `code` is None where it only repeats an HTTP status."""

    message: str
    type: str | None = None
    code: str | None = None
    param: str | None = None

    @property
    def is_context_overflow(self) -> bool:
        """Whether it says that the prompt does not fit."""
        return (
            self.type in _CONTEXT_CODES
            or self.code in _CONTEXT_CODES
            or _CONTEXT_WORDS.search(self.message) is not None
        )


def clean(text: str) -> str:
    """Join split surrogate pairs and replace lone halves by U+FFFD: JSON may hold them, UTF-8 may not."""
    if text.isascii() or _SURROGATES.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def without_odd_values(value: object) -> object:
    """The JSON value without what strict readers refuse: half surrogate pairs, and numbers that are none. Minus
    infinity becomes -9999.0, the public API's word for a token that is not likely at all.

    Source: OpenAI API reference, `logprobs` (2026-10).

    Raises: RecursionError: it is nested too deeply.
    """
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        fields = cast("Mapping[str, object]", value)
        return {clean(name): without_odd_values(item) for name, item in fields.items()}
    if isinstance(value, list):
        return [without_odd_values(item) for item in cast("list[object]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return -9999.0 if value < 0 else None
    return value


def problem_in(value: object) -> Problem | None:
    """The error that a JSON value of an answer or a stream holds, or None. Shapes: `{"error": {…}}`, `{"error":
    "text"}`, `{"object": "error", "message": …}`, `{"detail": …}`, `{"message": …}`, an error in a choice."""
    if not isinstance(value, dict):
        return None
    fields = cast("Mapping[str, object]", value)
    error = fields.get("error")
    if not error:
        error = _error_of_choice(fields.get("choices"))
    if isinstance(error, dict):
        return _problem(cast("Mapping[str, object]", error))
    if error:
        return Problem(_text_of(error))
    if fields.get("object") == "error" or fields.get("type") == "error":
        return _problem(fields)
    if "choices" not in fields and any(fields.get(name) for name in ("detail", "message")):
        return _problem(fields)
    return None


def problem_of_body(body: bytes, reason: str) -> Problem:
    """The error that a body with a status of 400 or more tells: JSON in any shape, or the first words of its text."""
    text = body.decode("utf-8", "replace").removeprefix("\ufeff").strip()
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    problem = problem_in(value)
    if isinstance(value, list) and value:  # one Google API wraps its error object in a list
        problem = problem_in(cast("list[object]", value)[0])
    if problem is not None:
        return problem
    if isinstance(value, str) and value:
        return Problem(_short(value))
    return Problem(_short(_TAGS.sub(" ", text)) or reason or "no reason given")


def refusal(status: int, problem: Problem, retry_after: str | None, who: str) -> Failed:
    """The failure for an answer with a status of 400 or more. `who` names the server in the message of a 5xx; what a
    server says of the request itself is passed on as it is. A server that answers has not died, whatever it says."""
    upstream = UpstreamError(status, problem.type, problem.code, problem.param, retry_after)
    if problem.is_context_overflow:
        return Failed(FailKind.CONTEXT, problem.message, upstream=upstream)
    if status < 500:
        return Failed(FailKind.REFUSED, problem.message, upstream=upstream)
    return Failed(FailKind.ERR, f"{who} answered {status}: {problem.message}", upstream=upstream)


def _error_of_choice(choices: object) -> object:
    if isinstance(choices, list):
        for choice in cast("list[object]", choices):
            if isinstance(choice, dict) and (error := cast("Mapping[str, object]", choice).get("error")):
                return error
    return None


def _problem(error: Mapping[str, object]) -> Problem:
    message = next((error[name] for name in ("message", "detail", "error", "msg") if error.get(name)), None)
    code = error.get("code")
    if isinstance(code, bool | int | float) or (isinstance(code, str) and code.isdigit()):
        code = None  # llama.cpp and vLLM repeat the HTTP status there
    return Problem(
        _text_of(message if message is not None else error),
        _optional(error.get("type")),
        _optional(code),
        _optional(error.get("param")),
    )


def _optional(value: object) -> str | None:
    return clean(value)[:200] if isinstance(value, str) and value else None


def _text_of(value: object) -> str:
    """Text as it is; FastAPI's list of findings as `where: what; …`; anything else as JSON."""
    if isinstance(value, str):
        return clean(value)[:MESSAGE_CHARS]
    if isinstance(value, dict):
        nested = cast("Mapping[str, object]", value)
        inner = nested.get("message") or nested.get("msg")
        if isinstance(inner, str):
            return clean(inner)[:MESSAGE_CHARS]
    if isinstance(value, list):
        findings = [_finding(entry) for entry in cast("list[object]", value)[:20]]
        return "; ".join(findings)[:MESSAGE_CHARS]
    return clean(json.dumps(value))[:MESSAGE_CHARS]


def _finding(entry: object) -> str:
    if isinstance(entry, dict):
        fields = cast("Mapping[str, object]", entry)
        message, place = fields.get("msg"), fields.get("loc")
        if isinstance(message, str):
            where = ".".join(str(part) for part in cast("list[object]", place)) if isinstance(place, list) else ""
            return f"{where}: {message}" if where else message
    return _text_of(entry) if isinstance(entry, str) else json.dumps(entry)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= TEXT_CHARS else words[: TEXT_CHARS - 1] + "…"
