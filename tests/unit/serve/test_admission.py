"""The queue: first in, first out; bounded; a leaver gives its place back."""

import pytest

from engine.events import FailKind
from serve.admission import Admission, QueueStatus
from serve.lifecycle import Refused


def test_as_many_run_as_there_are_slots_and_the_rest_wait_in_order() -> None:
    queue = Admission(lambda: 2, 10)
    tickets = [queue.enter() for _ in range(5)]
    assert [ticket.wait(0) for ticket in tickets] == [True, True, False, False, False]
    queue.leave(tickets[1])
    assert [ticket.wait(0) for ticket in tickets[2:]] == [True, False, False]
    queue.leave(tickets[0])
    assert [ticket.wait(0) for ticket in tickets[3:]] == [True, False]


def test_a_waiting_ticket_that_leaves_is_never_called() -> None:
    queue = Admission(lambda: 1, 10)
    first, second, third = (queue.enter() for _ in range(3))
    queue.leave(second)
    queue.leave(first)
    assert not second.wait(0)
    assert third.wait(0)


def test_a_full_queue_refuses_and_counts_only_those_who_wait() -> None:
    queue = Admission(lambda: 1, 1)
    queue.enter()
    queue.enter()
    with pytest.raises(Refused) as caught:
        queue.enter()
    assert caught.value.kind is FailKind.QUEUE_FULL
    assert queue.status() == QueueStatus(running=1, waiting=1)


def test_no_waiting_allowed_still_serves_a_free_slot() -> None:
    queue = Admission(lambda: 1, 0)
    with queue.enter() as ticket:
        assert ticket.wait(0)
        with pytest.raises(Refused):
            queue.enter()
    assert queue.enter().wait(0)


def test_leaving_twice_frees_one_place() -> None:
    queue = Admission(lambda: 1, 10)
    first, second, third = (queue.enter() for _ in range(3))
    queue.leave(first)
    queue.leave(first)
    assert second.wait(0)
    assert not third.wait(0)


def test_a_closed_queue_refuses_newcomers_and_keeps_the_others() -> None:
    queue = Admission(lambda: 1, 10)
    first, second = queue.enter(), queue.enter()
    queue.close()
    with pytest.raises(Refused) as caught:
        queue.enter()
    assert caught.value.kind is FailKind.SHUTDOWN
    queue.leave(first)
    assert second.wait(0)


def test_slots_that_appear_later_are_used() -> None:
    slots = 1
    queue = Admission(lambda: slots, 10)
    first, second, third = (queue.enter() for _ in range(3))
    slots = 2
    queue.leave(first)
    assert second.wait(0)
    assert third.wait(0)
