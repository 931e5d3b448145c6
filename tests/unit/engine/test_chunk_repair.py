"""Each defect of a chunk's form is mended, nothing else is touched, and what is right stays the same object."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from engine.chat_reader import ChatReader, ChunkBroken
from engine.chunk_repair import ChunkRepair, Identity, choices_of
from engine.events import Event
from engine.token_counts import TokenCounts

HEAD: dict[str, Any] = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
FIRST: dict[str, Any] = {"role": "assistant", "content": ""}


class Stream:
    """A repair with its readers."""

    def __init__(
        self, choices: int = 1, *, forced: bool = False, named_call: bool = False, tools: tuple[str, ...] = ()
    ) -> None:
        numbers, counts = count(), TokenCounts()
        self.readers = [ChatReader(lambda: f"call_new{next(numbers)}", "it", counts) for _ in range(choices)]
        identity = Identity("ours", 7, "our-model", forced=forced)
        self.repair = ChunkRepair(identity, self.readers, named_call=named_call, tools=tools)

    def put(self, chunk: dict[str, Any]) -> Any:
        choices = choices_of(chunk)
        made: dict[int, list[Event]] = {index: [] for index in range(len(self.readers))}
        for index, choice in choices:
            if index in made:
                made[index] += self.readers[index].chunk({"choices": [{**choice, "index": 0}]})
                assert self.readers[index].terminal is None
        return self.repair.repaired(chunk, choices, made)


def chunk(delta: Any = None, finish: Any = None, index: Any = 0, **more: Any) -> dict[str, Any]:
    choices = [{"index": index, "delta": FIRST if delta is None else delta, "finish_reason": finish}]
    return {**HEAD, "choices": choices, **more}


def without(value: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key != name}


def test_a_right_chunk_stays_itself() -> None:
    stream = Stream()
    usage: dict[str, Any] = {**HEAD, "choices": [], "usage": {"prompt_tokens": 1}}
    for one in (
        chunk(),
        chunk({"content": "x"}),
        chunk({"role": "assistant", "content": "x"}),
        chunk({}, "stop"),
        usage,
    ):
        assert stream.put(one) is one


HEADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no id": (without(chunk(), "id"), {"id": "ours"}),
    "id null": (chunk(id=None), {"id": "ours"}),
    "id empty": (chunk(id=""), {"id": "ours"}),
    "id a number": (chunk(id=7), {"id": "ours"}),
    "no object": (without(chunk(), "object"), {"object": "chat.completion.chunk"}),
    "wrong object": (chunk(object="chat.completion"), {"object": "chat.completion.chunk"}),
    "no created": (without(chunk(), "created"), {"created": 7}),
    "created null": (chunk(created=None), {"created": 7}),
    "created a fraction": (chunk(created=5.75), {"created": 5}),
    "created a text": (chunk(created="5"), {"created": 7}),
    "no model": (without(chunk(), "model"), {"model": "our-model"}),
    "model empty": (chunk(model=""), {"model": "our-model"}),
    "empty usage": (chunk(usage={}), {"usage": None}),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_member_that_clients_need_is_put_right_and_the_others_stay(name: str) -> None:
    given, changes = HEADS[name]
    assert Stream().put({**given, "odd": 1}) == {**chunk(), "odd": 1} | changes


def test_one_stream_has_one_id() -> None:
    stream = Stream()
    assert stream.put(chunk())["id"] == "c1"
    assert stream.put(chunk({"content": "x"}, id="c2"))["id"] == "c1"
    assert stream.put(without(chunk({"content": "x"}), "id"))["id"] == "c1"
    assert stream.repair.head == {**HEAD, "id": "c1"}


def test_an_id_may_come_after_a_chunk_without_choices() -> None:
    stream = Stream()
    azure = {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": [{"a": 1}]}
    assert stream.put(azure) == azure | {"id": "ours", "object": "chat.completion.chunk", "model": "our-model"}
    first = chunk()
    assert stream.put(first) is first


def test_a_forced_id_is_the_id_of_every_chunk() -> None:
    stream = Stream(forced=True)
    assert [stream.put(one)["id"] for one in (chunk(), chunk({}, "stop"))] == ["ours", "ours"]


def test_what_a_chunk_lacks_is_as_in_the_one_before() -> None:
    stream = Stream()
    stream.put(chunk())
    assert stream.put({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}) == chunk(
        {"content": "x"}
    )


@pytest.mark.parametrize("choices", [None, "missing"])
def test_choices_are_a_list(choices: Any) -> None:
    given = {**HEAD, "usage": {"prompt_tokens": 1}} | ({} if choices else {"choices": None})
    assert Stream().put(given) == {**HEAD, "usage": {"prompt_tokens": 1}, "choices": []}


@pytest.mark.parametrize(("choices", "message"), [({}, "choices is not a list"), ([7], "a choice is not an object")])
def test_choices_of_the_wrong_shape_are_refused(choices: Any, message: str) -> None:
    with pytest.raises(ChunkBroken, match=message):
        choices_of({"choices": choices})


CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no index": ({"delta": FIRST, "finish_reason": None}, {}),
    "index null": ({"index": None, "delta": FIRST, "finish_reason": None}, {}),
    "index a text": ({"index": "0", "delta": FIRST, "finish_reason": None}, {}),
    "index a fraction": ({"index": 0.0, "delta": FIRST, "finish_reason": None}, {}),
    "index false": ({"index": False, "delta": FIRST, "finish_reason": None}, {}),
    "no delta": ({"index": 0, "finish_reason": None}, {"delta": {"role": "assistant"}}),
    "delta null": ({"index": 0, "delta": None, "finish_reason": None}, {"delta": {"role": "assistant"}}),
    "no finish": ({"index": 0, "delta": FIRST}, {}),
    "finish empty": ({"index": 0, "delta": FIRST, "finish_reason": ""}, {}),
    "no role": (
        {"index": 0, "delta": {"content": "x"}, "finish_reason": None},
        {"delta": {"content": "x", "role": "assistant"}},
    ),
    "role null": (
        {"index": 0, "delta": {"role": None, "content": "x"}, "finish_reason": None},
        {"delta": {"role": "assistant", "content": "x"}},
    ),
    "content in parts": (
        {
            "index": 0,
            "delta": {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                    {"type": "text", "text": "x"},
                ],
            },
            "finish_reason": None,
        },
        {"delta": {"role": "assistant", "content": "x", "reasoning_content": "hm"}},
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_put_right(name: str) -> None:
    given, changes = CHOICES[name]
    (choice,) = Stream().put({**HEAD, "choices": [{**given, "odd": 1}]})["choices"]
    assert choice == {"index": 0, "delta": FIRST, "finish_reason": None, "odd": 1} | changes
    assert isinstance(choice["index"], int)
    assert not isinstance(choice["index"], bool)


def test_a_role_is_said_once_unless_it_is_the_same() -> None:
    stream = Stream()
    stream.put(chunk())
    assert stream.put(chunk({"role": "", "content": "x"})) == chunk({"content": "x"})
    for role in ("assistant", None):
        same = chunk({"role": role, "content": "x"})
        assert stream.put(same) is same


def test_a_message_in_the_place_of_a_delta_is_one_and_keeps_its_members() -> None:
    call = {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "x", "annotations": [1], "tool_calls": [call]}
    given = {
        **HEAD,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    (choice,) = Stream().put(given)["choices"]
    assert choice == {
        "index": 0,
        "delta": {**message, "tool_calls": [{"index": 0, **call}]},
        "finish_reason": "tool_calls",
    }


def test_a_message_that_was_said_already_is_not_said_again() -> None:
    stream = Stream()
    stream.put(chunk({"role": "assistant", "content": "x"}))
    message = {"role": "assistant", "content": "x"}
    given = {**HEAD, "choices": [{"index": 0, "message": message, "delta": None, "finish_reason": "stop"}]}
    assert stream.put(given) == chunk({}, "stop")


# --- finish words -------------------------------------------------------------------------------------


def call(arguments: Any = "", index: Any = 0, name: Any = "f", id_: Any = "call_a", type_: Any = "function") -> Any:
    fields = {"index": index, "id": id_, "type": type_}
    function = {"name": name, "arguments": arguments}
    made = {key: item for key, item in fields.items() if item is not None}
    return {**made, "function": {key: item for key, item in function.items() if item is not None}}


def more(arguments: Any, index: Any = 0, **fields: Any) -> Any:
    return call(arguments, index, **{"name": None, "id_": None, "type_": None} | fields)


def calls(*given: Any) -> dict[str, Any]:
    return {"tool_calls": list(given)}


@pytest.mark.parametrize("word", ["stop", "length", "content_filter"])
def test_a_word_of_the_enum_stays(word: str) -> None:
    stream = Stream()
    stream.put(chunk())
    last = chunk({}, word)
    assert stream.put(last) is last


@pytest.mark.parametrize("word", ["abort", "cancelled", "eos_token", "error", "tool_calls", "function_call"])
def test_a_word_that_is_not_true_is_not_said(word: str) -> None:
    stream = Stream()
    stream.put(chunk())
    assert stream.put(chunk({"content": "x"}, word)) == chunk({"content": "x"})


@pytest.mark.parametrize("word", ["stop", "tool_calls"])
@pytest.mark.parametrize("arguments", ["", '{"a": ', "[]"])
def test_a_success_over_cut_arguments_is_not_said(word: str, arguments: str) -> None:
    stream = Stream()
    stream.put(chunk({"role": "assistant", **calls(call(arguments))}))
    assert stream.put(chunk({}, word)) == chunk({})


@pytest.mark.parametrize("word", ["length", "content_filter"])
def test_a_cut_over_cut_arguments_is_true(word: str) -> None:
    stream = Stream()
    stream.put(chunk({"role": "assistant", **calls(call('{"a": '))}))
    last = chunk({}, word)
    assert stream.put(last) is last


def test_stop_after_a_call_becomes_tool_calls_unless_the_request_named_the_tool() -> None:
    for named, word in ((False, "tool_calls"), (True, "stop")):
        stream = Stream(named_call=named)
        stream.put(chunk({"role": "assistant", **calls(call("{}"))}))
        assert stream.put(chunk({}, "stop")) == chunk({}, word)
        assert stream.repair.ends_in_calls(0) is not named


def test_a_legacy_call_keeps_its_words() -> None:
    for word in ("function_call", "stop"):
        stream = Stream()
        first = chunk({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}})
        last = chunk({}, word)
        assert stream.put(first) is first
        assert stream.put(last) is last
        assert stream.repair.late_calls(0) is None


def test_a_choice_ends_once() -> None:
    stream = Stream()
    stream.put(chunk())
    stream.put(chunk({}, "stop"))
    assert stream.put(chunk({}, "stop")) is None
    assert stream.put(chunk({"content": ""})) is None
    assert stream.put(chunk({}, "stop", usage={"prompt_tokens": 1})) == {
        **HEAD,
        "choices": [],
        "usage": {"prompt_tokens": 1},
    }


def test_choices_end_each_for_itself_and_those_not_asked_for_are_dropped() -> None:
    stream = Stream(2)
    stream.put({**HEAD, "choices": chunk()["choices"] + chunk(index=1)["choices"]})
    last = chunk({}, "stop", 1)
    assert stream.put(last) is last
    both = {**HEAD, "choices": chunk({"content": "x"})["choices"] + chunk({}, "stop", 1)["choices"]}
    assert stream.put(both) == chunk({"content": "x"})
    assert stream.put(chunk({"content": "x"}, index=2)) is None
    assert stream.put(chunk({"content": "x"}, index=-1)) is None


def test_choices_without_an_index_have_that_of_their_place() -> None:
    choices = [without(chunk()["choices"][0], "index") for _ in range(2)]
    made = Stream(2).put({**HEAD, "choices": choices})["choices"]
    assert [choice["index"] for choice in made] == [0, 1]


# --- calls --------------------------------------------------------------------------------------------

RIGHT: dict[str, list[dict[str, Any]]] = {
    "as openai writes it": [calls(call()), calls(more("{")), calls(more("}"))],
    "with nulls": [
        calls(call()),
        calls({"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": "{}"}}),
    ],
    "empty id and name later": [calls(call()), calls(more("{}", id_="", name=""))],
    "arguments at once": [calls(call("{}"))],
    "two": [calls(call("{}")), calls(call("", 1, id_="call_b")), calls(more("{}", 1))],
    "two in one delta": [calls(call("{}"), call("{}", 1, id_="call_b"))],
    "interleaved": [calls(call("{")), calls(call("{", 1, id_="call_b")), calls(more("}"), more("}", 1))],
    "a name in pieces": [calls(call(name="we")), calls(more(None, name="ather")), calls(more("{}"))],
    "nothing new": [calls(call("{}")), calls(more("")), calls(more(None))],
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_calls_stay_as_they_are(name: str) -> None:
    stream = Stream()
    stream.put(chunk())
    for delta in RIGHT[name]:
        one = chunk(delta)
        assert stream.put(one) is one


WRONG: dict[str, tuple[list[dict[str, Any]], list[list[Any]]]] = {
    "no index": (
        [calls(call(index=None)), calls(more("{", None)), calls(more("}", None))],
        [[], [call("{")], [more("}")]]),
    "index a text": ([calls(call(index="0")), calls(more("{}", "0"))], [[], [call("{}")]]),
    "index from 1": ([calls(call(index=1)), calls(more("{}", 1))], [[], [call("{}")]]),
    "every index 0": (
        [calls(call("{}")), calls(call("", id_="call_b")), calls(more("{}"))],
        [[call("{}")], [], [call("{}", 1, id_="call_b")]]),
    "every id the same": (
        [calls(call("{}")), calls(call("{}", 1))], [[call("{}")], [call("{}", 1, id_="call_new0")]]),
    "no id": ([calls(call(id_=None)), calls(more("{}"))], [[], [call("{}", id_="call_new0")]]),
    "id empty": ([calls(call("{}", id_=""))], [[call("{}", id_="call_new0")]]),
    "no type": ([calls(call("{}", type_=None))], [[call("{}")]]),
    "no arguments": ([calls(call(None)), calls(more("{}"))], [[], [call("{}")]]),
    "arguments an object": ([calls(call({"a": 1}))], [[call('{"a": 1}')]]),
    "id and name with every piece": (
        [calls(call("")), calls(call("{")), calls(call("}"))], [[call("")], [more("{")], [more("}")]]),
    "two entries for one index": ([calls(call(""), more("{")), calls(more("}"))], [[call(""), more("{")], [more("}")]]),
    "arguments before the name": (
        [calls(call("{", name=None)), calls(more("}", name="f"))], [[], [call("{}")]]),
    "without index and id": (
        [calls(call("{}", None, id_=None)), calls(call("{}", None, name="g", id_=None))],
        [[call("{}", id_="call_new0")], [call("{}", 1, "g", "call_new1")]]),
    "another name under the same index": (
        [calls(call("{}")), calls(call("{}", 0, "g", None))], [[call("{}")], [call("{}", 1, "g", "call_new0")]]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_told_with_index_id_type_and_name_once(name: str) -> None:
    deltas, expected = WRONG[name]
    stream = Stream()
    stream.put(chunk())
    told = [stream.put(chunk(delta))["choices"][0]["delta"].get("tool_calls", []) for delta in deltas]
    assert told == expected
    assert stream.repair.late_calls(0) is None


@pytest.mark.parametrize("arguments", ["missing", "null"])
def test_a_call_that_begins_without_arguments_stays_as_it_is_where_its_tool_is_declared(arguments: str) -> None:
    stream = Stream(tools=("g", "f"))
    stream.put(chunk())
    begun = call(None)
    if arguments == "null":
        begun["function"]["arguments"] = None
    for delta in (calls(begun), calls(more("{")), calls(more("}")), calls(call(None, 1, "g", "call_b"))):
        one = chunk(delta)
        assert stream.put(one) is one
    assert stream.put(chunk({}, "tool_calls")) == chunk({}), "the last call has no arguments"


UNSURE: dict[str, tuple[tuple[str, ...], Any]] = {
    "a tool that is not declared": (("g",), call(None)),
    "a name that another one begins with": (("f", "fetch"), call(None)),
    "no id": (("f",), call(None, id_=None)),
    "no type": (("f",), call(None, type_=None)),
    "no index": (("f",), call(None, index=None)),
    "an index that is not the next": (("f",), call(None, index=3)),
}


@pytest.mark.parametrize("name", UNSURE)
def test_a_call_that_begins_without_arguments_and_in_another_way_waits_for_them(name: str) -> None:
    tools, begun = UNSURE[name]
    stream = Stream(tools=tools)
    stream.put(chunk())
    assert stream.put(chunk(calls(begun)))["choices"][0]["delta"] == {}
    index = begun.get("index")
    told = stream.put(chunk(calls(more("{}", index))))["choices"][0]["delta"]["tool_calls"]
    assert told == [call("{}", id_="call_new0" if name == "no id" else "call_a")]


def test_the_whole_name_of_a_declared_tool_that_comes_in_pieces_is_told_once() -> None:
    stream = Stream(tools=("get", "get_weather"))
    stream.put(chunk())
    told = [
        stream.put(chunk(calls(one)))["choices"][0]["delta"].get("tool_calls")
        for one in (call(None, name="get"), more(None, name="_weather"), more("{}"))
    ]
    assert told == [None, None, [call("{}", name="get_weather")]]


def test_a_call_that_waited_for_its_arguments_is_told_in_the_end() -> None:
    stream = Stream()
    stream.put(chunk({"content": "x"}))
    stream.put(chunk(calls(call(index=None, name="wea"))))
    stream.put(chunk({}, "length"))
    stream.readers[0].end()
    late = stream.repair.late_calls(0)
    assert late == chunk(calls(call(name="wea")))
    assert stream.repair.late_calls(0) is None


# --- whole bodies -------------------------------------------------------------------------------------

BODY: dict[str, Any] = {
    **HEAD,
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1},
}
CALLING = {"role": "assistant", "content": None, "tool_calls": [without(call("{}"), "index")]}


def is_right(body: dict[str, Any], **options: Any) -> bool:
    stream = Stream(**options)
    stream.put(body)
    return stream.repair.is_whole_right(body)


def with_choice(**changes: Any) -> dict[str, Any]:
    return {**BODY, "choices": [{**BODY["choices"][0], **changes}]}


@pytest.mark.parametrize(
    "body",
    [
        BODY,
        {**BODY, "odd": 1},
        with_choice(logprobs=None, odd=1),
        with_choice(message=CALLING, finish_reason="tool_calls"),
    ],
)
def test_a_right_body_is_known(body: dict[str, Any]) -> None:
    assert is_right(body)


@pytest.mark.parametrize(
    "body",
    [
        without(BODY, "id"),
        {**BODY, "id": ""},
        {**BODY, "object": "chat.completion.chunk"},
        {**BODY, "created": None},
        {**BODY, "created": True},
        {**BODY, "model": ""},
        without(BODY, "usage"),
        {**BODY, "usage": {}},
        with_choice(index=None),
        with_choice(index=False),
        with_choice(message={"content": "x"}),
        with_choice(message={"role": "assistant"}),
        with_choice(message={"role": "assistant", "content": [{"type": "text", "text": "x"}]}),
        with_choice(message=CALLING),
        with_choice(message={**CALLING, "tool_calls": [call("{}", None, id_=None)]}, finish_reason="tool_calls"),
        with_choice(message={**CALLING, "tool_calls": [call({}, None)]}, finish_reason="tool_calls"),
        with_choice(message={**CALLING, "tool_calls": [call("{}", None, type_=None)]}, finish_reason="tool_calls"),
        {**BODY, "choices": BODY["choices"] + [{**BODY["choices"][0], "index": 1}]},
    ],
)
def test_a_body_that_has_to_be_mended_is_known(body: dict[str, Any]) -> None:
    assert not is_right(body)


def test_a_body_has_the_forced_id() -> None:
    assert not is_right(BODY, forced=True)
    assert is_right({**BODY, "id": "ours"}, forced=True)
