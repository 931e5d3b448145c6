"""Stop strings over the borders of pieces."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve.assemble.stops import StopFinder


def run(text: str, stops: tuple[str, ...], size: int) -> tuple[str, str | None]:
    finder = StopFinder(stops)
    out = "".join([finder.feed(text[at : at + size]) for at in range(0, len(text), size)])
    return out + finder.flush(), finder.found


TABLE = {
    "none given": ("hello", (), "hello", None),
    "empty ones do not count": ("hello", ("",), "hello", None),
    "not in the text": ("hello", ("x",), "hello", None),
    "in the middle": ("one STOP two", ("STOP",), "one ", "STOP"),
    "at the start": ("STOP", ("STOP",), "", "STOP"),
    "only its beginning": ("one STO", ("STOP",), "one STO", None),
    "its beginning twice": ("STSTOP", ("STOP",), "ST", "STOP"),
    "overlapping itself": ("aabaabaac", ("aabaac",), "aab", "aabaac"),
    "the first that is complete": ("abcd", ("abcd", "bc"), "a", "bc"),
    "two complete at once: the longer": ("xabc", ("bc", "abc"), "x", "abc"),
    "a character of four bytes": ("a😀b", ("😀",), "a", "😀"),
    "newlines": ("a\n\nb", ("\n\n",), "a", "\n\n"),
}


@pytest.mark.parametrize("text, stops, passed, found", TABLE.values(), ids=TABLE)
@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_text_ends_before_the_stop_string(
    text: str, stops: tuple[str, ...], passed: str, found: str | None, size: int
) -> None:
    assert run(text, stops, size) == (passed, found)


def test_only_a_possible_beginning_is_held() -> None:
    finder = StopFinder(("STOP",))
    assert finder.feed("one S") == "one "
    assert finder.feed("T") == ""
    assert finder.feed("x S") == "STx "
    assert finder.flush() == "S"
    assert finder.feed("TOP") == "TOP", "flushed text is not part of a later match"


def test_nothing_is_passed_on_after_the_stop_string() -> None:
    finder = StopFinder(("x",))
    assert finder.feed("axb") == "a"
    assert finder.feed("more") == ""
    assert finder.flush() == ""


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.text("ab", max_size=40),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3).map(tuple),
    st.integers(1, 5),
)
def test_cuts_change_nothing_and_the_first_complete_one_wins(text: str, stops: tuple[str, ...], size: int) -> None:
    passed, found = run(text, stops, size)
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        assert (passed, found) == (text, None)
    else:
        end, _, stop = min(ends)
        assert (passed, found) == (text[: end - len(stop)], stop)
