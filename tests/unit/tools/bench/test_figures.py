"""tools/bench/figures.py: medians, percentiles, and ratios of what belongs together."""

from __future__ import annotations

import pytest

from tools.bench.figures import Curve, median_figure, percentile, ranked, ratio_of


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.25, 1.0), (0.5, 2.0), (0.75, 3.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == value


def test_ratio_is_that_of_the_pairs_not_of_the_medians() -> None:
    """A machine that was slow for a while was slow for both."""
    assert ratio_of([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == 2.0
    assert ratio_of([2.0, 1.0, 200.0], [1.0, 10.0, 100.0]) == 2.0


def test_ratio_to_nothing_is_none() -> None:
    assert ratio_of([1.0, 2.0], [0.0, 1.0]) is None
    assert ratio_of([], [1.0]) is None


def test_figure_stands_beside_what_it_is_compared_with() -> None:
    figure = median_figure("a", "ms", [3.0, 1.0, 2.0], [1.0, 1.0, 1.0], "b")
    assert (figure.value, figure.beside, figure.ratio, figure.count, figure.against) == (2.0, 1.0, 2.0, 3, "b")
    alone = median_figure("a", "ms", [3.0, 1.0])
    assert (alone.value, alone.beside, alone.ratio) == (2.0, None, None)


def test_ranked_values_rise_to_all_of_them() -> None:
    assert ranked("a", [3.0, 1.0]) == Curve("a", ((1.0, 0.5), (3.0, 1.0)))
