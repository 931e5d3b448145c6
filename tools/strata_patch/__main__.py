"""`python -m tools.strata_patch`."""

from __future__ import annotations

import sys

from tools.strata_patch.command import main

if __name__ == "__main__":
    sys.exit(main())
