"""Usage: there where it was asked for, in its place, and with numbers that agree."""

from __future__ import annotations

from tools.conform_checks.bench import Bench, over
from tools.conform_checks.chats import chunks
from tools.conform_checks.check import Check, NotSeen
from tools.conform_checks.occasions import LIMIT, OCCASIONS, request_body
from tools.conform_checks.reading import Counts, counts_of, read_body
from tools.conform_checks.responses import terminal
from tools.conform_checks.talk import Talk
from tools.probe.target import APIS, Api
from tools.probe.values import as_int, as_object, at, shown

_CHATS: tuple[Api, ...] = ("chat", "completions")


def streamed(talk: Talk) -> Counts:
    """The counts that a stream ends with."""
    if talk.api == "responses":
        return counts_of(talk.api, terminal(talk).get("usage"))
    if talk.api == "messages":
        usages = [at(each.value, "message", "usage") or each.value.get("usage") for each in talk.events]
        told = [counts_of(talk.api, usage) for usage in usages if usage is not None]
        prompts = [counts.prompt for counts in told if counts.prompt is not None]
        return Counts(max(prompts, default=None), told[-1].output if told else None, None)
    usages = [chunk["usage"] for chunk in chunks(talk) if chunk.get("usage")]
    return counts_of(talk.api, usages[-1] if usages else None)


def _body(bench: Bench, api: Api) -> str | None:
    for name, value in bench.bodies(api):
        counts = read_body(api, value).counts
        if (text := _sums(api, counts)) is not None:
            return f"body of {name!r}: {text}, {shown(value.get('usage'))}"
    return None


def _sums(api: Api, counts: Counts) -> str | None:
    if counts.prompt is None or counts.output is None or counts.prompt < 0 or counts.output < 0:
        return "a count is missing or no number"
    if api != "messages" and counts.total != counts.prompt + counts.output:
        return f"{counts.prompt} and {counts.output} are not {counts.total} in all"
    return None


def _stream(bench: Bench, api: Api) -> str | None:
    talk = bench.stream(api, "limit")
    counts = streamed(talk)
    if talk.telling.outcome is None:
        raise NotSeen("the stream was cut")
    if counts.prompt is None or counts.output is None:
        return f"the stream was asked for its counts, and told {counts}"
    body = read_body(api, bench.body_value(api, "limit")).counts
    if body.prompt is not None and body.prompt != counts.prompt:
        return f"the prompt of one request has {counts.prompt} tokens in a stream and {body.prompt} in a body"
    return _sums(api, counts)


def _limit(bench: Bench, api: Api) -> str | None:
    talk, body = bench.stream(api, "limit"), bench.body(api, "limit")
    if talk.telling.outcome != "limit" and body.outcome != "limit":
        raise NotSeen("nothing was cut by the limit")
    for name, outcome, counts in (
        (talk.name, talk.telling.outcome, streamed(talk)),
        ("body of 'limit'", body.outcome, body.counts),
    ):
        if outcome == "limit" and counts.output is not None and counts.output != LIMIT:
            return f"{name}: cut at the limit of {LIMIT} tokens, and {counts.output} are counted"
    return None


def _place(bench: Bench, api: Api) -> str | None:
    return over(bench.streams(api), _own_chunk, _asked)


def _asked(talk: Talk) -> bool:
    return talk.telling.error is None and "stream_options" in talk.asked


def _own_chunk(talk: Talk) -> str | None:
    told = [chunk for chunk in chunks(talk) if chunk.get("usage")]
    if len(told) != 1:
        return f"usage comes in {len(told)} chunks"
    if told[0]["choices"] != []:
        return f"usage stands in a chunk with choices {shown(told[0]['choices'])}, not in one of its own"
    return None if chunks(talk)[-1] is told[0] else "the chunk with usage is not the last one"


def _unasked(bench: Bench, api: Api) -> str | None:
    def ask() -> Talk:
        asked = request_body(api, bench.model, "limit", stream=True)
        del asked["stream_options"]
        return bench.send(api, asked, name="stream without include_usage", limit=OCCASIONS["limit"].max_tokens).join()

    talk = bench.once(("unasked", api), ask)
    if not talk.is_stream or not chunks(talk):
        raise NotSeen(f"no stream: {talk.about()}")
    for chunk in chunks(talk):
        if chunk["choices"] == []:
            return f"a chunk without a choice, which nobody asked for: {shown(chunk)}"
        if chunk.get("usage") == {}:
            return "a chunk has the usage {}"
    return None


def _details(bench: Bench, api: Api) -> str | None:
    values = [(f"body of {name!r}", value.get("usage")) for name, value in bench.bodies(api)]
    values += [(talk.name, terminal(talk).get("usage")) for talk in bench.streams(api) if terminal(talk)]
    for name, usage in values:
        told = as_object(usage)
        cached = as_int(at(told, "input_tokens_details", "cached_tokens"))
        thought = as_int(at(told, "output_tokens_details", "reasoning_tokens"))
        if cached is None or thought is None:
            return f"{name}: the usage has no details: {shown(told, 160)}"
        made, read = as_int(told.get("output_tokens")) or 0, as_int(told.get("input_tokens")) or 0
        if cached > read or thought > made:
            return f"{name}: a part is more than the whole: {shown(told, 160)}"
    return None


CHECKS = (
    Check(
        "usage-body",
        "usage",
        "breach",
        "A JSON body has the counts of prompt and answer, and they add up.",
        "OpenAI and Anthropic API references, usage",
        APIS,
        _body,
    ),
    Check(
        "usage-stream",
        "usage",
        "breach",
        "A stream that was asked for its counts has them, and the prompt counts as in a body.",
        "OpenAI API reference, stream_options.include_usage; Anthropic, message_delta",
        APIS,
        _stream,
    ),
    Check(
        "usage-limit",
        "usage",
        "lie",
        "An answer that was cut at N tokens counts N.",
        "vLLM #24184",
        APIS,
        _limit,
    ),
    Check(
        "usage-place",
        "usage",
        "breach",
        "Usage comes once, in a chunk of its own with no choices, after the finish and before the end marker.",
        "OpenAI API reference, stream_options.include_usage; LiteLLM PR #8751",
        _CHATS,
        _place,
    ),
    Check(
        "usage-unasked",
        "usage",
        "risk",
        "Without include_usage no chunk comes without choices, and none has an empty usage.",
        "OpenAI API reference, stream_options; zed #42893",
        _CHATS,
        _unasked,
    ),
    Check(
        "usage-details",
        "usage",
        "breach",
        "Usage of a response has its details, and no part is more than its whole.",
        "OpenAI API reference, ResponseUsage; llama.cpp #22659",
        ("responses",),
        _details,
    ),
)
