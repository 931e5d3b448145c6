"""The package's public names."""

from __future__ import annotations

from serve import assemble


def test_public_names_are_these() -> None:
    assert assemble.__all__ == ["ParseConfig", "TokenBytes", "ToolSpec", "assemble"]
    assert sorted(assemble.__all__) == assemble.__all__
    for name in assemble.__all__:
        assert hasattr(assemble, name)
