"""The events of an engine become the events of an answer: ends, ticks, usage, closing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.api import EngineDied
from engine.events import (
    Accepted,
    Cancelled,
    EngineEvent,
    Event,
    Failed,
    FailKind,
    Finished,
    Progress,
    Reasoning,
    Text,
    Tick,
    Token,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from serve.assemble import ParseConfig, assemble
from serve.tokenizer import ByteTokenizer
from tests.unit.serve.assemble.dialogue import (
    END_ID,
    LENGTH,
    STOP,
    PieceTokenizer,
    Source,
    config,
    cut,
    events,
    function_call,
    said,
    tell,
)

TOOLS = config(tools=["f"])
F = function_call("f", a="1")


def run(source: Iterator[EngineEvent], pieces: list[bytes], parse: ParseConfig, prompt_tokens: int = 0) -> list[Event]:
    return list(assemble(source, PieceTokenizer(pieces), parse, lambda: "call", prompt_tokens))


# --- what passes -------------------------------------------------------------------------------------


def test_signs_of_life_pass_and_every_token_gives_an_event() -> None:
    source = [Accepted(), Tick(), Progress(1, 2), Token(0), Tick(), Token(1), Token(2), Finished("stop")]
    happened = run(iter(source), [b"<to", b"ol_", b"x"], TOOLS)
    assert happened[:-1] == [Accepted(), Tick(), Progress(1, 2), Tick(), Tick(), Tick(), Text("<tool_x")]


def test_pieces_come_with_the_token_that_makes_them_certain() -> None:
    happened = events([b"<tool_call>\n<function=f>\n", b"<parameter=a>\nx", b"\n</parameter>\n"], TOOLS, LENGTH)
    assert happened[2:-1] == [
        ToolCallStart(0, "call_0", "f"),
        ToolCallArgs(0, '{"a": "x'),
        Tick(),
        ToolCallArgs(0, '"'),
    ]


def test_pieces_of_an_engine_that_speaks_text_pass() -> None:
    assert run(iter([Text("a"), Reasoning("b"), Finished("stop", Usage(1, 2))]), [], TOOLS)[:2] == [
        Text("a"), Reasoning("b"),
    ]  # fmt: skip


# --- end tokens --------------------------------------------------------------------------------------


def test_end_token_has_no_text_and_the_engine_says_how_it_ended() -> None:
    for terminal in (STOP, LENGTH, Failed(FailKind.DIED, "gone"), Cancelled("client")):
        happened = run(iter([Token(0), Token(END_ID), Tick(), terminal]), [b"hi"], TOOLS)
        assert [type(event) for event in happened] == [Text, Tick, Tick, type(terminal)]
        assert said(happened).text == "hi"


@pytest.mark.parametrize(
    "written, parse, reason",
    [
        ("text", TOOLS, "stop"),
        ("why</think>", config(thinking=True), "stop"),
        ("why", config(thinking=True), "stop"),
        (F, TOOLS, "tool_calls"),
        ("", TOOLS, "stop"),
    ],
    ids=["after text", "after the closing think tag", "in the thinking", "after a call", "alone"],
)
def test_end_token_alone_at_the_end_gives_the_right_reason(written: str, parse: ParseConfig, reason: str) -> None:
    pieces = cut(written, None)
    source = [*(Token(index) for index in range(len(pieces))), Token(END_ID), STOP]
    last = run(iter(source), pieces, parse)[-1]
    assert isinstance(last, Finished) and last.reason == reason


def test_engine_that_goes_on_after_the_end_token_is_closed() -> None:
    source = Source([Token(0), Token(END_ID), Tick(), Token(0), Token(0), LENGTH])
    happened = run(source, [b"hi"], TOOLS)
    assert happened == [Text("hi"), Tick(), Tick(), Finished("stop", Usage(completion_tokens=2))]
    assert source.closed and source.read == 4


def test_engine_that_goes_on_in_an_open_call_is_a_failure() -> None:
    source = Source([Token(0), Token(END_ID), Token(0), STOP])
    last = run(source, [b"<tool_call>\n<function=f>\n"], TOOLS)[-1]
    assert isinstance(last, Failed) and last.kind is FailKind.TOOL_CALL
    assert source.closed


# --- stop strings ------------------------------------------------------------------------------------


def test_stop_string_ends_the_answer_at_once_and_closes_the_source_before_the_terminal() -> None:
    source = Source([Token(0), Token(1), Token(2), LENGTH])
    answer = assemble(source, PieceTokenizer([b"one ST", b"OP two", b"x"]), config(stop=["STOP"]), lambda: "", 5)
    assert next(answer) == Text("one ")
    terminal = next(answer)
    assert terminal == Finished("stop", Usage(prompt_tokens=5, completion_tokens=2), "STOP")
    assert source.closed and source.read == 2
    assert list(answer) == []


def test_stop_string_counts_in_the_answer_only() -> None:
    parse = config(thinking=True, tools=["f"], stop=["STOP"])
    result = tell("why STOP?</think>\n\nan answer STOP more", parse)
    assert (result.reasoning, result.text) == ("why STOP?", "an answer ")
    assert result.terminal == Finished("stop", stop_sequence="STOP")
    result = tell("</think>" + function_call("f", a="STOP"), parse)
    assert (result.calls, result.terminal) == ((("f", '{"a": "STOP"}', True),), Finished("tool_calls"))


def test_stop_string_split_in_a_character_is_found() -> None:
    result = tell("a😀b", config(stop=["😀"]))
    assert (result.text, result.terminal) == ("a", Finished("stop", stop_sequence="😀"))


def test_beginning_of_a_stop_string_is_given_at_every_end_and_before_a_call() -> None:
    for terminal in (STOP, LENGTH, Failed(FailKind.DIED, "gone"), Cancelled("client")):
        result = tell("one STO", config(stop=["STOP"]), terminal)
        assert (result.text, result.terminal) == ("one STO", terminal)
    result = tell("one STO" + F + "P", config(tools=["f"], stop=["STOP"]))
    assert (result.text, result.terminal) == ("one STOP", Finished("tool_calls"))
    assert result.order[:2] == ("Text", "ToolCallStart")


def test_stop_string_before_a_call_in_the_same_token_drops_the_call() -> None:
    result = tell("one STOP" + F, config(tools=["f"], stop=["STOP"]))
    assert (result.text, result.calls) == ("one ", ())
    assert result.terminal == Finished("stop", stop_sequence="STOP")


def test_stop_string_after_a_whole_call_keeps_the_call() -> None:
    written = '<tool_call>{"name": "f"}</tool_call> x STOP'
    result = tell(written, config(tools=["f"], stop=["STOP"]))
    assert (result.text, result.calls) == (" x ", (("f", "{}", True),))
    assert result.terminal == Finished("tool_calls", stop_sequence="STOP")


# --- terminals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["a <tool_c", "a <", "a é"[:3], "a "])
def test_held_text_comes_before_every_terminal(written: str) -> None:
    for terminal in (STOP, LENGTH, Failed(FailKind.DIED, "gone"), Cancelled("client")):
        result = tell(written, TOOLS, terminal)
        assert (result.text, result.terminal) == (written, terminal)


def test_half_a_character_at_the_end_becomes_a_replacement_in_its_channel() -> None:
    for parse, channel in ((TOOLS, "text"), (config(thinking=True), "reasoning")):
        for terminal in (STOP, LENGTH, Failed(FailKind.DIED, "gone")):
            assert getattr(tell(b"a" + "😀".encode()[:3], parse, terminal), channel) == "a\ufffd"


def test_half_surrogates_and_0xff_never_come_out() -> None:
    bad = b"x\xed\xa0\xbd\xffy\x00"
    clean = "x\ufffd\ufffd\ufffd\ufffdy\x00"
    assert tell(bad, TOOLS).text == clean
    assert tell(bad, config(thinking=True)).reasoning == clean
    call = b"<tool_call>\n<function=f>\n<parameter=a>\n" + bad + b"\n</parameter>\n</function>\n</tool_call>"
    [(_, arguments, ended)] = tell(call, TOOLS).calls
    assert ended and arguments == '{"a": "x\ufffd\ufffd\ufffd\ufffdy\\u0000"}'


def test_failure_keeps_everything_it_said() -> None:
    terminal = Failed(FailKind.DIED, "exit code 3", exit_code=3)
    last = run(iter([Token(0), terminal]), [b"hi"], TOOLS, 7)[-1]
    assert last == Failed(FailKind.DIED, "exit code 3", Usage(7, 1), exit_code=3)


def test_source_without_a_terminal_gives_none_but_its_held_text() -> None:
    assert run(iter([Token(0)]), [b"a <tool"], TOOLS) == [Text("a "), Text("<tool")]


@pytest.mark.parametrize("error", [EngineDied("gone"), ValueError("ERR"), OSError("disk"), KeyError("ours")])
def test_source_that_raises_gives_its_held_text_first(error: Exception) -> None:
    def source() -> Iterator[EngineEvent]:
        yield Token(0)
        raise error

    answer = assemble(source(), PieceTokenizer([b"a <tool"]), TOOLS, lambda: "call")
    assert [next(answer), next(answer)] == [Text("a "), Text("<tool")]
    with pytest.raises(type(error)):
        next(answer)


def test_token_outside_the_vocabulary_breaks_the_protocol() -> None:
    source = Source([Token(0), Token(77), Token(0), STOP])
    happened = run(source, [b"a <"], TOOLS)
    assert happened[:2] == [Text("a "), Text("<")]
    assert isinstance(happened[2], Failed) and happened[2].kind is FailKind.PROTOCOL
    assert "77" in happened[2].message
    assert source.closed and source.read == 2 and len(happened) == 3


def test_closing_the_answer_closes_the_source() -> None:
    source = Source([Token(0), Token(0), STOP])
    answer = assemble(source, PieceTokenizer([b"a"]), TOOLS, lambda: "call")
    assert next(answer) == Text("a")
    answer.close()
    assert source.closed and source.read == 1


def test_nothing_is_read_after_the_terminal() -> None:
    source = Source([Token(0), STOP, Token(0)])
    assert run(source, [b"a"], TOOLS)[-1] == Finished("stop", Usage(completion_tokens=1))
    assert source.read == 2


# --- usage -------------------------------------------------------------------------------------------


def test_tokens_are_counted_where_the_engine_does_not() -> None:
    source = [Token(0), Token(1), Token(2), Token(END_ID), STOP]
    last = run(iter(source), [b"why", b"</think>", b"so"], config(thinking=True), 11)[-1]
    assert last == Finished("stop", Usage(prompt_tokens=11, completion_tokens=4, reasoning_tokens=2))


def test_counts_of_the_engine_win() -> None:
    counted = Usage(prompt_tokens=20, completion_tokens=9, cached_tokens=15)
    last = run(iter([Token(0), Finished("length", counted)]), [b"why"], config(thinking=True), 11)[-1]
    assert last == Finished("length", Usage(20, 9, 15, reasoning_tokens=1))


def test_failed_and_cancelled_are_counted_too() -> None:
    for terminal in (Failed(FailKind.SILENT, "quiet"), Cancelled("deadline")):
        last = run(iter([Token(0), Token(0), terminal]), [b"a"], TOOLS, 3)[-1]
        assert isinstance(last, Failed | Cancelled) and last.usage == Usage(3, 2)


def test_failure_of_a_call_is_counted() -> None:
    last = run(iter([Token(0), STOP]), [b"<tool_call>"], TOOLS, 3)[-1]
    assert isinstance(last, Failed) and last.usage == Usage(3, 1)


# --- with the real byte tokenizer --------------------------------------------------------------------


def test_byte_tokenizer_gives_the_same_as_pieces() -> None:
    tokenizer = ByteTokenizer()
    written = "why?</think>\n\nWell: é\n" + F
    ids = tokenizer.encode(written + "<|im_end|>", parse_special=True)
    parse = config(thinking=True, tools=["f"], end_ids=tokenizer.end_ids)
    happened = list(assemble(iter([*map(Token, ids), STOP]), tokenizer, parse, lambda: "call_0"))
    assert said(happened) == tell(written, parse)
    assert isinstance(happened[-2], ToolCallEnd)
