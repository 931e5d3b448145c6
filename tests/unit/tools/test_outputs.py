"""tools/outputs.py: what cannot be written is told at once, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.outputs import check_outputs
from tools.probe.exits import CouldNotRun


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
