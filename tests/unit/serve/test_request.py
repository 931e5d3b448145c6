"""Errors in the words of the client's API: the longest name that fits is replaced, in the path and in the text."""

import pytest

from serve.request import BadRequest

NAMES = {"a": "x", "a.b": "y.z", "c": "w"}


@pytest.mark.parametrize(
    ("param", "renamed"),
    [
        ("a", "x"),
        ("a.k", "x.k"),
        ("a[3].k", "x[3].k"),
        ("a.b", "y.z"),
        ("a.b.k", "y.z.k"),
        ("a.bc", "x.bc"),
        ("ab", "ab"),
        ("d", "d"),
    ],
)
def test_an_error_is_told_in_the_apis_words(param: str, renamed: str) -> None:
    error = BadRequest(f"{param}: wrong", param, status=413, code="big").renamed(NAMES)
    assert (error.message, error.param, error.status, error.code) == (f"{renamed}: wrong", renamed, 413, "big")


def test_a_text_that_does_not_begin_with_the_path_stays() -> None:
    error = BadRequest("something in a", "a").renamed(NAMES)
    assert (error.message, error.param) == ("something in a", "x")


def test_an_error_without_a_path_stays() -> None:
    error = BadRequest("the body is empty")
    assert error.renamed(NAMES) is error
