"""A process with a store of its own, for tests that kill it: `python -m tests.unit.serve.store_child JOB FILE …`."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from pathlib import Path

from engine.events import Text
from serve.entries import Made
from serve.journal import Journal
from serve.recorder import Recorder
from serve.store import Store
from tests.unit.serve.stored import END, YEAR_S, record, texts, write


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def stream(recorder: Recorder, id_: str) -> None:
    """One answer without an end, as fast as a fast engine makes it."""
    journal = Journal()
    recorder.begin(record(id_), journal)
    say(f"begun {id_}")
    pause = threading.Event()
    for number in itertools.count():
        journal.append(Text(f" {number}"))
        pause.wait(0.0005)


def main(job: str, file: str, *ids: str) -> None:
    store = Store(Path(file), max_age_s=100 * YEAR_S, max_bytes=2**40)
    recorder = Recorder(store, every_s=0.02, on_cancel=lambda id_: say(f"cancel {id_}"))
    match job:
        case "stream":  # answers that never end
            for id_ in ids:
                threading.Thread(target=stream, args=(recorder, id_), daemon=True).start()
            sys.stdin.read()
        case "answers":  # many whole answers, one after the other
            for number in range(int(ids[1])):
                journal = Journal()
                recorder.begin(record(f"{ids[0]}{number}"), journal)
                entries: list[Made] = [Text(f" {count}") for count in range(5)]
                for entry in entries:
                    journal.append(entry)
                recorder.settle(f"{ids[0]}{number}", END)
            recorder.close()
            say("done")
        case "leave":  # a running record, and an engine that lives on
            store.write([record(ids[0])], [write(ids[0], texts(3))])
            engine = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False)
            say(str(engine.pid))
            sys.stdin.read()
        case _:
            raise ValueError(job)


if __name__ == "__main__":
    main(*sys.argv[1:])
