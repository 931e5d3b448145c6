"""Characters from bytes that come in any pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve.assemble.detokenizer import Detokenizer

TABLE = {
    "ascii": (b"hello", "hello"),
    "two bytes": ("é".encode(), "é"),
    "Korean": ("안녕".encode(), "안녕"),
    "emoji": ("😀x".encode(), "😀x"),
    "NUL and control characters stay": (b"a\x00\x1b\x07b", "a\x00\x1b\x07b"),
    "line separators stay": ("a\u2028\u2029\u0085b".encode(), "a\u2028\u2029\u0085b"),
    "0xFF": (b"a\xffb", "a\ufffdb"),
    "a lone continuation": (b"a\x80b", "a\ufffdb"),
    "half a surrogate pair": (b"a\xed\xa0\xbdb", "a\ufffd\ufffd\ufffdb"),
    "a whole pair, encoded apart": (b"\xed\xa0\xbd\xed\xb8\x80", "\ufffd" * 6),
    "a character broken by another": (b"\xe4\xbdA", "\ufffdA"),
    "overlong": (b"\xc0\xaf", "\ufffd\ufffd"),
    "cut at the end": (b"a\xe4\xbd", "a\ufffd"),
    "cut after one byte of four": (b"\xf0", "\ufffd"),
    "nothing": (b"", ""),
}


@pytest.mark.parametrize("data, text", TABLE.values(), ids=TABLE)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_bytes_in_any_pieces_become_whole_characters(data: bytes, text: str, size: int) -> None:
    decoder = Detokenizer()
    pieces = [decoder.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert "".join(pieces) + decoder.flush() == text


def test_character_split_over_tokens_is_held_until_it_is_whole() -> None:
    decoder = Detokenizer()
    assert [decoder.feed(bytes([byte])) for byte in "😀".encode()] == ["", "", "", "😀"]


def test_broken_character_is_given_at_once_not_at_the_end() -> None:
    decoder = Detokenizer()
    assert decoder.feed(b"\xe4\xbd") == ""
    assert decoder.feed(b"A") == "\ufffdA"
    assert decoder.feed(b"\xff") == "\ufffd"
    assert decoder.flush() == ""


BORDERS = bytes.fromhex("41 80 8f 90 9f a0 bf c1 c2 e0 ed f0 f4 f5")
"""Of every range that UTF-8 tells apart, its ends."""


def test_after_every_byte_only_the_beginning_of_a_character_is_held() -> None:
    points = range(0x80, 0x110000, 0x40)  # the last byte has six bits, and is in no beginning
    characters = (chr(point).encode() for point in points if not 0xD800 <= point < 0xE000)
    beginnings = {character[:length] for character in characters for length in range(1, len(character))}
    for sequence in map(bytes, itertools.product(BORDERS, repeat=4)):
        decoder, given = Detokenizer(), ""
        for end in range(1, len(sequence) + 1):
            given += decoder.feed(sequence[end - 1 : end])
            held = next((n for n in (3, 2, 1) if n <= end and sequence[end - n : end] in beginnings), 0)
            assert given == sequence[: end - held].decode("utf-8", "replace"), sequence[:end]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(max_size=6), max_size=12))
def test_no_cut_changes_the_text_and_no_half_surrogate_comes_out(pieces: list[bytes]) -> None:
    decoder = Detokenizer()
    text = "".join([decoder.feed(piece) for piece in pieces]) + decoder.flush()
    assert text == b"".join(pieces).decode("utf-8", "replace")
    text.encode("utf-8")
