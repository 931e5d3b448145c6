"""The quick JSON reader and writer agree with the standard library's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.fake.fastjson import dumps, loads

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON, st.sampled_from([None, 2]), st.booleans())
def test_a_written_value_is_read_back(value: object, indent: int | None, escape: bool) -> None:
    assert loads(json.dumps(value, indent=indent, ensure_ascii=escape)) == value


@pytest.mark.parametrize(
    "text", ["", " ", "{", "[1,]", "nul", '"a', '{"a" 1}', "1 2", "[1] x", '"\n"', "01", "\ufeff{}"]
)
def test_a_wrong_text_has_the_standard_librarys_message(text: str) -> None:
    with pytest.raises(ValueError) as wanted:
        json.loads(text)
    with pytest.raises(ValueError) as found:
        loads(text)
    assert str(found.value) == str(wanted.value)


def test_a_wrong_text_is_told_in_a_process_that_never_imported_json() -> None:
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]; import fastjson\n"
        "assert fastjson.loads(' [1, {\"a\": null}]\\n') == [1, {'a': None}] and 'json' not in sys.modules\n"
        "try: fastjson.loads('[1')\n"
        "except ValueError as error: print(error)"
    )
    folder = Path(__file__).resolve().parents[4] / "engine" / "fake"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(folder)], capture_output=True, check=True)
    assert run.stdout.decode().startswith("Expecting ',' delimiter: line 1 column 3")


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)))
def test_a_record_is_one_line_of_ascii_json(record: dict[str, str | int | float]) -> None:
    line = dumps(record)
    assert json.loads(line) == record
    assert line.isascii()
    assert len(line.splitlines()) == 1
