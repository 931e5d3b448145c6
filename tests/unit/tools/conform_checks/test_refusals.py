"""Bad requests: each is bad in every API, and a prompt is only made longer than a room that is known."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.scripted_upstream import ScriptedUpstream, answer
from tests.unit.tools.conform_checks.rig import SETTINGS, bench_of
from tools.conform_checks.bench import Bench
from tools.conform_checks.check import NotSeen
from tools.conform_checks.occasions import request_body
from tools.conform_checks.refusals import BAD, INPUTS, MOST_CONTEXT, PLAIN, context, plain, refused, too_long
from tools.probe.target import APIS, Api, parse_target


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", PLAIN)
def test_plain_ones_differ_from_a_good_request_in_one_thing(name: str, api: Api) -> None:
    good = request_body(api, "m", "limit", stream=False)
    bad = BAD[name](api, good)
    if isinstance(bad, bytes):
        assert name in ("not JSON", "not an object")
        return
    assert len({key for key in {**good, **bad} if good.get(key) != bad.get(key)}) == 1


def test_each_is_asked_once_and_in_both_modes() -> None:
    with bench_of() as bench:
        assert [talk.status for talk in plain(bench, "chat")] == [400] * len(PLAIN)
        assert refused(bench, "chat", "not JSON") is plain(bench, "chat")[0]
        assert refused(bench, "chat", "a wrong type", stream=True).asked["stream"] is True


def bench_with(model: dict[str, object], **settings: int) -> tuple[ScriptedUpstream, Bench]:
    page = answer(json.dumps({"data": [{"id": "m"} | model]}).encode())
    server = ScriptedUpstream(lambda peer: peer.send(answer(b"{}", 400)), {"/v1/models": page})
    return server, Bench(parse_target(server.url), "m", replace(SETTINGS, **settings))


@pytest.mark.parametrize(
    "model",
    [{"max_model_len": 90}, {"context_length": 90}, {"max_input_tokens": 90}, {"meta": {"n_ctx": 90}}],
)
def test_room_is_what_the_server_tells(model: dict[str, object]) -> None:
    server, bench = bench_with(model)
    with server:
        assert context(bench) == 90
        talk = too_long(bench, "messages", stream=False)
        assert talk.status == 400
        words = str(talk.asked[INPUTS["messages"]]).count("hello ")
        assert words > 90 * 5 / 4


def test_room_that_nobody_tells_or_that_is_too_large_is_no_occasion() -> None:
    server, bench = bench_with({})
    with server, pytest.raises(NotSeen, match="give --context N"):
        context(bench)
    server, bench = bench_with({"context_length": MOST_CONTEXT + 1})
    with server, pytest.raises(NotSeen, match="would cost too much"):
        context(bench)
    server, bench = bench_with({"context_length": MOST_CONTEXT + 1}, context=50)
    with server:
        assert context(bench) == 50
