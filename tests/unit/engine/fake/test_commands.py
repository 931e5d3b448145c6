"""Reading the request lines."""

from __future__ import annotations

import pytest

from engine.fake.commands import parse_request


def test_a_gen_has_a_count_keys_and_ids() -> None:
    request = parse_request("GEN 128 temperature=0.7 seed=-1 9,8,7")
    assert (request.slot, request.max_new, request.ids, request.fault) == (None, 128, [9, 8, 7], "")
    assert parse_request("GEN 1 5").ids == [5]


def test_a_bgen_has_a_slot_too() -> None:
    request = parse_request("BGEN 3 128 top_k=4 9")
    assert (request.slot, request.max_new, request.ids, request.fault) == (3, 128, [9], "")


@pytest.mark.parametrize(
    "line", ["GEN", "GEN 1", "BGEN 1 5", "GEN -1 5", "GEN a 5", "GEN 5 a", "GEN 5 1,", "GEN 5 1 2", "BGEN x 5 1", "FOO"]
)
def test_anything_else_has_a_fault(line: str) -> None:
    assert parse_request(line).fault
