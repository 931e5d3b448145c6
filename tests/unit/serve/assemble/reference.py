"""What an answer's text means, read whole and slowly: the rules of `serve.assemble` once more, in other words.

The parser is compared with it over generated answers. It has the whole text before it and looks ahead as far as it
likes, so nothing of the parser's machinery (lexemes, states, what is held) is here. It shares no code with the parser.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from engine.events import Failed, FailKind, Finished, Terminal
from serve.assemble import ParseConfig
from tests.unit.serve.assemble.dialogue import Said
from tests.unit.serve.assemble.reference_calls import CLOSER, OPENER, Ending, Tools, read_call

TOOL_CALL = Failed(FailKind.TOOL_CALL, "")


@dataclass(frozen=True)
class Part:
    """A piece of the answer: text, reasoning, a call with its arguments, or that a call is broken or open."""

    kind: str
    text: str = ""
    name: str = ""
    ended: bool = False


def expected(data: bytes, config: ParseConfig, terminal: Terminal) -> tuple[Said, Terminal]:
    """What must come out of these bytes, and the other terminal that may: where a stop string stands in text that
    only the end released, the end that was told stays, if it is no success."""
    ending: Ending = "failed"
    if isinstance(terminal, Finished):
        ending = "length" if terminal.reason == "length" else "stop"
    parts, found = until_stop(read(data, config, ending), config.stop)
    calls = tuple((part.name, part.text, part.ended) for part in parts if part.kind == "call")
    faulty = any(part.kind == "fault" for part in parts)
    end = told = terminal
    if found is not None:
        end = TOOL_CALL if faulty else Finished("tool_calls" if calls else "stop", stop_sequence=found)
        told = end if isinstance(terminal, Finished) else terminal
    elif ending == "stop":
        end = told = TOOL_CALL if faulty else Finished("tool_calls" if calls else "stop")
    said = {kind: "".join(part.text for part in parts if part.kind == kind) for kind in ("text", "reasoning")}
    return Said(said["text"], said["reasoning"], calls, order_of(parts), end), told


def order_of(parts: Iterable[Part]) -> tuple[str, ...]:
    """The kinds of the events, neighbours as one."""
    events: list[str] = []
    for part in parts:
        if part.kind == "call":
            events.append("ToolCallStart")
            events += ["ToolCallArgs"] if part.text else []
            events += ["ToolCallEnd"] if part.ended else []
        elif part.text:
            events.append(part.kind.title())
    return tuple(kind for kind, _ in groupby(events))


def until_stop(parts: list[Part], stops: tuple[str, ...]) -> tuple[list[Part], str | None]:
    """The parts before the first complete stop string in one stretch of text, and that string."""
    kept: list[Part] = []
    for in_text, stretch in stretches(parts):
        text = "".join(part.text for part in stretch)
        ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
        if in_text and ends:
            end, _, stop = min(ends)
            return [*kept, *faults_before(stretch, end), Part("text", text[: end - len(stop)])], stop
        kept += stretch
    return kept, None


def stretches(parts: Iterable[Part]) -> list[tuple[bool, list[Part]]]:
    """Neighbouring text together, with the faults in it."""
    return [(key, list(run)) for key, run in groupby(parts, lambda part: part.kind in ("text", "fault"))]


def faults_before(stretch: list[Part], end: int) -> list[Part]:
    """The faults that were seen before so many characters of the stretch were read."""
    seen = 0
    found: list[Part] = []
    for part in stretch:
        seen += len(part.text)
        if part.kind == "fault" and seen < end:
            found.append(part)
    return found


def read(data: bytes, config: ParseConfig, ending: Ending) -> list[Part]:
    """The parts of a whole answer that ended so."""
    text = data.decode("utf-8", "replace")
    tools = {tool.name: tool.parameters for tool in config.tools}
    opened = text.startswith("<think>") and not config.plain
    if opened:
        text = text.removeprefix("<think>").lstrip("\n")
    if not opened and not config.thinking:
        return read_answer(text, tools, ending)
    reasoning, closed, answer = text.partition("</think>")
    if closed:
        return [Part("reasoning", reasoning), *read_answer(answer.lstrip("\n"), tools, ending)]
    if ending == "stop" and tools:
        return read_unclosed(reasoning, tools)
    return [Part("reasoning", reasoning)]


def read_answer(text: str, tools: Tools, ending: Ending) -> list[Part]:
    """The answer, which may have calls where there are tools."""
    parts: list[Part] = []
    at, settled = 0, False
    while tools and (start := text.find(OPENER, at)) >= 0:
        parts.append(Part("text", text[at:start]))
        call = read_call(text, start, tools, ending, settled=settled)
        settled = settled or call.settles
        declared = call.name in tools
        at = call.to
        if declared and call.state == "whole":
            parts.append(Part("call", call.arguments, str(call.name), ended=True))
        elif declared:  # whatever follows a broken call belongs to it
            parts += [Part("call", call.arguments + text[at:], str(call.name)), Part("fault")]
            at = len(text)
        elif call.state == "open":
            shown = ending == "failed" or (ending == "length" and call.name is not None)
            parts += [Part("text", text[start:] if shown else ""), Part("fault")]
        elif call.state == "broken" and call.name is None and call.plausible:
            at, more = nameless(text, start, at, ending)
            parts += more
        else:
            parts.append(Part("text", text[start:at]))
    return tidied([*parts, Part("text", text[at:])])


def nameless(text: str, start: int, at: int, ending: Ending) -> tuple[int, list[Part]]:
    """A broken call whose tool nobody knows: once its closing tag is there, it can be shown."""
    closer = text.find(CLOSER, at)
    if closer >= 0:
        at = closer + len(CLOSER)
        return at, [Part("text", text[start:at]), Part("fault")]
    return len(text), [Part("text", text[start:] if ending == "failed" else ""), Part("fault")]


def tidied(parts: list[Part]) -> list[Part]:
    """The parts without white space alone between a call and the next one or the end."""
    made: list[Part] = []
    for in_text, stretch in stretches(parts):
        framing = in_text and made and not "".join(part.text for part in stretch).strip()
        made += [part for part in stretch if part.kind == "fault"] if framing else stretch
    return made


def read_unclosed(text: str, tools: Tools) -> list[Part]:
    """Reasoning that the model ended without its closing tag: whole calls of declared tools are calls."""
    calls: list[Part] = []
    thoughts = [""]  # before the first call, after the first, …
    fault = settled = False
    at = 0
    while (start := text.find(OPENER, at)) >= 0:
        thoughts[-1] += text[at:start]
        call = read_call(text, start, tools, "stop", settled=settled)
        settled = settled or call.settles
        at = call.to
        if call.state == "whole" and call.name in tools:
            calls.append(Part("call", call.arguments, str(call.name), ended=True))
            thoughts.append("")
            continue
        thoughts[-1] += text[start:at]
        fault = fault or (call.state == "open" and (call.name is None or call.name in tools))
        fault = fault or (call.state == "broken" and call.name in tools)
    thoughts[-1] += text[at:]
    kept = [thoughts[0], *(thought for thought in thoughts[1:] if thought.strip())]
    return [*(Part("reasoning", thought) for thought in kept), *calls, *([Part("fault")] if fault else [])]
