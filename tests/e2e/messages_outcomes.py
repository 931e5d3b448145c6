"""The endings of a message that the engine alone brings about: what it makes and what a client must read."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.e2e.messages_client import ADD, CALL, END, Json, Steps, request, rule

SECOND_CALL = CALL.replace("1", "2")
SCHEMA = {"type": "object", "properties": {"a": {"type": ["integer", "array"]}}, "required": ["a"]}
FORMAT: Json = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
CONTEXT = 1_200
NASTY = "a\u2028b\u2029c\u0085d\x00e\x1ff\x7f g\ufeffh 😀 ö\r\n\n\tend"


@dataclass(frozen=True)
class Outcome:
    """What the engine makes and what a client must read. `calls` are their arguments; `status` is that of a failure
    without a stream, 0 where there is none."""

    name: str
    made: str
    fields: Json = field(default_factory=dict[str, object])
    texts: tuple[str, ...] = ()
    thinking: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    stop: str = "end_turn"
    stop_sequence: str | None = None
    status: int = 0
    steps: Steps = field(default_factory=lambda: END)

    @property
    def body(self) -> Json:
        return request(f"please {self.name}!", **self.fields)


TOOLS: Json = {"tools": [ADD]}
THINKING: Json = {"thinking": True}
A1, A2 = '{"a": 1}', '{"a": 2}'
FINISHED = (
    Outcome("stop", NASTY, texts=(NASTY,)),
    Outcome("nothing", ""),
    Outcome("think", "So.</think>\n\nFour.", THINKING, ("Four.",), ("So.",)),
    Outcome("only-think", "So.</think>", THINKING, (), ("So.",)),
    Outcome("call", CALL, TOOLS, calls=(A1,), stop="tool_use"),
    Outcome("two-calls", f"Both.{CALL}\n{SECOND_CALL}", TOOLS, ("Both.",), calls=(A1, A2), stop="tool_use"),
    Outcome("think-and-call", f"Hm.</think>{CALL}", {**TOOLS, **THINKING}, (), ("Hm.",), (A1,), "tool_use"),
    Outcome("call-then-text", f"{CALL}\nDone, then.", TOOLS, ("\nDone, then.",), calls=(A1,), stop="tool_use"),
    Outcome(
        "one-call-at-most",
        f"{CALL}\n{SECOND_CALL}",
        {**TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        calls=(A1,),
        stop="tool_use",
    ),
    Outcome("json", '{"a": 1}', FORMAT, ('{"a": 1}',)),
    Outcome("json-or-call", CALL, {**FORMAT, **TOOLS}, calls=(A1,), stop="tool_use"),
    Outcome("older-json", '{"a": 1}', {"output_format": FORMAT["output_config"]["format"]}, ('{"a": 1}',)),
    Outcome("stop-string", "one END two", {"stop_sequences": ["X", "END"]}, ("one ",), (), (), "stop_sequence", "END"),
)
CUT = (
    Outcome("length-in-text", "Hello, world.", {"max_tokens": 5}, ("Hello",), stop="max_tokens"),
    Outcome("length-in-thinking", "Hello", {"max_tokens": 3, **THINKING}, (), ("Hel",), stop="max_tokens"),
    Outcome("one-token", "Hello", {"max_tokens": 1}, ("H",), stop="max_tokens"),
    Outcome("length-in-a-character", "a😀b", {"max_tokens": 3}, ("a\ufffd",), stop="max_tokens"),
    Outcome(
        "length-in-arguments",
        "Sure.<tool_call>\n<function=add>\n<parameter=note>\nhalf of it\n</parameter>",
        {"max_tokens": len("Sure.<tool_call>\n<function=add>\n<parameter=note>\nhalf"), **TOOLS},
        ("Sure.",),
        calls=('{"note": "half',),
        stop="max_tokens",
    ),
    Outcome("length-in-the-name", CALL, {"max_tokens": 20, **TOOLS}, stop="max_tokens"),
    Outcome(
        "length-in-the-second-call",
        f"{CALL}\n<tool_call>\n<function=add>\n<parameter=a>\n12",
        {"max_tokens": len(f"{CALL}\n<tool_call>\n<function=add>\n<parameter=a>\n1"), **TOOLS},
        calls=(A1, '{"a": 1'),
        stop="max_tokens",
    ),
    Outcome("json-cut", '{"a": [1, 2, 3]}', {**FORMAT, "max_tokens": 8}, ('{"a": [1',), stop="max_tokens"),
)
FAILED = (
    Outcome("call-left-open", CALL.partition("\n</parameter>")[0], TOOLS, calls=('{"a": 1',), status=502),
    Outcome("json-wrong", '{"a": "x"}', FORMAT, ('{"a": "x"}',), status=502),
    Outcome("json-open", '{"a": 1', FORMAT, ('{"a": 1',), status=502),
    Outcome("json-none", "", FORMAT, status=502),
    Outcome(
        "no-call-where-one-is-due",
        "no",
        {**TOOLS, "tool_choice": {"type": "tool", "name": "add"}},
        calls=("no",),
        status=502,
    ),
)
FULL = Outcome("context-full", "x" * CONTEXT, stop="max_tokens")
DIES = Outcome("engine-dies", "Hel", {}, ("Hel",), status=503, steps=[{"exit": 3}])
ALL = (*FINISHED, *CUT, *FAILED, FULL, DIES)

SCRIPT: Json = {
    "requests": [rule(f"please {one.name}!", *([{"text": one.made}] if one.made else []), *one.steps) for one in ALL],
    "context": CONTEXT,
}
"""The fake engine that brings them about."""
