"""An interruption for tests."""

from __future__ import annotations

from collections.abc import Sequence


class After:
    """`put_in` goes in after `count` tokens. `heard` are the tokens that it was told of."""

    def __init__(self, count: int, put_in: Sequence[int] = (9, 9), within: int | None = None) -> None:
        self.within = count if within is None else within
        self.heard: list[int] = []
        self._count, self._put_in = count, put_in

    def after(self, token: int) -> Sequence[int]:
        self.heard.append(token)
        return self._put_in if len(self.heard) == self._count else ()
