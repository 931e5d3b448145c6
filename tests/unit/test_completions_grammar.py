"""The checker of completions streams finds what it is there for: each rule is broken once, in a whole stream."""

from __future__ import annotations

import copy

import pytest

from tests.e2e.completions_grammar import Completed, CompletionWalk, check_completion_stream
from tests.e2e.frames import read_frames
from tests.unit.chat_streams import DONE, ERROR, USAGE, Change, Events, Json, answer, append, drop, insert, put

HEAD: Json = {"id": "cmpl-1", "object": "text_completion", "created": 5, "model": "m"}
LOGPROBS: Json = {"tokens": ["Hi"]}


def chunk(text: str, word: str | None = None, index: int = 0, **more: object) -> Json:
    logprobs = more.pop("logprobs", None)
    return {**HEAD, "choices": [{"text": text, "index": index, "logprobs": logprobs, "finish_reason": word}], **more}


COUNTS: Json = {**HEAD, "choices": [], "usage": USAGE}
CLOSING = chunk("", "error", error=ERROR)
TEXT: Events = [chunk("Hi", logprobs=LOGPROBS), chunk(" you"), chunk("", "stop"), DONE]
FAILED: Events = [chunk("Hi"), {"error": ERROR}, {**CLOSING, "usage": USAGE}, DONE]
COUNTED: Events = [*({**one, "usage": None} for one in TEXT[:-1]), COUNTS, DONE]
FAILED_COUNTED: Events = [{**FAILED[0], "usage": None}, {"error": ERROR}, {**CLOSING, "usage": None}, COUNTS, DONE]
TWO: Events = [chunk("a", index=1), chunk("b"), chunk("", "length", index=1), {"error": ERROR}, CLOSING, DONE]
STREAMS: dict[str, Events] = {
    "text": TEXT, "failed": FAILED, "counted": COUNTED, "failed counted": FAILED_COUNTED, "two": TWO,
}  # fmt: skip


def read(name: str, events: Events, cut: int | None = None) -> Completed:
    walk = CompletionWalk(2 if name == "two" else 1, counted="counted" in name)
    for event in read_frames(answer(events).body[:cut], whole=cut is None):
        walk.feed(event)
    assert cut is None or not walk.closed
    return walk.end()


def test_whole_streams_say_what_they_said() -> None:
    text = check_completion_stream(answer(TEXT))
    assert (text.texts, text.finish_reasons, text.error, text.logprobs) == (("Hi you",), ("stop",), None, [LOGPROBS])
    failed = check_completion_stream(answer(FAILED))
    assert (failed.texts, failed.finish_reasons, failed.error) == (("Hi",), ("error",), ERROR)
    assert (failed.usage, failed.usage_apart) == (USAGE, False)
    counted = check_completion_stream(answer(COUNTED))
    assert (counted.usage, counted.usage_apart) == (USAGE, True)
    assert check_completion_stream(answer(TWO), 2).finish_reasons == ("error", "length")


@pytest.mark.parametrize("name", STREAMS)
def test_whole_streams_and_all_their_beginnings_pass(name: str) -> None:
    read(name, STREAMS[name])
    for cut in range(len(answer(STREAMS[name]).body)):
        with pytest.raises(AssertionError, match=r"no .DONE. at the end"):
            read(name, STREAMS[name], cut)


BREAKS: list[tuple[str, str, Change]] = [
    ("text", "no .DONE. at the end", drop(-1)),
    ("text", "after .DONE.", append(DONE)),
    ("text", "after .DONE.", append(TEXT[0])),
    ("text", "choices .0. are closed", drop(-2)),
    ("text", "after its finish_reason", insert(-1, TEXT[0])),
    ("text", "home-made", put(-2, "choices", 0, "finish_reason", to="tool_calls")),
    ("text", "no integer", put(0, "choices", 0, "index", to="0")),
    ("text", "nobody asked for", put(0, "choices", 0, "index", to=1)),
    *[("text", "lacks", drop(1, key)) for key in HEAD],
    *[("text", "lacks", drop(1, "choices", 0, key)) for key in ("text", "index", "logprobs", "finish_reason")],
    ("text", "different streams", put(1, "id", to="cmpl-2")),
    ("text", "different streams", put(1, "created", to=6)),
    ("text", "different streams", put(1, "model", to="n")),
    ("text", "an id of another form", put(0, "id", to="chatcmpl-1")),
    ("text", "another object", put(0, "object", to="chat.completion.chunk")),
    ("text", "created that is no integer", put(0, "created", to=5.5)),
    ("text", "no model", put(0, "model", to="")),
    ("text", "neither a chunk nor an error", drop(1, "choices")),
    ("text", "no list", put(1, "choices", to={})),
    ("text", "with more", put(1, "odd", to=1)),
    ("text", "with more", put(1, "choices", 0, "odd", to=1)),
    ("text", "several choices", put(1, "choices", to=[TEXT[1]["choices"][0]] * 2)),
    ("text", "a text that is none", put(1, "choices", 0, "text", to=None)),
    ("text", "text in a closing chunk", put(-2, "choices", 0, "text", to="!")),
    ("text", "logprobs that are no object", put(0, "choices", 0, "logprobs", to=[])),
    ("text", "half of a surrogate", put(0, "choices", 0, "text", to="\ud83d")),
    ("failed", "without an error before it", drop(1)),
    ("failed", "a second error", insert(1, {"error": ERROR})),
    ("failed", "are closed", drop(2)),
    ("failed", "another error, or none", drop(2, "error")),
    ("failed", "another error, or none", put(2, "error", to={**ERROR, "code": "other"})),
    ("failed counted", "after its error", put(2, "choices", 0, "finish_reason", to="stop")),
    ("failed", "after its error", insert(2, FAILED[0])),
    *[("failed", "lacks", drop(1, "error", key)) for key in ERROR],
    ("failed", "an error beside", put(0, "error", to=ERROR)),
    ("text", "an error after all", insert(-1, {"error": ERROR})),
    ("two", "choices .0. are closed", drop(4)),
    ("text", "nobody asked for", insert(-1, COUNTS)),
    ("text", "in the middle", put(0, "usage", to=USAGE)),
    ("counted", "counts, which were asked for", drop(-2)),
    ("counted", "counts come last", insert(-1, COUNTED[0])),
    ("counted", "counts come last", insert(-1, COUNTS)),
    ("counted", "before the choices", insert(1, COUNTS)),
    ("counted", "without the usage member", drop(1, "usage")),
    ("counted", "come apart", put(1, "usage", to=USAGE)),
    ("counted", "says nothing", put(-2, "usage", to=None)),
    ("counted", "another form", drop(-2, "usage", "prompt_tokens_details")),
    ("counted", "add up", put(-2, "usage", "total_tokens", to=8)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "message", "change"), BREAKS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_broken_rule_is_found(name: str, message: str, change: Change) -> None:
    events = copy.deepcopy(STREAMS[name])
    change(events)
    assert events != STREAMS[name], "nothing was broken"
    with pytest.raises(AssertionError, match=message):
        read(name, events)
