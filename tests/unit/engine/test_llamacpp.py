"""The llama engine with the real model: answers, deaths, stalls, slots, cancellation, and starts that fail."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import cast

import psutil
import pytest

from engine import llama_child
from engine.api import Cancel, ChatRequest, EngineStarting
from engine.events import Accepted, Cancelled, Event, Failed, FailKind, Finished, Progress, Text, Tick, UpstreamError
from engine.llamacpp import LlamaEngine, default_threads
from engine.model import ensure_default_model

pytestmark = pytest.mark.llama

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def model() -> Path:
    return ensure_default_model()


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[LlamaEngine]:
    """One engine for the tests that leave it whole."""
    made = LlamaEngine(model, parallel=2, context=1000, model_name="smol")
    made.start()
    yield made
    made.close()


@pytest.fixture
def own(model: Path, tmp_path: Path) -> Iterator[LlamaEngine]:
    """An engine that the test may break."""
    made = LlamaEngine(model, parallel=1, context=1024, log=str(tmp_path / "llama.log"))
    yield made
    made.close()


def ask(content: str = "Count to a hundred.", **fields: object) -> ChatRequest:
    return ChatRequest({"messages": [{"role": "user", "content": content}], "temperature": 0} | fields)


ENDLESS = ask(ignore_eos=True)


def generate(engine: LlamaEngine, request: ChatRequest, cancel: Cancel | None = None) -> Generator[Event, None, None]:
    return cast("Generator[Event, None, None]", engine.stream(request, cancel or Cancel()))


def events_of(engine: LlamaEngine, request: ChatRequest) -> list[Event]:
    """All events but the ticks; exactly one terminal, at the end."""
    events: list[Event] = [event for event in generate(engine, request) if not isinstance(event, Tick)]
    assert [isinstance(event, Finished | Failed | Cancelled) for event in events].index(True) == len(events) - 1
    return events


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def finished(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1]


def failed(events: list[Event]) -> Failed:
    assert isinstance(events[-1], Failed), events[-1]
    return events[-1]


def until_text(events: Iterator[Event], count: int = 3) -> None:
    """Read until some text came."""
    while count:
        count -= isinstance(next(events), Text)


def wait_for(condition: Callable[[], bool]) -> bool:
    pause = threading.Event()
    return any(condition() or pause.wait(0.02) for _ in range(int(DEADLINE_S / 0.02))) or condition()


def pid_of(engine: LlamaEngine) -> int:
    pid = engine.status().pid
    assert pid is not None
    return pid


def page(engine: LlamaEngine, path: str, key: str | None = None) -> tuple[int, object]:
    """What the child's own server answers to a GET."""
    (address,) = {
        connection.laddr
        for connection in psutil.Process(pid_of(engine)).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert address.ip == "127.0.0.1"
    connection = http.client.HTTPConnection(address.ip, address.port, timeout=DEADLINE_S)
    try:
        connection.request("GET", path, headers={} if key is None else {"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def key_of(engine: LlamaEngine) -> str:
    return psutil.Process(pid_of(engine)).environ()[llama_child.KEY_VARIABLE]


def busy_slots(engine: LlamaEngine) -> int:
    status, slots = page(engine, "/slots", key_of(engine))
    assert status == 200
    return sum(bool(slot["is_processing"]) for slot in cast("list[Mapping[str, object]]", slots))


# --- answers -----------------------------------------------------------------------------------------


def test_an_answer_is_streamed_with_progress_and_exact_counts(engine: LlamaEngine) -> None:
    events = events_of(engine, ask(max_tokens=7))
    assert events[0] == Accepted()
    assert any(isinstance(event, Progress) and event.done == event.total > 0 for event in events)
    assert sum(isinstance(event, Text) for event in events) == 7
    usage = finished(events).usage
    assert usage is not None
    assert (finished(events).reason, usage.completion_tokens) == ("length", 7)
    assert usage.prompt_tokens > 10


def test_an_answer_that_ends_by_itself_says_stop(engine: LlamaEngine) -> None:
    end = finished(events_of(engine, ask("Say hello in one word.", max_tokens=300)))
    assert end.usage is not None
    assert (end.reason, end.usage.completion_tokens < 300) == ("stop", True)


def test_an_answer_that_fills_the_context_says_length(model: Path) -> None:
    engine = LlamaEngine(model, context=256)
    try:
        end = finished(events_of(engine, ask("word " * 150, ignore_eos=True)))
    finally:
        engine.close()
    assert end.usage is not None
    assert (end.reason, end.usage.prompt_tokens + end.usage.completion_tokens) == ("length", 256)


def test_a_prompt_over_the_context_is_refused_and_the_engine_goes_on(engine: LlamaEngine) -> None:
    pid = pid_of(engine)
    (end,) = events_of(engine, ask("word " * 2000))
    assert isinstance(end, Failed)
    assert (end.kind, end.upstream) == (FailKind.CONTEXT, UpstreamError(400, "exceed_context_size_error"))
    assert "exceeds the available context size (1024 tokens)" in end.message
    assert (finished(events_of(engine, ask(max_tokens=1))).reason, pid_of(engine)) == ("length", pid)


def test_a_refused_field_is_told_in_llamas_words(engine: LlamaEngine) -> None:
    end = failed(events_of(engine, ask(max_tokens="x")))
    assert end.kind is FailKind.REFUSED
    assert "max_tokens" in end.message


def test_a_schema_is_kept_by_grammar(engine: LlamaEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    answer_format = {"type": "json_schema", "json_schema": {"name": "ok", "schema": schema}}
    events = events_of(engine, ask("Is it?", max_tokens=60, response_format=answer_format))
    assert finished(events).reason == "stop"
    assert json.loads(text_of(events)).keys() == {"ok"}


def test_a_stop_string_and_logprobs(engine: LlamaEngine) -> None:
    whole = text_of(events_of(engine, ask(max_tokens=12)))
    word = whole.split()[2]
    events = events_of(engine, ask(max_tokens=12, stop=[word], logprobs=True, top_logprobs=1))
    assert finished(events).reason == "stop"
    assert text_of(events) == whole[: whole.index(word)]
    logprobs = next(event.logprobs for event in events if isinstance(event, Text))
    assert isinstance(logprobs, dict)
    assert "content" in logprobs


def test_tools_are_dropped_by_a_template_that_knows_none(engine: LlamaEngine) -> None:
    """A fact of llama.cpp, not a wish: the answer is text, although a call was required."""
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    events = events_of(engine, ask("Weather in Paris?", max_tokens=20, tools=[tool], tool_choice="required"))
    assert finished(events).reason in ("stop", "length")
    assert text_of(events)


# --- one process, its own key ------------------------------------------------------------------------


def test_facts_are_those_of_the_server(engine: LlamaEngine) -> None:
    facts, status = engine.facts, engine.status()
    assert (facts.kind, facts.model, facts.speaks, facts.slots) == ("llama", "smol", "chat", 2)
    assert facts.max_context == 1024  # 1000 is rounded up, for each slot
    assert (status.state, engine.alive()) == ("ready", True)


def test_nobody_else_can_use_the_server_and_the_key_is_not_among_its_arguments(engine: LlamaEngine) -> None:
    assert page(engine, "/slots")[0] == 401
    assert page(engine, "/slots", "wrong")[0] == 401
    assert page(engine, "/slots", key_of(engine))[0] == 200
    assert key_of(engine) not in " ".join(psutil.Process(pid_of(engine)).cmdline())


def test_two_answers_run_at_once_and_a_third_waits_ticking(engine: LlamaEngine) -> None:
    one, two, three = (generate(engine, ENDLESS) for _ in range(3))
    until_text(one)
    until_text(two)
    assert engine.status().active == 2
    assert busy_slots(engine) == 2
    assert [next(three) for _ in range(3)] == [Tick()] * 3
    until_text(one)
    one.close()
    until_text(three)
    two.close()
    three.close()
    assert wait_for(lambda: busy_slots(engine) == 0)
    assert engine.status().active == 0


def test_a_closed_iterator_frees_the_slot(engine: LlamaEngine) -> None:
    events = generate(engine, ENDLESS)
    until_text(events)
    assert busy_slots(engine) == 1
    events.close()
    assert wait_for(lambda: busy_slots(engine) == 0)


def test_a_cancelled_answer_is_cancelled_and_frees_the_slot(engine: LlamaEngine) -> None:
    cancel = Cancel()
    events = generate(engine, ENDLESS, cancel)
    until_text(events)
    cancel.cancel("operator")
    *_, end = events
    assert isinstance(end, Cancelled)
    assert end.by == "operator"
    assert end.usage is not None
    assert end.usage.completion_tokens >= 3
    assert wait_for(lambda: busy_slots(engine) == 0)


# --- death -------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals")
def test_a_killed_child_is_told_with_its_signal_and_the_next_request_restarts_it(own: LlamaEngine) -> None:
    events = generate(own, ENDLESS)
    until_text(events)
    os.kill(pid_of(own), signal.SIGKILL)
    rest = list(events)
    end = failed(rest)
    assert (end.kind, end.exit_code) == (FailKind.DIED, -signal.SIGKILL)
    assert "killed by signal 9 (SIGKILL)" in end.message
    assert end.message.endswith("; the next request restarts it")
    assert end.usage is not None
    assert end.usage.completion_tokens >= 3
    assert end.usage.prompt_tokens > 10
    assert "killed by signal 9" in (own.status().last_death or "")

    again = list(generate(own, ask(max_tokens=2)))
    assert again[0] == Tick()  # while it loads
    assert finished(again).reason == "length"
    assert own.status().restarts == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals")
def test_a_child_killed_between_two_requests_is_no_failure_of_the_next(own: LlamaEngine) -> None:
    own.start()
    for _ in range(3):
        psutil.Process(pid_of(own)).kill()
        assert finished(events_of(own, ask(max_tokens=1))).reason == "length"
    assert own.status().restarts == 3


class Clock:
    """A monotonic clock that runs a hundred seconds ahead at every look once the test says so."""

    def __init__(self) -> None:
        self.fast = False
        self._ahead_s = 0.0

    def monotonic(self) -> float:
        self._ahead_s += 100.0 if self.fast else 0.0
        return time.monotonic() + self._ahead_s


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals")
def test_a_stalled_child_is_silent_and_ended(own: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("engine.upstream_call.time", clock)
    events = generate(own, ENDLESS)
    until_text(events)
    pid = pid_of(own)
    os.kill(pid, signal.SIGSTOP)
    clock.fast = True
    end = failed(list(events))
    clock.fast = False
    assert end.kind is FailKind.SILENT
    assert "llama.cpp said nothing for 300 s" in end.message
    assert end.message.endswith("; the next request restarts it")
    assert wait_for(lambda: not psutil.pid_exists(pid))
    assert finished(events_of(own, ask(max_tokens=1))).reason == "length"


def test_closing_ends_the_child_and_what_runs(own: LlamaEngine) -> None:
    events = generate(own, ENDLESS)
    until_text(events)
    pid = pid_of(own)
    own.close()
    own.close()
    assert not psutil.pid_exists(pid)
    assert failed(list(events)).kind is FailKind.NOT_STARTED
    assert failed(events_of(own, ENDLESS)).kind is FailKind.NOT_STARTED
    assert (own.alive(), own.status().state) == (False, "stopped")


def test_threads_leave_a_core_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = 1

    class Process:
        def cpu_affinity(self) -> list[int]:
            return list(range(usable))

    monkeypatch.setattr(psutil, "Process", Process)
    cases: list[tuple[int, int | None, int]] = [
        (1, 1, 1), (2, 2, 1), (4, 4, 3), (16, 8, 8), (2, 8, 1), (8, None, 7)
    ]  # fmt: skip
    for case in cases:
        usable, physical, threads = case
        monkeypatch.setattr(psutil, "cpu_count", lambda logical=True, physical=physical: physical)
        assert default_threads() == threads


# --- start -------------------------------------------------------------------------------------------


def test_a_file_that_is_no_model_fails_to_start_with_llamas_last_words(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"this is no model")
    engine = LlamaEngine(path)
    try:
        words = "(llama.cpp did not start|failed to load model)"  # the logger of llama.cpp may have the last word
        with pytest.raises(EngineStarting, match=f"exit code {llama_child.EXIT_NO_SERVER}.*{words}"):
            engine.start()
        end = failed(events_of(engine, ENDLESS))
        assert end.kind is FailKind.NOT_STARTED
        assert f"exit code {llama_child.EXIT_NO_SERVER}" in end.message
        assert not engine.alive()
    finally:
        engine.close()


def test_a_start_can_be_cancelled_and_goes_on(own: LlamaEngine) -> None:
    cancel = Cancel()
    events = generate(own, ENDLESS, cancel)
    assert next(events) == Tick()
    cancel.cancel("client")
    assert [event for event in events if not isinstance(event, Tick)] == [Cancelled("client")]
    own.start()
    assert own.status().restarts == 0


def child(model: Path, **options: object) -> subprocess.Popen[bytes]:
    """The child without its supervisor."""
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return subprocess.Popen(
        [sys.executable, "-P", llama_child.__file__, f"--model={model}", "--alias=x", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ) | {llama_child.KEY_VARIABLE: "k"},
    )


def test_the_child_writes_one_line_and_ends_with_its_stdin(model: Path) -> None:
    with child(model, parallel=1, context=256, threads=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(b"LISTENING http://127.0.0.1:")
        assert line.endswith(b" context=256\n")
        process.stdin.close()
        assert (process.stdout.read(), process.wait(DEADLINE_S)) == (b"", 0)


def test_a_taken_port_is_not_used(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, with a wheel of our own: two ports are taken, as if another program had been faster."""
    tried: list[int] = []

    class Server:
        def __init__(self, params: types.SimpleNamespace) -> None:
            tried.append(params.port)
            if params.port in taken:
                raise RuntimeError("Failed to init server, please check the input params.")
            self.listening_address = f"http://127.0.0.1:{params.port}"

    wheel = types.SimpleNamespace(
        CommonParams=lambda: types.SimpleNamespace(
            model=types.SimpleNamespace(), cpuparams=types.SimpleNamespace(), cpuparams_batch=types.SimpleNamespace()
        ),
        Server=Server,
    )
    monkeypatch.setitem(sys.modules, "xllamacpp", cast("types.ModuleType", wheel))
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    taken = [listener.getsockname()[1] for listener in listeners]
    with socket.create_server(("127.0.0.1", 0)) as spare:
        free = spare.getsockname()[1]
    ports = iter([*taken, free])
    monkeypatch.setattr(llama_child, "_free_port", lambda: next(ports))
    arguments = llama_child.argparse.Namespace(model="m", alias="a", parallel=2, context=100, threads=1)
    server = llama_child._start(arguments, "k")  # pyright: ignore[reportPrivateUsage] - its own test
    for listener in listeners:
        listener.close()
    assert server is not None
    assert (tried, server.listening_address) == ([*taken, free], f"http://127.0.0.1:{free}")
    assert capsys.readouterr().err == ""
