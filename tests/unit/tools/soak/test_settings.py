"""tools/soak/settings.py: the same seed gives the same run, and everything that a client may wish is wished for."""

from __future__ import annotations

from itertools import pairwise

from tools.probe.target import APIS
from tools.soak.settings import Dice, Settings, due_faults

SETTINGS = Settings(seed=7, apis=APIS, max_tokens=300, kills=5, stalls=3, stall_s=2.0)


def test_seed_and_name_decide_the_wishes() -> None:
    first, same, other = (Dice(SETTINGS, name) for name in ("client 1", "client 1", "client 2"))
    wishes = [first.wish() for _ in range(20)]
    assert wishes == [same.wish() for _ in range(20)]
    assert wishes != [other.wish() for _ in range(20)]


def test_wishes_are_of_all_kinds_and_lengths() -> None:
    dice = Dice(SETTINGS, "client 1")
    wishes = [dice.wish() for _ in range(2_000)]
    assert {wish.api for wish in wishes} == set(APIS)
    limits = [wish.max_tokens for wish in wishes]
    assert (min(limits), max(limits) > 250, all(limit <= 300 for limit in limits)) == (1, True, True)
    leaving = [wish for wish in wishes if wish.leave_after is not None]
    assert 300 < len(leaving) < 500
    assert {wish.leaving for wish in leaving} == {"close", "reset"}
    assert all((wish.leave_after or 0) <= wish.max_tokens for wish in leaving)
    assert any(wish.leave_after == 0 for wish in leaving)
    assert any(wish.pause_s for wish in wishes)
    words = [len(wish.prompt.split()) for wish in wishes]
    assert min(words) < 20 and 400 < max(words) < 650
    assert len({wish.prompt for wish in wishes}) > 1_900


def test_no_client_leaves_where_none_shall() -> None:
    dice = Dice(Settings(seed=7, apis=("chat",), leave_share=0.0), "client 1")
    assert all(dice.wish().leave_after is None for _ in range(200))


def test_faults_are_spread_in_their_order() -> None:
    dues = due_faults(SETTINGS)
    assert dues == due_faults(SETTINGS)
    assert sorted(due.kind for due in dues) == ["kill"] * 5 + ["stall"] * 3
    assert all(before.share <= after.share for before, after in pairwise(dues))
    assert all(0.05 <= due.share <= 0.9 for due in dues)
    assert all((0.2 <= due.for_s <= 2.0) == (due.kind == "stall") for due in dues)
