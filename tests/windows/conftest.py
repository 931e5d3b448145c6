"""One Wine server for all tests here."""

from __future__ import annotations

import pytest

from tests.windows import rig


@pytest.fixture(scope="package", autouse=True)
def windows() -> None:
    rig.prepare()
