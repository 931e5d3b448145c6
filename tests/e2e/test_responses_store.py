"""What is kept of a response and what is not: clients that leave, `store: false`, input items, deletion."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.e2e.client import Connection
from tests.e2e.kept import (
    END,
    RESPONSES,
    TOOLS,
    Json,
    Steps,
    Stream,
    bytes_on_disk,
    call,
    calm,
    check,
    commands,
    cue,
    ended,
    file_of,
    get,
    kept_ids,
    make,
    read,
    replay,
    request,
    reset,
    rules,
    text_of,
    uncue,
    unreach,
    wait_reached,
)
from tests.e2e.responses_grammar import check_response_object
from tests.e2e.server import ServerProcess, fake_server, wait_for

HELD = "Sure.<tool_call>\n<func"
HANGS: Steps = [{"text": "One"}, {"reached": "stall"}, {"stall": True}]
HOLDS: Steps = [{"text": HELD}, {"reached": "stall"}, {"stall": True}]
GATED: Steps = [{"text": "On"}, {"cue": "gate"}, {"text": "e"}, *END]
SCRIPT = rules(hangs=HANGS, holds=HOLDS, gated=GATED, fine=[{"text": "fine"}, *END])


@pytest.fixture(scope="module")
def shared(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("store"), "--drain-s", "0.1") as made:
        yield made


@pytest.fixture
def server(shared: ServerProcess) -> Iterator[ServerProcess]:
    uncue(shared, "gate")
    yield shared
    calm(shared)


# --- a client that leaves ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["fin", "rst"])
@pytest.mark.parametrize(("what", "text"), [("hangs", "One"), ("holds", HELD)])
def test_a_client_that_leaves_is_recorded_as_cancelled_with_what_was_made(
    server: ServerProcess, stream: bool, leave: Callable[[socket.socket], None], what: str, text: str
) -> None:
    before = len(commands(server))
    kept_before = kept_ids(file_of(server))
    unreach(server, "stall")
    with Connection(server.port) as connection:
        connection.post(RESPONSES, request(f"{what} please", stream=stream, tools=TOOLS))
        wait_for(lambda: len(kept_ids(file_of(server))) > len(kept_before), "it is kept")
        (id_,) = kept_ids(file_of(server))[len(kept_before) :]
        wait_for(lambda: text_of(read(server, id_)) in ("One", "Sure."), "it is made")
        wait_reached(server, "stall")
        leave(connection.sock)
    kept = ended(server, id_)
    check_response_object(kept)
    assert kept["status"] == "cancelled"
    assert text_of(kept) == text[: kept["usage"]["output_tokens"]], "not all that was made"
    assert text_of(kept).startswith(("One", "Sure."))
    assert check(replay(server, id_)).response == kept
    wait_for(server.settled, "nothing runs")
    assert commands(server)[before:] == ["GEN", "STOP"]


def test_a_client_that_leaves_while_it_waits_is_recorded_and_never_reaches_the_engine(server: ServerProcess) -> None:
    with Stream.post(server, request("gated please")) as first:
        first.until('"n"')
        before = len(commands(server))
        second = Stream.post(server, request("fine please"))
        assert [event.type for event in second.take(2)] == ["response.created", "response.in_progress"]
        second.leave()
        kept = ended(server, second.id)
        assert (kept["status"], kept["output"]) == ("cancelled", [])
        cue(server, "gate")
        assert check(first.rest()).texts == ["One"]
    assert commands(server)[before:] == []


# --- what is not kept --------------------------------------------------------------------------------


def test_store_false_leaves_not_one_byte_on_disk(server: ServerProcess) -> None:
    file = file_of(server)
    word = "xylophone-42"
    before = kept_ids(file)
    ids: list[str] = []
    for stream in (False, True):
        body = request(f"fine please {word}", store=False, metadata={"a": word}, instructions=word)
        if stream:
            with Stream.post(server, body) as answer:
                ending = check(answer.rest())
                assert (ending.status, ending.response["store"]) == ("completed", False)
                ids.append(answer.id)
        else:
            answer = make(server, body).json
            assert (answer["status"], answer["store"]) == ("completed", False)
            ids.append(answer["id"])
    with Stream.post(server, request(f"hangs please {word}", store=False)) as left:
        left.until('"e"')
        ids.append(left.id)
    wait_for(server.settled, "nothing runs")
    kept = make(server, request("fine please", store=True)).json
    assert kept_ids(file) == [*before, kept["id"]]
    data = bytes_on_disk(file)
    assert kept["id"].encode() in data
    for id_ in ids:
        assert id_.encode() not in data
        for method, path in (("GET", ""), ("GET", "?stream=true"), ("GET", "/input_items"), ("DELETE", "")):
            assert call(server, method, f"{RESPONSES}/{id_}{path}").status == 404
        refused = make(server, request("fine please", previous_response_id=id_))
        assert (refused.status, refused.json["error"]["code"]) == (400, "previous_response_not_found")
    assert word.encode() not in data


def test_what_was_refused_is_not_kept(server: ServerProcess) -> None:
    before = kept_ids(file_of(server))
    refused: list[Json] = [{"input": []}, {"input": "word " * 2_000}, {"tools": [{}]}, {"temperature": 9}]
    for fields in refused:
        for stream in (False, True):
            assert make(server, {**request("fine please", stream=stream), **fields}).status == 400
    assert kept_ids(file_of(server)) == before


# --- items, deletion ---------------------------------------------------------------------------------

MIXED: list[Json] = [
    {"role": "user", "content": "fine please"},
    {"role": "assistant", "content": "Let me see."},
    {"type": "message", "id": "msg_own", "role": "user", "content": [{"type": "input_text", "text": "go on"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "2"},
    {"role": "developer", "content": "be short"},
]


def sdk(server: ServerProcess) -> OpenAI:
    return OpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    )


def test_input_items_are_listed_in_either_order_page_by_page(server: ServerProcess) -> None:
    made = make(server, request() | {"input": MIXED, "tools": TOOLS}).json
    down = get(server, made["id"], "/input_items").json
    assert (down["object"], down["has_more"], len(down["data"])) == ("list", False, len(MIXED))
    items = down["data"][::-1]
    kinds = [item["type"] for item in items]
    assert kinds == ["message", "message", "message", "reasoning", "function_call", "function_call_output", "message"]
    assert items[2]["id"] == "msg_own"
    assert items[4]["arguments"] == '{"a": 1}'
    ids = [item["id"] for item in items]
    assert len(set(ids)) == len(ids)
    assert (down["first_id"], down["last_id"]) == (ids[-1], ids[0])
    for order, wanted in (("asc", ids), ("desc", ids[::-1])):
        for limit in (1, 2, len(ids) - 1, len(ids), 100):
            for after in range(-1, len(ids)):
                cursor = "" if after < 0 else f"&after={wanted[after]}"
                page = get(server, made["id"], f"/input_items?order={order}&limit={limit}{cursor}").json
                rest = wanted[after + 1 :]
                assert [item["id"] for item in page["data"]] == rest[:limit]
                assert page["has_more"] is (len(rest) > limit)
                assert page["first_id"] == (rest[0] if rest else None)
    for query in ("order=up", "limit=0", "limit=101", "limit=x", "limit=-1", "after=nothing", "after="):
        answer = get(server, made["id"], f"/input_items?{query}")
        assert (answer.status, answer.json["error"]["param"]) == (400, query.partition("=")[0])
    assert get(server, "resp_0123", "/input_items").status == 404


def test_the_sdk_reads_pages_cancels_and_deletes_with_its_strict_types(server: ServerProcess) -> None:
    with sdk(server) as client:
        made = client.responses.create(model="fake", input=MIXED, tools=TOOLS)  # type: ignore[arg-type]  # plain dicts
        pages = client.responses.input_items.list(made.id, order="asc", limit=2)
        assert [item.type for item in pages] == [item.get("type", "message") for item in MIXED]
        got = client.responses.retrieve(made.id)
        assert got == made
        long = client.responses.create(model="fake", input="hangs please", background=True)
        assert long.status == "queued"
        assert client.responses.cancel(long.id).status == "cancelled"
        with pytest.raises(BadRequestError, match="background"):
            client.responses.cancel(made.id)
        client.responses.delete(made.id)
        with pytest.raises(NotFoundError):
            client.responses.retrieve(made.id)


def test_what_was_deleted_is_gone_everywhere(server: ServerProcess) -> None:
    word = "marimba-43"
    made = make(server, request(f"fine please {word}")).json
    assert word.encode() in bytes_on_disk(file_of(server))
    answer = call(server, "DELETE", f"{RESPONSES}/{made['id']}")
    assert (answer.status, answer.json) == (200, {"id": made["id"], "object": "response", "deleted": True})
    for method, path in (
        ("GET", ""),
        ("GET", "?stream=true"),
        ("GET", "/input_items"),
        ("DELETE", ""),
        ("POST", "/cancel"),
    ):
        answer = call(server, method, f"{RESPONSES}/{made['id']}{path}")
        assert (answer.status, answer.json["error"]["code"]) == (404, "not_found"), path
    refused = make(server, request("fine please", previous_response_id=made["id"]))
    assert (refused.status, refused.json["error"]["param"]) == (400, "previous_response_id")
    reference = make(server, request() | {"input": [{"type": "item_reference", "id": made["output"][0]["id"]}]})
    assert (reference.status, reference.json["error"]["param"]) == (400, "input[0].id")
    assert made["id"] not in kept_ids(file_of(server))


def test_to_delete_a_running_background_one_ends_it(server: ServerProcess) -> None:
    with Stream.post(server, request("hangs please", background=True)) as stream:
        stream.until('"e"')
        assert call(server, "DELETE", f"{RESPONSES}/{stream.id}").status == 200
        assert get(server, stream.id).status == 404
        wait_for(lambda: commands(server)[-1] == "STOP", "the engine was told to stop")
        assert check(stream.rest()).status == "cancelled"
    wait_for(server.settled, "nothing runs")
    assert stream.id not in kept_ids(file_of(server))


def test_to_delete_a_running_foreground_one_leaves_its_client_its_answer(server: ServerProcess) -> None:
    with Stream.post(server, request("gated please")) as stream:
        stream.until('"n"')
        assert call(server, "DELETE", f"{RESPONSES}/{stream.id}").status == 200
        assert get(server, stream.id).status == 404
        cue(server, "gate")
        ending = check(stream.rest())
        assert (ending.status, ending.texts) == ("completed", ["One"])
    assert get(server, stream.id).status == 404
    assert stream.id not in kept_ids(file_of(server))
