"""tools/check_stream.py over real sockets: liars are caught, true servers pass, and the key is never shown."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.scripted_upstream import (
    DONE,
    LAST_CHUNK,
    Peer,
    Script,
    ScriptedUpstream,
    answer,
    chunk,
    head,
    sse_head,
    stream,
)
from tests.unit.tools.probe import streams
from tests.unit.tools.probe.lies import LIES, RISKS
from tools import check_stream
from tools.probe import live, progress
from tools.probe.answer import AnswerReader, Piece
from tools.probe.stream_report import StreamReport, stream_report
from tools.probe.witness import Witness

KEY = "sk-0123456789abcdef0123456789abcdef"
GOOD = streams.SAID + streams.chunk("stop") + DONE


class Run:
    """One run of the checker on a scripted server."""

    def __init__(self, script: Script, folder: Path, *words: str, api: str = "chat") -> None:
        with ScriptedUpstream(script) as server:
            url = f"{server.url}/v1/{'chat/completions' if api == 'chat' else api}"
            argv = [url, "--json", str(folder / "a.json"), "--junit", str(folder / "a.xml"), *words]
            self.status = check_stream.main(argv)
            self.requests = [request for request in server.requests if request.method == "POST"]
        self.seen: dict[str, Any] = {}
        if (folder / "a.json").exists():
            self.seen = json.loads((folder / "a.json").read_text(encoding="utf-8"))

    @property
    def report(self) -> dict[str, Any]:
        return self.seen["streams"][-1]

    @property
    def findings(self) -> dict[str, str]:
        return {finding["id"]: finding["kind"] for finding in self.report["findings"]}


@pytest.mark.parametrize("name", streams.WHOLE)
def test_a_server_that_tells_the_truth_passes(name: str, tmp_path: Path) -> None:
    api, body = streams.WHOLE[name]
    run = Run(stream(*[piece + b"\n\n" for piece in body.split(b"\n\n")[:-1]]), tmp_path, api=api)
    assert run.status == 0, run.report
    assert run.report["verdict"] in ("truthful", "failed, and said so")
    assert run.report["end"] == "terminator"
    assert 0 < run.report["first_byte_s"] <= run.report["took_s"]


@pytest.mark.parametrize("name", LIES)
def test_a_liar_is_caught(name: str, tmp_path: Path) -> None:
    lie = LIES[name]
    run = Run(stream(*([lie.body] if lie.body else [])), tmp_path, api=lie.api)
    assert run.findings.get(lie.id) == lie.kind, run.report
    assert run.status == (0 if lie.kind == "risk" else 1)
    (case,) = ElementTree.parse(tmp_path / "a.xml").iter("testcase")
    assert (case.find("failure") is not None) == (lie.kind != "risk")


@pytest.mark.parametrize("name", RISKS)
def test_what_is_only_risky_is_told_and_passes(name: str, tmp_path: Path) -> None:
    run = Run(stream(RISKS[name].body), tmp_path, api=RISKS[name].api)
    assert (run.status, run.findings.get(RISKS[name].id)) == (0, "risk")


_READ = threading.Event()
"""The checker has read something."""


def _reset(peer: Peer) -> None:
    peer.send(sse_head(), chunk(streams.SAID))
    peer.wait(_READ)  # a reset may take with it what was not read yet
    peer.reset()


def _no_terminator(peer: Peer) -> None:
    peer.send(sse_head(), chunk(streams.SAID))


def _short(peer: Peer) -> None:
    peer.send(head(200, content_type="text/event-stream", content_length="9999"), streams.SAID)


def _unclean(peer: Peer) -> None:
    peer.send(sse_head(), chunk(GOOD))


def _closed(peer: Peer) -> None:
    peer.send(head(200, content_type="text/event-stream"), streams.SAID)


def _hanging(peer: Peer) -> None:
    peer.send(sse_head(), chunk(streams.SAID))
    assert peer.wait_gone()


def _beating_after_the_end(peer: Peer) -> None:
    peer.send(sse_head(), chunk(GOOD), chunk(b": ping\n\n"))
    assert peer.wait_gone()


def _beating(peer: Peer, said: bytes) -> None:
    """Says this, and then heartbeats until the client has left."""
    with contextlib.suppress(OSError):
        peer.send(sse_head(), chunk(said))
        while not peer.closing.wait(0.05):
            peer.send(chunk(streams.PING if b"message_start" in said else b": ping\n\n"))


def _beating_for_ever_after_the_end(peer: Peer) -> None:
    _beating(peer, GOOD)


def _beating_for_ever_after_the_finish(peer: Peer) -> None:
    _beating(peer, streams.SAID + streams.chunk("stop"))


def _closing_with_words(word: str) -> Script:
    return lambda peer: peer.send(sse_head(content_encoding=word), chunk(b"\x0b\x02\x80"), LAST_CHUNK)


def _plain(peer: Peer) -> None:
    peer.send(answer(GOOD, content_type="text/plain"))


def _surplus(peer: Peer) -> None:
    peer.send(sse_head(), chunk(GOOD) + LAST_CHUNK + b"HTTP/1.1 200 OK\r\n")


def _bad_framing(peer: Peer) -> None:
    peer.send(sse_head(), chunk(streams.SAID) + b"data: x\n\n")


def _damaged_gzip(peer: Peer) -> None:
    peer.send(sse_head(content_encoding="gzip"))
    peer.send_chunks(gzip.compress(GOOD)[:-8] + b"\0" * 8, LAST_CHUNK)


def _old(peer: Peer) -> None:
    peer.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", GOOD)


def _zipped(peer: Peer) -> None:
    assert "gzip" in peer.request.headers["accept-encoding"]
    peer.send(sse_head(content_encoding="gzip"))
    peer.send_chunks(gzip.compress(GOOD), LAST_CHUNK)


ENDS: dict[str, tuple[Script, int, str, str, str]] = {
    "reset": (_reset, 1, "reset", "cut", "process died"),
    "no last chunk": (_no_terminator, 1, "no terminator", "cut", "the server's handler failed"),
    "short": (_short, 1, "short", "cut", "handler failed"),
    "no last chunk after the marker": (_unclean, 1, "no terminator", "cut-after-end", "breaks the format"),
    "closed cleanly": (_closed, 1, "close", "no-finish", "as if it were whole"),
    "hangs": (_hanging, 1, "silent", "cut", "the server hangs"),
    "stays open": (_beating_after_the_end, 1, "silent", "open-after-end", "breaks the format"),
    "beats for ever after the end": (
        _beating_for_ever_after_the_end,
        1,
        "silent",
        "open-after-end",
        "breaks the format",
    ),
    "beats for ever after the finish": (
        _beating_for_ever_after_the_finish,
        1,
        "silent",
        "cut",
        "the answer is over, and data: [DONE] never came",
    ),
    "brotli": (_closing_with_words("br"), 1, "terminator", "coding", "nobody can read this body"),
    "another type": (_plain, 1, "length", "content-type", "breaks the format"),
    "more than the body": (_surplus, 1, "terminator", "surplus", "breaks the format"),
    "broken framing": (_bad_framing, 1, "broken framing", "cut", "something on the way rewrites"),
    "damaged gzip": (_damaged_gzip, 1, "terminator", "coding", "nobody can read this body"),
    "http/1.0": (_old, 0, "close", "http/1.0", "proxy_http_version 1.1"),
    "gzip": (_zipped, 0, "terminator", "compressed", "compression (gzip) off"),
}
"""Script, status, end, finding, advice."""


@pytest.mark.parametrize("name", ENDS)
def test_how_it_ended_and_what_to_do_is_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "AFTER_END_S", 0.5)
    monkeypatch.setattr(live, "AFTER_FINISH_S", 0.5)
    feed = Witness.feed

    def heard(self: Witness, piece: Piece) -> None:
        feed(self, piece)
        _READ.set()

    monkeypatch.setattr(Witness, "feed", heard)
    _READ.clear()
    script, status, end, finding, says = ENDS[name]
    run = Run(script, tmp_path, "--silence-s", "0.6" if name == "hangs" else "20")
    assert (run.status, run.report["end"]) == (status, end)
    assert finding in run.findings
    assert says in run.report["advice"]


REFUSALS: dict[str, tuple[bytes, str]] = {
    "queue full": (answer(b'{"error": {"message": "queue full"}}', 429), "'queue full'; the server is busy"),
    "wrong key": (answer(json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode(), 401),
                  "status 401: 'Incorrect API key provided: ***'; is it the right key?"),
    "not found": (answer(b'{"detail": "Not Found"}', 404), "'Not Found'; is the path right"),
    "a page": (answer(b"<h1>502</h1>", 502, "text/html"), "what stands in front does not reach the server"),
    "no stream": (answer(b'{"choices": []}'), "application/json instead of a stream"),
    "a redirect": (head(308, location="https://elsewhere/v1", content_length="0"), "leads to 'https://elsewhere/v1'"),
    "nothing": (b"", "without an answer"),
    "no http": (b"220 smtp\r\n\r\n", "the framing broke"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_could_not_run_and_says_why(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, says = REFUSALS[name]
    run = Run(lambda peer: peer.send(data), tmp_path, "--api-key", KEY)
    _, err = capsys.readouterr()
    assert run.status == 2
    assert says in err
    assert run.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY[:20] not in err


def _echoing(peer: Peer) -> None:
    """Says the key wherever a server can."""
    key = peer.request.headers.get("authorization", "").removeprefix("Bearer ") or peer.request.headers["x-api-key"]
    error = {"error": {"message": f"wrong key {key}", "type": key}}
    lines = [f": {key}\n\n", f"{key}: x\n", f"id: {key}\n", f"data: {json.dumps(error)}\n\n", f"data: {key}\n\n"]
    peer.send(sse_head(x_key=key, content_encoding="identity"))
    peer.send_chunks("".join(lines).encode(), streams.chunk(key), DONE, LAST_CHUNK + key.encode())


@pytest.mark.parametrize("how", ["option", "openai", "anthropic"])
def test_the_key_is_sent_and_shown_nowhere(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words: list[str] = ["--save", str(tmp_path / "saved")]
    if how == "option":
        words += ["--api-key", KEY]
    else:
        monkeypatch.setenv("OPENAI_API_KEY", KEY if how == "openai" else "other-key-than-this")
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY if how == "anthropic" else "other-key-than-this")
    api = "messages" if how == "anthropic" else "chat"
    run = Run(_echoing, tmp_path, *words, api=api)
    assert KEY in run.requests[0].headers["x-api-key" if api == "messages" else "authorization"]
    assert run.status == 1
    out, err = capsys.readouterr()
    written = [(tmp_path / name).read_bytes() for name in ("a.json", "a.xml", "saved")]
    for text in (out.encode(), err.encode(), *written):
        assert KEY.encode() not in text
        assert KEY[:16].encode() not in text


def test_a_recording_in_which_the_key_cannot_be_hidden_is_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(peer: Peer) -> None:
        peer.send(sse_head(content_encoding="gzip"))
        peer.send_chunks(gzip.compress(GOOD + f": {KEY}\n\n".encode()), LAST_CHUNK)

    Run(script, tmp_path, "--save", str(tmp_path / "saved"), "--api-key", KEY)
    assert not (tmp_path / "saved").exists()
    assert "was not kept: the server sends the key back" in capsys.readouterr().err


def test_a_model_is_looked_up_and_a_long_answer_asked_for(tmp_path: Path) -> None:
    run = Run(stream(GOOD), tmp_path, "--max-tokens", "7")
    (request,) = run.requests
    assert request.json["model"] == "m"
    assert (request.json["max_tokens"], request.json["stream"]) == (7, True)
    run = Run(stream(GOOD), tmp_path, "--model", "other", "--prompt", "hi", "--tool-call")
    assert run.requests[0].json["model"] == "other"
    assert "write_file" in json.dumps(run.requests[0].json["tools"])


def test_what_a_server_refuses_of_the_request_is_left_out(tmp_path: Path) -> None:
    said = [
        "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
        "temperature does not support 0",
        "stream_options is unknown",
        "tool_choice must be a string",
    ]

    def script(peer: Peer) -> None:
        if said:
            peer.send(answer(json.dumps({"error": {"message": said.pop(0)}}).encode(), 400))
        else:
            stream(streams.CALLED + streams.chunk("tool_calls") + DONE)(peer)

    run = Run(script, tmp_path, "--tool-call", "--max-tokens", "9")
    assert run.status == 0
    last = run.requests[-1].json
    assert last["max_completion_tokens"] == 9
    assert last["tool_choice"] == "required"
    assert not {"max_tokens", "temperature", "stream_options"} & set(last)


def test_several_streams_are_counted_and_one_lie_among_them_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = [GOOD, streams.SAID, GOOD]

    def script(peer: Peer) -> None:
        stream(bodies.pop(0))(peer)

    run = Run(script, tmp_path, "--repeat", "3")
    assert run.status == 1
    assert [one["verdict"] for one in run.seen["streams"]] == ["truthful", "lie", "truthful"]
    assert "all streams" in capsys.readouterr().out


def test_time_ends_what_goes_on_for_ever(tmp_path: Path) -> None:
    run = Run(_hanging, tmp_path, "--repeat", "0", "--minutes", "0.01")
    assert run.status == 2
    assert run.report["verdict"] == "end not seen"
    assert list(ElementTree.parse(tmp_path / "a.xml").iter("skipped"))
    run = Run(stream(GOOD), tmp_path, "--repeat", "0", "--minutes", "0.01")
    assert run.status == 0
    assert len(run.seen["streams"]) > 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", [(), ("--repeat", "0")])
def test_a_stream_that_is_stopped_is_told_as_far_as_it_was_seen(
    words: tuple[str, ...], number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    feed = Witness.feed

    def heard(self: Witness, piece: Piece) -> None:
        feed(self, piece)
        signal.raise_signal(number)

    monkeypatch.setattr(Witness, "feed", heard)
    run = Run(_hanging, tmp_path, *words)
    assert run.status == 2
    assert (run.report["verdict"], run.report["pieces"], run.report["end"]) == ("end not seen", 2, "left")
    assert list(ElementTree.parse(tmp_path / "a.xml").iter("skipped"))
    out, err = capsys.readouterr()
    assert "stopped" in err
    assert "end not seen" in out


def test_what_is_stopped_before_it_began_could_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def script(peer: Peer) -> None:
        signal.raise_signal(signal.SIGINT)
        assert peer.wait_gone()

    run = Run(script, tmp_path)
    assert (run.status, run.seen) == (2, {})
    assert capsys.readouterr().err == "stopped\n"


def test_where_no_bar_is_seen_a_line_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.1)
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    Run(_hanging, tmp_path, "--silence-s", "1")
    err = capsys.readouterr().err
    assert "2 pieces, longest silence 0.0 s, 2 of 2048, nothing for " in err
    assert "\x1b" not in err


def test_of_streams_without_end_the_untrue_and_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_stream, "KEPT", 5)
    kept = check_stream.Kept()
    true, lie = (_report(body) for body in (GOOD, streams.SAID))
    for number in range(1, 101):
        kept.add(lie if number % 10 == 0 else true)
        kept.refuse("busy")
    told: Any = kept.as_json()
    assert [one["number"] for one in told["streams"]] == [10, 20, 30, 40, 50, 96, 97, 98, 99, 100]
    assert (told["left_out"], told["verdicts"]) == (90, {"truthful": 90, "lie": 10})
    assert (told["refused"], len(told["refusals"])) == (100, 5)


def _report(body: bytes) -> StreamReport:
    reader, witness = AnswerReader(), Witness("chat")
    for piece in reader.feed(sse_head() + chunk(body) + LAST_CHUNK, 0.1):
        witness.feed(piece)
    witness.close(reader)
    return stream_report("server", witness, reader)


def test_a_server_that_goes_away_ends_it_with_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_stream, "REFUSED_PAUSE_S", 0.0)
    answers = [stream(GOOD)]

    def busy(peer: Peer) -> None:
        peer.send(answer(b"busy", 503))

    def script(peer: Peer) -> None:
        (answers.pop() if answers else busy)(peer)

    run = Run(script, tmp_path, "--repeat", "0")
    assert run.status == 2
    assert (len(run.seen["streams"]), len(run.seen["refusals"])) == (1, check_stream.MAX_REFUSALS)
    assert run.seen["refused"] == check_stream.MAX_REFUSALS


def test_a_saved_stream_is_found_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for script, status in ((stream(GOOD), 0), (_no_terminator, 1)):
        Run(script, tmp_path, "--save", str(tmp_path / "saved"))
        assert check_stream.main(["--from-file", str(tmp_path / "saved"), "--json", str(tmp_path / "b.json")]) == status
        (report,) = json.loads((tmp_path / "b.json").read_bytes())["streams"]
        assert report["pieces"] == 2
        assert report["took_s"] is None
    assert check_stream.main(["--from-file", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [[], ["http://h", "--from-file", "x"], ["http://h", "--max-tokens", "0"], ["http://h", "--minutes", "-1"],
     ["http://h/v1/messages", "--api", "chat"], ["http://127.0.0.1:9/v1", "--model", "m"]],
)  # fmt: skip
def test_wrong_use_is_status_2(argv: list[str]) -> None:
    def status() -> object:
        try:
            return check_stream.main(argv)
        except SystemExit as exited:
            return exited.code

    assert status() == 2


def test_as_a_process_its_output_is_plain_and_its_key_hidden() -> None:
    with ScriptedUpstream(_echoing) as server:
        command = [sys.executable, "-m", "tools.check_stream", server.url]
        environment = {**os.environ, "OPENAI_API_KEY": KEY, "PYTHONIOENCODING": "cp1252"}
        run = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=False)
    assert run.returncode == 1, run.stderr
    assert b"verdict" in run.stdout
    assert b"\x1b" not in run.stdout + run.stderr
    assert KEY[:16].encode() not in run.stdout + run.stderr


def test_help_says_what_the_status_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        check_stream.main(["--help"])
    assert exited.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "0 truthful; 1 a lie, a cut or a broken format was seen; 2 could not run" in out
