"""Messages: the events of an answer → the API's events, and the message, which say the same.

The blocks of a message come one after another, each begun, told and stopped before the next. It does not decide how
anything ended (`serve.outcomes` does) and knows neither the request nor the framing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from engine.events import (
    Cancelled,
    Event,
    Failed,
    Finished,
    Piece,
    Reasoning,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from engine.events import Text as TextPiece
from serve import outcomes, sse
from serve.encode.message_blocks import Block, Text, Thinking, ToolUse
from serve.message_wire import (
    BlockDelta,
    MessageEvent,
    MessageObject,
    MessageStopReason,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
)
from serve.wire import ErrorObject

PING = sse.event("ping", {"type": "ping"})
"""The heartbeat of a stream."""


@dataclass(frozen=True, slots=True)
class Head:
    """What all events of one message share. `prompt_tokens`: as far as they are known before the engine counts."""

    id: str
    model: str
    prompt_tokens: int = 0


class MessageEncoder:
    """One message, from its first event to its last. Not thread-safe; nothing blocks.

    `start` once, then `feed` with each event in order. An upstream may tell several calls at once, or go on with text
    before it said that a call is whole: what comes after a call that is not whole yet waits for it. After a failure
    what waits is not told any more, as the call before it must not be stopped (clients run calls that are).
    """

    def __init__(self, head: Head) -> None:
        self._head = head
        self._blocks: list[Block] = []
        self._open: Block | None = None
        self._calls: dict[int, ToolUse] = {}
        self._waiting: list[Piece] = []
        self._closing = False
        self._usage = Usage(prompt_tokens=head.prompt_tokens)
        self._stop: tuple[MessageStopReason | None, str | None] = (None, None)
        self.terminal: Finished | Failed | Cancelled | None = None

    def start(self) -> list[MessageEvent]:
        """The first event."""
        return [{"type": "message_start", "message": self.message()}]

    def feed(self, event: Event) -> list[MessageEvent]:
        """The events of one event of the answer.

        Raises: ValueError: it ended before. KeyError: a piece of a call that never began. (Faults of ours.)
        """
        if self.terminal is not None:
            raise ValueError("a message takes nothing after its end")
        made: list[MessageEvent] = []
        match event:
            case TextPiece() | Reasoning() | ToolCallStart() | ToolCallArgs() | ToolCallEnd():
                self._piece(made, event)
            case Finished():
                self._finish(made, event)
            case Failed() | Cancelled():
                self.terminal = event
                made.append(outcomes.message_stream_error(event))
            case _:
                pass
        return made

    def message(self) -> MessageObject:
        """The message as of now."""
        stop_reason, stop_sequence = self._stop
        return {
            "id": self._head.id,
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": [block.block() for block in self._blocks],
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": outcomes.message_usage(self._usage),
        }

    def text(self) -> str:
        """All text that was made, also what waits."""
        told = [piece for block in self._blocks if isinstance(block, Text) for piece in block.pieces]
        return "".join([*told, *(piece.text for piece in self._waiting if isinstance(piece, TextPiece))])

    def _finish(self, made: list[MessageEvent], finished: Finished) -> None:
        self._closing = True  # a call that is still open was cut at the limit: it is told as far as it came
        self._go_on(made)
        self._close(made)
        self.terminal = finished
        self._usage = finished.usage or self._usage
        reason, sequence = self._stop = outcomes.message_stop(finished)
        made.append(
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": sequence},
                "usage": outcomes.message_usage(self._usage),
            }
        )
        made.append({"type": "message_stop"})

    # --- pieces --------------------------------------------------------------------------------------

    def _piece(self, made: list[MessageEvent], piece: Piece) -> None:
        if isinstance(piece, TextPiece | Reasoning) and not piece.text:
            return
        if isinstance(piece, ToolCallArgs | ToolCallEnd) and piece.index in self._calls:
            self._of_call(made, self._calls[piece.index], piece)
            if self._waiting and isinstance(piece, ToolCallEnd):
                self._go_on(made)
        elif self._waiting or not self._tell(made, piece):
            self._waiting.append(piece)

    def _go_on(self, made: list[MessageEvent]) -> None:
        """Tell what waits, as far as that is possible now."""
        while self._waiting and self._tell(made, self._waiting[0]):
            piece = self._waiting.pop(0)
            if isinstance(piece, ToolCallStart):
                mine = [other for other in self._waiting if _is_of(other, piece.index)]
                self._waiting = [other for other in self._waiting if not _is_of(other, piece.index)]
                for other in mine:
                    assert isinstance(other, ToolCallArgs | ToolCallEnd)
                    self._of_call(made, self._calls[piece.index], other)

    def _tell(self, made: list[MessageEvent], piece: Piece) -> bool:
        """Begin or continue a block; False where a call that is not whole stands before it."""
        block = self._open
        if isinstance(block, ToolUse) and not (self._closing or block.is_whole()):
            return False
        match piece:
            case TextPiece(text=text):
                if not isinstance(block, Text):
                    block = Text(len(self._blocks))
                    self._begin(made, block)
                block.pieces.append(text)
                made.append(_delta(block.index, {"type": "text_delta", "text": text}))
            case Reasoning(text=text):
                if not isinstance(block, Thinking):
                    block = Thinking(len(self._blocks))
                    self._begin(made, block)
                block.pieces.append(text)
                made.append(_delta(block.index, {"type": "thinking_delta", "thinking": text}))
            case ToolCallStart(index=index, id=id_, name=name):
                call = self._calls[index] = ToolUse(len(self._blocks), index, id_, name)
                self._begin(made, call)
            case ToolCallArgs() | ToolCallEnd():
                raise KeyError(piece.index)
            case _:
                assert_never(piece)
        return True

    def _of_call(self, made: list[MessageEvent], call: ToolUse, piece: ToolCallArgs | ToolCallEnd) -> None:
        """A piece of a call that began. One that was stopped, as it looked whole, is told nothing more of: if more
        came than white space, the answer fails."""
        if isinstance(piece, ToolCallEnd):
            call.ended = True
            if call is self._open:
                self._close(made)
        elif piece.text:
            call.pieces.append(piece.text)
            if call is self._open:
                made.append(
                    {
                        "type": "content_block_delta",
                        "index": call.index,
                        "delta": {"type": "input_json_delta", "partial_json": piece.text},
                    }
                )

    def _begin(self, made: list[MessageEvent], block: Block) -> None:
        self._close(made)
        self._blocks.append(block)
        self._open = block
        made.append({"type": "content_block_start", "index": block.index, "content_block": block.begun()})

    def _close(self, made: list[MessageEvent]) -> None:
        block, self._open = self._open, None
        if block is None:
            return
        if isinstance(block, Thinking):
            made.append(_delta(block.index, {"type": "signature_delta", "signature": block.signature()}))
        made.append({"type": "content_block_stop", "index": block.index})


def _delta(index: int, delta: TextDelta | ThinkingDelta | SignatureDelta) -> BlockDelta:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _is_of(piece: Piece, call: int) -> bool:
    return isinstance(piece, ToolCallArgs | ToolCallEnd) and piece.index == call


# --- streams -----------------------------------------------------------------------------------------


def frames(head: Head, events: Iterator[Event]) -> Iterator[sse.Frame]:
    """A whole stream; the last frame holds its ending. Raises: what `events` raises."""
    encoder = MessageEncoder(head)
    yield sse.Frame(_bytes(encoder.start()))
    for event in events:
        data = _bytes(encoder.feed(event))
        yield sse.Frame(data, last=encoder.terminal is not None)
        if encoder.terminal is not None:
            return


def fault_ending(error: ErrorObject) -> bytes:
    """The last bytes of a stream that a fault of ours ends."""
    return _bytes([outcomes.message_fault(error)])


def _bytes(events: list[MessageEvent]) -> bytes:
    return b"".join(sse.event(event["type"], event) for event in events)
