"""tools/probe/stopping.py: the first signal is a word, the second one ends."""

from __future__ import annotations

import signal
import threading

import pytest

from tools.probe.stopping import pause, stopping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_told_and_the_second_ends(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stopping() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
        pause(1_000.0, stop)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_on_another_thread_signals_stay_as_they_are() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def body() -> None:
        with stopping() as stop:
            seen.append((stop.is_set(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(20)
    assert seen == [(False, before)]
