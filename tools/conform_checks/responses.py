"""Grammar of Responses streams: opening, items, parts, ids, texts that add up."""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.conform_checks.bench import Bench, found, over
from tools.conform_checks.chats import missing
from tools.conform_checks.check import Check
from tools.conform_checks.talk import Talk, Told
from tools.probe.target import Api
from tools.probe.values import Json, as_int, as_list, as_object, as_text, at, shown

ONLY = ("responses",)
TERMINALS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_OPENINGS = ("response.created", "response.queued", "response.in_progress")
_ITEM = ("response.output_item.added", "response.output_item.done")
_TEXTS = {
    "response.output_text": "text",
    "response.function_call_arguments": "arguments",
    "response.reasoning_text": "text",
    "response.refusal": "refusal",
}
"""Events in pieces, and the member of `.done` that has the whole."""


def terminal(talk: Talk) -> Json:
    """The response of the terminal event; empty where there is none."""
    for each in talk.events:
        if each.kind in TERMINALS:
            return as_object(each.value.get("response"))
    return {}


def _opening(bench: Bench, api: Api) -> str | None:
    return over(bench.streams(api), _open)


def _open(talk: Talk) -> str | None:
    kinds = [each.kind for each in talk.events]
    if kinds[:1] != ["response.created"]:
        return f"it begins with {shown(kinds[0] if kinds else None)}, not response.created"
    if "response.in_progress" not in kinds:
        return "no response.in_progress"
    first = next((i for i, kind in enumerate(kinds) if kind not in _OPENINGS), len(kinds))
    if "response.in_progress" not in kinds[:first]:
        return f"{kinds[first]} comes before response.in_progress"
    ids: set[str | None] = set()
    for each in talk.events:
        if each.kind in _OPENINGS:
            status = at(each.value, "response", "status")
            if status not in ("in_progress", "queued"):
                return f"the response in {each.kind} is {shown(status)}"
        if each.kind in (*_OPENINGS, *TERMINALS):
            ids.add(as_text(at(each.value, "response", "id")))
    if len(ids) != 1 or not next(iter(ids)):
        return f"the response has the ids {shown(ids)}"
    return None


def _fields(bench: Bench, api: Api) -> str | None:
    return over(bench.streams(api), _full)


def _full(talk: Talk) -> str | None:
    for each in talk.events:
        inside = as_object(each.value.get("response"))
        if each.kind in (*_OPENINGS, *TERMINALS) and (text := missing("responses", inside)) is not None:
            return f"the response in {each.kind}: {text}"
    return None


# --- items ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Open:
    """What is open: items by output_index, parts by item and content_index."""

    items: dict[int, Json] = field(default_factory=dict[int, Json])
    parts: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    done: set[int] = field(default_factory=set[int])


def _order(bench: Bench, api: Api) -> str | None:
    return over(bench.streams(api), _items_in_order)


def _items_in_order(talk: Talk) -> str | None:
    state = _Open()
    for each in talk.events:
        index = as_int(each.value.get("output_index"))
        part = as_int(each.value.get("content_index"))
        if (text := _step(each, index, part, state)) is not None:
            return text
    end = terminal(talk)
    if state.items and end.get("status") in ("completed", "incomplete"):
        return f"{end['status']}, and an item of type {shown(next(iter(state.items.values())).get('type'))} is open"
    return None


def _step(each: Told, index: int | None, part: int | None, state: _Open) -> str | None:
    kind = each.kind
    if kind == "response.output_item.added":
        if index is None or index in state.items or index in state.done:
            return f"an item is added with output_index {shown(index)}, which is taken or missing"
        state.items[index] = as_object(each.value.get("item"))
    elif kind == "response.output_item.done":
        if index is None or state.items.pop(index, None) is None:
            return f"an item is done at output_index {shown(index)}, where none is open"
        state.done.add(index)
        if open_parts := [at for at in state.parts if at[0] == index]:
            return f"an item is done while its part {open_parts[0][1]} is open"
    elif kind.startswith("response.") and "item_id" in each.value:
        if index is None or index not in state.items:
            return f"{kind} at output_index {shown(index)}, where no item is open"
        if kind == "response.content_part.added":
            state.parts.add((index, part if part is not None else -1))
        elif kind == "response.content_part.done":
            state.parts.discard((index, part if part is not None else -1))
        elif kind.startswith("response.output_text.") and (index, part) not in state.parts:
            return f"{kind} at content_index {shown(part)}, where no part is open"
    return None


def _ids(bench: Bench, api: Api) -> str | None:
    return over(bench.streams(api), _ids_match)


def _ids_match(talk: Talk) -> str | None:
    ids: dict[int, str] = {}
    for each in talk.events:
        if each.kind in _ITEM:
            index, id_ = as_int(each.value.get("output_index")), as_text(at(each.value, "item", "id"))
            if index is None or not id_:
                return f"{each.kind} has output_index {shown(index)} and an item with the id {shown(id_)}"
            if ids.setdefault(index, id_) != id_:
                return f"the item at {index} is {ids[index]!r}, and done as {id_!r}"
        elif each.kind.startswith(
            ("response.output_text", "response.content_part", "response.function_call", "response.r")
        ):
            index, id_ = as_int(each.value.get("output_index")), as_text(each.value.get("item_id"))
            if index is None or ids.get(index) != id_:
                return f"{each.kind} names item {shown(id_)} at output_index {shown(index)}; added was {shown(ids)}"
            numbered = each.kind.startswith(("response.output_text", "response.content_part"))
            if numbered and as_int(each.value.get("content_index")) is None:
                return f"{each.kind} has no content_index"
    if len(set(ids.values())) != len(ids):
        return f"two items have one id: {shown(ids)}"
    return None


def _adds_up(bench: Bench, api: Api) -> str | None:
    return over(bench.streams(api), _sums)


def _sums(talk: Talk) -> str | None:
    made: dict[tuple[str, int | None, int | None], str] = {}
    for each in talk.events:
        name, _, last = each.kind.rpartition(".")
        if name not in _TEXTS or last not in ("delta", "done"):
            continue
        key = (name, as_int(each.value.get("output_index")), as_int(each.value.get("content_index")))
        if last == "delta":
            made[key] = made.get(key, "") + (as_text(each.value.get("delta")) or "")
            continue
        whole = as_text(each.value.get(_TEXTS[name]))
        if whole != made.get(key, ""):
            return f"{each.kind} has {shown(whole)}, the deltas {shown(made.get(key, ''))}"
    return None


def _output(bench: Bench, api: Api) -> str | None:
    return over(bench.streams(api), _same_output, _told_items)


def _told_items(talk: Talk) -> bool:
    return terminal(talk).get("status") in ("completed", "incomplete")


def _same_output(talk: Talk) -> str | None:
    end = terminal(talk)
    done = {
        as_int(each.value.get("output_index")): as_object(each.value.get("item"))
        for each in talk.events
        if each.kind == "response.output_item.done"
    }
    output = [as_object(item) for item in as_list(end.get("output"))]
    told = [done[index] for index in sorted(index for index in done if index is not None)]
    if len(told) != len(output):
        return f"{len(told)} items were done in the stream, and the terminal response has {len(output)}"
    for mine, final in zip(told, output, strict=True):
        for name in ("id", "type", "status", "content", "arguments", "name", "call_id"):
            if mine.get(name) != final.get(name):
                return f"an item's {name} was {shown(mine.get(name))}, and is {shown(final.get(name))} in the terminal"
    return None


def _event_lines(bench: Bench, api: Api) -> str | None:
    return found(bench.streams(api), "event-name", "no-event-line", "no-type")


CHECKS = (
    Check(
        "event-lines",
        "grammar",
        "breach",
        "Each event has a type, and stands under an `event:` line of the same name.",
        "OpenAI and Anthropic API references, streaming events; measured: anthropic-python does not see others",
        ("responses", "messages"),
        _event_lines,
    ),
    Check(
        "response-opening",
        "grammar",
        "breach",
        "A stream begins with response.created, then response.in_progress, before any item; the response keeps its id.",
        "OpenAI API reference, streaming events of Responses; measured: helpers hide the cause of a changed id",
        ONLY,
        _opening,
    ),
    Check(
        "response-fields",
        "grammar",
        "breach",
        "The response in each event has all fields that are required, nullable ones too.",
        "OpenAI API reference, the Response object; llama.cpp #20607",
        ONLY,
        _fields,
    ),
    Check(
        "items-in-order",
        "grammar",
        "breach",
        "Each item is added, gets its parts and pieces, and is done once; none is open at the end.",
        "OpenAI API reference, streaming events of Responses",
        ONLY,
        _order,
    ),
    Check(
        "item-ids",
        "grammar",
        "breach",
        "Each event of an item names it by id and output_index, as it was added; parts have their content_index.",
        "OpenAI API reference, streaming events of Responses; llama.cpp #20607, OmniRoute #13964",
        ONLY,
        _ids,
    ),
    Check(
        "pieces-add-up",
        "grammar",
        "lie",
        "What an item is done with is what its pieces were.",
        "OpenAI API reference, streaming events of Responses",
        ONLY,
        _adds_up,
    ),
    Check(
        "output-agrees",
        "grammar",
        "lie",
        "The terminal response has the items that the stream has told, with the same text and status.",
        "OpenAI API reference, streaming events of Responses",
        ONLY,
        _output,
    ),
)
