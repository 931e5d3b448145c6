"""tools/plots.py: pictures are PNG, and what is missing says how to get it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tools import plots
from tools.plots import BLUE, MAX_POINTS, RED, Panel, Picture, can_plot


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
    bars.bars([("first", 0.5), ("second", 20.0)], BLUE, origin=1.0)
    empty.below("nothing")
    empty.line([], BLUE)
    empty.across(0.0, 1.0)
    assert picture.png().startswith(b"\x89PNG\r\n\x1a\n")


def test_line_of_very_many_points_is_drawn_with_fewer() -> None:
    """A run of days has a million samples: the picture is as quick and as large as that of an hour."""
    drawn: list[int] = []

    class Axes:
        def plot(self, x: Sequence[float], y: Sequence[float], style: str, **how: object) -> None:
            drawn.append(len(x))

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_, **__: None

    panel = Panel(Axes())  # type: ignore[arg-type] - it has what is used
    for count in (0, 1, MAX_POINTS, MAX_POINTS + 1, 1_000_000):
        panel.line([(float(at), 1.0) for at in range(count)], BLUE)
    assert drawn == [0, 1, MAX_POINTS, MAX_POINTS // 2 + 1, MAX_POINTS]


def test_missing_library_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_plot()
    monkeypatch.setattr(plots, "LIBRARY", "no_such_library")
    assert not can_plot()
    with pytest.raises(ImportError):
        Picture(1)
