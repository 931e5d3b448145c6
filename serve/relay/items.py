"""The output items of a relayed response: what was said of each so far, and the events that are missing of one.

It knows the events of items by their names only; when one is to be told, and with which ending, is
`serve.relay.stream`'s business.

Source: OpenAI API reference, Responses streaming events (2026-10); `reasoning_part` is vLLM's own name
(vllm/entrypoints/openai/responses, 2026-11).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

from serve import outcomes

Json: TypeAlias = Mapping[str, object]
Place: TypeAlias = Literal["content", "summary"]

CALL = "function_call"
SPEECH = ("message", "reasoning")


@dataclass(frozen=True, slots=True)
class Spoken:
    """A kind of text: the `type` of its part, the list of the item that the part stands in, its key there; `family` is
    what events call such a part."""

    part: str
    place: Place
    key: str
    family: str


SPOKEN: Mapping[str, Spoken] = {
    "output_text": Spoken("output_text", "content", "text", "content_part"),
    "refusal": Spoken("refusal", "content", "refusal", "content_part"),
    "reasoning_text": Spoken("reasoning_text", "content", "text", "content_part"),
    "reasoning_summary_text": Spoken("summary_text", "summary", "text", "reasoning_summary_part"),
}
"""The texts of parts, by the name in `response.NAME.delta`."""
OF_PART: Mapping[str, str] = {spoken.part: name for name, spoken in SPOKEN.items()}
WRITTEN: Mapping[str, str] = {
    "function_call_arguments": "arguments",
    "custom_tool_call_input": "input",
    "mcp_call_arguments": "arguments",
    "code_interpreter_call_code": "code",
}
"""The texts of items themselves → their key in the item."""
FAMILIES: Mapping[str, Place] = {
    "content_part": "content",
    "reasoning_part": "content",
    "reasoning_summary_part": "summary",
}


@dataclass(slots=True)
class Part:
    """A part of an item. `text_done` and `done`: the event of that was read, or made here."""

    name: str
    family: str
    index: int
    added: Json
    pieces: list[str] = field(default_factory=list[str])
    logprobs: list[object] = field(default_factory=list[object])
    annotations: list[object] = field(default_factory=list[object])
    text_done: bool = False
    done: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def place(self) -> Place:
        return FAMILIES[self.family]

    def value(self) -> dict[str, object]:
        """The part as its pieces say."""
        spoken = SPOKEN[self.name]
        made = {**self.added, "type": spoken.part, spoken.key: self.text}
        if spoken.part == "output_text":
            made |= {"annotations": self.annotations, "logprobs": self.logprobs}
        return made


@dataclass(slots=True)
class Item:
    """An item. `added` is it as its first event told it, `done` as its last one did; `told`: that one is out."""

    id: str
    index: int
    kind: str
    added: Json
    parts: dict[tuple[Place, int], Part] = field(default_factory=dict[tuple[Place, int], Part])
    pieces: list[str] = field(default_factory=list[str])
    written: str | None = None
    done: Json | None = None
    told: bool = False

    @property
    def text(self) -> str:
        """What it says, its thinking and its refusals included."""
        return "".join(part.text for part in self.parts.values())

    @property
    def arguments(self) -> str:
        """The arguments of a call, as they were told last."""
        last = None if self.done is None else self.done.get("arguments")
        if isinstance(last, str):
            return last
        return "".join(self.pieces) if self.written is None else self.written

    @property
    def streamed_arguments(self) -> str:
        """The arguments of a call that was cut, as a client has them already."""
        return "".join(self.pieces) or self.arguments

    @property
    def name(self) -> str:
        """The function's, of a call."""
        return str((self.done or self.added).get("name", ""))

    @property
    def is_broken_call(self) -> bool:
        """Whether it is a call of a function whose arguments are no JSON object, however they were told."""
        if self.kind != CALL:
            return False
        tellings = {self.arguments, "".join(self.pieces)} if self.pieces else {self.arguments}
        return not all(is_object(text) for text in tellings)

    @property
    def says_incomplete(self) -> bool:
        """Whether the upstream closed it as one that was cut."""
        return self.done is not None and self.done.get("status") == outcomes.ITEM_CUT

    def with_lists(self, told: Json) -> Json:
        """This item as it was told, its texts with the lists that they have to have: itself where they have them."""
        content = told.get("content")
        if not isinstance(content, list):
            return told
        given = cast("list[object]", content)
        right = [_with_lists(value, self.parts.get(("content", index))) for index, value in enumerate(given)]
        return told if right == given else {**told, "content": right}

    def value(self, status: object) -> dict[str, object]:
        """The item with this status, as it was told last, or as its pieces say."""
        if self.done is not None:
            told = dict(self.done) if status is None else {**self.done, "status": status}
            if self.kind == CALL and status == outcomes.ITEM_CUT:
                told["arguments"] = self.streamed_arguments
            return told
        made: dict[str, object] = {**self.added}
        for place in ("content", "summary"):
            values = [self.parts[key].value() for key in sorted(self.parts) if key[0] == place]
            if values:
                made[place] = values
        if self.kind == CALL:
            made["arguments"] = self.streamed_arguments if status == outcomes.ITEM_CUT else self.arguments
        elif self.pieces or self.written is not None:
            key = next((key for name, key in WRITTEN.items() if name.startswith(self.kind)), "input")
            made[key] = "".join(self.pieces) if self.written is None else self.written
        return made if status is None else {**made, "status": status}

    # --- the events that are missing ---------------------------------------------------------------

    def event(self, name: str, /, **members: object) -> dict[str, object]:
        """An event about it, without its number."""
        return {"type": f"response.{name}", "item_id": self.id, "output_index": self.index, **members}

    def part_event(self, part: Part, name: str, /, **members: object) -> dict[str, object]:
        """An event about a part of it."""
        return self.event(name, **{index_key(part.place): part.index}, **members)

    def empty_part(self) -> dict[str, object]:
        """The event that begins a part of an item that ends without any."""
        name = "output_text" if self.kind == "message" else "reasoning_text"
        part = self.parts["content", 0] = Part(name, SPOKEN[name].family, 0, {})
        part.added = part.value()
        return self.part_event(part, f"{part.family}.added", part=part.added)

    def part_endings(self, part: Part) -> list[dict[str, object]]:
        """The events that end a part, but for those that were read already."""
        made: list[dict[str, object]] = []
        spoken = SPOKEN[part.name]
        if not part.text_done:
            ended = self.part_event(part, f"{part.name}.done", **{spoken.key: part.text})
            made.append(ended | ({"logprobs": part.logprobs} if part.name == "output_text" else {}))
        if not part.done:
            made.append(self.part_event(part, f"{part.family}.done", part=part.value()))
        part.text_done = part.done = True
        return made

    def written_ending(self) -> list[dict[str, object]]:
        """The event that ends a call's arguments, unless it was read already."""
        if self.kind != CALL or self.written is not None:
            return []
        self.written = self.arguments
        return [self.event("function_call_arguments.done", name=self.name, arguments=self.written)]


def with_lists(part: Json, said: Part | None) -> Json:
    """A part as it was told, with the lists that a text has to have: vLLM writes null where they are empty. `said`:
    what was told of it before.

    Source: OpenAI API reference, "output text": `annotations` and `logprobs` are required (2026-10).
    """
    if part.get("type") != "output_text":
        return part
    lists: dict[str, list[object]] = {"annotations": [], "logprobs": []}
    if said is not None:
        lists = {"annotations": [*said.annotations], "logprobs": [*said.logprobs]}
    missing = {name: value for name, value in lists.items() if not isinstance(part.get(name), list)}
    return {**part, **missing} if missing else part


def _with_lists(part: object, said: Part | None) -> object:
    return with_lists(cast("Json", part), said) if isinstance(part, dict) else part


def index_key(place: Place) -> str:
    """The name of a part's index in events."""
    return "summary_index" if place == "summary" else "content_index"


def emptied(item: Json) -> dict[str, object]:
    """The item as it is when it begins."""
    made: dict[str, object] = {**item, "status": outcomes.ITEM_OPEN}
    for place in ("content", "summary"):
        if isinstance(item.get(place), list):
            made[place] = []
    if item.get("type") == CALL:
        made["arguments"] = ""
    return made


def is_object(text: str) -> bool:
    """Whether a text is one JSON object."""
    try:
        return isinstance(_STRICT.decode(text), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_STRICT = json.JSONDecoder(parse_constant=_refuse)


def fields(value: object) -> Json:
    """A JSON object; an empty one for anything else."""
    return cast("Json", value) if isinstance(value, dict) else {}


def objects(value: object) -> list[Json]:
    """The objects of a JSON list."""
    return [fields(one) for one in cast("list[object]", value)] if isinstance(value, list) else []
