"""The store as its options say: how long and how much is kept, files that cannot be used, and none at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.e2e.client import chat
from tests.e2e.grammar import check_chat_stream
from tests.e2e.kept import (
    CHATS,
    RESPONSES,
    Json,
    Stream,
    call,
    check,
    get,
    kept_ids,
    make,
    opened,
    read,
    request,
    rules,
    text_of,
)
from tests.e2e.server import fake_server, wait_for

FINE = rules(fine=[{"text": "fine"}])
EXIT_USAGE = 2
DAY_S = 86_400.0


def large(number: int) -> Json:
    """A request that takes a third of a MiB in the store, and not in the prompt."""
    image = {"type": "image_generation_call", "id": f"ig_{number}", "status": "completed", "result": "x" * 350_000}
    return {**request(), "input": [{"role": "user", "content": "fine please"}, image]}


def aged(file: Path, id_: str, days: float) -> None:
    """Let a record have ended so long ago."""
    with opened(file) as link:
        link.execute("UPDATE records SET ended_at = ended_at - ? WHERE id = ?", (days * DAY_S, id_))


def test_what_is_too_old_or_too_much_goes_the_oldest_first_and_what_runs_stays(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "store.db"
    with fake_server(server_command, FINE, tmp_path, "--store-max-days", "0.5") as server:
        made = [make(server, large(number)).json["id"] for number in range(7)]
        assert all(get(server, id_).status == 200 for id_ in made)
        aged(file, made[0], 0.6)
        aged(file, made[1], 0.4)
    hangs = rules(hangs=[{"text": "One"}, {"stall": True}], fine=[{"text": "fine"}])
    options = ("--store-max-days", "0.5", "--store-max-mib", "1", "--drain-s", "0.1")
    with fake_server(server_command, hangs, tmp_path, *options) as server:
        with Stream.post(server, request("hangs please", background=True)) as running:
            running.until('"e"')
            wait_for(lambda: len(kept_ids(file)) <= 3, "the oldest ones go")
            assert read(server, running.id)["status"] == "in_progress"
        left = kept_ids(file)
        assert left == [*made[len(made) - len(left) + 1 :], running.id], "not the oldest ones went"
        for id_ in made:
            assert get(server, id_).status == (200 if id_ in left else 404)
        assert call(server, "POST", f"{RESPONSES}/{running.id}/cancel").json["status"] == "cancelled"
    # what is in use is below the limit again; the file itself shrinks by and by
    with fake_server(server_command, FINE, tmp_path, "--store-max-days", "0.0000001") as server:
        wait_for(lambda: kept_ids(file) == [], "all are too old now")
        assert get(server, running.id).status == 404
        assert make(server, request("fine please")).status == 200


# --- files that cannot be used -----------------------------------------------------------------------


def newer(path: Path) -> None:
    with opened(path) as link:
        link.execute("PRAGMA user_version = 99")
        link.execute(f"PRAGMA application_id = {0x53747261}")


def foreign(path: Path) -> None:
    with opened(path) as link:
        link.execute("CREATE TABLE notes (text)")


def text(path: Path) -> None:
    path.write_text("my notes\n", encoding="utf-8")


def folder(path: Path) -> None:
    path.mkdir()


UNUSABLE = {newer: "newer version", foreign: "not a store", text: "not a store", folder: "not a store"}


def test_a_file_that_cannot_be_used_is_told_in_one_line_and_left_as_it_is(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    processes: list[tuple[Path, str, subprocess.Popen[bytes]]] = []
    for make_it, says in UNUSABLE.items():
        path = tmp_path / f"{make_it.__name__}.db"
        make_it(path)
        command = [*server_command, "--engine", "fake", "--script", "ok", "--port", "0", "--store", str(path)]
        pipe = subprocess.PIPE
        processes.append((path, says, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)))
    before = {path: path.read_bytes() for path, _, _ in processes if path.is_file()}
    for path, says, process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == EXIT_USAGE, err
        assert out == b""
        (line,) = err.decode().splitlines()
        assert line.startswith("strata-serve: store: ")
        assert says in line
        assert path.name in line
        assert "--store" in line, "no remedy"
        if path in before:
            assert path.read_bytes() == before[path]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path, _, _ in processes)


def test_without_a_store_nothing_is_kept_and_what_needs_one_is_refused(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    with fake_server(server_command, FINE, tmp_path, "--store", "none") as server:
        made = make(server, request("fine please")).json
        assert (made["status"], made["store"], text_of(made)) == ("completed", False, "fine")
        with Stream.post(server, request("fine please")) as stream:
            assert check(stream.rest()).response["store"] is False
        refused: list[tuple[str, Json, str]] = [
            (RESPONSES, request("fine please", store=True), "store"),
            (RESPONSES, request("fine please", background=True), "background"),
            (CHATS, chat(content="fine please", store=True), "store"),
        ]
        for path, body, param in refused:
            answer = make(server, body, path)
            assert (answer.status, answer.json["error"]["param"]) == (400, param)
            assert "--store none" in answer.json["error"]["message"]
        answer = get(server, made["id"])
        assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")
        assert "--store none" in answer.json["error"]["message"]
        assert check_chat_stream(make(server, chat(content="fine please"), CHATS)).content == "fine"
    assert list(tmp_path.glob("*.db*")) == []
