"""The checks of `tools.conform` on real servers: ours passes all that apply, over a pipe engine and over llama.cpp;
llama.cpp's own server is told what it does.
"""

from __future__ import annotations

import json
import re
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
RUN_S = 500
"""A limit for what hangs; the longest takes a minute on an idle machine."""
KEY = "key-of-the-tests"
Json = dict[str, Any]
Cells = dict[str, str]
END: tuple[Json, ...] = ({"end_token": True}, {"done": "stop"})
CALL = "<parameter=path>\na.txt\n</parameter>\n<parameter=content>\n"
WORDS: Json = {"text": "one two three ", "repeat": 200}


def engine(slow: Json) -> Json:
    """An engine that gives every occasion. `slow`: what it says where it has a long time."""
    saved = "Hm.</think>It is saved, as you said, word for word."
    answers: dict[str, list[Json]] = {
        "The file is saved": [{"text": saved}, *END],
        "Save the word": [{"text": CALL + "hello\n</parameter>\n</function>\n</tool_call>"}, *END],
        "lighthouse": [{"text": CALL}, slow],
        "JSON object": [{"text": '</think>{"numbers": ['}, {"text": '"one", ', "repeat": 200}],
        "from 1 to 2000": [{"text": "</think>"}, slow],
        "hello in one word": [{"text": "Hm.</think>Hello."}, *END],
    }
    return {"batch_slots": 2, "requests": [{"match": text, "steps": steps} for text, steps in answers.items()]}


HALTS = "heartbeats,stalled-*"
GOING = re.compile(r"\d+ s: [\w/-]+, \d+ of \d+")
"""The line that tells how far it is, where there is no terminal."""
TIMES = ("--heartbeat-s", "0.2", "--queue-grace-s", "0.1", "--queue-max", "4")


def judged(port: int, folder: Path, *words: str) -> tuple[int, Cells]:
    """The exit status, and the result of each check, with its text."""
    path = folder / "score.json"
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tools.conform", url, "--json", str(path), *words]
    done = subprocess.run(command, capture_output=True, timeout=RUN_S)
    strange = [line for line in done.stderr.decode(errors="replace").splitlines() if not GOING.fullmatch(line)]
    assert not strange, strange
    checks = json.loads(path.read_text(encoding="utf-8"))["checks"]
    told = {f"{check['id']}/{check['api']}": f"{check['result']}: {check['text']}".strip() for check in checks}
    return done.returncode, told


def others(cells: Cells, *starts: str) -> Cells:
    """Those whose result does not begin so."""
    return {name: text for name, text in cells.items() if not text.startswith(starts)}


def pid_of(port: int) -> str:
    with Connection(port) as connection:
        connection.get("/status", f"Authorization: Bearer {KEY}")
        return str(connection.answer().json["engine"]["pid"])


@pytest.mark.timeout(RUN_S)
def test_ours_passes_every_check_over_a_pipe_engine_that_is_killed(
    fake: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    """A long answer goes on for ten seconds: it is never over before it is left, or its engine killed."""
    server = fake(engine({**WORDS, "pace_s": 0.01}), "--api-key", KEY, *TIMES)
    words = ["--api-key", KEY, "--engine-pid", pid_of(server.port), "--quiet-s", "20", "--free-s", "20"]
    status, cells = judged(server.port, tmp_path, *words, "--flood", "12", "--skip", HALTS)
    assert others(cells, "passed") == {}
    assert status == 0


@pytest.mark.long  # an engine that stands still in each API: a minute of waiting each
@pytest.mark.timeout(RUN_S)
@pytest.mark.parametrize("api", ["chat", "completions", "responses", "messages"])
def test_ours_passes_every_check_over_a_pipe_engine_that_is_halted(
    api: str, fake: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = fake(engine({**WORDS, "pace_s": 0.005}), "--api-key", KEY, *TIMES, "--silence-s", "30")
    words = ["--api-key", KEY, "--engine-pid", pid_of(server.port), "--quiet-s", "20", "--give-up-s", "30"]
    only = ",".join(f"{name}/{api}" for name in HALTS.split(","))
    status, cells = judged(server.port, tmp_path, *words, "--only", only)
    assert len(cells) == 5
    assert others(cells, "passed") == {}
    assert status == 0


CUT_ONES = "limit-stream,limit-body,usage-limit,cut-items,cut-json"
KILLED_ONES = "faults/chat,faults/responses,stored-agrees,resumes"
NOT_HERE = f"{HALTS},killed-call,killed-body-*"
"""The model makes no calls, and no answer that lasts for sure."""


@pytest.mark.llama
@pytest.mark.timeout(RUN_S)
def test_ours_passes_every_check_that_applies_over_llama(server_command: tuple[str, ...], tmp_path: Path) -> None:
    with ServerProcess(server_command, ["--parallel", "2", *TIMES], tmp_path) as server:
        words = ["--engine-pid", str(server.engine_process().pid), "--quiet-s", "1"]
        status, cells = judged(server.port, tmp_path, *words, "--only", f"{CUT_ONES},{KILLED_ONES}", "--skip", NOT_HERE)
        wait_for(server.settled, "nothing runs")
    assert others(cells, "passed", "not seen") == {}
    assert status == 0
    for api in ("chat", "responses", "messages"):
        for check in ("limit-stream", "limit-body", "usage-limit"):
            assert cells[f"{check}/{api}"] == "passed:"
    for api in ("chat", "responses"):
        assert cells[f"killed-no-success/{api}"] == cells[f"killed-told/{api}"] == "passed:"


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
@pytest.mark.timeout(RUN_S)
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
