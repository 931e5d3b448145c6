"""How many tokens an answer of an upstream has: its own numbers where it gives them, else one for each delta.

It reads JSON values and events; it knows no stream and no ending.

Source: OpenAI API reference, `usage` (2026-10); llama.cpp's `timings` as in `engine.chat_reader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, cast

from engine.events import Event, Progress, Reasoning, Text, ToolCallArgs, Usage

Json: TypeAlias = Mapping[str, object]


class TokenCounts:
    """The counts of one answer, or of one of its choices. Not thread-safe."""

    def __init__(self) -> None:
        self._made = 0
        self._made_reasoning = 0
        self._told: Usage | None = None
        self._timed: Usage | None = None
        self._prompt_tokens = 0

    @property
    def is_told(self) -> bool:
        """Whether the upstream gave numbers, if anything was made."""
        return self._told is not None or self._timed is not None or not self._made

    @property
    def has_usage(self) -> bool:
        """Whether the upstream gave a `usage`."""
        return self._told is not None

    @property
    def made(self) -> int:
        """How many deltas said something."""
        return self._made

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


class AnswerCounts:
    """The counts of one answer with this many choices, whose prompt is the same one. Not thread-safe.

    What a chunk of one choice tells is that choice's; what one without a choice tells is the whole answer's, except
    where each choice gets such a chunk right behind its end.

    Source: llama.cpp build 11549 as seen on 2026-12-03, which does that, and gives every choice `timings` of its own;
    vLLM 0.32.0 with `continuous_usage_stats`, whose chunks count the choice that they are about.
    """

    def __init__(self, choices: int) -> None:
        self._choices = [TokenCounts() for _ in range(choices)]
        self._whole: TokenCounts | None = None
        self._own: dict[int, Json] = {}  # what was told right behind the ends of choices
        self._ended: set[int] = set()
        self._behind: int | None = None  # the choice that the last chunk ended

    def of(self, index: int) -> TokenCounts:
        """Where the reader of a choice counts."""
        return self._choices[index]

    def add_texts(self, deltas: int, *, reasoning: bool) -> None:
        """Count deltas of an only choice that said nothing but text."""
        self._choices[0].add_texts(deltas, reasoning=reasoning)

    def read(self, chunk: Json, choices: Sequence[tuple[int, Json]] = ()) -> None:
        """Note the numbers in a chunk about these choices; those of an only choice are read by its reader, too."""
        if len(self._choices) == 1:
            self._choices[0].read(chunk)
            return
        if not choices and not chunk.get("usage"):
            return
        behind, self._behind = self._behind, None
        ended = {index for index, choice in choices if choice.get("finish_reason")}
        if len(choices) == 1:
            index = choices[0][0]
            if 0 <= index < len(self._choices):
                self._choices[index].read(chunk)
                self._behind = index if ended else None
        elif not choices and behind is not None and self._is_own(behind):
            self._choices[behind].read(chunk)
            self._own[behind] = fields_of(chunk.get("usage"))
        elif chunk.get("usage"):  # the last one counts
            self._whole = TokenCounts()
            self._whole.read(chunk)
        self._ended |= ended

    def _is_own(self, index: int) -> bool:
        """Whether what is told now is of this choice, the last that ended: others go on, or were told of like this."""
        others = set(range(len(self._choices))) - {index}
        return others <= self._own.keys() or not others <= self._ended

    def usage(self, *, final: bool) -> Usage:
        """The counts so far. `final`: nothing more is made, so that what the upstream told is exact."""
        if self._whole is not None and final:
            return self._whole.usage(final=True)
        each = [counts.usage(final=final or index in self._ended) for index, counts in enumerate(self._choices)]
        completion = sum(usage.completion_tokens for usage in each)
        claimed = [usage.completion_tokens for index, usage in enumerate(each) if self._claims(index)]
        if claimed and not all(counts.is_told for counts in self._choices):  # who tells once tells of all
            completion = max(*claimed, sum(counts.made for counts in self._choices))
        if self._whole is not None:
            each.append(self._whole.usage(final=True))
            completion = max(completion, each[-1].completion_tokens)
        return Usage(
            max(usage.prompt_tokens for usage in each),
            completion,
            max(usage.cached_tokens for usage in each),
            min(sum(usage.reasoning_tokens for usage in each[: len(self._choices)]), completion),
        )

    def _claims(self, index: int) -> bool:
        """Whether a chunk of this choice told a `usage`, which may be that of all."""
        return len(self._choices) > 1 and index not in self._own and self._choices[index].has_usage

    def together(self, usage: Json) -> Json:
        """The `usage` of the chunk that was read last, for all choices: itself unless it is that of one."""
        if len(self._own) < 2 or all(own is not usage for own in self._own.values()):
            return usage
        completion = self._summed("completion_tokens")
        summed: dict[str, object] = {**usage, "completion_tokens": completion}
        if "total_tokens" in usage:
            summed["total_tokens"] = count_of(usage, "prompt_tokens") + completion
        details = fields_of(usage.get("completion_tokens_details"))
        if details:
            summed["completion_tokens_details"] = {
                name: self._summed(name, "completion_tokens_details") if count_of(details, name) else value
                for name, value in details.items()
            }
        return summed

    def _summed(self, name: str, within: str | None = None) -> int:
        tellings = (own if within is None else fields_of(own.get(within)) for own in self._own.values())
        return sum(count_of(told, name) for told in tellings)


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
