"""The lines of the Strata pipe protocol: bytes to values and back.

It owns no pipe, clock or thread, and keeps no state of a conversation: who a line belongs to, and whether it may come
now, is `engine.pipe`'s business.

A line is *unknown* when its first word is none of the protocol's (newer engines say more; such a line is skipped), and
*damaged* when the first word is known and the rest is not what it has to be, when it is longer than a line may be, or
when it holds bytes that are no text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

MAX_LINE_BYTES = 65_536
MAX_DIGITS = 18
MAX_TOKEN_ID = 2**32 - 1
MAX_NEW_TOKENS = 2**31 - 1

STOP = b"STOP\n"
QUIT = b"QUIT\n"

FINISHES = frozenset({"stop", "length", "cancel", "error"})


# --- what an engine says -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Info:
    """Facts, in the engine's own words. A word without `=` belongs to the value before it."""

    pairs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ready:
    """`max_context` is in tokens. `can_stop`: STOP is honoured in the middle of a request."""

    max_context: int
    can_stop: bool


@dataclass(frozen=True, slots=True)
class Reused:
    """`tokens` of the prompt were in the cache already."""

    tokens: int


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """`done` of `total` prompt tokens are read, in `ms`. A rate that is no number is 0."""

    done: int
    total: int
    ms: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One generated token of the request that has the engine to itself."""

    id: int


@dataclass(frozen=True, slots=True)
class Done:
    """The request is over. `finish` is the engine's word, known or not. `extra` are the words after it."""

    generated: int
    prompt_tokens: int
    prompt_ms: float
    decode_ms: float
    finish: str
    extra: tuple[str, ...] = ()

    @property
    def drafts_accepted(self) -> int:
        return self._count(0)

    @property
    def drafts_offered(self) -> int:
        return self._count(1)

    @property
    def reused(self) -> int:
        """The tokens of the prompt that were in the cache."""
        return self._count(2)

    def _count(self, at: int) -> int:
        """One of the words after the finish; 0 where the engine does not say it."""
        word = self.extra[at] if at < len(self.extra) else ""
        return int(word) if word.isascii() and word.isdigit() else 0


@dataclass(frozen=True, slots=True)
class Err:
    """The request failed. `fatal`: the engine must not be used again. `context`: the prompt does not fit."""

    text: str
    fatal: bool = False
    context: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """BADM: the admission into `slot` is over; the request goes on there, or ended."""

    slot: int
    goes_on: bool


@dataclass(frozen=True, slots=True)
class SlotToken:
    """BT: a token of that slot."""

    slot: int
    id: int


@dataclass(frozen=True, slots=True)
class SlotDone:
    """BDONE: the slot is free."""

    slot: int
    generated: int
    finish: str
    ms: float


@dataclass(frozen=True, slots=True)
class Yielded:
    """A long prompt read gave way after `tokens`."""

    slot: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """To be skipped."""

    line: bytes


@dataclass(frozen=True, slots=True)
class Damaged:
    """`keyword` is the protocol's word it begins with, "" for bytes that are no text."""

    line: bytes
    reason: str
    keyword: str = ""


Line: TypeAlias = (
    Info
    | Ready
    | Reused
    | PromptProgress
    | TokenLine
    | Done
    | Err
    | Admitted
    | SlotToken
    | SlotDone
    | Yielded
    | Unknown
    | Damaged
)


# --- lines out of bytes ------------------------------------------------------------------------------


class LineSplitter:
    """Chunks of bytes → lines without their ends (`\\n` or `\\r\\n`).

    A line longer than `max_bytes` is given as soon as that is known, cut to one byte more than the limit, and the rest
    of it is dropped.
    """

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest = b""
        self._skipping = False

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._skipping:
            _, newline, chunk = chunk.partition(b"\n")
            if not newline:
                return []
            self._skipping = False
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        found = [self._cut(line[:-1] if line.endswith(b"\r") else line) for line in lines]
        if len(self._rest) > self._max_bytes + 1:  # one more than the limit may be the \r of a line's end
            found.append(self._cut(self._rest))
            self._rest = b""
            self._skipping = True
        return found

    def _cut(self, line: bytes) -> bytes:
        return line if len(line) <= self._max_bytes else line[: self._max_bytes + 1]

    def rest(self) -> bytes:
        """The unfinished line so far."""
        return self._rest


# --- one line ----------------------------------------------------------------------------------------


class _Wrong(Exception):
    """A field is not what it has to be."""


def parse_line(line: bytes, max_bytes: int = MAX_LINE_BYTES) -> Line:
    """The meaning of one line without its end. Never raises."""
    if line.startswith(b"T ") and len(line) < 12 and line[2:].isdigit():  # nearly every line is one of these
        return TokenLine(int(line[2:]))
    if len(line) > max_bytes:
        return Damaged(line[:80], f"longer than {max_bytes} bytes")
    words = line.split()
    keyword = words[0].decode("latin-1") if words else ""
    if keyword == "ERR":
        return _err(line)
    parse = _PARSERS.get(keyword)
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return Damaged(line, "bytes that are no UTF-8 text", keyword if parse else "")
    if _CONTROL.search(text):
        return Damaged(line, "control characters", keyword if parse else "")
    if parse is None:
        return Unknown(line)
    try:
        return parse(text.split()[1:])
    except _Wrong as wrong:
        return Damaged(line, str(wrong), keyword)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_NUMBER = re.compile(r"-?(\d{1,18}(\.\d{0,18})?|\.\d{1,18})([eE][+-]?\d{1,3})?")
_NO_NUMBER = frozenset({"inf", "-inf", "nan", "-nan", "nan(ind)", "-nan(ind)"})
_EXTRA = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=\S*")


def _count(words: Sequence[str], at: int, name: str) -> int:
    if at >= len(words):
        raise _Wrong(f"{name} is missing")
    word = words[at]
    if not (word.isascii() and word.isdigit() and len(word) <= MAX_DIGITS):
        raise _Wrong(f"{name} is no whole number")
    return int(word)


def _real(words: Sequence[str], at: int, name: str) -> float:
    if at >= len(words):
        raise _Wrong(f"{name} is missing")
    word = words[at]
    if word in _NO_NUMBER:
        return 0.0
    if _NUMBER.fullmatch(word) is None:
        raise _Wrong(f"{name} is no number")
    value = float(word)
    return value if math.isfinite(value) else 0.0


def _finish(words: Sequence[str], at: int) -> str:
    if at >= len(words):
        raise _Wrong("the finish word is missing")
    if not words[at].isalpha():
        raise _Wrong("the finish is no word")
    return words[at]


def _extra(words: Sequence[str], at: int) -> tuple[str, ...]:
    """More fields than we know: numbers or key=value. Anything else is another line's text."""
    for word in words[at:]:
        if _NUMBER.fullmatch(word) is None and word not in _NO_NUMBER and _EXTRA.fullmatch(word) is None:
            raise _Wrong("something that is no field follows")
    return tuple(words[at:])


def _end(words: Sequence[str], at: int) -> None:
    if len(words) > at:
        raise _Wrong("something follows")


def _info(words: Sequence[str]) -> Info:
    pairs: dict[str, str] = {}
    last = ""
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            pairs[key] = value
            last = key
        elif last:
            pairs[last] += " " + word
    return Info(pairs)


def _ready(words: Sequence[str]) -> Ready:
    return Ready(_count(words, 0, "the context"), "stop" in words[1:])


def _reused(words: Sequence[str]) -> Reused:
    _extra(words, 1)
    return Reused(_count(words, 0, "the token count"))


def _progress(words: Sequence[str]) -> PromptProgress:
    progress = PromptProgress(
        _count(words, 0, "the tokens read"),
        _count(words, 1, "the tokens in all"),
        _real(words, 2, "the time"),
        _real(words, 3, "the rate"),
    )
    _extra(words, 4)
    return progress


def _token(words: Sequence[str]) -> TokenLine:
    _end(words, 1)
    return TokenLine(_token_id(words, 0))


def _token_id(words: Sequence[str], at: int) -> int:
    value = _count(words, at, "the token id")
    if value > MAX_TOKEN_ID:
        raise _Wrong("the token id is too large")
    return value


def _done(words: Sequence[str]) -> Done:
    return Done(
        _count(words, 0, "the count of generated tokens"),
        _count(words, 1, "the count of prompt tokens"),
        _real(words, 2, "the prompt's time"),
        _real(words, 3, "the decoding time"),
        _finish(words, 4),
        _extra(words, 5),
    )


def _admitted(words: Sequence[str]) -> Admitted:
    slot = _count(words, 0, "the slot")
    if len(words) < 2 or words[1] not in ("0", "1"):
        raise _Wrong("it says neither 0 nor 1")
    _end(words, 2)
    return Admitted(slot, words[1] == "1")


def _slot_token(words: Sequence[str]) -> SlotToken:
    _end(words, 2)
    return SlotToken(_count(words, 0, "the slot"), _token_id(words, 1))


def _slot_done(words: Sequence[str]) -> SlotDone:
    ms = _real(words, 3, "the time") if len(words) > 3 else 0.0
    _extra(words, 4)
    return SlotDone(_count(words, 0, "the slot"), _count(words, 1, "the count of tokens"), _finish(words, 2), ms)


def _yielded(words: Sequence[str]) -> Yielded:
    _extra(words, 2)
    return Yielded(_count(words, 0, "the slot"), _count(words, 1, "the token count"))


_PARSERS: dict[str, Callable[[Sequence[str]], Line]] = {
    "INFO": _info,
    "READY": _ready,
    "RESUME": _reused,
    "REUSED": _reused,
    "PP": _progress,
    "T": _token,
    "DONE": _done,
    "BADM": _admitted,
    "BT": _slot_token,
    "BDONE": _slot_done,
    "YIELDED": _yielded,
}
KEYWORDS = frozenset({*_PARSERS, "ERR"})


# --- ERR ---------------------------------------------------------------------------------------------

FATAL_ERRORS: tuple[tuple[str, str], ...] = (
    (r"^verify\b.*\btimed? ?out", "the GPU did not finish a step; its buffers may still be written to"),
    (r"\bGPU waits were released\b", "the same, in the watchdog's words"),
    (r"\bCUDA(_ERROR_\w+| error| failure)|\bcuda[A-Z]\w+ (failed|returned)", "a CUDA context is lost after an error"),
    (r"\b(cuBLAS|cuDNN|NCCL)\b.*\b(error|fail)", "their errors leave the CUDA context unusable"),
    (r"\billegal memory access\b|\bdevice-side assert\b", "they leave the CUDA context unusable"),
    (r"\bdevice (was )?(lost|removed|hung)\b|\bfallen off the bus\b", "there is no GPU any more"),
    (r"\bout of memory\b|\bbad_alloc\b", "what was allocated half-way is not freed"),
)
"""Texts of an ERR after which the engine must not be used again, and why."""

CONTEXT_ERRORS: tuple[str, ...] = (
    r"\b(exceed|too (long|large|big|many)|longer|larger|more than|does not fit|doesn't fit|no room)\w*\b.*"
    r"\b(context|n_ctx|ctx|max_context)\b",
    r"\b(context|n_ctx|ctx|max_context)\b.*\b(exceed|too (long|large|big|small|many)|overflow|is full)",
    r"\bprompt\b.*\btoo (long|large|big|many)\b",
)
"""Texts of an ERR that refuses a prompt for its length."""

_FATAL = re.compile("|".join(f"(?:{pattern})" for pattern, _ in FATAL_ERRORS), re.IGNORECASE)
_CONTEXT = re.compile("|".join(f"(?:{pattern})" for pattern in CONTEXT_ERRORS), re.IGNORECASE)


def _err(line: bytes) -> Err:
    text = line.strip()[3:].strip().decode("utf-8", "replace")
    fatal = _FATAL.search(text) is not None
    return Err(text, fatal, not fatal and _CONTEXT.search(text) is not None)


# --- what an engine is told --------------------------------------------------------------------------

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_WORD = re.compile(r"[A-Za-z0-9_.:+-]{1,200}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A checked request, ready for GEN or BGEN.

    Raises (when made): ValueError: it names the field that is wrong.
    """

    ids: Sequence[int]
    max_new: int
    sampling: Mapping[str, object] = field(default_factory=dict[str, object])

    def __post_init__(self) -> None:
        if not 1 <= self.max_new <= MAX_NEW_TOKENS:
            raise ValueError(f"max_new: {self.max_new} is not between 1 and {MAX_NEW_TOKENS}")
        if not self.ids:
            raise ValueError("ids: the prompt is empty; send at least one token")
        if not all(type(token) is int and 0 <= token <= MAX_TOKEN_ID for token in self.ids):
            raise ValueError("ids: something that is no token id")
        for key, value in self.sampling.items():
            if _KEY.fullmatch(key) is None:
                raise ValueError(f"sampling: {key[:80]!r} is no key of the protocol")
            _value(key, value)

    def _body(self) -> str:
        pairs = "".join(f"{key}={_value(key, value)} " for key, value in self.sampling.items())
        return f"{self.max_new} {pairs}{','.join(map(str, self.ids))}\n"

    def gen(self) -> bytes:
        """The command that runs it alone."""
        return f"GEN {self._body()}".encode("ascii")

    def bgen(self, slot: int) -> bytes:
        """The command that runs it in a batch slot."""
        return f"BGEN {slot} {self._body()}".encode("ascii")


def bstop(slot: int) -> bytes:
    """The command that ends one batch slot."""
    return f"BSTOP {slot}\n".encode("ascii")


def _value(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int) and abs(value) < 2**64:
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, str) and _WORD.fullmatch(value) is not None:
        return value
    raise ValueError(f"sampling: {key} has a value that cannot be sent: {str(value)[:80]!r}")
