"""How a completion ends by itself: stop, stop strings, the limit; prompts as texts, token ids and lists of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.client import Connection
from tests.e2e.completions_client import END, ROUTE, Json, finished, refused, request, rule, send, streamed, total
from tests.e2e.completions_grammar import check_completion, check_completion_stream
from tests.e2e.server import ServerProcess, fake_server, wait_for

CONTEXT = 1_200
NASTY = "a\u2028b\u2029c\u0085d\x00e\x1ff\x7f g\ufeffh 😀 ö\r\n\n\tend"
RAW = "\n<think>Hm.</think>\n\nSo: <tool_call>\n<function=add>\n</function>\n</tool_call>\n [TOOL] "
LONG = "y" * CONTEXT
SCRIPT: Json = {
    "requests": [
        rule("nasty", {"text": NASTY}, *END),
        rule("raw", {"text": RAW}, *END),
        rule("nothing", *END),
        rule("stops", {"text": "one EN two END three"}, {"stall": True}),
        rule("split", {"text": "a😀b"}, *END),
        rule("broken", {"tokens": [97, 240, 159, 152]}, *END),
        rule("long", {"text": LONG}, *END),
        rule("short", {"text": "ok"}, *END),
        rule("<|im_start|>", {"text": "special"}, *END),
        rule("stay", {"text": "begun"}, {"stall": True}),
    ],
    "context": CONTEXT,
}


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("endings")) as started:
        yield started


@pytest.mark.parametrize(
    ("prompt", "text", "fields", "reason"),
    [
        ("nasty", NASTY, {}, "stop"),
        ("raw", RAW, {}, "stop"),
        ("nothing", "", {}, "stop"),
        ("short", "ok", {"stop": ["never"]}, "stop"),
        ("stops", "one EN two ", {"stop": ["X", "END"]}, "stop"),
        ("stops", "one ", {"stop": "EN"}, "stop"),
        ("nasty", "a", {"max_tokens": 1}, "length"),
        ("raw", RAW[:8], {"max_tokens": 8}, "length"),
        ("split", "a\ufffd", {"max_tokens": 3}, "length"),
        ("broken", "a\ufffd", {}, "stop"),
    ],
)
def test_a_completion_is_the_raw_text_and_ends_with_its_own_word(
    server: ServerProcess, prompt: str, text: str, fields: Json, reason: str
) -> None:
    ending = finished(server.port, {**request(prompt), **fields})
    assert (ending.texts, ending.finish_reasons) == ((text,), (reason,))
    prompt_tokens, made = total(ending.usage)
    assert prompt_tokens == len(prompt)
    assert made >= len(text) or text.endswith("\ufffd")


def test_without_a_limit_sixteen_tokens_are_made_and_minus_one_is_up_to_the_contexts_end(server: ServerProcess) -> None:
    body = request("long")
    del body["max_tokens"]
    ending = finished(server.port, body)
    assert (ending.texts, ending.finish_reasons) == (("y" * 16,), ("length",))
    ending = finished(server.port, request("long", max_tokens=-1))
    assert ending.texts == ("y" * (CONTEXT - len("long")),)
    assert ending.finish_reasons == ("length",)
    full = request("long" + "x" * (CONTEXT - 6))
    del full["max_tokens"]
    assert finished(server.port, full).texts == ("yy",)


def test_a_prompt_may_be_token_ids_a_list_of_texts_and_a_list_of_token_ids(server: ServerProcess) -> None:
    ids = list(b"short")
    for prompt, count in ((ids, 1), ([ids], 1), (["short"], 1), ([ids, ids], 2), (["short", ids, "short"], 3)):
        ending = finished(server.port, request(prompt))
        assert ending.texts == ("ok",) * count
        assert ending.finish_reasons == ("stop",) * count
        assert total(ending.usage) == (count * len("short"), count * len("ok!"))


def test_each_prompt_of_a_list_ends_by_itself(server: ServerProcess) -> None:
    ending = finished(server.port, request(["short", "nasty", "nothing"], max_tokens=4))
    assert ending.texts == ("ok", "a\u2028", "")
    assert ending.finish_reasons == ("stop", "length", "stop")


def test_a_control_token_that_is_spelled_in_a_prompt_is_one(server: ServerProcess) -> None:
    ending = finished(server.port, request("<|im_start|>user", max_tokens=10))
    assert total(ending.usage)[0] == 1 + len("user")


def test_a_prompt_that_does_not_fit_is_refused_with_its_path(server: ServerProcess) -> None:
    for prompt, param in (("x" * CONTEXT, "prompt"), (["short", [1] * CONTEXT], "prompt[1]")):
        for stream in (True, False):
            error = refused(send(server.port, request(prompt, stream=stream, max_tokens=1)), param)
            assert error["code"] == "context_length_exceeded"
            assert str(CONTEXT) in error["message"]
    error = refused(send(server.port, request("short", max_tokens=CONTEXT)), "max_tokens")
    assert error["code"] == "context_length_exceeded"


BAD: list[tuple[Json, str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 1}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": ["a", 1]}, "prompt[1]"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": [1, "a"]}, "prompt[1]"),
    ({"prompt": [1, -1]}, "prompt[1]"),
    ({"prompt": [1, True]}, "prompt[1]"),
    ({"prompt": [1, 1.5]}, "prompt[1]"),
    ({"prompt": [1, 259]}, "prompt[1]"),
    ({"prompt": ["a", [258, 2**31 - 1]]}, "prompt[1][1]"),
    ({"prompt": ["a"] * 1_025}, "prompt"),
    ({"echo": True}, "echo"),
    ({"suffix": "end"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"n": 2}, "n"),
    ({"n": 0}, "n"),
    ({"logprobs": 0}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logit_bias": {"1": 1}}, "logit_bias"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "x"}, "max_tokens"),
    ({"temperature": 9}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"seed": "x"}, "seed"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"messages": [{"role": "user", "content": "hi"}]}, "messages"),
    ({"tools": [{}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=lambda value: str(value)[:40])
def test_what_cannot_be_done_is_a_400_that_names_the_field(server: ServerProcess, fields: Json, param: str) -> None:
    before = len(server.status["history"])
    for stream in (True, False):
        answer = send(server.port, {**request("short", stream=stream), **fields})
        refused(answer, param)
        assert len(answer.body) < 1_000
    assert len(server.status["history"]) == before


def test_values_that_ask_for_nothing_and_fields_without_effect_are_taken(server: ServerProcess) -> None:
    nothing: Json = {"echo": False, "suffix": "", "best_of": 1, "n": 1, "logprobs": None, "logit_bias": {}, "tools": []}
    others: Json = {"user": "u", "seed": 1, "temperature": 0, "top_p": 1, "stream_options": None, "unknown": [1]}
    assert finished(server.port, request("short", **nothing, **others)).texts == ("ok",)
    nulls: Json = dict.fromkeys((*nothing, "user", "seed", "temperature", "top_p", "stop", "n", "presence_penalty"))
    assert finished(server.port, request("short", **nulls)).texts == ("ok",)


def test_a_client_that_leaves_ends_the_work(server: ServerProcess) -> None:
    for stream in (True, False):
        with Connection(server.port) as connection:
            connection.post(ROUTE, request(["stay", "short"], stream=stream))
            if stream:
                connection.until(b'"text": "n"')
            else:
                wait_for(lambda: server.status["queue"]["running"] == 1, "it runs")
        wait_for(server.settled, "the server is idle again")
        assert list(server.status["history"])[-1]["cause"] == "client_disconnect"


def test_a_stream_to_an_old_client_ends_with_its_connection(server: ServerProcess) -> None:
    answer = send(server.port, request("short"), version="HTTP/1.0")
    assert answer.closed
    assert check_completion_stream(answer).texts == ("ok",)
    assert check_completion(send(server.port, request("short", stream=False)).json).texts == ("ok",)
    assert streamed(server.port, request("short")).finish_reasons == ("stop",)


def test_an_engine_that_is_silent_before_it_answers_gets_heartbeats(
    server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("beats")
    with (
        fake_server(server_command, SCRIPT, folder, "--heartbeat-s", "0.1", "--silence-s", "5") as beating,
        Connection(beating.port) as connection,
    ):
        connection.post(ROUTE, request("stay"))
        connection.until(b": keep-alive\n")
