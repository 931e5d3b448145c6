"""Small builders for the steps of a script that is written in Python, so that a table of them reads well.

They check nothing: the program does, and says where a script is wrong.
"""

from __future__ import annotations

from typing import TypeAlias

StepValue: TypeAlias = "str | int | float | bool | list[int] | list[str] | list[float]"
Step: TypeAlias = "dict[str, StepValue]"


def _step(kind: str, value: StepValue, **options: StepValue | None) -> Step:
    return {kind: value, **{key: item for key, item in options.items() if item is not None}}


def text(value: str, *, pace_s: float | None = None, burst: bool | None = None, repeat: int | None = None) -> Step:
    """One token per UTF-8 byte; `burst`: all in one write; `pace_s`: a pause before each."""
    return _step("text", value, pace_s=pace_s, burst=burst, repeat=repeat)


def tokens(
    ids: list[int], *, pace_s: float | None = None, burst: bool | None = None, repeat: int | None = None
) -> Step:
    """Tokens by their ids."""
    return _step("tokens", ids, pace_s=pace_s, burst=burst, repeat=repeat)


def end_token() -> Step:
    """The token that ends a turn, `<|im_end|>`."""
    return _step("end_token", True)


def echo(find: str | None = None) -> Step:
    """The prompt's text, or the first match of a regular expression in it."""
    return _step("echo", True, find=find)


def which() -> Step:
    """The number of this request in this life, from 1."""
    return _step("which", True)


def progress(done: int | None = None, total: int | None = None, *, ms: float | None = None) -> Step:
    """A PP line; without numbers: the whole prompt is read."""
    return _step("progress", True if done is None else [done, done if total is None else total], ms=ms)


def reused(count: int, word: str | None = None) -> Step:
    """A REUSED line (or RESUME), and the count in DONE."""
    return _step("reused", count, word=word)


def err(message: str) -> Step:
    """`ERR message`. No DONE follows unless a `done` step does."""
    return _step("err", message)


def done(
    finish: str = "stop",
    *,
    generated: int | None = None,
    prompt_tokens: int | None = None,
    fields: list[str] | None = None,
) -> Step:
    """DONE (in a slot BDONE) with true counts, unless given; `fields` replaces all that follows the finish word."""
    return _step("done", finish, generated=generated, prompt_tokens=prompt_tokens, fields=fields)


def no_end() -> Step:
    """The answer never gets its DONE."""
    return _step("no_end", True)


def delay(seconds: float) -> Step:
    """A pause."""
    return _step("delay_s", seconds)


def cue(name: str) -> Step:
    """Wait for `FakeEngine.cue(name)`."""
    return _step("cue", name)


def reached(name: str) -> Step:
    """Let `FakeEngine.wait_reached(name)` go on."""
    return _step("reached", name)


def stall() -> Step:
    """Silence for ever; a STOP still ends the answer."""
    return _step("stall", True)


def exit_(code: int) -> Step:
    """End the process with this code."""
    return _step("exit", code)


def signal(name: str) -> Step:
    """Send this signal to itself ("SIGKILL"); on Windows: the exit code that stands for it."""
    return _step("signal", name)


def close_stdout() -> Step:
    """Close stdout; the process lives on."""
    return _step("close_stdout", True)


def stop_reading_stdin() -> Step:
    """Read no more commands: a writer blocks once the pipe is full."""
    return _step("stop_reading_stdin", True)


def ignore(*names: str) -> Step:
    """From now on ignore some of STOP, BYIELD, QUIT, EOF, SIGTERM."""
    return _step("ignore", list(names))


def line(value: str) -> Step:
    """Any line."""
    return _step("line", value)


def half_line(value: str) -> Step:
    """The beginning of a line."""
    return _step("half_line", value)


def raw(data: bytes) -> Step:
    """Any bytes."""
    return _step("bytes", data.hex())


def stderr(message: str, repeat: int | None = None) -> Step:
    """A line in the engine's log, or many."""
    return _step("stderr", message, repeat=repeat)


def grandchild(seconds: float, *, new_session: bool | None = None) -> Step:
    """Start a process that holds stdout and stderr for so long (at most 60 s) and then ends by itself."""
    return _step("grandchild", seconds, new_session=new_session)
