"""The quick way: taken where nothing but the text changes, and never for anything that says something else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.chat_reader import ChatReader
from engine.events import Text
from engine.passage import MAX_BYTES, Channel, Passage, learn

TEXT = {"content": "Hel"}
EDGES = [
    "",
    '"',
    "\\",
    "\\\\",
    '\\"',
    "\n",
    "\r\n",
    "\x00",
    "\x1f",
    "\x7f",
    "\u2028",
    "\u0085",
    "😀",
    "\ud83d",
    "\ude00",
]
texts = st.lists(st.text(max_size=12) | st.sampled_from([*EDGES, '"},"finish_reason":null}]}\n\ndata: {']), min_size=1)


def value(delta: Any = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": TEXT if delta is None else delta, "finish_reason": None}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


def event(chunk: object, **options: Any) -> bytes:
    return b"data: " + json.dumps(chunk, **options).encode("utf-8", "surrogatepass") + b"\n\n"


def learnt(chunk: dict[str, Any], raw: bytes | None = None) -> Passage | None:
    return learn(event(chunk) if raw is None else raw, chunk, chunk["choices"][0]["delta"])


def passage(delta: Any = None, **more: Any) -> Passage:
    found = learnt(value(delta, **more))
    assert found is not None
    return found


def read(block: bytes) -> list[str] | None:
    """What full reading finds in the block, if that is whole and nothing but text."""
    reader = ChatReader(lambda: "x")
    found = reader.feed(block)[0]
    if reader.terminal is not None or reader.finish_seen or len(found) > block.count(b"\n\n"):
        return None
    said: list[str] = [item.text for item in found if isinstance(item, Text) and item.logprobs is None]
    return said if len(said) == len(found) else None


# --- what is learnt -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delta", "channel"),
    [
        (TEXT, "content"),
        ({"role": "assistant", "content": "x"}, "content"),
        ({"content": "x", "reasoning_content": None, "tool_calls": None, "refusal": ""}, "content"),
        ({"content": "x", "tool_calls": [], "odd": {"n": 1}}, "content"),
        ({"content": None, "reasoning_content": "x"}, "reasoning_content"),
        ({"content": "", "reasoning": "x"}, "reasoning"),
    ],
)
def test_a_chunk_that_is_only_text_is_learnt(delta: dict[str, Any], channel: Channel) -> None:
    for options in ({}, {"separators": (",", ":")}, {"ensure_ascii": False}):
        raw = event(value(delta), **options)
        found = learn(raw, value(delta), delta)
        assert found is not None
        assert found.channel == channel
        assert found.texts(raw * 3) == [delta[channel].encode()] * 3


@pytest.mark.parametrize(
    "chunk",
    [
        value({}),
        value({"content": ""}),
        value({"content": None}),
        value({"content": [{"type": "text", "text": "x"}]}),
        value({"content": "x", "reasoning_content": "y"}),
        value({"content": "x", "refusal": "no"}),
        value({"content": "x", "tool_calls": [{"index": 0}]}),
        value({"content": "x", "function_call": {"name": "f"}}),
        value({"reasoning_content": "x", "reasoning": "x"}),
        value(usage={"prompt_tokens": 1}),
        value(prompt_progress={"total": 1}),
        value(error="bad"),
        value({"content": "x" * MAX_BYTES}),
    ],
    ids=lambda chunk: json.dumps(chunk["choices"][0]["delta"])[:40] + ",".join(list(chunk)[5:]),
)
def test_a_chunk_that_has_to_be_read_is_not_learnt(chunk: dict[str, Any]) -> None:
    assert learnt(chunk) is None


@pytest.mark.parametrize(
    "raw",
    [
        b'data: {"x": {"content": "Hel"}, "choices": [{"delta": {"content": "Hel"}}]}\n\n',
        b'data: {"x": {"content": "Hel"}, "choices": [{"delta": {"cont\\u0065nt": "Hel"}}]}\n\n',
        b'data: {"x": {"content": "Hel"}, "choices": [{"delta": {"content" : "Hel"}}]}\n\n',
        b'data: {"choices": [{"delta": {"content" : "no", "content": "Hel"}}], "choices": [{"delta": {"content" :'
        b' "Hel"}}]}\n\n',
        b'data: {"choices": [{"delta": {"content": "Hel", "content" : "Hel"}}]}\n\n',
        b'data:{"choices": [{"delta": {"content": "Hel"}}]}\n\n',
        b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n',
    ],
)
def test_a_text_that_cannot_be_told_from_other_members_is_not_learnt(raw: bytes) -> None:
    chunk = json.loads(raw.removeprefix(b"data:"))
    assert chunk["choices"][0]["delta"]["content"] == "Hel"
    assert learn(raw, chunk, chunk["choices"][0]["delta"]) is None


def test_a_text_that_looks_like_the_member_is_no_place_for_it() -> None:
    chunk = value({"content": 'say "content": "x"'})
    found = learnt(chunk)
    assert found is not None
    assert found.texts(event(chunk)) == [b'say \\"content\\": \\"x\\"']


# --- what is taken ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 250])
def test_whole_chunks_of_the_kind_are_taken_at_once(count: int) -> None:
    said = [f" w{i}" for i in range(count)]
    block = b"".join(event(value({"content": text})) for text in said)
    assert passage().texts(block) == [text.encode() for text in said]


@pytest.mark.parametrize("text", ["", 'a"b', "a\\b", "a\nb", "a/b", "é", "😀", "\u2028", "\x7f"])
@pytest.mark.parametrize("escaped", [True, False])
def test_a_text_with_escapes_or_beyond_ascii_is_taken(text: str, escaped: bool) -> None:
    block = event(value({"content": text}), ensure_ascii=escaped) * 2
    found = passage().texts(block)
    assert found is not None
    assert [json.loads(b'"%b"' % one) for one in found] == [text, text]


BEFORE, AFTER = event(value({"content": "|"})).split(b"|")
ODD: dict[str, bytes] = {
    "nothing": b"",
    "only the beginning": BEFORE,
    "only the end": AFTER,
    "beginning and end that overlap": BEFORE + AFTER[1:],
    "half a chunk": event(value())[:-1],
    "a chunk and a half": event(value()) + event(value())[:40],
    "the end of another": event(value())[40:] + event(value()),
    "a finish word": event(value()) + event(value()).replace(b"null", b'"stop"'),
    "another index": event(value()) + event(value()).replace(b'"index": 0', b'"index": 1'),
    "another member": event(value()) + event(value(x=1)) + event(value()),
    "another member in the delta": event(value()) + event(value({"content": "x", "refusal": "no"})) + event(value()),
    "an error": event(value()) + event({"error": "bad"}) + event(value()),
    "the end marker": event(value()) + b"data: [DONE]\n\n" + event(value()),
    "a comment": event(value()) + b": ping\n\n" + event(value()),
    "carriage returns": event(value()).replace(b"\n", b"\r\n"),
    "a bare quote": BEFORE + b'a"b' + AFTER,
    "a member smuggled in": BEFORE + b'a", "refusal": "no' + AFTER,
    "a bare backslash at the end": BEFORE + b"a\\" + AFTER,
    "no escape": BEFORE + b"a\\x" + AFTER,
    "half an escape": BEFORE + b"a\\u12" + AFTER,
    "a control character": BEFORE + b"a\x1b" + AFTER,
    "a line end": BEFORE + b"a\nb" + AFTER,
    "a tab": BEFORE + b"a\tb" + AFTER,
    "a high half": BEFORE + b"\\ud83d" + AFTER,
    "a low half": BEFORE + b"\\ude00" + AFTER,
    "halves in two chunks": BEFORE + b"\\ud83d" + AFTER + BEFORE + b"\\ude00" + AFTER,
    "halves the wrong way round": BEFORE + b"\\ude00\\ud83d" + AFTER,
    "cut utf-8": BEFORE + "é".encode()[:1] + AFTER,
    "utf-8 in two chunks": BEFORE + "é".encode()[:1] + AFTER + BEFORE + "é".encode()[1:] + AFTER,
    "encoded surrogates": BEFORE + "\ud83d".encode("utf-8", "surrogatepass") + AFTER,
    "overlong utf-8": BEFORE + b"\xc0\xaf" + AFTER,
}


@pytest.mark.parametrize("name", ODD)
def test_anything_else_has_to_be_read(name: str) -> None:
    assert passage().texts(ODD[name]) is None
    assert passage().said(ODD[name]) is None


@given(texts, st.booleans())
def test_a_block_of_texts_is_taken_and_says_what_reading_says(said: list[str], escaped: bool) -> None:
    block = b"".join(event(value({"content": text}), ensure_ascii=escaped) for text in said)
    found = passage().texts(block)
    assert passage().said(block) == (None if found is None else sum(map(bool, found)))
    whole = all(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") == text for text in said)
    assert (found is not None) == whole, "only halves of surrogate pairs have to be read"
    if found is not None:
        assert [json.loads(b'"%b"' % text) for text in found] == said
        assert [text for text in said if text] == read(block)


inserts = st.sampled_from(
    [
        b'"',
        b"\\",
        b"\n",
        b"\n\n",
        b"\r",
        b"{",
        b"}",
        b"\x80",
        b"\xc3",
        b"\xed\xa0\xbd",
        b"null",
        b"data: ",
        AFTER + BEFORE,
    ]
) | st.binary(min_size=1, max_size=3)
edits = st.tuples(st.integers(0, 10**6), st.integers(0, 3), inserts)


@given(st.lists(st.text(max_size=5), min_size=1, max_size=4), st.lists(edits, max_size=3))
def test_a_damaged_block_is_never_taken_for_another(said: list[str], damage: list[tuple[int, int, bytes]]) -> None:
    block = b"".join(event(value({"content": text}), ensure_ascii=False) for text in said)
    for where, gone, put in damage:
        at = where % (len(block) + 1)
        block = block[:at] + put + block[at + gone :]
    found = passage().texts(block)
    assert passage().said(block) == (None if found is None else sum(map(bool, found)))
    if found is not None:
        assert [text for raw in found if (text := json.loads(b'"%b"' % raw))] == read(block)
