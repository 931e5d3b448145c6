"""tools/soak from its command line: what contradicts itself, what cannot be run, and what is written."""

from __future__ import annotations

import base64
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.e2e.server import wait_for
from tests.scripted_upstream import ScriptedUpstream, answer, stream
from tests.unit.tools.soak.conftest import BadServer, Soaked
from tools import plots
from tools.probe.exits import CouldNotRun
from tools.soak.__main__ import main
from tools.soak.command_line import LOOKS, default_every_s, default_faults, parser
from tools.soak.serving import OurServer

Start = Callable[..., BadServer]
Soak = Callable[..., Soaked]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "give --url of a running server, or --serve"),
        (["--url", "http://127.0.0.1:1/v1", "--serve", ""], "give --url of a running server, or --serve"),
        (["--serve", "", "--server-pid", "1"], "the server that --serve starts is known"),
        (["--url", "ftp://x"], "cannot be asked"),
        (["--url", "http://127.0.0.1:1/v1", "--model", "m"], "cannot be reached"),
    ],
)
def test_run_that_cannot_be_says_why(
    options: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options, "--report", str(tmp_path / "report")]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--minutes", "0"],
        ["--minutes", "nan"],
        ["--minutes", "100000"],
        ["--clients", "0"],
        ["--apis", "chat,telnet"],
        ["--leave", "1.5"],
        ["--seed", "-1"],
        ["--kills", "x"],
    ],
)
def test_options_that_say_nothing_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser("about").parse(options)
    assert ended.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_apis_are_taken_in_their_order() -> None:
    assert parser("about").parse(["--apis", "messages,chat"]).apis == ("chat", "messages")


def test_faults_that_nobody_counted_follow_the_length() -> None:
    args = parser("about").parse(["--minutes", "30"])
    assert (default_faults(args, 1.0), default_faults(args, 2.0)) == (30, 15)
    args = parser("about").parse(["--minutes", "30", "--streams", "200"])
    assert default_faults(args, 1.0) == 4


def test_server_that_refuses_everything_could_not_be_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuse = answer(b'{"error": {"message": "wrong key"}}', 401)
    with ScriptedUpstream(lambda peer: peer.send(refuse)) as server:
        assert main(["--url", server.url, "--report", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert "no API answers" in shown.err and "wrong key" in shown.err


def test_faults_without_means_are_refused_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedUpstream(stream(b"data: [DONE]\n\n")) as server:
        assert main(["--url", server.url, "--apis", "chat", "--kills", "1", "--report", str(tmp_path)]) == 2
    assert "give --engine-pid or --kill-command" in capsys.readouterr().err


def test_report_folder_that_cannot_be_made_is_told_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main(["--serve", "", "--report", str(file / "report")]) == 2
    assert "cannot be made" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--junit"])
def test_file_that_cannot_be_written_is_told_before_the_hours(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "no folder" / "file"
    assert main(["--serve", "", "--report", str(tmp_path / "report"), option, str(file)]) == 2
    assert f"{file} cannot be written" in capsys.readouterr().err
    assert not (tmp_path / "report" / "server.log").exists(), "no server was started"


def test_server_that_does_not_start_says_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('the model is missing')"]
    with pytest.raises(CouldNotRun, match="the server did not start: the model is missing"):
        OurServer("", tmp_path / "log", command=command)


def test_server_options_with_an_open_quote_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--serve", '--model "a', "--report", str(tmp_path / "report")]) == 2
    assert "serve: '--model \"a': No closing quotation" in capsys.readouterr().err


def test_what_an_earlier_run_saw_is_not_in_the_report(bad_server: Start, soaked: Soak, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    folder.mkdir()
    for name in ("untrue-7.txt", "soak.png", "notes.txt"):
        (folder / name).touch()
    run = soaked(bad_server(), "--streams", "4", "--max-tokens", "4")
    assert {path.name for path in run.folder.iterdir()} == {"report.html", "report.json", "notes.txt"}


def test_caches_that_were_named_are_in_the_report(bad_server: Start, soaked: Soak) -> None:
    """The server keeps a MiB for each stream: with that room it is no leak."""
    options = ("--streams", "100", "--clients", "2", "--max-tokens", "4", "--cache-mib", "300")
    run = soaked(bad_server("memory"), *options)
    assert run.bad == {}
    assert run.report["load"]["cache_mib"] == 300
    assert "memory may grow by 300 MiB" in (run.folder / "report.html").read_text(encoding="utf-8")


def test_looks_of_a_long_run_are_fewer() -> None:
    assert default_every_s(10) == 1.0
    assert 7 * 24 * 3_600 / default_every_s(7 * 24 * 60) == pytest.approx(LOOKS)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal for one thread's program")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_that_is_stopped_while_its_server_starts_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """The server waits for an engine that is never ready."""
    file = tmp_path / "pid"
    wait = "threading.Event().wait(120)"
    code = f"import os, threading; open({str(file)!r}, 'w').write(str(os.getpid())); {wait}"
    engine = shlex.join([sys.executable, "-c", code])
    options = shlex.join(["--upstream-command", f"{engine} {{port}}", "--store", "none"])
    command = [sys.executable, "-m", "tools.soak", "--serve", options, "--report", str(tmp_path / "report")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as soak:
        try:
            wait_for(lambda: file.exists() and file.read_text(encoding="utf-8") != "", "a pid is there", 60.0)
            engine_process = psutil.Process(int(file.read_text(encoding="utf-8")))
            family = [engine_process, *psutil.Process(soak.pid).children(recursive=True)]
            soak.send_signal(number)
            out, err = soak.communicate(timeout=60)
        finally:
            soak.kill()
    assert (soak.returncode, out, err.strip().splitlines()[-1]) == (2, b"", b"stopped")
    assert psutil.wait_procs(family, timeout=20)[1] == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal for one thread's program")
def test_request_to_end_ends_early_with_a_verdict(bad_server: Start, soaked: Soak) -> None:
    """A run of hours that is stopped has something to say."""
    server = bad_server()

    def stop_it() -> None:
        server.wait_asked(8)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=stop_it)
    thread.start()
    run = soaked(server, "--max-tokens", "8")
    thread.join()
    assert run.status == 0
    assert run.report["notes"] == ["stopped before its time"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_report_needs_nothing_beside_it_and_has_no_key(
    bad_server: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server's echo of the key is in the evidence, the page, the JSON and on the terminal; the key is in none."""
    key = "sk-live-0123456789abcdef"
    folder, junit = tmp_path / "report", tmp_path / "junit.xml"
    options = ["--url", bad_server("echoes the key").url, "--streams", "10", "--kills", "0", "--stalls", "0"]
    options += ["--clients", "2", "--leave", "0", "--grace-s", "1", "--seed", "4", "--api-key", key]
    assert main([*options, "--report", str(folder), "--junit", str(junit), "--json", str(tmp_path / "copy.json")]) == 1
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    picture = re.search(r'src="data:image/png;base64,([^"]+)"', page)
    assert picture is not None
    assert base64.b64decode(picture[1]) == (folder / "soak.png").read_bytes()
    assert (folder / "soak.png").read_bytes().startswith(b"\x89PNG")
    assert "&lt;key&gt; ***" in page
    shown = capsys.readouterr()
    everything = [path.read_bytes() for path in (*folder.iterdir(), junit, tmp_path / "copy.json")]
    assert any(b"<key> ***" in data for data in everything)
    assert all(key.encode() not in data for data in [*everything, shown.out.encode(), shown.err.encode()])
    assert "seed 4" in shown.out
    assert 'failures="1"' in junit.read_text(encoding="utf-8")


def test_missing_library_of_plots_is_told_and_the_report_made(
    bad_server: Start, soaked: Soak, capsys: pytest.CaptureFixture[str]
) -> None:
    run = soaked(bad_server(), "--streams", "4", "--max-tokens", "4")
    assert plots.HOW_TO_GET in capsys.readouterr().err
    assert "Without plots: matplotlib was not installed" in (run.folder / "report.html").read_text(encoding="utf-8")
