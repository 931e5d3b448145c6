"""Options and markers of the whole suite. It makes no servers or engines."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("strata-serve")
    group.addoption(
        "--server-command",
        metavar="COMMAND",
        default=None,
        help="the server of the end-to-end tests, one shell-quoted string (default: this checkout's python -m serve)",
    )
    group.addoption(
        "--server-root",
        metavar="CHECKOUT",
        default=None,
        help="run only the promises of the ending contract, on the server of this Strata checkout over our fake engine",
    )
    group.addoption("--long", action="store_true", help="run the tests marked long, too")


def pytest_configure(config: pytest.Config) -> None:
    root = config.getoption("--server-root")
    if root and not (Path(root) / "serve" / "server.py").is_file():
        raise pytest.UsageError(f"--server-root {root}: no serve/server.py in it; name the folder that holds `serve`")
    os.environ.setdefault("STRATA_TEST_SEED", str(random.SystemRandom().randrange(10**6)))  # one for all processes
    # A shell starts what runs in its background with Ctrl-C ignored, and every process of a test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what cannot run here, each with its reason. The default engine and model are part of the set-up: no skip.
    Another tree's server is asked for its promises only: it need not have our options."""
    if config.getoption("--server-root"):
        others = [item for item in items if item.path.name != "test_promises.py"]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.path.name == "test_promises.py"]
    reasons: dict[str, str] = {}
    if not config.getoption("--long"):
        reasons["long"] = "takes minutes; run with --long"
    if not os.environ.get("STRATA_CONFIG"):
        reasons["cuda"] = "needs a real engine: STRATA_CONFIG names its run config"
    if not os.environ.get("STRATA_VLLM"):
        reasons["vllm"] = "needs a real vLLM: STRATA_VLLM names its program (CONTRIBUTING.md says how to get one)"
    if os.name != "nt" and not (ROOT / ".wine" / "ready").exists():
        reasons["wine"] = "needs a Windows, or Wine: python3 tools/dev.py wine"
    for item in items:
        for name, reason in reasons.items():
            if item.get_closest_marker(name) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
