"""Strata's names for one answer: `Service.run`'s tuples as `openai_chunks`, which never invent a finish reason."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import pytest

from engine.api import EngineDied
from engine.events import FinishReason
from engine.fake.harness import FakeEngine
from engine.pipe import StrataEngine
from serve.server import ByteTokenizer, ChatTemplate, Limits, Service, openai_chunks

Start = Callable[..., Service]
END: list[dict[str, Any]] = [{"end_token": True}, {"done": "stop"}]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A service over the fake engine whose every request goes these steps."""
    with ExitStack() as stack:

        def service(steps: list[dict[str, Any]], **limits: float) -> Service:
            fake = FakeEngine({"requests": [steps], "then": "repeat"}, tmp_path / "state")
            engine = StrataEngine(fake.exe, fake.args)
            stack.callback(engine.close)
            return Service(engine, ByteTokenizer(), ChatTemplate(), limits=Limits(**limits))  # type: ignore[arg-type]  # times only

        yield service


def chunks_of(svc: Service, cancel: threading.Event | None = None, run: Any = None, max_new: int = 50) -> list[Any]:
    return list(openai_chunks(svc, {}, [1], False, [], max_new, cancel or threading.Event(), run=run))


def reasons(chunks: list[Any]) -> list[Any]:
    return [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk is not None]


@pytest.mark.parametrize(("max_new", "reason"), [(50, "stop"), (3, "length")])
def test_a_finished_answer_has_its_text_reason_and_usage(start: Start, max_new: int, reason: str) -> None:
    chunks = chunks_of(start([{"text": "Hello"}, *END]), max_new=max_new)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Hello"[:max_new]
    assert reasons(chunks) == [None] * (len(chunks) - 1) + [reason]
    assert chunks[-1]["usage"]["completion_tokens"] == min(6, max_new)
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_a_cancelled_answer_ends_with_a_word_that_is_neither_success_nor_invented(start: Start) -> None:
    svc = start([{"text": "He"}, {"stall": True}])
    cancel = threading.Event()
    chunks: list[Any] = []
    for chunk in openai_chunks(svc, {}, [1], False, [], 50, cancel):
        chunks.append(chunk)
        if chunk is not None and chunk["choices"][0]["delta"].get("content") == "e":
            cancel.set()
    assert reasons(chunks)[-1] == "error"
    assert svc.history[-1]["finish"] == "cancel"


def test_a_failure_is_raised_after_what_came(start: Start) -> None:
    chunks: list[Any] = []
    with pytest.raises(EngineDied, match="exit code 3"):
        for chunk in openai_chunks(start([{"text": "Hi"}, {"exit": 3}]), {}, [1], False, [], 50, threading.Event()):
            chunks.append(chunk)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Hi"


def test_a_quiet_engine_gives_heartbeats(start: Start) -> None:
    chunks = chunks_of(start([{"delay_s": 0.5}, {"text": "x"}, *END], heartbeat_s=0.1))
    assert chunks.count(None) >= 2


@pytest.mark.parametrize("word", [*get_args(FinishReason), "cancel", "error", "eos_token", ""])
def test_the_words_of_a_foreign_run_are_checked(start: Start, word: str) -> None:
    run = iter([("ping", None), ("done", {"finish": word, "completion_tokens": 1})])
    chunks = chunks_of(start(END), run=run)
    assert chunks[1] is None
    assert reasons(chunks)[-1] == (word if word in get_args(FinishReason) else "error")
