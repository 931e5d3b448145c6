"""The end of a relayed response: the last events, and the response itself, as a terminal has them be.

What an ending is called is said by `serve.outcomes`; what the upstream said of it stays where it is true.
"""

from __future__ import annotations

from engine.events import Cancelled, Failed, Finished, RelayedEvent, Terminal, Usage
from serve import outcomes
from serve.relay.items import CALL, SPEECH, Item, Json, fields, objects
from serve.relay.objects import right_usage
from serve.relay.track import Held, Track, aligned


class Ending:
    """`events`: the last ones, in order and without numbers; `response`: the one in the last of them."""

    def __init__(self, track: Track, terminal: Terminal, at: float) -> None:
        self._track = track
        self._ending = outcomes.response_ending(terminal)
        self._finished = isinstance(terminal, Finished)
        self._cut = self._cut_items()
        track.begin()
        self.events: list[RelayedEvent] = [*track.ready()]
        for held in track.held:
            self._release(held)
        track.held = []
        for item in track.items:
            if not item.told:
                self._close(item)
        self.response = self._final(terminal.usage, int(at))
        if isinstance(terminal, Failed | Cancelled) and self._ending.error is not None:
            self.events.append(RelayedEvent(_error(terminal)))
        self._tell()

    # --- items ---------------------------------------------------------------------------------------

    def _cut_items(self) -> list[Item]:
        """The items that are not whole. A failure cuts whatever is open, and what was just being ended: nobody knows
        whether it was whole. A limit cuts the last item, unless that is a call with all of its arguments."""
        items = [item for item in self._track.items if not item.told]
        if not self._finished:
            return [item for item in items if item.kind in (*SPEECH, CALL)]
        if self._ending.open_item != outcomes.ITEM_CUT:
            return []
        cut = [item for item in items if item.says_incomplete or item.is_broken_call]
        last = items[-1:] if not cut else []
        return cut + [item for item in last if item.kind in SPEECH or (item.kind == CALL and item.done is None)]

    def _status(self, item: Item) -> object:
        """The status that an item ends with; None: the one that it has."""
        if item in self._cut:
            return outcomes.ITEM_CUT
        if item.kind == CALL or item.kind in SPEECH:
            if item.done is None:
                return outcomes.ITEM_WHOLE
            if self._finished and item.done.get("status") not in (None, outcomes.ITEM_WHOLE, outcomes.ITEM_CUT):
                return outcomes.ITEM_WHOLE
        return None

    def _is_untold(self, item: Item) -> bool:
        """Whether a call is not ended: a failure cut it, and no client is to run it."""
        return item.kind == CALL and item in self._cut and not self._ending.calls_close

    def _release(self, held: Held) -> None:
        item, event = held.item, held.event
        if item is not None:
            if self._is_untold(item):
                return
            if event.value["type"] == "response.output_item.done":
                event = self._done(item, event)
            elif item.kind == CALL and item in self._cut and event.value["arguments"] != item.streamed_arguments:
                event = RelayedEvent({**event.value, "arguments": item.streamed_arguments})
        self.events.append(event)

    def _done(self, item: Item, event: RelayedEvent) -> RelayedEvent:
        item.told = True
        right = item.value(self._status(item))
        if right == event.value["item"]:
            return event
        item.done = right
        return RelayedEvent({**event.value, "item": right})

    def _close(self, item: Item) -> None:
        """End an item that is still open, or was never said to end."""
        if self._is_untold(item) or (item.kind not in (*SPEECH, CALL) and not self._finished):
            return
        if item.kind in SPEECH and not item.parts and isinstance(item.added.get("content"), list):
            self.events.append(RelayedEvent(item.empty_part()))
        for part in item.parts.values():
            self.events += [RelayedEvent(made) for made in item.part_endings(part)]
        self.events += [RelayedEvent(made) for made in item.written_ending()]
        item.done = item.value(self._status(item))
        item.told = True
        self.events.append(
            RelayedEvent({"type": "response.output_item.done", "output_index": item.index, "item": item.done})
        )

    # --- the response --------------------------------------------------------------------------------

    def _final(self, counted: Usage | None, at: int) -> Json:
        """The upstream's own response if it is true, else one that is."""
        said = fields(self._track.said)
        ending = self._ending
        base = self._track.right(said or self._track.running, ending.status)
        final: dict[str, object] = {
            **base,
            "status": ending.status,
            "error": ending.error,
            "incomplete_details": self._details(base.get("incomplete_details")),
            "usage": right_usage(base.get("usage"), counted or (Usage() if self._finished else None)),
        }
        if ending.status != "completed":
            final |= {"completed_at": None} if "completed_at" in base else {}
        elif "completed_at" in base and base["completed_at"] is None:
            final["completed_at"] = at
        told = objects(said.get("output"))
        if final == said and aligned(self._track.items, told) and self._is_true(told):
            return said
        return {**final, "output": [self._item(item) for item in self._track.items]}

    def _details(self, given: object) -> object:
        reason = self._ending.incomplete_reason
        if reason is None or fields(given).get("reason") == reason:
            return given if reason is not None else None
        return {"reason": reason}

    def _is_true(self, told: list[Json]) -> bool:
        """Whether the upstream's own items have ids, all of their lists, and the statuses that they ended with."""
        return all(
            value.get("id")
            and value.get("status") == self._item(item).get("status")
            and item.with_lists(value) is value
            for item, value in zip(self._track.items, told, strict=True)
        )

    def _item(self, item: Item) -> Json:
        if item.told and item.done is not None:
            return item.done
        return item.value(self._status(item))

    def _tell(self) -> None:
        last = self._track.last
        if (
            last is not None
            and last.value["type"] == self._ending.event
            and last.value.get("response") == self.response
        ):
            self.events.append(last)
        else:
            more = {} if last is None else {name: v for name, v in last.value.items() if name not in _OURS}
            self.events.append(RelayedEvent({"type": self._ending.event, "response": self.response, **more}))


_OURS = ("type", "response", "sequence_number", "error")


def _error(terminal: Failed | Cancelled) -> dict[str, object]:
    """Flat as it is documented, and nested: each alone is missed by half of the clients."""
    error = outcomes.stream_error(terminal)
    flat: dict[str, object] = {name: error[name] for name in ("code", "message", "param")}
    return {"type": "error", **flat, "error": error}
