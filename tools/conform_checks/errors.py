"""Errors before an answer: a status of 4xx in the API's own form, in both modes, and the server lives on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tools.conform_checks.bench import Bench
from tools.conform_checks.check import SERVER, WITH_TOOLS, Check, Judge, NotSeen
from tools.conform_checks.occasions import request_body
from tools.conform_checks.refusals import BAD_PARTS, PLAIN, plain, refused, too_long
from tools.conform_checks.talk import Talk
from tools.probe.connection import Answer, fetch
from tools.probe.exits import CouldNotRun
from tools.probe.secret import Secret
from tools.probe.target import APIS, ROUTES, Api
from tools.probe.values import Json, as_object, as_text, at, parsed, shown

PERMANENT = (400, 413, 415, 422)
"""What clients do not try again. Source: openai-python retries 408, 409, 429 and 5xx."""
MOST_BYTES = 16 * 1024
WRONG_KEY = "wrong-key-0123456789abcdef"
_NULLS: dict[Api, tuple[str, ...]] = {
    "chat": ("stop", "seed", "frequency_penalty", "presence_penalty", "logit_bias", "top_p", "stream_options"),
    "completions": ("stop", "seed", "frequency_penalty", "presence_penalty", "logit_bias", "top_p", "suffix"),
    "responses": ("instructions", "metadata", "previous_response_id", "reasoning", "top_p", "truncation"),
}


def message_of(api: Api, value: Json) -> str | None:
    """The message of an error body, where the API's clients look."""
    if api == "messages" and value.get("type") != "error":
        return None
    return as_text(at(value, "error", "message")) or None


def _status(name: str) -> Judge:
    def judge(bench: Bench, api: Api) -> str | None:
        return _permanent(refused(bench, api, name))

    return judge


def _permanent(talk: Talk) -> str | None:
    return None if talk.status in PERMANENT else f"{talk.name}: {talk.about()}"


def _each(talks: Iterable[Talk], judge: Callable[[Talk], str | None]) -> str | None:
    """Over those that were refused. Raises: NotSeen: none was."""
    refusals = [talk for talk in talks if talk.status >= 400]
    if not refusals:
        raise NotSeen("nothing was refused")
    return next((f"{talk.name}: {text}" for talk in refusals if (text := judge(talk)) is not None), None)


def _told(bench: Bench, api: Api) -> str | None:
    def judge(talk: Talk) -> str | None:
        if talk.content_type != "application/json":
            return f"an error as {talk.content_type or 'nothing'}: {shown(bytes(talk.raw))}"
        return None if message_of(api, talk.value) else f"no message where clients look: {shown(bytes(talk.raw), 160)}"

    return _each(plain(bench, api), judge)


def _full(bench: Bench, api: Api) -> str | None:
    wanted = ("type", "message") if api == "messages" else ("message", "type", "param", "code")

    def judge(talk: Talk) -> str | None:
        error = as_object(talk.value.get("error"))
        lacking = [name for name in wanted if name not in error]
        if lacking:
            return f"the error has no {', '.join(lacking)}: {shown(error, 160)}"
        return None if as_text(error["type"]) else f"the error's type is {shown(error['type'])}"

    return _each(plain(bench, api), judge)


def _stream(bench: Bench, api: Api) -> str | None:
    names = [name for name in PLAIN[2:] if refused(bench, api, name).status in PERMANENT]
    if not names:
        raise NotSeen("nothing was refused as a body")
    texts = (_permanent(refused(bench, api, name, stream=True)) for name in names)
    return next((text for text in texts if text is not None), None)


# --- too long ---------------------------------------------------------------------------------------


def _too_long(stream: bool) -> Judge:
    def judge(bench: Bench, api: Api) -> str | None:
        return _permanent(too_long(bench, api, stream=stream))

    return judge


def _too_long_code(bench: Bench, api: Api) -> str | None:
    talk = too_long(bench, api, stream=False)
    if talk.status not in PERMANENT:
        raise NotSeen(f"it was not refused: {talk.about()}")
    code = at(talk.value, "error", "code")
    return None if code == "context_length_exceeded" else f"the code is {shown(code)}: {talk.about()}"


# --- the server -------------------------------------------------------------------------------------


def _bounded(bench: Bench, api: Api) -> str | None:
    talk = refused(bench, api, "many bad parts")
    if (text := _permanent(talk)) is not None:
        return text
    size = len(talk.raw)
    return None if size <= MOST_BYTES else f"{BAD_PARTS} bad parts are answered with {size} bytes"


def _ask(bench: Bench, request: bytes) -> Answer:
    patience_s = bench.settings.patience_s
    return fetch(bench.target, request, silence_s=patience_s, until_s=patience_s, verify=bench.settings.verify)


def _json_error(answer: Answer, statuses: tuple[int, ...]) -> str | None:
    said = shown(answer.body[:200].decode(errors="replace"))
    if answer.status not in statuses:
        return f"status {answer.status}: {said}"
    try:
        message = message_of("chat", as_object(parsed(answer.body)))
    except ValueError:
        message = None
    return None if message else f"status {answer.status} without a message where clients look: {said}"


def _unknown_route(bench: Bench, api: Api) -> str | None:
    return _json_error(_ask(bench, bench.target.request("POST", "/no/such/route", b"{}", "chat")), (404,))


def _wrong_method(bench: Bench, api: Api) -> str | None:
    return _json_error(_ask(bench, bench.target.request("PUT", ROUTES[api], b"{}", "chat")), (404, 405))


def _keyless(bench: Bench, api: Api, key: str) -> Answer:
    """The answer to a request with another key. Raises: NotSeen: no key is wanted."""
    if not bench.target.secret:
        raise NotSeen("give --api-key to see what happens without it")
    stranger = replace(bench.target, secret=Secret(key))

    def ask() -> Answer:
        return _ask(bench, stranger.post(api, request_body(api, bench.model, "limit", stream=False)))

    answer = bench.once(("key", key), ask)
    if answer.status == 200:
        raise NotSeen("the server wants no key")
    return answer


def _key(bench: Bench, api: Api) -> str | None:
    return _json_error(_keyless(bench, api, ""), (401, 403)) or _json_error(_keyless(bench, api, WRONG_KEY), (401, 403))


def _key_hidden(bench: Bench, api: Api) -> str | None:
    answer = _keyless(bench, api, WRONG_KEY)
    return f"the refusal repeats the key: {shown(answer.body)}" if WRONG_KEY.encode() in answer.body else None


def _nulls(bench: Bench, api: Api) -> str | None:
    def ask() -> Talk:
        asked = request_body(api, bench.model, "limit", stream=False)
        return bench.send(api, asked | dict.fromkeys(_NULLS[api])).join()

    bench.body(api, "limit")
    talk = bench.once(("nulls", api), ask)
    return None if talk.status == 200 else f"{', '.join(_NULLS[api])} as null: {talk.about()}"


def _alive(bench: Bench, api: Api) -> str | None:
    bench.body(api, "limit")
    try:
        for each in bench.apis():
            plain(bench, each)
        talk = bench.start(api, "limit", stream=False).join()
    except CouldNotRun as error:
        return f"after bad requests: {error}"
    return None if talk.status == 200 else f"after bad requests: {talk.about()}"


_FORMATS: tuple[Api, ...] = ("chat", "responses")
_CAUSES = "MNN PR #4585, llama.cpp #7089; opencode #33006: clients try 5xx again"

CHECKS = (
    Check(
        "bad-json",
        "errors",
        "breach",
        "A body that is not JSON is refused with 4xx.",
        _CAUSES,
        APIS,
        _status("not JSON"),
    ),
    Check(
        "bad-object",
        "errors",
        "breach",
        "A body that is JSON and no object is refused with 4xx.",
        _CAUSES,
        APIS,
        _status("not an object"),
    ),
    Check(
        "bad-type",
        "errors",
        "breach",
        "A prompt, input or messages of a wrong type are refused with 4xx.",
        _CAUSES,
        APIS,
        _status("a wrong type"),
    ),
    Check(
        "bad-missing",
        "errors",
        "breach",
        "A request with nothing to answer is refused with 4xx.",
        _CAUSES,
        APIS,
        _status("nothing to answer"),
    ),
    Check(
        "bad-limit",
        "errors",
        "breach",
        "A token limit that is no number is refused with 4xx.",
        _CAUSES,
        APIS,
        _status("a limit that is no number"),
    ),
    Check(
        "bad-format",
        "errors",
        "breach",
        "A response format without its schema is refused with 4xx.",
        "vLLM #35438, llama.cpp PR #17572",
        _FORMATS,
        _status("a malformed format"),
    ),
    Check(
        "bad-tool",
        "errors",
        "breach",
        "A tool without a name is refused with 4xx.",
        "OpenAI and Anthropic API references, tools",
        WITH_TOOLS,
        _status("a malformed tool"),
    ),
    Check(
        "error-told",
        "errors",
        "breach",
        "A refusal is JSON with its message where the API's clients look for it.",
        "OpenAI and Anthropic API references, errors; Ray #64833, vLLM #57997; measured: clients show nothing else",
        APIS,
        _told,
    ),
    Check(
        "error-full",
        "errors",
        "risk",
        "The error has all its fields: message, type, param and code; in Messages type and message.",
        "OpenAI and Anthropic API references, errors",
        APIS,
        _full,
    ),
    Check(
        "refused-stream",
        "errors",
        "breach",
        "What is refused as a body is refused as a stream, too, by its status: no 200 goes out first.",
        "vLLM #35438; measured: clients look at the status",
        APIS,
        _stream,
    ),
    Check(
        "too-long",
        "errors",
        "lie",
        "A prompt that does not fit is refused with 4xx, not cut in silence, and not called a fault of the server.",
        "OpenAI API reference, errors; llama.cpp #14566, colibri PR #609",
        APIS,
        _too_long(stream=False),
    ),
    Check(
        "too-long-stream",
        "errors",
        "breach",
        "A prompt that does not fit is refused in a stream by its status, too.",
        "llama.cpp #14566",
        APIS,
        _too_long(stream=True),
    ),
    Check(
        "too-long-code",
        "errors",
        "risk",
        "The refusal of such a prompt has the code context_length_exceeded, on which agents compact.",
        "OpenAI API reference, error codes; llama.cpp #14566",
        ("chat", "completions", "responses"),
        _too_long_code,
    ),
    Check(
        "error-bounded",
        "errors",
        "breach",
        "A request with many faults gets a short refusal.",
        "vLLM #49239",
        WITH_TOOLS,
        _bounded,
    ),
    Check(
        "unknown-route",
        "errors",
        "risk",
        "An unknown route is 404, with a JSON error.",
        "Ray #64833, cline #396",
        SERVER,
        _unknown_route,
    ),
    Check(
        "wrong-method",
        "errors",
        "risk",
        "A method that a route does not have is 405 or 404, with a JSON error.",
        "Ray #64833",
        SERVER,
        _wrong_method,
    ),
    Check(
        "key-refused",
        "errors",
        "breach",
        "Without the key, or with a wrong one, the status is 401 or 403, with a JSON error.",
        "OpenAI API reference, authentication",
        SERVER,
        _key,
    ),
    Check(
        "key-hidden",
        "errors",
        "risk",
        "The refusal of a key does not repeat it: logs and screens keep what servers say.",
        "OpenAI API reference, authentication",
        SERVER,
        _key_hidden,
    ),
    Check(
        "nulls",
        "errors",
        "risk",
        "Optional fields that are null are as if they were absent.",
        "OpenAI API reference, nullable fields; vLLM PR #47838",
        ("chat", "completions", "responses"),
        _nulls,
    ),
    Check(
        "alive",
        "errors",
        "breach",
        "After bad requests the server answers good ones.",
        "MNN PR #4585, llama.cpp #7089",
        SERVER,
        _alive,
    ),
)
