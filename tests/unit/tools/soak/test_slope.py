"""tools/soak/slope.py: what leaks is seen, what fills up, jumps, wanders or is loaded anew is not."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from tools.soak.slope import LEAST_POINTS, Point, fit, judge_growth, merged

MIB = 1 << 20
FLOOR = 16 * MIB


def noisy(values: list[float], *, seed: int = 1, noise: float = MIB / 2) -> list[Point]:
    chance = random.Random(seed)
    return [Point(at, value + chance.gauss(0, noise)) for at, value in enumerate(values)]


def wandering(seed: int, *, hold: float, count: int = 200, step: float = 4 * MIB) -> list[Point]:
    """Noise in which each value holds on to the one before."""
    chance = random.Random(seed)
    values = itertools.accumulate(range(count), lambda last, _: hold * last + chance.gauss(0, step), initial=0.0)
    return [Point(at, 100 * MIB + value) for at, value in enumerate(values)]


def test_slope_and_its_error_are_those_of_least_squares() -> None:
    points = [
        Point(at, value) for at, value in enumerate([1.0, 3.0, 2.0, 5.0, 4.0, 6.0, 8.0, 7.0, 9.0, 11.0, 10.0, 12.0])
    ]
    slope = fit(points)
    assert slope is not None
    assert slope.per_stream == pytest.approx(139 / 143)  # the products' sum over that of the squares
    assert slope.level == pytest.approx(6.5)
    assert slope.span == 11
    rest = [point.value - 6.5 - slope.per_stream * (point.streams - 5.5) for point in points]
    plain = math.sqrt(math.fsum(value * value for value in rest) / 10 / 143)
    assert slope.error == pytest.approx(plain)  # what is left over goes up and down: nothing to widen


@pytest.mark.parametrize("count", [0, 1, LEAST_POINTS - 1])
def test_few_points_say_nothing(count: int) -> None:
    points = [Point(at, at * FLOOR) for at in range(count)]
    assert fit(points) is None
    assert judge_growth(points, floor=FLOOR).why == "too short to say"


def test_points_of_one_place_say_nothing() -> None:
    assert fit([Point(7, value) for value in range(50)]) is None


def test_steady_leak_is_one() -> None:
    growth = judge_growth(noisy([100 * MIB + at * MIB / 2 for at in range(100)]), floor=FLOOR)
    assert growth.leak
    assert growth.slope is not None
    assert growth.slope.per_stream == pytest.approx(MIB / 2, rel=0.05)


def test_exact_line_has_no_error_and_is_a_leak() -> None:
    assert judge_growth([Point(at, 10 + at) for at in range(50)], floor=4).leak


def test_leak_in_steps_is_one() -> None:
    """Each tenth stream takes a buffer."""
    assert judge_growth([Point(at, 100 * MIB + at // 10 * 8 * MIB) for at in range(100)], floor=FLOOR).leak


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_leak(seed: int) -> None:
    growth = judge_growth(noisy([100 * MIB] * 100, seed=seed, noise=30 * MIB), floor=0)
    assert not growth.leak


def test_what_wanders_is_hardly_ever_a_leak() -> None:
    """An error that took each sample for a new one would call a third of these leaks."""
    leaks = sum(judge_growth(wandering(seed, hold=0.95), floor=0, share=0).leak for seed in range(200))
    assert leaks <= 6


def test_jump_is_no_leak() -> None:
    values = [100.0 * MIB] * 40 + [150.0 * MIB] * 60
    assert not judge_growth(noisy(values), floor=FLOOR).leak


def test_cache_that_fills_up_is_no_leak() -> None:
    values = [100 * MIB + 80 * MIB * (1 - math.exp(-at / 12)) for at in range(100)]
    growth = judge_growth(noisy(values), floor=FLOOR)
    assert not growth.leak


def test_small_growth_does_not_matter() -> None:
    growth = judge_growth(noisy([100 * MIB + at * MIB / 10 for at in range(100)], noise=1), floor=FLOOR)
    assert (growth.leak, growth.why) == (False, "rises, too little to matter")


def test_small_share_of_much_does_not_matter() -> None:
    growth = judge_growth(noisy([20_000 * MIB + at * MIB for at in range(100)], noise=1), floor=FLOOR)
    assert (growth.leak, growth.why) == (False, "rises, too little to matter")


def test_what_falls_is_no_leak() -> None:
    growth = judge_growth(noisy([200 * MIB - at * MIB for at in range(100)]), floor=FLOOR)
    assert (growth.leak, growth.why) == (False, "falls")
    growth = judge_growth(noisy([200 * MIB - at * MIB / 1_000 for at in range(100)], noise=30 * MIB), floor=FLOOR)
    assert (growth.leak, growth.why) == (False, "no clear rise")
    assert judge_growth(noisy([MIB] * 100, noise=0), floor=FLOOR).why == "no clear rise"


def test_lives_have_levels_of_their_own() -> None:
    """A second life on a higher level is no slope; a leak in each is one."""
    flat = [Point(at, (100 if at < 50 else 300) * MIB, life=at // 50) for at in range(100)]
    assert not judge_growth(flat, floor=FLOOR).leak
    leaking = [Point(at, (100 + at % 50) * MIB, life=at // 50) for at in range(100)]
    growth = judge_growth(leaking, floor=FLOOR)
    assert growth.leak
    assert growth.slope is not None and growth.slope.per_stream == pytest.approx(MIB)
    assert growth.slope.span == 98


def test_life_of_few_points_is_left_out() -> None:
    points = [Point(at, 100.0, life=0) for at in range(20)] + [Point(20 + at, 1e9 * at, life=1) for at in range(3)]
    slope = fit(points)
    assert slope is not None and slope.per_stream == 0


def test_samples_without_work_between_them_count_once() -> None:
    points = [Point(1, 4.0), Point(1, 6.0), Point(2, 9.0), Point(2, 9.0, life=1), Point(1, 1.0)]
    assert merged(points) == [Point(1, 5.0), Point(2, 9.0), Point(2, 9.0, life=1), Point(1, 1.0)]
