"""Asking: what is asked again, what is asked once, and which servers cannot be judged at all."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from tests.scripted_upstream import Peer, Script, ScriptedUpstream, answer, head
from tests.unit.tools.conform_checks.honest import Honest, Lie
from tests.unit.tools.conform_checks.rig import IMPATIENT, SETTINGS, bench_of
from tools.conform_checks import bench as bench_module
from tools.conform_checks.bench import Bench
from tools.conform_checks.check import Check, NotSeen, NotThere
from tools.conform_checks.score import judge, judge_all
from tools.conform_checks.table import CHECKS, chosen
from tools.probe.exits import CouldNotRun
from tools.probe.target import parse_target

WHOLE = answer(b'{"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]}')
FULL = answer(b'{"error": {"message": "too many requests"}}', 429, retry_after="0")


def named(name: str) -> Check:
    return next(check for check in CHECKS if check.id == name)


def of(server: ScriptedUpstream) -> Bench:
    return Bench(parse_target(server.url), "m", SETTINGS)


# --- a server that is full --------------------------------------------------------------------------


def test_server_that_is_full_for_a_while_is_asked_again() -> None:
    answers = itertools.chain([FULL, FULL], itertools.repeat(WHOLE))
    with ScriptedUpstream(lambda peer: peer.send(next(answers))) as server:
        assert of(server).body("chat", "limit").word == "stop"
        assert len(server.requests) == 3


def test_server_that_stays_full_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "FULL_S", 0.3)
    with ScriptedUpstream(lambda peer: peer.send(FULL)) as server:
        bench = of(server)
        assert bench.start("chat", "limit", stream=False).join().status == 429
        asked = len(server.requests)
        assert asked > 1
        assert bench.start("chat", "short", stream=False).join().status == 429
        assert len(server.requests) == asked + 1


def test_what_a_full_queue_still_runs_is_no_reason_to_refuse_the_next_check() -> None:
    """The server finds out late that the clients of the flood have left."""
    lie = Lie("", traits={"frees": False}, engine={"pieces": 80, "pace_s": 0.01})
    with bench_of(lie) as bench:
        cells = [judge(bench, named(name), named(name).scopes[0]) for name in ("queue-full", "killed-no-success")]
    assert [(cell.result, cell.text) for cell in cells] == [("passed", "")] * 2


# --- a server that cannot be judged -----------------------------------------------------------------


def hang(peer: Peer) -> None:
    peer.wait_gone()


def sends(data: bytes) -> Script:
    return lambda peer: peer.send(data)


NO_KEY = answer(b'{"error": {"message": "who are you"}}', 401)
UNUSABLE: dict[str, tuple[Script, str]] = {
    "a wrong key": (sends(NO_KEY), "who are you.*give the server's key with --api-key"),
    "no right": (sends(NO_KEY.replace(b"401", b"403")), "--api-key"),
    "a reset": (Peer.reset, r"no answer \(the connection was reset"),
    "another protocol": (sends(b"SSH-2.0-OpenSSH_9.6\r\n"), "no answer"),
    "a page": (sends(answer(b"<html></html>", content_type="text/html")), "<html>"),
    "another place": (sends(head(301, location="https://example.org/v1", content_length="0")), "leads to 'https://exa"),
    "a broken engine": (sends(answer(b'{"error": {"message": "no model"}}', 503)), "status 503.*no model"),
    "no model of that name": (sends(answer(b'{"error": {"code": "model_not_found"}}', 404)), "model_not_found"),
    "no such API": (sends(answer(b"no", 404)), "none of the APIs; is this the base URL"),
    "silence": (hang, r"no answer \(nothing came for 0.3 s\); --patience-s N waits longer"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_server_without_one_plain_answer_is_not_judged(name: str) -> None:
    """Its refusals of everything are no lies about anything."""
    script, why = UNUSABLE[name]
    with ScriptedUpstream(script) as server:
        bench = of(server)
        bench.settings = replace(IMPATIENT, patience_s=0.3)
        with pytest.raises(CouldNotRun, match=why):
            judge_all(bench, chosen([], []), lambda check, scope: None, "s")


def test_server_that_hangs_is_given_up_after_the_first_api() -> None:
    with ScriptedUpstream(hang) as server:
        bench = of(server)
        bench.settings = replace(IMPATIENT, patience_s=0.3)
        with pytest.raises(CouldNotRun):
            judge_all(bench, chosen([], []), lambda check, scope: None, "s")
        assert len(server.requests) == 1


def test_server_that_streams_nothing_and_has_bodies_is_judged() -> None:
    def script(peer: Peer) -> None:
        peer.send(answer(b'{"error": {"message": "no streams"}}', 500) if peer.request.json.get("stream") else WHOLE)

    with ScriptedUpstream(script) as server:
        bench = of(server)
        bench.require("chat")
        assert judge(bench, named("whole-body"), "chat").result == "passed"
        assert judge(bench, named("whole-stream"), "chat").result == "not seen"


def test_api_that_wants_another_key_is_not_seen_and_the_others_are_judged() -> None:
    def script(peer: Peer) -> None:
        peer.send(NO_KEY if peer.request.path.endswith("/messages") else WHOLE)

    with ScriptedUpstream(script) as server:
        bench = of(server)
        score = judge_all(bench, chosen(["bad-json", "whole-body"], []), lambda check, scope: None, "s")
    results = {f"{cell.check.id}/{cell.scope}": cell.result for cell in score.cells}
    assert results["whole-body/chat"] == "passed"
    assert {result for name, result in results.items() if "messages" in name} == {"not seen"}
    assert bench.apis() == ["chat", "completions", "responses"]


def test_api_that_was_not_chosen_is_not_asked() -> None:
    with Honest() as server:
        bench = Bench(parse_target(server.url), "m", SETTINGS)
        judge_all(bench, chosen(["limit-body/responses"], []), lambda check, scope: None, "s")
        with pytest.raises(NotThere):
            Bench(parse_target(server.url + "/other"), "m", SETTINGS).require("chat")
        assert server.kept == {}
        assert server.next_id("responses") == "resp_3"  # a plain request, and the one that is judged


def test_what_was_not_seen_is_not_asked_again() -> None:
    with ScriptedUpstream(sends(answer(json.dumps({"error": "no"}).encode(), 500))) as server:
        bench = of(server)
        for _ in range(2):
            with pytest.raises(NotSeen, match="500"):
                bench.body("chat", "limit")
        assert len(server.requests) == 1
