"""How a checker ends: its exit statuses, and the one exception that means that it could not check."""

from __future__ import annotations

TRUTHFUL = 0
LIE = 1
"""Something was seen that no client should be told: a lie, a cut, or bytes that break the format."""
COULD_NOT_RUN = 2


class CouldNotRun(Exception):
    """Nothing could be checked. The text says what to do; whoever shows it has secrets taken out."""
