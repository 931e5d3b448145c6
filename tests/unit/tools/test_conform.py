"""The command: what it exits with, shows and writes, and that the key is in none of it."""

from __future__ import annotations

import json
import re
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.scripted_upstream import ScriptedUpstream, answer, head
from tests.unit.tools.conform_checks.edits import swap
from tests.unit.tools.conform_checks.honest import Honest, Lie, Reply
from tests.unit.tools.conform_checks.honest_engine import Ask
from tests.unit.tools.conform_checks.lies import CUT_IS_WHOLE
from tests.unit.tools.conform_checks.rig import KEY
from tools import conform
from tools.conform_checks import score
from tools.conform_checks.bench import Bench
from tools.conform_checks.check import Cell, Check, Scope
from tools.conform_checks.score import judge

LIAR = Lie("limit-stream", frames=swap(*CUT_IS_WHOLE))


@pytest.fixture
def honest() -> Iterator[Honest]:
    with Honest(key=KEY) as server:
        yield server


def run(server: Honest, *words: str) -> int:
    return conform.main([server.url, "--api-key", KEY, *words])


def test_truthful_server_is_0_and_each_group_has_its_row(honest: Honest, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(honest, "--only", "endings,usage") == 0
    out = capsys.readouterr().out
    assert "endings" in out
    assert "10/10" in out
    assert "0 not true" in out
    assert "what is not true" not in out


def test_liar_is_1_with_the_truth_and_the_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    with Honest(LIAR) as server:
        assert conform.main([server.url, "--only", "limit-stream/chat"]) == 1
        shown = capsys.readouterr().out
        assert conform.main([server.url, "--only", "limit-stream/chat", "--markdown"]) == 1
    assert "what is not true" in shown
    row = "| `limit-stream` | chat | lie | A stream that the token limit cut says so: length, incomplete with "
    assert row in (page := capsys.readouterr().out)
    assert "16 tokens, the limit, and it ended as 'stop' |" in page


def test_json_and_junit_say_what_was_seen(tmp_path: Path) -> None:
    paths = tmp_path / "a.json", tmp_path / "a.xml"
    with Honest(LIAR) as server:
        words = [
            "--only",
            "limit-*/chat,first-role",
            "--json",
            str(paths[0]),
            "--junit",
            str(paths[1]),
            "--name",
            "liar",
        ]
        assert conform.main([server.url, *words]) == 1
    value = json.loads(paths[0].read_text(encoding="utf-8"))
    assert (value["server"], value["counts"]["failed"], value["counts"]["passed"]) == ("liar", 1, 2)
    (failed,) = [check for check in value["checks"] if check["result"] == "failed"]
    assert (failed["id"], failed["api"], failed["severity"]) == ("limit-stream", "chat", "lie")
    suite = ElementTree.parse(paths[1]).getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")


def test_markdown_is_a_page(honest: Honest, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(honest, "--only", "framing", "--markdown") == 0
    out = capsys.readouterr().out
    assert out.startswith("# http://")
    assert "| framing | 10/10 |" in out


def test_all_shows_every_check(honest: Honest, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(honest, "--only", "tools", "--all") == 0
    out = capsys.readouterr().out
    assert out.count("yes") == 25
    assert "call-unrepaired" in out


def test_server_that_is_not_there_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    with Honest() as server:
        url = server.url
    assert conform.main([url]) == 2
    assert "cannot be reached" in capsys.readouterr().err


def test_wrong_key_is_2_and_says_what_to_give(honest: Honest, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that refuses a stranger tells no lies."""
    assert conform.main([honest.url, "--api-key", "key-of-somebody-else"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "give the server's key with --api-key" in err
    assert "somebody-else" not in err


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (answer(b'{"error": "who are you"}', 401), "status 401: .*give the server's key with --api-key"),
        (head(302, location="/login", content_length="0"), "leads to '/login'; give that URL"),
        (answer(b'{"data": []}'), "lists no model .*name one with --model"),
        (b"SSH-2.0-OpenSSH", "gives no answer"),
    ],
)
def test_server_without_models_is_2_and_says_what_to_do(
    page: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedUpstream(lambda peer: None, {"/v1/models": page}) as server:
        assert conform.main([server.url]) == 2
    assert re.search(said, capsys.readouterr().err)


class Plain(socketserver.BaseRequestHandler):
    """A server without TLS: it does not understand the client's first words."""

    def handle(self) -> None:
        self.request.recv(65536)
        self.request.sendall(answer(b"", 400))


def test_server_without_tls_is_2_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), Plain) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert conform.main([f"https://127.0.0.1:{server.server_address[1]}"]) == 2
        thread.join(20)
    assert "use http://" in capsys.readouterr().err


@pytest.mark.parametrize("base", ["{}", "{}/", "{}/chat/completions", "{0.scheme}"])
def test_url_may_be_the_servers_the_base_or_a_route(
    base: str, honest: Honest, capsys: pytest.CaptureFixture[str]
) -> None:
    url = honest.url.removesuffix("/v1") if "scheme" in base else base.format(honest.url)
    assert conform.main([url, "--api-key", KEY, "--only", "first-role"]) == 0


@pytest.mark.parametrize("option", ["--json", "--junit"])
def test_report_that_cannot_be_written_is_2_before_anything_is_asked(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedUpstream(lambda peer: None) as server:
        for path in (tmp_path, tmp_path / "none" / "a.json"):
            assert conform.main([server.url, option, str(path)]) == 2
            assert "cannot be written" in capsys.readouterr().err
        assert server.requests == []


# --- stopped ----------------------------------------------------------------------------------------


def test_ctrl_c_shows_and_writes_what_was_judged(
    honest: Honest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.json"
    stop_before(monkeypatch, "limit-body")
    assert run(honest, "--only", "limit-*/chat,first-role", "--json", str(path)) == 2
    assert "1 passed, 0 not true, 0 risks, 0 not seen, 0 not there; stopped before 2 more" in capsys.readouterr().out
    value = json.loads(path.read_text(encoding="utf-8"))
    assert (value["left"], [check["id"] for check in value["checks"]]) == (2, ["limit-stream"])
    assert conform.main(["compare", str(path), str(path)]) == 0
    out = capsys.readouterr().out
    assert "stopped before 2 more" in out
    assert "they differ in nothing" in out


def test_ctrl_c_after_a_lie_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_before(monkeypatch, "limit-body")
    with Honest(LIAR) as server:
        assert conform.main([server.url, "--only", "limit-*/chat"]) == 1


def test_ctrl_c_before_the_first_result_is_2(
    honest: Honest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_before(monkeypatch, "limit-stream")
    assert run(honest, "--only", "limit-*/chat") == 2
    assert "stopped" in capsys.readouterr().err


def stop_before(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def judged(bench: Bench, check: Check, scope: Scope) -> Cell:
        if check.id == name:
            raise KeyboardInterrupt
        return judge(bench, check, scope)

    monkeypatch.setattr(score, "judge", judged)


# --- usage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["http://127.0.0.1:9", "--quiet-s", "0"],
        ["http://127.0.0.1:9", "--stall-command", "x"],
        ["http://127.0.0.1:9", "--flood", "-1"],
        ["http://127.0.0.1:9", "--parallel", "0"],
        ["http://127.0.0.1:9", "--engine-pid", "-1"],
        ["compare", "one.json"],
    ],
)
def test_wrong_usage_is_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        conform.main(words)
    assert caught.value.code == 2


def test_word_that_names_no_check_is_2_before_anything_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform.main(["http://127.0.0.1:9", "--only", "endigns"]) == 2
    assert "'endigns' is no check" in capsys.readouterr().err


def test_list_needs_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform.main(["--list", "--only", "sequence"]) == 0
    out = capsys.readouterr().out
    assert "sequence-gapless" in out
    assert "limit-stream" not in out


def test_two_scores_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, lie in zip(paths, (Lie(""), LIAR), strict=True):
        with Honest(lie) as server:
            conform.main([server.url, "--only", "limit-*", "--json", str(path), "--name", path.stem])
    capsys.readouterr()
    first, second = map(str, paths)
    assert conform.main(["compare", first, second, "--markdown"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("# a : b")
    assert "| endings | 2/2 : 1/2 |" in out
    assert "| `limit-stream` | chat | lie | yes | NO |" in out
    assert conform.main(["compare", second, first]) == 0
    assert conform.main(["compare", first, str(tmp_path / "none.json")]) == 2


def echo(ask: Ask, reply: Reply) -> Reply:
    """Errors that repeat the key."""
    if reply.status < 400:
        return reply
    return Reply(reply.status, {"error": {"detail": ask.headers.get("authorization")}}, reply.fields)


def test_key_is_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "a.json", tmp_path / "a.xml"]
    with Honest(Lie("", reply=echo), KEY) as server:
        words = ["--only", "errors", "--all", "--json", str(paths[0]), "--junit", str(paths[1])]
        assert run(server, *words) == 1
        assert run(server, "--only", "errors", "--markdown") == 1
    captured = capsys.readouterr()
    texts = [captured.out, captured.err, *(path.read_text(encoding="utf-8") for path in paths)]
    assert all(KEY not in text and KEY[:12] not in text for text in texts)
    assert "***" in texts[0]
