"""A stream that was cut is taken up again: after each event, live and later, once and by many, byte for byte."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kept import (
    CALL,
    END,
    RUNNING,
    TOOLS,
    Event,
    Json,
    Steps,
    Stream,
    call,
    calm,
    check,
    cue,
    ended,
    get,
    make,
    read,
    replay,
    request,
    rules,
    saved_entries,
    text_of,
    uncue,
)
from tests.e2e.server import ServerProcess, fake_server, wait_for

Start = Callable[..., ServerProcess]

GATE: Json = {"cue": "gate"}


@dataclass(frozen=True)
class Kind:
    """A way to end, with the engine waiting at a gate before that. `shown` is in the last event before the gate."""

    name: str
    steps: Steps
    status: str
    shown: str
    fields: Json
    thinking: bool = False
    cancelled: bool = False


KINDS = (
    Kind(
        "everything",
        [{"text": "Hm.</think>Hi.\u2028"}, GATE, {"text": CALL}, *END],
        "completed",
        '"delta": "\\u2028"',
        {"tools": TOOLS, "temperature": 0.7, "metadata": {"a": "\u2028"}},
        thinking=True,
    ),
    Kind("limit", [{"text": "One,"}, GATE, {"text": " two, three"}], "incomplete", '","', {"max_output_tokens": 8}),
    Kind(
        "cut-call",
        [{"text": "A"}, GATE, {"text": CALL}],
        "incomplete",
        '"A"',
        {"max_output_tokens": 45, "tools": TOOLS},
    ),
    Kind("err", [{"text": "One"}, GATE, {"text": "!"}, {"err": "no candidate is left"}], "failed", '"e"', {}),
    Kind("cancel", [{"text": "One"}, GATE, {"text": "!"}, {"stall": True}], "cancelled", '"e"', {}, cancelled=True),
)
QUIET: Steps = [{"text": "One"}, {"delay_s": 0.3}, GATE, {"text": "."}, *END]
BEATS = Kind("quiet", QUIET, "completed", "", {})
BEATS_BEFORE_GATE = 7
"""Created, queued, running, item, part, two of the three letters: surely before the gate."""
STEPWISE: Steps = [{"text": "a"}, {"cue": "first"}, {"text": "b"}, {"cue": "second"}, {"text": "c"}, *END]
DIES: Steps = [{"text": "One"}, {"cue": "death"}, {"exit": 3}]
LONG: Steps = [{"text": "x", "repeat": 20_000, "burst": True}, *END]
"""More than sockets hold."""
HANGS: Steps = [{"text": "One"}, {"stall": True}]


@pytest.fixture(scope="module")
def shared(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    script = rules(
        **{kind.name.replace("-", "_"): kind.steps for kind in KINDS}, stepwise=STEPWISE, dies=DIES, hangs=HANGS
    )
    with fake_server(server_command, script, tmp_path_factory.mktemp("resume"), "--drain-s", "0.1") as made:
        yield made


@pytest.fixture
def server(shared: ServerProcess) -> Iterator[ServerProcess]:
    for name in ("gate", "first", "second", "death"):
        uncue(shared, name)
    yield shared
    calm(shared)


@pytest.fixture(scope="module")
def shared_beating(
    server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("beating")
    with fake_server(server_command, rules(quiet=QUIET), folder, "--heartbeat-s", "0.1", "--drain-s", "0.1") as made:
        yield made


@pytest.fixture
def beating(shared_beating: ServerProcess) -> Iterator[ServerProcess]:
    uncue(shared_beating, "gate")
    yield shared_beating
    calm(shared_beating)


def begin(server: ServerProcess, kind: Kind) -> Stream:
    body = request(f"{kind.name} please", background=True, thinking=kind.thinking, **kind.fields)
    return Stream.post(server, body)


def let_go(server: ServerProcess, kind: Kind, id_: str) -> None:
    """Let the engine go on; whoever cancels does it when there is nothing more to come."""
    cue(server, "gate")
    if kind.cancelled:
        wait_for(lambda: text_of(read(server, id_)) == "One!", "the engine stalls")
        assert call(server, "POST", f"/v1/responses/{id_}/cancel").json["status"] == "cancelled"


def raws(events: list[Event]) -> list[bytes]:
    return [event.raw for event in events]


def cut_and_resume(server: ServerProcess, kind: Kind, k: int, before_gate: int) -> int:
    """Make one, cut its connection after event k, resume it there, and compare; the number of its events."""
    uncue(server, "gate")
    with begin(server, kind) as cut, Stream.resume(server, cut.id) as uncut:
        if k >= before_gate:
            let_go(server, kind, cut.id)
        head = cut.take(k + 1)
        cut.leave() if k % 2 else cut.reset()
        with Stream.resume(server, cut.id, k) as resumed:
            if k < before_gate:
                assert read(server, cut.id)["status"] in RUNNING
                let_go(server, kind, cut.id)
            tail = resumed.rest()
        whole = uncut.rest()
    ending = check(whole)
    assert ending.status == kind.status
    assert ending.response == read(server, cut.id)
    assert raws(head) == raws(whole[: k + 1])
    assert raws(tail) == raws(whole[k + 1 :] or whole[-1:])
    assert raws(whole) == raws(replay(server, cut.id))
    return len(whole)


def events_before_gate(server: ServerProcess, kind: Kind) -> int:
    uncue(server, "gate")
    with begin(server, kind) as stream:
        stream.until(kind.shown)
        let_go(server, kind, stream.id)
        return len(stream.seen)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_cut_after_any_event_while_it_runs_and_resumed_the_joined_stream_is_the_uncut_one(
    server: ServerProcess, kind: Kind
) -> None:
    before_gate = events_before_gate(server, kind)
    k, count = 0, 1
    while k < count:
        count = cut_and_resume(server, kind, k, before_gate)
        k += 1
    assert 5 < before_gate < count


def test_cut_after_any_event_of_a_stream_with_heartbeats_the_joined_stream_is_the_uncut_one(
    beating: ServerProcess,
) -> None:
    k, count = 0, 1
    while k < count:  # beats are no fixed number: after some cut, each event was the last
        count = cut_and_resume(beating, BEATS, k, BEATS_BEFORE_GATE)
        k += 1
    with begin(beating, BEATS) as stream:
        names = [event.type for event in stream.rest()]
    assert names.count("response.in_progress") >= 3


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_after_the_end_every_cursor_gives_what_is_after_it_and_past_the_end_the_terminal(
    server: ServerProcess, kind: Kind
) -> None:
    with begin(server, kind) as stream:
        stream.until(kind.shown)
        let_go(server, kind, stream.id)
        whole = raws(stream.rest())
    assert raws(replay(server, stream.id)) == whole
    for k in (*range(len(whole) + 2), 10**6, 2**63 - 1):
        assert raws(replay(server, stream.id, k)) == (whole[k + 1 :] or whole[-1:])


def test_a_cursor_that_is_none_or_without_a_stream_is_refused_with_its_name(server: ServerProcess) -> None:
    made = make(server, request()).json
    wrong = ("starting_after=1", "stream=false&starting_after=1", "stream=maybe", "stream=")
    cursors = ("x", "-1", "1.5", "", "%2B1", "%201", "1e3", "%C2%B2", "9" * 19, "9" * 5_000)
    for query in (*wrong, *(f"stream=true&starting_after={cursor}" for cursor in cursors)):
        answer = get(server, made["id"], f"?{query}")
        assert answer.status == 400, query
        error = answer.json["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == ("starting_after" if "starting_after" in query else "stream")
        assert error["param"] in error["message"]
    for id_ in ("resp_0", made["id"][:-1], made["id"].upper(), "x" * 5_000):
        answer = get(server, id_, "?stream=true")
        assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")
    assert get(server, made["id"], "?stream=True&starting_after=0").status == 200


def test_many_readers_with_cursors_of_their_own_at_once_each_get_all_of_theirs_live(server: ServerProcess) -> None:
    with Stream.post(server, request("stepwise please", background=True)) as first:
        first.until('"a"')
        seen = len(first.seen)
        with ExitStack() as stack:
            cursors = [None, None, 0, 3, seen - 1, seen - 1, seen, seen + 2, 1_000]
            readers = [stack.enter_context(Stream.resume(server, first.id, after)) for after in cursors]
            for reader in readers[:3]:
                reader.until('"a"')
            cue(server, "first")
            for reader in (first, *readers[:6]):
                reader.until('"b"')
            late = stack.enter_context(Stream.resume(server, first.id, seen - 1))
            cue(server, "second")
            whole = raws(first.rest())
            for reader, after in zip((*readers, late), (*cursors, seen - 1), strict=True):
                assert raws(reader.rest()) == (whole[0 if after is None else after + 1 :] or whole[-1:])


def test_a_foreground_stream_is_read_by_a_second_connection_too(server: ServerProcess) -> None:
    cue(server, "second")
    with Stream.post(server, request("stepwise please")) as first:
        first.until('"a"')
        seen = len(first.seen)
        with Stream.resume(server, first.id) as second, Stream.resume(server, first.id, seen - 1) as third:
            second.until('"a"')
            cue(server, "first")
            whole = raws(first.rest())
            assert raws(second.rest()) == whole
            assert raws(third.rest()) == whole[seen:]
    assert check(first.seen).status == "completed"


def test_a_second_reader_of_a_foreground_stream_sees_that_the_first_one_left(server: ServerProcess) -> None:
    with Stream.post(server, request("hangs please")) as first:
        first.until('"e"')
        with Stream.resume(server, first.id) as second:
            second.until('"e"')
            first.reset()
            assert check(second.rest()).status == "cancelled"
    assert second.seen[-1].json["response"] == read(server, first.id)


def test_when_the_engine_died_meanwhile_readers_before_and_after_are_told_the_cause(server: ServerProcess) -> None:
    with Stream.post(server, request("dies please", background=True)) as first:
        first.until('"e"')
        seen = len(first.seen)
        first.leave()
        with Stream.resume(server, first.id, seen - 1) as waiting:
            waiting.head()
            cue(server, "death")
            tail = waiting.rest()
    ended(server, first.id)
    assert raws(tail) == raws(replay(server, first.id, seen - 1))
    ending = check([*first.seen, *tail])
    assert ending.error is not None
    assert (ending.status, ending.error["code"], ending.texts) == ("failed", "engine_died", ["One"])
    assert "exit code 3" in ending.error["message"]


def test_a_reader_ahead_of_a_running_stream_hears_beats_and_then_the_terminal_only(beating: ServerProcess) -> None:
    with begin(beating, BEATS) as stream, Stream.resume(beating, stream.id, 10**6) as ahead:
        assert ahead.connection.until(b": keep-alive\n").count(b"event: ") == 0
        cue(beating, "gate")
        assert raws(ahead.rest()) == raws(stream.rest()[-1:])


# --- the server in between ---------------------------------------------------------------------------


def test_resumed_after_the_server_was_stopped_and_started_again(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    script = {**rules(hangs=HANGS, long=LONG), "context": 100_000}
    with fake_server(server_command, script, tmp_path, "--drain-s", "0.1") as server:
        finished = make(server, request("long please")).json
        stream = Stream.post(server, request("hangs please", background=True))
        seen = len(stream.take(7))
        stream.leave()
        with Stream.resume(server, stream.id, seen - 1) as resumed, Stream.resume(server, finished["id"]) as slow:
            resumed.head()
            slow.head()
            server.process.send_signal(signal.SIGTERM)
            tail = resumed.rest()  # who reads while it stops is told, too
            wait_for(lambda: "finish=cancel" in server.log(), "the server ends what runs")
            assert slow.rest()[-1].json["response"] == finished
        assert server.process.wait(20) == 0
    with fake_server(server_command, rules(), tmp_path) as server:
        assert raws(replay(server, stream.id, seen - 1)) == raws(tail)
        ending = check([*stream.seen, *tail])
        assert ending.error is not None
        assert (ending.status, ending.error["code"], ending.texts) == ("failed", "server_shutdown", ["One"])
        assert read(server, finished["id"]) == finished


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX: the server is killed by a signal")
def test_resumed_after_the_server_was_killed_and_started_again(server_command: tuple[str, ...], tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(fake_server(server_command, rules(hangs=HANGS), tmp_path))
        stream = stack.enter_context(Stream.post(server, request("hangs please", background=True)))
        stream.until('"e"')
        wait_for(lambda: saved_entries(tmp_path / "store.db", stream.id) == 4, "what was made is on disk")
        resumed = stack.enter_context(Stream.resume(server, stream.id, 2))
        resumed.until('"e"')
        server.process.kill()
        server.process.wait(10)
        for reader in (stream, resumed):
            assert reader.next() is None
            assert reader.cut, "a stream without a terminal ended as if it were whole"
    with fake_server(server_command, rules(), tmp_path) as server:
        for k in range(len(stream.seen)):
            tail = replay(server, stream.id, k)
            ending = check([*stream.seen[: k + 1], *tail])
            assert ending.error is not None
            assert (ending.status, ending.error["code"], ending.texts) == ("failed", "server_lost", ["One"])
            assert ending.response == read(server, stream.id)


def test_the_sdk_resumes_a_stream_with_its_strict_types(server: ServerProcess) -> None:
    openai = pytest.importorskip("openai")
    cue(server, "second")
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        begun: list[Any] = []
        with client.responses.create(
            model="fake", input="stepwise please", reasoning={"effort": "none"}, background=True, stream=True
        ) as stream:
            for event in stream:
                begun.append(event)
                if event.type == "response.output_text.delta":
                    break
        id_, last = begun[0].response.id, begun[-1].sequence_number
        assert client.responses.retrieve(id_).status == "in_progress"
        resumed = client.responses.retrieve(id_, stream=True, starting_after=last)
        cue(server, "first")
        joined = [*begun, *resumed]
    assert [event.sequence_number for event in joined] == list(range(len(joined)))
    assert "".join(event.delta for event in joined if event.type == "response.output_text.delta") == "abc"
    assert joined[-1].type == "response.completed"
