"""Where a server is, read from its URL.

It looks no name up and opens no connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a server is, from its URL. `base` is the URL's path without a slash at its end."""

    tls: bool
    host: str
    port: int
    base: str

    @property
    def authority(self) -> str:
        """`host:port`, as people and the Host header write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def origin_of(url: str) -> Origin:
    """Read the URL of a server.

    Raises: ValueError: it is not an http or https URL of a host, or has parts that make no sense here.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not a server's URL; write it as http://HOST:PORT")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("the URL has a user, a query or a fragment; give the key by its own option")
    tls = parts.scheme == "https"
    return Origin(tls, parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"))
