"""A life over a child that behaves as no real process can be made to: one that the kernel cannot end."""

from __future__ import annotations

import threading

import pytest

from engine.api import EngineStarting, EngineStuck
from engine.events import FailKind
from engine.supervisor import ChildSpec, Death, Supervisor, life, supervisor
from engine.supervisor.child import Child

DEADLINE_S = 20.0


class StuckChild:
    """Ready at once, then deaf: signals do not end it until `release`."""

    def __init__(self) -> None:
        self.pid = 1_000_000_007
        self.kills = 0
        self._gone = threading.Event()
        self._woken = threading.Event()
        self._lines = [b"READY\n"]

    def release(self) -> None:
        self._gone.set()
        self._woken.set()

    def wait_exit(self, timeout_s: float | None) -> bool:
        self._woken.wait(timeout_s)
        self._woken.clear()
        return self._gone.is_set()

    def wake(self) -> None:
        self._woken.set()

    def exit_code(self) -> int | None:
        return -9 if self._gone.is_set() else None

    def read_stdout(self) -> bytes:
        if self._lines:
            return self._lines.pop()
        self._gone.wait(DEADLINE_S)
        return b""

    def read_stderr(self) -> bytes:
        self._gone.wait(DEADLINE_S)
        return b""

    def finish_reading(self) -> None:
        pass

    def write(self, data: bytes) -> None:
        self._gone.wait(DEADLINE_S)
        raise BrokenPipeError

    def note_tree(self) -> None:
        pass

    def terminate(self) -> None:
        pass

    def kill_tree(self) -> None:
        self.kills += 1

    def sweep(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> StuckChild:
    child = StuckChild()

    def spawn(argv: object, cwd: object, env: object, spoken: object) -> Child:
        return child

    monkeypatch.setattr(life, "spawn", spawn)
    monkeypatch.setattr(life, "TELL_ANYWAY_S", 0.1)
    monkeypatch.setattr(life, "KILL_AGAIN_S", 0.05)
    monkeypatch.setattr(life, "STUCK_S", 0.3)
    monkeypatch.setattr(supervisor, "KILL_WAIT_S", 0.3)
    return child


def test_a_process_that_cannot_be_ended_is_told_and_keeps_others_out_until_it_is_gone(stuck: StuckChild) -> None:
    deaths: list[Death] = []
    told = threading.Event()

    def on_death(number: int, death: Death) -> None:
        deaths.append(death)
        told.set()

    watched = Supervisor(ChildSpec(("x",)), lambda number, line: line == b"READY", on_death, stop_grace_s=0.05)
    number = watched.start()
    watched.kill(number, "silent for ever", FailKind.SILENT)
    assert told.wait(DEADLINE_S)  # nobody waits for the kernel
    assert (deaths[0].cause, deaths[0].exit_code) == ("silent for ever", None)
    assert watched.pid == stuck.pid
    with pytest.raises(EngineStarting, match="has not ended yet"):
        watched.start()
    with pytest.raises(EngineStuck, match=str(stuck.pid)):
        watched.close()
    assert stuck.kills >= 2
    stuck.release()
    watched.close()
    assert watched.state == "stopped"
    assert watched.pid is None
    assert len(deaths) == 1
