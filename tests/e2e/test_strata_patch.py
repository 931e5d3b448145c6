"""The patched server really runs: a small checkout before the patch and after it, over the fake engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.fake.launch import executable
from tests.e2e.client import ask, chat
from tests.e2e.promise_cases import PROMISES
from tests.e2e.promises import Promise, Site, chat_ending, failed, judge, table

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "tests" / "small_strata"
OURS = [one for one in PROMISES if one.patch]

pytestmark = pytest.mark.timeout(600)  # every promise, twice; a busy machine takes minutes for it

RECOVERY = r"""
import json, unittest, urllib.request
from pathlib import Path
from serve.server import ByteTokenizer, ChatTemplate, Service, StrataEngine, serve

class Recovery(unittest.TestCase):
    def test_stream(self):
        here = Path(__file__).parents[1]
        engine = StrataEngine(json.loads((here / "exe.json").read_text("utf-8")), [str(here / "script.json")])
        self.addCleanup(engine.close)
        http = serve(Service(engine, ByteTokenizer(), ChatTemplate(here)), port=0)
        self.addCleanup(http.server_close); self.addCleanup(http.shutdown)
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
        url = f"http://127.0.0.1:{http.server_address[1]}/v1/chat/completions"
        with urllib.request.urlopen(url, body, timeout=60) as answer:
            text = answer.read().decode()
        self.assertIn('"error"', text);self.assertTrue(text.rstrip().endswith('data: [DONE]'))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout of the small server."""
    made = tmp_path / "checkout"
    shutil.copytree(SMALL / "serve", made / "serve", ignore=shutil.ignore_patterns("__pycache__"))
    return made


def patch(tree: Path, option: str) -> int:
    words = [sys.executable, "-m", "tools.strata_patch", str(tree), option]
    return subprocess.run(words, cwd=ROOT, capture_output=True, timeout=300, check=False).returncode


def judged(tree: Path, folder: Path, promises: list[Promise]) -> dict[str, str]:
    with Site(tree, folder) as site:
        return {one.id: judge(one, site).state for one in promises}


def test_the_patch_makes_a_broken_ending_whole_and_breaks_nothing(tree: Path, tmp_path: Path) -> None:
    before = judged(tree, tmp_path / "before", PROMISES)
    assert {before[one.id] for one in OURS} == {"broken"}
    assert "kept" in before.values()
    assert "not there" in before.values()
    assert patch(tree, "--apply") == 0
    after = judged(tree, tmp_path / "after", PROMISES)
    assert {one.id: after[one.id] for one in PROMISES if one.patch} == {one.id: "kept" for one in OURS}
    for one in PROMISES:
        assert one.patch or after[one.id] == before[one.id], one.id


def test_a_beat_before_the_failure_does_not_hide_the_streams_id(tree: Path, tmp_path: Path) -> None:
    """The small server beats each second while its engine is silent, and an engine that is silent dies at last."""
    patch(tree, "--apply")
    with Site(tree, tmp_path / "site") as site:
        answer = ask(site.quick.port, chat(content="silent-now"))
    assert b": keep-alive" in answer.body
    assert len({(one["id"], one["created"]) for one in failed(answer).chunks}) == 1


def test_a_client_that_leaves_stops_the_stream_of_a_patched_server(tree: Path, tmp_path: Path) -> None:
    from tests.e2e.client import Connection

    patch(tree, "--apply")
    with Site(tree, tmp_path / "site") as site:
        with Connection(site.patient.port) as connection:
            connection.post("/v1/chat/completions", chat(content="hold-the-turn"))
            connection.until(b'"H"')
        site.patient.cue("free")
        assert chat_ending(ask(site.patient.port, chat(content="tell-all"))).finish == "stop"


def test_the_recovery_test_of_a_checkout_asks_for_what_the_patch_brings(tree: Path) -> None:
    script: dict[str, Any] = {"requests": [[{"text": "He"}, {"exit": 7}]]}
    (tree / "exe.json").write_text(json.dumps(str(executable(tree))), encoding="utf-8")
    (tree / "script.json").write_text(json.dumps(script), encoding="utf-8")
    test = tree / "serve" / "test_fatal_recovery.py"
    test.write_text(RECOVERY, encoding="utf-8")

    def passes() -> bool:
        words = [sys.executable, "-m", "unittest", "serve.test_fatal_recovery"]
        done = subprocess.run(words, cwd=tree, capture_output=True, timeout=300, check=False)
        assert b"Ran 1 test" in done.stderr, done.stderr
        return done.returncode == 0

    server = (tree / "serve" / "server.py").read_bytes()
    assert passes()
    assert patch(tree, "--apply") == 0
    assert '"finish_reason": "error"' in test.read_text(encoding="utf-8")
    assert passes()
    (tree / "serve" / "server.py").write_bytes(server)  # without the patch the new assertion fails
    assert not passes()


def test_the_table_says_each_promise_with_its_state_and_evidence(tmp_path: Path) -> None:
    shown = PROMISES[:2] + OURS[:1]
    shutil.copytree(SMALL / "serve", tmp_path / "tree" / "serve")
    with Site(tmp_path / "tree", tmp_path / "site") as site:
        lines = table([judge(one, site) for one in shown])
    assert lines[1] == "chat"
    assert lines[2].startswith("  kept        a finished answer says stop")
    assert lines[3].strip() == "(stop in both modes)"
    assert any(line.startswith("  broken    * EngineDied") for line in lines)
    assert lines[-1].startswith("2 kept, 1 broken, 0 not there; of those that tools.strata_patch is for (*) 0 of 1")


def test_a_tree_whose_server_does_not_start_is_told_with_its_words(tree: Path, tmp_path: Path) -> None:
    (tree / "serve" / "server.py").write_text("raise SystemExit('no engine here')\n", encoding="utf-8")
    with Site(tree, tmp_path / "site") as site:
        for one in PROMISES[:2]:
            with pytest.raises(AssertionError, match="no engine here"):
                judge(one, site)


def test_a_checkout_whose_server_does_not_start_is_told_once_with_its_words_and_its_python(tree: Path) -> None:
    (tree / "serve" / "server.py").write_text("import a_package_of_that_app\n", encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/e2e/test_promises.py"]
    done = subprocess.run([*words, "--server-root", str(tree)], cwd=ROOT, capture_output=True, timeout=300, check=False)
    said = done.stdout.decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace")
    assert done.returncode == 2, said
    assert said.count("No module named 'a_package_of_that_app'") == 1, said
    assert f"its Python: {sys.executable}" in said
    assert "FAILED" not in said
