"""What it takes to see which promises of the ending contract a server keeps: the server over the fake engine, what the
engine does, and readers that take what a foreign server writes.

The promises themselves are `promise_cases`; what the APIs' grammars demand is checked by the grammars of this suite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.e2e.client import Answer, ask, chat, fetch
from tests.e2e.frames import DONE, Event
from tests.e2e.strata_tree import StrataTree

Json = dict[str, Any]
State = Literal["kept", "broken", "not there"]

END: list[Json] = [{"end_token": True}, {"done": "stop"}]
SILENCE_S = 1.5
BEAT_S = 0.3
DEFAULT_BEAT_S = 10.0
"""The contract's; a server that has no option for it is given so long, and some more."""
QUEUE_S = 0.3
MARGIN_S = 5.0


class NotThere(Exception):
    """The server has nothing that the promise is about; the text says what it lacks."""


@dataclass
class Site:
    """The servers of one tree, each started when it is first needed. Use as a context manager."""

    root: Path
    folder: Path
    _stack: ExitStack = field(default_factory=ExitStack)
    _servers: dict[str, StrataTree] = field(default_factory=dict[str, StrataTree])
    _failures: dict[str, str] = field(default_factory=dict[str, str])

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """Raises: AssertionError: the tree has no server that starts."""
        assert self.quick.port

    def _server(self, name: str, config: Json) -> StrataTree:
        if name in self._failures:
            raise AssertionError(self._failures[name])
        if name not in self._servers:
            made = StrataTree(self.root, SCRIPT, self.folder / name, config)
            try:
                self._servers[name] = self._stack.enter_context(made)
            except AssertionError as error:  # it would not start for the next promise, and take as long
                self._failures[name] = str(error)
                raise
        return self._servers[name]

    @property
    def quick(self) -> StrataTree:
        """It takes an engine that is silent for `SILENCE_S` for dead."""
        return self._server("quick", {"engine_silence_s": SILENCE_S})

    @property
    def patient(self) -> StrataTree:
        """It waits for its engine, beats often, and lets nobody wait for long."""
        short: Json = {"heartbeat_s": BEAT_S, "queue_wait_s": QUEUE_S, "queue_grace_s": 0}
        return self._server("patient", {"engine_silence_s": 100, **short})


def _rule(word: str, *steps: Json) -> Json:
    return {"match": word, "steps": list(steps)}


CALL = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
SCRIPT: Json = {
    "requests": [
        _rule("tell-all", {"text": "Hello"}, *END),
        _rule("tell-much", {"text": "x", "repeat": 500}, *END),
        _rule("exit-now", {"text": "He"}, {"stderr": "cuda: out of luck\n"}, {"exit": 7}),
        _rule(
            "fatal-now",
            {"text": "He"},
            {"err": "verify: timed out at layer 18; its GPU waits were released"},
            {"done": "error"},
        ),
        _rule("silent-now", {"text": "He"}, {"stall": True}),
        _rule("err-now", {"text": "He"}, {"err": "the sampler has no tokens left"}),
        _rule("refuse-now", {"err": "a token id is outside the vocabulary"}),
        _rule("no-json", {"text": "not json"}, *END),
        _rule("whole-call", {"text": CALL}, *END),
        _rule("open-call", {"text": CALL[:50]}, *END),
        _rule("wrong-count", {"text": "He"}, {"done": "stop", "generated": 7}),
        _rule("odd-word", {"text": "He"}, {"done": "abort"}),
        _rule("wait-for-cue", {"cue": "go"}, {"text": "Hello"}, *END),
        _rule("hold-the-turn", {"text": "H"}, {"cue": "free"}, {"text": "ello"}, *END),
    ],
    "context": 2_000,
}
"""The engine answers by a word of the prompt; a new life answers alike."""


# --- reading what a foreign server says ----------------------------------------------------------------


def events_of(answer: Answer) -> list[Event]:
    """The events of a stream as a plain reader takes them: comments and blank lines do not count.

    Raises: NotThere: there is no such endpoint. AssertionError: there is no stream.
    """
    there(answer)
    assert answer.status == 200, f"HTTP {answer.status}: {cut(answer.body)}"
    assert answer.headers.get("content-type", "").startswith("text/event-stream"), "not an event stream"
    assert answer.terminated, "the body was cut"
    made: list[Event] = []
    for block in re.split(r"\r?\n\r?\n", answer.body.decode("utf-8")):
        lines = [line for line in block.splitlines() if line and not line.startswith(":")]
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("event:")]
        data = [line.partition(":")[2].lstrip(" ") for line in lines if line.startswith("data:")]
        if data:
            made.append(Event(names[0] if names else None, "\n".join(data)))
    return made


def there(answer: Answer) -> None:
    """Raises: NotThere: the server knows no such route."""
    if answer.status in (404, 405, 501):
        raise NotThere(f"HTTP {answer.status}")


def cut(text: object) -> str:
    return repr(text)[:120]


@dataclass(frozen=True)
class ChatEnding:
    """A chat stream as it is: the deltas' text, the object of an `error` event, the closing chunk, what came last."""

    text: str
    chunks: list[Json]
    error: Json | None
    closing: Json | None
    order: list[str]

    @property
    def finish(self) -> str:
        return self.closing["choices"][0]["finish_reason"] if self.closing else "none"


def chat_ending(answer: Answer) -> ChatEnding:
    """Raises: NotThere; AssertionError: there is no stream."""
    chunks: list[Json] = []
    error, order = None, list[str]()
    for event in events_of(answer):
        value: Any = event.data if event.data == DONE else json.loads(event.data)
        if value == DONE:
            order.append(DONE)
        elif "choices" not in value:
            order.append("error")
            error = value.get("error", value)
        else:
            chunks.append(value)
            closes = any(choice.get("finish_reason") for choice in value["choices"])
            if closes:
                order.append("closing chunk")
            elif order:
                order.append("chunk")
    closing = next((one for one in chunks if one["choices"] and one["choices"][0].get("finish_reason")), None)
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks if one["choices"])
    return ChatEnding(text, chunks, error, closing, order)


def failed(answer: Answer) -> ChatEnding:
    """A chat stream that ends as failed.

    Raises: NotThere; AssertionError: it does not.
    """
    ending = chat_ending(answer)
    told = " → ".join(ending.order) or "nothing"
    assert ending.order == ["error", "closing chunk", DONE], f"it ends: {told}"
    assert ending.finish == "error", f"finish_reason {ending.finish!r} after an error"
    return ending


def streamed(port: int, word: str, **fields: Any) -> Answer:
    return ask(port, chat(content=word, **fields))


def whole(port: int, word: str, **fields: Any) -> Answer:
    answer = ask(port, chat(content=word, stream=False, **fields))
    there(answer)
    return answer


def error_of(answer: Answer) -> Json:
    """The error object of an HTTP answer."""
    error = answer.json.get("error")
    assert isinstance(error, dict), f"no error object: {cut(answer.body)}"
    return error  # pyright: ignore[reportUnknownVariableType] - JSON


def health(port: int) -> Json:
    return fetch(port, "/health")


# --- the table -----------------------------------------------------------------------------------------

Check = Callable[[Site], str]


@dataclass(frozen=True)
class Promise:
    """`where`: the contract's part; `what`: the promise; `check`: raises or says what was seen; `patch`: it is what
    `tools.strata_patch` is for."""

    where: str
    what: str
    check: Check
    patch: bool

    @property
    def id(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True)
class Verdict:
    promise: Promise
    state: State
    evidence: str


PROMISES: list[Promise] = []
VERDICT = "verdict"
"""The property of a test's report that says what it found: it reaches the summary from any process."""


def promise(where: str, what: str, *, patch: bool = False) -> Callable[[Check], Check]:
    """Put a check into the table."""

    def add(check: Check) -> Check:
        PROMISES.append(Promise(where, what, check, patch))
        return check

    return add


def judge(one: Promise, site: Site) -> Verdict:
    """Whether the servers of a site keep a promise. Blocks until its cases ran.

    Raises: AssertionError: a server cannot be started at all.
    """
    site.start()
    try:
        return Verdict(one, "kept", one.check(site))
    except NotThere as error:
        return Verdict(one, "not there", str(error))
    except AssertionError as error:
        return Verdict(one, "broken", _first_line(error))
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:  # an answer of another form
        return Verdict(one, "broken", f"{type(error).__name__}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return str(error).split("\n")[0][:200] or "no reason given"


def table(verdicts: Sequence[Verdict]) -> list[str]:
    """The verdicts as lines for people."""
    lines: list[str] = []
    where = ""
    for verdict in verdicts:
        if verdict.promise.where != where:
            where = verdict.promise.where
            lines += ["", where]
        mark = "*" if verdict.promise.patch else " "
        lines += [f"  {verdict.state:9} {mark} {verdict.promise.what}", f"              ({verdict.evidence})"]
    states = [verdict.state for verdict in verdicts]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("kept", "broken", "not there"))
    ours = [verdict.state for verdict in verdicts if verdict.promise.patch]
    return [
        *lines,
        "",
        f"{counts}; of those that tools.strata_patch is for (*) {ours.count('kept')} of {len(ours)} kept",
    ]
