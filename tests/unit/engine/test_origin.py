"""Servers' URLs, good and bad."""

from __future__ import annotations

import pytest

from engine.origin import Origin, origin_of


@pytest.mark.parametrize(
    ("url", "origin", "authority"),
    [
        ("http://localhost:8000", Origin(False, "localhost", 8000, ""), "localhost:8000"),
        ("http://localhost:8000/", Origin(False, "localhost", 8000, ""), "localhost:8000"),
        (" https://api.example.com/v1/ ", Origin(True, "api.example.com", 443, "/v1"), "api.example.com:443"),
        ("http://[::1]:81/x/v1", Origin(False, "::1", 81, "/x/v1"), "[::1]:81"),
        ("HTTP://Host", Origin(False, "host", 80, ""), "host:80"),
    ],
)
def test_a_url_is_read(url: str, origin: Origin, authority: str) -> None:
    assert (origin_of(url), origin.authority) == (origin, authority)


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://x", "http://", "http://x:99999", "http://x:y", "http://[::1", "http://u:p@x", "http://x/?q=1"]
)  # fmt: skip
def test_what_is_no_server_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        origin_of(url)


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="key by its own option") as caught:
        origin_of("http://user:secret@host")
    assert "secret" not in str(caught.value)
