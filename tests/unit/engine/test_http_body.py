"""Bodies of HTTP answers: every framing, every splitting over reads, cuts, damage and limits; h11 is the reference."""

from __future__ import annotations

import itertools
import re

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.http_body import MAX_LINE_BYTES, MAX_TRAILER_BYTES, Body, FramingUnknown, body_of, only_chunk, whole_chunks

CHUNKED = {"transfer-encoding": "chunked"}
TEXT = b"data: hello\r\n\r\n"


def chunked() -> Body:
    return body_of("POST", 200, CHUNKED)


def fed(body: Body, *reads: bytes) -> bytes:
    """What the reader gives, fed no further than it wants."""
    given = b""
    for data in reads:
        if body.whole or body.problem is not None:
            break
        given += body.feed(data)
    return given


def one_by_one(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


# --- which framing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "status", "headers", "announced", "whole"),
    [
        ("GET", 200, {"content-length": "3"}, True, False),
        ("GET", 200, {"content-length": "0"}, True, True),
        ("GET", 200, {"content-length": "3, 3"}, True, False),
        ("GET", 200, {"content-length": "003"}, True, False),
        ("GET", 200, CHUNKED, False, False),
        ("GET", 200, {"transfer-encoding": " Chunked ,"}, False, False),
        ("GET", 200, CHUNKED | {"content-length": "3"}, False, False),
        ("GET", 200, CHUNKED | {"content-length": "x"}, False, False),
        ("GET", 200, {}, False, False),
        ("GET", 200, {"transfer-encoding": ""}, False, False),
        ("HEAD", 200, {"content-length": "3"}, True, True),
        ("HEAD", 200, CHUNKED, True, True),
        ("GET", 204, {"content-length": "3"}, True, True),
        ("GET", 304, CHUNKED, True, True),
    ],
)
def test_the_head_says_where_the_body_ends(
    method: str, status: int, headers: dict[str, str], announced: bool, whole: bool
) -> None:
    body = body_of(method, status, headers)
    assert (body.announced, body.whole, body.problem) == (announced, whole, None)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"content-length": "3, 4"}, "conflicting content-length headers"),
        ({"content-length": "-3"}, "bad content-length '-3'"),
        ({"content-length": "+3"}, "bad content-length"),
        ({"content-length": "3_0"}, "bad content-length"),
        ({"content-length": "0x3"}, "bad content-length"),
        ({"content-length": "٣"}, "bad content-length"),
        ({"content-length": ""}, "bad content-length ''"),
        ({"content-length": "9" * 20}, "bad content-length"),
        ({"transfer-encoding": "gzip, chunked"}, "transfer-encoding 'gzip, chunked' is not supported"),
        ({"transfer-encoding": "identity"}, "'identity' is not supported"),
        ({"transfer-encoding": "chunked, chunked"}, "is not supported"),
        ({"transfer-encoding": "chunked;q=1"}, "is not supported"),
    ],
)
def test_a_head_that_does_not_say_it_is_refused(headers: dict[str, str], message: str) -> None:
    with pytest.raises(FramingUnknown, match=message):
        body_of("GET", 200, headers)


# --- lengths and open ends -----------------------------------------------------------------------------


def test_a_body_of_a_known_length_ends_there() -> None:
    body = body_of("GET", 200, {"content-length": "5"})
    assert (body.feed(b"ab"), body.whole) == (b"ab", False)
    assert body.end() == "received 2 bytes, expected 5"
    assert (body.feed(b"cdeHTTP/1.1"), body.whole, body.rest) == (b"cde", True, b"HTTP/1.1")


def test_without_any_length_the_end_of_the_connection_is_the_end() -> None:
    body = body_of("GET", 200, {})
    assert (body.feed(b"ab"), body.feed(b"0\r\n\r\n"), body.whole) == (b"ab", b"0\r\n\r\n", False)
    assert (body.end(), body.whole, body.rest) == (None, True, b"")


# --- chunks ------------------------------------------------------------------------------------------

WHOLE: dict[str, bytes] = {
    "one chunk": b"f\r\n" + TEXT + b"\r\n0\r\n\r\n",
    "two chunks": b"2\r\nda\r\nd\r\n" + TEXT[2:] + b"\r\n0\r\n\r\n",
    "capitals": b"F\r\n" + TEXT + b"\r\n0\r\n\r\n",
    "leading zeros": b"000F\r\n" + TEXT + b"\r\n0000\r\n\r\n",
    "extensions": b'f;a;b=c;d="e f"\r\n' + TEXT + b"\r\n0;last\r\n\r\n",
    "white space": b"f  \r\n" + TEXT + b"\r\n0\t \r\n\r\n",
    "white space before an extension": b"f ; a = b\r\n" + TEXT + b"\r\n0 ;x\r\n\r\n",
    "a long extension": b"f;" + b"x" * 5000 + b"\r\n" + TEXT + b"\r\n0\r\n\r\n",
    "trailers": b"f\r\n" + TEXT + b"\r\n0\r\nX-Sum: 1\r\nEmpty:\r\n\r\n",
    "a folded trailer": b"f\r\n" + TEXT + b"\r\n0\r\nX-Sum: 1\r\n  and 2\r\n\r\n",
}


@pytest.mark.parametrize("name", WHOLE)
def test_chunks_read_whole_and_byte_by_byte(name: str) -> None:
    for reads in ([WHOLE[name]], one_by_one(WHOLE[name])):
        body = chunked()
        assert (fed(body, *reads), body.whole, body.rest, body.problem) == (TEXT, True, b"", None)


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "a long extension"])
def test_chunks_split_over_three_reads_anywhere(name: str) -> None:
    data = WHOLE[name]
    for first, second in itertools.combinations_with_replacement(range(len(data) + 1), 2):
        body = chunked()
        text = fed(body, *(part for part in (data[:first], data[first:second], data[second:]) if part))
        assert (text, body.whole, body.problem) == (TEXT, True, None), (first, second)


@pytest.mark.parametrize("name", WHOLE)
def test_chunks_cut_after_any_byte_are_never_whole(name: str) -> None:
    data = WHOLE[name]
    for cut in range(len(data)):
        body = chunked()
        assert TEXT.startswith(fed(body, data[:cut])), cut
        assert (body.whole, body.problem, body.end()) == (False, None, "the chunked body has no end"), cut


def test_all_chunks_of_a_read_are_one_piece() -> None:
    body = chunked()
    assert body.feed(b"2\r\nab\r\n3\r\ncde\r\n2\r\nf") == b"abcdef"
    assert body.feed(b"g\r\n1\r\nh\r\n") == b"gh"


def test_data_of_a_chunk_are_given_before_its_end() -> None:
    body = chunked()
    assert body.feed(b"5\r\nab") == b"ab"
    assert body.feed(b"cde") == b"cde"
    assert body.feed(b"\r") == b""
    assert body.feed(b"\n1\r\nx") == b"x"


def test_what_comes_after_the_last_chunk_is_not_the_bodys() -> None:
    body = chunked()
    assert fed(body, WHOLE["trailers"] + b"HTTP/1.1 200 OK\r\n") == TEXT
    assert (body.whole, body.rest) == (True, b"HTTP/1.1 200 OK\r\n")


DAMAGED: dict[str, tuple[bytes, str]] = {
    "no number": (b"zz\r\n", "bad chunk size b'zz'"),
    "no size": (b"\r\n", "bad chunk size b''"),
    "a sign": (b"+5\r\nabcde\r\n", "bad chunk size"),
    "negative": (b"-5\r\nabcde\r\n", "bad chunk size"),
    "a prefix": (b"0x5\r\nabcde\r\n", "bad chunk size"),
    "an underscore": (b"1_0\r\nabcde\r\n", "bad chunk size"),
    "white space before the size": (b" 5\r\nabcde\r\n", "bad chunk size"),
    "a huge size": (b"f" * 21 + b"\r\n", "bad chunk size"),
    "no semicolon": (b"5 x\r\nabcde\r\n", "bad chunk size"),
    "a bare LF in an extension": (b"5;a\nb\r\nabcde\r\n", "bad chunk size"),
    "a bare CR in an extension": (b"5;a\rb\r\nabcde\r\n", "bad chunk size"),
    "more data than the size": (b"2\r\nabc\r\n", "a chunk ends with b'c"),
    "much more data than the size": (b"2\r\nabcde", "a chunk ends with b'c"),
    "a bare LF after the data": (b"2\r\nab\n2\r\n", "a chunk ends with b'\\n"),
    "a trailer without a colon": (b"0\r\nhello\r\n\r\n", "bad trailer b'hello'"),
    "a trailer without a name": (b"0\r\n: x\r\n\r\n", "bad trailer"),
    "a trailer whose name has a space": (b"0\r\nA : x\r\n\r\n", "bad trailer"),
    "a NUL in a trailer": (b"0\r\nA: \0\r\n\r\n", "bad trailer"),
    "a bare LF in a trailer": (b"0\r\nA: x\n\r\n\r\n", "bad trailer"),
    "a folded line first": (b"0\r\n A: x\r\n\r\n", "bad trailer"),
    "a trailer with a long line": (b"0\r\nA: " + b"x" * MAX_LINE_BYTES, f"longer than {MAX_LINE_BYTES} bytes"),
    "a trailer with a long line and its end": (
        b"0\r\nA: " + b"x" * MAX_LINE_BYTES + b"\r\n\r\n",
        f"longer than {MAX_LINE_BYTES} bytes",
    ),
    "many trailers": (b"0\r\n" + b"A: x\r\n" * (MAX_TRAILER_BYTES // 4 + 1), f"longer than {MAX_TRAILER_BYTES} bytes"),
    "a long size line": (b"1;" + b"x" * MAX_LINE_BYTES, f"longer than {MAX_LINE_BYTES} bytes"),
    "a long size line with its end": (b"1;" + b"x" * MAX_LINE_BYTES + b"\r\n", f"longer than {MAX_LINE_BYTES} bytes"),
    "bytes without an end": (b"1" * (MAX_LINE_BYTES + 1), f"longer than {MAX_LINE_BYTES} bytes"),
}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize("before", [b"", b"3\r\nabc\r\n"])
def test_damage_is_told_and_what_came_before_it_is_given(name: str, bytewise: bool, before: bytes) -> None:
    data, message = DAMAGED[name]
    body = chunked()
    text = fed(body, *(one_by_one(before + data) if bytewise else [before + data]))
    assert body.problem is not None
    assert message in body.problem
    assert not body.whole
    assert text.startswith(b"abc" if before else b"")


# --- the reference -----------------------------------------------------------------------------------


class Reference:
    """The same body, read by h11."""

    def __init__(self, framing: bytes) -> None:
        self._connection = h11.Connection(h11.CLIENT)
        self._connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        self._connection.send(h11.EndOfMessage())
        self._connection.receive_data(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n")
        self._connection.next_event()

    def read(self, data: bytes) -> tuple[bytes, str, bytes]:
        """The text, how it stands afterwards, and what is left."""
        if data:  # h11 takes b"" for the end of the connection
            self._connection.receive_data(data)
        text = b""
        try:
            while True:
                event = self._connection.next_event()
                if isinstance(event, h11.Data):
                    text += event.data
                elif isinstance(event, h11.EndOfMessage):
                    return text, "whole", self._connection.trailing_data[0]
                else:
                    return text, "open", b""
        except h11.RemoteProtocolError:
            return text, "damaged", b""


def stand_of(body: Body) -> str:
    return "damaged" if body.problem is not None else "whole" if body.whole else "open"


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data in reads, cut at these places (modulo their number)."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


EXTENSIONS = st.sampled_from([b"", b";a", b";a=b", b';a="b c"', b";" + b"x" * 40, b" "])
BODIES = st.lists(st.tuples(st.binary(min_size=1, max_size=300), EXTENSIONS, st.booleans()), max_size=8)
TRAILERS = st.lists(st.sampled_from([b"A: 1\r\n", b"Long-Name: a b, c\r\n", b"Empty:\r\n"]), max_size=3)
CUTS = st.lists(st.integers(0, 5000), max_size=12)


def encoded(chunks: list[tuple[bytes, bytes, bool]], trailers: list[bytes]) -> bytes:
    lines = [
        (b"%X" if capitals else b"%x") % len(data) + extension + b"\r\n" + data + b"\r\n"
        for data, extension, capitals in chunks
    ]
    return b"".join([*lines, b"0\r\n", *trailers, b"\r\n"])


@given(BODIES, TRAILERS, CUTS, st.sampled_from([b"", b"\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]))
def test_any_body_in_any_chunks_and_reads_is_read_as_h11_does(
    chunks: list[tuple[bytes, bytes, bool]], trailers: list[bytes], cuts: list[int], after: bytes
) -> None:
    data = encoded(chunks, trailers)
    body = chunked()
    text = fed(body, *split(data, cuts)[:-1], split(data, cuts)[-1] + after)
    assert text == b"".join(chunk for chunk, _, _ in chunks)
    assert (text, stand_of(body), body.rest) == Reference(b"Transfer-Encoding: chunked\r\n").read(data + after)


@given(BODIES, TRAILERS, CUTS, st.integers(0, 5000))
def test_any_body_cut_anywhere_is_open_as_for_h11(
    chunks: list[tuple[bytes, bytes, bool]], trailers: list[bytes], cuts: list[int], end: int
) -> None:
    data = encoded(chunks, trailers)
    data = data[: end % len(data)]
    body = chunked()
    text = fed(body, *split(data, cuts))
    assert (text, stand_of(body)) == Reference(b"Transfer-Encoding: chunked\r\n").read(data)[:2]
    assert stand_of(body) == "open"


FRAGMENTS = [
    b"0",
    b"1",
    b"a",
    b"2",
    b"g",
    b"\r\n",
    b"\r\n",
    b"\r",
    b"\n",
    b";x",
    b"X: y",
    b"-",
    b"0x1",
    b"_",
    b"+",
    b"ab",
]


@given(BODIES, CUTS)
def test_whole_chunks_are_what_the_body_gives_for_them(
    chunks: list[tuple[bytes, bytes, bool]], cuts: list[int]
) -> None:
    body = chunked()
    body.feed(b"1\r\nx\r\n")
    for read in split(encoded(chunks, []), cuts):
        between, only, several = body.between_chunks, only_chunk(read), whole_chunks(read)
        given = body.feed(read)
        if between:
            assert several == (given if body.between_chunks else b"")
            assert only in (several, b"")
        assert not (body.between_chunks and body.whole)


@given(st.binary(min_size=1, max_size=300), EXTENSIONS, st.booleans())
def test_one_whole_chunk_is_the_only_one(data: bytes, extension: bytes, capitals: bool) -> None:
    line = (b"%X" if capitals else b"%x") % len(data) + extension + b"\r\n"
    whole = line + data + b"\r\n"
    assert only_chunk(whole) == (data if len(line) <= 32 else b"")
    assert only_chunk(whole[:-1]) == only_chunk(whole + b"1") == only_chunk(b"0\r\n\r\n") == b""


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14).map(b"".join))
def test_whatever_is_said_to_be_the_only_chunk_is_one_for_h11(data: bytes) -> None:
    if several := whole_chunks(data):
        assert Reference(b"Transfer-Encoding: chunked\r\n").read(data) == (several, "open", b"")
    if only := only_chunk(data):
        assert only == several
        assert Reference(b"Transfer-Encoding: chunked\r\n").read(data) == (only, "open", b"")
        assert len(only) + len(data.partition(b"\r\n")[0]) + 4 == len(data)


BARE = re.compile(rb"\r(?!\n)|(?<!\r)\n")


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14).map(b"".join), CUTS)
def test_whatever_bytes_come_what_is_taken_for_whole_is_so_for_h11(data: bytes, cuts: list[int]) -> None:
    body = chunked()
    text = fed(body, *split(data, cuts))
    reference = Reference(b"Transfer-Encoding: chunked\r\n").read(data)
    if stand_of(body) == "whole":
        assert (text, "whole", reference[2]) == reference
    elif not BARE.search(data):  # which h11 takes in some places
        assert reference[1] != "whole"
        assert stand_of(body) == "damaged" or reference[1] == "open"
    assert text.startswith(reference[0]) or reference[0].startswith(text)


@given(st.binary(max_size=300), st.binary(max_size=20), CUTS)
def test_any_body_with_a_length_is_read_as_h11_does(text: bytes, after: bytes, cuts: list[int]) -> None:
    body = body_of("GET", 200, {"content-length": str(len(text))})
    reads = split(text, cuts)
    given = fed(body, *reads[:-1], reads[-1] + after) if text else b""
    reference = Reference(b"Content-Length: %d\r\n" % len(text)).read(text + after)
    assert (given, stand_of(body), body.rest if text else after) == reference
