"""The checks of `tools.conform` on real servers: ours passes all that apply, over a pipe engine and over llama.cpp;
llama.cpp's own server is told what it does.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.model import ensure_default_model
from tests.e2e.client import Connection
from tests.e2e.server import ServerProcess, wait_for

LLAMA = Path(__file__).with_name("llama_server.py")
RUN_S = 110
Json = dict[str, Any]
Cells = dict[str, str]
END: tuple[Json, ...] = ({"end_token": True}, {"done": "stop"})
CALL = "<parameter=path>\na.txt\n</parameter>\n<parameter=content>\n"
SLOW: Json = {"text": "one two three ", "repeat": 30, "pace_s": 0.005}
ENGINE: Json = {
    "batch_slots": 2,
    "requests": [
        {
            "match": "The file is saved",
            "steps": [{"text": "Hm.</think>It is saved, as you said, word for word."}, *END],
        },
        {"match": "Save the word", "steps": [{"text": CALL + "hello\n</parameter>\n</function>\n</tool_call>"}, *END]},
        {"match": "lighthouse", "steps": [{"text": CALL}, SLOW]},
        {"match": "JSON object", "steps": [{"text": '</think>{"numbers": ['}, {"text": '"one", ', "repeat": 400}]},
        {"match": "from 1 to 2000", "steps": [{"text": "</think>"}, SLOW]},
        {"match": "hello in one word", "steps": [{"text": "Hm.</think>Hello."}, *END]},
    ],
}
"""An engine that gives every occasion."""
TIMES = ("--heartbeat-s", "0.2", "--silence-s", "3", "--queue-grace-s", "0.1", "--queue-max", "4")


HALTS = ("heartbeats", "stalled-goes-on", "stalled-gives-up")
LEFT_OUT = [
    *("stalled-gives-up/responses", "cancel/completions", "queue/completions"),
    *(f"{name}/{api}" for name in HALTS for api in ("completions", "messages")),
]
"""Each takes seconds; what the other APIs do there shows the same."""


def judged(port: int, folder: Path, *words: str) -> tuple[int, Cells]:
    """The exit status, and the result of each check, with its text."""
    path = folder / "score.json"
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tools.conform", url, "--json", str(path), *words]
    done = subprocess.run(command, capture_output=True, timeout=RUN_S)
    assert not done.stderr, done.stderr.decode(errors="replace")
    checks = json.loads(path.read_text(encoding="utf-8"))["checks"]
    told = {f"{check['id']}/{check['api']}": f"{check['result']}: {check['text']}".strip() for check in checks}
    return done.returncode, told


def others(cells: Cells, *starts: str) -> Cells:
    """Those whose result does not begin so."""
    return {name: text for name, text in cells.items() if not text.startswith(starts)}


@pytest.mark.long  # on a busy machine an answer can be over before its engine is killed
def test_ours_passes_every_check_over_a_pipe_engine_that_is_killed_and_halted(
    fake: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = fake(ENGINE, "--api-key", "key-of-the-tests", *TIMES)
    with Connection(server.port) as connection:
        connection.get("/status", "Authorization: Bearer key-of-the-tests")
        pid = connection.answer().json["engine"]["pid"]
    words = ["--api-key", "key-of-the-tests", "--engine-pid", str(pid), "--quiet-s", "2", "--give-up-s", "3"]
    status, cells = judged(server.port, tmp_path, *words, "--flood", "12", "--skip", ",".join(LEFT_OUT))
    assert others(cells, "passed") == {}
    assert status == 0


CUT_ONES = "limit-stream,limit-body,usage-limit,cut-items,cut-json"
KILLED_ONES = "killed-no-success,killed-told,killed-closed,killed-output,killed-stored,recovers,stored-agrees,resumes"


@pytest.mark.llama
def test_ours_passes_every_check_that_applies_over_llama(server_command: tuple[str, ...], tmp_path: Path) -> None:
    with ServerProcess(server_command, ["--parallel", "2", *TIMES[:2]], tmp_path) as server:
        words = ["--engine-pid", str(server.engine_process().pid), "--quiet-s", "1"]
        status, cells = judged(server.port, tmp_path, *words, "--only", f"{CUT_ONES},{KILLED_ONES}")
        wait_for(server.settled, "nothing runs")
    assert others(cells, "passed", "not seen") == {}
    assert status == 0
    for api in ("chat", "responses", "messages"):
        for check in ("limit-stream", "limit-body", "usage-limit", "killed-no-success", "killed-told"):
            assert cells[f"{check}/{api}"] == "passed:"


@pytest.fixture
def llama() -> Iterator[int]:
    """llama.cpp's own server, as users start it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    command = [sys.executable, str(LLAMA), str(ensure_default_model()), str(port), "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: serves(port), "llama.cpp's server serves", 60)
            yield port
        finally:
            process.kill()


def serves(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1), Connection(port) as connection:
            connection.get("/health")
            return connection.answer().status == 200
    except OSError:
        return False


@pytest.mark.llama
def test_llama_cpp_itself_is_told_its_lies_and_passes_the_rest(llama: int, tmp_path: Path) -> None:
    """What it does near build 11549. Another build may do better: then this list is to be shortened."""
    status, cells = judged(llama, tmp_path, "--only", f"{CUT_ONES},error-told")
    failed = {name: text for name, text in cells.items() if text.startswith("failed")}
    assert status == 1
    assert failed["limit-stream/responses"] == "failed: 16 tokens, the limit, and it ended as 'completed'"
    assert failed["limit-body/responses"] == "failed: 16 tokens, the limit, and it ended as 'completed'"
    assert "no message where clients look" in failed["error-told/messages"]
    assert {name for name in failed if not name.endswith("/responses")} == {"error-told/messages"}
    for api in ("chat", "messages"):
        assert cells[f"limit-stream/{api}"] == cells[f"limit-body/{api}"] == "passed:"
