"""Numbers of Responses events, and what of a response can be read again: its stream and itself."""

from __future__ import annotations

from dataclasses import replace

from tools.conform_checks.bench import Bench, found, over
from tools.conform_checks.check import Check, NotSeen, NotThere
from tools.conform_checks.reading import read_body
from tools.conform_checks.responses import ONLY, TERMINALS, terminal
from tools.conform_checks.talk import Talk
from tools.probe.connection import Answer, fetch
from tools.probe.target import ROUTES, Api
from tools.probe.values import Json, as_int, as_object, as_text, at, parsed, shown

_BEGUN = 3
"""Pieces of the answer after which a stream is left, to be resumed."""


def _zero(bench: Bench, api: Api) -> str | None:
    return over(bench.streams(api), _from_zero)


def _from_zero(talk: Talk) -> str | None:
    first = talk.events[0].value.get("sequence_number") if talk.events else 0
    return None if first == 0 else f"the first sequence_number is {shown(first)}"


def _gapless(bench: Bench, api: Api) -> str | None:
    return found(bench.streams(api), "no-sequence-number", "sequence-gap")


# --- read again -------------------------------------------------------------------------------------


def get(bench: Bench, route: str, method: str = "GET") -> Answer:
    """A short request to a route of the server."""
    body = b"{}" if method == "POST" else b""
    request = bench.target.request(method, route, body, "responses")
    patience_s = bench.settings.patience_s
    return fetch(bench.target, request, silence_s=patience_s, until_s=patience_s, verify=bench.settings.verify)


def kept(bench: Bench, id_: str) -> Json:
    """The response as it is read again. Raises: NotThere: the server keeps none."""
    answer = get(bench, f"{ROUTES['responses']}/{id_}")
    if answer.status != 200:
        raise NotThere(f"responses are not kept: GET answers {answer.status}")
    try:
        return as_object(parsed(answer.body))
    except ValueError:
        return {}


def id_of(talk: Talk) -> str:
    """Of the stream's response. Raises: NotSeen: it has told none."""
    for each in talk.events:
        if (id_ := as_text(at(each.value, "response", "id"))) is not None:
            return id_
    raise NotSeen("the stream has told no id")


def _stored(bench: Bench, api: Api) -> str | None:
    talk = bench.once("stored", lambda: bench.start(api, "limit", fields={"store": True}).join())
    end = terminal(talk)
    if not end:
        raise NotSeen(f"the stream has no terminal: {talk.about()}")
    value = kept(bench, id_of(talk))
    for name in ("id", "status", "output", "usage", "incomplete_details", "error"):
        if value.get(name) != end.get(name):
            return f"{name} was {shown(end.get(name))} in the stream, and is {shown(value.get(name))} when read again"
    return None


def background(bench: Bench) -> Talk:
    """A background stream that was left in mid-answer. Raises: NotThere: the server has no background responses."""

    def ask() -> Talk:
        fields = {"store": True, "background": True}
        with bench.start("responses", "flow", fields=fields) as talk:
            if not talk.is_stream:
                raise NotThere(f"no background streams: {talk.join().about()}")
            talk.wait(lambda each: each.telling.token_count >= _BEGUN, bench.settings.patience_s)
        return talk

    return bench.once("background", ask)


def _again(bench: Bench, id_: str, after: int) -> Talk:
    def ask() -> Talk:
        query = f"stream=true&starting_after={after}"
        request = replace(bench.target, query=query).request("GET", f"{ROUTES['responses']}/{id_}", b"", "responses")
        talk = bench.send_raw("responses", request, {"stream": True}, name=f"resumed after {after}").join()
        if talk.status != 200 or not talk.is_stream:
            raise NotThere(f"streams are not resumed: {talk.about()}")
        return talk

    return bench.once(("again", id_, after), ask)


def _resumed(bench: Bench, api: Api) -> str | None:
    left = background(bench)
    numbers = [as_int(each.value.get("sequence_number")) for each in left.events]
    last = numbers[-1] if numbers else None
    if last is None or left.telling.marker is not None:
        raise NotSeen("the stream has no numbers, or ended before it was left")
    talk = _again(bench, id_of(left), last)
    first = talk.events[0].value.get("sequence_number") if talk.events else None
    if first != last + 1:
        return f"after {last} came {shown(first)}"
    if (text := talk.found("no-sequence-number", "sequence-gap", "no-finish", "cut")) is not None:
        return text
    made = "".join((*left.telling.text, *talk.telling.text))
    final = read_body("responses", terminal(talk)).text
    return None if made == final else f"both parts together are {shown(made)}, the response has {shown(final)}"


def _replayed(bench: Bench, api: Api) -> str | None:
    left = background(bench)
    id_ = id_of(left)
    once, again = _again(bench, id_, 0), _again(bench, id_, 1)
    told = {as_int(each.value.get("sequence_number")): each.value for each in left.events}
    for each in once.events:
        number = as_int(each.value.get("sequence_number"))
        if number in told and told[number] != each.value:
            return f"number {number} was {shown(told[number])}, and is {shown(each.value)} when replayed"
    if [each.value for each in once.events[1:]] != [each.value for each in again.events]:
        return "two replays differ"
    if not once.events or once.events[-1].kind not in TERMINALS:
        return f"the replay ends with {shown(once.events[-1].kind if once.events else None)}"
    return None


CHECKS = (
    Check(
        "sequence-from-zero",
        "sequence",
        "risk",
        "The first event has the sequence_number 0, so that starting_after can name every place.",
        "OpenAI API reference, sequence_number and starting_after; vLLM, SGLang and Ollama begin at 0",
        ONLY,
        _zero,
    ),
    Check(
        "sequence-gapless",
        "sequence",
        "breach",
        "Each event has the next sequence_number, heartbeats and errors too.",
        "OpenAI API reference, sequence_number; term-llm PR #878, GoModel PR #953",
        ONLY,
        _gapless,
    ),
    Check(
        "stored-agrees",
        "sequence",
        "lie",
        "A response that is read again has the status, output and usage that its stream ended with.",
        "OpenAI API reference, retrieve a response",
        ONLY,
        _stored,
    ),
    Check(
        "resumes",
        "sequence",
        "lie",
        "A background stream that was left goes on after the number that was seen last, and nothing is missing.",
        "OpenAI API reference, starting_after",
        ONLY,
        _resumed,
    ),
    Check(
        "replays",
        "sequence",
        "breach",
        "A stream that is read again has the same events under the same numbers.",
        "OpenAI API reference, starting_after; term-llm PR #878",
        ONLY,
        _replayed,
    ),
)
