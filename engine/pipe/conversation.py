"""Who each line of one engine's life belongs to, and what it means there. Sans I/O: no pipe, thread or clock.

One conversation is one life: nothing of it can reach the next. It writes no command; it says when one may be written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from engine.events import Cancelled, FailKind, Finished, Progress
from engine.pipe.answer import Answer
from engine.pipe_codec import (
    FINISHES,
    Admitted,
    Damaged,
    Done,
    Err,
    Info,
    Line,
    PromptProgress,
    Ready,
    Reused,
    SlotDone,
    SlotToken,
    TokenLine,
    Unknown,
    Yielded,
)

EXTRA_NAMES = (
    "drafts_accepted",
    "drafts_offered",
    "reused",
    "hits",
    "lookups",
    "ram_blobs",
    "file_blobs",
    "file_mb",
    "prompt_read",
)


OVERRUN_TOKENS = 64
"""So many tokens more than asked for may be speculation; an engine that makes more does not end by itself."""


class Broken(Exception):
    """This life must not be used any more. `kind` is what that means for the requests that ran."""

    def __init__(self, kind: FailKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def _broke(what: str) -> Broken:
    return Broken(FailKind.PROTOCOL, f"the engine broke its protocol: {what}")


class Conversation:
    """The state of one life. Not thread-safe: the engine's lock guards it."""

    def __init__(self, life: int, parallel: int | None) -> None:
        self.life = life
        self.info: dict[str, str] = {}
        self.max_context: int | None = None
        self.can_stop = False
        self.ready = False
        self.batch = False
        self.slots = 1
        self.over = False
        self.begun = False
        """It was given a request."""
        self.last: dict[str, object] | None = None
        self.front: Answer | None = None
        """The request that has the engine to itself: solo, or the admission of a slot."""
        self.held_err: Err | None = None
        """The front's ERR, held back for a moment: a DONE that follows makes it fatal."""
        self.settling = False
        """A request just ended; the next command waits a moment, so that lines that should not come are seen."""
        self.again: deque[Answer] = deque()
        """Interrupted answers whose second part waits for its turn, before all others. A slot stays theirs."""
        self.cut: Answer | None = None
        """An answer that was just interrupted: it is to be stopped."""
        self._parallel = parallel
        self._admission: Done | None = None
        self._slots: dict[int, Answer] = {}
        self._free: deque[int] = deque()

    # --- what may be done ----------------------------------------------------------------------------

    def open(self) -> bool:
        """Whether a command may be written now, for a request that has its place."""
        return self.ready and not self.over and self.front is None and not self.settling

    def free(self) -> bool:
        """Whether a command for another request may be written now."""
        return self.open() and not self.again and (not self.batch or bool(self._free))

    def begin(self, answer: Answer) -> bytes:
        """The request gets its turn; the command to write."""
        self.begun = True
        self.front = answer
        if not answer.again:
            slot = self._free.popleft() if self.batch else None  # the one that is free for longest
            answer.begin(slot, self.max_context, can_stop=self.can_stop or self.batch)
        return answer.prompt.gen() if answer.slot is None else answer.prompt.bgen(answer.slot)

    def forget(self, answer: Answer) -> bool:
        """Whether it waited for its second part; it does no more, and its place is free."""
        if answer not in self.again:
            return False
        self.again.remove(answer)
        self._free_slot(answer)
        return True

    def running(self) -> Iterator[Answer]:
        """Every request that the engine has."""
        if self.front is not None:
            yield self.front
        yield from self._slots.values()
        yield from self.again

    def stoppable(self, answer: Answer) -> bool:
        """Whether a STOP now would reach this request and nothing else."""
        return (
            self.can_stop
            and not self.over
            and answer is self.front
            and self._admission is None
            and self.held_err is None
        )

    def decodes_in_slot(self, answer: Answer) -> bool:
        return not self.over and answer.slot is not None and self._slots.get(answer.slot) is answer

    def drop_all(self) -> list[Answer]:
        """The life is over: the requests that ran."""
        found = list(self.running())
        self.over = True
        self.front = None
        self._slots = {}
        self.again.clear()
        return found

    # --- lines ---------------------------------------------------------------------------------------

    def feed(self, line: Line) -> bool:
        """Take one line. True: it says ready. Raises: Broken."""
        if self.held_err is not None:
            self._after_err(line)
        match line:
            case TokenLine():
                self._token(self._front_for("a token"), line.id)
            case SlotToken():
                self._token(self._slot_for(line.slot, "a token"), line.id)
            case Info() | Ready() | PromptProgress() | Reused():
                return self._facts(line)
            case Done():
                self._done(line)
            case Admitted():
                self._admitted(line)
            case SlotDone():
                self._slot_done(line)
            case Err():
                self._err(line)
            case Damaged():
                self._damaged(line)
            case Yielded() | Unknown():
                pass
        return False

    def _facts(self, line: Info | Ready | PromptProgress | Reused) -> bool:
        match line:
            case Info():
                self.info.update(line.pairs)
                if self.ready and "batch_slots" in line.pairs and not any(self.running()):
                    self._lay_out_slots()
            case Ready():
                return self._is_ready(line)
            case PromptProgress():
                self._read_on(line)
            case Reused():
                if self.front is not None:
                    self.front.reused(line.tokens)
        return False

    def _token(self, answer: Answer, token: int) -> None:
        was_cut = answer.cut
        answer.token(token)
        if answer.cut is not was_cut:
            self.cut = answer
        if answer.generated > answer.prompt.max_new + OVERRUN_TOKENS:
            raise _broke(f"it goes on after the {answer.prompt.max_new} tokens it was asked for")

    def _front_for(self, what: str) -> Answer:
        if self.front is None or self._admission is not None:
            raise _broke(f"{what} came although no request is running")
        return self.front

    def _slot_for(self, slot: int, what: str) -> Answer:
        answer = self._slots.get(slot)
        if answer is None:
            raise _broke(f"{what} came for slot {slot}, which is free")
        return answer

    def _read_on(self, line: PromptProgress) -> None:
        if self.front is not None and self.front.generated == 0:
            self.front.heard = True
            self.front.progress = (line.done, line.total)
            self.front.push(Progress(line.done, line.total))

    def _is_ready(self, line: Ready) -> bool:
        if self.ready:
            if any(self.running()):
                raise _broke("it said READY in the middle of a request")
            return False
        self.ready = True
        self.max_context = line.max_context
        self.can_stop = line.can_stop
        self._lay_out_slots()
        return True

    def _lay_out_slots(self) -> None:
        offered = self.info.get("batch_slots", "")
        slots = int(offered) if offered.isascii() and offered.isdigit() and len(offered) < 6 else 1
        slots = min(slots, self._parallel or slots)
        self.batch = slots >= 2
        self.slots = max(1, slots)
        self._free = deque(range(self.slots))

    def _damaged(self, line: Damaged) -> None:
        running = any(self.running())
        if not line.keyword and not running:
            return  # a library may print anything at the start; nothing is lost
        if not self.ready and line.keyword != "READY":
            return
        word = f" in a {line.keyword} line" if line.keyword else ""
        raise _broke(f"a damaged line{word} ({line.reason})")

    # --- the end of a request ------------------------------------------------------------------------

    def _done(self, line: Done) -> None:
        answer = self._front_for("DONE")
        self.last = _last(line)
        if line.finish == "error":
            raise Broken(FailKind.DIED, "the engine ended the request with an error")
        self._check(answer, line.generated, line.finish, "DONE")
        if self.batch:
            self._admission = line  # BADM says whether it goes on
            return
        answer.time(line, line.decode_ms)
        self.front = None
        self.settling = True
        self._over(answer, line.finish)

    def _over(self, answer: Answer, finish: str) -> None:
        """The engine is done with what it was asked; perhaps there is more to ask, in the same place."""
        if answer.goes_on(finish):
            answer.go_on()
            self.again.append(answer)
            return
        self._free_slot(answer)
        _end(answer, finish)

    def _free_slot(self, answer: Answer) -> None:
        if answer.slot is not None:
            self._free.append(answer.slot)

    def _admitted(self, line: Admitted) -> None:
        answer, done = self.front, self._admission
        if answer is None or done is None or answer.slot != line.slot:
            raise _broke(f"BADM came for slot {line.slot}, which is not being admitted")
        self.front = self._admission = None
        answer.time(done, 0.0 if line.goes_on else done.decode_ms)  # BDONE counts the first token, too
        if line.goes_on:
            self._slots[line.slot] = answer
        else:
            self._over(answer, done.finish)

    def _slot_done(self, line: SlotDone) -> None:
        answer = self._slot_for(line.slot, "BDONE")
        if line.finish == "error":
            raise Broken(FailKind.DIED, "the engine ended the request with an error")
        self._check(answer, line.generated, line.finish, "BDONE")
        self.last = {
            "generated": line.generated,
            "prompt_tokens": len(answer.prompt.ids),
            "decode_ms": line.ms,
            "finish": line.finish,
        }
        answer.time(None, line.ms)
        del self._slots[line.slot]
        self._over(answer, line.finish)

    def _check(self, answer: Answer, generated: int, finish: str, word: str) -> None:
        if generated != answer.generated:
            raise _broke(f"{word} counts {generated} tokens, but {answer.generated} came")
        if finish not in FINISHES:
            raise _broke(f"unknown finish word {finish[:40]!r}")

    # --- ERR -----------------------------------------------------------------------------------------

    def _err(self, line: Err) -> None:
        if line.fatal:
            raise Broken(FailKind.DIED, f"the engine said: {_cut(line.text)}")
        if self.front is not None:
            self.held_err = line
            return
        running = list(self._slots.values())
        if len(running) > 1:
            raise Broken(FailKind.DIED, f"the engine said: {_cut(line.text)}; it does not say for which request")
        if running and running[0].slot is not None:
            del self._slots[running[0].slot]
            self._free_slot(running[0])
            _refuse(running[0], line)

    def _after_err(self, line: Line) -> None:
        """A line right after the front's ERR."""
        held = self.held_err
        if held is None or isinstance(line, SlotToken | SlotDone | Info | Unknown):
            return
        if isinstance(line, Done):
            raise Broken(FailKind.DIED, f"the engine said: {_cut(held.text)}")
        self.settle_err()

    def settle_err(self) -> None:
        """No DONE came after the front's ERR: it was a refusal."""
        held, answer = self.held_err, self.front
        self.held_err = None
        if held is None or answer is None:
            return
        self.front = self._admission = None
        self.settling = True
        self._free_slot(answer)
        _refuse(answer, held)


def _end(answer: Answer, finish: str) -> None:
    answer.heard = True
    if answer.left or answer.cancel.is_set():
        answer.end(Cancelled(answer.cancel.by, answer.usage()))
    elif finish in ("stop", "length"):
        answer.end(Finished("stop" if finish == "stop" else "length", answer.timed_usage()))
    else:
        answer.fail(FailKind.CUT, "the engine cancelled the answer although nobody asked for it")


def _refuse(answer: Answer, err: Err) -> None:
    answer.heard = True
    text = f"the engine said: {_cut(err.text)}" if err.text else "the engine refused the request without a reason"
    if answer.made:
        answer.fail(FailKind.ERR, text)
    else:
        answer.fail(FailKind.CONTEXT if err.context else FailKind.REFUSED, text)


def _cut(text: str) -> str:
    return text if len(text) <= 300 else text[:299] + "…"


def _last(done: Done) -> dict[str, object]:
    found: dict[str, object] = {
        "generated": done.generated,
        "prompt_tokens": done.prompt_tokens,
        "prompt_ms": done.prompt_ms,
        "decode_ms": done.decode_ms,
        "finish": done.finish,
    }
    for name, word in zip(EXTRA_NAMES, done.extra, strict=False):
        try:
            found[name] = float(word) if "." in word else int(word)
        except ValueError:
            break  # a newer engine's own field
    return found
