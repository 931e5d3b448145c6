"""The queue of writes."""

from __future__ import annotations

import threading

from engine.supervisor.child import NothingWritten
from engine.supervisor.writer import Writer

DEADLINE_S = 20.0


class Pipe:
    """Takes writes when it is let."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.begun = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.error: OSError | None = None

    def write(self, data: bytes) -> None:
        self.begun.release()
        assert self.let.acquire(timeout=DEADLINE_S)
        if self.error is not None:
            raise self.error
        self.written.append(data)


def run(writer: Writer, pipe: Pipe) -> threading.Thread:
    thread = threading.Thread(target=lambda: writer.run(pipe.write))
    thread.start()
    return thread


def test_writes_happen_in_order_and_each_is_told_when_it_is_whole() -> None:
    writer, pipe = Writer(), Pipe()
    first, second = writer.put(b"1", 10), writer.put(b"2", 10)
    thread = run(writer, pipe)
    assert not first.wait(0.0)
    pipe.let.release()
    assert first.wait(DEADLINE_S)
    assert not second.wait(0.0)
    assert not second.failed
    pipe.let.release()
    assert second.wait(DEADLINE_S)
    assert pipe.written == [b"1", b"2"]
    writer.stop()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_the_deadline_is_that_of_the_write_that_is_due_first() -> None:
    writer = Writer()
    assert writer.overdue_at() is None
    long, short = writer.put(b"1", 50), writer.put(b"2", 5)
    assert writer.overdue_at() == (short.deadline_s, 5)
    assert long.deadline_s > short.deadline_s


def test_after_stop_nothing_is_written_and_what_waits_has_failed() -> None:
    writer, pipe = Writer(), Pipe()
    waiting = writer.put(b"1", 10)
    writer.stop()
    late = writer.put(b"2", 10)
    run(writer, pipe).join(DEADLINE_S)
    assert waiting.failed
    assert waiting.untouched
    assert late.failed
    assert pipe.written == []
    assert writer.overdue_at() is None


def test_a_write_that_is_under_way_when_it_stops_is_what_it_turns_out_to_be() -> None:
    writer, pipe = Writer(), Pipe()
    current, after = writer.put(b"1", 10), writer.put(b"2", 10)
    thread = run(writer, pipe)
    assert pipe.begun.acquire(timeout=DEADLINE_S)
    writer.stop()
    assert after.failed
    assert not current.failed
    pipe.let.release()
    assert current.wait(DEADLINE_S)
    thread.join(DEADLINE_S)


def test_a_write_that_fails_fails_all_that_wait() -> None:
    writer, pipe = Writer(), Pipe()
    pipe.error = BrokenPipeError()
    current, after = writer.put(b"1", 10), writer.put(b"2", 10)
    pipe.let.release()
    run(writer, pipe).join(DEADLINE_S)
    assert current.failed
    assert not current.untouched
    assert after.failed
    assert after.untouched


def test_a_pipe_closed_before_the_first_byte_leaves_the_write_untouched() -> None:
    writer, pipe = Writer(), Pipe()
    pipe.error = NothingWritten()
    current = writer.put(b"1", 10)
    pipe.let.release()
    run(writer, pipe).join(DEADLINE_S)
    assert current.failed
    assert current.untouched
