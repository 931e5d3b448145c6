"""The store cannot be written for a time: what promised to be kept fails and says so, all else goes on, and nothing
lies when it can be written again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from tests.e2e.client import Answer, chat
from tests.e2e.grammar import check_chat_stream
from tests.e2e.kept import (
    CHATS,
    END,
    RESPONSES,
    TOOLS,
    Json,
    Steps,
    Stream,
    call,
    calm,
    check,
    commands,
    cue,
    ended,
    file_of,
    kept_ids,
    make,
    opened,
    read,
    replay,
    request,
    rules,
    text_of,
    uncue,
)
from tests.e2e.server import ServerProcess, fake_server, wait_for

GATED: Steps = [{"text": "On"}, {"cue": "gate"}, {"text": "e"}, *END]
HELD = "One <tool_call>\n<func"
HOLDS: Steps = [{"text": HELD}, {"cue": "gate"}, {"stall": True}]
GOES_ON: Steps = [{"text": "One "}, {"cue": "gate"}, {"text": "two ", "pace_s": 0.02, "repeat": 1_000}, *END]
SCRIPT: Json = {**rules(gated=GATED, holds=HOLDS, goes_on=GOES_ON, fine=[{"text": "fine"}, *END]), "batch_slots": 8}

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux: limits of another process can be set")


@pytest.fixture(scope="module")
def shared(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("unwritable"), "--drain-s", "0.1") as made:
        yield made


@pytest.fixture
def server(shared: ServerProcess) -> Iterator[ServerProcess]:
    uncue(shared, "gate")
    yield shared
    calm(shared)


@contextmanager
def full_disk(server: ServerProcess) -> Generator[None]:
    """The server can write no more into any file."""
    process = psutil.Process(server.process.pid)
    soft, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def locked(server: ServerProcess) -> Generator[None]:
    """Another program holds the file's lock."""
    with opened(file_of(server)) as link:
        link.execute("BEGIN EXCLUSIVE")
        yield


def promising() -> list[tuple[str, Json]]:
    """Requests whose answers are to be kept, each as (path, body)."""
    made = [
        (RESPONSES, request("fine please", stream=stream, background=background))
        for stream in (False, True)
        for background in (False, True)
    ]
    return [*made, *((CHATS, chat(content="fine please", stream=stream, store=True)) for stream in (False, True))]


def check_refused(answer: Answer) -> None:
    """500 before the headers of a stream, with the cause."""
    assert answer.status == 500, answer.body
    error = answer.json["error"]
    assert (error["type"], error["code"]) == ("server_error", "store_failed")
    assert "could not be saved" in error["message"]


def check_unkept_works(server: ServerProcess) -> None:
    made = make(server, request("fine please", store=False)).json
    assert (made["status"], text_of(made)) == ("completed", "fine")
    with Stream.post(server, request("fine please", store=False)) as stream:
        assert check(stream.rest()).texts == ["fine"]
    assert check_chat_stream(make(server, chat(content="fine please"), CHATS)).content == "fine"


def check_kept_again(server: ServerProcess, before: list[str], more: list[str]) -> None:
    """It is written again, and nothing of what was refused is there."""
    kept = make(server, request("fine please")).json
    assert read(server, kept["id"]) == kept
    assert kept_ids(file_of(server)) == [*before, *more, kept["id"]]


def on_disk(server: ServerProcess, id_: str) -> bool:
    """Whether the record's end is."""
    with opened(file_of(server)) as link:
        query = "SELECT 1 FROM records WHERE id = ? AND ended_at IS NOT NULL"
        return link.execute(query, (id_,)).fetchone() is not None


@linux
def test_on_a_full_disk_promises_are_refused_and_all_else_works(server: ServerProcess) -> None:
    kept = make(server, request("fine please")).json
    before = kept_ids(file_of(server))
    with full_disk(server):
        for path, body in promising():
            check_refused(make(server, body, path))
        check_unkept_works(server)
        assert read(server, kept["id"]) == kept
        assert call(server, "DELETE", f"{RESPONSES}/{kept['id']}").status == 500
        assert read(server, kept["id"]) == kept
        go_on = request("fine please", store=False, previous_response_id=kept["id"])
        assert make(server, go_on).json["status"] == "completed"
    check_kept_again(server, before, [])
    assert call(server, "DELETE", f"{RESPONSES}/{kept['id']}").status == 200


@linux
@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
@pytest.mark.parametrize(
    ("what", "text"),
    [("gated", "One"), ("goes-on", "One " + "two " * 1_000), ("holds", HELD)],
    ids=["at-its-end", "in-text", "held"],
)
def test_a_disk_that_fills_up_fails_a_running_stream_and_its_record_says_the_same(
    server: ServerProcess, what: str, text: str, background: bool
) -> None:
    before = kept_ids(file_of(server))
    with Stream.post(server, request(f"{what} please", background=background, tools=TOOLS)) as stream:
        stream.until("delta")
        with full_disk(server):
            cue(server, "gate")
            ending = check(stream.rest())
            assert ending.error is not None
            assert (ending.status, ending.error["code"]) == ("failed", "store_failed")
            made = ending.response["usage"]["output_tokens"]
            assert ending.texts == [text[:made]], "not all that was made"
            assert read(server, stream.id) == ending.response
            check_unkept_works(server)
        wait_for(lambda: on_disk(server, stream.id), "the ending is written")
    check_kept_again(server, before, [stream.id])
    assert read(server, stream.id) == ending.response
    assert [event.raw for event in replay(server, stream.id)] == [event.raw for event in stream.seen]


@linux
def test_a_disk_that_fills_up_fails_a_body_with_what_was_made(server: ServerProcess) -> None:
    before = kept_ids(file_of(server))
    answers: list[Answer] = []
    with ExitStack() as stack:
        thread = threading.Thread(target=lambda: answers.append(make(server, request("gated please"))))
        thread.start()
        wait_for(lambda: len(kept_ids(file_of(server))) == len(before) + 1, "it is kept")
        (id_,) = kept_ids(file_of(server))[len(before) :]
        wait_for(lambda: text_of(read(server, id_)) == "On", "half of it is made")
        stack.enter_context(full_disk(server))
        cue(server, "gate")
        thread.join(20)
        (answer,) = answers
        check_refused(answer)
        error = answer.json["error"]
        assert (error["partial_output"], error["response_id"], error["usage"]["completion_tokens"]) == ("One", id_, 4)
    wait_for(lambda: on_disk(server, id_), "the ending is written")
    kept = read(server, id_)
    assert (kept["status"], text_of(kept)) == ("failed", "One")


@linux
def test_a_stored_chat_fails_on_a_full_disk_and_its_record_says_the_same(server: ServerProcess) -> None:
    with Stream(server.port) as stream:
        stream.connection.post(CHATS, chat(content="gated please", store=True))
        stream.until('"n"')
        with full_disk(server):
            cue(server, "gate")
            closing = stream.rest()[-2].json
            id_ = closing["id"]
        wait_for(lambda: on_disk(server, id_), "the ending is written")
    assert closing["choices"][0]["finish_reason"] == "error"
    assert closing["error"]["code"] == "store_failed"
    kept = call(server, "GET", f"{CHATS}/{id_}").json
    assert (kept["choices"][0]["finish_reason"], kept["error"]) == ("error", closing["error"])
    assert kept["choices"][0]["message"]["content"] == "One"


def test_a_file_that_another_program_locks_fails_promises_in_bounded_time_and_all_else_works(
    server: ServerProcess,
) -> None:
    before = kept_ids(file_of(server))
    with Stream.post(server, request("goes-on please", background=True)) as running:
        running.until('" "')
        stops = commands(server).count("BSTOP")
        with locked(server):
            cue(server, "gate")
            answers: list[Answer] = []
            thread = threading.Thread(target=lambda: answers.append(make(server, request("fine please", stream=True))))
            thread.start()
            check_unkept_works(server)
            assert read(server, running.id)["status"] == "in_progress"
            wait_for(lambda: commands(server).count("BSTOP") > stops, "the running one is ended")
            thread.join(20)
        check_refused(*answers)
        ending = check(running.rest())
        assert ending.error is not None
        assert (ending.status, ending.error["code"]) == ("failed", "store_failed")
        assert "locked" in ending.error["message"]
        wait_for(lambda: on_disk(server, running.id), "the ending is written")
    check_kept_again(server, before, [running.id])
    assert ended(server, running.id) == ending.response
