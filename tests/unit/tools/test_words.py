"""tools/words.py: a line is split as the users of each system quote."""

from __future__ import annotations

import pytest

from tools.words import split_words


@pytest.mark.parametrize(
    ("line", "windows", "words"),
    [
        ("", False, []),
        ("--model 'a b.gguf' --parallel 2", False, ["--model", "a b.gguf", "--parallel", "2"]),
        (r"--model a\ b", False, ["--model", "a b"]),
        ("", True, []),
        (
            r'--config "C:\my models\run.json" --parallel 2',
            True,
            ["--config", r"C:\my models\run.json", "--parallel", "2"],
        ),
        (r"--config C:\run.json", True, ["--config", r"C:\run.json"]),
        (r"--model Anna's.gguf # 1", True, ["--model", "Anna's.gguf", "#", "1"]),
        (r'--key="a b"', True, ["--key=a b"]),
    ],
)
def test_line_is_split(line: str, windows: bool, words: list[str]) -> None:
    assert split_words(line, windows=windows) == words


@pytest.mark.parametrize("windows", [False, True])
def test_open_quote_is_an_error(windows: bool) -> None:
    with pytest.raises(ValueError, match="No closing quotation"):
        split_words('"a', windows=windows)
