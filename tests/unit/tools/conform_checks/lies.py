"""Lies about endings, grammar, sequence numbers, tool calls and usage: what is edited, and which check must see it."""

from __future__ import annotations

from tests.unit.tools.conform_checks.edits import (
    before,
    change,
    closes,
    first_dropped,
    has_finish,
    having,
    instead,
    is_end,
    numbered,
    of,
    only,
    swap,
    swap_reply,
    twice,
    unnamed,
    without,
)
from tests.unit.tools.conform_checks.honest import Lie
from tests.unit.tools.conform_checks.honest_engine import Ask, Json
from tests.unit.tools.conform_checks.honest_wire import Frame, error_of

CUT_IS_WHOLE = (
    ('"length"', '"stop"'),
    ('"max_tokens"', '"end_turn"'),
    ("response.incomplete", "response.completed"),
    ('"incomplete"', '"completed"'),
    ('{"reason": "max_output_tokens"}', "null"),
)
CUT_IS_CALL = (('"length"', '"tool_calls"'), ('"max_tokens"', '"tool_use"'), *CUT_IS_WHOLE[2:])
WHOLE_IS_CUT = (
    ('"stop"', '"length"'),
    ('"end_turn"', '"max_tokens"'),
    ("response.completed", "response.incomplete"),
    ('"completed"', '"incomplete"'),
    ('"incomplete_details": null', '"incomplete_details": {"reason": "max_output_tokens"}'),
)
UNKNOWN = (
    ('"finish_reason": "stop"', '"finish_reason": "abort"'),
    ('"end_turn"', '"abort"'),
    ('"max_output_tokens"', '"max_tokens"'),
)


def _json_ask(ask: Ask) -> bool:
    return "Write a JSON object" in ask.prompt


def _story_ask(ask: Ask) -> bool:
    return "lighthouse" in ask.prompt


def _content(text: str) -> Frame:
    return Frame(None, {"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def _named(kind: str, **fields: object) -> Frame:
    return Frame(kind, {"type": kind, **fields})


def _no_output(value: Json) -> None:
    value["response"]["output"] = []


def _says_completed(value: Json) -> None:
    value["response"]["status"] = "completed"


def _shorter(value: Json) -> None:
    value["text"] = value["text"][:-1]


def _error_in_mid_answer(api: str) -> Lie:
    told = error_of("messages" if api == "messages" else "chat", "out of memory")
    frame = Frame("error", told | {"type": "error"}) if api in ("responses", "messages") else Frame(None, told)
    return Lie("finish-last", frames=before(has_finish, frame), apis=(api,))


ENDINGS = (
    Lie("ends", frames=without(is_end)),
    Lie("ends-once", frames=twice(is_end)),
    *(_error_in_mid_answer(api) for api in ("chat", "completions", "responses", "messages")),
    Lie("finish-known", frames=swap(*UNKNOWN)),
    Lie("finish-known", reply=swap_reply(*UNKNOWN), says=": it ended as"),
    Lie("limit-stream", frames=swap(*CUT_IS_WHOLE), says="tokens, the limit, and it ended as"),
    Lie("limit-body", reply=swap_reply(*CUT_IS_WHOLE), says="tokens, the limit, and it ended as"),
    Lie("whole-stream", frames=swap(*WHOLE_IS_CUT), says="tokens: nothing cut it"),
    Lie("whole-body", reply=swap_reply(*WHOLE_IS_CUT), says="tokens: nothing cut it"),
    Lie("stop-string", engine={"obeys_stops": False}, says="the answer has the stop string"),
    Lie(
        "stop-string",
        frames=swap(('"stop_sequence"', '"end_turn"')),
        apis=("messages",),
        says="a stop string ended it, and message_delta says",
    ),
    Lie(
        "cut-json",
        frames=only(_json_ask, before(closes, _content('"x"]}'))),
        apis=("chat",),
        says=", and the text is whole JSON all the same: somebody closed its brackets:",
    ),
    Lie(
        "cut-json",
        frames=only(_json_ask, before(closes, _named("response.output_text.delta", delta='"x"]}'))),
        apis=("responses",),
        says=", and the text is whole JSON all the same: somebody closed its brackets:",
    ),
    Lie("status-agrees", frames=change(of("response.incomplete"), _says_completed)),
    Lie(
        "status-agrees",
        reply=swap_reply(('"status": "incomplete", "error"', '"status": "completed", "error"')),
        says="completed, with incomplete_details",
    ),
    Lie(
        "cut-items",
        frames=swap(('"assistant", "status": "incomplete"', '"assistant", "status": "completed"')),
        says=": the limit cut the",
    ),
    Lie(
        "cut-items",
        reply=swap_reply(('"assistant", "status": "incomplete"', '"assistant", "status": "completed"')),
        says=": the limit cut the",
    ),
)

GRAMMAR = (
    Lie("first-role", frames=first_dropped),
    Lie("one-stream", frames=change(having('"Hello"'), lambda value: value.update(id="x")), says=", and later"),
    Lie("one-stream", frames=change(having('"Hello"'), lambda value: value.update(model="x")), says=", and later"),
    Lie(
        "choice-form",
        frames=swap((', "finish_reason": null', "")),
        says="a choice without finish_reason, which is null until the end:",
    ),
    Lie("choice-form", frames=swap(('"finish_reason": null', '"finish_reason": ""'))),
    Lie("body-form", reply=swap_reply(('"model": "m"', '"models": "m"'))),
    Lie("event-lines", frames=unnamed),
    Lie("response-opening", frames=without(of("response.in_progress")), says="no response.in_progress"),
    Lie(
        "response-opening",
        frames=change(of("response.completed"), lambda value: value["response"].update(id="new")),
        says="the response has the ids",
    ),
    Lie("response-fields", frames=swap(('"parallel_tool_calls": true, ', "")), says="the response in"),
    Lie("items-in-order", frames=without(of("response.output_item.added")), says=", where no item is open"),
    Lie("items-in-order", frames=without(of("response.output_item.done")), says=", and an item of type"),
    Lie("item-ids", frames=swap(('"content_index": 0, ', "")), says="has no content_index"),
    Lie(
        "item-ids",
        frames=change(of("response.output_text.delta"), lambda value: value.update(item_id="other")),
        says="at output_index",
    ),
    Lie("pieces-add-up", frames=change(of("response.output_text.done"), _shorter), says=", the deltas"),
    Lie(
        "output-agrees",
        frames=change(of("response.completed", "response.incomplete"), _no_output),
        says="items were done in the stream, and the terminal response has",
    ),
    Lie("message-start", frames=swap(('"stop_reason": null, ', ""))),
    Lie("blocks-in-order", frames=without(of("content_block_stop"))),
    Lie("blocks-in-order", frames=swap(('"index": 0', '"index": 1')), says="starts with the index"),
    Lie(
        "message-closing",
        frames=change(of("message_delta"), lambda value: value["delta"].pop("stop_sequence")),
        says="message_delta has no stop_sequence:",
    ),
    Lie("message-closing", frames=twice(of("message_delta")), says="stop_reason is told"),
)


def _read_again(ask: Ask) -> bool:
    return ask.method == "GET"


SEQUENCE = (
    Lie("sequence-from-zero", frames=numbered(lambda number: number + 1), says="the first sequence_number is"),
    Lie("sequence-gapless", frames=numbered(lambda number: number + (number > 2))),
    Lie("stored-agrees", reply=swap_reply(('"incomplete"', '"completed"')), says="in the stream, and is"),
    Lie("resumes", frames=only(_read_again, first_dropped)),
    Lie("replays", frames=only(_read_again, swap(("three ", "tree "))), says="when replayed"),
)


def _closing_args(api: str) -> Frame:
    if api == "responses":
        return _named("response.function_call_arguments.delta", output_index=0, item_id="fc", delta='"}')
    if api == "messages":
        return _named("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": '"}'})
    call = {"index": 0, "function": {"arguments": '"}'}}
    return Frame(None, {"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]})


def _half_a_value(frame: Frame) -> bool:
    return having('"\\"hello\\""')(frame) and not closes(frame)


def _has_result(ask: Ask, reply: object) -> bool:
    return "The file is saved" in ask.prompt


CALL_IS_ODD = ('"name": "write_file", "arguments": "{', '"name": "write_file", "arguments": "')

TOOLS = (
    Lie("call-required", engine={"calls": False}, says=": a call was required, and it ended as"),
    Lie(
        "call-word",
        frames=swap(('"finish_reason": "tool_calls"', '"finish_reason": "stop"')),
        apis=("chat",),
        says=": it ended with a call, and as",
    ),
    Lie(
        "call-word",
        reply=swap_reply(('"finish_reason": "tool_calls"', '"finish_reason": "stop"')),
        apis=("chat",),
        says=": it ended with a call, and as",
    ),
    Lie(
        "call-word",
        frames=swap(('"stop_reason": "tool_use"', '"stop_reason": "end_turn"')),
        apis=("messages",),
        says=": it ended with a call, and as",
    ),
    Lie(
        "call-word",
        reply=swap_reply(('}", "status": "completed"', '}", "status": "in_progress"')),
        apis=("responses",),
        says=": completed, with a call that is",
    ),
    Lie("call-arguments", frames=without(_half_a_value)),
    Lie(
        "call-arguments", reply=swap_reply(CALL_IS_ODD), apis=("chat", "responses"), says="its arguments are not JSON:"
    ),
    Lie(
        "call-arguments",
        reply=swap_reply(('"input": {', '"input": [{'), ('"hello"}', '"hello"}]')),
        apis=("messages",),
        says="body of 'call':",
    ),
    Lie("call-cut-stream", frames=swap(*CUT_IS_CALL), says="tokens, and it ended as"),
    Lie("call-cut-body", reply=swap_reply(*CUT_IS_CALL), says="tokens, and it ended as"),
    *(
        Lie(
            "call-unrepaired",
            frames=only(_story_ask, before(closes, _closing_args(api))),
            apis=(api,),
            says=": cut, and its arguments are whole JSON all the same:",
        )
        for api in ("chat", "responses", "messages")
    ),
    Lie(
        "call-cut-item",
        frames=swap(('", "status": "incomplete"', '", "status": "completed"')),
        says=": a call whose arguments were cut is",
    ),
    Lie(
        "call-cut-item",
        reply=swap_reply(('", "status": "incomplete"', '", "status": "completed"')),
        says=": a call whose arguments were cut is",
    ),
    *(
        Lie(
            "call-begins",
            frames=swap(('"id": "call_1", ', ""), ('"call_id": "call_1", ', ""), ('"id": "toolu_1", ', "")),
            apis=(api,),
            says=says,
        )
        for api, says in (
            ("chat", "a call begins without id, type or name:"),
            ("responses", "has a call without call_id"),
            ("messages", "a tool_use block without id or name:"),
        )
    ),
    Lie("call-begins", frames=swap(('{"index": 0, "function"', '{"function"')), apis=("chat",)),
    Lie(
        "call-answered",
        reply=instead(_has_result, 400, error_of("chat", "content is null")),
        says="the server's own call, sent back with its result:",
    ),
)


def _extra_choice(value: Json) -> None:
    value["choices"] = [{"index": 0, "delta": {}, "text": "", "finish_reason": None}]


def _without_usage(ask: Ask) -> bool:
    return "stream_options" not in ask.value


USAGE = (
    Lie("usage-body", reply=swap_reply(('"usage"', '"usages"')), says="a count is missing or no number"),
    Lie(
        "usage-body",
        reply=swap_reply(('"total_tokens": ', '"total_tokens": 1')),
        apis=("chat", "responses"),
        says="body of",
    ),
    Lie("usage-stream", frames=swap(('"usage"', '"usages"')), says="the stream was asked for its counts, and told"),
    Lie(
        "usage-stream",
        frames=swap(('"prompt_tokens": ', '"prompt_tokens": 1')),
        apis=("chat", "completions"),
        says="the prompt of one request has",
    ),
    Lie(
        "usage-limit",
        frames=swap(('"completion_tokens": 16', '"completion_tokens": 15'), ('_tokens": 16', '_tokens": 15')),
        says=": cut at the limit of",
    ),
    Lie(
        "usage-limit",
        reply=swap_reply(('"completion_tokens": 16', '"completion_tokens": 15'), ('_tokens": 16', '_tokens": 15')),
        says=": cut at the limit of",
    ),
    Lie("usage-place", frames=change(having('"usage"'), _extra_choice), says="usage stands in a chunk with choices"),
    Lie("usage-place", frames=twice(having('"usage"')), says="usage comes in"),
    Lie(
        "usage-unasked",
        frames=only(_without_usage, before(is_end, Frame(None, {"id": "c", "choices": []}))),
        says="a chunk without a choice, which nobody asked for:",
    ),
    Lie("usage-details", reply=swap_reply(('"reasoning_tokens"', '"thoughts"')), says=": the usage has no details:"),
    Lie(
        "usage-details",
        frames=swap(('"cached_tokens": 0', '"cached_tokens": 100000')),
        says=": a part is more than the whole:",
    ),
)

LIES = (*ENDINGS, *GRAMMAR, *SEQUENCE, *TOOLS, *USAGE)
