"""tools/soak/judge.py: each item is bad for what it is for, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.probe.target import Api
from tools.soak.judge import CACHE_HINT, FLOORS, Judgement, Line, growth_text, judge
from tools.soak.record import AtTheEnd, Ending, Fault, Orphan, Sample, Seen, SeriesName
from tools.soak.slope import Growth, Slope

MIB = 1 << 20


def seen(
    number: int,
    ending: Ending = Ending.WHOLE,
    *,
    api: Api = "chat",
    begun_s: float = 0.0,
    ended_s: float = 1.0,
    tokens: tuple[float, float] | None = (0.1, 0.9),
    success: bool = True,
    used_up: bool = False,
) -> Seen:
    """`tokens`: when the first and the last came, from its beginning."""
    first_s, last_s = tokens or (None, None)
    why = (f"reason {number}",)
    return Seen(number, api, 9, begun_s, ended_s, ending, 200, 5, first_s, last_s, 0.1, success, used_up, why)


def bad(judgement: Judgement) -> list[str]:
    return [item.name for item in judgement.items if item.bad]


def of_streams(*streams: Seen) -> Judgement:
    return judge(streams, [], [], [], AtTheEnd())


def samples(name: SeriesName, values: list[float], lives: list[int] | None = None) -> list[Sample]:
    count = len(values)
    lives = lives or [0] * count
    return [
        Sample(float(at), at / count, at, life, {name: value})
        for at, (value, life) in enumerate(zip(values, lives, strict=True))
    ]


def of_samples(made: list[Sample], *, cache_mib: int = 0) -> Judgement:
    return judge([seen(1)], made, [], [], AtTheEnd(), cache_bytes=cache_mib * MIB)


EXPECTED = {
    Ending.CUT: ["unterminated streams"],
    Ending.SILENT: ["unterminated streams"],
    Ending.ENDLESS: ["unterminated streams"],
    Ending.LIE: ["lies"],
    Ending.BROKEN: ["broken format"],
}


@pytest.mark.parametrize("ending", list(Ending))
def test_each_ending_makes_its_item_bad_and_no_other(ending: Ending) -> None:
    judgement = of_streams(seen(1), seen(2, ending, api="messages"))
    assert bad(judgement) == EXPECTED.get(ending, [])
    assert judgement.status == (1 if ending in EXPECTED else 0)
    assert judgement.by_api["messages"] == {ending: 1}
    for item in judgement.items:
        assert not item.bad or item.evidence == ("stream 2 (messages, at 0.0 s): reason 2",)


def test_evidence_of_many_is_cut() -> None:
    judgement = of_streams(*(seen(number, Ending.CUT) for number in range(30)))
    (item,) = (item for item in judgement.items if item.bad)
    assert (item.text, len(item.evidence), item.evidence[-1]) == ("30 of 30", 11, "and 20 more")


def test_what_is_wrong_in_the_same_way_is_told_once() -> None:
    alike = [replace(seen(number, Ending.CUT), why=("same",)) for number in range(30)]
    judgement = of_streams(*alike, replace(seen(30, Ending.CUT, api="messages"), why=("same",)))
    (item,) = (item for item in judgement.items if item.bad)
    assert item.evidence == (
        "stream 0 (chat, at 0.0 s) and 29 more: same",
        "stream 30 (messages, at 0.0 s): same",
    )


def test_leak_after_the_warm_up_is_one() -> None:
    judgement = of_samples(samples("server memory", [(50 + at) * MIB for at in range(100)]))
    assert bad(judgement) == ["leaks"]
    (item,) = (item for item in judgement.items if item.bad)
    assert item.text == "server memory"
    assert item.evidence == (
        "server memory: +1,000 ± 0 MiB for 1000 streams, over 74: rises, and goes on",
        CACHE_HINT,
    )


def test_error_says_how_many_digits_are_told() -> None:
    slope = Slope(1.3512e-3 * MIB, 0.3217e-3 * MIB, 20, 19, 0.0, 0.0)
    line = Line("engine memory", Growth(slope, None, False, "no clear rise"), 0.0, 0.0, 0.0)
    assert growth_text(line) == "+1.35 ± 0.32 MiB for 1000 streams, over 19: no clear rise"
    line = replace(line, growth=replace(line.growth, slope=replace(slope, per_stream=1.35 * MIB, error=0.32 * MIB)))
    assert growth_text(line).startswith("+1,350 ± 320 MiB")


@pytest.mark.parametrize("name", [name for name in FLOORS if "memory" in name])
def test_cache_that_fills_is_no_leak_where_it_is_named_and_what_goes_on_above_it_is(name: SeriesName) -> None:
    filling = samples(name, [(500 + min(10 * at, 900)) * float(MIB) for at in range(100)])
    assert bad(of_samples(filling)) == ["leaks"]
    assert bad(of_samples(filling, cache_mib=900)) == []
    leaking = samples(name, [(500 + 30 * at) * float(MIB) for at in range(100)])
    assert bad(of_samples(leaking, cache_mib=900)) == ["leaks"]


def test_cache_is_of_memory_alone() -> None:
    made = samples("server threads", [10.0 + at for at in range(100)])
    assert bad(of_samples(made, cache_mib=900)) == ["leaks"]


def test_growth_during_the_warm_up_is_none() -> None:
    assert bad(of_samples(samples("server memory", [min(at, 20) * 10.0 * MIB for at in range(100)]))) == []


@pytest.mark.parametrize("name", FLOORS)
def test_everything_that_is_watched_can_leak(name: SeriesName) -> None:
    scale = 4.0 * MIB if "memory" in name else 1.0
    assert bad(of_samples(samples(name, [(10.0 + at) * scale for at in range(100)]))) == ["leaks"]
    assert bad(of_samples(samples(name, [(10.0 + at % 3) * scale for at in range(100)]))) == []


def test_queue_that_rises_is_load_and_no_leak() -> None:
    assert bad(of_samples(samples("waiting", [10.0 * at for at in range(100)]))) == []


def test_engine_that_loads_a_model_in_each_life_does_not_leak() -> None:
    values = [min(at % 25, 10) * 800.0 * MIB for at in range(100)]
    assert bad(of_samples(samples("engine memory", values, [at // 25 for at in range(100)]))) == []


def test_engine_that_grows_to_the_end_of_each_life_leaks() -> None:
    values = [(800 + at % 25 * 20) * float(MIB) for at in range(100)]
    judgement = of_samples(samples("engine memory", values, [at // 25 for at in range(100)]))
    assert bad(judgement) == ["leaks"]


def test_server_that_grows_with_each_life_of_its_engine_leaks() -> None:
    """Its own memory has one life, whatever the engine does."""
    values = [(50 + at // 5 * 5) * float(MIB) for at in range(100)]
    assert bad(of_samples(samples("server memory", values, [at // 5 for at in range(100)]))) == ["leaks"]


def test_run_that_watched_nothing_says_so() -> None:
    texts = {item.name: item.text for item in of_streams(seen(1)).items}
    assert texts["leaks"] == "nothing was watched"
    texts = {item.name: item.text for item in of_samples(samples("server memory", [1.0] * 5)).items}
    assert texts["leaks"] == "nothing was watched for long enough to say"


def test_orphans_are_named() -> None:
    judgement = judge([seen(1)], [], [], [Orphan(17, "llama-server", 25.0)], AtTheEnd())
    assert bad(judgement) == ["orphans"]
    assert judgement.items[6].evidence == ("process 17 (llama-server), 25 s outside of the tree",)


@pytest.mark.parametrize(
    ("end", "item"),
    [
        (AtTheEnd(running=1), "left in the queue"),
        (AtTheEnd(waiting=2), "left in the queue"),
        (AtTheEnd(server_ended="exit status 3"), "server"),
        (AtTheEnd(not_stopped=True), "server"),
    ],
)
def test_what_is_left_at_the_end_is_bad(end: AtTheEnd, item: str) -> None:
    assert bad(judge([seen(1)], [], [], [], end)) == [item]


# --- limits ------------------------------------------------------------------------------------------


def limited(number: int, api: Api, *, success: bool) -> Seen:
    return seen(number, api=api, success=success, used_up=True)


def test_limits_of_one_api_that_are_told_as_success_are_seen() -> None:
    honest = [limited(number, "chat", success=False) for number in range(20)]
    lying = [limited(20 + number, "responses", success=True) for number in range(3)]
    judgement = of_streams(*honest, *lying)
    assert bad(judgement) == ["limits told as success"]
    (item,) = (item for item in judgement.items if item.bad)
    assert item.evidence == ("responses: 3 of 3, as stream 20 with 9 tokens",)


def test_few_that_ended_with_just_their_last_token_prove_nothing() -> None:
    assert bad(of_streams(*(limited(number, "chat", success=True) for number in range(2)))) == []
    mixed = [limited(number, "chat", success=number < 3) for number in range(6)]
    assert bad(of_streams(*mixed)) == []


def test_streams_that_ended_before_their_limit_may_be_finished() -> None:
    assert bad(of_streams(*(seen(number) for number in range(20)))) == []


# --- faults ------------------------------------------------------------------------------------------

KILL = Fault("kill", 10.0, "killed process 5", took_s=0.05)


def hit(number: int, ending: Ending, *, success: bool, last_s: float = 9.99, ended_s: float = 10.2) -> Seen:
    """A stream that was in mid-answer at the kill."""
    return seen(number, ending, begun_s=0.0, ended_s=ended_s, tokens=(1.0, last_s), success=success)


def of_kill(*streams: Seen, kill: Fault = KILL) -> list[str]:
    return bad(judge(streams, [], [kill], [], AtTheEnd()))


def test_deaths_that_are_told_as_success_are_seen() -> None:
    assert of_kill(*(hit(number, Ending.WHOLE, success=True) for number in range(3))) == ["deaths told as success"]


def test_deaths_that_are_told_are_none() -> None:
    assert of_kill(*(hit(number, Ending.FAILED, success=False) for number in range(9))) == []


def test_limit_at_the_kill_is_no_success() -> None:
    assert of_kill(*(hit(number, Ending.WHOLE, success=False) for number in range(9))) == []


def test_few_that_were_finished_just_then_prove_nothing() -> None:
    finished = [hit(number, Ending.WHOLE, success=True) for number in range(2)]
    assert of_kill(*finished) == []
    failed = [hit(10 + number, Ending.FAILED, success=False) for number in range(5)]
    assert of_kill(*finished, hit(9, Ending.WHOLE, success=True), *failed) == []


def test_streams_that_another_engine_went_on_with_were_not_hit() -> None:
    others = [hit(number, Ending.WHOLE, success=True, last_s=12.0, ended_s=12.1) for number in range(9)]
    assert of_kill(*others) == []


def test_kill_that_could_not_be_made_proves_nothing() -> None:
    missed = Fault("kill", 10.0, "", error="no engine")
    assert of_kill(*(hit(number, Ending.WHOLE, success=True) for number in range(9)), kill=missed) == []


def test_what_followed_a_fault_is_told() -> None:
    streams = [
        seen(1, ended_s=9.0),
        seen(2, Ending.FAILED, begun_s=8.0, ended_s=10.3),
        seen(3, Ending.LEFT, begun_s=8.0, ended_s=19.0),
        seen(4, Ending.UNREACHABLE, begun_s=10.5, ended_s=10.6, tokens=None),
        seen(5, begun_s=11.0, ended_s=13.0, tokens=(1.5, 1.9)),
        seen(6, begun_s=12.6, ended_s=13.0, tokens=(0.2, 0.3)),
    ]
    judgement = judge(streams, [], [KILL], [], AtTheEnd())
    (report,) = judgement.faults
    assert (report.endings, report.others) == ({Ending.FAILED: 1}, {})
    assert report.last_ending_s == pytest.approx(0.3)
    assert report.recovered_s == pytest.approx(2.5)


def test_stream_that_waited_for_the_engine_was_not_hit_and_is_the_first_that_goes_on() -> None:
    """At a server of one slot the others wait, and may be hit by a later fault: each fault has its own."""
    streams = [
        hit(1, Ending.FAILED, success=False),
        seen(2, begun_s=2.0, ended_s=19.0, tokens=(9.5, 16.0)),
        seen(3, Ending.FAILED, begun_s=3.0, ended_s=20.5, tokens=(16.5, 16.9)),
    ]
    later = replace(KILL, at_s=20.0)
    judgement = judge(streams, [], [later, KILL], [], AtTheEnd())
    second, first = judgement.faults
    assert (first.endings, first.others) == ({Ending.FAILED: 1}, {Ending.WHOLE: 1, Ending.FAILED: 1})
    assert first.last_ending_s == pytest.approx(0.2)
    assert first.recovered_s == pytest.approx(1.5)
    assert (second.endings, second.others, second.recovered_s) == ({Ending.FAILED: 1}, {}, None)


def test_stall_meets_streams_that_go_on_afterwards() -> None:
    stall = Fault("stall", 10.0, "suspended process 5", for_s=3.0, took_s=3.0)
    streams = [
        seen(1, begun_s=5.0, ended_s=15.0, tokens=(1.0, 9.9)),
        seen(2, begun_s=9.0, ended_s=16.0, tokens=(4.2, 6.0)),
    ]
    (report,) = judge(streams, [], [stall], [], AtTheEnd()).faults
    assert (report.endings, report.others) == ({Ending.WHOLE: 1}, {Ending.WHOLE: 1})
    assert report.recovered_s == pytest.approx(3.2)


def test_run_of_days_is_judged_in_seconds() -> None:
    """Each fault looks at the streams that were open, not at all."""
    streams = [seen(at, begun_s=float(at), ended_s=at + 4.0, tokens=(0.5, 3.5)) for at in range(100_000)]
    kills = [replace(KILL, at_s=10.0 * at + 0.7) for at in range(10_000)]
    judgement = judge(streams, [], kills, [], AtTheEnd())
    assert len(judgement.faults) == 10_000
    assert all(sum(one.endings.values()) + sum(one.others.values()) <= 4 for one in judgement.faults)
