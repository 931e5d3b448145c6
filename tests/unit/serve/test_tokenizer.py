"""Text to ids and back: the byte tokenizer and byte-level BPE from files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import models, pre_tokenizers

from serve.tokenizer import BpeTokenizer, ByteTokenizer, Tokenizer, load_tokenizer

CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
TAGS = ["<think>", "</think>", "<tool_call>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello"]


def byte_letters() -> dict[int, str]:
    """Byte to letter, derived here from the library's own pre-tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = {ord(char): char for char in alphabet if ord(char) < 256}
    others = iter(char for char in alphabet if ord(char) >= 256)
    return {byte: printable[byte] if byte in printable else next(others) for byte in range(256)}


def vocabulary() -> dict[str, int]:
    vocab = {letter: byte for byte, letter in byte_letters().items()}
    for name in [*(merge.replace(" ", "") for merge in MERGES), *CONTROL, *TAGS]:
        vocab[name] = len(vocab)
    return vocab


def token_types(control: list[str], user_defined: list[str]) -> list[int]:
    kinds = dict.fromkeys(control, 3) | dict.fromkeys(user_defined, 4)
    return [kinds.get(name, 1) for name in vocabulary()]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A folder as Strata's pack has it."""
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary(), ensure_ascii=False), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n", encoding="utf-8")
    (tmp_path / "token_type.json").write_text(json.dumps(token_types(CONTROL, TAGS)), encoding="utf-8")
    return tmp_path


# --- bytes -------------------------------------------------------------------------------------------


def test_byte_tokenizer_has_one_id_per_byte_and_three_control_tokens() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.vocab_size == 259
    assert dict(tokenizer.specials) == {"<|im_start|>": 256, "<|im_end|>": 257, "<|endoftext|>": 258}
    assert tokenizer.end_ids == {257, 258}
    assert tokenizer.encode("aé") == [97, 0xC3, 0xA9]
    assert [tokenizer.token_bytes(token_id) for token_id in (97, 0xC3, 256, 257, 258)] == [b"a", b"\xc3", b"", b"", b""]


def test_spelling_of_a_control_token_is_text_unless_asked() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("a<|im_end|>b", parse_special=True) == [97, 257, 98]
    assert tokenizer.encode("a<|im_end|>b") == list(b"a<|im_end|>b")
    assert tokenizer.encode("<|im_<|im_end|>", parse_special=True) == [*b"<|im_", 257]


def test_control_tokens_never_show_in_text() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([256, 97, 257, 0xFF, 258]) == "a\ufffd"


@pytest.mark.parametrize("token_id", [-1, 259, 10**9])
def test_id_outside_the_vocabulary_is_an_error_that_names_it(token_id: int) -> None:
    with pytest.raises(ValueError, match=str(token_id)):
        ByteTokenizer().token_bytes(token_id)
    with pytest.raises(ValueError, match=str(token_id)):
        ByteTokenizer().decode([97, token_id])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text())
def test_byte_tokenizer_gives_every_text_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    text = text.encode("utf-8", "replace").decode()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode() == text


# --- BPE ---------------------------------------------------------------------------------------------


def test_merges_apply(pack: Path) -> None:
    tokenizer = load_tokenizer(str(pack))
    vocab = vocabulary()
    assert tokenizer.encode("hello hello") == [vocab["hello"], vocab["Ġhello"]]
    assert tokenizer.token_bytes(vocab["Ġhello"]) == b" hello"
    assert tokenizer.vocab_size == len(vocab)


def test_text_is_divided_before_the_merges(pack: Path) -> None:
    """Digits stand alone, a space joins the word behind it, line ends stay together: as the models were trained."""
    tokenizer = BpeTokenizer(pack)
    vocab = vocabulary()
    assert tokenizer.encode("hello\nhello") == [vocab["hello"], vocab["Ċ"], vocab["hello"]]
    assert tokenizer.encode("x hello") == [vocab["x"], vocab["Ġhello"]]
    assert tokenizer.encode("x  hello") == [vocab["x"], vocab["Ġ"], vocab["Ġhello"]]


def test_control_tokens_have_no_bytes_and_tags_have_theirs(pack: Path) -> None:
    tokenizer = BpeTokenizer(pack)
    vocab = vocabulary()
    assert set(tokenizer.specials) == set(CONTROL)
    assert tokenizer.end_ids == {vocab["<|im_end|>"], vocab["<|endoftext|>"]}
    assert [tokenizer.token_bytes(vocab[name]) for name in CONTROL] == [b"", b"", b""]
    assert [tokenizer.token_bytes(vocab[name]) for name in TAGS] == [name.encode() for name in TAGS]
    assert tokenizer.decode([vocab["<think>"], vocab["hello"], vocab["<|im_end|>"]]) == "<think>hello"


def test_tags_are_always_tokens_and_control_tokens_only_when_asked(pack: Path) -> None:
    tokenizer = BpeTokenizer(pack)
    vocab = vocabulary()
    text = "<|im_start|>hello<think></think>"
    tags = [vocab["<think>"], vocab["</think>"]]
    assert tokenizer.encode(text, parse_special=True) == [vocab["<|im_start|>"], vocab["hello"], *tags]
    plain = tokenizer.encode(text)
    assert plain[-2:] == tags and not set(plain) & set(tokenizer.specials.values())
    assert tokenizer.decode(plain) == text


def test_tag_that_the_vocabulary_calls_a_control_token_is_readable(pack: Path) -> None:
    (pack / "token_type.json").write_text(json.dumps(token_types([*CONTROL, *TAGS], [])), encoding="utf-8")
    tokenizer = BpeTokenizer(pack)
    assert set(tokenizer.specials) == set(CONTROL)
    assert tokenizer.decode([vocabulary()["</think>"]]) == "</think>"
    assert tokenizer.encode("</think>", parse_special=True) == [vocabulary()["</think>"]]


def test_folder_without_token_types_knows_control_tokens_by_their_spelling(pack: Path) -> None:
    (pack / "token_type.json").unlink()
    tokenizer = BpeTokenizer(pack)
    assert set(tokenizer.specials) == set(CONTROL)
    assert tokenizer.encode("<think>", parse_special=True) == [vocabulary()["<think>"]]
    assert tokenizer.decode([vocabulary()["<tool_call>"]]) == "<tool_call>"


def save_json(pack: Path, change: Callable[[HfTokenizer], None] = lambda tokenizer: None) -> Path:
    """The same tokenizer as a `tokenizer.json`, written by the library."""
    vocab = vocabulary()
    hf = HfTokenizer(models.BPE(vocab, [tuple(merge.split(" ")) for merge in MERGES]))  # pyright: ignore[reportArgumentType] - the stub's tuple has no length
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue] - no setter in the stub
    hf.add_special_tokens(CONTROL)  # pyright: ignore[reportUnknownMemberType] - the stub's list has no item type
    hf.add_tokens(TAGS)  # pyright: ignore[reportUnknownMemberType] - the stub's list has no item type
    change(hf)
    file = pack / "tokenizer.json"
    hf.save(str(file))
    return file


def test_tokenizer_json_gives_the_same_ids(pack: Path) -> None:
    from_vocab = BpeTokenizer(pack)
    file = save_json(pack)
    for spec in (str(file), str(pack)):
        from_json = load_tokenizer(spec)
        for text in ("hello hello<|im_end|>", "<think>é😀</think>", "a\n\n b"):
            for parse_special in (False, True):
                assert from_json.encode(text, parse_special) == from_vocab.encode(text, parse_special)
        assert from_json.end_ids == from_vocab.end_ids


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(max_size=30) | st.lists(st.sampled_from([*CONTROL, *TAGS, "hello", " ", "\n"])).map("".join))
def test_bpe_gives_every_text_back(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    tokenizer = _shared_bpe(tmp_path_factory)
    text = text.encode("utf-8", "replace").decode()
    assert tokenizer.decode(tokenizer.encode(text)) == text


_shared: list[Tokenizer] = []


def _shared_bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if not _shared:
        folder = tmp_path_factory.mktemp("pack")
        (folder / "vocab.json").write_text(json.dumps(vocabulary()), encoding="utf-8")
        (folder / "merges.txt").write_text("\n".join(MERGES), encoding="utf-8")
        (folder / "token_type.json").write_text(json.dumps(token_types(CONTROL, TAGS)), encoding="utf-8")
        _shared.append(BpeTokenizer(folder))
    return _shared[0]


# --- loading -----------------------------------------------------------------------------------------


def test_bytes_names_the_byte_tokenizer() -> None:
    assert isinstance(load_tokenizer("bytes"), ByteTokenizer)


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        load_tokenizer(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("missing", [("vocab.json",), ("merges.txt",), ("vocab.json", "merges.txt")])
def test_missing_file_is_named(pack: Path, missing: tuple[str, ...]) -> None:
    for name in missing:
        (pack / name).unlink()
    with pytest.raises(ValueError, match=" and ".join(missing)):
        load_tokenizer(str(pack))


BROKEN = {
    "vocab that is no JSON": ("vocab.json", "{", "not JSON"),
    "vocab that is a list": ("vocab.json", "[]", "vocab.json"),
    "vocab that is empty": ("vocab.json", "{}", "vocab.json"),
    "an id that is a word": ("vocab.json", '{"a": "b"}', "'a'"),
    "a negative id": ("vocab.json", '{"a": -1}', "-1"),
    "merges that are no pairs": ("merges.txt", "#version: 0.2\nh e\nhello\n", "line 3"),
    "merges of three": ("merges.txt", "a b c\n", "line 1"),
    "merges outside the vocabulary": ("merges.txt", "ü zzz\n", "do not fit"),
    "types that are no list": ("token_type.json", "{}", "token_type.json"),
    "types that are words": ("token_type.json", '["normal"]', "token_type.json"),
    "a tokenizer.json that is none": ("tokenizer.json", "{}", "tokenizer.json"),
}


@pytest.mark.parametrize("name, text, message", BROKEN.values(), ids=BROKEN)
def test_broken_file_is_named(pack: Path, name: str, text: str, message: str) -> None:
    (pack / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_tokenizer(str(pack))


def test_tokenizer_that_is_not_byte_level_is_refused(pack: Path) -> None:
    def metaspace(hf: HfTokenizer) -> None:
        hf.pre_tokenizer = pre_tokenizers.Metaspace()  # pyright: ignore[reportAttributeAccessIssue] - no setter in the stub

    save_json(pack, metaspace)
    with pytest.raises(ValueError, match="byte-level"):
        load_tokenizer(str(pack))


def test_windows_line_ends_in_merges_are_read(pack: Path) -> None:
    (pack / "merges.txt").write_bytes("\r\n".join(["#version: 0.2", *MERGES, ""]).encode())
    assert BpeTokenizer(pack).encode("hello") == [vocabulary()["hello"]]


def test_hole_in_the_vocabulary_is_no_token(pack: Path) -> None:
    vocab = vocabulary() | {"hole": 1_000}
    (pack / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    tokenizer = BpeTokenizer(pack)
    assert tokenizer.vocab_size == 1_001
    with pytest.raises(ValueError, match="999"):
        tokenizer.token_bytes(999)
