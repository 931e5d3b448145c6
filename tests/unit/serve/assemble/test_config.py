"""The values that parsing depends on."""

from __future__ import annotations

import dataclasses

import pytest

from serve.assemble.config import ParseConfig, ToolSpec


def test_plain_answer_needs_nothing() -> None:
    assert ParseConfig() == ParseConfig(thinking=False, tools=(), stop=(), end_ids=frozenset())
    assert ToolSpec("f").parameters == {}


def test_values_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ParseConfig().thinking = True  # type: ignore[misc] - that is the point
