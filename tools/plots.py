"""Pictures for reports, where matplotlib is installed. It knows nothing of what is drawn.

matplotlib's own types are not complete: what is used of it is written down here.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Sequence
from typing import Protocol, cast

LIBRARY = "matplotlib"
HOW_TO_GET = "plots need matplotlib: pip install 'strata-serve[tools]' (from a checkout: -e '.[tools]')"
DPI = 110
BLUE, PURPLE, GREEN, RED, YELLOW, GREY, BLACK = (
    "#2f6db5",
    "#8e5ea2",
    "#2e8b57",
    "#c0392b",
    "#e0a030",
    "#9aa0a6",
    "#222222",
)
_SMALL = 7
MAX_POINTS = 20_000
"""Of a longer line every so-manieth point is drawn: a picture has no place for more."""


class _Axes(Protocol):
    def plot(self, x: Sequence[float], y: Sequence[float], style: str, **how: object) -> object: ...
    def axvline(self, x: float, **how: object) -> object: ...
    def barh(self, y: Sequence[float], width: Sequence[float], **how: object) -> object: ...
    def set_yticks(self, ticks: Sequence[float], labels: Sequence[str]) -> object: ...
    def set_title(self, label: str, **how: object) -> object: ...
    def set_xlabel(self, xlabel: str, **how: object) -> object: ...
    def set_xscale(self, value: str) -> object: ...
    def set_xlim(self, left: float, right: float) -> object: ...
    def set_ylim(self, bottom: float) -> object: ...
    def grid(self, **how: object) -> object: ...
    def tick_params(self, **how: object) -> object: ...
    def legend(self, **how: object) -> object: ...


class _Figure(Protocol):
    def add_subplot(self, rows: int, columns: int, number: int) -> _Axes: ...
    def savefig(self, file: io.BytesIO, **how: object) -> object: ...


class _Module(Protocol):
    def Figure(self, **how: object) -> _Figure: ...


class Panel:
    """One diagram of a picture."""

    def __init__(self, axes: _Axes) -> None:
        self._axes = axes
        self._named = 0
        self._title = ""
        axes.grid(visible=True, alpha=0.25)
        axes.tick_params(labelsize=_SMALL)

    def title(self, text: str) -> None:
        self._title = text

    def below(self, text: str) -> None:
        """What stands under the horizontal axis."""
        self._axes.set_xlabel(text, fontsize=_SMALL)

    def line(
        self, points: Sequence[tuple[float, float]], colour: str, name: str | None = None, *, style: str = "-"
    ) -> None:
        """`style`: `-`, `--`, `.` (no line), `.-`; `steps`: it keeps its value until the next one."""
        how: dict[str, object] = {"drawstyle": "steps-post"} if style == "steps" else {}
        if name is not None:
            self._named += 1
            how["label"] = name
        form = "-" if style == "steps" else style
        drawn = points[:: -(-len(points) // MAX_POINTS) or 1]
        xs, ys = [x for x, _ in drawn], [y for _, y in drawn]
        self._axes.plot(xs, ys, form, color=colour, linewidth=1.1, markersize=3.5, **how)

    def mark(self, at: float, colour: str) -> None:
        """A thin line from top to bottom."""
        self._axes.axvline(at, color=colour, linewidth=0.6, alpha=0.7)

    def bars(self, bars: Sequence[tuple[str, float]], colour: str, *, origin: float = 0.0) -> None:
        """From top to bottom, each with its name, from `origin` to its value."""
        places = [float(-number) for number in range(len(bars))]
        self._axes.barh(places, [value - origin for _, value in bars], left=origin, color=colour, height=0.6)
        self._axes.set_yticks(places, [name for name, _ in bars])

    def from_zero(self) -> None:
        self._axes.set_ylim(0)

    def across(self, left: float, right: float) -> None:
        self._axes.set_xlim(left, right)

    def logarithmic(self) -> None:
        self._axes.set_xscale("log")

    def explain(self) -> None:
        """The title, and a legend where something has a name: both above, so that they hide nothing."""
        self._axes.set_title(self._title, fontsize=9, loc="left", pad=18 if self._named else 6)
        if self._named:
            above = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.1}
            self._axes.legend(fontsize=_SMALL, ncols=self._named, frameon=False, columnspacing=1.2, **above)


class Picture:
    """So many panels, in columns; sizes in inches, of the whole and of each row. It needs no screen.

    Raises: ImportError: matplotlib is not there.
    """

    def __init__(self, count: int, *, columns: int = 2, width: float = 13.0, height: float = 2.8) -> None:
        module = cast("_Module", importlib.import_module(f"{LIBRARY}.figure"))
        rows = -(-count // columns)
        self._figure = module.Figure(figsize=(width, height * rows), layout="constrained")
        self.panels = [Panel(self._figure.add_subplot(rows, columns, number + 1)) for number in range(count)]

    def png(self) -> bytes:
        for panel in self.panels:
            panel.explain()
        file = io.BytesIO()
        self._figure.savefig(file, format="png", dpi=DPI)
        return file.getvalue()


def can_plot() -> bool:
    return importlib.util.find_spec(LIBRARY) is not None
