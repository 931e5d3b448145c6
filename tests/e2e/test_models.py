"""The models of an upstream: `/v1/models` lists them all, and an answer says the one that was asked for."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.client import ask, chat, fetch
from tests.e2e.responses_client import request
from tests.e2e.server import ServerProcess
from tests.scripted_upstream import DONE, ScriptedUpstream, answer, delta, event, stream

MODELS = answer(json.dumps({"object": "list", "data": [{"id": "small"}, {"id": "large"}]}).encode())
HELLO = stream(event(delta(content="Hello")), event(delta("stop")), DONE)


def test_every_model_of_an_upstream_is_listed_and_named(server_command: tuple[str, ...], tmp_path: Path) -> None:
    with (
        ScriptedUpstream(HELLO, pages={"/v1/models": MODELS}) as upstream,
        ServerProcess(server_command, ["--upstream", upstream.url], tmp_path) as server,
    ):
        assert [model["id"] for model in fetch(server.port, "/v1/models")["data"]] == ["small", "large"]
        for asked, named in (("large", "large"), ("small", "small"), ("unknown", "small")):
            passed = ask(server.port, chat(stream=False, model=asked))
            assert passed.json["model"] == "m"  # what the upstream itself says passes
            answered = ask(server.port, request(stream=False, model=asked), path="/v1/responses")
            assert answered.json["model"] == named
