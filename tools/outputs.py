"""Whether files can be written, found out before the long work that they are for. It leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

from tools.probe.exits import CouldNotRun


def check_outputs(*paths: Path | None) -> None:
    """Raises: CouldNotRun: one of the files can't be written; None is no file."""
    for path in paths:
        if path is None:
            continue
        new = not path.exists()
        try:
            path.open("ab").close()
            if new:
                path.unlink()
        except OSError as error:
            raise CouldNotRun(f"{path} cannot be written: {error.strerror}") from None
