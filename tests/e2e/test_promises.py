"""Which promises of the ending contract a server keeps: ours all of them; another tree's with `--server-root TREE`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.promise_cases import PROMISES
from tests.e2e.promises import VERDICT, Promise, Site, judge

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    given = request.config.getoption("--server-root")
    with Site(Path(given) if given else ROOT, tmp_path_factory.mktemp("promises")) as made:
        try:
            made.start()
        except AssertionError as error:
            if given:  # said once, not for each promise
                pytest.exit(str(error), returncode=2)
            raise
        yield made


@pytest.mark.parametrize("one", PROMISES, ids=lambda one: one.id)
def test_promise_is_kept(one: Promise, site: Site, request: pytest.FixtureRequest) -> None:
    verdict = judge(one, site)
    request.node.user_properties.append((VERDICT, (one.id, verdict.state, verdict.evidence)))
    if verdict.state == "not there" and request.config.getoption("--server-root"):
        pytest.skip(f"not there: {verdict.evidence}")
    if verdict.state != "kept":
        pytest.fail(f"{verdict.state}: {verdict.evidence}", pytrace=False)
