"""tools/check_responses.py over real sockets: who calls cut answers completed is AFFECTED, who is honest is OK."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.scripted_upstream import LAST_CHUNK, Peer, ScriptedUpstream, answer, chunk, head, sse_head
from tests.unit.tools.probe.streams import LIMITED, Responses, counted, function_call, message, response
from tools import check_responses

KEY = "sk-0123456789abcdef0123456789abcdef"
Json = dict[str, Any]
CUT = '{"path": "story.txt", "content": "It was'
ITEMS = tuple(check_responses.CHECKS)
CUT_ITEMS = ITEMS[:4]
CALLS = ITEMS[2:4]


@dataclass
class Server:
    """A Responses API over a model that always has more to say; each field is a way to lie. All of them at their
    defaults, it is honest."""

    text_status: str = "incomplete"
    call_status: str = "incomplete"
    item_status: str = "incomplete"
    details: Json | None = field(default_factory=lambda: dict(LIMITED["incomplete_details"]))
    event: str | None = None
    usage: bool = True
    whole_status: str = "completed"
    terminal: bool = True
    clean: bool = True
    call_begins: int = 24
    call_text: str = CUT
    makes_calls: bool = True
    item_done: str | None = None
    fails: bool = False
    created: bool = True
    bodies: list[Json] = field(default_factory=list[Json])

    def __call__(self, peer: Peer) -> None:
        body: Json = json.loads(peer.request.body)
        self.bodies.append(body)
        made = self._response(body)
        if body["stream"]:
            self._stream(peer, made)
        else:
            peer.send(answer(json.dumps(made).encode()))

    def _response(self, body: Json) -> Json:
        limit: int = body["max_output_tokens"]
        wants_call = self.makes_calls and "tools" in body
        if not wants_call and "hello" in str(body["input"]):
            usage = counted(3) if self.usage else None
            details = self.details if self.whole_status == "incomplete" else None
            return response(
                self.whole_status, output=[message("Hello.", "completed")], usage=usage, incomplete_details=details
            )
        status = self.call_status if wants_call else self.text_status
        item = message("one\ntwo\nthr", self.item_status)
        if wants_call and limit >= self.call_begins:
            item = function_call(self.call_text, self.item_status)
        details = self.details if status == "incomplete" else None
        error = {"code": "server_error", "message": "no"} if status == "failed" else None
        usage = counted(limit) if self.usage else None
        output = [item] if not wants_call or limit >= self.call_begins else []
        return response(status, output=output, usage=usage, incomplete_details=details, error=error)

    def _stream(self, peer: Peer, made: Json) -> None:
        to = Responses()
        pieces = [to.begin()]
        for item in made["output"]:
            if item["type"] == "message":
                pieces.append(to.text(item["content"][0]["text"]))
            else:
                pieces.append(to.call(item["arguments"]))
                done = self.item_done or (item["status"] if item["status"] == "completed" else None)
                pieces += [to.call_done(item["arguments"], done)] if done else []
        if self.terminal:
            status = self.event or made["status"]
            pieces.append(to.event(f"response.{status}", response=made))
        peer.send(sse_head(), *map(chunk, pieces), *([LAST_CHUNK] if self.clean else []))


class Run:
    def __init__(self, server: Server | Callable[[Peer], None], folder: Path, *words: str) -> None:
        with ScriptedUpstream(server) as upstream:
            argv = [upstream.url, "--json", str(folder / "a.json"), "--junit", str(folder / "a.xml"), *words]
            self.status = check_responses.main(argv)
        self.items: dict[str, Json] = {}
        if (folder / "a.json").exists():
            told = json.loads((folder / "a.json").read_text(encoding="utf-8"))
            self.items = {item["id"]: item for item in told["items"]}

    def verdicts(self) -> dict[str, str]:
        return {id_: item["verdict"] for id_, item in self.items.items()}


def test_an_honest_server_is_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server()
    run = Run(server, tmp_path)
    assert run.verdicts() == dict.fromkeys(ITEMS, "OK"), run.items
    assert run.status == 0
    assert "OK: cut answers say that they are" in capsys.readouterr().out
    assert run.items["truncated text"]["evidence"].startswith(
        "status 'incomplete' (max_output_tokens), 16 of at most 16 tokens, text ends in "
    )
    assert {body["model"] for body in server.bodies} == {"m"}
    assert [case.get("name") for case in ElementTree.parse(tmp_path / "a.xml").iter("testcase")] == list(ITEMS)
    assert not list(ElementTree.parse(tmp_path / "a.xml").iter("failure"))


LIARS: dict[str, tuple[Server, tuple[str, ...], str]] = {
    "completed at every limit": (
        Server(text_status="completed", call_status="completed", item_status="completed"), CUT_ITEMS, "completed"),
    "completed text": (Server(text_status="completed"), ITEMS[:2], "completed"),
    "completed calls": (Server(call_status="completed"), CALLS, "completed"),
    "completed without usage": (
        Server(text_status="completed", call_status="completed", item_status="completed", usage=False),
        CUT_ITEMS, "an unknown number of at most"),
    "the call alone says completed": (Server(item_status="completed"), CALLS, "a client may run it"),
    "the event says completed": (Server(event="completed"), (ITEMS[1], ITEMS[3]), "the event says completed"),
    "the event says incomplete": (
        Server(text_status="completed", call_status="completed", event="incomplete"),
        (*CUT_ITEMS, ITEMS[5]), "completed"),
    "no terminal": (Server(terminal=False), (ITEMS[1], ITEMS[3], ITEMS[5]), "clients take it for finished"),
    "a filter as the reason": (Server(details={"reason": "content_filter"}), CUT_ITEMS, "says content_filter"),
    "always incomplete": (Server(whole_status="incomplete"), ITEMS[4:], "it ended by itself"),
    "the cut call is done": (Server(item_done="completed"), (ITEMS[3],), "done and completed"),
    "nothing but a limit in reasoning": (
        Server(call_status="completed", call_begins=10_000), CALLS, "no call was made; of what was cut in its place"),
}  # fmt: skip
"""Server, the items that it lies about, what is said of each."""


@pytest.mark.parametrize("name", LIARS)
def test_a_liar_is_affected_where_it_lies_and_nowhere_else(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, items, says = LIARS[name]
    run = Run(server, tmp_path)
    assert run.status == 1
    affected = [id_ for id_, verdict in run.verdicts().items() if verdict == "AFFECTED"]
    assert affected == list(items), run.items
    for id_ in items:
        assert says in run.items[id_]["evidence"]
    assert "AFFECTED" in capsys.readouterr().out
    failures = [
        case.get("name")
        for case in ElementTree.parse(tmp_path / "a.xml").iter("testcase")
        if case.find("failure") is not None
    ]
    assert failures == list(items)


UNSEEN: dict[str, tuple[Server, tuple[str, ...], str]] = {
    "the model makes no calls": (Server(makes_calls=False), CALLS, "no call was made"),
    "the stream is cut": (Server(terminal=False, clean=False), (ITEMS[1], ITEMS[3], ITEMS[5]), "nothing is claimed"),
    "short texts fail": (Server(whole_status="failed"), ITEMS[4:], "it failed"),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_could_not_be_seen_is_neither(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, items, says = UNSEEN[name]
    run = Run(server, tmp_path)
    assert run.status == 2
    assert run.verdicts() == {id_: "UNSEEN" if id_ in items else "OK" for id_ in ITEMS}, run.items
    for id_ in items:
        assert says in run.items[id_]["evidence"] or "no end was told" in run.items[id_]["evidence"]
    assert "nothing untrue was seen, but not all could be seen" in capsys.readouterr().out


def test_a_call_that_is_whole_below_the_limit_shows_nothing(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        body: Json = json.loads(peer.request.body)
        if "tools" not in body:
            Server()(peer)
        elif not body["stream"]:
            made = response("completed", output=[function_call("{}", "completed")], usage=counted(9))
            peer.send(answer(json.dumps(made).encode()))
        else:
            to = Responses()
            done = to.call("{}") + to.call_done("{}", "completed")
            end = to.response("completed", "completed", output=[function_call("{}", "completed")], usage=counted(9))
            peer.send(sse_head(), chunk(done + end), LAST_CHUNK)

    run = Run(script, tmp_path)
    assert run.status == 2
    assert {id_ for id_, verdict in run.verdicts().items() if verdict == "UNSEEN"} == set(CALLS)
    assert "the call was whole within 16 tokens" in run.items[CALLS[0]]["evidence"]


def test_tools_can_be_left_out(tmp_path: Path) -> None:
    server = Server(makes_calls=False)
    run = Run(server, tmp_path, "--no-tools", "--model", "x")
    assert (run.status, list(run.items)) == (0, [id_ for id_ in ITEMS if id_ not in CALLS])
    assert all(body["model"] == "x" and "tools" not in body for body in server.bodies)


def test_a_failure_where_incomplete_was_due_is_ok_with_a_remark(tmp_path: Path) -> None:
    run = Run(Server(text_status="failed", call_status="failed", details=None), tmp_path)
    assert run.status == 0
    assert run.items["truncated text"]["remarks"] == ["status 'failed', where incomplete was due"]
    run = Run(Server(details=None), tmp_path)
    assert run.status == 0
    assert "max_output_tokens was due" in run.items["truncated text"]["remarks"][0]


def test_what_a_server_refuses_of_the_request_is_left_out_of_all(tmp_path: Path) -> None:
    server = Server()

    def script(peer: Peer) -> None:
        body: Json = json.loads(peer.request.body)
        for name in ("temperature", "store"):
            if name in body:
                error = {"error": {"message": f"Unsupported parameter: '{name}' is not supported with this model."}}
                peer.send(answer(json.dumps(error).encode(), 400))
                return
        server(peer)

    assert Run(script, tmp_path).status == 0
    assert len(server.bodies) == 8


REFUSALS = {
    "no such route": (answer(b'{"detail": "Not Found"}', 404), "status 404: 'Not Found'"),
    "wrong key": (answer(json.dumps({"error": {"message": f"wrong key {KEY}"}}).encode(), 401), "wrong key ***"),
    "a page": (answer(b"<html>", 200, "text/html"), "answered with no JSON"),
    "cut": (head(200, content_length="999") + b'{"id"', "no JSON"),
    "nothing": (b"", "gave no answer"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_server_without_an_answer_could_not_be_checked(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, says = REFUSALS[name]
    assert Run(lambda peer: peer.send(data), tmp_path, "--api-key", KEY).status == 2
    err = capsys.readouterr().err
    assert says in err
    assert KEY[:16] not in err


def test_what_was_seen_before_it_was_stopped_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(text_status="completed")

    def script(peer: Peer) -> None:
        if not json.loads(peer.request.body)["stream"]:
            server(peer)
            return
        signal.raise_signal(signal.SIGINT)
        assert peer.wait_gone()

    run = Run(script, tmp_path)
    assert run.status == 1
    assert run.verdicts() == {id_: "AFFECTED" if id_ == ITEMS[0] else "UNSEEN" for id_ in ITEMS}
    assert run.items[ITEMS[5]]["evidence"] == "stopped before it was seen"
    assert "AFFECTED" in capsys.readouterr().out


def test_an_answer_that_trickles_for_ever_is_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def script(peer: Peer) -> None:
        peer.send(head(200, content_type="application/json", content_length="999999"))
        with contextlib.suppress(OSError):
            while not peer.closing.wait(0.05):
                peer.send(b" ")

    assert Run(script, tmp_path, "--silence-s", "0.2").status == 2
    assert "we left" in capsys.readouterr().err


def test_the_key_is_sent_and_shown_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def script(peer: Peer) -> None:
        key = peer.request.headers["authorization"].removeprefix("Bearer ")
        made = response("completed", output=[message(f"the key is {key}", "completed")], usage=counted(16), model=key)
        if json.loads(peer.request.body)["stream"]:
            to = Responses()
            peer.send(sse_head(), chunk(to.text(key) + to.event("response.completed", response=made)), LAST_CHUNK)
        else:
            peer.send(answer(json.dumps(made).encode()))

    assert Run(script, tmp_path, "--api-key", KEY).status == 1
    out, err = capsys.readouterr()
    for text in (out, err, (tmp_path / "a.json").read_text("utf-8"), (tmp_path / "a.xml").read_text("utf-8")):
        assert KEY[:16] not in text
    assert "AFFECTED" in out


@pytest.mark.parametrize(
    "argv", [[], ["http://h", "--silence-s", "0"], ["http://h/v1/messages"], ["http://127.0.0.1:9"]]
)
def test_wrong_use_is_status_2(argv: list[str]) -> None:
    def status() -> object:
        try:
            return check_responses.main(argv)
        except SystemExit as exited:
            return exited.code

    assert status() == 2
