"""A command line is split as its system does it."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from serve.command_line import split_command

posix = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell's quotes")
windows = pytest.mark.skipif(sys.platform != "win32", reason="CommandLineToArgvW")

WORDS = [
    "server",
    "-m",
    "my model.gguf",
    "--port",
    "{port}",
    "",
    'say "hi"',
    "it's",
    "C:\\models\\",
    "a\\b",
    "$HOME",
    "*",
]


@pytest.mark.parametrize("line", ["", "  ", "\t"])
def test_nothing_is_no_word(line: str) -> None:
    assert split_command(line) == ()


def test_plain_words_are_split_at_blanks() -> None:
    assert split_command("  llama-server  -m model.gguf --port {port}\t") == (
        "llama-server", "-m", "model.gguf", "--port", "{port}",
    )  # fmt: skip


@posix
def test_words_quoted_for_a_posix_shell_come_back() -> None:
    assert split_command(shlex.join(WORDS)) == tuple(WORDS)


@posix
def test_nothing_of_a_shell_but_its_quotes_is_read() -> None:
    assert split_command("a=1 server $HOME *.gguf | tee log # no comment") == (
        "a=1", "server", "$HOME", "*.gguf", "|", "tee", "log", "#", "no", "comment",
    )  # fmt: skip


@posix
def test_an_open_quote_is_refused() -> None:
    with pytest.raises(ValueError, match="quotation"):
        split_command("server 'my model.gguf")


@windows
def test_words_quoted_for_windows_come_back() -> None:
    assert split_command(subprocess.list2cmdline(WORDS)) == tuple(WORDS)


@windows
def test_backslashes_of_paths_are_kept_on_windows() -> None:
    assert split_command(r'"C:\Program Files\s.exe" -m C:\m\x.gguf') == (
        r"C:\Program Files\s.exe", "-m", r"C:\m\x.gguf",
    )  # fmt: skip
