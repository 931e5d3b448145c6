"""tools/soak from its command line: what each bad server does is seen, and an honest one passes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest

from tests.unit.tools.soak.conftest import BadServer, Soaked
from tests.unit.tools.soak.fake_nvml import FakeNvml
from tests.unit.tools.soak.fake_nvml import Process as GpuProcess
from tools.soak.gpu import MODULE

Start = Callable[..., BadServer]
Soak = Callable[..., Soaked]


def test_honest_server_that_is_killed_and_stalled_passes(bad_server: Start, soaked: Soak) -> None:
    options = ("--streams", "60", "--kills", "3", "--stalls", "2", "--stall-s", "0.3")
    run = soaked(bad_server(), *options)
    assert run.bad == {}
    assert run.status == 0
    assert [fault["error"] for fault in run.report["faults"]] == [None] * 5
    assert set(run.report["streams"]) == {"chat"}
    assert any(series["name"] == "server memory" for series in run.report["series"])
    assert {path.name for path in run.folder.iterdir()} == {"report.html", "report.json"}


@pytest.mark.parametrize(
    ("mode", "item", "seen", "patience"),
    [
        ("cut", "unterminated streams", "cut: in mid-answer", ()),
        ("silent", "unterminated streams", "nothing came any more", ("--silence-s", "3")),
        ("endless", "unterminated streams", "it had not ended after 3 s", ("--stream-limit-s", "3")),
        ("lies", "lies", "no-finish", ()),
        ("broken", "broken format", "not-json", ()),
    ],
)
def test_untrue_streams_are_seen(
    bad_server: Start, soaked: Soak, mode: str, item: str, seen: str, patience: tuple[str, ...]
) -> None:
    run = soaked(bad_server(mode), "--streams", "10", "--leave", "0", *patience)
    assert list(run.bad) == [item]
    assert seen in run.bad[item]
    assert run.status == 1
    evidence = next(run.folder.glob("untrue-*.txt")).read_text(encoding="utf-8")
    assert "--- request" in evidence and "data: " in evidence and seen in evidence


def test_death_that_is_cut_is_unterminated(bad_server: Start, soaked: Soak) -> None:
    run = soaked(bad_server("cuts deaths"), "--streams", "60", "--kills", "3", "--leave", "0")
    assert list(run.bad) == ["unterminated streams"]


def test_limit_that_is_told_as_success_is_seen(bad_server: Start, soaked: Soak) -> None:
    run = soaked(bad_server("hides limits"), "--streams", "20", "--max-tokens", "20")
    assert list(run.bad) == ["limits told as success"]
    assert run.status == 1


def test_death_that_is_told_as_success_is_seen(bad_server: Start, soaked: Soak) -> None:
    run = soaked(bad_server("hides deaths"), "--streams", "100", "--kills", "6", "--leave", "0", "--max-tokens", "40")
    assert list(run.bad) == ["deaths told as success"]
    assert run.status == 1


@pytest.mark.parametrize("by_request", [False, True])
def test_gpu_memory_that_leaks_is_seen(
    bad_server: Start, soaked: Soak, monkeypatch: pytest.MonkeyPatch, by_request: bool
) -> None:
    """NVML is a stand-in: what the processes of the server hold of the GPU grows with their work, or stays."""
    server = bad_server()
    nvml = FakeNvml(devices=1)

    def held(name: str, handle: object) -> list[GpuProcess]:
        asked = server.asked() if by_request else 1
        return [GpuProcess(server.process.pid, (500 + 4 * asked) << 20), GpuProcess(1, 9 << 30)]

    monkeypatch.setattr(nvml, "_processes", held)
    monkeypatch.setitem(sys.modules, MODULE, nvml)  # type: ignore[arg-type] - it has what is used of a module
    run = soaked(server, "--streams", "100", "--clients", "2", "--max-tokens", "8")
    assert any(fact == "memory of 1 GPU(s), by NVML" for fact in run.report["watched"])
    series = {series["name"]: series for series in run.report["series"]}
    assert series["GPU memory in use"]["last"] == 1000
    assert series["GPU memory of the tree"]["first"] >= 500 << 20
    assert list(run.bad) == (["leaks"] if by_request else [])
    assert not by_request or run.bad["leaks"].startswith("GPU memory of the tree\n")
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("mode", "series", "streams"),
    [
        ("memory", "server memory", 100),
        ("threads", "server threads", 100),
        ("descriptors", "server descriptors", 100),
        ("processes", "processes", 120),
        ("engine memory", "engine memory", 100),
        ("engine threads", "engine threads", 100),
        ("engine descriptors", "engine descriptors", 100),
    ],
)
def test_leaks_are_seen(bad_server: Start, soaked: Soak, mode: str, series: str, streams: int) -> None:
    if "descriptors" in mode and os.name == "nt":
        pytest.skip("the server's C runtime keeps a handle count of its own")
    run = soaked(bad_server(mode), "--streams", str(streams), "--clients", "2", "--max-tokens", "8")
    assert list(run.bad) == ["leaks"]
    assert f"{series}: +" in run.bad["leaks"]
    assert "rises, and goes on" in run.bad["leaks"]


def test_process_that_outlives_its_engine_is_an_orphan(bad_server: Start, soaked: Soak) -> None:
    server = bad_server("orphans")
    run = soaked(server, "--streams", "40", "--kills", "2")
    assert list(run.bad) == ["orphans"]
    assert run.bad["orphans"].startswith("2\nprocess ")
    pids = [int(line.split()[1]) for line in run.bad["orphans"].splitlines()[1:]]
    assert set(pids) < set(server.started())


def test_queue_that_keeps_what_left_is_seen(bad_server: Start, soaked: Soak) -> None:
    run = soaked(bad_server("stuck"), "--streams", "10")
    assert list(run.bad) == ["left in the queue"]
    assert "running, 0 waiting after all clients had left" in run.bad["left in the queue"]


def test_server_that_ends_by_itself_is_seen(bad_server: Start, soaked: Soak) -> None:
    server = bad_server("dies")
    run = soaked(server, "--streams", "500", "--server-pid", str(server.process.pid))
    assert "server" in run.bad
    assert run.status == 1
