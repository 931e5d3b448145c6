"""A server's URL -> where each of its APIs is, and what a request to it looks like on the wire.

It opens no connection.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from tools.probe.coding import READABLE
from tools.probe.exits import CouldNotRun
from tools.probe.secret import Secret
from tools.probe.values import shown

Api = Literal["chat", "completions", "responses", "messages"]
APIS: tuple[Api, ...] = get_args(Api)
ROUTES: Mapping[Api, str] = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "responses": "/responses",
    "messages": "/messages",
}
ANTHROPIC_VERSION = "2023-06-01"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """A server. `base` is the path in front of the routes, as `/v1`; `query` goes with every request.

    `asked`: the API whose route the URL named.
    """

    scheme: str
    host: str
    port: int
    base: str
    query: str = ""
    asked: Api | None = None
    secret: Secret = field(default_factory=Secret)

    @property
    def shown(self) -> str:
        """For people. The query is left out: some put keys there."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.base}"

    def path(self, route: str) -> str:
        return self.base + route + (f"?{self.query}" if self.query else "")

    def post(self, api: Api, body: object, *fields: tuple[str, str], version: str = "HTTP/1.1") -> bytes:
        """A whole request with a JSON body (bytes as they are) to the API's route."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", ROUTES[api], raw, api, *fields, version=version)

    def get(self, route: str, *fields: tuple[str, str]) -> bytes:
        return self.request("GET", route, b"", self.asked or "chat", *fields)

    def request(
        self, method: str, route: str, body: bytes, api: Api, *fields: tuple[str, str], version: str = "HTTP/1.1"
    ) -> bytes:
        """A whole request, with the key as the API wants it; `fields` replace those of the same name."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        names = {
            "Host": host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}",
            "User-Agent": "strata-check",
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": READABLE,
            "Connection": "close",
        }
        if body or method == "POST":
            names |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        if self.secret:
            names["Authorization"] = f"Bearer {self.secret.expose()}"
        if api == "messages":
            names["anthropic-version"] = ANTHROPIC_VERSION
            if self.secret:
                names["x-api-key"] = self.secret.expose()
        names = {
            name: value for name, value in names.items() if name.lower() not in {each.lower() for each, _ in fields}
        }
        lines = [f"{method} {self.path(route)} {version}", *(f"{name}: {value}" for name, value in names.items())]
        lines += [f"{name}: {value}" for name, value in fields]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def parse_target(url: str, secret: Secret | None = None) -> Target:
    """A base URL (`http://HOST:PORT`, `…/v1`) or the full one of a route.

    Raises: CouldNotRun: it is no URL that can be asked.
    """
    secret = secret or Secret()
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
        host = host if host.isascii() else host.encode("idna").decode()
    except ValueError as error:
        raise CouldNotRun(
            f"url: {error}; use http://HOST:PORT/v1, and brackets for IPv6: http://[::1]:8095/v1"
        ) from None
    if parts.username is not None or parts.password is not None:
        raise CouldNotRun("url: credentials in a URL are not taken; use --api-key or OPENAI_API_KEY")
    if parts.scheme not in _PORTS or not host:
        raise CouldNotRun(f"url: {shown(f'{parts.scheme}://{host}')} cannot be asked; use http://HOST:PORT/v1")
    path = urllib.parse.quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
    query = urllib.parse.quote(parts.query, safe="/%:@!$&'()*+,;=~?")
    asked: Api | None = None
    for api in APIS:  # chat before completions, whose route is its end
        if path.endswith(ROUTES[api]):
            asked, path = api, path.removesuffix(ROUTES[api])
            break
    return Target(
        parts.scheme, host, port or _PORTS[parts.scheme], path or ("" if asked else "/v1"), query, asked, secret
    )
