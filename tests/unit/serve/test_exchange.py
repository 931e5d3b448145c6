"""Routes: one segment in braces stands for any, nothing else does."""

from __future__ import annotations

import pytest

from serve.exchange import Route
from serve.server import Handler


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/things/abc", {"id": "abc"}),
        ("/v1/things/", {"id": ""}),
        ("/v1/things", None),
        ("/v1/things/abc/parts", None),
        ("/v1/other/abc", None),
    ],
)
def test_a_segment_in_braces_matches_one_segment(path: str, expected: dict[str, str] | None) -> None:
    assert Route("/v1/things/{id}", {}).match(path) == expected


def test_no_two_routes_have_the_same_path() -> None:
    paths = [route.path for route in Handler.routes]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/messages", True),
        ("/v1/messages/", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messageses", False),
        ("/v1", False),
        ("", False),
    ],
)
def test_an_api_has_the_paths_under_its_own(path: str, expected: bool) -> None:
    (dialect,) = Handler.dialects
    assert dialect.has(path) is expected
