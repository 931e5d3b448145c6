"""tools/bench from its command line, over real processes: every figure is there, and nothing is measured of a server
that does not do what is measured.
"""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tools import gateway_servers, plots
from tools.bench import held, server
from tools.bench.__main__ import main, parser
from tools.bench.figures import CannotMeasure, Untrue
from tools.bench.held import TURNS
from tools.bench.server import connect, read_to_end, read_until
from tools.bench.tokens import SHORTEST, lengths_of

QUICK = ["--deaths", "3", "--pairs", "2", "--tokens", "2000", "--rounds", "1", "--streams", "20", "--held-s", "0.5"]


def measured(tmp_path: Path, *options: str) -> dict[str, Any]:
    """Each group's figures by their names, and what was measured for them."""
    file = tmp_path / "figures.json"
    assert main([*QUICK, "--json", str(file), *options]) == 0
    whole = json.loads(file.read_text(encoding="utf-8"))
    assert whole["machine"]["cores"] > 0
    return {part["group"]: part for part in whole["parts"]}


def test_every_figure_stands_beside_a_baseline_of_the_same_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "figures.png"
    parts = measured(tmp_path, "--plot", str(picture))
    assert list(parts) == ["deaths", "first-token", "tokens", "kept", "held"]
    figures = [figure for part in parts.values() for figure in part["figures"]]
    alone = {figure["name"] for figure in figures if figure["beside"] is None}
    assert alone == {
        "request to first token, added by us",
        "memory for one more of them",
        "a token's way to its client, added by us, p50",
        "a token's way to its client, added by us, p99",
    }
    beside = [figure for figure in figures if figure["name"] not in alone]
    assert all(figure["value"] > 0 and figure["beside"] > 0 and figure["against"] for figure in beside)
    extremes = {figure["name"] for figure in beside if figure["ratio"] is None}
    assert extremes == {
        "engine's death to the end of its stream, p99",
        "engine's death to the end of its stream, longest",
        "a token's way to its client, p99",
    }
    assert {len(values) for values in parts["deaths"]["measurements"].values()} == {3}
    assert {len(values) for values in parts["first-token"]["measurements"].values()} == {2}
    assert set(parts["tokens"]["measurements"]) == {
        f"{api}_{length}_us" for api in ("chat", "completions", "responses", "messages") for length in (1000, 2000)
    }
    held = next(figure for figure in parts["held"]["figures"] if figure["name"].startswith("streams held"))
    assert held["count"] == TURNS
    assert 0 < held["value"] <= 20 and 0 < held["beside"] <= 20, "as many as this machine can"
    assert {len(values) for values in parts["held"]["measurements"].values()} == {TURNS}
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert all(figure["name"].split(",")[0] in shown for figure in figures)


def test_groups_are_measured_in_their_order(tmp_path: Path) -> None:
    assert list(measured(tmp_path, "--only", "first-token,deaths")) == ["deaths", "first-token"]


@pytest.mark.parametrize(
    "options",
    [
        ["--only", "speed"],
        ["--deaths", "0"],
        ["--tokens", "10"],
        ["--streams", "1"],
        ["--pairs", "x"],
        ["--held-s", "nan"],
    ],
)
def test_options_that_say_nothing_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse(options)
    assert ended.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_plot_without_its_library_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots, "LIBRARY", "no_such_library")
    assert main(["--plot", str(tmp_path / "x.png")]) == 2
    shown = capsys.readouterr()
    assert plots.HOW_TO_GET in shown.err
    assert shown.out == ""


def command(code: str) -> str:
    words = [sys.executable, "-c", code]
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


@pytest.mark.parametrize("group", ["deaths", "first-token", "tokens", "kept", "held"])
def test_server_that_does_not_start_ends_with_status_2(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; sys.exit('the disk is full')"
    assert main([*QUICK, "--only", group, "--ours", command(code)]) == 2
    shown = capsys.readouterr().err
    assert f"{group}: " in shown and "the disk is full" in shown


@pytest.mark.parametrize("group", ["deaths", "tokens", "kept"])
def test_server_that_answers_nothing_ends_with_status_2(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "print(f'ready: http://127.0.0.1:{server.getsockname()[1]}/v1', flush=True)\n"
        "while True:\n"
        "    server.accept()[0].close()\n"
    )
    assert main([*QUICK, "--only", group, "--ours", command(code)]) == 2
    assert f"{group}: " in capsys.readouterr().err


@pytest.mark.parametrize("group", ["deaths", "first-token", "held"])
def test_server_that_is_never_ready_ends_with_status_2(
    group: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "START_S", 5.0)
    monkeypatch.setattr(gateway_servers, "START_S", 5.0)
    code = "import sys, threading; sys.stderr.write('loading 3 %'); sys.stderr.flush(); threading.Event().wait(60)"
    assert main([*QUICK, "--only", group, "--ours", command(code)]) == 2
    assert "was not ready after 5 s: loading 3 %" in capsys.readouterr().err


LIAR = r"""
import http.server, json, os, subprocess, sys
engine = subprocess.Popen([sys.executable, '-S', '-c', 'input()'], stdin=subprocess.PIPE)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({'engine': {'pid': engine.pid}}).encode())

    def do_POST(self):
        self.rfile.read(int(self.headers['Content-Length']))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'data: "content": "H"\n\ndata: "content": "x"\n\ndata: "content": "o"\n\n')
        engine.wait()
        ENDING

server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
Handler.protocol_version = 'HTTP/1.1'
print(f'ready: http://127.0.0.1:{server.server_address[1]}/v1', flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize(
    ("ending", "seen"),
    [
        (
            'self.wfile.write(b\'data: "finish_reason": "stop"\\n\\ndata: [DONE]\\n\\n\')',
            "the engine's death is not told",
        ),
        ("self.close_connection = True", "the answer ended without"),
    ],
)
def test_ending_that_is_not_true_is_no_figure_and_ends_with_status_1(
    ending: str, seen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    liar = command(LIAR.replace("ENDING", ending))
    assert main([*QUICK, "--only", "deaths", "--ours", liar]) == 1
    shown = capsys.readouterr()
    assert f"untrue: deaths: {seen}" in shown.err
    assert shown.out == ""


def test_figures_that_were_measured_before_an_error_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(held, "measure", stopped)
    file, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    options = [*QUICK, "--only", "first-token,held", "--json", str(file), "--plot", str(picture)]
    assert main(options) == 2
    assert "stopped" in capsys.readouterr().err
    whole = json.loads(file.read_text(encoding="utf-8"))
    assert [part["group"] for part in whole["parts"]] == ["first-token"]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_file_that_cannot_be_written_is_told_before_anything_is_measured(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, option, str(tmp_path / "no folder" / "file")]) == 2
    shown = capsys.readouterr()
    assert "cannot be written" in shown.err
    assert shown.out == ""


def test_lengths_grow_to_the_longest() -> None:
    assert lengths_of(SHORTEST) == [1_000]
    assert lengths_of(4_000) == [1_000, 4_000]
    assert lengths_of(20_000) == [1_000, 4_000, 16_000, 20_000]


@contextmanager
def saying(data: bytes) -> Generator[socket.socket]:
    """A connection to a server that says so much and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer = listener.accept()[0]
            with peer:
                peer.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        with connect(listener.getsockname()[1]) as sock:
            yield sock
        thread.join()


def test_end_without_its_mark_is_no_measurement() -> None:
    with saying(b"5\r\nhello\r\n0\r\n\r\n") as sock:
        read_to_end(sock, b"hello")
    with (
        saying(b"5\r\nhello\r\n0\r\n\r\n") as sock,
        pytest.raises(Untrue, match="a stream did not end with b'bye'"),
    ):
        read_to_end(sock, b"bye")
    with saying(b"5\r\nhello\r\n") as sock, pytest.raises(Untrue, match="the stream was cut"):
        read_to_end(sock, b"hello")
    with saying(b"hel") as sock, pytest.raises(Untrue, match="ended without b'hello'"):
        read_until(sock, b"hello", begun=True)
    with saying(b"HTTP/1.1 200 OK\r\n\r\nhel") as sock, pytest.raises(Untrue):
        read_until(sock, b"hello")
    for refusal in (b"", b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}"):
        with saying(refusal) as sock, pytest.raises(CannotMeasure) as raised:
            read_until(sock, b"hello")
        assert raised.type is CannotMeasure
