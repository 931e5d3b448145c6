"""Completions: events → stream bytes, or one JSON body from the same events.

Pure: id, clock and model are in the `Head`. It does not decide how anything ended (`serve.outcomes` does) and writes
to no socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

from engine.events import Cancelled, Event, Failed, Finished, OfChoice, Terminal, Text, Usage
from serve import outcomes, sse
from serve.wire import CompletionChoice, CompletionObject, ErrorObject, TimingsObject, UsageObject


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of one stream share. `created` is in Unix seconds; `choices` is how many texts there are."""

    id: str
    created: int
    model: str
    include_usage: bool = False
    choices: int = 1


def chunk(
    head: Head, index: int, text: str, finish_reason: str | None = None, logprobs: object = None
) -> CompletionObject:
    made = _object(head, [{"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish_reason}])
    if head.include_usage:
        made["usage"] = None
    return made


def usage_chunk(head: Head, usage: UsageObject) -> CompletionObject:
    """Source: OpenAI API reference, `stream_options.include_usage`: an extra chunk with empty `choices`."""
    made = _object(head, [])
    made["usage"] = usage
    return made


def _object(head: Head, choices: list[CompletionChoice]) -> CompletionObject:
    return {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "choices": choices,
    }


class CompletionStream:
    """One stream. Not thread-safe."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._closed: set[int] = set()

    def frames(self, events: Iterable[Event]) -> Iterator[sse.Frame]:
        """One frame per event; the last one holds the whole ending."""
        for event in events:
            if isinstance(event, Finished | Failed | Cancelled):
                yield sse.Frame(self._ending(event), last=True)
                return
            yield sse.Frame(self._piece(event))

    def fault_ending(self, error: ErrorObject) -> bytes:
        """The ending of a stream that a fault of ours broke off."""
        return self._failure(error, None)

    def _piece(self, event: Event) -> bytes:
        index, said = (event.index, event.said) if isinstance(event, OfChoice) else (0, event)
        if isinstance(said, Text):
            return sse.data(chunk(self._head, index, said.text, None, said.logprobs))
        return self._close(index, said) if isinstance(said, Finished) else b""

    def _close(self, index: int, finished: Finished, timings: TimingsObject | None = None) -> bytes:
        self._closed.add(index)
        closing = chunk(self._head, index, "", outcomes.completion_finish_reason(finished))
        if timings is not None:
            closing["timings"] = timings
        return sse.data(closing)

    def _ending(self, terminal: Terminal) -> bytes:
        if isinstance(terminal, Failed | Cancelled):
            return self._failure(outcomes.stream_error(terminal), terminal.usage)
        timings = outcomes.timings_object(terminal.usage)
        last = None if self._head.include_usage else timings
        parts = [self._close(0, terminal, last)] if 0 not in self._closed else []
        if self._head.include_usage:
            told = usage_chunk(self._head, outcomes.usage_object(terminal.usage or Usage()))
            if timings is not None:
                told["timings"] = timings
            parts.append(sse.data(told))
        return b"".join((*parts, sse.DONE))

    def _failure(self, error: ErrorObject, usage: Usage | None) -> bytes:
        """Error object, a closing chunk for each choice that is open, usage chunk if asked for, `[DONE]`: to be sent in
        one write."""
        head = self._head
        counted = None if usage is None else outcomes.usage_object(usage)
        parts = [sse.data({"error": error})]
        still_open = [index for index in range(head.choices) if index not in self._closed]
        for index in still_open:
            closing = chunk(head, index, "", outcomes.FAILED_FINISH_REASON)
            closing["error"] = error
            if counted is not None and not head.include_usage and index == still_open[-1]:
                closing["usage"] = counted
            parts.append(sse.data(closing))
        if counted is not None and head.include_usage:
            parts.append(sse.data(usage_chunk(head, counted)))
        return b"".join((*parts, sse.DONE))


# --- the body ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list[str])
    logprobs: list[object] = field(default_factory=list[object])
    end: Finished | None = None


class CollectedCompletion:
    """The choices so far, for the body that is not streamed. Not thread-safe."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._choices: dict[int, _Choice] = {}

    def add(self, event: Event) -> None:
        index, said = (event.index, event.said) if isinstance(event, OfChoice) else (0, event)
        if isinstance(said, Text):
            choice = self._choices.setdefault(index, _Choice())
            choice.texts.append(said.text)
            if said.logprobs is not None:
                choice.logprobs.append(said.logprobs)
        elif isinstance(said, Finished):
            self._choices.setdefault(index, _Choice()).end = said

    def completion(self, terminal: Finished) -> CompletionObject:
        """The body of an answer that is whole."""
        if self._head.choices == 1:
            self._choices.setdefault(0, _Choice()).end = terminal
        body = _object(
            self._head,
            [
                {
                    "text": "".join(choice.texts),
                    "index": index,
                    "logprobs": _joined(choice.logprobs),
                    "finish_reason": outcomes.completion_finish_reason(choice.end or terminal),
                }
                for index, choice in sorted(self._choices.items())
            ],
        )
        body["usage"] = outcomes.usage_object(terminal.usage or Usage())
        if (timings := outcomes.timings_object(terminal.usage)) is not None:
            body["timings"] = timings
        return body

    def error(self, failure: outcomes.HttpFailure, terminal: Failed | Cancelled) -> ErrorObject:
        """The error of a body that failed after text was made: nothing received is lost. Of several choices
        `partial_outputs` has the text of each."""
        error = failure.error
        texts = ["".join(self._choices.get(index, _Choice()).texts) for index in range(self._head.choices)]
        if any(texts):
            error["partial_output"] = texts[0]
            if len(texts) > 1:
                error["partial_outputs"] = texts
        if terminal.usage is not None:
            error["usage"] = outcomes.usage_object(terminal.usage)
        return error


def _joined(pieces: list[object]) -> object:
    """The lists of all pieces, joined, in the engine's own form. Source: OpenAI API reference, `logprobs` of
    completions: `tokens`, `token_logprobs`, `top_logprobs`, `text_offset`; llama.cpp's has `content`, as in chat."""
    joined: dict[str, object] = {}
    for piece in pieces:
        if not isinstance(piece, dict):
            continue
        for name, value in cast("dict[str, object]", piece).items():
            known = joined.get(name)
            both = isinstance(value, list) and isinstance(known, list)
            joined[name] = [*cast("list[object]", known), *cast("list[object]", value)] if both else value
    return joined or None
