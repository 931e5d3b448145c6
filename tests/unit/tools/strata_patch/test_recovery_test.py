from __future__ import annotations

import pytest

from tools.strata_patch.recovery_test import patch_test
from tools.strata_patch.source import read_source

LINE = '        self.assertIn(\'"finish_reason": "error"\', text)\n'
HEAD = "import unittest\n\nclass Recovery(unittest.TestCase):\n    def test_http(self):\n        text = post()\n"
TAIL = "        self.assertFalse(loaded())   # not any more\n"
ONE_LINE = "        self.assertIn('\"error\"',text);self.assertTrue(text.rstrip().endswith('data: [DONE]'))\n"
TWO_LINES = "        self.assertIn('\"error\"', text)\n        self.assertTrue(text.endswith('data: [DONE]'), text)\n"
FOUND = "        self.assertIn('\"error\"', text)\n        self.assertIn('data: [DONE]', text)\n"


def patched(text: str) -> str:
    return patch_test(read_source("test.py", text.encode())).decode()


@pytest.mark.parametrize("lines", [ONE_LINE, TWO_LINES, FOUND])
def test_the_public_test_looks_for_the_finish_reason_too(lines: str) -> None:
    once = patched(HEAD + lines + TAIL)
    assert once == HEAD + lines + LINE + TAIL
    assert patched(once) == once


def test_windows_line_ends_and_tabs_stay() -> None:
    source = (HEAD + ONE_LINE + TAIL).replace("    ", "\t").replace("\n", "\r\n")
    expected = (HEAD + ONE_LINE + LINE + TAIL).replace("    ", "\t").replace("\n", "\r\n")
    assert patched(source) == expected


def test_the_assertion_stands_in_the_block_of_the_stream() -> None:
    head = HEAD.replace("        text = post()", "        try:\n            text = post()")
    rest = "        finally:\n            pass\n"
    block = "".join("    " + line for line in TWO_LINES.splitlines(keepends=True))
    assert patched(head + block + rest) == head + block + "    " + LINE + rest


@pytest.mark.parametrize(
    "lines",
    [
        "        self.assertIn('\"error\"', text)\n",
        "        self.assertTrue(text.endswith('data: [DONE]'))\n",
        "        self.assertIn('\"error\"', text)\n        self.assertTrue(other.endswith('data: [DONE]'))\n",
        ONE_LINE + '        self.assertEqual(text.count(\'"finish_reason": "error"\'), 1)\n',
        "        pass\n",
    ],
)
def test_a_file_without_the_public_test_or_with_the_assertion_stays(lines: str) -> None:
    assert patched(HEAD + lines + TAIL) == HEAD + lines + TAIL
