"""What the patch changes in a checkout: its two files, read and rewritten in memory.

It writes nothing.
"""

from __future__ import annotations

from pathlib import Path

from tools.strata_patch import checkout
from tools.strata_patch.checkout import Change
from tools.strata_patch.recovery_test import patch_test
from tools.strata_patch.server_file import patch_server
from tools.strata_patch.source import read_source


def changes_of(root: Path, server: str, test: str) -> tuple[list[Change], tuple[str, ...]]:
    """The files that have to change, and what is to be said about it.

    Raises: NotUnderstood: a file has another shape than expected. Refused: it cannot be read.
    """
    data = checkout.read(root, server)
    patched = patch_server(read_source(server, data))
    changes = [Change(server, data, patched.data)]
    if (root / test).is_file():
        data = checkout.read(root, test)
        changes.append(Change(test, data, patch_test(read_source(test, data))))
    return [change for change in changes if change.before != change.after], patched.notes
