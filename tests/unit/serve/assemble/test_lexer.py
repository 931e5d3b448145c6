"""Tags are found whole, whatever the pieces."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve.assemble.lexer import NAME_MAX_CHARACTERS, Kind, Lexeme, Lexer, split_space

ALL = frozenset(Kind) - {Kind.TEXT}
CALL_ONLY = frozenset({Kind.CALL})


def lexemes(pieces: list[str], tags: frozenset[Kind] = ALL) -> list[Lexeme]:
    """All lexemes, with neighbouring text joined."""
    lexer = Lexer()
    found: list[Lexeme] = []
    for piece in pieces:
        lexer.feed(piece)
        while (lexeme := lexer.next(tags)) is not None:
            found.append(lexeme)
    found.append(Lexeme(Kind.TEXT, lexer.flush()))
    joined: list[Lexeme] = []
    for lexeme in found:
        before = joined.pop().raw if lexeme.kind is Kind.TEXT and joined and joined[-1].kind is Kind.TEXT else ""
        if before or lexeme.raw:
            joined.append(Lexeme(lexeme.kind, before + lexeme.raw, lexeme.name))
    return joined


def text(raw: str) -> Lexeme:
    return Lexeme(Kind.TEXT, raw)


TABLE = {
    "only text": ("a < b <= c", [text("a < b <= c")]),
    "a tag between text": ("a<tool_call>b", [text("a"), Lexeme(Kind.CALL, "<tool_call>"), text("b")]),
    "neighbours": ("</think><tool_call>", [Lexeme(Kind.END_THINK, "</think>"), Lexeme(Kind.CALL, "<tool_call>")]),
    "a name": ("<function=get it>", [Lexeme(Kind.FUNCTION, "<function=get it>", "get it")]),
    "a name in Korean": ("<parameter=도시>", [Lexeme(Kind.PARAMETER, "<parameter=도시>", "도시")]),
    "an empty name": ("<parameter=>", [text("<parameter=>")]),
    "a name with a newline": ("<function=a\n>", [text("<function=a\n>")]),
    "a tag in a name": ("<function=a<tool_call>", [text("<function=a"), Lexeme(Kind.CALL, "<tool_call>")]),
    "a bracket before a tag": ("<<think>", [text("<"), Lexeme(Kind.THINK, "<think>")]),
    "a tag that is cut": ("a</parame", [text("a</parame")]),
    "the longest name": (
        f"<function={'n' * NAME_MAX_CHARACTERS}>",
        [Lexeme(Kind.FUNCTION, f"<function={'n' * NAME_MAX_CHARACTERS}>", "n" * NAME_MAX_CHARACTERS)],
    ),
    "a longer name": (
        f"<function={'n' * (NAME_MAX_CHARACTERS + 1)}>",
        [text(f"<function={'n' * (NAME_MAX_CHARACTERS + 1)}>")],
    ),
}


@pytest.mark.parametrize("written, expected", TABLE.values(), ids=TABLE)
@pytest.mark.parametrize("size", [1, 2, 7, 1_000])
def test_tags_are_found_in_any_pieces(written: str, expected: list[Lexeme], size: int) -> None:
    assert lexemes([written[at : at + size] for at in range(0, len(written), size)]) == expected


def test_tags_that_are_not_looked_for_are_text_and_hold_nothing() -> None:
    lexer = Lexer()
    lexer.feed("</think")
    assert lexer.next(CALL_ONLY) == text("</think")
    assert lexer.next(CALL_ONLY) is None
    lexer.feed("<")
    assert lexer.next(frozenset()) == text("<")


def test_text_before_a_possible_tag_is_given_at_once() -> None:
    lexer = Lexer()
    lexer.feed("so <tool")
    assert lexer.next(ALL) == text("so ")
    assert lexer.next(ALL) is None
    lexer.feed("s>")
    assert lexer.next(ALL) == text("<tools>")


def test_held_text_is_never_longer_than_a_tag() -> None:
    lexer = Lexer()
    given = 0
    for char in "<parameter=" + "x" * 5_000:
        lexer.feed(char)
        while (lexeme := lexer.next(ALL)) is not None:
            given += len(lexeme.raw)
    assert given == len("<parameter=") + 5_000
    assert lexer.flush() == ""


FRAGMENTS = [*(kind.value for kind in ALL), "<", ">", "a", "\n", "name>", "</", "é"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=20).map("".join), st.integers(1, 9))
def test_every_character_comes_out_once_and_cuts_change_nothing(written: str, size: int) -> None:
    whole = lexemes([written])
    assert lexemes([written[at : at + size] for at in range(0, len(written), size)]) == whole
    assert "".join(lexeme.raw for lexeme in whole) == written


def test_white_space_is_split_off() -> None:
    assert split_space("\n \t x \n") == ("\n \t ", "x \n")
    assert split_space("") == ("", "")
