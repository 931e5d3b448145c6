"""An OpenAI completion of the older API, streamed or whole -> pieces of its choices' texts and exactly one terminal.

Each choice is read as the text of a chat (`engine.chat_reader`): finish words, cuts, errors and oddities mean the same
in both APIs. It owns no socket and no clock.

Source: OpenAI API reference, "completions" (2026-10); llama.cpp build 11549 as seen on 2026-11-30: each choice has its
last chunk with its own `usage`, and a stream of several choices may begin with `data: null`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from engine.chat_reader import DONE, ChatReader, ChunkBroken, index_of, is_idle, object_of
from engine.events import Event, Failed, FailKind, Finished, OfChoice, Progress, Terminal, Text, Usage
from engine.sse_codec import SseDecoder, SseEvent, SseItem
from engine.token_counts import TokenCounts
from engine.upstream_errors import problem_in

Json = Mapping[str, object]
_SPEAKING = ("delta", "message")
"""Members in which a chat's choice says something, and a completion's nothing."""


class CompletionReader:
    """One answer of `choices` choices. Feed it until `terminal` is set; the terminal is also the last event returned.
    With more than one choice what is said comes as `OfChoice`, and so does the end of each. Not thread-safe."""

    def __init__(self, who: str, choices: int = 1) -> None:
        self.terminal: Terminal | None = None
        self.done_seen = False
        """Whether the end marker came and nothing is wrong so far; see `ChatReader`."""
        names = [who] + [f"{who} (choice {index})" for index in range(1, choices)]
        self._readers = [ChatReader(_no_call_id, name) for name in names]
        self._decoder = SseDecoder()
        self._heard: set[int] = set()
        self._total = TokenCounts()
        self._counted = False  # the upstream told the counts of all choices together

    @property
    def finish_seen(self) -> bool:
        """Whether the upstream said how all choices ended: only usage and the end marker can still come."""
        return all(reader.finish_seen for reader in self._readers)

    @property
    def usage(self) -> Usage:
        """What was read and made so far, in all choices. Their prompt is the same one."""
        counts = [reader.usage for reader in self._readers]
        if len(counts) == 1:
            return counts[0]
        if self._counted and self.finish_seen:
            return self._total.usage(final=True)
        return Usage(
            max(usage.prompt_tokens for usage in counts),
            sum(usage.completion_tokens for usage in counts),
            max(usage.cached_tokens for usage in counts),
        )

    # --- bytes ---------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> tuple[list[Event], bool]:
        """Read the next bytes of a stream: its events, and whether something came that is a sign of life.

        Raises: SseTooLong.
        """
        events: list[Event] = []
        alive = False
        for item in self._decoder.feed(data):
            if self.terminal is not None:
                break
            alive = self._item(item, events) or alive
        return events, alive

    def whole(self, body: bytes) -> list[Event]:
        """Read a body that is one JSON completion (a server that ignores `stream`)."""
        events: list[Event] = []
        self._data(body.decode("utf-8", "replace").removeprefix("\ufeff"), events)
        if self.terminal is None:
            self._conclude(events)
        return events

    def end(self) -> list[Event]:
        """The body ended cleanly."""
        events: list[Event] = []
        for item in self._decoder.end():
            if self.terminal is None:
                self._item(item, events)
        if self.terminal is None:
            self._conclude(events)
        return events

    def cut(self, kind: FailKind, how: str) -> list[Event]:
        """Nothing more will come, and not because the upstream was done. See `ChatReader.cut`."""
        events: list[Event] = []
        first, *others = self._readers
        first.cut(kind, how, self._decoder.end())
        for reader in others:
            reader.cut(kind, how, ())
        self._settle(range(len(self._readers)), events)
        return events

    # --- one item ------------------------------------------------------------------------------------

    def _item(self, item: SseItem, events: list[Event]) -> bool:
        """Whether it is a sign of life."""
        if not isinstance(item, SseEvent) or item.name == "error":
            self._take(0, self._readers[0].items([item]), events)
            return isinstance(item, SseEvent)
        text = item.data.strip()
        if is_idle(text) or text == "null":
            return False
        if text == DONE:
            self._done(events)
        else:
            self._data(item.data, events)
        return True

    def _data(self, text: str, events: list[Event]) -> None:
        try:
            self._chunk(object_of(text)[0], events)
        except ChunkBroken as error:
            self._take(0, self._readers[0].broken(str(error)), events)
        except RecursionError:
            self._take(0, self._readers[0].broken("its data is nested too deeply"), events)

    def _chunk(self, chunk: Json, events: list[Event]) -> None:
        problem = problem_in(chunk)
        choices = _choices(chunk)
        rest = {name: value for name, value in chunk.items() if name != "choices"}
        if problem is not None:
            # what was made before the error stays readable; the error counts
            for index, choice in [*choices, (0, {"index": 0})]:
                if index < len(self._readers):
                    said = {"usage": chunk.get("usage"), "choices": [{**choice, "finish_reason": None}]}
                    read = self._readers[index].chunk(said)
                    self._take(index, [event for event in read if not isinstance(event, Failed)], events)
            self._take(0, self._readers[0].fail_by(problem), events)
            return
        if len(self._readers) > 1 and len(choices) != 1:
            self._total.read(chunk)
            self._counted = self._counted or bool(chunk.get("usage"))
            rest = {}
        elif not choices:
            self._take(0, self._readers[0].chunk(rest), events)
        for index, choice in choices:
            if index < len(self._readers) and self.terminal is None:
                self._heard.add(index)
                self._take(index, self._readers[index].chunk({**rest, "choices": [choice]}), events)

    def _take(self, index: int, read: Sequence[Event], events: list[Event]) -> None:
        """What a choice's reader made of something."""
        for event in read:
            if isinstance(event, Failed):
                if not self.finish_seen:  # the ends of others are not in doubt
                    events += self._well_ended(self._made())
                self._end(event, events)
            elif isinstance(event, Text):
                events.append(event if len(self._readers) == 1 else OfChoice(index, event))
            elif isinstance(event, Progress):
                events.append(event)

    # --- the end -------------------------------------------------------------------------------------

    def _done(self, events: list[Event]) -> None:
        """The end marker: a failure now, or a success at the end of the body."""
        self.done_seen = all(self._readers[index].reason is not None for index in self._made())
        if not self.done_seen:
            self._conclude(events)

    def _made(self) -> list[int]:
        """The choices that must have an end: some servers make only one, whatever `n` says."""
        return sorted(self._heard | {0})

    def _conclude(self, events: list[Event]) -> None:
        """The upstream is done: each choice must have its end."""
        for reader in self._readers:
            reader.end()
        self._settle(self._made(), events)

    def _settle(self, indexes: Sequence[int], events: list[Event]) -> None:
        """Every reader has its terminal: the first failure is that of the answer; choices that ended well did so."""
        terminals = [cast("Finished | Failed", self._readers[index].terminal) for index in indexes]
        failed = next((end for end in terminals if isinstance(end, Failed)), None)
        events += self._well_ended(indexes)
        self._end(failed or terminals[0], events)

    def _well_ended(self, indexes: Iterable[int]) -> list[Event]:
        """The ends of several choices that have one, and a good one."""
        if len(self._readers) == 1:
            return []
        ended: list[Event] = []
        for index in indexes:
            reader = self._readers[index]
            if reader.reason is not None and not isinstance(reader.terminal, Failed):
                ended.append(OfChoice(index, Finished(reader.reason)))
        return ended

    def _end(self, terminal: Finished | Failed, events: list[Event]) -> None:
        self.terminal = replace(terminal, usage=self.usage)
        events.append(self.terminal)


def _choices(chunk: Json) -> list[tuple[int, Json]]:
    """The index of each choice, and the choice as one of a chat with index 0.

    Raises: ChunkBroken.
    """
    value = chunk.get("choices")
    if value is None:
        return []
    if not isinstance(value, list):
        raise ChunkBroken("choices is not a list")
    found: list[tuple[int, Json]] = []
    for place, choice in enumerate(cast("list[object]", value)):
        if not isinstance(choice, dict):
            raise ChunkBroken("a choice is not an object")
        fields = cast("Json", choice)
        if "text" not in fields and any(fields.get(name) for name in _SPEAKING):
            raise ChunkBroken("a choice is one of a chat, not of a completion")
        index = index_of(fields.get("index"), place)
        found.append((index, {**fields, "index": 0, "delta": {"content": fields.get("text")}}))
    return found


def _no_call_id() -> str:
    raise ValueError("a completion has no calls")
