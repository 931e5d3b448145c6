"""Responses: entries → events, and the response object, which say the same at every moment.

Pure: id, clock and model are in the `Head`, and the same head and entries always give the same events. So a stream can
be made again from what was kept, and taken up at any number. It does not decide how anything ended (`serve.outcomes`
does) and knows neither the request behind the head nor the framing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from engine.events import (
    Accepted,
    Cancelled,
    Failed,
    Finished,
    Reasoning,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from serve import outcomes
from serve.encode.response_items import Call, Item, Message, Thought, token_logprobs
from serve.entries import Beat, Ended, Entry
from serve.wire import ItemStatus, OutputItem, ResponseEvent, ResponseObject

INDEX_DIGITS = 4
ECHO_DEFAULTS: Mapping[str, object] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": None,
    "store": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": None,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""What a response says of its request where the head's `fields` say nothing: no key may be missing."""


@dataclass(frozen=True, slots=True)
class Head:
    """What all events of one response share. `created_at` is in Unix seconds; `fields` are the members of the response
    that repeat the request (`ECHO_DEFAULTS` lists those that every response has)."""

    id: str
    created_at: int
    model: str
    background: bool = False
    fields: Mapping[str, object] = field(default_factory=dict[str, object])
    include_logprobs: bool = False


def response_of_item(item_id: str) -> str:
    """The id of the response that an output item of ours belongs to; no existing one for other ids."""
    return f"resp_{item_id.partition('_')[2][:-INDEX_DIGITS]}"


class ResponseEncoder:
    """One response, from its first event to its terminal. Not thread-safe; nothing blocks.

    `start` once, then `feed` with each entry in order. The cost of an entry does not depend on what was made before.
    Events share parts with each other and with `response()`: read them, do not change them.
    """

    def __init__(self, head: Head) -> None:
        self._head = head
        self._echo = {**ECHO_DEFAULTS, **head.fields}
        self._secret = head.id.partition("_")[2] or head.id
        self._number = 0
        self._queued = head.background
        self._items: list[Item] = []
        self._speech: Message | Thought | None = None
        self._calls: dict[int, Call] = {}
        self._final: ResponseObject | None = None

    @property
    def ended(self) -> bool:
        """Whether the terminal event was made."""
        return self._final is not None

    def response(self) -> ResponseObject:
        """The response as of now; at the end the very object that the terminal event holds."""
        return self._final or self._snapshot([item.item() for item in self._items])

    def start(self) -> list[ResponseEvent]:
        """The first two events.

        Raises: ValueError: it was started before.
        """
        if self._number:
            raise ValueError("a response starts once")
        made: list[ResponseEvent] = [
            {"type": "response.created", "response": self._snapshot([]), "sequence_number": self._next()}
        ]
        self._tell_state(made)
        return made

    def feed(self, entry: Entry) -> list[ResponseEvent]:
        """The events of one entry.

        Raises: ValueError: not started, or ended. KeyError: a piece of a call that is not open. (Faults of ours.)
        """
        if not self._number or self._final is not None:
            raise ValueError("a response takes entries after its start and before its end")
        made: list[ResponseEvent] = []
        if self._queued and not isinstance(entry, Beat | Ended):
            self._run(made)
        match entry:
            case Text():
                self._text(made, entry)
            case Reasoning():
                self._thought(made, entry)
            case ToolCallStart():
                self._call(made, entry)
            case ToolCallArgs():
                self._arguments(made, entry)
            case ToolCallEnd(index=index):
                self._close_call(made, self._calls.pop(index), outcomes.ITEM_WHOLE)
            case Accepted():
                pass
            case Beat():
                self._tell_state(made)
            case Ended():
                self._end(made, entry)
        return made

    # --- the response as a whole ---------------------------------------------------------------------

    def _next(self) -> int:
        """The number of an event; asked for last, when nothing of the event can fail any more."""
        number = self._number
        self._number += 1
        return number

    def _snapshot(self, output: list[OutputItem]) -> ResponseObject:
        """The response while it runs."""
        head = self._head
        made: dict[str, object] = {
            "id": head.id,
            "object": "response",
            "created_at": head.created_at,
            "completed_at": None,
            "status": outcomes.RESPONSE_QUEUED if self._queued else outcomes.RESPONSE_RUNNING,
            "background": head.background,
            "error": None,
            "incomplete_details": None,
            "model": head.model,
            "output": output,
            "usage": None,
        }
        return cast("ResponseObject", {**made, **self._echo, **made})  # in this order of keys, and none overwritten

    def _tell_state(self, made: list[ResponseEvent]) -> None:
        """Say that the response waits or runs. Without its output, which would grow with every beat."""
        name = outcomes.QUEUED_EVENT if self._queued else outcomes.RUNNING_EVENT
        made.append({"type": name, "response": self._snapshot([]), "sequence_number": self._next()})

    def _run(self, made: list[ResponseEvent]) -> None:
        self._queued = False
        self._tell_state(made)

    def _end(self, made: list[ResponseEvent], ended: Ended) -> None:
        terminal = ended.terminal
        if self._queued and isinstance(terminal, Finished):
            self._run(made)
        ending = outcomes.response_ending(terminal)
        for item in self._items:
            if item.status == outcomes.ITEM_OPEN:
                self._close(made, item, ending)
        final = self._snapshot([item.item() for item in self._items])
        final["status"] = ending.status
        final["error"] = ending.error
        if ending.status == "completed":
            final["completed_at"] = int(ended.at)
        if ending.incomplete_reason is not None:
            final["incomplete_details"] = {"reason": ending.incomplete_reason}
        usage = terminal.usage or (Usage() if isinstance(terminal, Finished) else None)
        final["usage"] = None if usage is None else outcomes.response_usage(usage)
        if ending.error is not None and isinstance(terminal, Failed | Cancelled):
            self._error(made, terminal)
        self._final = final
        made.append({"type": ending.event, "response": final, "sequence_number": self._next()})

    def _error(self, made: list[ResponseEvent], terminal: Failed | Cancelled) -> None:
        error = outcomes.stream_error(terminal)
        made.append(
            {
                "type": "error",
                "code": error["code"],
                "message": error["message"],
                "param": error["param"],
                "error": error,
                "sequence_number": self._next(),
            }
        )

    # --- items ---------------------------------------------------------------------------------------

    def _new_id(self, prefix: str) -> str:
        """An id that nobody can guess who does not know the response's."""
        return f"{prefix}_{self._secret}{len(self._items):0{INDEX_DIGITS}x}"

    def _add(self, made: list[ResponseEvent], item: Item, told: OutputItem) -> None:
        self._items.append(item)
        made.append(
            {
                "type": "response.output_item.added",
                "output_index": item.index,
                "item": told,
                "sequence_number": self._next(),
            }
        )

    def _close(self, made: list[ResponseEvent], item: Item, ending: outcomes.ResponseEnding) -> None:
        """Close what is open at the end of the response."""
        if not isinstance(item, Call):
            self._close_speech(made, ending.open_item)
        elif ending.calls_close:
            self._close_call(made, item, outcomes.ITEM_CUT)
        else:
            item.status = outcomes.ITEM_CUT

    def _done(self, made: list[ResponseEvent], item: Item) -> None:
        made.append(
            {
                "type": "response.output_item.done",
                "output_index": item.index,
                "item": item.item(),
                "sequence_number": self._next(),
            }
        )

    # --- text and reasoning: one item of either kind is open at most ---------------------------------

    def _open_speech(self, made: list[ResponseEvent], item: Message | Thought) -> None:
        self._close_speech(made, outcomes.ITEM_WHOLE)
        self._add(made, item, item.item([]))
        self._speech = item
        made.append(
            {
                "type": "response.content_part.added",
                "item_id": item.id,
                "output_index": item.index,
                "content_index": 0,
                "part": item.part(),
                "sequence_number": self._next(),
            }
        )

    def _text(self, made: list[ResponseEvent], piece: Text) -> None:
        item = self._speech
        if not isinstance(item, Message):
            if not piece.text:
                return
            item = Message(self._new_id("msg"), len(self._items))
            self._open_speech(made, item)
        wanted = self._head.include_logprobs and piece.logprobs is not None
        logprobs = token_logprobs(piece.logprobs) if wanted else []
        if not piece.text and not logprobs:
            return
        item.pieces.append(piece.text)
        item.logprobs.extend(logprobs)
        made.append(
            {
                "type": "response.output_text.delta",
                "item_id": item.id,
                "output_index": item.index,
                "content_index": 0,
                "delta": piece.text,
                "logprobs": logprobs,
                "sequence_number": self._next(),
            }
        )

    def _thought(self, made: list[ResponseEvent], piece: Reasoning) -> None:
        if not piece.text:
            return
        item = self._speech
        if not isinstance(item, Thought):
            item = Thought(self._new_id("rs"), len(self._items))
            self._open_speech(made, item)
        item.pieces.append(piece.text)
        made.append(
            {
                "type": "response.reasoning_text.delta",
                "item_id": item.id,
                "output_index": item.index,
                "content_index": 0,
                "delta": piece.text,
                "sequence_number": self._next(),
            }
        )

    def _close_speech(self, made: list[ResponseEvent], status: ItemStatus) -> None:
        item, self._speech = self._speech, None
        if item is None:
            return
        item.status = status
        part = item.part()
        if part["type"] == "output_text":
            made.append(
                {
                    "type": "response.output_text.done",
                    "item_id": item.id,
                    "output_index": item.index,
                    "content_index": 0,
                    "text": part["text"],
                    "logprobs": part["logprobs"],
                    "sequence_number": self._next(),
                }
            )
        else:
            made.append(
                {
                    "type": "response.reasoning_text.done",
                    "item_id": item.id,
                    "output_index": item.index,
                    "content_index": 0,
                    "text": part["text"],
                    "sequence_number": self._next(),
                }
            )
        made.append(
            {
                "type": "response.content_part.done",
                "item_id": item.id,
                "output_index": item.index,
                "content_index": 0,
                "part": part,
                "sequence_number": self._next(),
            }
        )
        self._done(made, item)

    # --- calls: any number may be open ---------------------------------------------------------------

    def _call(self, made: list[ResponseEvent], begun: ToolCallStart) -> None:
        self._close_speech(made, outcomes.ITEM_WHOLE)
        item = Call(self._new_id("fc"), len(self._items), begun.id, begun.name)
        self._calls[begun.index] = item
        self._add(made, item, item.item())

    def _arguments(self, made: list[ResponseEvent], piece: ToolCallArgs) -> None:
        item = self._calls[piece.index]
        if not piece.text:
            return
        item.pieces.append(piece.text)
        made.append(
            {
                "type": "response.function_call_arguments.delta",
                "item_id": item.id,
                "output_index": item.index,
                "delta": piece.text,
                "sequence_number": self._next(),
            }
        )

    def _close_call(self, made: list[ResponseEvent], item: Call, status: ItemStatus) -> None:
        item.status = status
        told = item.item()
        made.append(
            {
                "type": "response.function_call_arguments.done",
                "item_id": item.id,
                "output_index": item.index,
                "name": item.name,
                "arguments": told["arguments"],
                "sequence_number": self._next(),
            }
        )
        self._done(made, item)
