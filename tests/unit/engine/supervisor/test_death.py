"""Exit codes, out of memory and log tails in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.supervisor.death import NOTE_CHARS, Death, LogTail, OomWatch, exit_words, one_line

EXITS = {
    None: "it ended without an exit code",
    0: "exit code 0",
    7: "exit code 7",
    -9: "killed by signal 9 (SIGKILL)",
    -11: "killed by signal 11 (SIGSEGV)",
    -250: "killed by signal 250 (?)",
    0xC0000005: "exit code 0xC0000005 (access violation)",
    -1073741819: "killed by signal 1073741819 (?)",
    0xC0000409: "exit code 0xC0000409 (abort, or stack buffer overrun)",
    0xDEADBEEF: "exit code 0xDEADBEEF",
}


@pytest.mark.parametrize("code", EXITS)
def test_an_exit_code_in_words(code: int | None) -> None:
    assert exit_words(code) == EXITS[code]


def test_a_shells_word_for_a_signal_is_explained() -> None:
    assert "SIGKILL" in exit_words(137)
    assert exit_words(128) == "exit code 128"


def test_a_note_is_one_bounded_line_whatever_it_is_made_of() -> None:
    death = Death(1, "cause\r\nsecond", ("log\x07 line" + "x" * 10_000,), 0.0)
    note = death.note()
    assert len(note) == NOTE_CHARS
    assert note.isprintable()
    assert note.startswith("cause  second; last log line: log  line")


def test_a_note_without_a_log_is_the_cause() -> None:
    assert Death(1, "cause", ("", "  "), 0.0).note() == "cause"


@given(st.text(), st.integers(1, 50))
def test_one_line_is_printable_and_bounded(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert line.isprintable()


# --- log tail ----------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r", b"\r\n", b"ccc\n", b"dd\nee\n"])), st.integers(1, 5))
def test_the_tail_is_that_of_the_whole_log_however_it_comes(pieces: list[bytes], limit: int) -> None:
    tail = LogTail(lines=limit)
    for piece in pieces:
        tail.feed(piece)
    whole = b"".join(pieces).replace(b"\r", b"\n").decode()
    assert tail.lines() == tuple([line for line in whole.split("\n") if line][-limit:])


def test_one_piece_with_very_many_lines() -> None:
    tail = LogTail(lines=3)
    tail.feed(b"start of")
    tail.feed(b" line 0\n" + b"".join(b"line %d\n" % n for n in range(1, 10_000)) + b"open")
    assert tail.lines() == ("line 9998", "line 9999", "open")


def test_a_log_without_line_ends_is_bounded() -> None:
    tail = LogTail(line_bytes=10)
    for _ in range(1000):
        tail.feed(b"x" * 1000)
    assert tail.lines() == ("x" * 10,)
    tail.feed(b"\nnext")
    assert tail.lines() == ("x" * 10, "next")


def test_bytes_that_are_no_text_are_shown_somehow() -> None:
    tail = LogTail()
    tail.feed(b"gr\xc3\xbcn \xff\x1b[1m\n")
    assert tail.lines() == ("grün \ufffd [1m",)


# --- out of memory -----------------------------------------------------------------------------------


class Machine:
    """Files that look like the kernel's."""

    def __init__(self, root: Path, membership: str) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        (self.proc / "42").mkdir(parents=True)
        (self.proc / "42" / "cgroup").write_text(membership, encoding="ascii")
        self.write(self.proc / "vmstat", 0)
        self.cgroups.mkdir()

    def write(self, path: Path, oom_kill: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"low 0\noom 9\noom_kill {oom_kill}\noom_group_kill 3\n", encoding="ascii")

    def watch(self) -> OomWatch:
        return OomWatch(42, self.proc, self.cgroups)


V1 = "9:name=systemd:/\n4:memory:/box/child\n3:cpu,cpuset:/\n0::/\n"


@pytest.mark.parametrize(
    ("membership", "counter"),
    [
        ("0::/box/child\n", "box/child/memory.events"),
        ("0::/box/child\n", "memory.events"),  # a container that does not see its own path
        ("0::/../child\n", "child/memory.events"),
        (V1, "memory/box/child/memory.oom_control"),
        (V1, "memory/memory.oom_control"),
        ("1:cpu,memory:/x\n", "memory/x/memory.oom_control"),
        ("0::/x\n", "unified/x/memory.events"),
    ],
)
def test_a_rising_count_of_the_cgroup_is_told(tmp_path: Path, membership: str, counter: str) -> None:
    machine = Machine(tmp_path, membership)
    machine.write(machine.cgroups / counter, 1)
    watch = machine.watch()
    assert watch.verdict() == ""
    machine.write(machine.cgroups / counter, 2)
    assert watch.verdict() == ", probably out of memory (the cgroup's oom_kill count rose)"


def test_a_rising_count_of_the_machine_is_only_a_possibility(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/\n")
    watch = machine.watch()
    machine.write(machine.proc / "vmstat", 1)
    assert watch.verdict() == ", possibly out of memory (the kernel's oom_kill count rose)"


@pytest.mark.parametrize("membership", ["", "nonsense\n", "0::/gone\n"])
def test_without_readable_counters_nothing_is_said(tmp_path: Path, membership: str) -> None:
    machine = Machine(tmp_path, membership)
    (machine.proc / "vmstat").unlink()
    assert machine.watch().verdict() == ""
    assert OomWatch(4711, machine.proc, machine.cgroups).verdict() == ""
