"""`POST /v1/completions`: the body → `CompletionsRequest`.

Knows no engine: what an engine cannot do is refused by the service, which knows it.
"""

from __future__ import annotations

from typing import cast

from serve.parse.completion_fields import MAX_CHOICES, MAX_PROMPTS, REFUSED, check_body
from serve.parse.fields import sampling_values, stop_strings
from serve.request import BadRequest, CompletionsRequest, Json, Prompt

MAX_TOKEN_ID = 2**31 - 1
_UNPASSED = {*REFUSED, "prompt", "stream", "stream_options"}


def parse_completions(body: Json) -> CompletionsRequest:
    """Check a request.

    Raises: BadRequest: with the path of the field and its limit.
    """
    fields = check_body(body)
    prompts, listed = _prompts(fields.prompt)
    choices = 1 if fields.n is None else fields.n
    if len(prompts) * choices > MAX_CHOICES and choices > 1:
        raise BadRequest(
            f"n: {choices} answers to each of {len(prompts)} prompts exceed the limit of {MAX_CHOICES} in all", "n"
        )
    return CompletionsRequest(
        body={name: value for name, value in body.items() if name not in _UNPASSED},
        prompts=prompts,
        listed=listed,
        max_tokens=fields.max_tokens,
        stop=stop_strings(fields.stop),
        sampling=sampling_values(fields),
        logprobs=fields.logprobs is not None,
        stream=bool(fields.stream),
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        choices=choices,
    )


def _prompts(prompt: object) -> tuple[tuple[Prompt, ...], bool]:
    """The prompts, and whether they are a list of them: a list of numbers is one."""
    if prompt is None:
        raise BadRequest("prompt: required", "prompt")
    if isinstance(prompt, str):
        return (_text(prompt, "prompt"),), False
    if not isinstance(prompt, list):
        raise BadRequest("prompt: expected a string, token ids, or a list of them", "prompt")
    entries = cast("list[object]", prompt)
    if not entries:
        raise BadRequest("prompt: empty; send a prompt", "prompt")
    if _is_id(entries[0]):
        return (_ids(entries, "prompt"),), False
    if len(entries) > MAX_PROMPTS:
        raise BadRequest(f"prompt: {len(entries)} prompts exceed the limit of {MAX_PROMPTS}", "prompt")
    return tuple(_entry(entry, f"prompt[{i}]") for i, entry in enumerate(entries)), True


def _entry(entry: object, where: str) -> Prompt:
    if isinstance(entry, str):
        return _text(entry, where)
    if isinstance(entry, list):
        return _ids(cast("list[object]", entry), where)
    raise BadRequest(f"{where}: expected a string or token ids", where)


def _text(text: str, where: str) -> str:
    if not text:
        raise BadRequest(f"{where}: empty; send at least one character", where)
    return text


def _ids(entries: list[object], where: str) -> tuple[int, ...]:
    if not entries:
        raise BadRequest(f"{where}: empty; send at least one token id", where)
    for i, entry in enumerate(entries):
        if not _is_id(entry):
            raise BadRequest(f"{where}[{i}]: {repr(entry)[:80]} is not a token id", f"{where}[{i}]")
    return tuple(cast("list[int]", entries))


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKEN_ID
