"""tools/outputs.py: what cannot be written is told at once, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools import check_responses, check_stream, conform
from tools.outputs import check_outputs
from tools.probe.exits import COULD_NOT_RUN, CouldNotRun


def test_files_that_can_be_written_stay_as_they_are(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("kept", encoding="utf-8")
    check_outputs(old, tmp_path / "new.json", None)
    assert old.read_text(encoding="utf-8") == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]


@pytest.mark.parametrize("name", ["no folder/file.json", "."])
def test_file_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(CouldNotRun, match="cannot be written: "):
        check_outputs(tmp_path / name)


@pytest.mark.parametrize("main", [check_stream.main, check_responses.main, conform.main])
@pytest.mark.parametrize("option", ["--json", "--junit"])
def test_each_checker_tells_it_before_it_asks_anybody(
    main: Callable[[list[str]], int], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["http://127.0.0.1:9/v1", option, str(tmp_path)]) == COULD_NOT_RUN
    assert f"{tmp_path} cannot be written" in capsys.readouterr().err
