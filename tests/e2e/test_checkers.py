"""The checkers on real servers: ours passes in every API, with every ending; llama.cpp's own is told what it does."""

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
from tools import check_responses, check_stream
from tools.probe.target import APIS

LLAMA = Path(__file__).with_name("llama_server.py")
Json = dict[str, Any]
Start = Callable[..., ServerProcess]

END: tuple[Json, ...] = ({"end_token": True}, {"done": "stop"})
LONG: Json = {"text": "one\n", "repeat": 3000}
PATH = "<parameter=path>\nstory.txt\n</parameter>\n"
HONEST: Json = {
    "requests": [
        {"match": "lighthouse", "steps": [{"text": PATH + "<parameter=content>\n"}, LONG]},
        {"match": "Say hello", "steps": [{"text": "Hm.</think>Hello."}, *END]},
        {"match": "two thousand", "steps": [{"text": "Hm.</think>"}, LONG]},
    ]
}
"""An engine that always has more to say, but for the short text."""


def script(*steps: Json) -> Json:
    return {"requests": [list(steps)], "then": "repeat"}


def streamed(port: int, folder: Path, api: str, *words: str) -> tuple[int, Json]:
    argv = [f"http://127.0.0.1:{port}", "--api", api, "--json", str(folder / "a.json"), *words]
    status = check_stream.main(argv)
    (report,) = json.loads((folder / "a.json").read_text(encoding="utf-8"))["streams"]
    return status, report


def responses(port: int, folder: Path, *words: str) -> tuple[int, dict[str, str]]:
    status = check_responses.main([f"http://127.0.0.1:{port}", "--json", str(folder / "a.json"), *words])
    items = json.loads((folder / "a.json").read_text(encoding="utf-8"))["items"]
    return status, {item["id"]: item["verdict"] for item in items}


def test_our_responses_are_ok(fake: Start, tmp_path: Path) -> None:
    server = fake(HONEST)
    assert responses(server.port, tmp_path) == (0, dict.fromkeys(check_responses.CHECKS, "OK"))


WORDS = {"chat": "length", "completions": "length", "responses": "incomplete", "messages": "max_tokens"}


@pytest.mark.parametrize("api", APIS)
def test_our_streams_are_truthful_at_the_limit(api: str, fake: Start, tmp_path: Path) -> None:
    server = fake(HONEST)
    for words in ((), ("--tool-call",)) if api != "completions" else ((),):
        status, report = streamed(server.port, tmp_path, api, "--max-tokens", "300", *words)
        assert (status, report["verdict"], report["finish"]) == (0, "truthful", WORDS[api]), report
        assert report["findings"] == []
        assert (report["output_tokens"], report["tool_calls"]) == (300, len(words))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("death", [{"exit": 1}, {"err": "out of memory"}, {"line": "T twelve"}])
def test_our_streams_say_so_when_they_fail(death: Json, api: str, fake: Start, tmp_path: Path) -> None:
    server = fake(script({"text": "Hm.</think>one two"}, death))
    status, report = streamed(server.port, tmp_path, api)
    assert (status, report["verdict"]) == (0, "failed, and said so"), report
    assert report["error"]
    assert [finding for finding in report["findings"] if finding["kind"] != "note"] == []


BEATS = {
    "chat": "comment",
    "completions": "comment",
    "responses": "repeated in_progress",
    "messages": "ping event",
}


@pytest.mark.parametrize("api", APIS)
def test_our_heartbeats_are_told_by_kind_and_interval(api: str, fake: Start, tmp_path: Path) -> None:
    server = fake(script({"text": "Hm.</think>one"}, {"text": " tw", "pace_s": 1.2}, *END), "--heartbeat-s", "0.3")
    status, report = streamed(server.port, tmp_path, api)
    assert (status, report["verdict"]) == (0, "truthful"), report
    (beats,) = report["heartbeats"]
    assert beats["kind"] == BEATS[api]
    assert beats["count"] >= 2
    assert beats["mean_s"] > 0.2
    assert report["longest_silence_s"] > 0.25


def test_a_recording_by_the_checker_is_read_as_the_stream_was(fake: Start, tmp_path: Path) -> None:
    server = fake(HONEST)
    status, live = streamed(server.port, tmp_path, "messages", "--max-tokens", "50", "--save", str(tmp_path / "saved"))
    assert status == 0
    assert check_stream.main(["--from-file", str(tmp_path / "saved"), "--json", str(tmp_path / "b.json")]) == 0
    (saved,) = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))["streams"]
    same = ("api", "verdict", "finish", "marker", "end", "events", "pieces", "output_tokens", "bytes", "findings")
    assert {name: saved[name] for name in same} == {name: live[name] for name in same}


# --- a real model ------------------------------------------------------------------------------------


def _up(port: int) -> bool:
    """It answers 503 while it loads."""
    try:
        with Connection(port, 5.0) as connection:
            connection.get("/v1/models", "Connection: close")
            return connection.answer().status == 200
    except (OSError, AssertionError):
        return False


@pytest.fixture(scope="module")
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of llama.cpp's own server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    log = tmp_path_factory.mktemp("llama") / "log"
    command = [sys.executable, str(LLAMA), str(ensure_default_model()), str(port), "2"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            wait_for(lambda: process.poll() is not None or _up(port), "llama.cpp serves", 60)
            assert process.poll() is None, log.read_text("utf-8", "replace")
            yield port
        finally:
            process.kill()
            process.wait(20)


@pytest.mark.llama
@pytest.mark.timeout(300)
def test_llama_cpps_responses_are_affected_and_through_us_ok(
    llama_cpp: int, server_command: tuple[str, ...], tmp_path: Path
) -> None:
    status, verdicts = responses(llama_cpp, tmp_path)
    assert status == 1
    assert verdicts["truncated text"] == verdicts["truncated text, streamed"] == "AFFECTED"
    assert verdicts["truncated tool call"] == verdicts["truncated tool call, streamed"] == "AFFECTED"
    assert verdicts["whole text"] == verdicts["whole text, streamed"] == "OK"
    for more in ((), ("--upstream-api", "responses")):
        folder = tmp_path / f"ours{len(more)}"
        folder.mkdir()
        with ServerProcess(server_command, ["--upstream", f"http://127.0.0.1:{llama_cpp}", *more], folder) as server:
            status, verdicts = responses(server.port, tmp_path, "--no-tools")
            assert (status, set(verdicts.values())) == (0, {"OK"})


@pytest.mark.llama
def test_llama_cpps_own_streams_are_told_as_they_are(llama_cpp: int, tmp_path: Path) -> None:
    for api in ("chat", "messages"):
        status, report = streamed(llama_cpp, tmp_path, api, "--max-tokens", "40")
        assert (status, report["verdict"], report["finish"]) == (0, "truthful", WORDS[api]), report
        assert report["output_tokens"] == 40
        assert 0 < report["first_token_s"] < report["took_s"]
    status, report = streamed(llama_cpp, tmp_path, "responses", "--max-tokens", "40")
    assert (status, report["verdict"]) == (1, "lie")
    assert {"success-at-limit", "no-sequence-number"} <= {finding["id"] for finding in report["findings"]}
    status, report = streamed(llama_cpp, tmp_path, "completions", "--max-tokens", "40", "--prompt", "1, 2, 3, 4,")
    assert (status, report["finish"]) == (0, "length")
