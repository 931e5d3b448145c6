from __future__ import annotations

import pytest

from tools.strata_patch.source import NotUnderstood, read_source


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"a = 1",
        b"a = 1\r\nif a:\r\n\tb = 2  \r\n\r\n",
        b"\xef\xbb\xbfa = '\xec\x84\x9c\xeb\xb2\x84'\n",
        b"# -*- coding: cp949 -*-\na = '\xb0\xa1'\n",
        b"#!/usr/bin/env python\n# coding: latin-1\na = '\xe9'\n",
        b"if a:\n  b = 2\r\n  c = 3 \\\n      + 4\n# x\n \t\n",
        b"if a:\n\tb = 1\nif b:\n        c = 2\n",
        b"a = 1\n\x0c\nb = 2 ;c=3;\n",
    ],
)
def test_a_file_is_written_as_it_was_read(data: bytes) -> None:
    source = read_source("a.py", data)
    assert source.encoded(source.module) == data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"a = '\xff\xfe'\n", "a.py: not Python text"),
        (b"# coding: no-such-code\n", "a.py: not Python text"),
        (b"a = 1\nb = 2 3\nc = 4\n", "a.py:2: not Python that can be read"),
        (b"a = 1\rb = 2\r", "a.py: cannot be kept byte for byte"),
        (b"\xef\xbb\xbf# coding: latin-1\na = '\xe9'\n", "a.py: not Python text: the byte order mark"),
    ],
)
def test_a_file_that_cannot_be_kept_is_not_understood(data: bytes, why: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        read_source("a.py", data)
    assert str(caught.value).startswith(why)


def test_a_line_is_told_as_editors_count_it() -> None:
    source = read_source("a.py", b"# first\n\n\na = 1\n")
    assert source.line_of(source.module.body[0]) == 4
