"""Managed upstreams: how a command is started, when it is ready, what is learned of it, what it is given. Real
processes."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from engine import managed
from engine.api import Cancel, EngineStarting
from engine.events import Cancelled, Failed, FailKind, Tick
from engine.managed import ManagedUpstream
from engine.supervisor import Backoff, supervisor
from tests.scripted_upstream import ScriptedUpstream, stream
from tests.unit.engine.managed_rig import DEADLINE_S, SERVER, Make, Rig, gone, until_text, wait_for

REPOSITORY = Path(__file__).parents[3]


# --- answers and facts -------------------------------------------------------------------------------


def test_a_command_answers_and_its_server_says_what_it_is(make: Make) -> None:
    rig = make()
    before = rig.engine.facts
    assert (before.kind, before.speaks, before.slots, before.max_context) == ("upstream", "chat", 1024, None)
    assert before.model == Path(sys.executable).name
    assert (rig.engine.alive(), rig.engine.status().state, rig.engine.status().pid) == (False, "stopped", None)
    assert rig.answer() == "Hello"
    facts, status = rig.engine.facts, rig.engine.status()
    assert (facts.kind, facts.model, facts.slots, facts.max_context) == ("upstream", "tiny", 1024, 4096)
    assert (rig.engine.alive(), status.state, status.restarts, status.last_death) == (True, "ready", 0, None)
    assert [status.pid] == rig.pids()


def test_the_slots_are_what_llama_cpp_tells_unless_they_are_given(make: Make) -> None:
    told, given = make("slots"), make("slots", parallel=2)
    for rig in (told, given):
        rig.engine.start()
    assert (told.engine.facts.slots, given.engine.facts.slots) == (3, 2)
    assert "/props" not in given.notes("asked")


def test_no_more_requests_run_at_once_than_there_are_slots(make: Make) -> None:
    rig = make(parallel=1)
    one, two = rig.stream("endless"), rig.stream("hi")
    until_text(one)
    assert [next(two) for _ in range(3)] == [Tick()] * 3
    assert rig.engine.status().active == 2
    one.close()
    until_text(two)
    two.close()
    assert rig.engine.status().active == 0


def test_a_name_that_is_given_stays(make: Make) -> None:
    rig = make(model="mine")
    rig.engine.start()
    assert rig.engine.facts.model == "mine"


def test_a_server_that_names_no_model_has_its_programs_name(make: Make) -> None:
    rig = make("no-models")
    rig.engine.start()
    assert rig.engine.facts.model == Path(sys.executable).name


def test_a_refusal_is_told_and_nothing_is_restarted(make: Make) -> None:
    rig = make()
    end = rig.failure("refuse")
    assert (end.kind, end.message) == (FailKind.REFUSED, "a field is wrong")
    assert rig.answer() == "Hello"
    assert len(rig.pids()) == 1


# --- ready -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["loading", "like-llama"])
def test_a_server_that_loads_is_waited_for_ticking(make: Make, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "strata.managed")
    rig = make(mode)
    events = rig.stream("hi")
    assert next(events) == Tick()
    page = "/v1/models" if mode == "loading" else "/health"
    wait_for(lambda: f"the upstream is not ready yet: {page} answered 503" in caplog.messages)
    assert (next(events), rig.engine.status().state, rig.engine.alive()) == (Tick(), "starting", False)
    rig.cue("go")
    until_text(events)
    events.close()
    assert rig.engine.status().restarts == 0


@pytest.mark.parametrize("modes", [("no-health",), ("no-models",), ("no-health", "no-models")])
def test_a_page_that_does_not_exist_is_not_waited_for(make: Make, modes: tuple[str, ...]) -> None:
    assert make(*modes).answer() == "Hello"


def test_the_paid_health_page_of_a_proxy_is_not_asked(make: Make) -> None:
    rig = make("litellm")
    rig.engine.start()
    assert "/v1/models" in rig.notes("asked")
    assert "/health" not in rig.notes("asked")


def test_a_server_that_is_never_ready_is_ended_in_time(make: Make) -> None:
    rig = make("deaf", start_timeout_s=1.0)
    with pytest.raises(EngineStarting, match="the upstream was not ready within 1 s"):
        rig.engine.start()


def test_a_start_can_be_cancelled_and_goes_on(make: Make) -> None:
    rig = make("loading")
    cancel = Cancel()
    events = rig.stream("hi", cancel)
    assert next(events) == Tick()
    cancel.cancel("client")
    assert [event for event in events if not isinstance(event, Tick)] == [Cancelled("client")]
    rig.cue("go")
    rig.engine.start()
    assert len(rig.pids()) == 1


def test_a_server_that_closes_its_output_serves_on(make: Make) -> None:
    rig = make("silent-output")
    assert [rig.answer() for _ in range(3)] == ["Hello"] * 3
    assert len(rig.pids()) == 1


def test_a_fault_of_ours_while_waiting_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(server: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(managed._Server, "not_ready", fault)  # pyright: ignore[reportPrivateUsage] - no other way in
    with pytest.raises(EngineStarting, match="internal error"):
        make().engine.start()


# --- what it is given --------------------------------------------------------------------------------


def test_the_key_is_sent_and_a_wrong_one_is_no_reason_to_wait(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    assert make("wants-key", key="k").answer("key") == "HeBearer k"
    assert caplog.messages == []
    assert make("wants-key", key="wrong").answer("key") == "HeBearer wrong"
    assert "wrong key" in caplog.text


def test_our_secrets_stay_with_us_and_its_stdin_is_empty(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_API_KEY", "secret")
    monkeypatch.setenv("PLAIN", "kept")
    rig = make(env={"SHOWN": "own value", "STRATA_GIVEN": "on purpose"})
    assert rig.answer("environment") == "own valuello"
    assert {"PLAIN", "SHOWN", "STRATA_GIVEN"} <= rig.variables()
    assert "STRATA_API_KEY" not in rig.variables()
    assert rig.notes("stdin") == ["''"]


def test_what_it_says_on_stdout_and_stderr_is_appended_to_the_log(make: Make, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "server.log"
    rig = make(log=str(log))
    for _ in range(2):
        rig.failure("exit")
    assert log.read_text(encoding="utf-8") == "the model says goodbye\nthe GPU is gone\n" * 2


def test_a_folder_of_its_own(make: Make, tmp_path: Path) -> None:
    (tmp_path / "its").mkdir()
    rig = make(cwd=str(tmp_path / "its"))
    rig.engine.start()
    assert psutil.Process(rig.pids()[0]).cwd() == str(tmp_path / "its")


@pytest.mark.parametrize(
    ("command", "url", "words"),
    [
        ([], None, "empty"),
        ([""], None, "empty"),
        (["server"], None, "{port}"),
        (["server", "--port={port}"], "http://127.0.0.1:1", "{port}"),
        (["server"], "ftp://x", "URL"),
    ],
)
def test_a_command_needs_exactly_one_address(command: list[str], url: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ManagedUpstream(command, url=url)


def test_a_command_without_port_serves_at_its_url(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    rig = make("no-models", port=str(port), url=f"http://127.0.0.1:{port}/v1")
    assert [rig.answer(), rig.engine.facts.model] == ["Hello", f"127.0.0.1:{port}"]
    rig.failure("exit")
    assert rig.answer() == "Hello"


# --- starts that fail --------------------------------------------------------------------------------


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    engine = ManagedUpstream(["no-such-program", "{port}"])
    with pytest.raises(EngineStarting, match="cannot start 'no-such-program'"):
        engine.start()
    engine.close()


def test_a_server_that_exits_at_once_is_told_with_its_last_line_and_tried_again_later(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "Backoff", lambda: Backoff((0.0, 60.0)))
    rig = make("exits")
    with pytest.raises(EngineStarting, match=r"exit code 7.*the model is damaged"):
        rig.engine.start()
    end = rig.failure("hi")  # the second start comes at once, the third has to wait
    assert (end.kind, end.exit_code) == (FailKind.NOT_STARTED, 7)
    assert "the model is damaged" in end.message
    later = rig.failure("hi")
    assert later.kind is FailKind.NOT_STARTED
    assert "the model is damaged" in later.message
    assert "it will be tried again in" in later.message
    assert len(rig.pids()) == 2
    assert "exit code 7" in (rig.engine.status().last_death or "")


def test_a_port_that_another_server_took_meanwhile_is_left_to_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers, and would pass for ours."""
    asked = threading.Event()

    with ScriptedUpstream(lambda peer: asked.set()) as stranger, socket.create_server(("127.0.0.1", 0)) as spare:
        ports = iter([int(stranger.url.rpartition(":")[2]), spare.getsockname()[1]])
        spare.close()
        monkeypatch.setattr(managed, "_free_port", lambda: next(ports))
        rig = make()
        assert rig.answer() == "Hello"
    assert not asked.is_set()
    assert len(rig.pids()) == 2


def test_a_start_that_fails_on_a_free_port_is_not_repeated(make: Make) -> None:
    rig = make("exits")
    assert isinstance(rig.failure("hi"), Failed)
    assert len(rig.pids()) == 1


def test_a_stranger_at_the_url_is_not_taken_for_the_commands_server(make: Make) -> None:
    with ScriptedUpstream(stream()) as stranger:
        rig = make(port=stranger.url.rpartition(":")[2], url=stranger.url)
        with pytest.raises(EngineStarting, match="cannot listen"):
            rig.engine.start()


# --- the end -----------------------------------------------------------------------------------------


def test_closing_ends_the_server_its_children_and_what_runs(make: Make) -> None:
    rig = make("grandchild")
    events = rig.stream("endless")
    until_text(events)
    rig.engine.close()
    rig.engine.close()
    assert gone(rig.pids()[0])
    assert gone(rig.grandchildren()[0])
    ends = [event for event in events if isinstance(event, Failed)]
    assert [end.kind for end in ends] == [FailKind.NOT_STARTED]
    assert rig.failure("hi").kind is FailKind.NOT_STARTED
    assert (rig.engine.alive(), rig.engine.status().state) == (False, "stopped")


def test_closing_ends_a_server_that_loads(make: Make) -> None:
    rig = make("loading")
    events = rig.stream("hi")
    assert next(events) == Tick()
    wait_for(lambda: len(rig.pids()) == 1)
    rig.engine.close()
    assert gone(rig.pids()[0])
    assert any(isinstance(event, Failed) for event in events)


OWNER = """
import sys
from engine.managed import ManagedUpstream
engine = ManagedUpstream(sys.argv[1:])
engine.start()
print(engine.status().pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("signal", ["kill", "terminate"])
def test_the_server_and_its_children_end_when_we_are_killed(tmp_path: Path, signal: str) -> None:
    rig = Rig(tmp_path)
    command = [sys.executable, "-S", str(SERVER), "{port}", str(tmp_path), "grandchild"]
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", OWNER, *command], stdin=pipe, stdout=pipe, cwd=REPOSITORY) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        getattr(owner, signal)()
        owner.wait(DEADLINE_S)
    assert rig.pids() == [pid]
    wait_for(lambda: gone(pid))
    wait_for(lambda: gone(rig.grandchildren()[0]))
