"""The endings of a response that the engine alone brings about: what it makes and what a client must read."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.e2e.responses_client import ADD, CALL, END, Json, Steps, request, rule

SECOND_CALL = CALL.replace("1", "2")
SCHEMA = {"type": "object", "properties": {"a": {"type": ["integer", "array"]}}, "required": ["a"]}
FORMAT: Json = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
CONTEXT = 1_000
NASTY = "a\u2028b\u2029c\u0085d\x00e\x1ff\x7f g\ufeffh 😀 ö\r\n\n\tend"


@dataclass(frozen=True)
class Outcome:
    """What the engine makes and what a client must read. `calls` are (arguments, status), `last` is the status of the
    last item that is no call, `code` our code of a failure."""

    name: str
    made: str
    fields: Json = field(default_factory=dict[str, object])
    texts: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    calls: tuple[tuple[str, str], ...] = ()
    last: str = "completed"
    code: str = ""
    steps: Steps = field(default_factory=lambda: END)

    @property
    def body(self) -> Json:
        return request(f"please {self.name}!", **self.fields)


TOOLS: Json = {"tools": [ADD]}
THINKING: Json = {"thinking": True}
A1 = ('{"a": 1}', "completed")
A2 = ('{"a": 2}', "completed")
FINISHED = (
    Outcome("stop", NASTY, texts=(NASTY,)),
    Outcome("nothing", "", last=""),
    Outcome("think", "So.</think>\n\nFour.", THINKING, ("Four.",), ("So.",)),
    Outcome("only-think", "So.</think>", THINKING, (), ("So.",)),
    Outcome("call", CALL, TOOLS, calls=(A1,)),
    Outcome("two-calls", f"Both.{CALL}\n{SECOND_CALL}", TOOLS, ("Both.",), calls=(A1, A2)),
    Outcome("think-and-call", f"Hm.</think>{CALL}", {**TOOLS, **THINKING}, (), ("Hm.",), (A1,)),
    Outcome("call-then-text", f"{CALL}\nDone, then.", TOOLS, ("\nDone, then.",), calls=(A1,)),
    Outcome("json", '{"a": 1}', {"text": FORMAT}, ('{"a": 1}',)),
    Outcome("json-or-call", CALL, {"text": FORMAT, **TOOLS}, calls=(A1,)),
    Outcome("json-beside-tools", '{"a": 1}', {"text": FORMAT, **TOOLS}, ('{"a": 1}',)),
    Outcome("any-object", '{"b": 1}', {"text": {"format": {"type": "json_object"}}}, ('{"b": 1}',)),
    Outcome("stop-string", "one END two", {"stop": ["END"]}, ("one ",)),
)
INCOMPLETE = (
    Outcome("length-in-text", "Hello, world.", {"max_output_tokens": 5}, ("Hello",), last="incomplete"),
    Outcome("length-in-reasoning", "Hello", {"max_output_tokens": 3, **THINKING}, (), ("Hel",), last="incomplete"),
    Outcome("one-token-of-reasoning", "Hello", {"max_output_tokens": 1, **THINKING}, (), ("H",), last="incomplete"),
    Outcome("one-token", "Hello", {"max_output_tokens": 1}, ("H",), last="incomplete"),
    Outcome("length-in-a-character", "a😀b", {"max_output_tokens": 3}, ("a\ufffd",), last="incomplete"),
    Outcome(
        "length-in-arguments",
        "Sure.<tool_call>\n<function=add>\n<parameter=note>\nhalf of it\n</parameter>",
        {"max_output_tokens": len("Sure.<tool_call>\n<function=add>\n<parameter=note>\nhalf"), **TOOLS},
        ("Sure.",),
        calls=(('{"note": "half', "incomplete"),),
    ),
    Outcome("length-in-the-name", CALL, {"max_output_tokens": 20, **TOOLS}, last=""),
    Outcome(
        "length-in-the-second-call",
        f"{CALL}\n<tool_call>\n<function=add>\n<parameter=a>\n12",
        {"max_output_tokens": len(f"{CALL}\n<tool_call>\n<function=add>\n<parameter=a>\n1"), **TOOLS},
        calls=(A1, ('{"a": 1', "incomplete")),
    ),
    Outcome("json-cut", '{"a": [1, 2, 3]}', {"text": FORMAT, "max_output_tokens": 8}, ('{"a": [1',), last="incomplete"),
)
OPEN: Json = {"calls": (('{"a": 1', "incomplete"),), "code": "tool_call_incomplete"}
WRONG: Json = {"last": "incomplete", "code": "structured_output_failed"}
FAILED = (
    Outcome("call-left-open", CALL.partition("\n</parameter>")[0], TOOLS, **OPEN),
    Outcome("json-wrong", '{"a": "x"}', {"text": FORMAT}, ('{"a": "x"}',), **WRONG),
    Outcome("json-open", '{"a": 1', {"text": FORMAT}, ('{"a": 1',), **WRONG),
    Outcome("json-none", "", {"text": FORMAT}, last="", code="structured_output_failed"),
    Outcome("no-json-cut", "Sure! Here", {"text": FORMAT, "max_output_tokens": 6}, ("Sure! ",), **WRONG),
)
FULL = Outcome("context-full", "x" * CONTEXT, last="incomplete")
DIES = Outcome("engine-dies", "Hel", {}, ("Hel",), last="incomplete", code="engine_died", steps=[{"exit": 3}])
ALL = (*FINISHED, *INCOMPLETE, *FAILED, FULL, DIES)

SCRIPT: Json = {
    "requests": [rule(f"please {one.name}!", *([{"text": one.made}] if one.made else []), *one.steps) for one in ALL],
    "context": CONTEXT,
}
"""The fake engine that brings them about."""
