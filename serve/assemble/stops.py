"""Finds stop strings in the answer's text, over the borders of its pieces. It decides no ending."""

from __future__ import annotations


class StopFinder:
    """Passes text on until one of the stop strings is complete.

    The string that is complete first wins, of two that end at the same character the longer one, so the outcome does
    not depend on how the text is cut. Text that may be the beginning of a stop string is held. The time for a
    character does not depend on how much text there was or is held.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = sorted({stop for stop in stops if stop}, key=len, reverse=True)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)  # how much of each stop the text ends with
        self._firsts = frozenset(stop[0] for stop in self._stops)
        self._held = ""
        self.found: str | None = None
        """The stop string that was found; nothing is passed on after it."""

    def feed(self, text: str) -> str:
        """The text that is certainly before any stop string."""
        if self.found is not None:
            return ""
        if not self._held and self._firsts.isdisjoint(text):
            return text
        for at, char in enumerate(text):
            for index in range(len(self._stops)):
                if self._advance(index, char):
                    self.found = self._stops[index]
                    whole = self._held + text[: at + 1]
                    self._held = ""
                    return whole[: len(whole) - len(self.found)]
        whole = self._held + text
        keep = len(whole) - max(self._matched)
        self._held = whole[keep:]
        return whole[:keep]

    def flush(self) -> str:
        """What is held: no stop string follows."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _advance(self, index: int, char: str) -> bool:
        stop, borders = self._stops[index], self._borders[index]
        matched = self._matched[index]
        while matched and stop[matched] != char:
            matched = borders[matched - 1]
        if stop[matched] == char:
            matched += 1
        self._matched[index] = matched
        return matched == len(stop)


def _borders(stop: str) -> list[int]:
    """For every beginning of `stop`, the length of its longest proper beginning that is also its end."""
    borders = [0] * len(stop)
    length = 0
    for at in range(1, len(stop)):
        while length and stop[at] != stop[length]:
            length = borders[length - 1]
        if stop[at] == stop[length]:
            length += 1
        borders[at] = length
    return borders
