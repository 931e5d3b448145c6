"""Starts the fake engine: `python -m engine.fake`, or this file by its path (which is faster to start).

Only finds the package; `cli` does the work.
"""

import sys

if not __package__:  # run by path: name the folder as a package of its own, so that `engine` need not be importable
    _package = type(sys)("strata_fake_engine")
    _package.__path__ = [__file__.removesuffix("__main__.py").rstrip("/\\") or "."]
    sys.modules["strata_fake_engine"] = _package
    __package__ = "strata_fake_engine"  # what the next line is relative to

from .cli import main

if __name__ == "__main__":
    main(sys.argv[1:])
