"""Small edits of what an honest server sends, for the tables of lies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from tests.unit.tools.conform_checks.honest import Frames, Reply
from tests.unit.tools.conform_checks.honest_engine import Ask, Json
from tests.unit.tools.conform_checks.honest_wire import DONE, Frame

Picks = Callable[[Frame], bool]
FrameEdit = Callable[[Ask, Frames], Frames]
ReplyEdit = Callable[[Ask, Reply], Reply]
Change = Callable[[Json], object]

_ENDS = ("response.completed", "response.incomplete", "response.failed", "message_stop")


def text_of(frame: Frame) -> str:
    return json.dumps(frame.value)


def is_end(frame: Frame) -> bool:
    return frame == DONE or frame.kind in _ENDS


def is_error(frame: Frame) -> bool:
    return frame.kind == "error" or (isinstance(frame.value, dict) and set(frame.value) == {"error"})


def has_finish(frame: Frame) -> bool:
    """It says how the answer ended."""
    return frame.kind in ("message_delta", *_ENDS[:3]) or '"finish_reason": "' in text_of(frame)


def closes(frame: Frame) -> bool:
    """The first frame after the pieces of the answer."""
    return has_finish(frame) or frame.kind.endswith((".done", "_stop"))


def of(*kinds: str) -> Picks:
    return lambda frame: frame.kind in kinds


def having(text: str) -> Picks:
    return lambda frame: text in text_of(frame)


# --- streams ----------------------------------------------------------------------------------------


def without(picks: Picks) -> FrameEdit:
    return lambda ask, frames: (frame for frame in frames if not picks(frame))


def until(picks: Picks) -> FrameEdit:
    """Nothing after the first of these."""

    def edit(ask: Ask, frames: Frames) -> Iterator[Frame]:
        for frame in frames:
            yield frame
            if picks(frame):
                return

    return edit


def twice(picks: Picks) -> FrameEdit:
    return lambda ask, frames: (frame for each in frames for frame in ([each, each] if picks(each) else [each]))


def before(picks: Picks, *more: Frame) -> FrameEdit:
    """Before the first of these."""

    def edit(ask: Ask, frames: Frames) -> Iterator[Frame]:
        pending = list(more)
        for frame in frames:
            if picks(frame):
                yield from pending
                pending = []
            yield frame

    return edit


def after(picks: Picks, *more: Frame) -> FrameEdit:
    return lambda ask, frames: (frame for each in frames for frame in ([each, *more] if picks(each) else [each]))


def change(picks: Picks, how: Change) -> FrameEdit:
    """`how` changes a copy of the value in place."""

    def edit(ask: Ask, frames: Frames) -> Iterator[Frame]:
        for frame in frames:
            if not (isinstance(frame.value, dict) and picks(frame)):
                yield frame
                continue
            value = json.loads(json.dumps(frame.value))
            how(value)
            yield Frame(frame.name, value)

    return edit


def unnamed(ask: Ask, frames: Frames) -> Iterator[Frame]:
    return (Frame(None, frame.value) for frame in frames)


def swap(*pairs: tuple[str, str]) -> FrameEdit:
    """Replace text in the JSON of each event, and in its name."""

    def edit(ask: Ask, frames: Frames) -> Iterator[Frame]:
        for frame in frames:
            name = None if frame.name is None else _swapped(json.dumps(frame.name), pairs).strip('"')
            yield Frame(name, json.loads(_swapped(json.dumps(frame.value), pairs)))

    return edit


def only(wanted: Callable[[Ask], bool], edit: FrameEdit) -> FrameEdit:
    """The edit, for these requests."""
    return lambda ask, frames: edit(ask, frames) if wanted(ask) else frames


def first_dropped(ask: Ask, frames: Frames) -> Iterator[Frame]:
    next(frames, None)
    yield from frames


def numbered(number: Callable[[int], int]) -> FrameEdit:
    """Other sequence numbers."""

    def how(value: Json) -> None:
        value["sequence_number"] = number(value["sequence_number"])

    return change(having('"sequence_number"'), how)


# --- answers ----------------------------------------------------------------------------------------


def swap_reply(*pairs: tuple[str, str]) -> ReplyEdit:
    def edit(ask: Ask, reply: Reply) -> Reply:
        return Reply(reply.status, json.loads(_swapped(json.dumps(reply.value), pairs)), reply.fields)

    return edit


def instead(when: Callable[[Ask, Reply], bool], status: int, value: object, **fields: str) -> ReplyEdit:
    """Another answer. `_` in the name of a field stands for `-`."""
    named = {name.replace("_", "-"): text for name, text in fields.items()} or {"Content-Type": "application/json"}
    return lambda ask, reply: Reply(status, value, named) if when(ask, reply) else reply


def with_status(status: int, *, of_: int) -> ReplyEdit:
    return lambda ask, reply: Reply(status, reply.value, reply.fields) if reply.status == of_ else reply


def _swapped(text: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text
