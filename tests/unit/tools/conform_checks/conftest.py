"""Readers of these tests look often whether they should stop, so that leaving takes no time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.probe import connection


@pytest.fixture(scope="session", autouse=True)
def quick_leaving() -> Iterator[None]:
    slice_s = connection.SLICE_S
    connection.SLICE_S = 0.01
    yield
    connection.SLICE_S = slice_s
