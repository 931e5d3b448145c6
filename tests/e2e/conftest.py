"""Fixtures of the black-box tests: servers as processes, started by the command that `--server-command` names, and the
check of everything that was read of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.promise_cases import PROMISES
from tests.e2e.promises import VERDICT, Verdict, table
from tests.e2e.server import DEFAULT_COMMAND, ServerProcess, fake_server
from tests.e2e.wire import Wire, noting
from tools.words import split_words


@pytest.fixture(scope="session", autouse=True)
def wire() -> Iterator[Wire]:
    with noting() as made:
        yield made


@pytest.fixture(autouse=True)
def every_answer_keeps_the_rules(wire: Wire) -> Iterator[None]:
    """Whoever read it, and whether or not to its end."""
    yield
    wire.check()


@pytest.fixture(scope="session")
def server_command(request: pytest.FixtureRequest) -> tuple[str, ...]:
    given = request.config.getoption("--server-command")
    return tuple(split_words(given)) if given else DEFAULT_COMMAND


@pytest.fixture
def fake(server_command: tuple[str, ...], tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Start a server over the fake engine: `fake(script, *options)`; ended with the test."""
    with ExitStack() as stack:

        def start(script: dict[str, Any], *options: str) -> ServerProcess:
            folder = tmp_path / f"server-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return stack.enter_context(fake_server(server_command, script, folder, *options))

        yield start


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """With --server-root: which promises that server keeps."""
    reports = [one for kind in ("passed", "failed", "skipped") for one in terminalreporter.getreports(kind)]
    properties = [one for report in reports if report.when == "call" for one in report.user_properties]
    told: dict[str, Any] = {value[0]: value for name, value in properties if name == VERDICT}
    if told and (root := config.getoption("--server-root")):
        terminalreporter.section(f"the promises of {root}")
        for line in table([Verdict(one, *told[one.id][1:]) for one in PROMISES if one.id in told]):
            terminalreporter.write_line(line)
