"""Requests as agents send them, over the pipe engine: what the model is told, which calls can be forced, and how a
conversation goes on from what is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client import Connection, fetch
from tests.e2e.responses_client import (
    ADD,
    ARGUMENTS,
    CALL,
    END,
    ROUTE,
    Json,
    engine_folder,
    finished,
    request,
    respond,
    rule,
    stored,
    streamed,
)
from tests.e2e.responses_grammar import check_response_stream
from tests.e2e.server import ServerProcess, fake_server, wait_for
from tests.unit.serve.parse.agents import CODEX_FIRST, CODEX_LITE, CODEX_SECOND, OPENCODE, SHELL, text

SUB: Json = {**ADD, "name": "sub"}
REST = "<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
"""What is left of a call whose begin the prompt already has."""
SCRIPT: Json = {
    "context": 40_000,
    "requests": [  # the first that fits
        rule("and now?", {"text": "Fine."}, *END),
        rule("force named", {"text": REST}, *END),
        rule("force any", {"text": f"<function=sub>\n{REST}"}, *END),
        rule("leave free", {"text": CALL}, *END),
        rule("say json", {"text": '{"a": 1}'}, *END),
        rule("break off", {"text": "Half of "}, {"err": "the sampler failed"}),
        rule("call, then fail", {"text": f"Sure.{CALL}\n<tool_call>\n<function=add>\n"}, {"err": "the sampler failed"}),
        rule("cut the call", {"text": f"Sure.{CALL}\n<tool_call>\n<function=add>\n<parameter=a>\n12"}, *END),
        rule("run on", {"text": "On and"}, {"stall": True}),
        [{"text": "Fine."}, *END],
    ],
}


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("requests")) as started:
        yield started


def last_prompt(server: ServerProcess) -> str:
    """The prompt of the engine's last command; control tokens are left out."""
    *_, line = (engine_folder(server) / "commands.jsonl").read_text(encoding="utf-8").splitlines()
    ids = [int(word) for word in str(json.loads(line)["raw"]).split()[-1].split(",")]
    return bytes(id_ for id_ in ids if id_ < 256).decode()


def in_order(prompt: str, *parts: str) -> None:
    """The prompt holds these parts one after the other."""
    place = 0
    for part in parts:
        place = prompt.find(part, place)
        assert place >= 0, f"{part!r} is missing or too early in {prompt!r}"
        place += len(part)


# --- what agents send --------------------------------------------------------------------------------

TOLD: dict[str, tuple[Json, list[str]]] = {
    "codex-first": (CODEX_FIRST, ["You are a coding agent.", "exec_command", "ask first", "list the files"]),
    "codex-second": (
        CODEX_SECOND,
        [
            "list the files",
            "I look.",
            "\nls\n",
            "\npwd\n",
            "a.py\nb.py",
            "/tmp",
            "*** x",
            "There are two files.",
            "thanks",
        ],
    ),
    "codex-lite": (CODEX_LITE, ["Be short.", "exec_command", "user\ngo"]),
    "opencode": (OPENCODE, ["You are opencode.", "read a.py", "Reading.", "\na.py\n", "print(1)", "and now?"]),
}


@pytest.mark.parametrize("name", TOLD)
def test_an_agents_request_is_taken_in_both_modes_and_the_model_is_told_all_of_it_in_order(
    server: ServerProcess, name: str
) -> None:
    given, told = TOLD[name]
    body: Json = {**given, "reasoning": {"effort": "none", "summary": "auto"}}
    ending = check_response_stream(respond(server.port, {**body, "stream": True}))
    assert ending.texts == ["Fine."]
    assert ending.response["store"] is False
    in_order(last_prompt(server), *told)
    whole = respond(server.port, {**body, "stream": False}).json
    assert whole["output"][0]["content"][0]["text"] == "Fine."
    assert whole["tools"] == ending.response["tools"]
    assert [tool["type"] for tool in whole["tools"]] == [tool["type"] for tool in body["tools"]]


def test_the_request_is_repeated_in_the_response(server: ServerProcess) -> None:
    fields: Json = {
        "instructions": "Be brief.",
        "max_output_tokens": 50,
        "metadata": {"who": "me"},
        "parallel_tool_calls": False,
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "temperature": 0.5,
        "top_p": 0.9,
        "tool_choice": "none",
        "user": "u",
        "text": {"format": {"type": "text"}, "verbosity": "low"},
    }
    response = finished(server.port, request(tools=[ADD], **fields)).response
    assert {name: response[name] for name in fields} == fields
    (tool,) = response["tools"]
    assert ADD.items() <= tool.items()


# --- tools -------------------------------------------------------------------------------------------

NAMED: Json = {"type": "function", "name": "add"}
ALLOWED: Json = {"type": "allowed_tools", "tools": [NAMED]}
CHOICES: list[tuple[str, str, list[Json], Any, Any]] = [
    ("auto", "leave free", [ADD, SUB], "auto", "auto"),
    ("absent", "leave free", [ADD, SUB], None, "auto"),
    ("required-one", "force named", [ADD], "required", "required"),
    ("required-two", "force any", [ADD, SUB], "required", "required"),
    ("named", "force named", [ADD, SUB], NAMED, NAMED),
    ("named-as-in-chat", "force named", [ADD, SUB], {"type": "function", "function": {"name": "add"}}, NAMED),
    ("allowed", "leave free", [ADD, SUB], {**ALLOWED, "mode": "auto"}, {**ALLOWED, "mode": "auto"}),
    ("allowed-required", "force named", [ADD, SUB], {**ALLOWED, "mode": "required"}, {**ALLOWED, "mode": "required"}),
]
"""Name, prompt, tools, what is sent, what the response repeats."""


@pytest.mark.parametrize(
    ("content", "tools", "choice", "echoed"), [case[1:] for case in CHOICES], ids=[c[0] for c in CHOICES]
)
@pytest.mark.parametrize("thinking", [False, True], ids=["plain", "thinking"])
def test_every_form_of_tool_choice_gives_its_call(
    server: ServerProcess, content: str, tools: list[Json], choice: Any, echoed: Any, thinking: bool
) -> None:
    chosen = {} if choice is None else {"tool_choice": choice}
    ending = finished(server.port, request(content, tools=tools, thinking=thinking, **chosen))
    (call,) = ending.calls
    assert call["name"] == ("sub" if content == "force any" else "add")
    assert json.loads(call["arguments"]) == ARGUMENTS
    assert ending.texts == []
    assert ending.response["tool_choice"] == echoed
    told = last_prompt(server)
    assert ("</think>\n\n<tool_call>\n" in told) == content.startswith("force")  # begun in the answer, not in a thought
    assert ('"name": "sub"' in told) == (SUB in tools and "allowed_tools" not in str(choice))


def test_without_tools_to_choose_the_model_is_told_of_none_and_calls_none(server: ServerProcess) -> None:
    ending = finished(server.port, request("leave free", tools=[ADD], tool_choice="none"))
    assert ending.calls == []
    assert ending.texts == [CALL]
    assert "# Tools" not in last_prompt(server)


@pytest.mark.parametrize("tools", [[ADD], [ADD, SUB]], ids=["one", "two"])
def test_a_forced_call_that_the_model_does_not_make_is_a_failure(server: ServerProcess, tools: list[Json]) -> None:
    answer = check_response_stream(respond(server.port, request("talk", tools=tools, tool_choice="required")))
    assert answer.status == "failed"
    assert answer.error is not None
    assert answer.error["code"] == "tool_call_incomplete"
    assert "<tool_call>" not in str(answer.texts)  # that was the prompt's


FORMATS: list[Json] = [
    {"type": "text"},
    {"type": "json_object"},
    {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True, "description": "d"},
]


@pytest.mark.parametrize("form", FORMATS, ids=["text", "object", "schema", "strict-schema"])
def test_a_format_beside_tools_binds_the_text_and_not_the_calls(server: ServerProcess, form: Json) -> None:
    fields: Json = {"tools": [ADD], "text": {"format": form}}
    called = finished(server.port, request("leave free", **fields))
    assert [json.loads(call["arguments"]) for call in called.calls] == [ARGUMENTS]
    said = finished(server.port, request("say json", **fields))
    assert said.texts == ['{"a": 1}']
    assert said.response["text"]["format"] == form
    other = streamed(server.port, request("talk", **fields))
    assert other.status == ("completed" if form == {"type": "text"} else "failed")


# --- conversations -----------------------------------------------------------------------------------


def follow_up(server: ServerProcess, previous: str, content: Any = "and now?", **fields: Any) -> tuple[Json, str]:
    """The response to a next turn, and the prompt of it."""
    ending = finished(server.port, request(content, previous_response_id=previous, **fields))
    assert ending.response["previous_response_id"] == previous
    return ending.response, last_prompt(server)


def test_a_chain_tells_all_earlier_turns_but_not_their_instructions(server: ServerProcess) -> None:
    first = streamed(server.port, request("turn one", instructions="Only for one.")).response
    second, prompt = follow_up(server, first["id"], "turn two", instructions="Only for two.")
    in_order(prompt, "Only for two.", "turn one", "Fine.", "turn two")
    assert "Only for one." not in prompt
    _, prompt = follow_up(server, second["id"], "turn three")
    in_order(prompt, "turn one", "Fine.", "turn two", "Fine.", "turn three")
    assert "Only for" not in prompt


def test_a_call_and_its_result_go_on_by_id_and_by_items_sent_back_alike(server: ServerProcess) -> None:
    first = streamed(server.port, request("leave free", tools=[ADD])).response
    (call,) = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "it is 2"}
    _, by_id = follow_up(server, first["id"], [result], tools=[ADD])
    sent = [text("user", "leave free"), call, result]
    assert finished(server.port, request(sent, tools=[ADD])).response["output"]
    assert last_prompt(server) == by_id
    in_order(by_id, "leave free", "<function=add>\n<parameter=a>\n1", "it is 2")
    bare_call = {name: call[name] for name in ("type", "call_id", "name", "arguments")}
    streamed(server.port, request([text("user", "leave free"), bare_call, result], tools=[ADD]))
    assert last_prompt(server) == by_id


@pytest.mark.parametrize(
    ("content", "limit", "status", "told", "untold"),
    [
        ("break off", None, "failed", ["Half of"], []),
        ("call, then fail", None, "failed", ["Sure."], []),
        (
            "cut the call",
            len(f"Sure.{CALL}\n<tool_call>\n<function=add>\n<parameter=a>\n1"),
            "incomplete",
            ["Sure."],
            [],
        ),
        ("talk", 3, "incomplete", ["Fin"], ["Fine."]),
    ],
)
def test_a_turn_that_was_not_whole_is_told_as_far_as_it_came_without_the_call_that_was_cut(
    server: ServerProcess, content: str, limit: int | None, status: str, told: list[str], untold: list[str]
) -> None:
    first = streamed(server.port, request(content, tools=[ADD], max_output_tokens=limit)).response
    assert first["status"] == status
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "it is 2"}
        for call in calls
        if call["status"] == "completed"
    ]
    _, prompt = follow_up(server, first["id"], [*results, text("user", "and now?")])
    in_order(prompt, content, *told, *(["<function=add>", "it is 2"] if results else []), "and now?")
    assert prompt.count("<function=add>") == len(results)
    assert all(part not in prompt for part in untold)


def test_a_response_that_is_not_there_or_not_ended_cannot_be_gone_on_from(server: ServerProcess) -> None:
    for stream in (True, False):
        answer = respond(server.port, request(previous_response_id="resp_none", stream=stream))
        error = answer.json["error"]
        assert (answer.status, error["param"]) == (400, "previous_response_id")
        assert error["code"] == "previous_response_not_found"
    with Connection(server.port) as connection:
        connection.post(ROUTE, request("run on"))
        running = connection.until(b'"delta": "d"').split(b'"id": "', 1)[1].split(b'"', 1)[0].decode()
        for stream in (True, False):
            answer = respond(server.port, request(previous_response_id=running, stream=stream))
            assert (answer.status, answer.json["error"]["param"]) == (400, "previous_response_id")
            assert "still being made" in answer.json["error"]["message"]
    wait_for(lambda: stored(server.port, running)["status"] == "cancelled", "the client that left is noticed")
    _, prompt = follow_up(server, running)
    in_order(prompt, "run on", "On and", "and now?")


def test_a_conversation_with_a_turn_that_is_not_kept_cannot_be_gone_on(server: ServerProcess) -> None:
    first = streamed(server.port, request("turn one")).response
    second, _ = follow_up(server, first["id"], "turn two")
    unkept = respond(server.port, request("turn three", previous_response_id=second["id"], store=False, stream=False))
    assert (unkept.status, unkept.json["store"]) == (200, False)
    in_order(last_prompt(server), "turn one", "turn two", "turn three")
    with Connection(server.port) as connection:
        connection.send(f"DELETE {ROUTE}/{first['id']} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert connection.answer().status == 200
    for previous, missing in ((unkept.json["id"], unkept.json["id"]), (second["id"], first["id"])):
        answer = respond(server.port, request(previous_response_id=previous))
        error = answer.json["error"]
        assert (answer.status, error["code"]) == (400, "previous_response_not_found")
        assert missing in error["message"]


def test_a_chat_completion_is_no_response_to_go_on_from(server: ServerProcess) -> None:
    with Connection(server.port) as connection:
        connection.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "store": True})
        chat = connection.answer().json["id"]
    answer = respond(server.port, request(previous_response_id=chat))
    assert (answer.status, answer.json["error"]["code"]) == (400, "previous_response_not_found")


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "id-only"])
def test_an_item_is_found_by_its_id_wherever_it_was_made(server: ServerProcess, typed: bool) -> None:
    first = streamed(server.port, request("say json")).response
    reference = {"id": first["output"][0]["id"], **({"type": "item_reference"} if typed else {})}
    streamed(server.port, request([text("user", "look"), reference, text("user", "and now?")]))
    in_order(last_prompt(server), "look", '{"a": 1}', "and now?")
    (item,) = fetch(server.port, f"{ROUTE}/{first['id']}/input_items")["data"]
    _, prompt = follow_up(server, first["id"], [{"type": "item_reference", "id": item["id"]}])
    assert prompt.count("say json") == 2


def test_schemas_and_tools_of_one_turn_do_not_bind_the_next(server: ServerProcess) -> None:
    first = streamed(server.port, request("say json", tools=[SHELL], text={"format": FORMATS[2]})).response
    second, prompt = follow_up(server, first["id"], "talk")
    assert "exec_command" not in prompt
    assert second["tools"] == []
    assert second["text"] == {"format": {"type": "text"}}
