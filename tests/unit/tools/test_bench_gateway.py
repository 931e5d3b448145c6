"""tools/bench_gateway.py from its command line, over real processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tools.bench_gateway import cases_of, main, parser


def test_ours_is_measured_beside_the_upstream_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    options = ["--only", "ours", "--streams", "1", "--open", "5", "--seconds", "0.2", "--json", str(file)]
    assert main(options) == 0
    made = json.loads(file.read_text("utf-8"))
    done = [(one["name"], one["case"]["kind"], one["case"]["streams"]) for one in made["figures"]]
    kinds = [("single", 1), ("burst", 1), ("paced", 1), ("open", 5)]
    assert done == [(name, *case) for case in kinds for name in ("direct", "ours")]
    for one in made["figures"]:
        assert one["result"]["verdicts"] == {"whole": one["case"]["streams"], "failed": 0, "untrue": 0}
        assert one["rate"] > 0
        assert (one["rss_bytes"] > 0) == (one["case"]["rate"] > 0)
    reached = {goal["goal"]: goal["reached"] for goal in made["goals"]}
    assert reached["5 open streams: none fails"] is True
    assert "paced" in capsys.readouterr().out


def test_what_is_not_installed_is_left_out_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    options = ["--only", "litellm", "--streams", "2", "--open", "0", "--seconds", "0.2", "--repeats", "2"]
    assert main(options) == 0
    shown = capsys.readouterr()
    assert "litellm is left out" in shown.err
    assert "2/2" in shown.out


def test_a_server_that_does_not_start_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "ours", "--ours", "no-such-program", "--seconds", "0.2"]) == 2
    assert "could not measure: ours cannot be started" in capsys.readouterr().err


def test_a_server_that_carries_no_stream_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "refuses.py"
    script.write_text(
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "print(f'ready: http://127.0.0.1:{server.getsockname()[1]}/v1', flush=True)\n"
        "while True:\n"
        "    server.accept()[0].close()\n",
        encoding="utf-8",
    )
    command = f'"{Path(sys.executable).as_posix()}" "{script.as_posix()}"'
    assert main(["--only", "ours", "--ours", command, "--seconds", "0.2"]) == 2
    assert "could not measure: ours does not carry streams: the " in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--only", "apache"], ["--streams", "0"], ["--streams", "1,x"], ["--open", "-1"]])
def test_options_that_say_nothing_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(options)
    assert ended.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_cases_are_those_of_the_streams_asked_for() -> None:
    kinds = [(case.kind, case.streams) for case in cases_of((1, 128), 0)]
    assert kinds == [("single", 1), ("burst", 1), ("paced", 1), ("paced", 128)]
