"""An upstream's chat stream on its way to a client of the same API: as it came where nothing is wrong with it.

Every chunk is read (`engine.chat_reader`, one reader a choice) or known to be like one that was (`engine.passage`), so
an ending is as true here as where the answer is written anew; what passes is bytes. What can be put right without
touching what the answer says is (`engine.chunk_repair`); the upstream's own ending is held until it is known to be
true, and rides on the terminal. It owns no socket and no clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, cast

from engine.chat_body import ChatBody
from engine.chat_reader import DONE, FINISH_WORDS, ChatReader, is_idle, object_of
from engine.chunk_repair import ChunkRepair, Identity, cleaned
from engine.events import (
    Event,
    Failed,
    FailKind,
    Finished,
    Passed,
    Piece,
    Progress,
    Reasoning,
    Terminal,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from engine.passage import Passage, learn
from engine.sse_codec import SseComment, SseDecoder, SseEvent, SseItem
from engine.upstream_errors import problem_in

MAX_WAITING_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_DONE_EVENT = b"data: [DONE]\n\n"
_PIECES = Text | Reasoning | ToolCallStart | ToolCallArgs | ToolCallEnd


class ChatRelay:
    """One answer. Feed it until `terminal` is set; the terminal is also the last event returned. Not thread-safe.

    `form` "stream": what passes comes as `Passed`, the ending as `Finished.raw`. "whole": pieces, and the whole body as
    `Finished.raw`. `pieces`: whether the text in what passes is wanted as pieces, too. `choices`: how many were asked
    for. `fallback`: the names of a stream that has none.
    """

    def __init__(
        self,
        new_call_id: Callable[[], str],
        who: str,
        *,
        form: Literal["stream", "whole"],
        fallback: Identity,
        pieces: bool = False,
        choices: int = 1,
        hide_progress: bool = False,
    ) -> None:
        self.terminal: Terminal | None = None
        self._readers = [ChatReader(new_call_id, who) for _ in range(choices)]
        self._repair = ChunkRepair(fallback)
        self._body = ChatBody() if form == "whole" else None
        self._pieces = pieces
        self._hide_progress = hide_progress
        self._rest: list[bytes] = []
        self._waiting = 0
        self._decoder: SseDecoder | None = None
        self._passage: Passage | None = None
        self._open = set(range(choices))
        self._ending: list[bytes] = []
        self._begun = False

    @property
    def finish_seen(self) -> bool:
        """Whether the upstream said how all choices ended: only usage and the end marker can still come."""
        return not self._open

    @property
    def usage(self) -> Usage:
        """What was read and made so far, in all choices."""
        usages = [reader.usage for reader in self._readers]
        made = sum(usage.completion_tokens for usage in usages[1:])
        return usages[0] if self.finish_seen or not made else _with(usages[0], made)

    # --- bytes ---------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> tuple[list[Event], bool]:
        """Read the next bytes of the stream: its events, and whether something came that is more than comments.

        Raises: SseTooLong.
        """
        if self._decoder is not None:
            return self._decoded(self._decoder.feed(data))
        if self._passage is not None and not self._rest and (event := self._quick(data)) is not None:
            return [event], True
        if self._rest and b"\n\n" not in (self._rest[-1][-1:] + data) and b"\r" not in data:
            return self._wait(data)
        block = b"".join((*self._rest, data)) if self._rest else data
        if b"\r" in block or (not self._begun and _BOM.startswith(block[:3])):
            self._decoder, self._rest = SseDecoder(), []
            return self._decoded(self._decoder.feed(block))
        cut = block.rfind(b"\n\n") + 2
        if cut < 2:
            return self._wait(data)
        self._begun = True
        self._rest = [block[cut:]] if cut < len(block) else []
        self._waiting = len(block) - cut
        return self._blocks(block[:cut])

    def _wait(self, data: bytes) -> tuple[list[Event], bool]:
        """Nothing is whole yet. What gets long goes to the decoder, which knows the limits."""
        self._rest.append(data)
        self._waiting += len(data)
        if self._waiting <= MAX_WAITING_BYTES:
            return [], False
        block, self._rest = b"".join(self._rest), []
        self._decoder = SseDecoder()
        return self._decoded(self._decoder.feed(block))

    def _quick(self, block: bytes) -> Event | None:
        assert self._passage is not None
        texts = self._passage.texts(block)
        if texts is None:
            return None
        reasoning = self._passage.channel != "content"
        self._readers[0].passed(len(texts), reasoning=reasoning)
        if not self._pieces:
            return Passed(block)
        kind = Reasoning if reasoning else Text
        return Passed(block, tuple(kind(json.loads(b'"%b"' % text)) for text in texts))

    def _blocks(self, whole: bytes) -> tuple[list[Event], bool]:
        if self._passage is not None and (event := self._quick(whole)) is not None:
            return [event], True
        events: list[Event] = []
        alive = False
        for block in whole.split(b"\n\n")[:-1]:
            if self.terminal is not None:
                break
            raw = block + b"\n\n"
            if self._passage is not None and (event := self._quick(raw)) is not None:
                events.append(event)
                alive = True
            elif block.startswith(b"data: ") and b"\n" not in block:
                self._data(block[6:].decode("utf-8", "replace"), raw, events)
                alive = True
            else:
                more, lives = self._decoded(SseDecoder().feed(raw))
                events += more
                alive = alive or lives
        return events, alive

    def _decoded(self, items: list[SseItem]) -> tuple[list[Event], bool]:
        events: list[Event] = []
        for item in items:
            if self.terminal is not None:
                break
            if isinstance(item, SseEvent) and item.name != "error":
                self._data(item.data, None, events)
            elif not isinstance(item, SseComment):
                self._take(self._readers[0].items([item]), events)
        return events, any(isinstance(item, SseEvent) for item in items)

    # --- one chunk -----------------------------------------------------------------------------------

    def _data(self, text: str, raw: bytes | None, events: list[Event]) -> None:
        """The data of one event; `raw` where it came in the plain form, alone."""
        if is_idle(text):
            return
        if text.strip() == DONE:
            self._conclude(events)
            return
        chunk = object_of(text)
        if isinstance(chunk, str):
            self._take(self._readers[0].broken(chunk), events)
            return
        if problem_in(chunk) is not None:
            self._take(self._readers[0].chunk(chunk), events)
            return
        made = self._read(chunk, events)
        if self.terminal is not None:
            return
        if self._hide_progress and "prompt_progress" in chunk and not any(made.values()):
            return
        self._pass(chunk, text, raw, made, events)

    def _read(self, chunk: Mapping[str, object], events: list[Event]) -> dict[int, list[Event]]:
        """What each choice says in this chunk."""
        choices = chunk.get("choices")
        made: dict[int, list[Event]] = {}
        split = isinstance(choices, list) and len(self._readers) > 1
        for index, reader in enumerate(self._readers):
            part = _of_choice(chunk, index) if split else chunk
            read = reader.chunk(part)
            events += [event for event in read if isinstance(event, Progress)]
            made[index] = [event for event in read if isinstance(event, _PIECES)]
            if reader.terminal is not None:
                if index == 0:
                    events += made[0]
                self._end(reader.terminal, events)
                return made
        return made

    def _pass(
        self,
        chunk: Mapping[str, object],
        text: str,
        raw: bytes | None,
        made: Mapping[int, list[Event]],
        events: list[Event],
    ) -> None:
        ended = tuple(index for index in sorted(self._open) if self._readers[index].finish_seen)
        pieces = cast("list[Piece]", made[0])
        right = self._repair.repaired(chunk, made)
        if ("\\ud" in text or "\\uD" in text) and (clear := cleaned(right)) != right:
            right = cast("Mapping[str, object]", clear)
        if self._body is not None:
            self._body.add(right)
            events += pieces
            self._open.difference_update(ended)
            return
        if right is not chunk or raw is None or not _is_utf8(raw):
            out = _event(right)
        else:
            out = raw
            self._learn(raw, chunk)
        if any(_word(chunk, index) not in FINISH_WORDS for index in ended):
            events += pieces  # no ending that could be passed on; the reader says so at the end
            self._open.difference_update(ended)
            return
        self._open.difference_update(ended)
        if not self._open:
            self._ending.append(out)
            if pieces:
                events.append(Passed(b"", tuple(pieces)))
            return
        shown = tuple(pieces) if self._pieces else tuple(p for p in pieces if not isinstance(p, Text | Reasoning))
        events.append(Passed(out, shown, ended))

    def _learn(self, raw: bytes, chunk: Mapping[str, object]) -> None:
        choices = cast("list[Mapping[str, object]]", chunk["choices"])
        self._passage = None
        if len(choices) == len(self._readers) == 1 and not choices[0].get("finish_reason"):
            delta = choices[0].get("delta")
            if isinstance(delta, Mapping) and not choices[0].get("logprobs"):
                self._passage = learn(raw, chunk, cast("Mapping[str, object]", delta))

    # --- the end -------------------------------------------------------------------------------------

    def whole(self, body: bytes) -> list[Event]:
        """Read a body that is one JSON chat completion (a server that ignores `stream`)."""
        events: list[Event] = []
        self._data(body.decode("utf-8", "replace").removeprefix("\ufeff"), None, events)
        if self.terminal is None:
            self._conclude(events)
        if self._body is not None and isinstance(self.terminal, Finished) and _is_utf8(body):
            events[-1] = self._set(replace(self.terminal, raw=body))  # it is what was asked for
        return events

    def end(self) -> list[Event]:
        """The body ended cleanly."""
        events, _ = self._decoded(self._pending())
        if self.terminal is None:
            self._conclude(events)
        return events

    def cut(self, kind: FailKind, how: str) -> list[Event]:
        """Nothing more will come, and not because the upstream was done. See `ChatReader.cut`."""
        pending = self._pending()
        first, *others = self._readers
        events = first.cut(kind, how, pending)
        for reader in others:
            if isinstance(first.terminal, Finished):
                reader.cut(kind, how)
                if isinstance(reader.terminal, Failed):
                    return [*events[:-1], self._set(reader.terminal)]
        return self._concluded(events)

    def _pending(self) -> list[SseItem]:
        if self._decoder is not None:
            return self._decoder.end()
        decoder = SseDecoder()
        items = decoder.feed(b"".join(self._rest))
        self._rest = []
        return items + decoder.end()

    def _take(self, read: list[Event], events: list[Event]) -> None:
        """What a reader made of something that is no chunk to pass."""
        for event in read:
            if isinstance(event, Finished | Failed):
                self._end(event, events)
            else:
                events.append(event)

    def _conclude(self, events: list[Event]) -> None:
        """The upstream is done: each choice must have its end, and a whole one."""
        read = self._readers[0].end()
        for reader in self._readers[1:]:
            if isinstance(self._readers[0].terminal, Finished):
                reader.end()
                if isinstance(reader.terminal, Failed):
                    read = [*read[:-1], reader.terminal]
                    break
        events += self._concluded(read)

    def _concluded(self, read: list[Event]) -> list[Event]:
        *pieces, terminal = read
        events: list[Event] = []
        for piece in pieces:
            if isinstance(piece, ToolCallStart) and piece.index < self._repair.calls_of(0) and self._body is None:
                events.append(Passed(b"", (piece,)))  # its start is out
            else:
                events.append(piece)
        if isinstance(terminal, Finished):
            terminal = replace(terminal, usage=self.usage, raw=self._raw(terminal))
        return [*events, self._set(cast("Terminal", terminal))]

    def _raw(self, terminal: Finished) -> bytes:
        if self._body is not None:
            return self._body.json(terminal)
        return b"".join((*self._ending, _DONE_EVENT))

    def _end(self, terminal: Terminal, events: list[Event]) -> None:
        events.append(self._set(terminal))

    def _set(self, terminal: Terminal) -> Terminal:
        self.terminal = terminal
        return terminal


def _of_choice(chunk: Mapping[str, object], index: int) -> Mapping[str, object]:
    """The chunk as the reader of one choice sees it; the first reader counts."""
    choices = [
        {**choice, "index": 0}
        for choice in cast("list[Mapping[str, object]]", chunk["choices"])
        if (choice.get("index") or 0) == index
    ]
    if index == 0:
        return {**chunk, "choices": choices}
    return {"choices": choices}


def _word(chunk: Mapping[str, object], index: int) -> object:
    for choice in cast("list[Mapping[str, object]]", chunk.get("choices") or []):
        if (choice.get("index") or 0) == index:
            return choice.get("finish_reason")
    return None


def _event(chunk: Mapping[str, object]) -> bytes:
    """One event of our own making; ASCII, so that no reader takes a character for the end of a line."""
    return b"data: " + json.dumps(chunk, allow_nan=False).encode("ascii") + b"\n\n"


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _with(usage: Usage, more: int) -> Usage:
    return replace(usage, completion_tokens=usage.completion_tokens + more)
