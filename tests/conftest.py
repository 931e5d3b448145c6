"""Options and markers of the whole suite. It makes no servers or engines."""

from __future__ import annotations

import os
import shutil
import signal

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("strata-serve")
    group.addoption(
        "--server-command",
        metavar="COMMAND",
        default=None,
        help="the server of the end-to-end tests, one shell-quoted string (default: this checkout's python -m serve)",
    )
    group.addoption("--long", action="store_true", help="run the tests marked long, too")


def pytest_configure() -> None:
    # A shell starts what runs in its background with Ctrl-C ignored, and every process of a test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what cannot run here, each with its reason. The default engine and model are part of the set-up: no skip."""
    reasons: dict[str, str] = {}
    if not config.getoption("--long"):
        reasons["long"] = "takes minutes; run with --long"
    if not os.environ.get("STRATA_CONFIG"):
        reasons["cuda"] = "needs a real engine: STRATA_CONFIG names its run config"
    if not os.environ.get("STRATA_VLLM"):
        reasons["vllm"] = "needs a real vLLM: STRATA_VLLM names its program (CONTRIBUTING.md says how to get one)"
    if shutil.which("wine") is None:
        reasons["wine"] = "needs wine"
    for item in items:
        for name, reason in reasons.items():
            if item.get_closest_marker(name) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
