"""Endings: a finish word and a marker, the right word, nothing after it, nothing cut that is called whole."""

from __future__ import annotations

from tools.conform_checks.bench import Bench, found
from tools.conform_checks.check import Check, NotSeen
from tools.conform_checks.occasions import LIMIT, limit_of
from tools.conform_checks.reading import read_body
from tools.conform_checks.talk import Talk
from tools.probe.target import APIS, Api
from tools.probe.values import Json, as_list, as_object, as_text, at, is_json, shown

_CONTRACT = "OpenAI and Anthropic API references, streaming"


def _ends(bench: Bench, api: Api) -> str | None:
    return found(bench.streams(api), "no-finish", "no-marker", "cut", "no-marker-after-error")


def _once(bench: Bench, api: Api) -> str | None:
    return found(bench.streams(api), "after-end", "two-markers", "finish-again")


def _last(bench: Bench, api: Api) -> str | None:
    return found(bench.streams(api), "after-finish", "finish-twice", "success-after-error", "error-after-success")


def _known(bench: Bench, api: Api) -> str | None:
    if (text := found(bench.streams(api), "unknown-finish", "unknown-reason")) is not None:
        return text
    for name, value in bench.bodies(api):
        answer = read_body(api, value)
        if answer.outcome is None:
            reason = at(value, "incomplete_details", "reason")
            return f"body of {name!r}: it ended as {shown(answer.word)}" + (f", {shown(reason)}" if reason else "")
    return None


# --- the limit --------------------------------------------------------------------------------------


def _limit_stream(bench: Bench, api: Api) -> str | None:
    talk = bench.stream(api, "limit")
    telling = talk.telling
    made = telling.output_tokens if telling.output_tokens is not None else telling.token_count
    return _at_limit(telling.outcome, telling.finish, made, telling.failed_openly)


def _limit_body(bench: Bench, api: Api) -> str | None:
    answer = bench.body(api, "limit")
    made = answer.counts.output if answer.counts.output is not None else LIMIT
    return _at_limit(answer.outcome, answer.word, made, failed=answer.outcome == "failed")


def _at_limit(outcome: str | None, word: str | None, made: int, failed: bool) -> str | None:
    if outcome == "limit":
        return None
    if failed or outcome == "filtered":
        raise NotSeen(f"the answer ended as {word!r}")
    if made < LIMIT:
        raise NotSeen(f"the answer ended by itself after {made} tokens, before the limit of {LIMIT}")
    return f"{made} tokens, the limit, and it ended as {word!r}"


def _whole_stream(bench: Bench, api: Api) -> str | None:
    talk = bench.stream(api, "short")
    telling = talk.telling
    if telling.failed_openly:
        raise NotSeen(f"the answer failed: {shown(telling.error)}")
    if telling.outcome is None and telling.marker is None:
        raise NotSeen("the stream was cut")
    return _by_itself(api, telling.outcome, telling.finish, telling.output_tokens)


def _whole_body(bench: Bench, api: Api) -> str | None:
    answer = bench.body(api, "short")
    return _by_itself(api, answer.outcome, answer.word, answer.counts.output)


def _by_itself(api: Api, outcome: str | None, word: str | None, made: int | None) -> str | None:
    most = limit_of(api, "short")
    if outcome == "finished":
        return None
    if outcome == "limit":
        if made is None or made >= most:
            raise NotSeen(f"the model does not end by itself within {most} tokens")
        return f"it ended as {word!r} after {made} of {most} tokens: nothing cut it"
    if outcome in ("filtered", "cancelled", "failed"):
        raise NotSeen(f"the answer ended as {word!r}")
    return f"a whole answer ended as {word!r}"


# --- stop strings and forced forms ------------------------------------------------------------------


def _stop_string(bench: Bench, api: Api) -> str | None:
    stop = _stop_of("".join(bench.stream(api, "flow").telling.text))
    name = "stop_sequences" if api == "messages" else "stop"

    def ask() -> Talk:
        return bench.start(api, "flow", fields={name: [stop]}).join()

    talk = bench.once(("stop", api), ask)
    if not talk.is_stream:
        raise NotSeen(f"stop strings are refused: {talk.about()}")
    text = "".join(talk.telling.text)
    if stop in text:
        return f"the answer has the stop string {stop!r}: {shown(text[-60:])}"
    if talk.telling.outcome == "limit":
        raise NotSeen("the stop string never came")
    if talk.telling.outcome != "finished":
        return f"a stop string ended it, and it says {talk.telling.finish!r}"
    if api != "messages":
        return None
    told = [at(each.value, "delta") for each in talk.events if each.kind == "message_delta"]
    if talk.telling.finish != "stop_sequence" or as_text(at(told, -1, "stop_sequence")) != stop:
        return f"a stop string ended it, and message_delta says {shown(told[-1] if told else None)}"
    return None


def _stop_of(text: str) -> str:
    """A word from the middle of what the model says anyway. Raises: NotSeen."""
    words = text.split()
    middle = [word for word in words[len(words) // 4 :] if len(word) >= 3 and text.index(word) > 0]
    if not middle:
        raise NotSeen("the answer has no words to stop at")
    return middle[0]


def _cut_json(bench: Bench, api: Api) -> str | None:
    talk = bench.stream(api, "cut json")
    told = talk.telling
    text = _judge_json(told.outcome, told.finish, "".join(told.text), told.failed_openly)
    if text is not None:
        return f"{talk.name}: {text}"
    answer = bench.body(api, "cut json")
    text = _judge_json(answer.outcome, answer.word, answer.text, failed=False)
    return None if text is None else f"body of 'cut json': {text}"


def _judge_json(outcome: str | None, word: str | None, text: str, failed: bool) -> str | None:
    if failed:
        raise NotSeen("the answer failed, and said so")
    if outcome == "finished" and not is_json(text):
        return f"{word!r} over text that is not JSON: {shown(text[-60:])}"
    if outcome == "finished":
        raise NotSeen("the model ended its JSON before the limit")
    if outcome == "limit" and is_json(text):
        return f"{word!r}, and the text is whole JSON all the same: somebody closed its brackets: {shown(text[-60:])}"
    return None


# --- Responses --------------------------------------------------------------------------------------


def _status_agrees(bench: Bench, api: Api) -> str | None:
    if (text := found(bench.streams(api), "status-contradicts")) is not None:
        return text
    terminals = ((talk.name, as_object(_terminal(talk))) for talk in bench.streams(api))
    bodies = ((f"body of {name!r}", value) for name, value in bench.bodies(api))
    for name, value in (*terminals, *bodies):
        if value and (text := _contradiction(value)) is not None:
            return f"{name}: {text}"
    return None


def _terminal(talk: Talk) -> object:
    ends = ("response.completed", "response.incomplete", "response.failed")
    return next((each.value.get("response") for each in talk.events if each.kind in ends), None)


def _contradiction(value: Json) -> str | None:
    status = value.get("status")
    reason = at(value, "incomplete_details", "reason")
    if status == "completed":
        if reason is not None or value.get("error") is not None:
            return f"completed, with incomplete_details {shown(reason)} and error {shown(value.get('error'))}"
        for item in map(as_object, as_list(value.get("output"))):
            if item.get("status") in ("incomplete", "in_progress"):
                return f"completed, with a {item.get('type')} that is {item.get('status')}"
    elif value.get("completed_at") is not None:
        return f"{status}, and completed_at is {shown(value['completed_at'])}"
    if status == "incomplete" and reason is None:
        return "incomplete, and incomplete_details has no reason"
    return None


def _cut_items(bench: Bench, api: Api) -> str | None:
    talk = bench.stream(api, "limit")
    values = [(talk.name, as_object(_terminal(talk))), ("body of 'limit'", bench.body_value(api, "limit"))]
    seen = False
    for name, value in values:
        if value.get("status") != "incomplete":
            continue
        items = [as_object(item) for item in as_list(value.get("output"))]
        seen = seen or bool(items)
        if items and items[-1].get("status") != "incomplete":
            return f"{name}: the limit cut the {items[-1].get('type')}, and it is {shown(items[-1].get('status'))}"
    if not seen:
        raise NotSeen("nothing was cut by the limit with an item in it")
    return None


CHECKS = (
    Check(
        "ends",
        "endings",
        "lie",
        "A stream ends with a word for how the answer ended, and then with its API's end marker.",
        f"{_CONTRACT}; vLLM #52852, Ollama #17118, LiteLLM #42085",
        APIS,
        _ends,
    ),
    Check(
        "ends-once",
        "endings",
        "lie",
        "The end comes once, and nothing follows it.",
        f"{_CONTRACT}; plano #898",
        APIS,
        _once,
    ),
    Check(
        "finish-last",
        "endings",
        "lie",
        "After the finish word nothing of the answer follows, and no other word.",
        f"{_CONTRACT}; clients stop reading there",
        APIS,
        _last,
    ),
    Check(
        "finish-known",
        "endings",
        "lie",
        "The word for the end is one of the standard's, in streams and bodies.",
        "OpenAI API reference, finish_reason, Response.status; Anthropic, stop_reason; vLLM #57082",
        APIS,
        _known,
    ),
    Check(
        "limit-stream",
        "endings",
        "lie",
        "A stream that the token limit cut says so: length, incomplete with max_output_tokens, max_tokens.",
        "OpenAI API reference, finish_reason, incomplete_details; Anthropic, stop_reason; vLLM #24184",
        APIS,
        _limit_stream,
    ),
    Check(
        "limit-body",
        "endings",
        "lie",
        "A JSON body that the token limit cut says so.",
        "as limit-stream; agentic-api #273",
        APIS,
        _limit_body,
    ),
    Check(
        "whole-stream",
        "endings",
        "lie",
        "A stream that the model ended says so: stop, completed, end_turn; never that a limit cut it.",
        "as limit-stream; vllm-mlx #628, hermes-agent #42314",
        APIS,
        _whole_stream,
    ),
    Check(
        "whole-body",
        "endings",
        "lie",
        "A JSON body that the model ended says so.",
        "as whole-stream",
        APIS,
        _whole_body,
    ),
    Check(
        "stop-string",
        "endings",
        "breach",
        "A stop string ends the answer before itself, as a whole one; Messages names it.",
        "OpenAI API reference, stop; Anthropic, stop_sequences",
        ("chat", "completions", "messages"),
        _stop_string,
    ),
    Check(
        "cut-json",
        "endings",
        "lie",
        "JSON that was asked for and cut by the limit stays as it was written: nobody closes its brackets.",
        "mastra #24442, quallmer #153",
        ("chat", "responses"),
        _cut_json,
    ),
    Check(
        "status-agrees",
        "endings",
        "lie",
        "The event's name, status, incomplete_details, error, completed_at and the items of a response agree.",
        "OpenAI API reference, the Response object; agentic-api #273",
        ("responses",),
        _status_agrees,
    ),
    Check(
        "cut-items",
        "endings",
        "lie",
        "The item that the limit cut is incomplete.",
        "OpenAI API reference, output items, status",
        ("responses",),
        _cut_items,
    ),
)
