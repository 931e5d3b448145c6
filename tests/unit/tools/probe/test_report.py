"""tools/probe/report.py: what people and programs read, with no key in it."""

from __future__ import annotations

import json
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
