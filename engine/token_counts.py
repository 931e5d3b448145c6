"""How many tokens an answer of an upstream has: its own numbers where it gives them, else one for each delta.

It reads JSON values and events; it knows no stream and no ending.

Source: OpenAI API reference, `usage` (2026-10); llama.cpp's `timings` as in `engine.chat_reader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from engine.events import Event, Progress, Reasoning, Text, ToolCallArgs, Usage


class TokenCounts:
    """The counts of one answer, of all its choices together. Not thread-safe."""

    def __init__(self) -> None:
        self._made = 0
        self._made_reasoning = 0
        self._told: Usage | None = None
        self._timed: Usage | None = None
        self._prompt_tokens = 0

    def add(self, events: Iterable[Event]) -> None:
        """Count what one delta said, which is something."""
        made = list(events)
        self._made += 1
        if not any(isinstance(event, Text | ToolCallArgs) for event in made):
            self._made_reasoning += any(isinstance(event, Reasoning) for event in made)

    def add_texts(self, deltas: int, *, reasoning: bool) -> None:
        """Count deltas that said nothing but text."""
        self._made += deltas
        self._made_reasoning += deltas if reasoning else 0

    def progress(self, progress: Progress) -> None:
        """Note how long the prompt is."""
        self._prompt_tokens = progress.total

    def read(self, chunk: Mapping[str, object]) -> None:
        """Note the numbers that a chunk gives."""
        usage, timings = fields_of(chunk.get("usage")), fields_of(chunk.get("timings"))
        if usage:
            self._told = Usage(
                count_of(usage, "prompt_tokens"),
                count_of(usage, "completion_tokens"),
                count_of(fields_of(usage.get("prompt_tokens_details")), "cached_tokens"),
                count_of(fields_of(usage.get("completion_tokens_details")), "reasoning_tokens"),
            )
        if timings:
            cached = count_of(timings, "cache_n")
            self._timed = Usage(cached + count_of(timings, "prompt_n"), count_of(timings, "predicted_n"), cached)

    def usage(self, *, final: bool) -> Usage:
        """The counts so far. `final`: nothing more is made, so that what the upstream told is exact."""
        told, timed = self._told, self._timed
        base = told or timed or Usage(self._prompt_tokens)
        exact = timed is not None or (told is not None and final)
        completion = base.completion_tokens if exact else max(base.completion_tokens, self._made)
        return Usage(
            base.prompt_tokens or self._prompt_tokens,
            completion,
            base.cached_tokens or (timed.cached_tokens if timed else 0),
            min(base.reasoning_tokens or self._made_reasoning, completion),
        )


def usage_json(usage: Usage) -> dict[str, object]:
    """The counts as the `usage` of a chat completion."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def fields_of(value: object) -> Mapping[str, object]:
    """A JSON object; an empty one for anything else."""
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def count_of(fields: Mapping[str, object], name: str) -> int:
    """A count in a JSON object; 0 for what is none."""
    value = fields.get(name)
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0
