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

from tools import plots
from tools.bench.__main__ import main, parser
from tools.bench.figures import CannotMeasure
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
    alone = {figure["name"] for figure in figures if figure["ratio"] is None}
    assert alone == {"request to first token, added by us", "memory for one more of them"}
    beside = [figure for figure in figures if figure["name"] not in alone]
    assert all(figure["value"] > 0 and figure["beside"] > 0 and figure["against"] for figure in beside)
    assert {len(values) for values in parts["deaths"]["measurements"].values()} == {3}
    assert {len(values) for values in parts["first-token"]["measurements"].values()} == {2}
    assert set(parts["tokens"]["measurements"]) == {
        f"{api}_{length}_us" for api in ("chat", "completions", "responses", "messages") for length in (1000, 2000)
    }
    held = next(figure for figure in parts["held"]["figures"] if figure["name"].startswith("streams held"))
    assert (held["value"], held["beside"]) == (20, 20)
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
        pytest.raises(CannotMeasure, match="a stream did not end with b'bye'"),
    ):
        read_to_end(sock, b"bye")
    with saying(b"5\r\nhello\r\n") as sock, pytest.raises(CannotMeasure, match="the stream was cut"):
        read_to_end(sock, b"hello")
    with saying(b"hel") as sock, pytest.raises(CannotMeasure, match="ended without b'hello'"):
        read_until(sock, b"hello")
