"""An upstream's chat stream on its way to a client of the same API: as it came where nothing is wrong with it.

Every chunk is read (`engine.chat_reader`, one reader a choice) or known to be like one that was (`engine.passage`), so
an ending is as true here as where the answer is written anew; what passes is bytes. What can be put right without
touching what the answer says is (`engine.chunk_repair`); the upstream's own ending is held until it is known to be
true, and rides on the terminal. It owns no socket and no clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, cast

from engine.chat_body import ChatBody, json_bytes
from engine.chat_reader import DONE, ChatReader, ChunkBroken, is_idle, object_of
from engine.chunk_repair import Choices, ChunkRepair, Identity, choices_of, parted
from engine.event_blocks import EventBlocks
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
from engine.sse_codec import SseComment, SseEvent, SseItem
from engine.token_counts import AnswerCounts, usage_json
from engine.upstream_errors import Problem, problem_in, without_odd_values

Json = Mapping[str, object]
_BOM = b"\xef\xbb\xbf"
_DONE_EVENT = b"data: [DONE]\n\n"
MAX_UNUSED = 8
"""After so many passages that were learnt for nothing, only one chunk of so many is learnt from."""
_PIECES = Text | Reasoning | ToolCallStart | ToolCallArgs | ToolCallEnd


@dataclass(frozen=True, slots=True)
class RelayPlan:
    """What the client gets, and what it asked for.

    `form` "stream": what passes comes as `Passed`, the ending as `Finished.raw`. "whole": pieces, and the whole body as
    `Finished.raw`. `fallback`: the names of a stream that has none. `pieces`: whether the text in what passes is wanted
    as pieces, too. `usage`: whether the stream is to end with its counts. `named_call`: whether the request names the
    tool to call, `tools` the names of those that it declares. `hide_progress`: chunks that say nothing but how far the
    prompt is read are ours alone.
    """

    form: Literal["stream", "whole"]
    fallback: Identity
    choices: int = 1
    pieces: bool = False
    usage: bool = False
    named_call: bool = False
    tools: Collection[str] = ()
    hide_progress: bool = False


class ChatRelay:
    """One answer. Feed it until `terminal` is set; the terminal is also the last event returned. Not thread-safe."""

    def __init__(self, new_call_id: Callable[[], str], who: str, plan: RelayPlan) -> None:
        self.terminal: Terminal | None = None
        self.done_seen = False
        """Whether the end marker came and nothing is wrong so far; see `ChatReader`."""
        self._plan = plan
        self._counts = AnswerCounts(plan.choices)
        names = [who] + [f"{who} (choice {index})" for index in range(1, plan.choices)]
        self._readers = [ChatReader(new_call_id, name, self._counts.of(index)) for index, name in enumerate(names)]
        self._repair = ChunkRepair(
            plan.fallback, self._readers, named_call=plan.named_call, tools=plan.tools, counts=self._counts
        )
        self._blocks = EventBlocks()
        self._body = ChatBody() if plan.form == "whole" else None
        self._passage: Passage | None = None
        self._unused = 0
        self._open = set(range(plan.choices))
        self._unheard = set(range(plan.choices))  # choices that were not mentioned yet
        self._closed: set[int] = set()  # choices whose end is out
        self._ending: list[bytes] = []
        self._told: tuple[Json, bytes, int | None] | None = None  # the chunk of counts, and its place in the ending
        self._usage_told = False
        self._alive = False

    @property
    def finish_seen(self) -> bool:
        """Whether the upstream said how all choices ended: only usage and the end marker can still come."""
        return not self._open

    @property
    def usage(self) -> Usage:
        """What was read and made so far, in all choices."""
        return self._counts.usage(final=self.finish_seen)

    # --- bytes ---------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> tuple[list[Event], bool]:
        """Read the next bytes of the stream: its events, and whether something came that is a sign of life.

        Raises: SseTooLong.
        """
        if self._passage is not None and self._blocks.between and (event := self._quick(data)) is not None:
            return [event], True
        events: list[Event] = []
        self._alive = False
        for part in self._blocks.feed(data):
            if isinstance(part, bytes):
                self._plain(part, events)
            else:
                self._item(part, events)
        return _in_one_write(events), self._alive

    @property
    def fits(self) -> Callable[[bytes], int | None] | None:
        """Says whether the next bytes of the stream can go to the client as they are, with nothing to tell anybody:
        how many texts they hold, or None. Those that went are to be told (`passed`) before anything else is fed. None:
        nothing can now."""
        if self._passage is None or self._plan.pieces or not self._blocks.between or self.terminal is not None:
            return None
        return self._passage.said

    def passed(self, texts: int) -> None:
        """So many texts of what fits went to the client."""
        assert self._passage is not None
        self._unused = 0
        self._counts.add_texts(texts, reasoning=self._passage.channel != "content")

    def _quick(self, block: bytes) -> Event | None:
        assert self._passage is not None
        texts = self._passage.texts(block)
        if texts is None:
            return None
        self._unused = 0
        reasoning = self._passage.channel != "content"
        said = [text for text in texts if text]
        self._counts.add_texts(len(said), reasoning=reasoning)
        if not self._plan.pieces:
            return Passed(block)
        kind = Reasoning if reasoning else Text
        return Passed(block, tuple(kind(json.loads(b'"%b"' % text)) for text in said))

    def _plain(self, block: bytes, events: list[Event]) -> None:
        """Whole events, a line each."""
        parts = block.split(b"\n\n")[:-1]
        if len(parts) > 1 and self._passage is not None and (event := self._quick(block)) is not None:
            events.append(event)
            self._alive = True
            return
        for part in parts:
            raw = part + b"\n\n"
            if self.terminal is not None:
                return
            if self._passage is not None and (event := self._quick(raw)) is not None:
                events.append(event)
                self._alive = True
                continue
            try:
                text = part[6:].decode("utf-8")
            except UnicodeDecodeError:
                text = part[6:].decode("utf-8", "replace")
                raw = _plain_event(text)
            self._data(text, raw, events)

    def _item(self, item: SseItem, events: list[Event]) -> None:
        """What is no plain event."""
        if self.terminal is not None or isinstance(item, SseComment):
            return
        if isinstance(item, SseEvent) and item.name != "error":
            self._data(item.data, _plain_event(item.data), events)
        else:
            self._alive = self._alive or isinstance(item, SseEvent)
            self._take(self._readers[0].items([item]), events)
            self._hold_to_words(events)

    # --- one chunk -----------------------------------------------------------------------------------

    def _data(self, text: str, raw: bytes, events: list[Event]) -> None:
        """The data of one event; `raw` is that event in the plain form."""
        if is_idle(text):
            return
        self._alive = True
        if text.strip() == DONE:
            self._done(events)
            return
        try:
            chunk, exact = object_of(text)
            self._chunk(chunk, raw, exact, events)
        except ChunkBroken as error:
            self._take(self._readers[0].broken(str(error)), events)
        except RecursionError:
            self._take(self._readers[0].broken("its data is nested too deeply"), events)

    def _chunk(self, chunk: Json, raw: bytes, exact: bool, events: list[Event]) -> None:
        problem = problem_in(chunk)
        choices = choices_of(chunk)
        if problem is not None:
            self._failing(chunk, choices, problem, events)
            return
        indexes = [index for index, _ in choices]
        if len(set(indexes)) < len(indexes):  # more than one delta for a choice: one after the other
            for part in parted(chunk, choices):
                if self.terminal is None:
                    self._chunk(part, b"", False, events)
            return
        self._passage = None
        made = self._read(chunk, choices, events)
        self._hold_to_words(events)
        if self.terminal is not None:
            return
        if self._plan.hide_progress and "prompt_progress" in chunk and not (any(made.values()) or _ends(choices)):
            return
        right = self._right(chunk, choices, raw, exact, made)
        if right is not None:
            self._pass(chunk, right, raw, made, events)

    def _read(self, chunk: Json, choices: Choices, events: list[Event]) -> dict[int, list[Event]]:
        """What each choice says in this chunk."""
        made: dict[int, list[Event]] = {}
        rest = chunk
        self._unheard.difference_update(index for index, _ in choices)
        if len(self._readers) > 1:
            self._counts.read(chunk, choices)
            rest = {name: value for name, value in chunk.items() if name not in ("usage", "timings")}
        if choices and (len(choices) > 1 or choices[0][0] != 0):
            rest = {**rest, "choices": [choice for index, choice in choices if index == 0]}
        for index, reader in enumerate(self._readers):
            if index == 0:
                read = reader.chunk(rest)
                events += [event for event in read if isinstance(event, Progress)]
            else:
                read = [
                    event
                    for at, choice in choices
                    if at == index
                    for event in reader.chunk({"choices": [{**choice, "index": 0}]})
                ]
            made[index] = [event for event in read if isinstance(event, _PIECES)]
            if reader.terminal is not None:
                if index == 0:
                    events += made[0]
                self._end(reader.terminal, events)
                return made
        return made

    def _right(
        self, chunk: Json, choices: Choices, raw: bytes, exact: bool, made: Mapping[int, Sequence[Event]]
    ) -> Json | None:
        """The chunk in the right form: itself if it has it."""
        right = self._repair.repaired(chunk, choices, made)
        if right is None or (exact and b"\\ud" not in raw and b"\\uD" not in raw):
            return right
        clear = cast("Json", without_odd_values(right))
        return right if exact and clear == right else clear

    def _pass(self, chunk: Json, right: Json, raw: bytes, made: Mapping[int, list[Event]], events: list[Event]) -> None:
        """Give out a chunk: at once, or with the ending if it is the one that ends the last choice."""
        ended = [index for index in sorted(self._open) if self._readers[index].finish_seen]
        self._open.difference_update(ended)
        pieces = cast("list[Piece]", made[0])
        if self._body is not None:
            self._body.add(right)
            events += pieces
            return
        out = raw
        if right is not chunk:
            out = b"data: " + json_bytes(right) + b"\n\n"
        elif self._open and len(self._readers) == 1:
            self._learn(raw, chunk)
        if right.get("usage") and not right["choices"]:
            self._told = right, out, None if self._open else len(self._ending)  # the last one counts
            return
        self._usage_told = self._usage_told or bool(right.get("usage") and not self._open)
        shown = tuple(p for p in pieces if self._plan.pieces or not isinstance(p, Text | Reasoning))
        if not self._open and all(reader.reason is not None for reader in self._readers):
            self._ending.append(out)
            if any(made.values()):
                events.append(Passed(b"", shown, held=_unfinished(right)))
            return
        closed = tuple(index for index in ended if self._readers[index].reason is not None)
        self._closed.update(closed)
        events.append(Passed(out, shown, closed))

    def _hold_to_words(self, events: list[Event]) -> None:
        """A choice whose end is out and is not true any more fails the answer while another one is open to tell it."""
        if self.terminal is None and any(self._readers[index].reason is None for index in self._closed):
            self._conclude(events)

    def _learn(self, raw: bytes, chunk: Json) -> None:
        """What follows may be like this chunk, which passes as it came; in some streams it never is."""
        self._unused += 1
        if self._unused <= MAX_UNUSED or self._unused % MAX_UNUSED == 0:
            self._passage = _learnt(raw, chunk)

    def _failing(self, chunk: Json, choices: Choices, problem: Problem, events: list[Event]) -> None:
        """A chunk that tells an error: what it says besides stays readable."""
        said = {name: value for name, value in chunk.items() if name != "error"}
        said["choices"] = [
            {name: value for name, value in choice.items() if name not in ("error", "finish_reason")}
            for _, choice in choices
        ]
        if choices and problem_in(said) is None:
            self._passage = None
            made = self._read(said, choices_of(said), events)
            if self.terminal is not None:  # damaged, too: the error counts
                events.pop()
            elif any(made.values()):
                right = self._right(said, choices_of(said), b"", False, made)
                assert right is not None
                self._pass(said, right, b"", made, events)
        else:
            self._counts.read(chunk)
        self._take(self._readers[0].fail_by(problem), events)

    # --- the end -------------------------------------------------------------------------------------

    def whole(self, body: bytes) -> list[Event]:
        """Read a body that is one JSON chat completion (a server that ignores `stream`)."""
        events: list[Event] = []
        body = body.removeprefix(_BOM)
        try:
            chunk, exact = object_of(body.decode("utf-8", "replace"))
            self._completion(chunk, exact, events)
            clear = exact and _is_utf8(body) and without_odd_values(chunk) == chunk
        except (ChunkBroken, RecursionError) as error:
            self._take(self._readers[0].broken(str(error)), events)
            return events
        if self.terminal is None:
            self._let_off_unheard()
            self._conclude(events)
        if self._body is None or not isinstance(self.terminal, Finished):
            return events
        if clear and self._repair.is_whole_right(chunk):
            events[-1] = self._set(replace(self.terminal, raw=body))  # it is what was asked for
        return events

    def _completion(self, completion: Json, exact: bool, events: list[Event]) -> None:
        """A whole completion as one chunk, or, where a stream's counts are asked for, as two."""
        if self._body is None and self._plan.usage and completion.get("usage"):
            counts = {**completion, "choices": list[object]()}
            self._chunk({**completion, "usage": None}, b"", False, events)
            if self.terminal is None:
                self._chunk(counts, b"", False, events)
        else:
            self._chunk(completion, b"", False, events)

    def end(self) -> list[Event]:
        """The body ended cleanly."""
        events: list[Event] = []
        for item in self._blocks.end():
            self._item(item, events)
        if self.terminal is None:
            self._conclude(events)
        return events

    def cut(self, kind: FailKind, how: str) -> list[Event]:
        """Nothing more will come, and not because the upstream was done. See `ChatReader.cut`."""
        first, *others = self._readers
        reads = [first.cut(kind, how, self._blocks.end())]
        reads += [reader.cut(kind, how, ()) for reader in others]
        events: list[Event] = []
        self._settle(reads, events)
        return events

    def _done(self, events: list[Event]) -> None:
        """The end marker: a failure now, or a success at the end of the body."""
        self._let_off_unheard()
        self.done_seen = not self._open and all(reader.reason is not None for reader in self._heard())
        if not self.done_seen:
            self._conclude(events)

    def _let_off_unheard(self) -> None:
        """The upstream is done. Choices that it never mentioned are none that it left open: some servers make only one,
        whatever `n` says."""
        if 0 not in self._unheard:
            self._open -= self._unheard

    def _heard(self) -> list[ChatReader]:
        """The readers of the choices that must have an end."""
        return [reader for i, reader in enumerate(self._readers) if i in self._open or i not in self._unheard]

    def _conclude(self, events: list[Event]) -> None:
        """The upstream is done: each choice must have its end, and a whole one."""
        self._settle([reader.end() for reader in self._readers], events)

    def _settle(self, reads: Sequence[list[Event]], events: list[Event]) -> None:
        """Every reader has its terminal, the last of what it read now: the first failure is that of the answer."""
        for index in range(len(self._readers)):
            late = self._repair.late_calls(index)
            if late is not None and self._body is not None:
                self._body.add(late)
            elif late is not None:
                events.append(Passed(b"data: " + json_bytes(late) + b"\n\n"))
        pieces = [event for event in reads[0] if isinstance(event, _PIECES)]
        if self._body is None and pieces:
            events.append(Passed(b"", tuple(pieces)))
        else:
            events += pieces
        terminals = [cast("Finished | Failed", reader.terminal) for reader in self._heard()]
        failed = next((terminal for terminal in terminals if isinstance(terminal, Failed)), None)
        if failed is not None:
            self._end(failed, events)
            return
        finished = cast("Finished", terminals[0])
        reason = "tool_calls" if self._repair.ends_in_calls(0) else finished.reason
        self._end(replace(finished, reason=reason, raw=self._raw()), events)

    def _raw(self) -> bytes:
        if self._body is not None:
            return self._body.json(self.usage)
        ending, head = [*self._ending], self._repair.head
        if self._told is not None:
            chunk, out, at = self._told
            if chunk["id"] != head["id"]:  # it came before the stream had one
                out = b"data: " + json_bytes({**chunk, **head}) + b"\n\n"
            ending.insert(len(ending) if at is None else at, out)
        elif self._plan.usage and not self._usage_told:
            chunk = {**head, "choices": list[object](), "usage": usage_json(self.usage)}
            ending.append(b"data: " + json_bytes(chunk) + b"\n\n")
        return b"".join((*ending, _DONE_EVENT))

    def _take(self, read: Sequence[Event], events: list[Event]) -> None:
        """What a reader made of something that is no chunk to pass."""
        for event in read:
            if isinstance(event, Finished | Failed):
                self._end(event, events)
            else:
                events.append(event)

    def _end(self, terminal: Terminal, events: list[Event]) -> None:
        events.append(self._set(replace(terminal, usage=self.usage)))

    def _set(self, terminal: Terminal) -> Terminal:
        self.terminal = terminal
        return terminal


def _ends(choices: Choices) -> bool:
    return any(choice.get("finish_reason") for _, choice in choices)


def _plain_event(text: str) -> bytes:
    """One event with this data, which has no half surrogates; a line end in it is no more than a space to JSON."""
    return b"data: " + text.replace("\n", " ").encode("utf-8") + b"\n\n"


def _learnt(raw: bytes, chunk: Json) -> Passage | None:
    """What can be learnt of a chunk that passes as it came."""
    choices = cast("Sequence[Json]", chunk["choices"])
    if len(choices) != 1 or choices[0].get("logprobs") is not None:
        return None
    return learn(raw, chunk, cast("Json", choices[0]["delta"]))


def _unfinished(chunk: Json) -> bytes:
    """The chunk without an ending, for a stream that ends in another way."""
    choices = [{**choice, "finish_reason": None} for choice in cast("Sequence[Json]", chunk["choices"])]
    rest = {name: value for name, value in chunk.items() if name != "usage"}
    return b"data: " + json_bytes({**rest, "choices": choices}) + b"\n\n"


def _in_one_write(events: list[Event]) -> list[Event]:
    """The events, those that pass one after the other as one."""
    joined: list[Event] = []
    for passes, run in groupby(events, lambda event: isinstance(event, Passed)):
        same = list(run)
        joined += [_join(cast("list[Passed]", same))] if passes and len(same) > 1 else same
    return joined


def _join(run: Sequence[Passed]) -> Passed:
    return Passed(
        b"".join(passed.raw for passed in run),
        tuple(piece for passed in run for piece in passed.pieces),
        tuple(index for passed in run for index in passed.finished),
        b"".join(passed.held for passed in run),
    )


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
