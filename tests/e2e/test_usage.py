"""Counts add up: every API says the same of the same answer, in both modes, however it ends; and the engine's clock.

Over the fake engine, solo and in slots, and over an upstream that says what it counted; over llama.cpp in
`test_usage_llama`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.e2e.apis import APIS, ROUTES, Counts, hear, question, said
from tests.e2e.client import ask, chat
from tests.e2e.completions_client import finished as completed
from tests.e2e.completions_client import request as completion
from tests.e2e.completions_client import send as complete
from tests.e2e.completions_client import total
from tests.e2e.gateway import gateway
from tests.e2e.grammar import check_chat_stream
from tests.e2e.server import fake_server
from tests.scripted_upstream import DONE, delta, event, stream

Json = dict[str, Any]
Steps = list[Json]

END: Steps = [{"end_token": True}, {"done": "stop"}]
THOUGHT, TEXT = "Think.\n", "Answer."
WHOLE = f"{THOUGHT}</think>\n\n{TEXT}"
NAMES = (
    "cache_n",
    "prompt_n",
    "prompt_ms",
    "prompt_per_token_ms",
    "prompt_per_second",
    "predicted_n",
    "predicted_ms",
    "predicted_per_token_ms",
    "predicted_per_second",
)
"""llama.cpp's."""


def pieces(text: str) -> Steps:
    return [{"reused": 5}, {"text": text}]


SCRIPT: Json = {
    "requests": [
        {"match": "[whole]", "steps": [*pieces(WHOLE), *END]},
        {"match": "[limit]", "steps": [*pieces(WHOLE), {"text": "!", "repeat": 500}]},
        {"match": "[dies]", "steps": [*pieces(WHOLE), {"exit": 3}]},
        {"match": "[errs]", "steps": [*pieces(WHOLE), {"err": "no"}]},
        {"match": "[dies thinking]", "steps": [*pieces("Think"), {"exit": 3}]},
    ]
}
UPSTREAM_COUNTS = Counts(19, 4, 7, 3)
UPSTREAM_USAGE: Json = {
    "prompt_tokens": 19,
    "completion_tokens": 7,
    "total_tokens": 26,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


def upstream_says(word: str | None) -> bytes:
    made = [delta(role="assistant"), delta(reasoning_content=THOUGHT), delta(content=TEXT)]
    told = b"".join(event(chunk) for chunk in [*made, *([delta(word)] if word else [])])
    return told + event({"choices": [], "usage": UPSTREAM_USAGE})


UPSTREAM = {
    "[whole]": stream(upstream_says("stop"), DONE),
    "[limit]": stream(upstream_says("length"), DONE),
    "[dies]": stream(upstream_says(None)),
}


@pytest.fixture(scope="module")
def ports(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """A server over each engine."""
    with ExitStack() as stack:
        found: dict[str, int] = {}
        for name, slots in (("solo", 0), ("slots", 2)):
            folder = tmp_path_factory.mktemp(name)
            fake = fake_server(server_command, {**SCRIPT, "batch_slots": slots}, folder)
            found[name] = stack.enter_context(fake).port
        pair = gateway(server_command, tmp_path_factory.mktemp("upstream"), UPSTREAM)
        found["upstream"] = stack.enter_context(pair).port
        yield found


def expected(engine: str, name: str, prompt: int) -> Counts:
    if engine == "upstream":
        return UPSTREAM_COUNTS
    reasoning = len(f"{THOUGHT}</think>")
    made = {"[whole]": len(WHOLE) + 1, "[limit]": 200, "[dies]": len(WHOLE), "[errs]": len(WHOLE)}
    if name == "[dies thinking]":
        return Counts(prompt, 5, len("Think"), len("Think"))
    return Counts(prompt, 5, made[name], reasoning)


ENGINES = pytest.mark.parametrize("engine", ["solo", "slots", "upstream"])


def prompt_of(name: str) -> int:
    return len(f"user\n{name}\nassistant\n<think>\n") + 3


@ENGINES
@pytest.mark.parametrize(("name", "end"), [("[whole]", "stop"), ("[limit]", "length")])
def test_every_api_says_the_same_of_the_same_answer_in_both_modes(
    ports: dict[str, int], engine: str, name: str, end: str
) -> None:
    counted: dict[str, Counts | None] = {}
    for api in APIS:
        for streamed in (True, False):
            heard = hear(api, ports[engine], name, stream=streamed, most=200)
            assert (heard.thought, heard.text.rstrip("!"), heard.end) == (THOUGHT, TEXT, end)
            counted[f"{api}, {streamed}"] = heard.counts
    assert set(counted.values()) == {expected(engine, name, prompt_of(name))}, counted


@ENGINES
@pytest.mark.parametrize("name", ["[dies]", "[errs]", "[dies thinking]"])
def test_every_api_says_the_same_of_an_answer_that_failed(ports: dict[str, int], engine: str, name: str) -> None:
    if engine == "upstream" and name != "[dies]":
        pytest.skip("an upstream dies in one way here")
    counted: dict[str, Counts | None] = {}
    for api in APIS:
        for streamed in (True, False):
            answer = ask(ports[engine], question(api, name, stream=streamed), path=ROUTES[api])
            heard = said(api, answer, stream=streamed)
            assert heard.end == "error"
            if api == "messages" and streamed:
                continue  # its error event has no room for counts
            counted[f"{api}, {streamed}"] = heard.counts
    assert set(counted.values()) == {expected(engine, name, prompt_of(name))}, counted


def test_without_include_usage_a_failed_stream_has_its_counts_in_the_closing_chunk(ports: dict[str, int]) -> None:
    body = {**question("chat", "[dies]", stream=True), "stream_options": None}
    heard = said("chat", ask(ports["solo"], body), stream=True)
    assert heard.counts == expected("solo", "[dies]", prompt_of("[dies]"))
    whole = check_chat_stream(ask(ports["solo"], {**body, "messages": [{"role": "user", "content": "[whole]"}]}))
    assert whole.usage is None


# --- completions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["solo", "slots"])
def test_a_completion_counts_what_a_chat_does(ports: dict[str, int], engine: str) -> None:
    ending = completed(ports[engine], completion("[whole]"))
    assert total(ending.usage) == (len("[whole]"), len(WHOLE) + 1)
    assert ending.usage is not None
    assert ending.usage["prompt_tokens_details"] == {"cached_tokens": 5}


@pytest.mark.parametrize("engine", ["solo", "slots"])
def test_the_prompts_of_a_list_are_counted_together_also_where_one_fails(ports: dict[str, int], engine: str) -> None:
    ending = completed(ports[engine], completion(["[whole]", "[limit]"], max_tokens=100))
    assert total(ending.usage) == (2 * len("[whole]"), len(WHOLE) + 1 + 100)
    answer = complete(ports[engine], completion(["[whole]", "[dies]"], stream=False))
    assert answer.status == 503
    usage = answer.json["error"]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len("[whole][dies]"), 2 * len(WHOLE) + 1)


# --- the clock ---------------------------------------------------------------------------------------


def check_timings(timings: Json | None, counts: Counts) -> None:
    assert timings is not None
    assert tuple(timings) == NAMES
    assert (timings["cache_n"], timings["prompt_n"]) == (counts.cached, counts.prompt - counts.cached)
    assert timings["predicted_n"] == counts.made
    for kind, tokens in (("prompt", timings["prompt_n"]), ("predicted", timings["predicted_n"] - 1)):
        ms = timings[f"{kind}_ms"]
        assert ms >= 0
        assert timings[f"{kind}_per_token_ms"] == ms / tokens
        assert timings[f"{kind}_per_second"] == (1000.0 * tokens / ms if ms else None)


@pytest.mark.parametrize("engine", ["solo", "slots"])
@pytest.mark.parametrize("name", ["[whole]", "[limit]"])
def test_the_engines_clock_is_told_where_llama_cpp_tells_it(ports: dict[str, int], engine: str, name: str) -> None:
    port, counts = ports[engine], expected(engine, name, prompt_of(name))
    body = question("chat", name, stream=True, most=200)
    counted = ask(port, body).events
    assert [index for index, chunk in enumerate(counted) if "timings" in chunk] == [len(counted) - 2]
    assert counted[-2]["choices"] == []
    check_timings(counted[-2]["timings"], counts)
    plain = ask(port, {**body, "stream_options": None}).events
    assert [index for index, chunk in enumerate(plain) if "timings" in chunk] == [len(plain) - 2]
    assert plain[-2]["choices"][0]["finish_reason"] is not None
    check_timings(plain[-2]["timings"], counts)
    check_timings(ask(port, {**body, "stream": False, "stream_options": None}).json["timings"], counts)


@pytest.mark.parametrize("engine", ["solo", "slots"])
def test_a_completion_has_the_clock_of_all_its_prompts(ports: dict[str, int], engine: str) -> None:
    for prompts in ("[whole]", ["[whole]", "[limit]"]):
        body = completion(prompts, max_tokens=100)
        streamed = complete(ports[engine], body).events
        whole = complete(ports[engine], {**body, "stream": False}).json
        usage = whole["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        counts = Counts(usage["prompt_tokens"], cached, usage["completion_tokens"], 0)
        check_timings(whole["timings"], counts)
        told = [chunk["timings"] for chunk in streamed[:-1] if "timings" in chunk]
        assert len(told) <= 1
        apart = complete(ports[engine], {**body, "stream_options": {"include_usage": True}}).events[-2]
        check_timings(apart["timings"], counts)


def test_the_clock_of_an_answer_in_two_parts_is_that_of_both(ports: dict[str, int]) -> None:
    for engine in ("solo", "slots"):
        heard = hear("chat", ports[engine], "[limit]", stream=True, budget=3, most=40)
        assert heard.counts is not None
        assert (heard.end, heard.counts.made) == ("length", 40)
        check_timings(heard.timings, heard.counts)


@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_that_a_stop_string_ended_or_that_failed_has_no_clock(ports: dict[str, int], streamed: bool) -> None:
    stopped = hear("chat", ports["solo"], "[whole]", stream=streamed, fields={"stop": ["swer"]})
    assert (stopped.text, stopped.timings) == ("An", None)
    assert hear("chat", ports["solo"], "[dies]", stream=streamed).timings is None
    answer = ask(ports["upstream"], chat(content="[whole]", stream=streamed))
    assert b"timings" not in answer.body
