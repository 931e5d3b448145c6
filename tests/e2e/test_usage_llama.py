"""Counts and the clock of the default engine with the real model: the same in every API, streamed and whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.apis import APIS, Counts, Said, hear
from tests.e2e.client import ask, chat
from tests.e2e.completions_client import request as completion
from tests.e2e.completions_client import send as complete
from tests.e2e.server import ServerProcess
from tests.e2e.test_usage import NAMES

pytestmark = pytest.mark.llama
SAME: dict[str, Any] = {"temperature": 0, "seed": 1}
QUESTION = "Count from one to ten."


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(server_command, [], tmp_path_factory.mktemp("llama")) as started:
        yield started


@pytest.fixture(scope="module")
def answers(server: ServerProcess) -> dict[str, Said]:
    """The same short answer from every API in both modes, when its prompt is in the cache."""
    hear("chat", server.port, QUESTION, stream=True, most=16, fields=SAME)
    return {
        f"{api}, {stream}": hear(api, server.port, QUESTION, stream=stream, most=16, fields=SAME)
        for api in APIS
        for stream in (True, False)
    }


def test_every_api_says_the_same_of_the_same_answer_in_both_modes(answers: dict[str, Said]) -> None:
    assert len({(said.text, said.end) for said in answers.values()}) == 1, answers
    counts = {said.counts for said in answers.values()}
    assert len(counts) == 1, answers
    (one,) = counts
    assert one is not None
    assert (one.made, one.reasoning) == (16, 0)
    assert 0 < one.cached < one.prompt


def check_timings(timings: Any, counts: Counts) -> None:
    assert set(NAMES) <= set(timings)
    assert (timings["cache_n"], timings["prompt_n"]) == (counts.cached, counts.prompt - counts.cached)
    assert timings["predicted_n"] == counts.made
    assert timings["predicted_ms"] > 0
    later = counts.made - 1  # the first token is the prompt's last step
    assert timings["predicted_per_second"] == pytest.approx(1000 * later / timings["predicted_ms"])
    assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / later)
    assert timings["prompt_per_token_ms"] == pytest.approx(timings["prompt_ms"] / timings["prompt_n"])


def test_chat_has_llama_cpps_own_clock(answers: dict[str, Said]) -> None:
    for said in (answers["chat, True"], answers["chat, False"]):
        assert said.counts is not None
        check_timings(said.timings, said.counts)


def test_what_is_written_anew_has_it_too(server: ServerProcess) -> None:
    body = completion("one, two, three,", max_tokens=4, **SAME)
    whole = complete(server.port, {**body, "stream": False}).json
    last = complete(server.port, body).events[-2]
    apart = complete(server.port, {**body, "stream_options": {"include_usage": True}}).events[-2]
    for made, usage in ((whole, whole["usage"]), (last, apart["usage"]), (apart, apart["usage"])):
        cached = made["timings"]["cache_n"]
        assert tuple(made["timings"]) == NAMES
        check_timings(made["timings"], Counts(usage["prompt_tokens"], cached, 4, 0))
    kept = ask(server.port, chat(content=QUESTION, stream=False, store=True, max_tokens=4, **SAME)).json
    cached = kept["usage"]["prompt_tokens_details"]["cached_tokens"]
    check_timings(kept["timings"], Counts(kept["usage"]["prompt_tokens"], cached, 4, 0))


@pytest.mark.parametrize("name", ["reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget"])
def test_llama_cpp_is_told_a_budget_under_its_own_name(server: ServerProcess, name: str) -> None:
    """It refuses what is below -1, in its own words: so it reads the field. (This model does not think.)"""
    body = {**chat(content=QUESTION, stream=False, max_tokens=4), name: 5}
    assert ask(server.port, body).status == 200
    refused = ask(server.port, {**body, name: -2})
    assert refused.status == 400
    assert name in refused.json["error"]["message"]
