"""What an upstream has said of a response so far, event by event: its items, what is held, what can go out.

It repairs the form of events and adds those that are missing; it decides no ending.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from engine.events import RelayedEvent, Usage
from serve import outcomes
from serve.relay.items import (
    CALL,
    FAMILIES,
    OF_PART,
    SPEECH,
    SPOKEN,
    WRITTEN,
    Item,
    Json,
    Part,
    Place,
    emptied,
    fields,
    index_key,
    objects,
    with_lists,
)
from serve.relay.objects import RelayHead, Responses

CREATED = "response.created"
_RUNNING = (outcomes.QUEUED_EVENT, outcomes.RUNNING_EVENT)
_ENDED = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_ANNOTATION = "response.output_text.annotation.added"


class Broken(Exception):
    """What the upstream says makes no sense. The message says how."""


@dataclass(frozen=True, slots=True)
class Held:
    """An event that ends (a part of) an item, or came behind one."""

    item: Item | None
    event: RelayedEvent


class Track:
    """One response. Not thread-safe."""

    def __init__(self, head: RelayHead) -> None:
        self.items: list[Item] = []
        self.held: list[Held] = []
        self.running: Json | None = None
        """The response while it runs, as the client was told it."""
        self.last: RelayedEvent | None = None
        """The upstream's terminal event."""
        self._head = head
        self._responses = Responses(head)
        self._ready: list[RelayedEvent] = []
        self._state_told = False
        self._deltas = 0

    @property
    def ended(self) -> bool:
        """Whether the upstream said its last word."""
        return self.last is not None

    @property
    def said(self) -> object:
        """The response in the upstream's terminal event, as it came."""
        return None if self.last is None else self.last.value.get("response")

    @property
    def usage(self) -> Usage:
        """What was made so far, one token for each delta."""
        return Usage(0, self._deltas)

    def right(self, response: object, status: str) -> Json:
        """See `Responses.right`."""
        return self._responses.right(response, status)

    def ready(self) -> tuple[RelayedEvent, ...]:
        """What can go out now; each event once."""
        ready, self._ready = tuple(self._ready), []
        return ready

    # --- events --------------------------------------------------------------------------------------

    def take(self, events: Iterable[RelayedEvent]) -> None:
        """Read the next events. Raises: Broken."""
        for event in events:
            self._take(event)

    def take_rest(self) -> None:
        """The items that only the terminal event tells of, now that nothing more comes. Raises: Broken."""
        self.begin()
        told = objects(fields(self.said).get("output"))
        if aligned(self.items, told[: len(self.items)]):
            for item in told[len(self.items) :]:
                self._item_done(RelayedEvent({"type": "response.output_item.done", "item": item}))

    def _take(self, event: RelayedEvent) -> None:
        name = cast("str", event.value["type"])
        if name == CREATED:
            self._created(event)
        elif name in _RUNNING:
            self._runs(event)
        elif name in _ENDED:
            self.last = event
        else:
            self.begin()
            self._of_item(name, event)

    def _created(self, event: RelayedEvent) -> None:
        if self.running is None:
            self.running = self._responses.right(event.value.get("response"), outcomes.RESPONSE_RUNNING)
            self._out(_with(event, response=self.running))

    def _runs(self, event: RelayedEvent) -> None:
        status = outcomes.RESPONSE_QUEUED if event.value["type"] == outcomes.QUEUED_EVENT else outcomes.RESPONSE_RUNNING
        right = self._responses.right(event.value.get("response"), status)
        if self.running is None:
            self._out(RelayedEvent({"type": CREATED, "response": right}))
        self.running = right
        self._state_told = True
        self._out(_with(event, response=right))

    def begin(self) -> None:
        """The events that begin a response, where the upstream sent none."""
        if self.running is None:
            given = {
                name: fields(self.said)[name] for name in ("id", "created_at", "model") if fields(self.said).get(name)
            }
            self.running = self._responses.right(given, outcomes.RESPONSE_RUNNING)
            self._out(RelayedEvent({"type": CREATED, "response": self.running}))
        if not self._state_told:
            self._state_told = True
            self._out(RelayedEvent({"type": outcomes.RUNNING_EVENT, "response": self.running}))

    # --- held and out --------------------------------------------------------------------------------

    def _out(self, event: RelayedEvent) -> None:
        self._ready.append(event)

    def _hold(self, item: Item | None, event: RelayedEvent) -> None:
        self.held.append(Held(item, event))

    def _go_on(self) -> None:
        """More of the answer comes: the items that were ended are whole. Only a broken call stays held, so that no
        client runs it."""
        if not self.held:
            return
        kept: list[Held] = []
        for held in self.held:
            if held.item is not None and held.item.is_broken_call:
                kept.append(held)
                continue
            self._out(held.event)
            if held.item is not None and held.event.value["type"] == "response.output_item.done":
                held.item.told = True
        self.held = kept

    # --- events of items -----------------------------------------------------------------------------

    def _of_item(self, name: str, event: RelayedEvent) -> None:
        what, _, step = name.removeprefix("response.").rpartition(".")
        if what == "output_item" and step == "added":
            self._item_added(event)
        elif what == "output_item" and step == "done":
            self._item_done(event)
        elif what in FAMILIES and step in ("added", "done"):
            self._part_event(what, step, event)
        elif (what in SPOKEN or what in WRITTEN) and step in ("delta", "done"):
            self._text_event(what, step, event)
        else:
            self._other(name, event)

    def _other(self, name: str, event: RelayedEvent) -> None:
        """What nobody here knows keeps its place."""
        if name == _ANNOTATION and (item := self._find(event.value)) is not None:
            part = item.parts.get(("content", _index(event.value, "content_index") or 0))
            if part is not None:
                part.annotations.append(event.value.get("annotation"))
        if self.held:
            self._hold(None, event)
        else:
            self._out(event)

    def _find(self, value: Json, kinds: Sequence[str] = ()) -> Item | None:
        """The item of an event: by id, by index, else the last one that can be meant."""
        id_ = value.get("item_id") or fields(value.get("item")).get("id")
        for item in reversed(self.items):
            if item.id == id_:
                return item
        index = _index(value, "output_index")
        if index is not None:  # vLLM gives some events another id than their item has
            item = self.items[index] if index < len(self.items) else None
            return item if item is None or not kinds or item.kind in kinds else None
        if id_:
            return None
        open_ones = [item for item in self.items if item.done is None and (not kinds or item.kind in kinds)]
        return open_ones[-1] if open_ones else None

    def _item_added(self, event: RelayedEvent) -> Item | None:
        given = fields(event.value.get("item"))
        kind = given.get("type")
        if not isinstance(kind, str) or not kind:
            raise Broken("an item without a type")
        id_ = given.get("id")
        if isinstance(id_, str) and any(item.id == id_ for item in self.items):
            return None  # said again
        self._go_on()
        index = len(self.items)
        right = {**given}
        if not isinstance(id_, str) or not id_:
            right["id"] = id_ = f"item_{fields(self.running)['id']}_{index}"
        if kind in (*SPEECH, CALL) and given.get("status") is None:
            right["status"] = outcomes.ITEM_OPEN
        if kind == CALL:
            if not given.get("name"):
                raise Broken("a call without a name")
            right["call_id"] = given.get("call_id") or f"call_{id_}"
            right.setdefault("arguments", "")
        if kind == "message":
            right = {"role": "assistant", "content": list[object](), **right}
        item = Item(id_, index, kind, right)
        self.items.append(item)
        self._out(_with(event, output_index=index, item=right if right != given else given))
        return item

    def _item_done(self, event: RelayedEvent) -> None:
        given = fields(event.value.get("item"))
        item = self._find(event.value, (str(given.get("type")),))
        if item is not None and item.kind != given.get("type", item.kind):
            raise Broken("an item that became one of another kind")
        if item is None:
            self._item_added(RelayedEvent({"type": "response.output_item.added", "item": emptied(given)}))
            item = self.items[-1]
        if item.done is not None:
            return  # said again
        right: Json = {"id": item.id, **given, "type": item.kind}
        if item.kind in ("message", CALL) and given.get("status") is None:
            right["status"] = outcomes.ITEM_WHOLE
        if item.kind == CALL:
            for name in ("name", "call_id"):
                right[name] = right.get(name) or item.added[name]
            self._catch_up_written(item, "function_call_arguments", right.get("arguments"))
        self._parts_of(item, right)
        right = item.with_lists(right)
        for part in item.parts.values():
            self._end_part(item, part)
        for made in item.written_ending():
            self._hold(item, RelayedEvent(made))
        item.done = given if right == given else right
        self._hold(item, _with(event, output_index=item.index, item=item.done))

    def _parts_of(self, item: Item, done: Json) -> None:
        """The parts that only the item's last event tells of, or tells more of."""
        for place in ("content", "summary"):
            for index, value in enumerate(objects(done.get(place))):
                name = OF_PART.get(str(value.get("type")))
                if name is not None:
                    self._catch_up(item, self._part(item, name, index), value.get(SPOKEN[name].key))

    # --- parts ---------------------------------------------------------------------------------------

    def _part_event(self, family: str, step: str, event: RelayedEvent) -> None:
        place = FAMILIES[family]
        told = fields(event.value.get("part")).get("type")
        kind = OF_PART.get(str(told), "output_text" if family == "content_part" else "reasoning_text")
        item = self._find(event.value, SPEECH) or self._unannounced(kind, event)
        if item.done is not None:
            if step == "added":
                raise Broken("more of an item that it had ended")
            return  # said again
        given = fields(event.value.get("part"))
        if not given:
            first = "output_text" if item.kind == "message" else "reasoning_text"
            given = {"type": first if place == "content" else "summary_text", "text": ""}
        name = OF_PART.get(str(given.get("type")))
        if name is None:
            self._other(f"{family}.{step}", event)
            return
        index = self._place_of(event.value, item, place, new=step == "added")
        right = {**with_lists(given, item.parts.get((place, index)) if step == "done" else None)}
        about = {"item_id": item.id, "output_index": item.index, index_key(place): index}
        if step == "done" and SPOKEN[name].key not in given:
            right[SPOKEN[name].key] = self._part(item, name, index).text
        event = _with(event, **about, part=given if right == given else right)
        if step == "added":
            if (place, index) not in item.parts:
                self._go_on()
                item.parts[place, index] = Part(name, family, index, right)
                self._out(event)
            return
        part = self._part(item, name, index)
        if part.done:
            return
        self._catch_up(item, part, given.get(SPOKEN[name].key))
        part.done = True
        for made in item.part_endings(part):
            self._hold(item, RelayedEvent(made))
        self._hold(item, event)

    def _place_of(self, value: Json, item: Item, place: Place, *, new: bool = False) -> int:
        index = _index(value, index_key(place))
        if index is not None:
            return index
        count = sum(1 for at, _ in item.parts if at == place)
        return count if new else max(count - 1, 0)

    def _part(self, item: Item, name: str, index: int) -> Part:
        """The part with this index; one that never began begins here."""
        spoken = SPOKEN[name]
        part = item.parts.get((spoken.place, index))
        if part is None:
            self._go_on()
            part = item.parts[spoken.place, index] = Part(name, spoken.family, index, {})
            part.added = part.value()
            self._out(RelayedEvent(item.part_event(part, f"{spoken.family}.added", part=part.added)))
        return part

    def _end_part(self, item: Item, part: Part) -> None:
        for made in item.part_endings(part):
            self._hold(item, RelayedEvent(made))

    # --- texts ---------------------------------------------------------------------------------------

    def _text_event(self, what: str, step: str, event: RelayedEvent) -> None:
        item = self._find(event.value, _kinds_of(what)) or self._unannounced(what, event)
        if item.done is not None:
            if step == "delta":
                raise Broken("more of an item that it had ended")
            return  # said again
        if what in WRITTEN:
            self._written_event(what, step, item, event)
        else:
            self._spoken_event(what, step, item, event)

    def _unannounced(self, what: str, event: RelayedEvent) -> Item:
        """The item of a text that was never announced."""
        if what not in SPOKEN:
            raise Broken(f"a {what} of an item that never began")
        kind = "message" if what in ("output_text", "refusal") else "reasoning"
        made: dict[str, object] = {"type": kind, "id": event.value.get("item_id")}
        if kind == "reasoning":
            made |= {"summary": list[object](), "content": list[object]()}
        item = self._item_added(RelayedEvent({"type": "response.output_item.added", "item": made}))
        assert item is not None  # its id was not found
        return item

    def _spoken_event(self, what: str, step: str, item: Item, event: RelayedEvent) -> None:
        spoken = SPOKEN[what]
        index = self._place_of(event.value, item, spoken.place)
        part = self._part(item, what, index)
        about: dict[str, object] = {"item_id": item.id, "output_index": item.index, index_key(spoken.place): index}
        if what == "output_text" and event.value.get("logprobs") is None:
            about["logprobs"] = [] if step == "delta" else [*part.logprobs]
        if step == "delta":
            if part.text_done:
                raise Broken("more of a text that it had ended")
            self._go_on()
            self._deltas += 1
            part.pieces.append(_text(event.value.get("delta")))
            part.logprobs += objects(event.value.get("logprobs"))
            self._out(_with(event, **about))
        elif not part.text_done:
            self._catch_up(item, part, event.value.get(spoken.key))
            if not isinstance(event.value.get(spoken.key), str):
                about[spoken.key] = part.text
            part.text_done = True
            self._hold(item, _with(event, **about))

    def _catch_up(self, item: Item, part: Part, text: object) -> None:
        """What the whole text has and no delta had."""
        said = part.text
        if isinstance(text, str) and len(text) > len(said) and text.startswith(said) and not part.text_done:
            self._go_on()
            part.pieces.append(text[len(said) :])
            made = item.part_event(part, f"{part.name}.delta", delta=text[len(said) :])
            self._out(RelayedEvent({**made, "logprobs": []} if part.name == "output_text" else made))

    def _written_event(self, what: str, step: str, item: Item, event: RelayedEvent) -> None:
        about: dict[str, object] = {"item_id": item.id, "output_index": item.index}
        if step == "delta":
            if item.written is not None:
                raise Broken("more of arguments that it had ended")
            self._go_on()
            self._deltas += 1
            item.pieces.append(_text(event.value.get("delta")))
            self._out(_with(event, **about))
        elif item.written is None:
            given = event.value.get(WRITTEN[what])
            self._catch_up_written(item, what, given)
            item.written = given if isinstance(given, str) else "".join(item.pieces)
            if what == "function_call_arguments":
                about |= {"arguments": item.written, "name": event.value.get("name") or item.name}
            self._hold(item, _with(event, **about))

    def _catch_up_written(self, item: Item, what: str, text: object) -> None:
        said = "".join(item.pieces)
        if isinstance(text, str) and len(text) > len(said) and text.startswith(said) and item.written is None:
            self._go_on()
            item.pieces.append(text[len(said) :])
            self._out(RelayedEvent(item.event(f"{what}.delta", delta=text[len(said) :])))


def aligned(items: Sequence[Item], told: Sequence[Json]) -> bool:
    """Whether these are the items, one by one. Their ids may differ: vLLM makes new ones for the last event."""
    return len(items) == len(told) and all(
        item.kind == value.get("type") for item, value in zip(items, told, strict=True)
    )


def _kinds_of(what: str) -> tuple[str, ...]:
    if what in WRITTEN:
        return (what.removesuffix("_arguments").removesuffix("_input").removesuffix("_code"),)
    return ("message",) if what in ("output_text", "refusal") else ("reasoning",)


def _with(event: RelayedEvent, **members: object) -> RelayedEvent:
    """The event with these members: itself where it has them."""
    if all(name in event.value and event.value[name] == value for name, value in members.items()):
        return event
    return RelayedEvent({**event.value, **members})


def _index(value: Json, name: str) -> int | None:
    index = value.get(name)
    return index if isinstance(index, int) and not isinstance(index, bool) and index >= 0 else None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Broken("a delta that is no text")
    return value
