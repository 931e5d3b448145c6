"""tools/probe/said.py: what was made is all there, and takes about the memory of its text."""

from __future__ import annotations

import tracemalloc

import pytest

from tools.probe import said
from tools.probe.said import Said


def test_all_pieces_are_there_in_their_order() -> None:
    made = Said()
    assert (bool(made), str(made)) == (False, "")
    words = [str(number) for number in range(2_500)]
    for word in words:
        made.append(word)
        made.append("")
    assert "".join(made) == str(made) == "".join(words)
    assert (len(made), made.full) == (2_500, False)


def test_many_small_pieces_take_little_more_than_their_text() -> None:
    made = Said()
    tracemalloc.start()
    for number in range(200_000):
        made.append(f"{number:06}")
    now, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert now < 2 * 6 * 200_000


def test_at_its_limit_it_says_that_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "MOST_CHARACTERS", 10)
    made = Said()
    for _ in range(5):
        made.append("abcd")
    assert (str(made), made.full, len(made)) == ("abcdabcd", True, 5)
