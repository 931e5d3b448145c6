"""Options that the checkers share: the server, its model and key, where reports go. It reads no environment."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from tools.probe.exits import CouldNotRun
from tools.probe.report import Parser
from tools.probe.secret import Secret
from tools.probe.target import APIS, Api, Target, parse_target

STATUS_HELP = "exit status: 0 truthful; 1 a lie, a cut or a broken format was seen; 2 could not run"


def parser(name: str, about: str | None) -> Parser:
    """A parser for `python -m tools.NAME`."""
    first = (about or "").strip().splitlines()[0]
    return Parser(prog=f"python -m tools.{name}", description=first, epilog=STATUS_HELP)


def add_server(options: argparse.ArgumentParser, *, with_api: bool = True) -> None:
    if with_api:
        options.add_argument("--api", choices=APIS, help="default: what the URL's path names, else chat")
    options.add_argument("--model", help="default: the first of the server's /v1/models")
    key = "default: OPENAI_API_KEY or ANTHROPIC_API_KEY; it is never shown"
    options.add_argument("--api-key", metavar="KEY", help=key)
    options.add_argument("--insecure", action="store_true", help="take any certificate")


def add_reports(options: argparse.ArgumentParser) -> None:
    options.add_argument("--json", type=Path, metavar="FILE", help="write what was seen as JSON")
    options.add_argument("--junit", type=Path, metavar="FILE", help="write what was seen as JUnit XML")


def target_of(url: str, api: Api | None, secret: Secret) -> tuple[Target, Api]:
    """The server, and which API of it is meant.

    Raises: CouldNotRun: the URL is none, or names another API.
    """
    target = parse_target(url, secret)
    if api is not None and target.asked is not None and api != target.asked:
        raise CouldNotRun(f"api: {api} contradicts the URL, which names {target.asked}; leave one out")
    chosen = api or target.asked or "chat"
    return replace(target, asked=chosen), chosen
