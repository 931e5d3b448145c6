"""Tool calls: whole ones are JSON and called so, cut ones are not; nobody repairs them."""

from __future__ import annotations

from tools.conform_checks.bench import Bench, found, over
from tools.conform_checks.check import WITH_TOOLS, Check, NotSeen
from tools.conform_checks.occasions import OCCASIONS, Name, request_body
from tools.conform_checks.reading import BodyAnswer, Called, read_body
from tools.conform_checks.responses import terminal
from tools.conform_checks.talk import Talk
from tools.probe.asking import TOOL_NAME
from tools.probe.target import Api
from tools.probe.values import Json, as_int, as_list, as_object, as_text, at, is_json, parsed, shown

_WORDS = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}
_CUT: Name = "cut call"
_ANSWER = "The file is saved."


def _required(bench: Bench, api: Api) -> str | None:
    talk = bench.stream(api, "call")
    if talk.telling.outcome == "finished" and not talk.telling.calls:
        return f"{talk.name}: a call was required, and it ended as {talk.telling.finish!r} without one"
    answer = _body_or_none(bench, api, "call")
    if answer is not None and answer.outcome == "finished" and not answer.calls:
        return f"body of 'call': a call was required, and it ended as {answer.word!r} without one"
    if not talk.telling.calls and not talk.telling.failed_openly:
        raise NotSeen(f"the answer ended as {talk.telling.finish!r} before a call")
    return None


def _body_or_none(bench: Bench, api: Api, name: Name) -> BodyAnswer | None:
    try:
        return bench.body(api, name)
    except NotSeen:
        return None


def _whole(bench: Bench, api: Api) -> tuple[Talk, BodyAnswer]:
    """Stream and body with a whole call. Raises: NotSeen."""
    talk, answer = bench.stream(api, "call"), bench.body(api, "call")
    if talk.telling.outcome != "finished" or not talk.telling.calls:
        raise NotSeen(f"the model made no whole call: it ended as {talk.telling.finish!r}")
    if answer.outcome != "finished" or not answer.calls:
        raise NotSeen(f"the model made no whole call in a body: it ended as {answer.word!r}")
    return talk, answer


def _word(bench: Bench, api: Api) -> str | None:
    talk, answer = _whole(bench, api)
    for name, word in ((talk.name, talk.telling.finish), ("body of 'call'", answer.word)):
        if word != _WORDS[api]:
            return f"{name}: it ended with a call, and as {word!r}"
    items = [("body of 'call'", call.status) for call in answer.calls]
    items += [(talk.name, item.status) for item in read_body(api, terminal(talk)).calls]
    if api == "responses" and (wrong := [each for each in items if each[1] != "completed"]):
        return f"{wrong[0][0]}: completed, with a call that is {shown(wrong[0][1])}"
    return found([talk], "no-call")


def _arguments(bench: Bench, api: Api) -> str | None:
    if (text := found(bench.streams(api, ("call", _CUT)), "cut-arguments", "cut-call-completed")) is not None:
        return text
    talk, answer = _whole(bench, api)
    for call in talk.telling.calls.values():
        text = call.text if call.text.strip() or not call.empty_is_whole else "{}"
        if (fault := _fault(call.name, text)) is not None:
            return f"{talk.name}: {fault}"
    for called in answer.calls:
        text = called.arguments
        if text is None and api == "messages":
            fault = None if isinstance(called.input, dict) else f"its input is {shown(called.input)}"
        else:
            fault = _fault(called.name, text)
        if fault is not None or not called.id:
            return f"body of 'call': {fault or 'a call without an id'}"
    return None


def _fault(name: str, arguments: str | None) -> str | None:
    if name != TOOL_NAME:
        return f"a call of {shown(name)}, which is not declared"
    try:
        value = parsed(arguments or "")
    except ValueError:
        return f"its arguments are not JSON: {shown(arguments)}"
    return None if isinstance(value, dict) else f"its arguments are no object: {shown(arguments)}"


# --- cut calls --------------------------------------------------------------------------------------


def _cut_stream(bench: Bench, api: Api) -> str | None:
    talk = bench.stream(api, _CUT)
    telling = talk.telling
    if not telling.calls:
        raise NotSeen(f"no call was begun; it ended as {telling.finish!r}")
    if telling.failed_openly:
        raise NotSeen("the answer failed, and said so")
    whole = all(call.whole for call in telling.calls.values())
    return _cut(telling.outcome, telling.finish, telling.output_tokens, whole=whole)


def _cut_body(bench: Bench, api: Api) -> str | None:
    answer = bench.body(api, _CUT)
    if not answer.calls:
        raise NotSeen(f"no call was begun; it ended as {answer.word!r}")
    whole = all(_fault(call.name, call.arguments) is None for call in answer.calls if call.arguments is not None)
    return _cut(answer.outcome, answer.word, answer.counts.output, whole=whole)


def _cut(outcome: str | None, word: str | None, made: int | None, *, whole: bool) -> str | None:
    most = OCCASIONS[_CUT].max_tokens
    if outcome != "finished":
        return None
    if made is not None and made < most and whole:
        raise NotSeen(f"the model ended by itself after {made} of {most} tokens")
    return f"{shown(made)} of {most} tokens, and it ended as {word!r}" + ("" if whole else " over half a call")


def _unrepaired(bench: Bench, api: Api) -> str | None:
    talk = bench.stream(api, _CUT)
    seen = talk.telling.outcome == "limit" and bool(talk.telling.calls)
    if seen:
        for call in talk.telling.calls.values():
            if call.text.strip() and is_json(call.text):
                return f"{talk.name}: cut, and its arguments are whole JSON all the same: {shown(call.text[-60:])}"
    answer = _body_or_none(bench, api, _CUT) if api != "messages" else None
    if answer is not None and answer.outcome == "limit" and answer.calls:
        seen = True
        text = answer.calls[-1].arguments or ""
        if text.strip() and is_json(text):
            return f"body of {_CUT!r}: cut, and its arguments are whole JSON all the same: {shown(text[-60:])}"
    if not seen:
        raise NotSeen("no call was cut by the limit")
    return None


def _cut_item(bench: Bench, api: Api) -> str | None:
    talk = bench.stream(api, _CUT)
    items = [(talk.name, as_object(item)) for item in as_list(terminal(talk).get("output"))]
    answer = _body_or_none(bench, api, _CUT)
    value: Json = bench.body_value(api, _CUT) if answer is not None else {}
    items += [(f"body of {_CUT!r}", as_object(item)) for item in as_list(value.get("output"))]
    calls = [(name, item) for name, item in items if item.get("type") == "function_call"]
    cut = [(name, item) for name, item in calls if not is_json(as_text(item.get("arguments")) or "")]
    if not cut:
        raise NotSeen("no call was cut")
    for name, item in cut:
        if item.get("status") != "incomplete":
            return f"{name}: a call whose arguments were cut is {shown(item.get('status'))}"
    return None


# --- how a call is told -----------------------------------------------------------------------------


def _first(bench: Bench, api: Api) -> str | None:
    talks = [talk for talk in bench.streams(api, ("call", _CUT)) if talk.telling.calls]
    if not talks:
        raise NotSeen("the model made no call")
    if (text := found(talks, "call-without-index")) is not None:
        return text
    return over(talks, {"chat": _chat_call, "responses": _item_call}.get(api, _block_call))


def _chat_call(talk: Talk) -> str | None:
    begun: set[int] = set()
    for each in talk.events:
        entries = [as_object(call) for call in as_list(at(each.value, "choices", 0, "delta", "tool_calls"))]
        indexes = [as_int(entry.get("index")) for entry in entries]
        if len(set(indexes)) != len(indexes):
            return f"two entries of one index in a chunk: {shown(entries)}"
        for index, entry in zip(indexes, entries, strict=True):
            if index is None:
                continue  # the witness has told
            named = bool(entry.get("id")) and bool(at(entry, "function", "name"))
            if index not in begun and not (named and entry.get("type") == "function"):
                return f"a call begins without id, type or name: {shown(entry)}"
            if index in begun and at(entry, "function", "name"):
                return f"the name of a call comes twice: {shown(entry)}"
            arguments = at(entry, "function", "arguments")
            if arguments is not None and not isinstance(arguments, str):
                return f"arguments are no string: {shown(arguments)}"
            begun.add(index)
    return None


def _item_call(talk: Talk) -> str | None:
    for each in talk.events:
        item = as_object(each.value.get("item"))
        if item.get("type") == "function_call":
            lacking = [name for name in ("id", "call_id", "name") if not as_text(item.get(name))]
            if lacking or not isinstance(item.get("arguments"), str):
                return f"{each.kind} has a call without {', '.join(lacking) or 'arguments'}: {shown(item)}"
    return None


def _block_call(talk: Talk) -> str | None:
    for each in talk.events:
        block = as_object(each.value.get("content_block"))
        if block.get("type") == "tool_use" and not (as_text(block.get("id")) and as_text(block.get("name"))):
            return f"a tool_use block without id or name: {shown(block)}"
        if block.get("type") == "tool_use" and block.get("input") != {}:
            return f"a tool_use block begins with the input {shown(block.get('input'))}, not {{}}"
    return None


# --- the next turn ----------------------------------------------------------------------------------


def _next_turn(bench: Bench, api: Api) -> str | None:
    _, answer = _whole(bench, api)
    asked = request_body(api, bench.model, "limit", stream=False)
    value = bench.body_value(api, "call")
    user: Json = {"role": "user", "content": OCCASIONS["call"].prompt}
    call: Called = answer.calls[0]
    if api == "chat":
        message = as_object(at(value, "choices", 0, "message"))
        asked["messages"] = [user, message, {"role": "tool", "tool_call_id": call.id, "content": _ANSWER}]
    elif api == "responses":
        result: Json = {"type": "function_call_output", "call_id": call.id, "output": _ANSWER}
        asked["input"] = [user, *as_list(value.get("output")), result]
    else:
        result = {"type": "tool_result", "tool_use_id": call.id, "content": _ANSWER}
        turn: Json = {"role": "assistant", "content": value.get("content")}
        asked["messages"] = [user, turn, {"role": "user", "content": [result]}]
    declared = request_body(api, bench.model, "call", stream=False)
    talk = bench.once(("next turn", api), lambda: bench.send(api, asked | {"tools": declared["tools"]}).join())
    return None if talk.status == 200 else f"the server's own call, sent back with its result: {talk.about()}"


CHECKS = (
    Check(
        "call-required",
        "tools",
        "breach",
        "Where a call is required there is one, or the answer has failed.",
        "OpenAI API reference, tool_choice; Anthropic, tool_choice any",
        WITH_TOOLS,
        _required,
    ),
    Check(
        "call-word",
        "tools",
        "lie",
        "A turn that ended with a whole call says so: tool_calls, tool_use, a completed item.",
        "OpenAI API reference, finish_reason; Anthropic, stop_reason",
        WITH_TOOLS,
        _word,
    ),
    Check(
        "call-arguments",
        "tools",
        "lie",
        "The arguments of a call that is called whole are a JSON object, and its name is of a declared tool.",
        "OpenAI and Anthropic API references, function calling; client matrix: clients run what they get",
        WITH_TOOLS,
        _arguments,
    ),
    Check(
        "call-cut-stream",
        "tools",
        "lie",
        "A stream whose call the token limit cut ends as cut, never as a turn with a call.",
        "vLLM #53269, vLLM #58228",
        WITH_TOOLS,
        _cut_stream,
    ),
    Check(
        "call-cut-body",
        "tools",
        "lie",
        "A JSON body whose call the token limit cut ends as cut.",
        "vLLM #53269, vLLM #58228",
        WITH_TOOLS,
        _cut_body,
    ),
    Check(
        "call-unrepaired",
        "tools",
        "lie",
        "Arguments that were cut stay as the model wrote them: nobody closes their brackets.",
        "mastra #24442; client matrix: agents run repaired calls",
        WITH_TOOLS,
        _unrepaired,
    ),
    Check(
        "call-cut-item",
        "tools",
        "lie",
        "A function_call item that was cut is incomplete.",
        "OpenAI API reference, function_call items, status",
        ("responses",),
        _cut_item,
    ),
    Check(
        "call-begins",
        "tools",
        "breach",
        "A call begins with its id and name, told once; every piece of it has its index, and arguments are text.",
        "Ollama #7881, continue #13225, openai-python #3203; measured: helpers stop with a TypeError",
        WITH_TOOLS,
        _first,
    ),
    Check(
        "call-answered",
        "tools",
        "breach",
        "The server takes its own call back, with the tool's result, unchanged.",
        "LM Studio #261, opencode #42613, Strata issue 782",
        WITH_TOOLS,
        _next_turn,
    ),
)
