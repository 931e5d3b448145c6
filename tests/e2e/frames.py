"""Event streams as bytes → their events, and JSON, both as strictly as the strictest reader has it.

It shares no code with the server, so that it cannot share its mistakes. What the events say is the grammars' business.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

Json = dict[str, Any]

KEEP_ALIVE = ": keep-alive"
DONE = "[DONE]"
LINE_ENDS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""What ends a line for some reader (`str.splitlines`, httpx's `iter_lines`), or does something to a terminal."""
_HALVES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Event:
    """One event. `name` is None where it has no line of its own."""

    name: str | None
    data: str


def read_frames(body: bytes, *, whole: bool = True, beats: bool = True) -> list[Event]:
    """The events of a stream. Each is one `data:` line, perhaps behind one `event:` line; the only comment is our
    heartbeat, one line without a blank one, where the API has no event for it (`beats`). Of a stream that is not whole
    the last event may be cut anywhere.

    Raises: AssertionError: the bytes are no such stream.
    """
    told, mark, rest = body.rpartition(b"\n\n")
    if whole:
        assert rest == b"", f"the last event is not whole: {rest[-80:]!r}"
    try:
        text = (told + mark).decode("utf-8")
    except UnicodeDecodeError as error:
        raise AssertionError(f"no UTF-8: {error}") from None
    odd = LINE_ENDS.search(text)
    assert odd is None, f"a character that ends lines for some readers: {odd!r}"
    return [_event(block, beats) for block in text[:-2].split("\n\n")] if text else []


def _event(block: str, beats: bool) -> Event:
    lines = block.split("\n")
    while lines and lines[0] == KEEP_ALIVE:
        assert beats, "a comment where the API has an event for heartbeats"
        del lines[0]
    assert lines, "a blank line after a heartbeat: some readers take it for an empty event"
    name = None
    if lines[0].startswith("event: "):
        name = lines.pop(0).removeprefix("event: ")
    assert len(lines) == 1, f"not one data line: {lines!r}"
    assert lines[0].startswith("data: "), f"not a data line: {lines[0]!r}"
    return Event(name, lines[0].removeprefix("data: "))


def strict_json(text: str | bytes) -> Any:
    """A JSON value that every reader takes: UTF-8, no NaN or Infinity, no half of a surrogate pair in its strings.

    Raises: AssertionError: it is none.
    """
    value = _json(text)
    half = _HALVES.search(json.dumps(value, ensure_ascii=False))
    assert half is None, f"half of a surrogate pair in {text[:200]!r}"
    return value


def strict_object(text: str | bytes) -> Json:
    """The same for an object."""
    value = strict_json(text)
    assert isinstance(value, dict), f"no object: {text[:200]!r}"
    return value  # pyright: ignore[reportUnknownVariableType] - JSON


def check_arguments(text: str) -> None:
    """The arguments of a call that counts as whole: a JSON object, whatever is in its strings (it is the model's)."""
    assert isinstance(_json(text), dict), f"arguments that are no object: {text[:200]!r}"


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8") if isinstance(text, bytes) else text, parse_constant=_no_constant)
    except ValueError as error:
        raise AssertionError(f"not JSON: {text[:200]!r}: {error}") from None


def _no_constant(word: str) -> NoReturn:
    raise AssertionError(f"{word} is not JSON")


def check_has(value: Any, keys: set[str], what: str) -> None:
    assert isinstance(value, dict), f"{what} is no object"
    missing = sorted(keys - value.keys())  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType, reportUnknownMemberType] - JSON
    assert missing == [], f"{what} lacks {missing}"


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def check_openai_error(error: Any) -> None:
    """The error object of chat and completions in a stream."""
    check_has(error, {"message", "type", "param", "code"}, "an error")
    assert len(error) == 4, f"an error with more: {sorted(error)}"
    assert isinstance(error["message"], str), "a message that is no string"
    assert error["message"].strip(), "an error without a message"
    assert isinstance(error["type"], str), "a type that is no string"
    assert error["type"], "an error without a type"
    assert error["param"] is None or isinstance(error["param"], str), "a param that is no string"
    assert error["code"] is None or isinstance(error["code"], str), "a code that is no string"


def check_openai_usage(usage: Json, *, ours: bool = True) -> None:
    """The counts of chat and completions. An upstream may leave out their sum."""
    check_has(usage, {"prompt_tokens", "completion_tokens", *(["total_tokens"] if ours else [])}, "usage")
    prompt, made = usage["prompt_tokens"], usage["completion_tokens"]
    total = usage.get("total_tokens", prompt + made)
    assert is_count(prompt), "prompt_tokens that are no count"
    assert is_count(made), "completion_tokens that are no count"
    assert total == prompt + made, "counts that do not add up"
    for details, name, whole in (("prompt", "cached_tokens", prompt), ("completion", "reasoning_tokens", made)):
        told: Json = usage.get(f"{details}_tokens_details") or {}
        part = told.get(name) or 0
        assert is_count(part), f"{name} that are no count"
        assert part <= whole, f"more {name} than {details}_tokens"
