"""Which channel each character goes to, at every kind of end."""

from __future__ import annotations

import pytest

from engine.events import Cancelled, Failed, FailKind, Finished, Reasoning, Terminal, Text, ToolCallStart
from serve.assemble import ParseConfig
from serve.assemble.channels import Channels
from tests.unit.serve.assemble.dialogue import LENGTH, STOP, Said, config, function_call, json_call, tell

PLAIN = config()
THINKING = config(thinking=True)
TOOLS = config(tools=["f", "g"])
BOTH = config(thinking=True, tools=["f", "g"])
DIED = Failed(FailKind.DIED, "gone")
GONE = Cancelled("client")
CALLED = Finished("tool_calls")
F = function_call("f", a="1")
F_ARGS = ("f", '{"a": "1"}', True)
UNDECLARED = function_call("other", a="1")
ORDER = ("Text", "Reasoning", "ToolCallStart", "ToolCallArgs", "ToolCallEnd")


def check(
    said: Said, *, text: str = "", reasoning: str = "", calls: tuple[object, ...] = (), end: Terminal = STOP
) -> None:
    assert (said.text, said.reasoning, said.calls, said.terminal) == (text, reasoning, calls, end)


# --- reasoning ---------------------------------------------------------------------------------------

REASONING: dict[str, tuple[str, ParseConfig, str, str]] = {
    "no thinking, no tags": ("hello", PLAIN, "", "hello"),
    "thinking that ends": ("why</think>\n\nhello", THINKING, "why", "hello"),
    "newlines before the tag stay": ("why\n</think>hello", THINKING, "why\n", "hello"),
    "only newlines are framing": ("why</think>\n \nhello", THINKING, "why", " \nhello"),
    "newlines in the answer stay": ("why</think>\n\nhello\n\nyou\n", THINKING, "why", "hello\n\nyou\n"),
    "thinking that never ends": ("why", THINKING, "why", ""),
    "thinking that ends with a half tag": ("why</thi", THINKING, "why</thi", ""),
    "thinking opened again by the model": ("<think>\nwhy</think>hello", THINKING, "why", "hello"),
    "thinking opened by the model itself": ("<think>\nwhy</think>\nhello", PLAIN, "why", "hello"),
    "an empty thinking": ("</think>\n\nhello", THINKING, "", "hello"),
    "an empty thinking by the model itself": ("<think>\n\n</think>\n\nhello", PLAIN, "", "hello"),
    "a tag later in the answer": ("a <think>b</think> c", PLAIN, "", "a <think>b</think> c"),
    "a second closing tag": ("why</think>a</think>b", THINKING, "why", "a</think>b"),
    "an opening tag in the thinking": ("why <think> so</think>a", THINKING, "why <think> so", "a"),
    "a call without tools": (F, PLAIN, "", F),
    "a call in the thinking without tools": (F, THINKING, F, ""),
    "closed, then nothing": ("why</think>", THINKING, "why", ""),
    "nothing at all": ("", THINKING, "", ""),
}


@pytest.mark.parametrize("written, parse, reasoning, text", REASONING.values(), ids=REASONING)
@pytest.mark.parametrize("terminal", [STOP, LENGTH, DIED, GONE], ids=["stop", "length", "died", "cancelled"])
def test_reasoning_and_answer_are_told_apart(
    written: str, parse: ParseConfig, reasoning: str, text: str, terminal: Terminal
) -> None:
    check(tell(written, parse, terminal), reasoning=reasoning, text=text, end=terminal)


def test_reasoning_that_ate_the_cap_is_never_copied_into_the_answer() -> None:
    check(tell("long thoughts", THINKING, LENGTH), reasoning="long thoughts", end=LENGTH)


# --- calls in the answer -----------------------------------------------------------------------------

CALLS: dict[str, tuple[str, str, tuple[object, ...]]] = {
    "one": (F, "", (F_ARGS,)),
    "one in JSON": (json_call("f", '{"a": 1}'), "", (("f", '{"a": 1}', True),)),
    "text before": ("I look.\n\n" + F, "I look.\n\n", (F_ARGS,)),
    "two": (F + "\n" + json_call("g", "{}"), "", (F_ARGS, ("g", "{}", True))),
    "two without anything between": (F + F, "", (F_ARGS, F_ARGS)),
    "three, with white space around": (F + "\n\n" + F + " " + F + "\n", "", (F_ARGS, F_ARGS, F_ARGS)),
    "white space, then text": (json_call("f", "{}") + "\n\nok", "\n\nok", (("f", "{}", True),)),
    "on one line": ('<tool_call>{"name":"f","arguments":{}}</tool_call>', "", (("f", "{}", True),)),
}


@pytest.mark.parametrize("written, text, calls", CALLS.values(), ids=CALLS)
def test_whole_calls_are_calls(written: str, text: str, calls: tuple[object, ...]) -> None:
    check(tell(written, TOOLS), text=text, calls=calls, end=CALLED)
    check(tell("why\n</think>\n\n" + written, BOTH), reasoning="why\n", text=text, calls=calls, end=CALLED)


def test_whole_call_before_the_token_limit_is_whole_and_the_end_is_length() -> None:
    check(tell(F, TOOLS, LENGTH), calls=(F_ARGS,), end=LENGTH)
    check(tell(F + "\n<tool_c", TOOLS, LENGTH), calls=(F_ARGS,), text="\n<tool_c", end=LENGTH)


TEXTS = {
    "an undeclared tool": UNDECLARED,
    "an undeclared tool in JSON": json_call("other", '{"a": [1]}'),
    "an undeclared tool between texts": f"a {UNDECLARED} b",
    "an undeclared tool with a declared one inside": function_call("other", a=F),
    "a mention": "Write <tool_call> to call.",
    "two mentions": "<tool_call> and <tool_call> and </tool_call>",
    "a mention in backticks": "`<tool_call>`",
    "a placeholder": "<tool_call>{name}</tool_call>",
    "an empty object": "<tool_call>{}</tool_call>",
    "an array": "<tool_call>[1]</tool_call>",
    "a parameter without a function": "<tool_call><parameter=a>",
    "only a closing tag": "</tool_call></function></parameter>",
    "a half tag": "x <tool_c",
    "a function without a call": "<function=f>",
    "HTML": "<b>bold</b> < <",
    "an undeclared tool, broken": "<tool_call><function=other>hello",
}


@pytest.mark.parametrize("written", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("terminal", [STOP, LENGTH, DIED, GONE], ids=["stop", "length", "died", "cancelled"])
def test_what_is_no_call_of_a_declared_tool_stays_text(written: str, terminal: Terminal) -> None:
    check(tell(written, TOOLS, terminal), text=written, end=terminal)


def test_undeclared_call_and_declared_call_each_get_their_channel() -> None:
    check(tell(F + UNDECLARED + F, TOOLS), text=UNDECLARED, calls=(F_ARGS, F_ARGS), end=CALLED)


OPEN = {
    "only the tag": "<tool_call>",
    "the tag and half the next": "<tool_call>\n<func",
    "half a name": "<tool_call>\n<function=get_wea",
    "half a name in JSON": '<tool_call>\n{"name": "get_wea',
    "a brace": "<tool_call>\n{",
    "a key": '<tool_call>\n{"na',
    "arguments without a name": '<tool_call>\n{"arguments": {"a": 1}, ',
    "JSON without a name, not closed": '<tool_call>\n{"a": 1}\n</tool_c',
    "JSON that breaks before the name, not closed": '<tool_call>\n{"name" "f"}\nand so on',
}


@pytest.mark.parametrize("written", OPEN.values(), ids=OPEN)
def test_model_that_ends_in_a_call_without_a_name_fails_and_shows_it_only_in_the_message(written: str) -> None:
    said = tell("I look. " + written, TOOLS)
    assert (said.text, said.calls) == ("I look. ", ())
    assert isinstance(said.terminal, Failed) and said.terminal.kind is FailKind.TOOL_CALL
    assert repr(written)[1:-1] in said.terminal.message


@pytest.mark.parametrize("written", OPEN.values(), ids=OPEN)
def test_call_without_a_name_at_the_token_limit_is_no_answer(written: str) -> None:
    check(tell("I look. " + written, TOOLS, LENGTH), text="I look. ", end=LENGTH)


@pytest.mark.parametrize("written", OPEN.values(), ids=OPEN)
@pytest.mark.parametrize("terminal", [DIED, GONE], ids=["died", "cancelled"])
def test_call_without_a_name_is_released_before_a_failure(written: str, terminal: Terminal) -> None:
    check(tell("I look. " + written, TOOLS, terminal), text="I look. " + written, end=terminal)


NAMELESS = {
    "a JSON object without a name": '<tool_call>\n{"a": 1}\n</tool_call>',
    "JSON that breaks before the name": '<tool_call>\n{"name" "f"}\n</tool_call>',
    "JSON that breaks at the closing tag": '<tool_call>{"name": </tool_call>',
    "an empty name": '<tool_call>{"name": "", "arguments": {}}</tool_call>',
}
AFTER: dict[str, tuple[str, str, tuple[object, ...]]] = {
    "nothing": ("", "", ()),
    "text": (" so I said.", " so I said.", ()),
    "a mention": ("<tool_call> x", "<tool_call> x", ()),
    "a whole call": (f"\n{F}", "\n", (F_ARGS,)),
    "an undeclared call": (UNDECLARED, UNDECLARED, ()),
}


@pytest.mark.parametrize("after, text, calls", AFTER.values(), ids=AFTER)
@pytest.mark.parametrize("broken", NAMELESS.values(), ids=NAMELESS)
def test_closed_call_without_a_name_is_shown_as_no_success_and_nothing_after_it_is_lost(
    broken: str, after: str, text: str, calls: tuple[object, ...]
) -> None:
    written, shown = f"I look. {broken}{after}", f"I look. {broken}{text}"
    for terminal in (LENGTH, DIED, GONE):
        check(tell(written, TOOLS, terminal), text=shown, calls=calls, end=terminal)
    said = tell(written, TOOLS)
    assert (said.text, said.calls) == (shown, calls)
    assert isinstance(said.terminal, Failed) and said.terminal.kind is FailKind.TOOL_CALL
    assert repr(broken)[1:-1] in said.terminal.message


def test_stop_string_after_a_broken_call_is_no_success_and_one_before_it_is() -> None:
    broken = '<tool_call>{"name" "f"}</tool_call>'
    parse = config(tools=["f"], stop=["STOP"])
    for terminal in (STOP, LENGTH, DIED):
        said = tell(f"a {broken} b STOP c", parse, terminal)
        assert said.text == f"a {broken} b "
        assert isinstance(said.terminal, Failed) and said.terminal.kind is FailKind.TOOL_CALL
        check(tell(f"a STOP {broken}", parse, terminal), text="a ", end=Finished("stop", stop_sequence="STOP"))


@pytest.mark.parametrize("rest", ["</", "</too", "</think", "<tool_c", "<tool_call", "<para", "<parameter=a", "<t"])
def test_half_a_tag_that_opens_no_call_makes_the_mention_before_it_no_call(rest: str) -> None:
    for written in (f"<tool_call>{rest}", f"write <tool_call>\n {rest}"):
        for terminal in (STOP, LENGTH, DIED, GONE):
            check(tell(written, TOOLS, terminal), text=written, end=terminal)
            check(tell(written, BOTH, terminal), reasoning=written, end=terminal)


def test_undeclared_call_that_is_open_fails_at_the_end_and_is_text_when_cut() -> None:
    written = "<tool_call>\n<function=other>\n<parameter=a>\nx"
    said = tell(written, TOOLS)
    assert isinstance(said.terminal, Failed) and said.terminal.kind is FailKind.TOOL_CALL
    assert (said.text, said.calls) == ("", ())
    for terminal in (LENGTH, DIED, GONE):
        check(tell(written, TOOLS, terminal), text=written, end=terminal)


def test_message_of_a_long_broken_call_is_cut() -> None:
    said = tell('<tool_call>{"x": "' + "y" * 5_000, TOOLS)
    assert isinstance(said.terminal, Failed)
    assert len(said.terminal.message) < 400


def test_broken_arguments_in_json_leave_the_call_open_and_fail() -> None:
    written = '<tool_call>{"name": "f", "arguments": {"a": x}}</tool_call>' + F
    said = tell(written, TOOLS)
    assert [(name, ended) for name, _, ended in said.calls] == [("f", False)]
    assert said.text == ""
    assert isinstance(said.terminal, Failed) and "'f'" in said.terminal.message
    assert tell(written, TOOLS, LENGTH).terminal == LENGTH
    assert tell(written, TOOLS, DIED).terminal == DIED


# --- calls in the reasoning --------------------------------------------------------------------------


def test_whole_declared_call_in_unclosed_reasoning_is_a_call() -> None:
    check(tell("I should.\n\n" + F, BOTH), reasoning="I should.\n\n", calls=(F_ARGS,), end=CALLED)
    check(tell(F + "\n" + json_call("g", "{}") + "\n", BOTH), calls=(F_ARGS, ("g", "{}", True)), end=CALLED)


def test_text_around_calls_in_unclosed_reasoning_stays_reasoning() -> None:
    said = tell("a " + json_call("f", "{}") + " b " + F + "\nc", BOTH)
    check(said, reasoning="a  b \nc", calls=(("f", "{}", True), F_ARGS), end=CALLED)
    assert said.order == ("Reasoning", *ORDER[2:], *ORDER[2:])


def test_undeclared_call_in_unclosed_reasoning_stays_reasoning() -> None:
    for written in (UNDECLARED, "a " + json_call("other", "{}") + " b", function_call("other", calls=F)):
        check(tell(written, BOTH), reasoning=written)


def test_call_in_reasoning_that_ends_was_only_a_thought() -> None:
    check(tell(f"maybe {F} no</think>\n\nDone.", BOTH), reasoning=f"maybe {F} no", text="Done.")
    check(tell(f"{F}\n</think>\n\n{F}", BOTH), reasoning=f"{F}\n", calls=(F_ARGS,), end=CALLED)
    check(
        tell(f"<tool_call>\n<function=f>\n</think>{F}", BOTH),
        reasoning="<tool_call>\n<function=f>\n",
        calls=(F_ARGS,),
        end=CALLED,
    )


@pytest.mark.parametrize("terminal", [LENGTH, DIED, GONE], ids=["length", "died", "cancelled"])
def test_call_in_reasoning_that_was_cut_stays_reasoning(terminal: Terminal) -> None:
    for written in (f"a {F} b", F + "\n", "<tool_call>\n<function=f>\n<parameter=a>\nx", "<tool_call>"):
        check(tell(written, BOTH, terminal), reasoning=written, end=terminal)


def test_open_call_in_unclosed_reasoning_fails_and_stays_readable() -> None:
    for written in ("<tool_call>", "<tool_call>\n<function=get_w", "<tool_call>\n<function=f>\n<parameter=a>\nx"):
        said = tell("hm " + written, BOTH)
        assert (said.reasoning, said.text, said.calls) == ("hm " + written, "", ())
        assert isinstance(said.terminal, Failed) and said.terminal.kind is FailKind.TOOL_CALL


def test_broken_declared_call_in_unclosed_reasoning_fails_unless_the_reasoning_ends() -> None:
    broken = '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'
    said = tell(broken, BOTH)
    assert said.reasoning == broken
    assert isinstance(said.terminal, Failed) and said.terminal.kind is FailKind.TOOL_CALL
    check(tell(broken + "</think>ok", BOTH), reasoning=broken, text="ok")


def test_mention_of_a_call_in_reasoning_is_reasoning() -> None:
    check(tell("the <tool_call> tag and {x}", BOTH), reasoning="the <tool_call> tag and {x}")


# --- while it streams --------------------------------------------------------------------------------


def feed(channels: Channels, *texts: str) -> list[list[object]]:
    return [list(channels.feed(text)) for text in texts]


def test_text_is_given_as_soon_as_it_is_certain() -> None:
    assert feed(Channels(TOOLS, lambda: "id"), "a", " <", "b", "<tool", "s>") == [
        [Text("a")], [Text(" ")], [Text("<b")], [], [Text("<tools>")],
    ]  # fmt: skip
    assert feed(Channels(THINKING, lambda: "id"), "a", "</thin", "k>", "\n", "\nb") == [
        [Reasoning("a")], [], [], [], [Text("b")],
    ]  # fmt: skip


def test_call_starts_as_soon_as_its_name_is_known() -> None:
    started = ToolCallStart(0, "id", "f")
    assert feed(Channels(TOOLS, lambda: "id"), "<tool_call>\n<function=f", ">") == [[], [started]]
    assert feed(Channels(TOOLS, lambda: "id"), '<tool_call>{"name": "f', '"') == [[], [started]]


def test_reasoning_is_known_for_every_token() -> None:
    channels = Channels(BOTH, lambda: "id")
    inside = [(channels.in_reasoning, channels.feed(text))[0] for text in ("a", "<tool_call>", "{", "</think>", "b")]
    assert inside == [True, True, True, True, False]


def test_one_call_id_is_made_for_each_call_and_none_for_text() -> None:
    made: list[str] = []

    def new_call_id() -> str:
        made.append(f"call_{len(made)}")
        return made[-1]

    channels = Channels(BOTH, new_call_id)
    channels.feed(f"{F}</think>{UNDECLARED}{F}{F}")
    channels.finish("stop")
    assert made == ["call_0", "call_1"]
