"""One member of a pool: sick and well again, who is chosen, and what failures mean."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from engine.api import Cancel, ChatRequest, EngineInfo, EngineRequest, EngineStatus, NativeRequest
from engine.events import EngineEvent, Failed, FailKind, UpstreamError
from engine.pool_member import (
    REASON_CHARS,
    Delays,
    Look,
    Member,
    candidates,
    choose,
    goes_elsewhere,
    is_its_own,
    most_telling,
    reason,
    wait_s,
)

ASK = ChatRequest({"messages": []})
DELAYS = Delays(1.0, 8.0)


class Idle:
    """An engine that is only looked at."""

    def __init__(self, *models: str, slots: int = 2, there: bool = True) -> None:
        self.facts = EngineInfo("upstream", "m", "chat", slots, None, models=models)
        self.there = there

    def status(self) -> EngineStatus:
        return EngineStatus("ready" if self.there else "unreachable", last_death=None if self.there else "not there")

    def alive(self) -> bool:
        return self.there

    def start(self) -> None:
        raise NotImplementedError

    def stream(self, request: EngineRequest, cancel: Cancel) -> Iterator[EngineEvent]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def member(name: str = "a", *models: str, slots: int = 2, there: bool = True) -> Member:
    return Member(name, Idle(*models, slots=slots, there=there), DELAYS)


def state(one: Member) -> tuple[str, str | None]:
    status = one.status(one.engine.status())
    return status.state, status.problem


def refusal(status: int, retry_after: str | None = None, *, type_: str | None = None) -> Failed:
    kind = FailKind.REFUSED if 400 <= status < 500 else FailKind.ERR
    return Failed(kind, f"said {status}", upstream=UpstreamError(status, type_, retry_after=retry_after))


# --- sick and well ------------------------------------------------------------------------------------


def test_the_delay_doubles_up_to_its_limit() -> None:
    assert [Delays().after(failures) for failures in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert Delays().after(100_000) == 30


def test_one_that_fails_is_left_alone_then_looked_at_then_tried_by_one_request_at_a_time() -> None:
    one = member()
    assert (one.fit, state(one), one.wants_look(0)) == (True, ("ready", None), False)
    assert one.fail(0, "it broke", 100.0)
    assert (one.fit, one.ready, state(one)) == (False, False, ("sick", "it broke"))
    assert (one.wants_look(100.9), one.wants_look(101.0)) == (False, True)
    one.look = Look(one)
    assert not one.wants_look(101.0)  # one look at a time
    one.look = None
    one.seen_well(1, 101.0)
    assert (one.fit, one.ready, state(one), one.wants_look(200)) == (True, True, ("ready", None), False)
    one.take(1)
    assert not one.fit
    one.leave(1)  # cancelled: it is still not known
    assert one.fit
    one.take(2)
    assert one.answered(1)
    one.take(3)
    assert one.fit


def delay_s(one: Member, now_s: float) -> float:
    return next(wait for wait in range(100) if one.wants_look(now_s + wait))


def test_failures_in_a_row_take_longer_until_an_answer_is_finished() -> None:
    one = member()
    for expected in (1, 2, 4, 8, 8):
        one.fail(one.episode, "no", 0.0)
        assert delay_s(one, 0.0) == expected
    one.answered(one.episode)  # a first piece makes it well, but it may fail again at once
    one.fail(one.episode, "no", 0.0)
    assert delay_s(one, 0.0) == 8
    one.answered(one.episode, finished=True)
    one.fail(one.episode, "no", 0.0)
    assert delay_s(one, 0.0) == 1


def test_the_requests_that_were_running_make_it_neither_sicker_nor_well() -> None:
    one = member()
    for number in range(3):
        one.take(number)
    assert one.fail(0, "first", 0.0)
    assert not one.fail(0, "second", 0.0)
    assert not one.answered(0, finished=True)
    one.seen_well(0, 0.0)  # a look that began before
    assert (one.fit, delay_s(one, 0.0), state(one)) == (False, 1, ("sick", "second"))


def test_it_is_left_alone_for_as_long_as_it_asked_for_but_not_longer_than_the_limit() -> None:
    for asked, expected in ((0.0, 1), (5.0, 5), (600.0, 8)):
        one = member()
        one.fail(0, "busy", 0.0, asked)
        assert delay_s(one, 0.0) == expected


def test_one_that_is_not_there_is_looked_at_again_only_after_a_while() -> None:
    one = member(there=False)
    assert one.wants_look(0.0)
    assert state(one) == ("unreachable", "not there")
    one.seen_well(0, 0.0)
    assert (one.wants_look(0.5), one.wants_look(1.0)) == (False, True)


# --- who is chosen ------------------------------------------------------------------------------------


def take_all(members: list[Member], count: int) -> str:
    """The names of those that are chosen one after the other; "-" where all are full."""
    names = ""
    for number in range(1, count + 1):
        chosen = choose(members)
        if chosen is not None:
            chosen.take(number)
        names += chosen.name if chosen is not None else "-"
    return names


def test_the_least_busy_one_is_chosen_in_turns_until_all_are_full() -> None:
    assert take_all([member("a"), member("b"), member("c", slots=1)], 6) == "abcab-"


def test_equals_take_turns() -> None:
    members = [member("a"), member("b"), member("c")]
    names = ""
    for number in range(1, 7):
        chosen = choose(members)
        assert chosen is not None
        chosen.take(number)
        chosen.leave(0)
        names += chosen.name
    assert names == "abcabc"


def test_a_full_member_is_waited_for_rather_than_asking_a_sick_one() -> None:
    a, b = member("a"), member("b")
    b.fail(0, "no", 0.0)
    assert take_all([a, b], 3) == "aa-"


def test_all_are_sick_and_are_asked_all_the_same() -> None:
    a, b = member("a"), member("b")
    a.fail(0, "no", 0.0)
    b.fail(0, "no", 0.0)
    assert take_all([a, b], 5) == "abab-"


def test_one_that_is_not_there_comes_last() -> None:
    assert take_all([member("a", there=False), member("b")], 5) == "bbaa-"


@pytest.mark.parametrize(
    ("model", "tried", "expected"),
    [
        ("x", "", "a"),
        ("y", "", "ab"),
        ("z", "", "b"),
        ("x", "a", "c"),
        ("x", "ac", ""),
        ("llama", "", "b"),
        ("nobody's", "", "abc"),
        (None, "", "abc"),
        ("", "a", "bc"),
        (["x"], "", "abc"),
    ],
)
def test_members_that_have_the_model_are_asked_first_and_those_with_others_never(
    model: object, tried: str, expected: str
) -> None:
    members = [member("a", "x", "y"), member("b", "y", "z", "llama:latest"), member("c")]
    request = ChatRequest({"messages": [], "model": model})
    left = candidates(members, request, [one for one in members if one.name in tried])
    assert "".join(one.name for one in left) == expected


# --- what a failure says ------------------------------------------------------------------------------

OWN = {"Authorization": "Bearer theirs"}
VERDICTS: dict[str, tuple[Failed, bool, bool]] = {
    "cannot connect": (Failed(FailKind.NOT_STARTED, "refused"), True, True),
    "silent": (Failed(FailKind.SILENT, "nothing"), True, True),
    "cut": (Failed(FailKind.DIED, "cut"), True, True),
    "no protocol": (Failed(FailKind.PROTOCOL, "html"), True, True),
    "no terminal": (Failed(FailKind.CUT, "ended"), True, True),
    **{str(status): (refusal(status), True, True) for status in (408, 429, 500, 502, 503, 504, 529)},
    **{str(status): (refusal(status), False, False) for status in (400, 405, 409, 413, 415, 422)},
    **{str(status): (refusal(status), False, True) for status in (401, 402, 403, 404)},
    "too long": (Failed(FailKind.CONTEXT, "long", upstream=UpstreamError(400)), False, False),
    "too long, by a 500": (Failed(FailKind.CONTEXT, "long", upstream=UpstreamError(500)), False, False),
    "not to be sent": (Failed(FailKind.REFUSED, "a header"), False, False),
    "a call left open": (Failed(FailKind.TOOL_CALL, "open"), False, False),
    "ours": (Failed(FailKind.INTERNAL, "a fault"), False, False),
    "error in the stream": (Failed(FailKind.DIED, "OOM", upstream=UpstreamError(200, "server_error")), True, True),
    "refusal in the stream": (
        Failed(FailKind.DIED, "no", upstream=UpstreamError(200, "BadRequestError")),
        False,
        False,
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_whether_another_one_may_be_asked_and_who_is_to_blame(name: str) -> None:
    failed, elsewhere, own = VERDICTS[name]
    assert (goes_elsewhere(failed, ASK), is_its_own(failed, member(), ASK)) == (elsewhere, own)


def test_a_key_that_the_client_brought_is_the_clients_fault() -> None:
    request = ChatRequest({}, OWN)
    assert [is_its_own(refusal(status), member(), request) for status in (401, 402, 403)] == [False] * 3
    assert is_its_own(refusal(404), member(), request)
    assert is_its_own(refusal(503), member(), request)


@pytest.mark.parametrize(("model", "own"), [("x", True), ("other", False)])
def test_a_404_for_a_model_that_it_never_listed_is_the_clients_fault(model: str, own: bool) -> None:
    request = ChatRequest({"model": model})
    assert is_its_own(refusal(404), member("a", "x"), request) is own
    assert is_its_own(refusal(404), member("a"), request)  # it lists nothing: the page may be the wrong one


def test_the_reason_is_one_short_line_without_what_a_refusal_quotes() -> None:
    assert reason(Failed(FailKind.ERR, "upstream 1 answered 503:\n Loading model")) == (
        "upstream 1 answered 503: Loading model"
    )
    quoting = Failed(
        FailKind.REFUSED, "Incorrect API key: sk-secret", upstream=UpstreamError(401, "auth", "invalid_api_key")
    )
    assert reason(quoting) == "it answered 401 auth invalid_api_key"
    long = reason(Failed(FailKind.DIED, "word " * 500))
    assert len(long) == REASON_CHARS
    assert long.endswith("…")


def test_retry_after_is_read_as_a_number_or_a_date() -> None:
    assert [wait_s(refusal(429, text)) for text in ("7", "1.5", "-3", "soon", "", None)] == [
        7.0, 1.5, 0.0, None, None, None,
    ]  # fmt: skip
    told = wait_s(refusal(503, formatdate(time.time() + 3600, usegmt=True)))
    assert told is not None
    assert 3500 < told <= 3600
    assert wait_s(refusal(503, formatdate(0, usegmt=True))) == 0.0
    assert wait_s(Failed(FailKind.DIED, "cut")) is None


REFUSED = Failed(FailKind.NOT_STARTED, "cannot connect")
TELLING: dict[str, tuple[list[Failed], int]] = {
    "one": ([REFUSED], 0),
    "a status over cannot connect": ([REFUSED, refusal(500), REFUSED], 1),
    "the first of equals": ([refusal(500), refusal(502)], 0),
    "429 over 500": ([refusal(500), refusal(429)], 1),
    "the shortest wait": ([refusal(429, "9"), refusal(429), refusal(429, "3"), refusal(500)], 2),
    "a wait over none": ([refusal(429), refusal(503, "30")], 1),
}


@pytest.mark.parametrize("name", TELLING)
def test_of_several_failures_the_most_telling_one_is_the_answer(name: str) -> None:
    failures, expected = TELLING[name]
    assert most_telling(failures, ASK) is failures[expected]


UNKNOWN = [refusal(404), Failed(FailKind.REFUSED, "", upstream=UpstreamError(400, None, "previous_response_not_found"))]


@pytest.mark.parametrize("unknown", UNKNOWN, ids=["404", "its code"])
def test_who_does_not_keep_a_response_is_not_to_blame_and_another_one_may_keep_it(unknown: Failed) -> None:
    named = NativeRequest("GET", "/responses/resp_1", names_response=True)
    assert (goes_elsewhere(unknown, named), is_its_own(unknown, member(), named)) == (True, False)
    assert not goes_elsewhere(unknown, ASK)
    assert not goes_elsewhere(unknown, NativeRequest("POST", "/responses", {}))
    for other in (REFUSED, refusal(401), refusal(429)):
        assert most_telling([unknown, other, unknown], named) is other
    assert most_telling([unknown, unknown], named) is unknown


def test_a_request_in_the_upstreams_own_api_goes_to_who_has_its_model() -> None:
    one, other = member("one", "a"), member("other", "b")
    assert candidates([one, other], NativeRequest("POST", "/responses", {"model": "b"}), []) == [other]
    assert candidates([one, other], NativeRequest("GET", "/responses/resp_1"), []) == [one, other]
    assert is_its_own(refusal(404), one, NativeRequest("POST", "/responses", {"model": "a"}))
    assert not is_its_own(refusal(404), one, NativeRequest("POST", "/responses", {"model": "c"}))


def test_where_none_has_a_status_all_reasons_are_told() -> None:
    silent = Failed(FailKind.SILENT, "upstream 1 sent nothing for 3 s")
    cut = Failed(FailKind.DIED, "upstream 2: the connection was closed")
    assert most_telling([REFUSED, silent], ASK) == Failed(
        FailKind.SILENT, "none of the 2 upstreams answered: cannot connect; upstream 1 sent nothing for 3 s"
    )
    assert most_telling([silent, cut, REFUSED], ASK).kind is FailKind.DIED
