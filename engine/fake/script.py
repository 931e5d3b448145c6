"""Scripts of the fake engine: the checked values, and the tables that say what a script may hold.

It plays nothing; `player` does. No dataclasses, typing or enum here: importing them doubles the time that the program
needs to start.
"""

from __future__ import annotations

import os

from .fastjson import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .fastjson import Json

    Value = str | int | float | bytes | list[int] | list[str]
    Check = Callable[[Json, str], Value]

GRANDCHILD_MAX_S = 60
SIGNALS = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM", "SIGSTOP")
IGNORABLE = ("STOP", "BYIELD", "QUIT", "EOF", "SIGTERM")
THEN = ("repeat", "cycle", "ok")
REUSED_WORDS = ("RESUME", "REUSED")


class ScriptError(Exception):
    """A script is wrong. The message names the place."""


def _wrong(value: Json, place: str, wanted: str) -> ScriptError:
    shown = repr(value)
    return ScriptError(f"{place}: {shown if len(shown) <= 80 else shown[:77] + '...'} is not {wanted}")


def _number(value: Json, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise _wrong(value, place, "a number >= 0")
    return float(value)


def _count(value: Json, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _wrong(value, place, "a whole number >= 0")
    return value


def _positive(value: Json, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(value, place, "a whole number >= 1")
    return value


def _slots(value: Json, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value == 1:
        raise _wrong(value, place, "0 or a whole number >= 2")
    return value


def _exit_code(value: Json, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**31) <= value < 2**32:
        raise _wrong(value, place, "an exit code")
    return value


def _seconds_of_grandchild(value: Json, place: str) -> float:
    seconds = _number(value, place)
    if seconds > GRANDCHILD_MAX_S:
        raise _wrong(value, place, f"a number of seconds <= {GRANDCHILD_MAX_S}")
    return seconds


def _text(value: Json, place: str) -> str:
    if not isinstance(value, str):
        raise _wrong(value, place, "a text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _wrong(value, place, "a text that UTF-8 can hold (it has half a surrogate pair)") from None
    return value


def _line(value: Json, place: str) -> str:
    text = _text(value, place)
    if "\n" in text or "\r" in text:
        raise _wrong(value, place, "a text without line ends")
    return text


def _name(value: Json, place: str) -> str:
    if not isinstance(value, str) or not value or not value.replace("-", "").replace("_", "").isalnum():
        raise _wrong(value, place, "a name of letters, digits, - and _")
    return value


def _true(value: Json, place: str) -> bool:
    if value is not True:
        raise _wrong(value, place, "true")
    return True


def _bool(value: Json, place: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, place, "true or false")
    return value


def _hex(value: Json, place: str) -> bytes:
    if not isinstance(value, str):
        raise _wrong(value, place, "bytes in hexadecimal")
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise _wrong(value, place, "bytes in hexadecimal") from None


def _list(value: Json, place: str) -> list[Json]:
    if not isinstance(value, list):
        raise _wrong(value, place, "a list")
    return value


def _object(value: Json, place: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise _wrong(value, place, "an object")
    return value


def _ids(value: Json, place: str) -> list[int]:
    return [_count(item, f"{place}[{at}]") for at, item in enumerate(_list(value, place))]


def _progress(value: Json, place: str) -> list[int]:
    if value is True:
        return []  # the whole prompt, whatever its length
    numbers = _ids(value, place)
    if len(numbers) != 2:
        raise _wrong(value, place, "true or a pair [done, total]")
    return numbers


def _lines(value: Json, place: str) -> list[str]:
    return [_line(item, f"{place}[{at}]") for at, item in enumerate(_list(value, place))]


def _one_of(words: tuple[str, ...]) -> Check:
    def check(value: Json, place: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise _wrong(value, place, "one of " + ", ".join(words))
        return value

    return check


def _some_of(words: tuple[str, ...]) -> Check:
    def check(value: Json, place: str) -> list[str]:
        return [str(_one_of(words)(item, f"{place}[{at}]")) for at, item in enumerate(_list(value, place))]

    return check


def _info(value: Json, place: str) -> list[str]:
    pairs: list[str] = []
    for key, item in _object(value, place).items():
        if isinstance(item, dict | list) or item is None or " " in str(item) or not key or " " in key or "=" in key:
            raise _wrong(item, f"{place}.{key}", "a value without spaces")
        pairs.append(f"{_line(key, place)}={_line(str(item), f'{place}.{key}')}")
    return pairs


_EMIT: dict[str, Check] = {"pace_s": _number, "burst": _bool, "repeat": _positive}

ANSWER_STEPS: dict[str, tuple[Check, dict[str, Check]]] = {
    "text": (_text, _EMIT),
    "tokens": (_ids, _EMIT),
    "end_token": (_true, {}),
    "echo": (_true, {**_EMIT, "find": _text}),
    "which": (_true, _EMIT),
    "progress": (_progress, {"ms": _number, "tok_s": _number}),
    "reused": (_count, {"word": _one_of(REUSED_WORDS)}),
    "err": (_line, {}),
    "done": (_line, {"generated": _count, "prompt_tokens": _count, "fields": _lines}),
    "no_end": (_true, {}),
}
"""The steps of an answer: name -> the check of its value, and the checks of its options."""

PLAIN_STEPS: dict[str, tuple[Check, dict[str, Check]]] = {
    "delay_s": (_number, {}),
    "cue": (_name, {}),
    "reached": (_name, {}),
    "stall": (_true, {}),
    "exit": (_exit_code, {}),
    "signal": (_one_of(SIGNALS), {}),
    "close_stdout": (_true, {}),
    "stop_reading_stdin": (_true, {}),
    "ignore": (_some_of(IGNORABLE), {}),
    "line": (_line, {}),
    "half_line": (_line, {}),
    "bytes": (_hex, {}),
    "stderr": (_text, {"repeat": _positive}),
    "grandchild": (_seconds_of_grandchild, {"new_session": _bool}),
}
"""The steps that may also stand in `start` and `after_ready`."""

_NEEDS_STATE = ("cue", "reached")
_ENDS = ("done", "err", "no_end", "exit", "stall")


class Step:
    """One thing to do: `kind` is a name of the step tables; the value and the options are checked, so that the
    accessors only say what type the caller knows them to have."""

    __slots__ = ("_options", "_value", "kind")

    def __init__(self, kind: str, value: Value, options: dict[str, Value]) -> None:
        self.kind = kind
        self._value = value
        self._options = options

    def _get(self, option: str | None) -> Value | None:
        return self._value if option is None else self._options.get(option)

    def text(self, option: str | None = None, default: str = "") -> str:
        """The value, or an option of it, as a text."""
        value = self._get(option)
        return value if isinstance(value, str) else default

    def number(self, option: str | None = None, default: float = 0.0) -> float:
        """The value, or an option of it, as a number."""
        value = self._get(option)
        return value if isinstance(value, int | float) else default

    def count(self, option: str | None = None, default: int = 0) -> int:
        """The value, or an option of it, as a whole number."""
        value = self._get(option)
        return value if isinstance(value, int) else default

    def flag(self, option: str) -> bool:
        """Whether an option is true."""
        return self._options.get(option) is True

    def ids(self) -> list[int]:
        """The value as a list of whole numbers."""
        return [int(item) for item in self._value] if isinstance(self._value, list) else []

    def words(self, option: str | None = None, default: list[str] | None = None) -> list[str]:
        """The value, or an option of it, as a list of texts."""
        value = self._get(option)
        return [str(item) for item in value] if isinstance(value, list) else default or []

    def data(self) -> bytes:
        """The value as bytes."""
        return self._value if isinstance(self._value, bytes) else b""


class Rule:
    """One list of steps; with `match` it answers every prompt that holds this text."""

    __slots__ = ("match", "steps")

    def __init__(self, steps: list[Step], match: bytes | None) -> None:
        self.steps = steps
        self.match = match


def _step(value: Json, place: str, known: dict[str, tuple[Check, dict[str, Check]]]) -> Step:
    pairs = _object(value, place)
    kinds = [key for key in pairs if key in known]
    if len(kinds) != 1:
        what = f"has the steps {', '.join(kinds)}" if kinds else f"has no known step in {', '.join(pairs) or '{}'}"
        raise ScriptError(f"{place}: {what}; write exactly one of {', '.join(sorted(known))}")
    kind = kinds[0]
    check, options = known[kind]
    unknown = [key for key in pairs if key != kind and key not in options]
    if unknown:
        allowed = ", ".join(sorted(options)) or "none"
        raise ScriptError(f"{place}: {unknown[0]!r} is no option of {kind}; its options: {allowed}")
    checked = {key: options[key](item, f"{place}.{key}") for key, item in pairs.items() if key != kind}
    return Step(kind, check(pairs[kind], f"{place}.{kind}"), checked)


def _steps(value: Json, place: str, known: dict[str, tuple[Check, dict[str, Check]]]) -> list[Step]:
    return [_step(item, f"{place}[{at}]", known) for at, item in enumerate(_list(value, place))]


def _plain_steps(value: Json, place: str) -> list[Step]:
    return _steps(value, place, PLAIN_STEPS)


def answer(value: Json, place: str) -> list[Step]:
    """The checked steps of one answer. A list without an ending gets `done: stop`.

    Raises: ScriptError: it is wrong.
    """
    steps = _steps(value, place, {**ANSWER_STEPS, **PLAIN_STEPS})
    ends = any(step.kind in _ENDS or (step.kind == "signal" and step.text() != "SIGSTOP") for step in steps)
    return steps if ends else [*steps, Step("done", "stop", {})]


def _rules(value: Json, place: str) -> list[Rule]:
    rules: list[Rule] = []
    for at, item in enumerate(_list(value, place)):
        here = f"{place}[{at}]"
        if not isinstance(item, dict):
            rules.append(Rule(answer(item, here), None))
            continue
        pairs = _object(item, here)
        if set(pairs) != {"match", "steps"}:
            raise ScriptError(f"{here}: has the keys {', '.join(pairs)}; write a list of steps, or match and steps")
        match = _text(pairs["match"], f"{here}.match").encode("utf-8")
        rules.append(Rule(answer(pairs["steps"], f"{here}.steps"), match))
    return rules


OK_ANSWER: Json = [{"text": "Let me see.</think>Hello, world."}, {"end_token": True}]

_KEYS = (
    "title", "expect", "context", "can_stop", "batch_slots", "info", "ready_line", "crlf", "vocab", "obey_max_new",
    "ignore", "start", "after_ready", "requests", "then",
)  # fmt: skip


class Script:
    """One life of the engine, as a checked script tells it."""

    def __init__(self, values: dict[str, Json], place: str = "") -> None:
        """Check the values of a script file. `place` is put before every key in an error.

        Raises: ScriptError: something is wrong.
        """
        unknown = [key for key in values if key not in _KEYS]
        if unknown:
            raise ScriptError(f"{place}{unknown[0]}: unknown key; known: {', '.join(sorted(_KEYS))}, lives")
        self.title = _line(values.get("title", ""), place + "title")
        self.expect = _line(values.get("expect", ""), place + "expect")
        self.context = _positive(values.get("context", 4096), place + "context")
        self.can_stop = _bool(values.get("can_stop", True), place + "can_stop")
        self.batch_slots = _slots(values.get("batch_slots", 0), place + "batch_slots")
        self.info = _info(values.get("info", {}), place + "info")
        self.ready_line = _line(values.get("ready_line", ""), place + "ready_line")
        self.crlf = _bool(values.get("crlf", False), place + "crlf")
        self.vocab = _count(values.get("vocab", 0), place + "vocab")
        self.obey_max_new = _bool(values.get("obey_max_new", True), place + "obey_max_new")
        ignored = _some_of(IGNORABLE)(values.get("ignore", []), place + "ignore")
        self.start = [Step("ignore", ignored, {})] if ignored else []
        self.start += _plain_steps(values.get("start", []), place + "start")
        self.after_ready = _plain_steps(values.get("after_ready", []), place + "after_ready")
        self.rules = _rules(values.get("requests", []), place + "requests")
        self.then = _one_of(THEN)(values.get("then", "repeat"), place + "then")
        self.ok = answer(OK_ANSWER, "ok")

    def needs_state(self) -> bool:
        """Whether it has steps that work through the state folder."""
        lists = [self.start, self.after_ready, *(rule.steps for rule in self.rules)]
        return any(step.kind in _NEEDS_STATE for steps in lists for step in steps)


class Scripts:
    """A whole script file: one `Script` per life, the last one for all lives after it."""

    def __init__(self, value: Json) -> None:
        values = dict(_object(value, "script"))
        lives = _list(values.pop("lives", []), "lives")
        self.first = Script(values)
        self.lives = [
            Script({**values, **_object(life, f"lives[{at}]")}, f"lives[{at}].") for at, life in enumerate(lives)
        ]

    def life(self, number: int) -> Script:
        """The script of a life, counted from 1."""
        if not self.lives:
            return self.first
        return self.lives[min(number, len(self.lives)) - 1]

    def needs_state(self) -> bool:
        """Whether it cannot be played without a state folder."""
        return bool(self.lives) or self.first.needs_state()


def load(path: str) -> Scripts:
    """Read and check a script file.

    Raises: ScriptError: it cannot be read, is not JSON or is no script; the message names file and place.
    """
    name = os.path.basename(path)  # noqa: PTH119 - pathlib takes 10 ms to import
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes 10 ms to import
            value = loads(file.read())
        return Scripts(value)
    except OSError as error:
        raise ScriptError(f"{name}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ScriptError(f"{name}: not JSON: {error}") from None
    except ScriptError as error:
        raise ScriptError(f"{name}: {error}") from None
