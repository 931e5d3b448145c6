"""tools/probe/secret.py: the key is in nothing that leaves a checker."""

from __future__ import annotations

import base64
import json
import urllib.parse

import pytest

from tools.probe.exits import CouldNotRun
from tools.probe.secret import HidingBytes, Secret, find_secret

KEY = 'sk-proj-0123456789"abc/+def'


@pytest.mark.parametrize(
    "echoed",
    [
        KEY,
        json.dumps(f"Bearer {KEY}"),
        repr(KEY),
        urllib.parse.quote(KEY, safe=""),
        base64.b64encode(KEY.encode()).decode(),
        f"Incorrect API key provided: {KEY}.",
        KEY[:-3],
    ],
)
def test_no_form_of_the_key_is_left(echoed: str) -> None:
    hidden = Secret(KEY).hide(f"before {echoed} after")
    assert "0123456789" not in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")


def test_a_key_is_hidden_everywhere_in_a_value_and_other_values_stay() -> None:
    value = {"a": [KEY, 1, None, {"b": f"x {KEY}"}], KEY: (True, 2.5)}
    assert Secret(KEY).hidden_in(value) == {"a": ["***", 1, None, {"b": "x ***"}], "***": [True, 2.5]}
    assert Secret().hidden_in(value) == {"a": [KEY, 1, None, {"b": f"x {KEY}"}], KEY: [True, 2.5]}


def test_bytes_keep_their_length() -> None:
    data = b"5\r\n" + KEY.encode() + b"\r\n"
    hidden = Secret(KEY).hide_bytes(data)
    assert len(hidden) == len(data)
    assert KEY.encode() not in hidden


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_bytes_that_come_in_pieces_are_hidden_as_the_whole(size: int) -> None:
    cut = KEY[:20].encode()
    data = b"".join([b"s sk-p ", KEY.encode(), b" ", cut, b"x", KEY.encode() * 2, json.dumps(KEY).encode(), cut])
    hiding = HidingBytes(Secret(KEY))
    given = b"".join(hiding.feed(data[at : at + size]) for at in range(0, len(data), size)) + hiding.close()
    assert given == Secret(KEY).hide_bytes(data)
    assert len(given) == len(data)
    assert given.startswith(b"s sk-p ***")
    assert b"0123" not in given
    assert hiding.found == 6


def test_what_cannot_become_the_key_is_given_out_at_once() -> None:
    hiding = HidingBytes(Secret(KEY))
    assert hiding.feed(b"data: 1\n\n") == b"data: 1\n\n"
    assert hiding.feed(b"is") == b"i"
    assert hiding.feed(b"k-ab") == b"sk-ab"


def test_a_short_key_in_bytes_is_hidden_as_a_word_alone() -> None:
    assert Secret("any").hide_bytes(b"many any, anyone any") == b"many ***, anyone ***"


def test_a_short_key_is_hidden_as_a_word_alone() -> None:
    assert Secret("any").hide("many any, anyone") == "many ***, anyone"
    assert Secret("any").hidden_in({"any": "any"}) == {"any": "***"}
    assert Secret("").hide("nothing") == "nothing"


def test_a_secret_does_not_tell_itself() -> None:
    assert KEY not in f"{Secret(KEY)} {Secret(KEY)!r} {[Secret(KEY)]}"
    assert Secret(KEY).expose() == KEY
    assert (bool(Secret(KEY)), bool(Secret(" "))) == (True, False)


@pytest.mark.parametrize("key", ["a\nb", "a\r\nX: y", "clé-secrète", "a\0b"])
def test_a_key_that_cannot_be_sent_is_refused_without_being_told(key: str) -> None:
    with pytest.raises(CouldNotRun) as refused:
        Secret(key)
    assert key not in str(refused.value)


def test_the_given_key_is_before_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "open")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "anth")
    assert find_secret("given", messages=False).expose() == "given"
    assert find_secret("", messages=False).expose() == ""
    assert find_secret(None, messages=False).expose() == "open"
    assert find_secret(None, messages=True).expose() == "anth"
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "")
    assert not find_secret(None, messages=False)
