"""Structure out of bytes: every byte string is some structured input, and every one can be written as bytes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    Made = TypeVar("Made")


class Choices:
    """Takes what it needs from the front; what is not there any more is zero, so that everything ends."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, most: int) -> int:
        """From 0 to ``most``."""
        width = (most.bit_length() + 7) // 8
        taken = self._data[self._at : self._at + width]
        self._at += width
        return int.from_bytes(taken, "little") % (most + 1)

    def raw(self, most: int) -> bytes:
        """Bytes, at most as many."""
        length = self.number(most)
        taken = self._data[self._at : self._at + length]
        self._at += length
        return taken

    # --- made of the two ---------------------------------------------------------------------------------

    def pick(self, options: Sequence[Made]) -> Made:
        return options[self.number(len(options) - 1)]

    def flag(self, one_in: int = 2) -> bool:
        return self.number(one_in - 1) == one_in - 1

    def some(self, make: Callable[[], Made], most: int) -> list[Made]:
        return [make() for _each in range(self.number(most))]

    def text(self, words: Sequence[str], most: int) -> str:
        return "".join(self.some(lambda: self.pick(words), most))
