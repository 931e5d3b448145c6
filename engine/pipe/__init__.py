"""Engines that speak the Strata pipe protocol as our supervised child.

`answer` is the mailbox of one request, `conversation` knows who a line belongs to (sans I/O), `engine` runs both over
a supervised process, `strata` has Strata's own names.
"""

from engine.pipe.engine import PipeEngine
from engine.pipe.strata import StrataEngine

__all__ = ["PipeEngine", "StrataEngine"]
