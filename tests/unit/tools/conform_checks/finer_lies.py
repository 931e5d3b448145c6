"""Lies for the ways in which a check can fail that the other tables do not tell: one for each piece of evidence."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

from tests.unit.tools.conform_checks.edits import (
    FrameEdit,
    after,
    before,
    change,
    first_dropped,
    having,
    instead,
    is_end,
    is_error,
    of,
    only,
    swap,
    swap_reply,
    text_of,
    twice,
    without,
)
from tests.unit.tools.conform_checks.honest import BadAsk, Frames, Lie, Reply
from tests.unit.tools.conform_checks.honest_engine import Ask, Json
from tests.unit.tools.conform_checks.honest_wire import Frame
from tests.unit.tools.conform_checks.lies import CUT_IS_WHOLE, WHOLE_IS_CUT
from tests.unit.tools.conform_checks.more_lies import PATIENT, cut_at_beat

CHATS = ("chat", "completions")
TERMINALS = of("response.completed", "response.incomplete")
NO_WORD = (('"finish_reason": "stop"', '"finish_reason": "eos"'), ('"end_turn"', '"eos"'))
CALL = '"{\\"path\\": \\"a.txt\\", \\"content\\": \\"hello\\"}"'


def _asks_json(ask: Ask) -> bool:
    return "Write a JSON object" in ask.prompt


def _asks_story(ask: Ask) -> bool:
    return "lighthouse" in ask.prompt


def _text_added(wanted: Callable[[Ask], bool], more: str) -> Callable[[Ask, Reply], Reply]:
    """More text, or more arguments, in a body."""

    def edit(ask: Ask, reply: Reply) -> Reply:
        if reply.status != 200 or not wanted(ask):
            return reply
        if ask.api == "chat":
            place = reply.value["choices"][0]["message"]
            if "tool_calls" in place:
                place["tool_calls"][0]["function"]["arguments"] += more
            else:
                place["content"] += more
        else:
            item = reply.value["output"][0]
            if item["type"] == "function_call":
                item["arguments"] += more
            else:
                item["content"][0]["text"] += more
        return reply

    return edit


def _from_third(edit: FrameEdit) -> FrameEdit:
    """The edit, from the server's third answer on."""

    def late(ask: Ask, frames: Frames) -> Iterator[Frame]:
        first = next(frames)
        number = re.search(r'"(?:msg|resp)_(\d+)"', text_of(first))
        told = itertools.chain([first], frames)
        yield from edit(ask, told) if number is not None and int(number[1]) >= 3 else told

    return late


def _inside(name: str, **fields: object) -> Callable[[Json], object]:
    return lambda value: value[name].update(fields)


def _output(**fields: object) -> Callable[[Json], object]:
    return lambda value: value["response"]["output"][0].update(fields)


def _call_of(value: Json) -> Json:
    return value["choices"][0]["delta"]["tool_calls"][0]


def _odd_arguments(value: Json) -> None:
    _call_of(value)["function"]["arguments"] = {"path": "a.txt"}


def _two_entries(value: Json) -> None:
    value["choices"][0]["delta"]["tool_calls"] *= 2


ENDINGS = (
    Lie("whole-body", reply=swap_reply(*NO_WORD), apis=(*CHATS, "messages"), says="a whole answer ended as"),
    Lie(
        "stop-string",
        frames=swap(*NO_WORD, ('"stop_reason": "stop_sequence"', '"stop_reason": "eos"')),
        says="a stop string ended it, and it says",
    ),
    Lie("cut-json", reply=_text_added(_asks_json, '"x"]}'), says="body of 'cut json':"),
    Lie("cut-json", frames=only(_asks_json, swap(*CUT_IS_WHOLE)), says="over text that is not JSON:"),
    Lie(
        "status-agrees",
        reply=swap_reply(('{"reason": "max_output_tokens"}', "null")),
        says="incomplete, and incomplete_details has no reason",
    ),
    Lie("status-agrees", reply=swap_reply(('"completed_at": null', '"completed_at": 5')), says=", and completed_at is"),
)

CHUNKS = (
    Lie("one-stream", frames=swap(('"created": 1796000000', '"created": null')), says="a chunk has created"),
    Lie("one-stream", frames=swap(('"model": "m"', '"model": ""')), says="a chunk has model"),
    Lie(
        "one-stream",
        frames=swap(('"chat.completion.chunk"', '"chat.completion"'), ('"text_completion"', '"text"')),
        says="object is",
    ),
    Lie("choice-form", frames=change(having('"Hello"'), lambda value: value.update(choices=None)), says="choices is"),
    Lie(
        "choice-form",
        frames=swap(('"index": 0, "delta"', '"delta"'), ('"index": 0, "text"', '"text"')),
        says="a choice without an index:",
    ),
    Lie(
        "choice-form",
        frames=swap(('"delta": {"content": "Hello"}', '"delta": null')),
        apis=("chat",),
        says="a choice whose delta is no object:",
    ),
    Lie(
        "choice-form",
        frames=swap(('"text": "Hello"', '"text": null')),
        apis=("completions",),
        says="a choice whose text is no string:",
    ),
)

BODIES = (
    Lie(
        "body-form",
        reply=swap_reply(('"index": 0, "finish_reason"', '"finish_reason"')),
        apis=CHATS,
        says="its choice has no index or no finish_reason:",
    ),
    Lie("body-form", reply=swap_reply(('"text": "', '"texts": "')), apis=("completions",), says="its text is"),
    Lie(
        "body-form",
        reply=swap_reply(('"role": "assistant", "content"', '"content"')),
        apis=("chat",),
        says="its message has no role assistant or no content:",
    ),
    Lie(
        "body-form",
        reply=swap_reply(('"id": "msg_', '"ids": "msg_')),
        apis=("responses",),
        says="an item without type or id:",
    ),
    Lie(
        "body-form",
        reply=swap_reply(('"assistant", "status"', '"assistant", "state"')),
        apis=("responses",),
        says="a message without a status:",
    ),
    Lie(
        "body-form",
        reply=swap_reply(('"type": "text", "text"', '"text"')),
        apis=("messages",),
        says="a block without a type:",
    ),
)


def _late_opening(ask: Ask, frames: Frames) -> Iterator[Frame]:
    """`response.in_progress` after the first item."""
    created, progress, item = next(frames), next(frames), next(frames)
    yield from (created, item, progress, *frames)


def _item_again(ask: Ask, frames: Frames) -> Iterator[Frame]:
    """A second item under the id of the first."""
    last: list[Frame] = []
    for frame in frames:
        if isinstance(frame.value, dict) and frame.kind in ("response.output_item.added", "response.output_item.done"):
            last.append(Frame(frame.name, frame.value | {"output_index": 1}))
        if TERMINALS(frame):
            yield from last
        yield frame


ITEMS = (
    Lie("response-opening", frames=first_dropped, says=", not response.created"),
    Lie("response-opening", frames=_late_opening, says="comes before response.in_progress"),
    Lie(
        "response-opening",
        frames=change(of("response.created"), _inside("response", status="completed")),
        says="the response in response.created is",
    ),
    Lie(
        "items-in-order",
        frames=twice(of("response.output_item.added")),
        says="an item is added with output_index",
    ),
    Lie("items-in-order", frames=twice(of("response.output_item.done")), says="an item is done at output_index"),
    Lie(
        "items-in-order",
        frames=without(of("response.content_part.done")),
        says="an item is done while its part",
    ),
    Lie("items-in-order", frames=without(of("response.content_part.added")), says=", where no part is open"),
    Lie("item-ids", frames=_item_again, says="two items have one id:"),
    Lie(
        "item-ids",
        frames=change(of("response.output_item.added"), _inside("item", id="")),
        says="and an item with the id",
    ),
    Lie("item-ids", frames=change(of("response.output_item.done"), _inside("item", id="other")), says=", and done as"),
    Lie("output-agrees", frames=change(TERMINALS, _output(status="in_progress")), says="in the terminal"),
)

MESSAGES = (
    Lie(
        "message-start",
        frames=before(of("message_start"), Frame("other", {"type": "other"})),
        says=", not message_start",
    ),
    Lie(
        "message-start",
        frames=change(of("message_start"), _inside("message", stop_reason="end_turn")),
        says="message_start has content",
    ),
    Lie(
        "message-start",
        frames=change(of("message_start"), _inside("message", usage={"input_tokens": 5})),
        says="message_start has the usage",
    ),
    Lie("blocks-in-order", frames=swap(('"text_delta"', '"thinking_delta"')), says="in a text block"),
    Lie("message-closing", frames=without(of("message_stop")), says=", not message_delta and message_stop"),
    Lie(
        "message-closing",
        frames=change(of("message_delta"), lambda value: value.update(usage={})),
        says="message_delta has no usage.output_tokens:",
    ),
    Lie("message-closing", frames=without(of("content_block_stop")), says="blocks started,"),
)


def _read_again(ask: Ask) -> bool:
    return ask.method == "GET"


def _after_one(ask: Ask) -> bool:
    return ask.query.get("starting_after") == "1"


SEQUENCE = (
    Lie("resumes", frames=only(_read_again, swap(("three ", "tree "))), says="both parts together are"),
    Lie("replays", frames=only(_after_one, swap(("five ", "fife "))), says="two replays differ"),
    Lie("replays", frames=only(_read_again, without(TERMINALS)), says="the replay ends with"),
)

PIECE = having('{"index": 0, "function": {"arguments"')

TOOLS = (
    Lie(
        "call-required",
        reply=swap_reply(
            ('"tool_calls": [', '"tool_called": ['),
            ('"type": "function_call"', '"type": "message"'),
            ('"type": "tool_use"', '"type": "text"'),
        ),
        says="body of 'call': a call was required, and it ended as",
    ),
    Lie("call-arguments", frames=swap(('"write_file"', '"read_file"')), says=", which is not declared"),
    Lie(
        "call-arguments",
        reply=swap_reply((CALL, '"[]"')),
        apis=("chat", "responses"),
        says="its arguments are no object:",
    ),
    Lie(
        "call-unrepaired",
        reply=_text_added(_asks_story, '"}'),
        apis=("chat", "responses"),
        says="body of 'cut call': cut, and its arguments are whole JSON all the same:",
    ),
    Lie(
        "call-begins",
        frames=change(PIECE, _two_entries),
        apis=("chat",),
        says="two entries of one index in a chunk:",
    ),
    Lie(
        "call-begins",
        frames=change(PIECE, lambda value: _call_of(value)["function"].update(name="write_file")),
        apis=("chat",),
        says="the name of a call comes twice:",
    ),
    Lie("call-begins", frames=change(PIECE, _odd_arguments), apis=("chat",), says="arguments are no string:"),
    Lie(
        "call-begins",
        frames=swap(('"input": {}', '"input": {"path": "a"}')),
        apis=("messages",),
        says="a tool_use block begins with the input",
    ),
)


def _unasked(ask: Ask) -> bool:
    return "stream_options" not in ask.value


USAGE = (
    Lie(
        "usage-place",
        frames=after(having('"usage"'), Frame(None, {"id": "c", "choices": []})),
        says="the chunk with usage is not the last one",
    ),
    Lie(
        "usage-unasked",
        frames=only(_unasked, change(having('"one "'), lambda value: value.update(usage={}))),
        says="a chunk has the usage {}",
    ),
)


def _refuses_http10(ask: Ask, head: dict[str, str]) -> dict[str, str]:
    if ask.version == "HTTP/1.0":
        raise BadAsk(505, "the version is too old")
    return head


def _is_old(ask: Ask) -> bool:
    return ask.version == "HTTP/1.0"


def _answers(ask: Ask, reply: Reply) -> bool:
    return ask.method == "POST" and reply.status == 200


HTTP = (
    Lie("error-full", reply=swap_reply(('"invalid_request_error"', '""')), says="the error's type is"),
    Lie("json-body", reply=instead(_answers, 200, []), says="it is no JSON object:"),
    Lie("http10", head=_refuses_http10, says="an HTTP/1.0 request: status 505"),
    Lie(
        "http10",
        frames=only(_is_old, without(is_end)),
        says="an HTTP/1.0 request is answered without an end marker:",
    ),
)


def _is_full(ask: Ask, reply: Reply) -> bool:
    return reply.status == 429


LOAD = (
    Lie(
        "side-by-side",
        frames=_from_third(without(is_end)),
        says="at once:",
    ),
    Lie(
        "waiting-served",
        traits={"early": False},
        engine={"serves_waiting": False},
        says="a stream that waited got",
    ),
    Lie(
        "queue-full",
        reply=instead(_is_full, 429, {"detail": "no"}, Content_Type="application/json", Retry_After="1"),
        says="a request too many is told where no client looks:",
    ),
    Lie(
        "next-whole",
        traits={"early": False},
        engine={"haunted": True},
        says="the request after one that was left: status 500",
    ),
    Lie(
        "next-whole",
        frames=_from_third(swap(*WHOLE_IS_CUT)),
        says="after one that was left the same request ended as",
    ),
    Lie("cancelled", traits={"cancels": False}, says="s after it was cancelled its stream goes on"),
)


FAULTS = (
    Lie(
        "killed-closed",
        frames=without(having('"finish_reason": "error"')),
        apis=CHATS,
        says="the closing chunk says",
    ),
    Lie(
        "killed-closed",
        frames=change(of("response.failed"), _inside("response", id="other")),
        apis=("responses",),
        says="the failed response has the id",
    ),
    Lie(
        "killed-closed",
        frames=change(of("response.failed"), lambda value: value["response"]["error"].update(code="engine_died")),
        apis=("responses",),
        says=", not one of the public ones",
    ),
    Lie(
        "killed-call",
        frames=before(is_error, Frame("content_block_stop", {"type": "content_block_stop", "index": 0})),
        apis=("messages",),
        says="the engine was killed in a tool call, and the call was ended:",
    ),
    Lie(
        "killed-call",
        frames=change(of("response.failed"), _output(status="completed")),
        apis=("responses",),
        says="the engine was killed in a tool call, and the call is",
    ),
    Lie("stalled-gives-up", frames=cut_at_beat, engine=PATIENT, says="s, and no failure was told"),
)

FINER_LIES = (*(*ENDINGS, *CHUNKS, *BODIES, *ITEMS, *MESSAGES, *SEQUENCE, *TOOLS, *USAGE, *HTTP, *LOAD, *FAULTS),)
