"""Plays the list of steps of one answer: what each step writes, and how the answer ends.

It does not read commands and never sleeps: a step that waits yields what it waits for to `loop`.
"""

from __future__ import annotations

import os
import sys
import time

from .pipes import write_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from .commands import Request
    from .pipes import Inbox, Outbox
    from .script import Script, Step
    from .state import State

    Wait = float | str | None
    """What a run waits for: a monotonic time in seconds, the name of a cue, or only its next turn."""
    Play = Generator[Wait, None, None]

END_TOKEN = 257
FOREVER = float("inf")
_SEGV_ON_WINDOWS = -1073741819  # 0xC0000005, an access violation
_WINDOWS_EXIT = {"SIGKILL": 1, "SIGTERM": 1, "SIGABRT": 3, "SIGSEGV": _SEGV_ON_WINDOWS}


class _Over(Exception):
    """The answer ended by the token limit: the steps that are left are not played."""


class Stage:
    """What all answers of one process share."""

    __slots__ = ("ignored", "inbox", "out", "script", "state", "stopped_reading")

    def __init__(self, script: Script, state: State, inbox: Inbox, out: Outbox) -> None:
        self.script = script
        self.state = state
        self.inbox = inbox
        self.out = out
        self.ignored: set[str] = set()
        self.stopped_reading = False


class Run:
    """One answer that is being played. `slot` is None on the solo path; `admitting` is true until the first token of
    a batch slot is out. `ended` means that its DONE, BDONE or ERR is written (or that it never has one)."""

    def __init__(self, stage: Stage, steps: list[Step]) -> None:
        self.stage = stage
        self.steps = steps
        self.number = 0
        self.ids: list[int] = []
        self.limit: float = FOREVER
        self.slot: int | None = None
        self.admitting = False
        self.ended = True
        self.generated = 0
        self.read = 0
        self.reused = 0
        self.wait: Wait = None
        self.over = False
        self._began_s = self._first_s = time.monotonic()
        self._play = self._all_steps()

    @classmethod
    def answer(cls, stage: Stage, steps: list[Step], number: int, request: Request) -> Run:
        """The run of one request. Its `max_new` and the context's room limit it, unless the script disobeys."""
        run = cls(stage, steps)
        run.number = number
        run.ids = request.ids
        if stage.script.obey_max_new:
            run.limit = min(request.max_new, stage.script.context - len(request.ids))
        run.slot = request.slot
        run.admitting = request.slot is not None
        run.ended = False
        return run

    def ready(self) -> bool:
        """Whether it can go on now. Does not block."""
        if self.wait is None:
            return True
        if isinstance(self.wait, str):
            return self.stage.state.cued(self.wait)
        return time.monotonic() >= self.wait

    def advance(self) -> None:
        """Play up to the next wait or token border. Blocks only while a pipe is full."""
        try:
            self.wait = next(self._play)
        except StopIteration:
            self.over = True

    def cancel(self) -> None:
        """End it as a STOP does."""
        self._play.close()
        self.over = True
        self._end("cancel")

    def drop(self) -> None:
        """Forget it without a word (a prompt read that gave way)."""
        self._play.close()
        self.over = self.ended = True

    # --- steps ---------------------------------------------------------------------------------------

    def _all_steps(self) -> Play:
        try:
            for step in self.steps:
                yield from _HANDLERS[step.kind](self, step)
        except _Over:
            return

    def text(self, step: Step) -> Play:
        return self._tokens(list(step.text().encode("utf-8")), step)

    def tokens(self, step: Step) -> Play:
        return self._tokens(step.ids(), step)

    def end_token(self, step: Step) -> Play:
        return self._tokens([END_TOKEN], step)

    def which(self, step: Step) -> Play:
        return self._tokens(list(str(self.number).encode("ascii")), step)

    def echo(self, step: Step) -> Play:
        prompt = prompt_bytes(self.ids)
        find = step.text("find")
        if find:
            import re  # 15 ms to import, so only where it is used

            found = re.search(find.encode("utf-8"), prompt)
            prompt = found.group() if found else b""
        return self._tokens(list(prompt), step)

    def _tokens(self, ids: list[int], step: Step) -> Play:
        pace_s = step.number("pace_s")
        ids = ids * step.count("repeat", 1)
        room = FOREVER if self.ended else self.limit - self.generated
        cut = ids if len(ids) < room else ids[: int(room)]
        if step.flag("burst"):
            self._write_tokens(cut)
            yield None
        else:
            for token in cut:
                if pace_s:
                    yield time.monotonic() + pace_s
                self._write_tokens([token])
                yield None
        if not self.ended and self.generated >= self.limit:
            self._end("length")
            raise _Over

    def _write_tokens(self, ids: list[int]) -> None:
        if not ids:
            return
        if not self.generated:
            self._first_s = time.monotonic()
        lines: list[str] = []
        for token in ids:
            self.generated += 1
            if self.slot is None:
                lines.append(f"T {token}")
            elif self.admitting:
                lines.append(f"T {token}")
                if self.limit > 1:
                    lines += [self._done_line("length"), f"BADM {self.slot} 1"]
                    self.admitting = False
            else:
                lines.append(f"BT {self.slot} {token}")
        self.stage.out.lines(*lines)

    def progress(self, step: Step) -> Play:
        self.read, total = step.ids() or (len(self.ids), len(self.ids))
        ms = step.number("ms", self._age_ms())
        rate = step.number("tok_s", 1000.0 * self.read / max(1.0, ms))
        self.stage.out.lines(f"PP {self.read} {total} {ms:.0f} {rate:.1f}")
        yield None

    def reuse(self, step: Step) -> Play:
        self.reused = step.count()
        self.stage.out.lines(f"{step.text('word', 'REUSED')} {self.reused}")
        yield None

    def err(self, step: Step) -> Play:
        self.ended = True
        self.stage.out.lines(f"ERR {step.text()}")
        yield None

    def done(self, step: Step) -> Play:
        self._end(step.text(), step)
        yield None

    def no_end(self, step: Step) -> Play:
        self.ended = True
        yield None

    # --- the end -------------------------------------------------------------------------------------

    def _end(self, finish: str, step: Step | None = None) -> None:
        generated = self.generated if step is None else step.count("generated", self.generated)
        if self.slot is None:
            self.stage.out.lines(self._done_line(finish, step))
        elif self.admitting:
            self.stage.out.lines(self._done_line(finish, step), f"BADM {self.slot} 0")
        else:
            decode_ms = 1000.0 * (time.monotonic() - self._first_s)
            self.stage.out.lines(f"BDONE {self.slot} {generated} {finish} {decode_ms:.1f}")
        self.ended = True

    def _done_line(self, finish: str, step: Step | None = None) -> str:
        generated, prompt = self.generated, len(self.ids)
        fields = ["0", "0", str(self.reused), "0", "0", "0", "0", "0.0", str(max(0, prompt - self.reused))]
        if step is not None:
            generated = step.count("generated", generated)
            prompt = step.count("prompt_tokens", prompt)
            fields = step.words("fields", fields)
        prompt_ms = 1000.0 * (self._first_s - self._began_s) if self.generated else self._age_ms()
        decode_ms = 1000.0 * (time.monotonic() - self._first_s) if self.generated else 0.0
        rest = "".join(f" {field}" for field in fields)
        return f"DONE {generated} {prompt} {prompt_ms:.1f} {decode_ms:.1f} {finish}{rest}"

    def _age_ms(self) -> float:
        return 1000.0 * (time.monotonic() - self._began_s)


def prompt_bytes(ids: list[int]) -> bytes:
    """The prompt's text as bytes, without its special tokens."""
    return bytes(token for token in ids if token < 256)


# --- steps that need no answer -------------------------------------------------------------------------


def _delay(run: Run, step: Step) -> Play:
    yield time.monotonic() + step.number()


def _cue(run: Run, step: Step) -> Play:
    yield step.text()


def _reached(run: Run, step: Step) -> Play:
    run.stage.state.reached(step.text())
    yield None


def _stall(run: Run, step: Step) -> Play:
    yield FOREVER


def _exit(run: Run, step: Step) -> Play:
    code = step.count()
    os._exit(code - 2**32 if code >= 2**31 else code)
    yield None


def _signal(run: Run, step: Step) -> Play:
    name = step.text()
    if sys.platform == "win32":
        if name == "SIGSTOP":  # nothing can continue it there either
            yield FOREVER
        os._exit(_WINDOWS_EXIT[name])
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a scripted crash leaves no core file
    os.kill(os.getpid(), signal.Signals[name])
    yield None  # a SIGSTOP was continued, or the signal is ignored


def _close_stdout(run: Run, step: Step) -> Play:
    run.stage.out.close()
    yield None


def _stop_reading(run: Run, step: Step) -> Play:
    run.stage.inbox.reading = False
    run.stage.stopped_reading = True
    yield None


def _ignore(run: Run, step: Step) -> Play:
    names = set(step.words())
    run.stage.ignored |= names
    if "SIGTERM" in names:
        import signal  # 10 ms to import, so only where it is used

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield None


def _line(run: Run, step: Step) -> Play:
    run.stage.out.lines(step.text())
    yield None


def _half_line(run: Run, step: Step) -> Play:
    run.stage.out.raw(step.text().encode("utf-8"))
    yield None


def _bytes(run: Run, step: Step) -> Play:
    run.stage.out.raw(step.data())
    yield None


def _stderr(run: Run, step: Step) -> Play:
    for _ in range(step.count("repeat", 1)):
        write_log(f"{step.text()}\n")
    yield None


def _grandchild(run: Run, step: Step) -> Play:
    import subprocess

    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"import time; time.sleep({step.number()})"],
        stdin=subprocess.DEVNULL,  # it holds stdout and stderr only
        start_new_session=step.flag("new_session"),
    )
    run.stage.state.append("grandchildren.jsonl", {"life": run.stage.state.life, "pid": child.pid})
    yield None


_HANDLERS: dict[str, Callable[[Run, Step], Play]] = {
    "text": Run.text,
    "tokens": Run.tokens,
    "end_token": Run.end_token,
    "echo": Run.echo,
    "which": Run.which,
    "progress": Run.progress,
    "reused": Run.reuse,
    "err": Run.err,
    "done": Run.done,
    "no_end": Run.no_end,
    "delay_s": _delay,
    "cue": _cue,
    "reached": _reached,
    "stall": _stall,
    "exit": _exit,
    "signal": _signal,
    "close_stdout": _close_stdout,
    "stop_reading_stdin": _stop_reading,
    "ignore": _ignore,
    "line": _line,
    "half_line": _half_line,
    "bytes": _bytes,
    "stderr": _stderr,
    "grandchild": _grandchild,
}
"""One handler per step of `script`'s tables (a test compares them)."""
