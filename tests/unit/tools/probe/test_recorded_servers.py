"""The checkers on answers that real servers have given: they are read, and told for what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scripted_upstream import Peer, ScriptedUpstream
from tools import check_responses, check_stream

RECORDINGS = Path(__file__).with_name("recordings")

STREAMS: dict[str, tuple[int, str, str, str, set[str]]] = {
    "llama.cpp-chat-cut": (0, "chat", "truthful", "length", set()),
    "llama.cpp-messages-cut": (0, "messages", "truthful", "max_tokens", set()),
    "llama.cpp-responses-cut-true": (
        1, "responses", "broken format", "completed",
        {"no-sequence-number", "delta-without-item", "success-at-limit"}),
    "llama.cpp-responses-whole-true": (
        1, "responses", "broken format", "completed", {"no-sequence-number", "delta-without-item"}),
    "vllm-chat-cut": (0, "chat", "truthful", "length", set()),
    "vllm-completions-whole": (0, "completions", "truthful", "stop", set()),
    "vllm-messages-cut": (0, "messages", "truthful", "max_tokens", set()),
    "vllm-responses-cut-true": (
        1, "responses", "lie", "completed", {"status-contradicts", "success-at-limit"}),
    "vllm-responses-whole-true": (0, "responses", "truthful", "completed", set()),
}  # fmt: skip
"""Status, API, verdict, finish, findings that are no notes."""


@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_stream_is_told_for_what_it_is(name: str, tmp_path: Path) -> None:
    status, api, verdict, finish, findings = STREAMS[name]
    limit = "512" if "whole" in name else "16" if "responses" in name else "6"
    argv = ["--from-file", str(RECORDINGS / f"{name}.raw"), "--max-tokens", limit, "--json", str(tmp_path / "a")]
    assert check_stream.main(argv) == status
    (report,) = json.loads((tmp_path / "a").read_bytes())["streams"]
    assert (report["api"], report["verdict"], report["finish"]) == (api, verdict, finish), report
    assert report["end"] in ("terminator", "length")
    assert {finding["id"] for finding in report["findings"] if finding["kind"] != "note"} == findings


def test_every_recording_is_looked_at() -> None:
    bodies = {path.stem for path in RECORDINGS.glob("*-false.raw")}
    assert {path.stem for path in RECORDINGS.glob("*.raw")} == set(STREAMS) | bodies
    for stem in bodies:
        assert check_stream.main(["--from-file", str(RECORDINGS / f"{stem}.raw")]) == 2, "no stream"


@pytest.mark.parametrize(
    ("server", "affected"),
    [("llama.cpp", ["truncated text", "truncated text, streamed"]), ("vllm", ["truncated text, streamed"])],
)
def test_a_recorded_server_is_affected_where_it_lies(server: str, affected: list[str], tmp_path: Path) -> None:
    def replay(peer: Peer) -> None:
        body = peer.request.json
        kind = "whole" if "hello" in str(body["input"]) else "cut"
        streamed = str(body["stream"]).lower()
        peer.send((RECORDINGS / f"{server}-responses-{kind}-{streamed}.raw").read_bytes())

    with ScriptedUpstream(replay) as upstream:
        status = check_responses.main([upstream.url, "--no-tools", "--json", str(tmp_path / "a")])
    items = json.loads((tmp_path / "a").read_bytes())["items"]
    assert status == 1
    assert [item["id"] for item in items if item["verdict"] == "AFFECTED"] == affected, items
    assert {item["verdict"] for item in items if item["id"] not in affected} == {"OK"}
