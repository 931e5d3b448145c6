"""The thinking is closed at its budget, and then the model answers: in every API, streamed or not, in slots or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.apis import APIS, BUDGET_FIELDS, ROUTES, Counts, hear, question, said
from tests.e2e.client import Connection, ask, chat
from tests.e2e.grammar import check_chat_stream
from tests.e2e.responses_client import engine_folder, stored
from tests.e2e.server import ServerProcess, fake_server, wait_for

Json = dict[str, Any]
Steps = list[Json]

CLOSING = "\n</think>\n\n"
IN_REASONING = len("\n</think>")
END: Steps = [{"end_token": True}, {"done": "stop"}]
ANSWER: Steps = [{"text": "The answer."}, *END]
MODES = pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])
EVERY_API = pytest.mark.parametrize("api", APIS)


def thinker(letter: str, answers: Steps = ANSWER, begins: Steps | None = None) -> list[Json]:
    """Asked `[letter]`, the engine thinks that letter for ever; where its thinking is closed, it answers."""
    endless: Json = {"text": letter, "repeat": 20_000, "pace_s": 0.0002}
    return [
        {"match": letter + CLOSING, "steps": answers},
        {"match": f"[{letter}]", "steps": [*(begins or ()), endless]},
    ]


SCRIPT: Json = {
    "requests": [
        {"match": "<think>" + "\n" + CLOSING, "steps": [{"text": "Straight."}, *END]},
        *thinker("a"),
        *thinker("b", [{"text": "b", "repeat": 20_000, "pace_s": 0.0002}]),
        *thinker("c", [{"text": '{"c": 1}'}, *END]),
        *thinker("d", [{"text": "So"}, {"exit": 3}]),
        *thinker("e", [{"err": "a token id is outside the vocabulary"}]),
        *thinker("f", [{"text": "So"}, {"line": "T x"}]),
        *thinker("g", [{"text": "So"}, {"stall": True}]),
        *thinker("h", [{"reached": "answering"}, {"cue": "answer"}, *ANSWER]),
        *thinker("i", begins=[{"reached": "thinking"}, {"cue": "think"}]),
        {"match": "[soon]", "steps": [{"text": f"Soon.{CLOSING}The answer."}, *END]},
    ]
}


@pytest.fixture(scope="module", params=[0, 2], ids=["solo", "slots"])
def server(
    request: pytest.FixtureRequest, server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    script = {**SCRIPT, "batch_slots": request.param}
    folder = tmp_path_factory.mktemp("budget")
    with fake_server(server_command, script, folder, "--silence-s", "0.8") as started:
        yield started


# --- the budget --------------------------------------------------------------------------------------


@MODES
@EVERY_API
@pytest.mark.parametrize("budget", [1, 2, 40])
def test_thinking_beyond_its_budget_is_closed_and_answered(
    server: ServerProcess, api: str, stream: bool, budget: int
) -> None:
    heard = hear(api, server.port, "[a]", stream=stream, budget=budget)
    assert (heard.thought, heard.text, heard.end) == ("a" * budget + "\n", "The answer.", "stop")
    made = budget + len(CLOSING) + len("The answer.") + 1  # the end token
    prompt = len("user\n[a]\nassistant\n<think>\n") + 3
    assert heard.counts == Counts(prompt, 0, made, budget + IN_REASONING)


@MODES
@EVERY_API
@pytest.mark.parametrize("budget", [None, 1_000, 14])
def test_thinking_within_its_budget_is_left_alone(
    server: ServerProcess, api: str, stream: bool, budget: int | None
) -> None:
    commands = len(_commands(server))
    heard = hear(api, server.port, "[soon]", stream=stream, budget=budget)
    assert (heard.thought, heard.text, heard.end) == ("Soon.\n", "The answer.", "stop")
    assert heard.counts is not None
    assert heard.counts.made == len("Soon.The answer.") + len(CLOSING) + 1
    assert len(_commands(server)) == commands + 1, "there is one part"


@MODES
@EVERY_API
def test_a_budget_of_0_is_no_thinking(server: ServerProcess, api: str, stream: bool) -> None:
    heard = hear(api, server.port, "[a]", stream=stream, budget=0)
    assert (heard.thought, heard.text, heard.end) == ("", "Straight.", "stop")
    assert heard.counts is not None
    assert heard.counts.reasoning == 0


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_minus_1_is_no_limit(server: ServerProcess, api: str) -> None:
    heard = hear(api, server.port, "[a]", stream=True, budget=-1, most=60)
    assert (heard.thought, heard.text, heard.end) == ("a" * 60, "", "length")


@EVERY_API
@pytest.mark.parametrize("value", [-2, 2.5, "7", True, 2**31])
def test_a_budget_that_is_no_count_is_refused_by_its_name(server: ServerProcess, api: str, value: object) -> None:
    answer = ask(server.port, question(api, stream=True, budget=value), path=ROUTES[api])
    error = answer.json["error"]
    assert (answer.status, error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith(f"{BUDGET_FIELDS[api]}: ")
    if api != "messages":
        assert error["param"] == BUDGET_FIELDS[api]


# --- the cap -----------------------------------------------------------------------------------------


@MODES
@EVERY_API
@pytest.mark.parametrize("budget", [None, 20, 15, 1_000])
def test_reasoning_that_ate_the_cap_is_cut_by_it_and_is_no_answer(
    server: ServerProcess, api: str, stream: bool, budget: int | None
) -> None:
    """A budget after which there is no room for the end of the thinking and one token is as good as none."""
    heard = hear(api, server.port, "[a]", stream=stream, budget=budget, most=20)
    assert (heard.thought, heard.text, heard.end) == ("a" * 20, "", "length")
    assert heard.counts is not None
    assert (heard.counts.made, heard.counts.reasoning) == (20, 20)


def test_its_content_is_empty_and_no_text_item_or_block_is_made(server: ServerProcess) -> None:
    bodies = {api: ask(server.port, question(api, "[a]", stream=False, most=20), path=ROUTES[api]).json for api in APIS}
    message = bodies["chat"]["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("", "a" * 20)
    assert [item["type"] for item in bodies["responses"]["output"]] == ["reasoning"]
    assert bodies["responses"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [block["type"] for block in bodies["messages"]["content"]] == ["thinking"]
    assert bodies["messages"]["stop_reason"] == "max_tokens"


@MODES
@EVERY_API
def test_the_cap_is_that_of_thinking_and_answer_together(server: ServerProcess, api: str, stream: bool) -> None:
    heard = hear(api, server.port, "[b]", stream=stream, budget=5, most=30)
    assert (heard.thought, heard.text, heard.end) == ("bbbbb\n", "b" * (30 - 5 - len(CLOSING)), "length")
    assert heard.counts is not None
    assert (heard.counts.made, heard.counts.reasoning) == (30, 5 + IN_REASONING)


# --- what belongs to the answer alone ----------------------------------------------------------------


@MODES
def test_stop_strings_are_looked_for_in_the_answer(server: ServerProcess, stream: bool) -> None:
    fields = {"stop": ["aaa", "ans", "think"]}
    heard = hear("chat", server.port, "[a]", stream=stream, budget=10, fields=fields)
    assert (heard.thought, heard.text, heard.end) == ("a" * 10 + "\n", "The ", "stop")


@MODES
def test_a_format_is_that_of_the_answer(server: ServerProcess, stream: bool) -> None:
    schema = {"type": "object", "properties": {"c": {"type": "integer"}}, "required": ["c"]}
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": schema}}
    heard = hear("chat", server.port, "[c]", stream=stream, budget=10, fields={"response_format": form})
    assert (heard.thought, json.loads(heard.text), heard.end) == ("c" * 10 + "\n", {"c": 1}, "stop")


# --- failures ----------------------------------------------------------------------------------------


FAULTS = {"d": (503, "exit code 3"), "e": (500, "vocabulary"), "f": (502, "damaged"), "g": (503, "0.8 s")}


@MODES
@EVERY_API
@pytest.mark.parametrize("letter", FAULTS)
def test_an_engine_that_fails_after_the_cut_fails_the_answer(
    server: ServerProcess, api: str, stream: bool, letter: str
) -> None:
    status, says = FAULTS[letter]
    body = question(api, f"[{letter}]", stream=stream, budget=4)
    answer = ask(server.port, body, path=ROUTES[api])
    assert answer.status == (200 if stream else status)
    heard = said(api, answer, stream=stream)
    assert (heard.text, heard.end) == ("" if letter == "e" else "So", "error")
    assert heard.error is not None
    assert says in heard.error["message"]
    if stream:
        assert heard.thought == letter * 4 + "\n"
    if not (api == "messages" and stream):
        assert heard.counts is not None
        assert heard.counts.made == 4 + len(CLOSING) + len(heard.text)
    assert hear(api, server.port, "[soon]", stream=stream).end == "stop"


# --- while it changes over ---------------------------------------------------------------------------


def test_a_stream_beats_while_the_second_part_is_read(fake: Callable[..., ServerProcess]) -> None:
    server = fake(SCRIPT, "--heartbeat-s", "0.1")
    with Connection(server.port) as connection:
        connection.post(ROUTES["chat"], question("chat", "[h]", stream=True, budget=3))
        connection.until(b'"h"')
        wait_for((engine_folder(server) / "reached-answering").exists, "the second part runs")
        connection.until(b": keep-alive")
        (engine_folder(server) / "cue-answer").touch()
        ending = check_chat_stream(connection.answer())
    assert (ending.reasoning, ending.content, ending.finish_reason) == ("hhh\n", "The answer.", "stop")


def test_no_request_that_waits_comes_in_between(fake: Callable[..., ServerProcess]) -> None:
    server = fake(SCRIPT)
    with Connection(server.port) as first, Connection(server.port) as second:
        first.post(ROUTES["chat"], question("chat", "[i]", stream=True, budget=3))
        wait_for((engine_folder(server) / "reached-thinking").exists, "the first one thinks")
        second.post(ROUTES["chat"], chat(content="else"))
        wait_for(lambda: server.status["queue"]["waiting"] == 1, "the second one waits")
        (engine_folder(server) / "cue-think").touch()
        assert check_chat_stream(first.answer()).content == "The answer."
        assert check_chat_stream(second.answer()).content == "Straight."
    commands = [command for command in _commands(server) if command.startswith("GEN")]
    prompts = [bytes(int(word) for word in command.split()[-1].split(",") if int(word) < 256) for command in commands]
    assert [b"[i]" in prompt for prompt in prompts] == [True, True, False]
    assert prompts[1] == prompts[0] + b"iii" + CLOSING.encode()


@pytest.mark.parametrize("slots", [0, 2])
def test_a_client_that_leaves_after_the_cut_frees_its_place(fake: Callable[..., ServerProcess], slots: int) -> None:
    server = fake({**SCRIPT, "batch_slots": slots})
    with Connection(server.port) as connection:
        connection.post(ROUTES["chat"], question("chat", "[h]", stream=True, budget=3))
        wait_for((engine_folder(server) / "reached-answering").exists, "the second part runs")
    wait_for(lambda: [entry["cause"] for entry in server.status["history"]] == ["client_disconnect"], "it is over")
    wait_for(server.settled, "the place is free")
    assert hear("chat", server.port, "[soon]", stream=True).text == "The answer."
    assert server.status["engine"]["restarts"] == 0


def test_a_background_response_is_cancelled_after_the_cut(fake: Callable[..., ServerProcess]) -> None:
    server = fake(SCRIPT)
    body = {**question("responses", "[h]", stream=False, budget=3), "background": True}
    id_ = ask(server.port, body, path=ROUTES["responses"]).json["id"]
    wait_for((engine_folder(server) / "reached-answering").exists, "the second part runs")
    cancelled = ask(server.port, {}, path=f"{ROUTES['responses']}/{id_}/cancel").json
    assert cancelled["status"] == "cancelled"
    kept = stored(server.port, id_)
    assert kept["status"] == "cancelled"
    assert kept["output"][0]["content"] == [{"type": "reasoning_text", "text": "hhh\n"}]
    assert kept["usage"]["output_tokens"] == 3 + len(CLOSING)


def _commands(server: ServerProcess) -> list[str]:
    """The command lines that the engine was given, without those that end something."""
    file = engine_folder(server) / "commands.jsonl"
    lines = [json.loads(line)["raw"] for line in file.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line.startswith(("GEN", "BGEN"))]
