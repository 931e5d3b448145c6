"""The soak on our own server: streams of all lengths over the four APIs, clients that leave, kills and stalls of the
engine. Every stream ends and tells the truth, nothing leaks, nobody is left. Ends by counts: the minutes are a bound.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SCRIPT = {
    "context": 8192,
    "requests": [[{"text": "word after word. ", "pace_s": 0.002, "repeat": 100}]],
    "then": "repeat",
}
LIMIT_S = 570
APIS = {"chat", "completions", "responses", "messages"}


def soak(folder: Path, server: str, *options: str) -> tuple[dict[str, Any], str]:
    """Run it; the report, and what it said. The exit status is that of a truthful server."""
    command = [sys.executable, "-m", "tools.soak", "--serve", server, "--report", str(folder / "report")]
    done = subprocess.run(
        [*command, "--minutes", "8", "--seed", "11", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
    )
    said = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, said + done.stderr.decode("utf-8", "replace")
    return json.loads((folder / "report" / "report.json").read_text(encoding="utf-8")), said


def endings(report: dict[str, Any]) -> Counter[str]:
    made = Counter[str]()
    for counts in report["streams"].values():
        made.update(counts)
    return made


@pytest.mark.timeout(LIMIT_S + 10)
def test_soak_of_the_server_over_the_fake_engine_is_truthful(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SCRIPT), encoding="utf-8")
    words = ["--engine", "fake", "--script", str(script), "--silence-s", "1", "--store", str(tmp_path / "store.db")]
    server = subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
    options = ("--streams", "150", "--clients", "6", "--max-tokens", "150", "--kills", "4", "--stalls", "3")
    report, said = soak(tmp_path, server, *options, "--stall-s", "2", "--leave", "0.2")
    assert "seed 11" in said
    assert report["truthful"] and report["verdict"] == "truthful"
    assert set(report["streams"]) == APIS
    seen = endings(report)
    assert set(seen) <= {"whole", "failed", "left", "refused"}
    assert seen["whole"] > 50 and seen["failed"] >= 1 and seen["left"] >= 5
    assert Counter((fault["kind"], fault["error"]) for fault in report["faults"]) == {
        ("kill", None): 4,
        ("stall", None): 3,
    }
    assert all(fault["mid_answer"] for fault in report["faults"])
    assert any(fault["endings"].get("failed") for fault in report["faults"] if fault["kind"] == "kill")
    judged = {series["name"] for series in report["series"] if series["why"] != "too short to say"}
    assert judged >= {"server memory", "server threads", "server descriptors", "processes"}
    assert all("running" in sample for sample in report["samples"])
    assert (tmp_path / "report" / "soak.png").read_bytes().startswith(b"\x89PNG")
    assert re.search("<h1>Soak: <span class=good>truthful", (tmp_path / "report" / "report.html").read_text("utf-8"))


@pytest.mark.llama
@pytest.mark.timeout(LIMIT_S + 10)
def test_soak_of_the_server_over_a_real_model_is_truthful(tmp_path: Path) -> None:
    options = ("--streams", "16", "--clients", "2", "--max-tokens", "24", "--prompt-words", "40")
    report, _ = soak(tmp_path, "--store none", *options, "--kills", "1", "--stalls", "1", "--stall-s", "1")
    assert set(report["streams"]) == APIS
    assert endings(report)["whole"] >= 4
    assert [fault["error"] for fault in report["faults"]] == [None] * 2
    assert any(series["name"] == "engine memory" for series in report["series"])
