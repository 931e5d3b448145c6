"""Lines of the pipe protocol, byte by byte."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.pipe_codec import (
    FATAL_ERRORS,
    KEYWORDS,
    MAX_LINE_BYTES,
    QUIT,
    STOP,
    Admitted,
    Damaged,
    Done,
    Err,
    Info,
    Line,
    LineSplitter,
    Prompt,
    PromptProgress,
    Ready,
    Reused,
    SlotDone,
    SlotToken,
    TokenLine,
    Unknown,
    Yielded,
    bstop,
    parse_line,
)

# --- lines -------------------------------------------------------------------------------------------


def test_each_input_whole_and_byte_by_byte_gives_the_same_lines() -> None:
    stream = b"INFO a=1\r\nREADY 4096 stop\nT 1\n\nT 2\r\n\r\nDONE 2 1 0 1 stop\nhalf"
    expected = [b"INFO a=1", b"READY 4096 stop", b"T 1", b"", b"T 2", b"", b"DONE 2 1 0 1 stop"]
    whole = LineSplitter()
    assert whole.feed(stream) == expected
    assert whole.rest() == b"half"
    single = LineSplitter()
    assert [line for at in range(len(stream)) for line in single.feed(stream[at : at + 1])] == expected
    assert single.rest() == b"half"


@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b""))), st.data())
def test_any_chunks_give_the_same_lines(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + data.draw(st.sampled_from([b"\n", b"\r\n"])) for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter = LineSplitter()
    found: list[bytes] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[begin:end])
    assert found == lines
    assert splitter.rest() == b""


def test_a_carriage_return_inside_a_line_ends_nothing() -> None:
    assert LineSplitter().feed(b"a\rb\r\r\n") == [b"a\rb\r"]


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_line_too_long_is_given_once_and_cut_and_the_next_line_is_whole(step: int) -> None:
    splitter = LineSplitter(max_bytes=10)
    stream = b"T 1\n" + b"x" * 500 + b"\r\nT 2\n"
    found = [line for at in range(0, len(stream), step) for line in splitter.feed(stream[at : at + step])]
    assert found == [b"T 1", b"x" * 11, b"T 2"]


def test_a_line_of_just_the_limit_is_whole_with_either_end() -> None:
    splitter = LineSplitter(max_bytes=4)
    assert splitter.feed(b"abcd\nabcd\r") == [b"abcd"]
    assert splitter.feed(b"\nabcde\n") == [b"abcd", b"abcde"]


def test_a_line_without_end_is_bounded_in_memory() -> None:
    splitter = LineSplitter(max_bytes=100)
    for _ in range(1000):
        splitter.feed(b"y" * 1000)
    assert len(splitter.rest()) <= 101


# --- what they mean ----------------------------------------------------------------------------------

GOOD: dict[bytes, Line] = {
    b"INFO context=4096 kv=f16 engine=0.1.3": Info({"context": "4096", "kv": "f16", "engine": "0.1.3"}),
    b"INFO gpu=NVIDIA RTX 4090 n=1": Info({"gpu": "NVIDIA RTX 4090", "n": "1"}),
    b"INFO": Info({}),
    b"INFO batch_slots=": Info({"batch_slots": ""}),
    b"READY 4096": Ready(4096, False),
    b"READY 4096 stop": Ready(4096, True),
    b"READY 4096 later stop words": Ready(4096, True),
    b"RESUME 12": Reused(12),
    b"REUSED 0": Reused(0),
    b"PP 512 2048 103.5 4946.9": PromptProgress(512, 2048, 103.5, 4946.9),
    b"PP 1 1 0 inf": PromptProgress(1, 1, 0.0, 0.0),
    b"PP 1 1 0 -nan": PromptProgress(1, 1, 0.0, 0.0),
    b"PP 1 2 3 4 5 later=x": PromptProgress(1, 2, 3.0, 4.0),
    b"T 0": TokenLine(0),
    b"T 151645": TokenLine(151645),
    b"T  7 ": TokenLine(7),
    b"DONE 5 10 1.5 2 stop": Done(5, 10, 1.5, 2.0, "stop"),
    b"DONE 5 10 1 2 length 1 2 0.5 later=7": Done(5, 10, 1.0, 2.0, "length", ("1", "2", "0.5", "later=7")),
    b"DONE 0 1 0 1 error": Done(0, 1, 0.0, 1.0, "error"),
    b"DONE 5 10 1 2 abort": Done(5, 10, 1.0, 2.0, "abort"),
    b"ERR a token id is outside the vocabulary": Err("a token id is outside the vocabulary"),
    b"ERR": Err(""),
    b"ERR \xff": Err("\ufffd"),
    b"BADM 3 1": Admitted(3, True),
    b"BADM 0 0": Admitted(0, False),
    b"BT 1 42": SlotToken(1, 42),
    b"BDONE 1 5 stop 12.5": SlotDone(1, 5, "stop", 12.5),
    b"BDONE 1 5 cancel": SlotDone(1, 5, "cancel", 0.0),
    b"YIELDED 2 512": Yielded(2, 512),
}


@pytest.mark.parametrize("line", GOOD, ids=repr)
def test_a_good_line_is_its_value(line: bytes) -> None:
    assert parse_line(line) == GOOD[line]


def test_every_keyword_has_a_good_example() -> None:
    assert {line.split()[0].decode() for line in GOOD} == KEYWORDS


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   ",
        b"FUTURE 1 2 3",
        b"t 5",
        b"T42",
        b"loading weights...",
        b"[info] T 5",
        b"Tokens 5",
        b"DONE5 1",
        b"%!",
    ],
)
def test_a_line_that_is_none_of_the_protocols_is_unknown(line: bytes) -> None:
    assert parse_line(line) == Unknown(line)


DAMAGED = [
    b"T",
    b"T malformed",
    b"T -1",
    b"T 1.5",
    b"T 12T 13",
    b"T 12 T 13",
    b"T 5_0",
    b"T 99999999999",
    "T ٣".encode(),  # a digit to Python, not to the protocol
    b"PP 1 2 invalid 3",
    b"PP 1 2 3",
    b"PP -1 2 3 4",
    b"PP 1 2 3 4 T 5",
    b"READY",
    b"READY soon",
    b"RESUME",
    b"REUSED x",
    b"DONE",
    b"DONE invalid 1 0 1 stop",
    b"DONE 1 1 0 1",
    b"DONE 1 1 0 1 7",
    b"DONE 1 1 0 1 stop T 5",
    b"DONE 1 1 x 1 stop",
    b"DONE -1 1 0 1 stop",
    b"BADM 1",
    b"BADM 1 2",
    b"BADM 1 1 1",
    b"BT 1",
    b"BT 1 x",
    b"BT 1 2 3",
    b"BDONE 1 5",
    b"BDONE 1 5 stop x",
    b"YIELDED 1",
]


@pytest.mark.parametrize("line", DAMAGED, ids=repr)
def test_a_known_word_with_wrong_fields_is_damaged_and_says_which(line: bytes) -> None:
    parsed = parse_line(line)
    assert isinstance(parsed, Damaged)
    assert parsed.keyword == line.split()[0].decode()
    assert parsed.reason


@pytest.mark.parametrize(
    ("line", "keyword"),
    [(b"\xff\xfe", ""), (b"T 5\xff", "T"), (b"abc\x00def", ""), (b"T 5\x00", "T"), (b"caf\xe9", ""), (b"\x1b[0m", "")],
)
def test_bytes_that_are_no_text_are_damaged(line: bytes, keyword: str) -> None:
    parsed = parse_line(line)
    assert isinstance(parsed, Damaged)
    assert parsed.keyword == keyword


def test_a_line_too_long_is_damaged_and_not_kept() -> None:
    parsed = parse_line(b"x" * (MAX_LINE_BYTES + 1))
    assert isinstance(parsed, Damaged)
    assert len(parsed.line) <= 80
    assert parse_line(b"x" * MAX_LINE_BYTES) == Unknown(b"x" * MAX_LINE_BYTES)


@given(st.binary(max_size=200))
def test_no_bytes_raise(line: bytes) -> None:
    parse_line(line)


@given(
    st.sampled_from(sorted(KEYWORDS)),
    st.lists(st.one_of(st.text(max_size=12), st.integers().map(str), st.floats().map(str)), max_size=12),
)
def test_no_fields_raise_and_no_count_is_negative(keyword: str, fields: list[str]) -> None:
    parsed = parse_line(" ".join([keyword, *fields]).encode("utf-8", "replace"))
    if isinstance(parsed, TokenLine):
        assert parsed.id >= 0
    if isinstance(parsed, Done):
        assert parsed.generated >= 0
        assert math.isfinite(parsed.decode_ms)


@given(st.integers(0, 2**32 - 1))
def test_every_token_id_is_read_back(token: int) -> None:
    assert parse_line(b"T %d" % token) == TokenLine(token)


# --- ERR ---------------------------------------------------------------------------------------------

FATAL = [
    "verify: timed out at layer 18; its GPU waits were released",
    "verify batch: timed out at layer 3",
    "decode: the GPU waits were released",
    "CUDA error 700: an illegal memory access was encountered",
    "CUDA_ERROR_LAUNCH_FAILED in attn.cu:12",
    "cudaMemcpyAsync failed: unspecified launch failure",
    "cuBLAS error 14",
    "NCCL: unhandled cuda error",
    "device-side assert triggered",
    "device lost",
    "the GPU has fallen off the bus",
    "out of memory while growing the arena",
    "std::bad_alloc",
]
HARMLESS = [
    "a token id is outside the vocabulary",
    "sampler: no candidate is left",
    "verify the prompt: token 5 is not allowed",
    "unknown command FOO",
    "",
]
CONTEXT = [
    "prompt exceeds context",
    "prompt exceeds context (5000 tokens, 4096 fit)",
    "prompt too long: 5000 > n_ctx 4096",
    "the prompt is too long",
    "prompt is longer than the context",
    "prompt does not fit into the context",
    "context size exceeded",
    "n_ctx is too small for this prompt",
    "request (5000 tokens) exceeds the available context size",
]


@pytest.mark.parametrize("text", FATAL)
def test_a_fatal_err_is_known_by_its_text(text: str) -> None:
    parsed = parse_line(f"ERR {text}".encode())
    assert parsed == Err(text, fatal=True)


@pytest.mark.parametrize("text", HARMLESS)
def test_a_refusal_is_not_fatal(text: str) -> None:
    assert parse_line(f"ERR {text}".encode()) == Err(text)


@pytest.mark.parametrize("text", CONTEXT)
def test_a_refusal_for_the_prompts_length_is_known(text: str) -> None:
    assert parse_line(f"ERR {text}".encode()) == Err(text, context=True)


def test_every_fatal_signature_has_its_reason() -> None:
    assert all(reason.strip() for _, reason in FATAL_ERRORS)


# --- commands ----------------------------------------------------------------------------------------


def test_gen_is_one_line_with_the_protocols_keys() -> None:
    prompt = Prompt([1, 2, 3], 8, {"temperature": 0.7, "top_k": 40, "seed": 2**63, "flag": True, "mode": "fast"})
    assert prompt.gen() == b"GEN 8 temperature=0.7 top_k=40 seed=9223372036854775808 flag=1 mode=fast 1,2,3\n"
    assert prompt.bgen(3) == b"BGEN 3" + prompt.gen()[3:]


def test_gen_without_sampling_is_greedy() -> None:
    assert Prompt((7,), 1).gen() == b"GEN 1 7\n"


def test_the_other_commands() -> None:
    assert (STOP, QUIT, bstop(2)) == (b"STOP\n", b"QUIT\n", b"BSTOP 2\n")


@pytest.mark.parametrize(
    ("ids", "max_new", "sampling", "field"),
    [
        ([], 1, {}, "ids"),
        ([-1], 1, {}, "ids"),
        ([1.5], 1, {}, "ids"),
        ([True], 1, {}, "ids"),
        (["1\nQUIT"], 1, {}, "ids"),
        ([2**32], 1, {}, "ids"),
        ([1], 0, {}, "max_new"),
        ([1], 2**31, {}, "max_new"),
        ([1], 1, {"a b": 1}, "sampling"),
        ([1], 1, {"a\nQUIT": 1}, "sampling"),
        ([1], 1, {"a=b": 1}, "sampling"),
        ([1], 1, {"": 1}, "sampling"),
        ([1], 1, {"x": math.nan}, "sampling"),
        ([1], 1, {"x": math.inf}, "sampling"),
        ([1], 1, {"x": "a b"}, "sampling"),
        ([1], 1, {"x": "a\nb"}, "sampling"),
        ([1], 1, {"x": ""}, "sampling"),
        ([1], 1, {"x": [1]}, "sampling"),
        ([1], 1, {"x": None}, "sampling"),
        ([1], 1, {"x": 10**30}, "sampling"),
    ],
)
def test_what_could_break_the_line_is_refused_and_named(
    ids: list[int], max_new: int, sampling: dict[str, object], field: str
) -> None:
    with pytest.raises(ValueError, match=rf"^{field}"):
        Prompt(ids, max_new, sampling)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1), st.integers(1, 2**31 - 1), st.floats(allow_nan=False))
def test_a_command_is_always_one_line_of_ascii(ids: list[int], max_new: int, value: float) -> None:
    sampling = {"temperature": value} if math.isfinite(value) else {}
    line = Prompt(ids, max_new, sampling).gen()
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    words = line.decode("ascii").split()
    assert words[0] == "GEN"
    assert int(words[1]) == max_new
    assert [int(word) for word in words[-1].split(",")] == ids
    if sampling:
        assert float(words[2].partition("=")[2]) == value
