"""How servers are asked for the tokens of a prompt, and what their answers mean."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from engine.api import CountsPrompts, EngineError, EngineFault, EngineProtocol, EngineRefused
from engine.events import FailKind
from engine.prompt_count import LLAMA, VLLM, Ask, count_prompt
from engine.upstream import UpstreamEngine
from engine.upstream_pool import UpstreamPool

CHAT: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


def server(pages: Mapping[str, tuple[int, object]], asked: list[tuple[str, Mapping[str, object]]] | None = None) -> Ask:
    def ask(path: str, question: Mapping[str, object]) -> tuple[int, str, bytes]:
        if asked is not None:
            asked.append((path, question))
        status, body = pages.get(path, (404, {"error": "no such page"}))
        return status, "Reason", json.dumps(body).encode()

    return ask


def test_llama_cpp_is_asked_for_the_prompt_and_then_for_its_tokens() -> None:
    asked: list[tuple[str, Mapping[str, object]]] = []
    pages = {"/apply-template": (200, {"prompt": "<s>hi"}), "/tokenize": (200, {"tokens": [1, 2, 3]})}
    assert count_prompt(LLAMA, "it", CHAT, server(pages, asked)) == 3
    question = {"content": "<s>hi", "add_special": True, "parse_special": True}
    assert asked == [("/apply-template", CHAT), ("/tokenize", question)]


def test_vllm_is_asked_once_with_what_makes_the_prompt() -> None:
    asked: list[tuple[str, Mapping[str, object]]] = []
    assert count_prompt(VLLM, "it", {**CHAT, "tools": []}, server({"/tokenize": (200, {"count": 7})}, asked)) == 7
    assert asked == [("/tokenize", {"model": "m", "messages": CHAT["messages"], "tools": []})]


@pytest.mark.parametrize("owner", [None, "openai", 5])
def test_others_cannot_count_and_are_not_asked(owner: object) -> None:
    asked: list[tuple[str, Mapping[str, object]]] = []
    with pytest.raises(EngineRefused, match="the server cannot count"):
        count_prompt(owner, "the server", CHAT, server({}, asked))
    assert asked == []


WRONG: list[tuple[str, Mapping[str, tuple[int, object]], type[EngineError], str]] = [
    (LLAMA, {}, EngineRefused, "it has no /apply-template"),
    (VLLM, {}, EngineRefused, "it has no /tokenize"),
    (LLAMA, {"/apply-template": (400, {"error": {"message": "bad roles"}})}, EngineRefused, "bad roles"),
    (VLLM, {"/tokenize": (500, {"error": {"message": "out of memory"}})}, EngineFault, "out of memory"),
    (LLAMA, {"/apply-template": (200, {"text": "x"})}, EngineProtocol, "no prompt"),
    (LLAMA, {"/apply-template": (200, {"prompt": ""}), "/tokenize": (200, [])}, EngineProtocol, "did not say"),
    (VLLM, {"/tokenize": (200, {"count": True})}, EngineProtocol, "did not say"),
    (VLLM, {"/tokenize": (200, {"count": "7"})}, EngineProtocol, "did not say"),
]


@pytest.mark.parametrize(("owner", "pages", "error", "says"), WRONG)
def test_an_answer_that_is_no_count_is_an_error(
    owner: str, pages: Mapping[str, tuple[int, object]], error: type[EngineError], says: str
) -> None:
    with pytest.raises(error, match=says):
        count_prompt(owner, "it", CHAT, server(pages))


def test_a_status_of_the_server_is_kept() -> None:
    with pytest.raises(EngineRefused) as raised:
        count_prompt(VLLM, "it", CHAT, server({"/tokenize": (422, {"error": {"message": "no", "code": "odd"}})}))
    assert raised.value.kind is FailKind.REFUSED
    assert raised.value.upstream is not None
    assert (raised.value.upstream.status, raised.value.upstream.code) == (422, "odd")


def test_engines_that_speak_chat_can_be_asked() -> None:
    upstream = UpstreamEngine("http://127.0.0.1:9")
    pool = UpstreamPool({"a": upstream})
    try:
        assert isinstance(upstream, CountsPrompts)
        assert isinstance(pool, CountsPrompts)
    finally:
        pool.close()
