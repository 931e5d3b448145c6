"""tools/probe/report.py: what people and programs read, with no key in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools.probe.exits import COULD_NOT_RUN, CouldNotRun
from tools.probe.report import JUnitCase, Parser, Reporter, run_checker, table
from tools.probe.secret import Secret

KEY = "sk-0123456789abcdef0123456789abcdef"


@pytest.fixture
def reporter() -> Reporter:
    return Reporter(Secret(KEY))


def test_json_has_no_key(reporter: Reporter, tmp_path: Path) -> None:
    reporter.write_json(tmp_path / "a.json", {"error": f"wrong key {KEY}", "n": 1, "text": "grün \ud83d"})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"error": "wrong key ***", "n": 1, "text": "grün ?"}


def test_junit_is_xml_with_counts_and_without_a_key(reporter: Reporter, tmp_path: Path) -> None:
    cases = [
        JUnitCase("chat", "one", "passed", took_s=1.5),
        JUnitCase("chat", "two", "failure", f"it said {KEY}", "more \x00\x1b <&>"),
        JUnitCase("chat", "three", "skipped", "not seen"),
        JUnitCase("chat", "four", "error", "refused"),
    ]
    reporter.write_junit(tmp_path / "a.xml", "checker", cases)
    root = ElementTree.fromstring((tmp_path / "a.xml").read_bytes())
    (suite,) = root
    assert suite.attrib == {
        "name": "checker", "tests": "4", "time": "1.500", "failures": "1", "errors": "1", "skipped": "1"
    }  # fmt: skip
    assert [case.get("name") for case in suite] == ["one", "two", "three", "four"]
    failure = suite[1][0]
    assert (failure.tag, failure.get("message"), failure.text) == ("failure", "it said ***", "more \ufffd\ufffd <&>")


def test_a_table_has_no_key_and_no_colours_when_piped(reporter: Reporter, capsys: pytest.CaptureFixture[str]) -> None:
    made = Reporter(Secret(KEY))
    shown = table("title", "a", "b")
    shown.add_row("[bold]as it is[/bold]", made.cell(f"{KEY} " * 20))
    made.show(shown)
    made.say(f"the key is {KEY}", style="red")
    made.complain(f"the key is {KEY}")
    out, err = capsys.readouterr()
    assert "[bold]as it is[/bold]" in out
    assert "the key is ***" in out
    assert "the key is ***" in err
    assert KEY[:16] not in out + err
    assert "\x1b" not in out + err


def test_a_file_that_cannot_be_written_is_told(reporter: Reporter, tmp_path: Path) -> None:
    with pytest.raises(CouldNotRun, match="cannot be written"):
        reporter.write_json(tmp_path / "none" / "a.json", {})


def test_what_could_not_run_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    def check(reporter: Reporter) -> int:
        raise CouldNotRun(f"the server said: wrong key {reporter.secret.expose()}")

    assert run_checker(check, KEY) == COULD_NOT_RUN
    assert capsys.readouterr().err == "could not check: the server said: wrong key ***\n"
    assert run_checker(check, "a\nb") == COULD_NOT_RUN
    assert "api key: it has characters" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--apikey", KEY], [f"--apikey={KEY}"], ["url", KEY], ["--n", KEY]])
def test_a_wrong_argument_is_told_without_its_value(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="x")
    parser.add_argument("--number", type=int)
    parser.add_argument("url", nargs="?")
    with pytest.raises(SystemExit) as exited:
        parser.parse(argv)
    assert exited.value.code == COULD_NOT_RUN
    out, err = capsys.readouterr()
    assert "x: " in err
    assert KEY not in out + err


def test_a_fault_of_the_checker_is_no_lie_and_its_traceback_has_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    def check(reporter: Reporter) -> int:
        raise KeyError(f"{reporter.secret.expose()} from a server")

    assert run_checker(check, KEY) == COULD_NOT_RUN
    out, err = capsys.readouterr()
    assert "KeyError: '*** from a server'" in err
    assert "a fault of the checker's own; please report it" in err
    assert KEY[:16] not in out + err


@pytest.mark.parametrize("foreign", ["\x1b[2Jgone", "\x9b31m", "a\rb", "bell\a", "\u202eright to left", "\x7f"])
def test_a_server_takes_no_hold_of_the_terminal(
    foreign: str, reporter: Reporter, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Reporter(Secret(KEY))
    shown = table(None, "a")
    shown.add_row(made.cell(foreign))
    made.show(shown)
    made.say(foreign)
    made.complain(foreign)
    out, err = capsys.readouterr()
    assert not {"\x1b", "\x9b", "\r", "\a", "\u202e", "\x7f"} & set(out + err)
    assert "\\x" in out or "\\u" in out or "\\r" in out
    assert reporter.cell("two\nlines\tand a tab") == "two\nlines\tand a tab"


def test_a_long_foreign_text_is_cut_where_people_read_it(reporter: Reporter) -> None:
    assert len(reporter.cell("x" * 1_000_000)) == 1_000
    assert reporter.cell("x" * 1_000_000).endswith("…")


_LEFT_BY_ITS_READER = """
import sys
from tools.probe.report import run_checker
def check(reporter):
    sys.stdin.readline()  # the reader has left
    for _ in range(1000):
        reporter.say("x" * 200)
    reporter.write_text(__import__("pathlib").Path(sys.argv[1]), "written")
    return 0
sys.exit(run_checker(check))
"""


def test_a_reader_who_leaves_changes_neither_status_nor_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LEFT_BY_ITS_READER, str(tmp_path / "a")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(b"\n", timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "written"
