"""What servers say that they run: each form is read, and a server without one is no occasion."""

from __future__ import annotations

import pytest

from tests.scripted_upstream import ScriptedUpstream, answer
from tools.conform_checks.check import NotSeen
from tools.conform_checks.gauge import Gauge, Load
from tools.probe.target import parse_target

FORMS = [
    (
        "/status",
        b'{"engine": {"slots": 4, "finishing": 1}, "queue": {"running": 2, "waiting": 3}}',
        Load(3, 3, 4),
    ),
    ("/slots", b'[{"id": 0, "is_processing": true}, {"id": 1, "is_processing": false}]', Load(1, None, 2)),
    ("/metrics", b"# HELP x\nllamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n", Load(2, 1)),
    (
        "/metrics",
        b'vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_running{engine="1"} 2.0\n'
        b'vllm:num_requests_waiting{engine="0"} 0.0\n',
        Load(3, 0),
    ),
    ("/metrics", b'sglang:num_running_reqs{model="m"} 5.0\n', Load(5, None)),
]


@pytest.mark.parametrize(("page", "body", "load"), FORMS, ids=["ours", "slots", "llama.cpp", "vllm", "sglang"])
def test_each_form_is_read(page: str, body: bytes, load: Load) -> None:
    with ScriptedUpstream(lambda peer: None, {page: answer(body)}) as server:
        gauge = Gauge(parse_target(server.url + "/v1"))
        assert gauge.load() == load
        assert gauge.load() == load


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"queue": 5}', b"other 5\n", b"vllm:num_requests_running 1e999\n"])
def test_other_pages_are_no_gauge(body: bytes) -> None:
    pages = {page: answer(body) for page in ("/status", "/slots", "/metrics")}
    with ScriptedUpstream(lambda peer: None, pages) as server, pytest.raises(NotSeen, match="does not say"):
        Gauge(parse_target(server.url)).load()


def test_waiting_for_a_load_ends_with_it_or_at_the_limit() -> None:
    with ScriptedUpstream(lambda peer: None, {"/status": answer(b'{"queue": {"running": 1}}')}) as server:
        gauge = Gauge(parse_target(server.url))
        assert gauge.wait(lambda load: load.running == 1, 5.0) is not None
        assert gauge.wait(lambda load: load.running == 0, 0.05) is None
