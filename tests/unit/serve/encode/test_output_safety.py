"""Any bytes of an engine, in any tokens, with any cause of a failure: every event and body of every API is strict JSON
in lines that no reader breaks elsewhere, and says the characters that the bytes are, or U+FFFD.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.events import (
    Accepted,
    Cancelled,
    Event,
    Failed,
    FailKind,
    Finished,
    OfChoice,
    Reasoning,
    Terminal,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from serve import entries, outcomes
from serve.encode import chat, completions, messages
from serve.encode.responses import ResponseEncoder
from serve.entries import Entry
from tests.e2e.client import Answer
from tests.e2e.completions_grammar import check_completion, check_completion_stream
from tests.e2e.frames import strict_json
from tests.e2e.grammar import check_chat_stream
from tests.e2e.messages_grammar import check_message, check_message_stream
from tests.e2e.responses_grammar import check_response_object, check_response_stream
from tests.unit.serve.assemble.dialogue import Said, config, said
from tests.unit.serve.assemble.dialogue import events as assembled
from tests.unit.serve.assemble.generated import F, G, how_many, thorough
from tests.unit.serve.encode.response_streams import answer, ended, head

Json = dict[str, Any]
SSE = {"content-type": "text/event-stream"}
FRAGMENTS = [
    b"\xff", b"\xc0\xaf", b"\xe2\x80", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xed\xa0\xbd", b"\xed\xb8\x80", b"\x80",
    b"\x00", b"\x07", b"\x1b[31m", b"\x7f", b"\r\n", b"\n\n", b"\x0b\x0c\x1c\x1d\x1e", "\x85\u2028\u2029".encode(),
    "\ufeff\uffff\ufffd😀é漢e\u0301".encode(), b"data: [DONE]\n\nevent: error\n\n", b'"\\\\u2028"', b"</script>",
    b"word", b"</think>", b"<tool_call>\n<function=f>\n<parameter=a>\n", b"\n</parameter>\n</function>\n</tool_call>",
    b'<tool_call>{"name": "g", "arguments": {"a": "', b'\\ud83d"', b"\\u0000", b'"}}</tool_call>', b"NaN", b"1e999",
]  # fmt: skip
PARTS = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.binary(max_size=4)), max_size=8)
CAUSES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TERMINALS: st.SearchStrategy[Terminal] = st.one_of(
    st.sampled_from([Finished("stop"), Finished("length"), Cancelled("shutdown")]),
    st.builds(Failed, st.sampled_from(list(FailKind)), CAUSES),
)


def tokens(parts: list[bytes], size: int) -> list[bytes]:
    data = b"".join(parts)
    return [data[at : at + size] for at in range(0, len(data), size)] if size else parts


def stream(frames: Iterable[Any]) -> Answer:
    return Answer(200, SSE, b"".join(frame.data for frame in frames), True)


def body_of(value: object) -> Any:
    """A body as `send_json` writes it, read strictly."""
    return strict_json(json.dumps(value, allow_nan=False).encode("ascii"))


# --- each API ----------------------------------------------------------------------------------------


def check_chat(happened: list[Event], told: Said) -> None:
    of = chat.Head("chatcmpl-1", 1, "m")
    ending = check_chat_stream(stream(chat.stream(iter(happened), of)))
    calls = tuple((call["name"], call["arguments"]) for call in ending.calls)
    assert (ending.content, ending.reasoning, calls) == (told.text, told.reasoning, calls_of(told))
    made = chat.Collected()
    for event in happened[:-1]:
        made.add(event)
    terminal = cast("Terminal", happened[-1])
    message = body_of(chat.completion(of, made, terminal))["choices"][0]["message"]
    assert (message["content"] or "", message.get("reasoning_content", "")) == (told.text, told.reasoning)
    assert tuple((c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())) == calls
    if isinstance(terminal, Failed | Cancelled):
        body_of({"error": chat.failure_error(made, outcomes.http_failure(terminal), terminal)})


def calls_of(told: Said) -> tuple[tuple[str, str], ...]:
    return tuple((name, arguments) for name, arguments, _ in told.calls)


def check_messages(happened: list[Event], told: Said) -> None:
    of = messages.Head("msg_1", "m")
    ending = check_message_stream(stream(messages.frames(of, iter(happened))))
    assert "".join(ending.of("text")) == told.text
    assert "".join(ending.of("thinking")) == told.reasoning
    assert tuple((block.name, block.text) for block in ending.calls) == calls_of(told)
    encoder = messages.MessageEncoder(of)
    encoder.start()
    for event in happened:
        encoder.feed(event)
    whole = body_of(encoder.message())
    if isinstance(happened[-1], Finished):
        check_message(whole)
    assert "".join(block["text"] for block in whole["content"] if block["type"] == "text") == told.text


def check_responses(happened: list[Event], told: Said) -> None:
    terminal = cast("Terminal", happened[-1])
    kept = [event for event in happened[:-1] if isinstance(event, KEPT)]
    wanted: list[Entry] = [*kept, ended(terminal)]
    back = entries.decode(entries.encode(wanted))
    assert back == wanted, "what is kept is another answer"
    encoder = ResponseEncoder(head())
    made = list(encoder.start())
    for entry in back:
        made += encoder.feed(entry)
    ending = check_response_stream(answer(cast("list[Json]", made)))
    assert ("".join(ending.texts), "".join(ending.reasoning)) == (told.text, told.reasoning)
    assert tuple((call["name"], call["arguments"]) for call in ending.calls) == calls_of(told)
    check_response_object(body_of(encoder.response()))


KEPT = Accepted | Text | Reasoning | ToolCallStart | ToolCallArgs | ToolCallEnd


@how_many
def test_any_bytes_of_an_engine_leave_as_whole_characters_in_strict_json_in_every_api(examples: int) -> None:
    @thorough(examples)
    @given(PARTS, st.sampled_from([0, 1, 2, 3]), st.booleans(), st.booleans(), TERMINALS)
    def check(parts: list[bytes], size: int, thinking: bool, tools: bool, terminal: Terminal) -> None:
        happened = assembled(tokens(parts, size), config(thinking=thinking, tools=[F, G] if tools else ()), terminal)
        told = said(happened)
        check_chat(happened, told)
        check_messages(happened, told)
        check_responses(happened, told)

    check()


@how_many
def test_any_bytes_of_a_completion_are_the_characters_that_they_are(examples: int) -> None:
    @thorough(examples)
    @given(PARTS, st.sampled_from([0, 1, 2, 3]), TERMINALS)
    def check(parts: list[bytes], size: int, terminal: Terminal) -> None:
        expected = b"".join(parts).decode("utf-8", "replace")
        happened = assembled(tokens(parts, size), replace(config(), plain=True), terminal)
        for choices in (1, 2):
            of = completions.Head("cmpl-1", 1, "m", choices=choices)
            told = [*happened[:-1], *in_choices(happened, choices)]
            ending = check_completion_stream(stream(completions.CompletionStream(of).frames(told)), choices)
            assert ending.texts[0] == expected
        collected = completions.CollectedCompletion(completions.Head("cmpl-1", 1, "m"))
        for event in happened[:-1]:
            collected.add(event)
        if isinstance(happened[-1], Finished):
            assert check_completion(body_of(collected.completion(happened[-1]))).texts == (expected,)

    check()


def in_choices(happened: list[Event], choices: int) -> Iterator[Event]:
    """The ending of an answer of several choices: of the first its own, then that of all."""
    end = happened[-1]
    if choices > 1 and isinstance(end, Finished):
        yield from (OfChoice(index, Finished("stop")) for index in range(choices))
    yield end


# --- names, ids and causes ---------------------------------------------------------------------------

ODD = "m\x00\x1b[0m\x85\u2028\u2029\r\n\"\\'😀\ufffd data: [DONE]"


@pytest.mark.parametrize("terminal", [Finished("stop"), Failed(FailKind.ERR, ODD), Failed(FailKind.REFUSED, ODD)])
def test_odd_names_ids_and_causes_are_escaped_in_every_api(terminal: Terminal) -> None:
    call: list[Event] = [ToolCallStart(0, ODD, ODD), ToolCallArgs(0, json.dumps({ODD: ODD})), ToolCallEnd(0)]
    end = Finished("tool_calls", Usage(1, 1)) if isinstance(terminal, Finished) else terminal
    happened: list[Event] = [Accepted(), Text(ODD), *call, end]
    told = said(happened)
    check_chat(happened, told)
    check_messages(happened, told)
    check_responses(happened, told)
    for number, error in enumerate(errors_of(terminal)):
        assert error["message"].strip() == ODD.strip(), number
    named = chat.stream(iter([Accepted(), terminal]), chat.Head(ODD, 1, ODD))
    assert {chunk["model"] for chunk in stream(named).events[:-1] if "model" in chunk} == {ODD}


def errors_of(terminal: Terminal) -> Iterator[Json]:
    """The error of each stream, as a client reads it."""
    if isinstance(terminal, Failed):
        happened: list[Event] = [Accepted(), terminal]
        yield check_chat_stream(stream(chat.stream(iter(happened), chat.Head("c", 1, "m")))).error or {}
        yield check_message_stream(stream(messages.frames(messages.Head("msg_1", "m"), iter(happened)))).error or {}
        of = completions.Head("cmpl-1", 1, "m")
        yield check_completion_stream(stream(completions.CompletionStream(of).frames(happened))).error or {}
        encoder = ResponseEncoder(head())
        made = [*encoder.start(), *encoder.feed(Accepted()), *encoder.feed(ended(terminal))]
        yield check_response_stream(answer(cast("list[Json]", made))).error or {}


def test_the_fragments_are_worth_their_name() -> None:
    joined = b"".join(itertools.chain(FRAGMENTS))
    with pytest.raises(UnicodeDecodeError):
        joined.decode()
    assert len(joined.decode("utf-8", "replace").splitlines()) > 8
