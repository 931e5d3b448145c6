"""Several prompts of one request, answered one after the other as the choices of one answer.

Pure: who generates is told to it. It decides no ending: the first prompt that fails ends the answer as it failed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import replace
from typing import TypeAlias

from engine.events import Accepted, Cancelled, Event, Failed, Finished, OfChoice, Text, Timings, Usage
from serve.verify import verified

Answer: TypeAlias = Callable[[], Generator[Event, None, None]]
"""Begins to generate the answer to one prompt."""


def in_turn(answers: Iterable[Answer], choices: int) -> Generator[Event, None, None]:
    """The events of one answer after the other; `choices` are those of each. Its `Finished` has the counts of all.
    A source that ends without a terminal ends this too. Blocks as the answers do."""
    total = Usage()
    accepted = False
    last: Finished | None = None
    for number, answer in enumerate(answers):
        first, last = number * choices, None
        with closing(answer()) as source:
            for event in verified(source, None):
                match event:
                    case Accepted():
                        if not accepted:
                            yield event
                        accepted = True
                    case Text():
                        yield OfChoice(first, event)
                    case OfChoice(index=index):
                        yield replace(event, index=first + index)
                    case Finished():
                        last = event
                        if choices == 1:
                            yield OfChoice(first, event)
                    case Failed() | Cancelled():
                        yield replace(event, usage=added(total, event.usage))
                        return
                    case _:
                        yield event
        if last is None:
            return
        total = added(total, last.usage)
    if last is not None:
        yield Finished(last.reason, total)


def added(total: Usage, more: Usage | None) -> Usage:
    """The counts of both, and what the clock says of both where it tells of both."""
    more = more or Usage()
    return Usage(
        total.prompt_tokens + more.prompt_tokens,
        total.completion_tokens + more.completion_tokens,
        total.cached_tokens + more.cached_tokens,
        total.reasoning_tokens + more.reasoning_tokens,
        more.timings if total == Usage() else _both(total.timings, more.timings),
    )


def _both(first: Timings | None, second: Timings | None) -> Timings | None:
    if first is None or second is None:
        return None
    return Timings(
        first.prompt_tokens + second.prompt_tokens,
        first.prompt_ms + second.prompt_ms,
        first.answer_tokens + second.answer_tokens,
        first.answer_ms + second.answer_ms,
        first.cached_tokens + second.cached_tokens,
        first.drafted + second.drafted,
        first.drafts_accepted + second.drafts_accepted,
    )
