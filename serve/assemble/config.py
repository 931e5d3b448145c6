"""What the parsing of one answer depends on. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool of the request. `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class ParseConfig:
    """How to read one answer. `thinking`: the prompt ended inside the reasoning. `tools`: those that the model may
    call; with none, `<tool_call>` is plain text. `stop`: strings that end the answer's text. `end_ids`: the tokens
    by which the model ends its turn. `prefill`: how the prompt already begins the answer (a call that is forced); it is
    read as if the model had written it, and counts as prompt. `one_call`: the answer ends with its first whole call.
    `plain`: the text is the answer, whatever tags are in it (there are no tools and no thinking)."""

    thinking: bool = False
    tools: tuple[ToolSpec, ...] = ()
    stop: tuple[str, ...] = ()
    end_ids: frozenset[int] = frozenset()
    prefill: str = ""
    one_call: bool = False
    plain: bool = False
