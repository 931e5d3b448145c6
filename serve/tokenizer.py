"""Text to token ids and back, for engines that speak token ids.

A control token (`<|im_start|>` …) has no bytes: it never shows up in an answer, and text that spells one becomes
ordinary tokens unless the caller says `parse_special`. It knows no chat format and does not decide what ends an
answer beyond naming the end tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from tokenizers import AddedToken, Regex, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.models import BPE

END_TOKENS = ("<|im_end|>", "<|endoftext|>")
"""The control tokens by which a model ends its turn."""
VISIBLE_TAGS = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>"})
"""Tokens that are text even where a vocabulary calls them control tokens: the parser reads them."""

_CONTROL, _USER_DEFINED = 3, 4  # token types as in GGUF files
_ADDED = (_CONTROL, _USER_DEFINED)
# How the text is divided before the merges apply. Source: the published tokenizer.json of the Qwen3.5 models, the
# family that Strata runs; its packs have vocab.json and merges.txt only.
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


class Tokenizer(Protocol):
    """What the server needs of a tokenizer. All methods may be called from any thread."""

    @property
    def vocab_size(self) -> int:
        """The number of ids, from 0 on."""
        ...

    @property
    def specials(self) -> Mapping[str, int]:
        """The control tokens by their spelling."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens by which a model ends its turn."""
        ...

    def encode(self, text: str, parse_special: bool = False) -> list[int]:
        """The ids of `text`; with `parse_special` the spelling of a control token becomes that token."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, control tokens left out, with U+FFFD for what is not UTF-8.

        Raises: ValueError: there is no such token.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token (perhaps a part of a character), none for a control token. Constant time.

        Raises: ValueError: there is no such token.
        """
        ...


class _Table:
    """A tokenizer as a table from id to bytes; how text becomes ids is for the subclasses."""

    def __init__(
        self, bytes_of: Sequence[bytes | None], specials: Mapping[str, int], marked: Mapping[str, int] | None = None
    ) -> None:
        self.bytes_of = bytes_of
        """The bytes of every token; None where there is no token."""
        self.specials = specials
        self.end_ids = frozenset(specials[name] for name in END_TOKENS if name in specials)
        self._marked = specials if marked is None else marked  # what `parse_special` looks for
        spellings = sorted(self._marked, key=len, reverse=True)
        self._special = re.compile("(" + "|".join(map(re.escape, spellings)) + ")") if spellings else None

    @property
    def vocab_size(self) -> int:
        """The number of ids, from 0 on."""
        return len(self.bytes_of)

    def encode(self, text: str, parse_special: bool = False) -> list[int]:
        """The ids of `text`; with `parse_special` the spelling of a control token becomes that token."""
        if not parse_special or self._special is None:
            return self._encode_text(text)
        ids: list[int] = []
        for index, part in enumerate(self._special.split(text)):
            if index % 2:
                ids.append(self._marked[part])
            elif part:
                ids += self._encode_text(part)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, control tokens left out.

        Raises: ValueError: there is no such token.
        """
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, none for a control token.

        Raises: ValueError: there is no such token.
        """
        data = self.bytes_of[token_id] if 0 <= token_id < len(self.bytes_of) else None
        if data is None:
            raise ValueError(f"token id {token_id} is not one of the tokenizer's {len(self.bytes_of)}")
        return data

    def _encode_text(self, text: str) -> list[int]:
        raise NotImplementedError


class ByteTokenizer(_Table):
    """One id per UTF-8 byte, then the control tokens: for tests and for the fake engine."""

    SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")

    def __init__(self) -> None:
        specials = {name: 256 + index for index, name in enumerate(self.SPECIALS)}
        super().__init__([bytes([value]) for value in range(256)] + [b""] * len(specials), specials)

    def _encode_text(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))


class BpeTokenizer(_Table):
    """A byte-level BPE tokenizer from files.

    `path` is a `tokenizer.json`, or a folder with one, or a folder with `vocab.json` and `merges.txt` (and
    `token_type.json`: a list of GGUF token types by id; without it, tokens spelled `<|…|>` are control tokens). Reading
    a large vocabulary takes seconds.

    Raises: ValueError: a file is missing or is not what it should be; the message names it.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not path.exists():
            raise ValueError(f"tokenizer: there is no file or folder {str(path)!r}")
        self._hf = _from_json(file) if file.is_file() else _from_vocab(path)
        # control tokens are found by `encode`; everything else goes through the library, where they are plain text
        self._hf.encode_special_tokens = True
        added = dict(self._hf.get_added_tokens_decoder())
        marked = {token.content: token_id for token_id, token in added.items() if token.special}
        specials = {name: token_id for name, token_id in marked.items() if name not in VISIBLE_TAGS}
        table = _bytes_table(self._hf.get_vocab(with_added_tokens=True), added, specials)
        super().__init__(table, specials, marked)

    def _encode_text(self, text: str) -> list[int]:
        return self._hf.encode(text, add_special_tokens=False).ids


def load_tokenizer(spec: str) -> Tokenizer:
    """The tokenizer that a run config names: "bytes", a folder or a `tokenizer.json`. May take seconds.

    Raises: ValueError: a file is missing or is not what it should be; the message names it.
    """
    return ByteTokenizer() if spec == "bytes" else BpeTokenizer(spec)


def _from_json(file: Path) -> HfTokenizer:
    try:
        hf = HfTokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception for every fault of a file
        raise ValueError(f"tokenizer: {str(file)!r} is not a tokenizer.json ({error})") from None
    if "ByteLevel" not in f"{hf.pre_tokenizer!r} {hf.decoder!r}":
        raise ValueError(f"tokenizer: {str(file)!r} is not a byte-level BPE tokenizer; only those are supported")
    return hf


def _from_vocab(folder: Path) -> HfTokenizer:
    missing = [name for name in ("vocab.json", "merges.txt") if not (folder / name).is_file()]
    if missing:
        needed = " and ".join(missing)
        raise ValueError(f"tokenizer: {str(folder)!r} has no {needed} (and no tokenizer.json, which would do alone)")
    vocab = _vocab(folder / "vocab.json")
    merges = _merges(folder / "merges.txt")
    try:
        hf = HfTokenizer(BPE(vocab, merges))
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception for every fault of a file
        raise ValueError(f"tokenizer: vocab.json and merges.txt in {str(folder)!r} do not fit ({error})") from None
    split = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    hf.pre_tokenizer = pre_tokenizers.Sequence([split, bytewise])  # pyright: ignore[reportAttributeAccessIssue] - no setter in the stub
    for name, special in _added(vocab, folder / "token_type.json"):
        token = AddedToken(name, special=special, normalized=False)
        hf.add_tokens([token])  # pyright: ignore[reportUnknownMemberType] - the stub's list has no item type
    return hf


def _vocab(file: Path) -> dict[str, int]:
    vocab = _json(file)
    if not isinstance(vocab, dict) or not vocab:
        raise ValueError(f"tokenizer: {str(file)!r} is not a JSON object of tokens and ids")
    for name, token_id in cast(dict[str, object], vocab).items():
        if not isinstance(token_id, int) or token_id < 0:
            raise ValueError(f"tokenizer: {str(file)!r}: the id of {name[:80]!r} is {token_id!r}, not a number ≥ 0")
    return cast(dict[str, int], vocab)


def _merges(file: Path) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        left, space, right = line.rstrip("\r").partition(" ")
        if not space or not left or not right or " " in right:
            raise ValueError(f"tokenizer: {str(file)!r}: line {number} is not a pair of tokens")
        pairs.append((left, right))
    return pairs


def _added(vocab: Mapping[str, int], types_file: Path) -> list[tuple[str, bool]]:
    """The tokens that are found whole in text, and whether they are control tokens."""
    by_id = sorted(vocab, key=lambda name: vocab[name])
    if not types_file.is_file():
        control = [name for name in by_id if name.startswith("<|") and name.endswith("|>")]
        return [(name, True) for name in control] + [(name, False) for name in by_id if name in VISIBLE_TAGS]
    types = _json(types_file)
    if not isinstance(types, list) or not all(isinstance(kind, int) for kind in cast(list[object], types)):
        raise ValueError(f"tokenizer: {str(types_file)!r} is not a list of token types")
    kinds = dict(enumerate(cast(list[int], types)))
    found = [(name, kinds.get(vocab[name])) for name in by_id]
    return [(name, kind == _CONTROL and name not in VISIBLE_TAGS) for name, kind in found if kind in _ADDED]


def _json(file: Path) -> object:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"tokenizer: {str(file)!r} is not JSON ({error})") from None


def _bytes_table(
    vocab: Mapping[str, int], added: Mapping[int, AddedToken], specials: Mapping[str, int]
) -> list[bytes | None]:
    table: list[bytes | None] = [None] * (max(vocab.values(), default=-1) + 1)
    byte_of = _byte_alphabet()
    for name, token_id in vocab.items():
        if token_id in added:
            table[token_id] = b"" if name in specials else name.encode("utf-8")
        else:
            known = all(char in byte_of for char in name)
            table[token_id] = bytes(byte_of[char] for char in name) if known else name.encode("utf-8")
    return table


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE writes for bytes: printable ones for themselves, the others from U+0100 on.

    Source: the byte-to-unicode table of GPT-2's published encoder.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {chr(256 + index): value for index, value in enumerate(others)}
