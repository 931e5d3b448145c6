"""Turns the events of an engine that speaks token ids into the events of an answer.

It is pure: it starts, stops and times nothing, and it leaves the last word on the terminal to `engine.terminal.sealed`,
which its reader wraps around it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from engine.events import (
    Cancelled,
    EngineEvent,
    Event,
    Failed,
    FailKind,
    Finished,
    Piece,
    Terminal,
    Text,
    Tick,
    Token,
    ToolCallEnd,
    Usage,
)
from serve.assemble.channels import Channels, Ending, Fault
from serve.assemble.config import ParseConfig
from serve.assemble.detokenizer import Detokenizer
from serve.assemble.stops import StopFinder


class TokenBytes(Protocol):
    """The part of a tokenizer that is needed here."""

    def token_bytes(self, token_id: int) -> bytes:
        """The token's bytes; none for a control token.

        Raises: ValueError: there is no such token.
        """
        ...


def assemble(
    source: Iterator[EngineEvent],
    tokenizer: TokenBytes,
    config: ParseConfig,
    new_call_id: Callable[[], str],
    prompt_tokens: int = 0,
) -> Generator[Event, None, None]:
    """The answer that `source` generates, as events.

    `Accepted`, `Tick` and `Progress` pass through; each `Token` gives the pieces that are certain by then, or a `Tick`.
    The terminal is the source's with `usage` filled in (`prompt_tokens` where the engine did not count), but:

    - a stop string, the first whole call where there is to be no other, or a token after an end token, closes the
      source and gives `Finished`;
    - such an end, or the model's own, gives `Finished("tool_calls")` where there are whole tool calls, and
      `Failed(TOOL_CALL)` after one that is open or broken;
    - a token that the tokenizer does not have closes the source and gives `Failed(PROTOCOL)`.

    Text that was held comes before every terminal. A source that ends without one ends this too, one that raises
    raises here, after the held text. Closing the generator closes the source. Blocks as long as the source does.
    """
    answer = _Answer(tokenizer, config, new_call_id, prompt_tokens)
    try:
        yield from _events(source, answer)
    except Exception:
        yield from answer.finish("failed")
        raise
    finally:
        _close(source)


def _close(source: Iterator[EngineEvent]) -> None:
    close = getattr(source, "close", None)  # generators have it; other iterators need not
    if close is not None:
        close()


def _events(source: Iterator[EngineEvent], answer: _Answer) -> Iterator[Event]:
    for event in source:
        match event:
            case Token():
                pieces, terminal = answer.token(event.id)
                yield from pieces
                if terminal is not None:
                    _close(source)
                    yield terminal
                    return
                if not pieces:
                    yield Tick()
            case Finished() | Cancelled() | Failed():
                yield from answer.end(event)
                return
            case _:
                yield event
    yield from answer.finish("failed")


class _Answer:
    """One answer on its way from token ids to pieces."""

    def __init__(
        self, tokenizer: TokenBytes, config: ParseConfig, new_call_id: Callable[[], str], prompt_tokens: int
    ) -> None:
        self._tokenizer = tokenizer
        self._end_ids = config.end_ids
        self._detokenizer = Detokenizer()
        self._channels = Channels(config, new_call_id)
        self._stops = StopFinder(config.stop)
        self._ended = False  # the model's end token came
        self._usage = Usage(prompt_tokens=prompt_tokens)
        self._calls = 0  # whole tool calls passed on
        self._fault: str | None = None  # of a call that came before this and is not whole
        self._one_call = config.one_call
        self._tokens = 0
        self._reasoning_tokens = 0
        self._begun_for_it = bool(config.prefill)
        self._unsaid = config.prefill  # what would stand in the text although the model did not write it
        self._prefilled = self._channels.feed(config.prefill)  # given with the first token: before, nothing was made

    def token(self, token_id: int) -> tuple[list[Piece], Terminal | None]:
        """The pieces that a token makes certain, and the terminal if it ends the answer."""
        if self._ended:  # the engine goes on although the model's turn is over
            return self._over(Finished("stop", self._counted(None)))
        self._tokens += 1
        self._reasoning_tokens += self._channels.in_reasoning
        if token_id in self._end_ids:
            self._ended = True
            return [], None
        try:
            data = self._tokenizer.token_bytes(token_id)
        except ValueError as error:
            return self._over(Failed(FailKind.PROTOCOL, f"the engine made a token that does not exist: {error}"))
        prefilled, self._prefilled = self._prefilled, []
        pieces = self._stopped(prefilled + self._channels.feed(self._detokenizer.feed(data)))
        return pieces, self._found() if self._is_enough() else None

    def end(self, terminal: Terminal) -> Iterator[Event]:
        """What was held, and the terminal with the usage."""
        pieces, last = self._over(terminal)
        yield from pieces
        yield last

    def finish(self, ending: Ending) -> list[Piece]:
        """What was held."""
        made: Iterable[Piece | Fault] = self._channels.feed(self._detokenizer.flush()) + self._channels.finish(ending)
        if self._begun_for_it and not self._tokens:  # the model added nothing to what the prompt began
            made = [piece for piece in made if isinstance(piece, Fault)]
        pieces = self._stopped(made)
        held = self._stops.flush()
        return [*pieces, Text(held)] if held else pieces

    def _over(self, terminal: Terminal) -> tuple[list[Piece], Terminal]:
        pieces = self.finish(_ending(terminal))
        if self._is_enough() and isinstance(terminal, Finished):
            return pieces, self._found()
        usage = self._counted(terminal.usage)
        if _ending(terminal) == "stop" and self._fault is not None:
            return pieces, Failed(FailKind.TOOL_CALL, self._fault, usage)
        if isinstance(terminal, Finished) and terminal.reason == "stop" and self._calls:
            return pieces, replace(terminal, reason="tool_calls", usage=usage)
        return pieces, replace(terminal, usage=usage)

    def _found(self) -> Finished | Failed:
        """The end that a stop string or the last call makes."""
        usage = self._counted(None)
        if self._fault is not None:
            return Failed(FailKind.TOOL_CALL, self._fault, usage)
        return Finished("tool_calls" if self._calls else "stop", usage, self._stops.found)

    def _is_enough(self) -> bool:
        return self._stops.found is not None or (self._one_call and self._calls > 0)

    def _stopped(self, made: Iterable[Piece | Fault]) -> list[Piece]:
        """The pieces up to a stop string in the answer's text, or up to the last call that there is to be."""
        out: list[Piece] = []
        for piece in made:
            if self._is_enough():
                break
            if isinstance(piece, Fault):
                self._fault = self._fault or piece.message
                continue
            if not isinstance(piece, Text):  # what the prompt began is a call, or was none
                self._unsaid = ""
            said = self._said(piece.text) if isinstance(piece, Text) else ""
            text = self._stops.feed(said) if isinstance(piece, Text) else self._stops.flush()
            if text:
                out.append(Text(text))
            if not isinstance(piece, Text):
                out.append(piece)
            self._calls += isinstance(piece, ToolCallEnd)
        return out

    def _said(self, text: str) -> str:
        """The text without what the prompt began: a call that never became one is shown as the model wrote it."""
        if not self._unsaid:
            return text
        pairs = zip(text, self._unsaid, strict=False)
        begun = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(text), len(self._unsaid)))
        self._unsaid = self._unsaid[begun:] if begun == len(text) else ""
        return text[begun:]

    def _counted(self, engine: Usage | None) -> Usage:
        """The token counts: the engine's where it counted, else ours."""
        engine = engine or Usage()
        completion = engine.completion_tokens or self._tokens
        return replace(
            engine,
            prompt_tokens=engine.prompt_tokens or self._usage.prompt_tokens,
            completion_tokens=completion,
            reasoning_tokens=min(engine.reasoning_tokens or self._reasoning_tokens, completion),
        )


def _ending(terminal: Terminal) -> Ending:
    if not isinstance(terminal, Finished):
        return "failed"
    return "length" if terminal.reason == "length" else "stop"
