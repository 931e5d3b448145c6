"""tools/plots.py: pictures are PNG, and what is missing says how to get it."""

from __future__ import annotations

import pytest

from tools import plots
from tools.plots import BLUE, RED, Picture, can_plot


def test_picture_of_every_kind_of_panel_is_png() -> None:
    picture = Picture(3)
    lines, bars, empty = picture.panels
    lines.title("lines")
    for style in ("-", "--", ".", ".-", "steps"):
        lines.line([(1.0, 2.0), (2.0, 3.0)], BLUE, style, style=style)
    lines.mark(1.5, RED)
    lines.logarithmic()
    lines.from_zero()
    bars.bars([("first", 1.0), ("second", 2.0)], BLUE)
    empty.below("nothing")
    empty.line([], BLUE)
    empty.across(0.0, 1.0)
    assert picture.png().startswith(b"\x89PNG\r\n\x1a\n")


def test_missing_library_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_plot()
    monkeypatch.setattr(plots, "LIBRARY", "no_such_library")
    assert not can_plot()
    with pytest.raises(ImportError):
        Picture(1)
