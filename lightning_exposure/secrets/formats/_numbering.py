"""Numbering the secrets of a format: mixed radix over the blanks that can be chosen freely."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightning_exposure.secrets.formats._checksum import luhn_check_digit
from lightning_exposure.secrets.formats.pattern import Slot


class Numbering:
    """A bijection between ``range(size)`` and the texts of some slots; the first blank counts most.

    >>> from lightning_exposure.secrets.formats.pattern import parse
    >>> Numbering(parse("pin ##", {})).text_of(42)
    'pin 42'
    """

    def __init__(self, slots: Sequence[Slot], *, luhn: bool = False) -> None:
        """Number the texts of `slots`; with `luhn`, the last digit blank is determined by the others."""
        self._slots = slots
        digits = [place for place, slot in enumerate(slots) if slot.kind == "digit"]
        self._check_place = digits[-1] if luhn else None
        self.blanks = [place for place, slot in enumerate(slots) if slot.is_blank]
        """The places of the blanks among the slots."""
        self._free = [slots[place] for place in self.blanks if place != self._check_place]
        self.size = math.prod(len(slot.choices) for slot in self._free)
        """How many texts there are."""

    def text_of(self, number: int) -> str:
        """Return the text of a number, which must be in ``range(size)``."""
        choices = []
        for slot in reversed(self._free):
            number, choice = divmod(number, len(slot.choices))
            choices.append(slot.choices[choice])
        return "".join(self._pieces(choices[::-1]))

    def number_of(self, fillings: Sequence[str]) -> int:
        """Return the number of the text with these strings in its blanks, the check digit included."""
        number = 0
        for place, filling in zip(self.blanks, fillings, strict=True):
            if place != self._check_place:
                slot = self._slots[place]
                number = number * len(slot.choices) + slot.place[filling]
        return number

    def covering(self) -> list[str]:
        """Return a few texts in which every choice of every blank occurs."""
        longest = max(len(slot.choices) for slot in self._free)
        rows = [self._pieces([slot.choices[row % len(slot.choices)] for slot in self._free]) for row in range(longest)]
        if self._check_place is not None:
            seen = {row[self._check_place] for row in rows}
            # Any one digit can give the check digit any value, so changing one of them reaches all ten.
            first = [slot.kind for slot in self._free].index("digit")
            for digit in self._free[first].choices:
                choices = [slot.choices[0] for slot in self._free]
                choices[first] = digit
                row = self._pieces(choices)
                if row[self._check_place] not in seen:
                    seen.add(row[self._check_place])
                    rows.append(row)
        return ["".join(row) for row in rows]

    def _pieces(self, choices: Sequence[str]) -> list[str]:
        """Return the string in every slot, given those in the free blanks."""
        remaining = iter(choices)
        pieces: list[str] = []
        digits: list[int] = []
        for place, slot in enumerate(self._slots):
            if place == self._check_place:
                pieces.append(str(luhn_check_digit(digits)))
                continue
            piece = next(remaining) if slot.is_blank else slot.choices[0]
            if slot.kind == "digit":
                digits.append(int(piece))
            pieces.append(piece)
        return pieces
