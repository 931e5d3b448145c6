"""How much a model may think: the end of the thinking is put into its answer where the budget is used up.

It decides only where; how an engine goes on from there is `engine.api.Interruption`, and how a template ends the
thinking `serve.template`. What comes out is read as if the model had ended its thinking itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.api import Interruption
from serve.assemble import TokenBytes

END = b"</think>"
MAX_REST_TOKENS = 3
"""A character that the budget's last token begins may be ended by so many more: UTF-8 has up to four bytes."""


class ThinkingBudget(Interruption):
    """The thinking of one answer may have `budget` tokens (at least 1), from the answer's first one on; then `closing`
    follows. An answer that ended its thinking, or itself, is left alone. Not thread-safe."""

    def __init__(
        self, tokenizer: TokenBytes, budget: int, closing: Sequence[int], end_ids: Collection[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._budget = budget
        self._closing = closing
        self._end_ids = end_ids
        self._made = 0
        self._tail = b""  # the last bytes, in which the end may have begun
        self._over = False

    @property
    def within(self) -> int:
        """They go in after so many tokens at the latest, or never."""
        return self._budget + MAX_REST_TOKENS

    def after(self, token: int) -> Sequence[int]:
        """What goes in after this token."""
        self._made += 1
        if self._over or self._ended_by(token):
            self._over = True
            return ()
        if self._made < self._budget or (self._made < self.within and _is_cut(self._tail)):
            return ()
        self._over = True
        return self._closing

    def _ended_by(self, token: int) -> bool:
        if token in self._end_ids:
            return True
        try:
            text = self._tail + self._tokenizer.token_bytes(token)
        except ValueError:  # the answer fails by it
            return True
        self._tail = text[1 - len(END) :]
        return END in text


def _is_cut(text: bytes) -> bool:
    """Whether a character's first bytes are the last ones."""
    for back in range(1, min(MAX_REST_TOKENS, len(text)) + 1):
        byte = text[-back]
        if byte < 0x80:
            return False
        if byte >= 0xC0:
            return back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return False
