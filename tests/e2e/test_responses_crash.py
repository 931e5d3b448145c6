"""The server is killed (-9) at any moment: afterwards every record can be read, and none lies."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.e2e.crash import KINDS, Client, Hiccups, check_client, check_record, newest
from tests.e2e.kept import END, Json, kept_ids, rules
from tests.e2e.server import ServerProcess, fake_server, wait_for

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX: the server is killed by a signal")

SEED = int(os.environ["STRATA_TEST_SEED"])
"""Stands in the test's name; the variable makes the same moments again."""
STORY = "".join(f"{number:04d} " for number in range(2_000))
SHORT = "Short."
SCRIPT: Json = {
    **rules(story=[{"text": STORY, "pace_s": 0.004}, *END], short=[{"text": SHORT}, *END]),
    "batch_slots": 4,
    "context": 100_000,
}
STORY_EVENTS = 2_500
SHORT_ANSWERS = 60
THREADS = 4


class Rounds:
    """Servers on one file, one after the other, each killed in mid-work. The next one is asked what the records say."""

    def __init__(self, command: tuple[str, ...], folder: Path, seed: int) -> None:
        self._command = command
        self._folder = folder
        self._random = random.Random(seed)
        self._seen: set[str] = set()
        self._server: ServerProcess | None = None
        self.needed = 0
        """Characters that had to be there, over all rounds."""
        self.slack_s = 0.0
        self.records = 0

    def start(self, stack: ExitStack) -> ServerProcess:
        server = stack.enter_context(fake_server(self._command, SCRIPT, self._folder, "--drain-s", "0.1"))
        self._server = server
        return server

    def kill(self, server: ServerProcess) -> float:
        """Kill it; when that was. Its engine goes, too."""
        engines = psutil.Process(server.process.pid).children(recursive=True)
        killed_s = time.monotonic()
        server.process.kill()
        server.process.wait(10)
        wait_for(lambda: not any(_lives(engine) for engine in engines), "the engine is gone")
        return killed_s

    def story(self, stack: ExitStack) -> None:
        """Kill in the middle of several long answers; one more waits."""
        server = self._server or self.start(stack)
        clients = [Client(kind, "story please") for kind in self._random.sample(KINDS, len(KINDS))]
        enough = self._random.randrange(0 if self.records else STORY_EVENTS - 500, STORY_EVENTS)
        with Hiccups() as hiccups:
            threads = [_thread(client.run, server) for client in clients]
            wait_for(lambda: sum(len(client.got) for client in clients) >= enough, f"{enough} events", 60)
            killed_s = self.kill(server)
            _join(threads)
        slack_s = 2 * hiccups.worst_s
        self.slack_s = max(self.slack_s, slack_s)
        server = self.start(stack)
        self._check_all(server, STORY)
        for client in clients:
            if client.id is not None:
                assert client.id in self._seen, "it was promised to be kept"
                self.needed += len(check_client(server, client, STORY, killed_s, slack_s))

    def shorts(self, stack: ExitStack) -> None:
        """Kill while short answers end all the time."""
        server = self._server or self.start(stack)
        clients: list[Client] = []
        over = threading.Event()

        def loop(first: int) -> None:
            while not over.is_set():
                client = Client(KINDS[(first + len(clients)) % len(KINDS)], "short please")
                clients.append(client)
                client.run(server)

        enough = self._random.randrange(THREADS, SHORT_ANSWERS)
        threads = [_thread(loop, first) for first in range(THREADS)]
        wait_for(lambda: len(clients) >= enough, f"{enough} answers", 60)
        killed_s = self.kill(server)
        over.set()
        _join(threads)
        server = self.start(stack)
        self._check_all(server, SHORT)
        for client in clients:
            if client.id is not None:
                assert client.id in self._seen, "it was promised to be kept"
                check_client(server, client, SHORT, killed_s, 60.0)

    def _check_all(self, server: ServerProcess, whole_text: str) -> None:
        for id_ in newest(kept_ids(self._folder / "store.db"), self._seen):
            check_record(server, id_, whole_text)
            self.records += 1
        assert len(list(self._folder.glob("store.db.owner-*"))) == 1, "signs of life of servers that are gone"


def _thread(target: object, *args: object) -> threading.Thread:
    assert callable(target)
    made = threading.Thread(target=target, args=args, daemon=True)
    made.start()
    return made


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a client waits for a server that is gone"


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_many(command: tuple[str, ...], folder: Path, seed: int, kills: int) -> None:
    with ExitStack() as stack:
        rounds = Rounds(command, folder, seed)
        for number in range(kills):
            rounds.shorts(stack) if number % 2 else rounds.story(stack)
        assert rounds.needed > 0 or rounds.slack_s > 1.0, "no answer ran long enough to have something on disk"
        assert rounds.records >= 2 * kills


@pytest.mark.parametrize("seed", [SEED])
def test_a_server_that_is_killed_leaves_records_that_can_be_read_and_do_not_lie(
    server_command: tuple[str, ...], tmp_path: Path, seed: int
) -> None:
    kill_many(server_command, tmp_path, seed, 8)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", [SEED])
def test_a_hundred_kills_and_no_record_lies(server_command: tuple[str, ...], tmp_path: Path, seed: int) -> None:
    kill_many(server_command, tmp_path, seed, 100)
