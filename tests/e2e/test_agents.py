"""Claude Code, Codex, opencode and Open WebUI at work: calls, results, answers, all with our own output sent back; and
on, after a turn that was cut or failed, as each of them goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agents import AGENTS, Agent, ClaudeCode, Codex, OpencodeChat, OpenWebUI
from tests.e2e.client import ask
from tests.e2e.gateway import CHAT
from tests.e2e.kept import wait_for
from tests.e2e.lies import call as call_delta
from tests.e2e.server import ServerProcess, fake_server
from tests.scripted_upstream import DONE, LAST_CHUNK, Peer, ScriptedUpstream, delta, event, sse_head
from tests.unit.serve.parse.chat_agents import open_webui_task, opencode_title

Json = dict[str, Any]
Prompts = Callable[[], list[str]]
END: list[Json] = [{"end_token": True}, {"done": "stop"}]
FIRST, SECOND, LAST = "read a.py and b.py", "print(1)", "print(2)"
TASKS = {"title_generation": "write a title", "follow_up_generation": "three questions", "tags_generation": "some tags"}


class Rig:
    """A server with an engine that answers by the last of these words in its prompt, and what the engine was told."""

    def __init__(self, server: ServerProcess, prompts: Prompts, *, by_upstream: bool = False) -> None:
        self.by_upstream = by_upstream
        self.port = server.port
        self.server = server
        self.prompts = prompts


# --- a pipe engine -----------------------------------------------------------------------------------


def written(agent: type[Agent], value: str, end: str = "\n</parameter>\n</function>\n</tool_call>") -> str:
    return f"<tool_call>\n<function={agent.tool}>\n<parameter={agent.key}>\n{value}{end}"


def rule(word: str, *steps: Json) -> Json:
    return {"match": word, "steps": list(steps)}


def script_of(agent: type[Agent]) -> Json:
    bye = rule("good bye", {"text": "</think>Bye."}, *END)
    alive = [rule("then die", {"text": "Hm.</think>All is well."}, *END)]
    dies = [rule("then die", {"text": "Hm.</think>Hel"}, {"exit": 3})]
    rest = [
        *[rule(word, {"text": "</think>I see."}, *END) for word in ("missing", "not JSON", "EOF while parsing")],
        *[rule(word, {"text": "Hm.</think>The rest."}, *END) for word in ("You were cut off", "go on", "The beg")],
        rule("at length", {"text": "Hm.</think>The beg"}, {"done": "length"}),
        rule("cut a call", {"text": f"</think>I read.{written(agent, 'a.p', '')}"}, {"done": "length"}),
        rule(LAST, {"text": "So.</think>\n\nThey print 1 and 2."}, *END),
        rule(SECOND, {"text": f"Next.</think>\n\nNow b.{written(agent, 'b.py')}"}, *END),
        rule(FIRST, {"text": f"I look.</think>\n\nI read a.{written(agent, 'a.py')}"}, *END),
        *[rule(prompt, {"text": f'</think>{{"{task}": 1}}'}, *END) for task, prompt in TASKS.items()],
    ]
    return {"requests": [], "lives": [{"requests": [bye, *dies, *rest]}, {"requests": [bye, *alive, *rest]}]}


def told_by_pipe(server: ServerProcess) -> list[str]:
    command = server.engine_process().cmdline()
    folder = Path(command[command.index("--state") + 1])
    lines = [json.loads(line)["raw"] for line in (folder / "commands.jsonl").read_text(encoding="utf-8").splitlines()]
    ids = [line.split()[-1].split(",") for line in lines if line.startswith("GEN ")]
    return [bytes(int(one) for one in prompt if int(one) < 256).decode("utf-8", "replace") for prompt in ids]


# --- an upstream -------------------------------------------------------------------------------------


def says(*deltas: Json, word: str = "stop") -> list[bytes]:
    return [*[event(delta(**fields)) for fields in deltas], event(delta(word)), DONE]


def calls(agent: type[Agent], text: str, value: str) -> list[bytes]:
    arguments = json.dumps({agent.key: value})
    pieces = [call_delta(arguments[:5], agent.tool, id=f"call_{value}"), call_delta(arguments[5:])]
    return says({"role": "assistant", "reasoning_content": "Hm."}, {"content": text}, *pieces, word="tool_calls")


def play_of(agent: type[Agent]) -> Callable[[Peer], None]:
    heard: list[str] = []
    answers: list[tuple[str, list[bytes]]] = [
        ("good bye", says({"content": "Bye."})),
        ("then die", says({"reasoning_content": "Hm."}, {"content": "All is well."})),
        *[(word, says({"content": "I see."})) for word in ("missing", "not JSON", "EOF while parsing")],
        *[(word, says({"content": "The rest."})) for word in ("You were cut off", "go on", "The beg")],
        ("at length", says({"reasoning_content": "Hm."}, {"content": "The beg"}, word="length")),
        ("cut a call", says({"content": "I read."}, call_delta('{"', agent.tool), word="length")),
        (LAST, says({"reasoning_content": "So."}, {"content": "They print 1 and 2."})),
        (SECOND, calls(agent, "Now b.", "b.py")),
        (FIRST, calls(agent, "I read a.", "a.py")),
        *[(prompt, says({"content": f'{{"{task}": 1}}'})) for task, prompt in TASKS.items()],
    ]

    def play(peer: Peer) -> None:
        messages: Any = peer.request.json["messages"]
        text = json.dumps(messages[messages[0]["role"] == "system" :])
        peer.send(sse_head())
        if "then die" in text and not heard:
            heard.append("then die")
            peer.send_chunks(*says({"role": "assistant", "content": "Hel"})[:1])
            peer.reset()
            return
        peer.send_chunks(*next(pieces for word, pieces in answers if word in text), LAST_CHUNK)

    return play


# --- the rigs ----------------------------------------------------------------------------------------


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.__name__)
def kind(request: pytest.FixtureRequest) -> type[Agent]:
    return request.param


@pytest.fixture(params=["pipe", "upstream"])
def rig(
    request: pytest.FixtureRequest, kind: type[Agent], server_command: tuple[str, ...], tmp_path: Path
) -> Iterator[Rig]:
    with ExitStack() as stack:
        if request.param == "pipe":
            server = stack.enter_context(fake_server(server_command, script_of(kind), tmp_path))
            yield Rig(server, lambda: told_by_pipe(server))
            return
        upstream = stack.enter_context(ScriptedUpstream(play_of(kind)))
        server = stack.enter_context(ServerProcess(server_command, ["--upstream", upstream.url], tmp_path))

        def posts() -> list[str]:
            return [one.body.decode() for one in upstream.requests if one.method == "POST"]

        yield Rig(server, posts, by_upstream=True)


def in_order(prompt: str, *words: str) -> None:
    """The words stand in the prompt one after the other."""
    at = 0
    for word in words:
        found = prompt.find(word, at)
        assert found >= 0, f"{word!r} is not there behind {prompt[max(0, at - 60) : at]!r}"
        at = found + len(word)


def test_an_agent_calls_reads_results_and_answers_with_our_own_output_sent_back(kind: type[Agent], rig: Rig) -> None:
    agent = kind()
    agent.say(FIRST)
    turn = agent.ask(rig.port)
    for text, file, result in (("I read a.", "a.py", SECOND), ("Now b.", "b.py", LAST)):
        ((id_, name, arguments),) = turn.calls
        assert (turn.text, turn.how, name, json.loads(arguments)) == (text, "calls", agent.tool, {agent.key: file})
        agent.result((id_, name, arguments), result)
        turn = agent.ask(rig.port)
    assert (turn.text, turn.how, turn.calls) == ("They print 1 and 2.", "answered", [])
    agent.say("good bye")
    turn = agent.ask(rig.port)
    assert (turn.text, turn.how) == ("Bye.", "answered")
    told = rig.prompts()[-1]
    in_order(
        told, FIRST, "I read a.", "a.py", SECOND, "Now b.", "b.py", LAST, "They print 1 and 2.", "good bye"
    )  # each once, and in this order
    assert told.count("They print 1 and 2.") == 1
    assert len(rig.prompts()) == 4


def test_an_agent_goes_on_after_a_turn_that_failed(kind: type[Agent], rig: Rig) -> None:
    agent = kind()
    agent.say("then die")
    turn = agent.ask(rig.port)
    assert (turn.text, turn.how, turn.calls) == ("Hel", "failed", [])
    assert turn.error
    if isinstance(agent, OpencodeChat) or kind.__name__ == "OpencodeMessages":
        agent.say("are you there?")
        turn = agent.ask(rig.port)
    else:
        turn = agent.carry_on(rig.port)
    assert (turn.text, turn.how) == ("All is well.", "answered")
    agent.say("good bye")
    assert agent.ask(rig.port).text == "Bye."
    in_order(rig.prompts()[-1], "then die", "All is well.", "good bye")


def test_an_agent_goes_on_after_an_answer_that_was_cut(kind: type[Agent], rig: Rig) -> None:
    agent = kind()
    agent.say("at length")
    turn = agent.ask(rig.port)
    assert (turn.text, turn.how, turn.calls) == ("The beg", "cut", [])
    assert agent.carry_on(rig.port).text == "The rest."
    agent.say("good bye")
    assert agent.ask(rig.port).text == "Bye."
    in_order(rig.prompts()[-1], "at length", "The beg", "The rest.", "good bye")


def test_an_agent_goes_on_after_a_call_that_was_cut_and_the_call_was_not_told_as_whole(
    kind: type[Agent], rig: Rig
) -> None:
    agent = kind()
    agent.say("cut a call")
    turn = agent.ask(rig.port)
    assert (turn.text, turn.how) == ("I read.", "cut")
    for _, _, arguments in turn.calls:
        with pytest.raises(ValueError, match=r"."):
            json.loads(arguments)
    assert agent.carry_on(rig.port).text == "I see."
    agent.say("good bye")
    assert agent.ask(rig.port).text == "Bye."
    told = rig.prompts()[-1]
    in_order(told, "cut a call", "I read.", "I see.", "good bye")
    if rig.by_upstream and kind is not OpenWebUI:  # there the request passes as it came
        for message in json.loads(told)["messages"]:
            for call in message.get("tool_calls", ()):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)


# --- beside the conversation -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [OpenWebUI])
def test_background_tasks_are_answered_whole(kind: type[Agent], rig: Rig) -> None:
    for task, prompt in TASKS.items():
        answer = ask(rig.port, open_webui_task(task, prompt), *OpenWebUI.headers, path=CHAT)
        assert answer.status == 200, answer.body
        (choice,) = answer.json["choices"]
        assert json.loads(choice["message"]["content"]) == {task: 1}
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("kind", [OpencodeChat])
def test_a_title_is_made_beside_the_conversation(kind: type[Agent], rig: Rig) -> None:
    class Title(OpencodeChat):
        def body(self) -> Json:
            return opencode_title("good bye")

    turn = Title().ask(rig.port)
    assert (turn.text, turn.how) == ("Bye.", "answered")


@pytest.mark.parametrize("kind", [Codex, ClaudeCode])
def test_two_conversations_at_once_do_not_mix(kind: type[Agent], rig: Rig) -> None:
    one, other = kind(), kind()
    one.say(FIRST)
    other.say("good bye")
    assert [one.ask(rig.port).text, other.ask(rig.port).text] == ["I read a.", "Bye."]
    wait_for(rig.server.settled, "nothing runs")
    assert FIRST not in rig.prompts()[-1]
