"""Several servers on one file: each serves what any of them makes, and tells the truth about one that was killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.client import chat
from tests.e2e.kept import (
    CHATS,
    END,
    RESPONSES,
    Json,
    Steps,
    Stream,
    call,
    calm,
    check,
    commands,
    cue,
    ended,
    get,
    kept_ids,
    make,
    read,
    read_chat,
    replay,
    request,
    rules,
    text_of,
    uncue,
)
from tests.e2e.server import ServerProcess, fake_server, wait_for

GATED: Steps = [{"text": "On"}, {"cue": "gate"}, {"text": "e"}, *END]
HANGS: Steps = [{"text": "One"}, {"stall": True}]
SCRIPT = rules(gated=GATED, hangs=HANGS, fine=[{"text": "fine"}, *END])
MANY = 15


@dataclass(frozen=True)
class Pair:
    """Two servers on one file, each with its own engine."""

    first: ServerProcess
    second: ServerProcess
    file: Path

    @property
    def both(self) -> tuple[ServerProcess, ServerProcess]:
        return self.first, self.second

    def settle(self) -> None:
        for server in self.both:
            uncue(server, "gate")


def start(stack: ExitStack, command: tuple[str, ...], folder: Path) -> Pair:
    """Start both at once."""
    file = folder / "shared.db"
    servers: list[ServerProcess] = []
    for name in ("first", "second"):
        (folder / name).mkdir()
        servers.append(fake_server(command, SCRIPT, folder / name, "--store", str(file), "--drain-s", "0.1"))
    for server in servers:
        stack.enter_context(server)
    return Pair(servers[0], servers[1], file)


@pytest.fixture(scope="module")
def shared(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield start(stack, server_command, tmp_path_factory.mktemp("processes"))


@pytest.fixture
def pair(shared: Pair) -> Iterator[Pair]:
    shared.settle()
    yield shared
    for server in shared.both:
        calm(server, shared.file)


def cancel(server: ServerProcess, id_: str) -> Json:
    answer = call(server, "POST", f"{RESPONSES}/{id_}/cancel")
    assert answer.status == 200, answer.body
    return answer.json


def test_both_write_at_once_and_each_reads_what_either_made(pair: Pair) -> None:
    made: list[Json] = []

    def work(server: ServerProcess) -> None:
        made.extend(make(server, request("fine please")).json for _ in range(MANY))

    threads = [threading.Thread(target=work, args=(server,)) for server in pair.both for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({response["id"] for response in made}) == 4 * MANY
    for response in made:
        assert response["status"] == "completed"
        assert [read(server, response["id"]) for server in pair.both] == [response, response]
    last = made[-1]["id"]
    for server in pair.both:
        assert make(server, request("fine please", previous_response_id=last)).json["status"] == "completed"


@pytest.mark.parametrize("background", [True, False], ids=["background", "foreground"])
def test_one_that_runs_in_the_first_is_read_and_resumed_at_the_second(pair: Pair, background: bool) -> None:
    with Stream.post(pair.first, request("gated please", background=background)) as stream:
        stream.until('"n"')
        wait_for(lambda: text_of(read(pair.second, stream.id)) == "On", "the second sees what was made")
        assert read(pair.second, stream.id)["status"] == "in_progress"
        with ExitStack() as stack:
            cursors = (None, 0, len(stream.seen) - 1, 10**6)
            readers = [stack.enter_context(Stream.resume(pair.second, stream.id, after)) for after in cursors]
            readers[0].until('"n"')
            cue(pair.first, "gate")
            whole = [event.raw for event in stream.rest()]
            for reader, after in zip(readers, cursors, strict=True):
                tail = [event.raw for event in reader.rest()]
                assert tail == (whole[0 if after is None else after + 1 :] or whole[-1:])
    assert check(stream.seen).response == read(pair.second, stream.id) == read(pair.first, stream.id)


def test_one_that_runs_or_waits_in_the_first_is_cancelled_at_the_second(pair: Pair) -> None:
    with Stream.post(pair.first, request("hangs please", background=True)) as running:
        running.until('"e"')
        with Stream.post(pair.first, request("hangs please", background=True)) as waiting:
            waiting.take(2)
            for stream, texts in ((waiting, []), (running, ["One"])):
                told = cancel(pair.second, stream.id)
                ending = check(stream.rest())
                assert (told["status"], ending.status, ending.texts) == ("cancelled", "cancelled", texts)
                assert ending.response == told == read(pair.second, stream.id)
                assert cancel(pair.first, stream.id) == told
    wait_for(pair.first.settled, "nothing runs")
    assert commands(pair.first)[-2:] == ["GEN", "STOP"]


def test_a_background_one_that_runs_in_the_first_is_ended_by_its_deletion_at_the_second(pair: Pair) -> None:
    with Stream.post(pair.first, request("hangs please", background=True)) as stream:
        stream.until('"e"')
        assert call(pair.second, "DELETE", f"{RESPONSES}/{stream.id}").status == 200
        assert [get(server, stream.id).status for server in pair.both] == [404, 404]
        assert check(stream.rest()).status == "cancelled"
    wait_for(pair.first.settled, "nothing runs")
    assert commands(pair.first)[-1] == "STOP"
    assert stream.id not in kept_ids(pair.file)


def test_a_foreground_one_that_was_deleted_at_the_second_goes_on_for_its_client_only(pair: Pair) -> None:
    with Stream.post(pair.first, request("gated please")) as stream:
        stream.until('"n"')
        with Stream.resume(pair.second, stream.id) as reader:
            wait_for(lambda: text_of(read(pair.second, stream.id)) == "On", "the second sees what was made")
            reader.until('"n"')
            assert call(pair.second, "DELETE", f"{RESPONSES}/{stream.id}").status == 200
            assert get(pair.second, stream.id).status == 404
            while reader.next() is not None:
                pass
            assert reader.cut, "nobody knows here how it ends: that is no ending"
        cue(pair.first, "gate")
        ending = check(stream.rest())
        assert (ending.status, ending.texts) == ("completed", ["One"])
    wait_for(lambda: get(pair.first, stream.id).status == 404, "it is forgotten where it was made, too")
    assert stream.id not in kept_ids(pair.file)


def test_a_stored_chat_is_read_and_deleted_at_the_other_one(pair: Pair) -> None:
    made = make(pair.first, chat(content="fine please", stream=False, store=True), CHATS).json
    kept = read_chat(pair.second, made["id"])
    assert (kept["choices"], kept["usage"]) == (made["choices"], made["usage"])
    assert call(pair.second, "DELETE", f"{CHATS}/{made['id']}").status == 200
    assert call(pair.first, "GET", f"{CHATS}/{made['id']}").status == 404


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX: the server is killed by a signal")
def test_when_one_is_killed_the_other_tells_the_truth_about_its_records_and_keeps_its_own(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        pair = start(stack, server_command, tmp_path)
        victim, living = pair.both
        finished = make(victim, request("fine please")).json
        lost, mine = (
            stack.enter_context(Stream.post(server, request(what, background=True)))
            for server, what in ((victim, "hangs please"), (living, "gated please"))
        )
        lost.until('"e"')
        mine.until('"n"')
        waiting = make(victim, request("hangs please", background=True)).json
        reader = stack.enter_context(Stream.resume(living, lost.id))
        reader.until('"e"')  # so it is on disk
        victim.process.kill()
        victim.process.wait(10)
        ending = check(reader.rest())
        assert ending.error is not None
        assert (ending.status, ending.error["code"], ending.texts) == ("failed", "server_lost", ["One"])
        assert ending.response == read(living, lost.id) == check(replay(living, lost.id)).response
        assert (read(living, waiting["id"])["status"], read(living, waiting["id"])["output"]) == ("failed", [])
        assert cancel(living, lost.id) == ending.response
        assert read(living, finished["id"]) == finished
        assert read(living, mine.id)["status"] == "in_progress"
        cue(living, "gate")
        assert check(mine.rest()).status == "completed"
        assert text_of(ended(living, mine.id)) == "One"
        for id_ in (lost.id, finished["id"]):
            assert call(living, "DELETE", f"{RESPONSES}/{id_}").status == 200
        assert sorted(kept_ids(pair.file)) == sorted([mine.id, waiting["id"]])
